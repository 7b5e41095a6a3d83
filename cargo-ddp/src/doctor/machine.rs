//! Cores, memory, shared memory, loopback and open files.

use std::fs;
use std::net::{TcpListener, TcpStream};

use rustix::process::{Resource, getrlimit};

use super::finding::{Finding, size};
use crate::host::cores;

/// What shared-memory gradients of a model of usual size need. Docker grants 64 MiB by itself.
const ENOUGH_SHM: u64 = 1 << 30;
/// A rank opens sockets to all others and the files of its data loaders.
const ENOUGH_FILES: u64 = 1024;

pub(super) fn check() -> Vec<Finding> {
    vec![usable_cores(), memory(), shared_memory(), loopback(), open_files()]
}

fn usable_cores() -> Finding {
    let cores = cores::usable();
    Finding::ok("usable cores", format!("{}, limited by {}", cores.count, cores.limit.name()))
}

fn memory() -> Finding {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    match (field(&meminfo, "MemAvailable:"), field(&meminfo, "MemTotal:")) {
        (Some(free), Some(total)) => {
            Finding::ok("memory", format!("{} free of {}", size(free), size(total)))
        }
        _ => Finding::warn("memory", "unknown", "/proc/meminfo cannot be read; mount /proc"),
    }
}

/// A field of `/proc/meminfo`, in bytes.
fn field(meminfo: &str, name: &str) -> Option<u64> {
    let value = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn shared_memory() -> Finding {
    const SUBJECT: &str = "/dev/shm";
    let cure = "ranks on the CPU then use sockets, which is slower; with docker: --shm-size=8g or \
                --ipc=host";
    match rustix::fs::statvfs(SUBJECT) {
        Err(error) => Finding::warn(SUBJECT, format!("cannot be used: {error}"), cure),
        Ok(stat) => {
            let (free, total) = (stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize);
            let text = format!("{} free of {}", size(free), size(total));
            if free < ENOUGH_SHM {
                Finding::warn(SUBJECT, text, cure)
            } else {
                Finding::ok(SUBJECT, text)
            }
        }
    }
}

fn loopback() -> Finding {
    let connected = TcpListener::bind("127.0.0.1:0").and_then(|listener| {
        let address = listener.local_addr()?;
        TcpStream::connect_timeout(&address, std::time::Duration::from_secs(2)).map(|_| address)
    });
    match connected {
        Ok(_) => Finding::ok("loopback", "127.0.0.1 answers"),
        Err(error) => Finding::missing(
            "loopback",
            format!("127.0.0.1 does not answer: {error}"),
            "bring the interface up (ip link set lo up), or allow it in the sandbox",
        ),
    }
}

fn open_files() -> Finding {
    match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < ENOUGH_FILES => Finding::warn(
            "open files",
            limit.to_string(),
            format!("ulimit -n {ENOUGH_FILES} before the job, or LimitNOFILE of the service"),
        ),
        Some(limit) => Finding::ok("open files", limit.to_string()),
        None => Finding::ok("open files", "unlimited"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_meminfo_are_in_bytes() {
        let text = "MemTotal:       16384 kB\nMemAvailable:    8 kB\n";
        assert_eq!(field(text, "MemAvailable:"), Some(8192));
        assert_eq!(field(text, "Swap:"), None);
    }

    #[test]
    fn this_machine_has_a_loopback() {
        assert_eq!(loopback(), Finding::ok("loopback", "127.0.0.1 answers"));
    }
}
