//! What a test sets by environment variables, and the log that it reads.
//!
//! - `DDP_DOUBLE_GPUS` (8), `DDP_DOUBLE_VERSION` (22907).
//! - `DDP_DOUBLE_DELAY_US`: streams sleep up to that long before each task.
//! - `DDP_DOUBLE_SLOW_LAUNCH=1`: calls of collectives return "in progress" and launch a moment later.
//! - `DDP_DOUBLE_FAULTS`: faults, separated by blanks, each `WHAT@RANK=NUMBER`. `WHAT` is the name of a function, which then returns
//!   that code, or one of [`At`], at that collective of the communicator (the first is 1).
//! - `DDP_DOUBLE_LOG`: a folder for the file `RANK.log` with a line for each call.
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::OnceLock;

/// What happens at a certain collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    /// The process ends without a word. At 0: while it joins.
    Die,
    /// It never ends on this rank.
    Hang,
    /// The communicator reports `ncclRemoteError` from then on.
    Async,
    /// It leaves a wrong result.
    Wrong,
}

impl At {
    fn name(self) -> &'static str {
        match self {
            At::Die => "die",
            At::Hang => "hang",
            At::Async => "async",
            At::Wrong => "wrong",
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// How many devices there are.
pub(crate) fn gpus() -> i32 {
    number("DDP_DOUBLE_GPUS").unwrap_or(8) as i32
}

/// NCCL's version code.
pub(crate) fn version() -> i32 {
    number("DDP_DOUBLE_VERSION").unwrap_or(22907) as i32
}

/// The longest delay of a stream before a task, in microseconds.
pub(crate) fn delay() -> u64 {
    static DELAY: OnceLock<u64> = OnceLock::new();
    *DELAY.get_or_init(|| number("DDP_DOUBLE_DELAY_US").unwrap_or(0))
}

/// Whether launches go on in the background.
pub(crate) fn slow_launch() -> bool {
    static SLOW: OnceLock<bool> = OnceLock::new();
    *SLOW.get_or_init(|| number("DDP_DOUBLE_SLOW_LAUNCH") == Some(1))
}

/// The number of a fault of `rank`.
pub(crate) fn fault(what: &str, rank: usize) -> Option<u64> {
    let faults = std::env::var("DDP_DOUBLE_FAULTS").ok()?;
    let wanted = format!("{what}@{rank}");
    faults.split_whitespace().find_map(|fault| {
        let (name, number) = fault.split_once('=')?;
        (name == wanted).then(|| number.parse().ok()).flatten()
    })
}

/// Whether something is to happen at this collective of this rank.
pub(crate) fn happens(what: At, rank: usize, collective: u64) -> bool {
    fault(what.name(), rank) == Some(collective)
}

/// This process's rank, as its launcher says.
pub(crate) fn process_rank() -> usize {
    number("RANK").unwrap_or(0) as usize
}

/// Notes a call.
pub(crate) fn log(line: &str) {
    let Some(folder) = std::env::var_os("DDP_DOUBLE_LOG") else { return };
    let path = std::path::Path::new(&folder).join(format!("{}.log", process_rank()));
    let file = OpenOptions::new().create(true).append(true).open(path);
    // A log that cannot be written is missed by the test that reads it.
    let _ = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
}
