//! Where the ranks of a communicator meet: a file that all of them map, with a place for each rank's data.
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::mm::{MapFlags, ProtFlags};

use crate::setting::{At, happens};

/// Ranks at most.
const RANKS: usize = 16;
/// Bytes of a rank's place.
pub(crate) const PLACE: usize = 1 << 20;
const LOOK_EVERY: Duration = Duration::from_micros(50);

/// Why ranks did not meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missed {
    /// This rank gave up.
    Aborted,
    /// Another rank is gone.
    Gone,
    /// The ranks do different things.
    Different,
}

/// What a rank says that it does.
#[repr(C)]
#[derive(Default)]
struct Said {
    step: AtomicU64,
    what: AtomicU64,
    pid: AtomicU32,
    left: AtomicU32,
}

#[repr(C)]
struct Head {
    joined: AtomicU32,
    said: [Said; RANKS],
}

/// One rank's view of the file.
pub(crate) struct Meeting {
    base: NonNull<u8>,
    bytes: usize,
    rank: usize,
    ranks: usize,
    step: AtomicU64,
}

// SAFETY: the head is atomic; a place is written by its rank alone, between two meetings of all.
unsafe impl Send for Meeting {}
// SAFETY: as above.
unsafe impl Sync for Meeting {}

/// A name that no other communicator of this machine has.
pub(crate) fn new_path() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("ddp-nccl-double-{}-{number}", std::process::id()))
}

impl Meeting {
    /// Opens the file and waits for all ranks. The last that comes takes the file's name away.
    pub(crate) fn join(
        path: &Path,
        rank: usize,
        ranks: usize,
        aborted: &AtomicBool,
    ) -> Result<Self, Missed> {
        let meeting = Self::open(path, rank, ranks).map_err(|_| Missed::Gone)?;
        meeting.said(rank).pid.store(std::process::id(), Ordering::Release);
        if happens(At::Die, rank, 0) {
            // SAFETY: ends the process at once, which is what is asked for.
            unsafe { libc::_exit(9) };
        }
        let joined = &meeting.head().joined;
        if joined.fetch_add(1, Ordering::AcqRel) as usize + 1 == ranks {
            // It may have been the test that took the folder away.
            let _ = std::fs::remove_file(path);
        }
        while (joined.load(Ordering::Acquire) as usize) < ranks {
            meeting.look(aborted)?;
        }
        Ok(meeting)
    }

    fn open(path: &Path, rank: usize, ranks: usize) -> std::io::Result<Self> {
        let bytes = size_of::<Head>() + ranks * PLACE;
        let file: File =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        file.set_len(bytes as u64)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping of a file that nobody shortens.
        let base = unsafe {
            rustix::mm::mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, &file, 0)?
        };
        let base = NonNull::new(base.cast()).ok_or(std::io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, bytes, rank, ranks, step: AtomicU64::new(0) })
    }

    fn head(&self) -> &Head {
        // SAFETY: the mapping begins with the head; a new file is all zero, which is valid for it.
        unsafe { self.base.cast::<Head>().as_ref() }
    }

    fn said(&self, rank: usize) -> &Said {
        &self.head().said[rank]
    }

    fn place(&self, rank: usize) -> *mut u8 {
        // SAFETY: within the mapping, for ranks below `ranks`.
        unsafe { self.base.as_ptr().add(size_of::<Head>() + rank * PLACE) }
    }

    /// This rank's place, to write to before the ranks meet.
    pub(crate) fn write(&self, bytes: &[u8]) {
        // SAFETY: at most `PLACE` bytes go into this rank's own place, which nobody reads now.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.place(self.rank), bytes.len()) };
    }

    /// What a rank has written, after they have met and before they meet again.
    pub(crate) fn read(&self, rank: usize, bytes: usize) -> &[u8] {
        // SAFETY: nobody writes between two meetings.
        unsafe { std::slice::from_raw_parts(self.place(rank), bytes) }
    }

    pub(crate) fn ranks(&self) -> usize {
        self.ranks
    }

    /// Waits until all ranks are here, and compares what they are here for.
    pub(crate) fn meet(&self, what: u64, aborted: &AtomicBool) -> Result<(), Missed> {
        let step = self.step.fetch_add(1, Ordering::Relaxed) + 1;
        let own = self.said(self.rank);
        own.what.store(what, Ordering::Relaxed);
        own.step.store(step, Ordering::Release);
        for rank in 0..self.ranks {
            while self.said(rank).step.load(Ordering::Acquire) < step {
                self.look(aborted)?;
            }
            let same_step = self.said(rank).step.load(Ordering::Acquire) == step;
            if same_step && self.said(rank).what.load(Ordering::Relaxed) != what {
                return Err(Missed::Different);
            }
        }
        Ok(())
    }

    /// Sleeps a moment; an error when it is no use to wait any longer.
    fn look(&self, aborted: &AtomicBool) -> Result<(), Missed> {
        if aborted.load(Ordering::Acquire) {
            return Err(Missed::Aborted);
        }
        let gone = |said: &Said| {
            let pid = said.pid.load(Ordering::Acquire);
            pid != 0 && said.left.load(Ordering::Acquire) == 0 && !is_running(pid)
        };
        if self.head().said[..self.ranks].iter().any(gone) {
            return Err(Missed::Gone);
        }
        std::thread::sleep(LOOK_EVERY);
        Ok(())
    }

    /// This rank has left in good order.
    pub(crate) fn leave(&self) {
        self.said(self.rank).left.store(1, Ordering::Release);
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        // SAFETY: mapped once in `open`; nothing refers to it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Whether a process runs, and is not only waiting to be reaped.
fn is_running(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        !stat.rsplit(')').next().unwrap_or("").trim_start().starts_with(['Z', 'X'])
    })
}
