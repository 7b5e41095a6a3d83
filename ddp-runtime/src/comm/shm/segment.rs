//! Memory that several processes see: anonymous files, opened by the other ranks through /proc.
//!
//! An anonymous file has no name, so that nothing is left behind however a rank dies, and it is not bound by the size of
//! /dev/shm, which containers keep small. Its pages are reserved when it is made: a machine that has no memory left says so
//! here, and not by a signal in the middle of a sum.
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::bridge::BridgeError;

/// A mapping of shared memory, unmapped when dropped.
pub(super) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is plain memory; who may touch which part when is the protocol's business (see `ring`).
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(fd: &OwnedFd, bytes: usize) -> Result<Self, BridgeError> {
        // SAFETY: a new mapping at a place of the kernel's choice touches no memory of ours.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                fd,
                0,
            )
        }
        .map_err(|error| {
            BridgeError::new(format!("mapping {bytes} bytes of shared memory: {error}"))
        })?;
        NonNull::new(start.cast())
            .map(|start| Self { start, bytes })
            .ok_or_else(|| BridgeError::new("shared memory was mapped nowhere"))
    }

    /// The first byte.
    pub(super) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The address range.
    pub(super) fn holds(&self, address: usize, bytes: usize) -> bool {
        let start = self.start.as_ptr() as usize;
        start <= address && address + bytes <= start + self.bytes
    }

    /// Its length.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nobody holds the value any more. Unmapping a whole mapping does not fail.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// A segment of this rank's.
pub(super) struct Segment {
    fd: OwnedFd,
    mapping: Mapping,
    serial: u64,
}

impl Segment {
    /// Reserves `bytes`, rounded up to whole pages, filled with zeros. `serial` tells this rank's segments apart.
    pub(super) fn new(bytes: usize, serial: u64) -> Result<Self, BridgeError> {
        let bytes = bytes.max(1).next_multiple_of(4096);
        let reserve = || {
            let fd = memory_file()?;
            rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, bytes as u64)?;
            Ok(fd)
        };
        let fd: OwnedFd = reserve().map_err(|error: Errno| {
            BridgeError::new(format!("reserving {bytes} bytes of shared memory: {error}"))
        })?;
        let mapping = Mapping::new(&fd, bytes)?;
        Ok(Self { fd, mapping, serial })
    }

    pub(super) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// What the other ranks need to open it.
    pub(super) fn ticket(&self) -> Ticket {
        Ticket {
            serial: self.serial,
            fd: self.fd.as_raw_fd().unsigned_abs(),
            bytes: self.mapping.bytes as u64,
        }
    }
}

/// A memory file. Each large gradient has one, and a process may have more of them than it may open files at first: then it takes
/// what its hard limit allows.
fn memory_file() -> Result<OwnedFd, Errno> {
    let create = || rustix::fs::memfd_create("ddp", MemfdFlags::CLOEXEC);
    match create() {
        Err(Errno::MFILE) => {
            let limit = getrlimit(Resource::Nofile);
            setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
            create()
        }
        other => other,
    }
}

/// How a rank names a segment to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    /// Its number among the rank's segments.
    pub(super) serial: u64,
    /// The descriptor in the rank's process.
    pub(super) fd: u32,
    /// Its length.
    pub(super) bytes: u64,
}

/// Maps a segment of the process `pid`.
pub(super) fn open(pid: u32, ticket: Ticket) -> Result<Mapping, BridgeError> {
    let path = format!("/proc/{pid}/fd/{}", ticket.fd);
    let fd = rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| BridgeError::new(format!("opening {path}: {error}")))?;
    let size = rustix::fs::fstat(&fd)
        .map_err(|error| BridgeError::new(format!("looking at {path}: {error}")))?
        .st_size;
    if u64::try_from(size).ok() != Some(ticket.bytes) {
        return Err(BridgeError::new(format!(
            "{path} has {size} bytes and not {}: it is another process's",
            ticket.bytes
        )));
    }
    Mapping::new(&fd, ticket.bytes as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_segments_than_the_soft_limit_of_open_files() {
        let before = getrlimit(Resource::Nofile);
        let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
        let few = Rlimit { current: Some(open + 200), ..before };
        assert!(before.maximum.is_none_or(|most| most > open + 300));
        setrlimit(Resource::Nofile, few).unwrap();
        let segments: Vec<Segment> =
            (0..240).map(|serial| Segment::new(4096, serial).unwrap()).collect();
        assert_eq!(segments.len(), 240);
        setrlimit(Resource::Nofile, before).unwrap();
    }
}
