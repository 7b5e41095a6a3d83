//! Exit codes with a meaning that the launcher reads.
//!
//! 64 to 113 is the range a program may give meanings of its own: below it are codes that programs
//! use freely, above it those of shells (126, 127) and of signals (128 + number). Of that range 64
//! to 78 belong to `sysexits.h` and 101 is a Rust panic, so the codes here start at 80.

/// The group could not be set up: rendezvous, device, transport or options.
pub const SETUP_FAILED: u8 = 80;
/// This rank ended because another one had failed. It is never the root cause of a failed job.
pub const PEER_FAILED: u8 = 81;
/// A wait for the other ranks ran into its limit.
pub const TIMED_OUT: u8 = 82;
/// Ranks that should do the same thing did different things: other parameters, other operations,
/// another order.
pub const MISMATCH: u8 = 83;
/// The code with which a Rust program ends after a panic.
pub const PANIC: u8 = 101;

/// What `code` means, for a report: `None` when it has no meaning that is known here.
///
/// ```
/// assert_eq!(ddp_env::exit::meaning(101), Some("a Rust panic"));
/// assert_eq!(ddp_env::exit::meaning(1), None);
/// ```
#[must_use]
pub fn meaning(code: i32) -> Option<&'static str> {
    match u8::try_from(code).ok()? {
        SETUP_FAILED => Some("setting up the process group failed"),
        PEER_FAILED => Some("ended because another rank had failed"),
        TIMED_OUT => Some("a wait for the other ranks timed out"),
        MISMATCH => Some("the ranks did different things"),
        PANIC => Some("a Rust panic"),
        126 => Some("the program is not executable"),
        127 => Some("the program or one of its shared libraries was not found"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_in_the_free_range() {
        let codes = [SETUP_FAILED, PEER_FAILED, TIMED_OUT, MISMATCH];
        for (index, code) in codes.iter().enumerate() {
            assert!((79..=113).contains(code) && *code != PANIC, "{code}");
            assert!(!codes[..index].contains(code), "{code} is used twice");
            assert!(meaning(i32::from(*code)).is_some());
        }
    }
}
