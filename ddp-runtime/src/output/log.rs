//! Log macros: information from the main rank, warnings and errors from every rank.

use super::Voice;

/// How grave a line of a log is: the levels of the `log` and `tracing` crates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// What must not have happened.
    Error,
    /// What may be wrong.
    Warn,
    /// What goes on.
    Info,
    /// What helps to find a fault.
    Debug,
    /// Every detail.
    Trace,
}

/// Whether this rank logs lines of `level`: the ranks that print log all, the others warnings and errors.
///
/// Whose line a warning is, the log's own format does not say; `cargo ddp run` marks what the other ranks write.
#[must_use]
pub fn logs(level: Level) -> bool {
    decide(level, Voice::now())
}

fn decide(level: Level, voice: Voice) -> bool {
    voice != Voice::Silent || level <= Level::Warn
}

#[cfg(test)]
mod tests {
    use super::{Level, Voice, decide};

    #[test]
    fn silent_ranks_log_what_is_grave() {
        let silent = |level| decide(level, Voice::Silent);
        assert!(silent(Level::Error) && silent(Level::Warn));
        assert!(!silent(Level::Info) && !silent(Level::Debug) && !silent(Level::Trace));
        assert!(decide(Level::Trace, Voice::Plain) && decide(Level::Trace, Voice::Marked(1)));
    }
}
