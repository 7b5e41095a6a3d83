//! Which way each stream goes: pure.

use crate::cli::OutputMode;

/// One of the two streams a rank writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

/// What happens to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// The rank writes to the launcher's own stream; the launcher does not see it.
    Inherit,
    /// The launcher passes the bytes on unchanged, as they come.
    Tee,
    /// Line by line, after the rank.
    Prefix,
    /// Not shown.
    Hide,
}

/// Whether the launcher's own streams are terminals.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terminals {
    pub(crate) stderr: bool,
}

/// The ways of stdout and stderr of `rank`.
///
/// Rank 0 writes directly wherever it can, so that a progress bar finds its terminal. Its stderr is
/// passed through the launcher when that costs nothing (it is no terminal), since the last lines of
/// it are the best there is to report of a rank that was killed; on a terminal they are there to
/// be read anyway.
pub(crate) fn routes(
    mode: OutputMode,
    rank: usize,
    terminals: Terminals,
    logs: bool,
) -> [Route; 2] {
    let direct = |terminal: bool| if logs || !terminal { Route::Tee } else { Route::Inherit };
    match (mode, rank) {
        (OutputMode::Prefixed, _) | (OutputMode::Mixed, 1..) => [Route::Prefix; 2],
        (OutputMode::Main, 1..) => [Route::Hide; 2],
        (OutputMode::Mixed | OutputMode::Main, 0) => [direct(true), direct(terminals.stderr)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_0_keeps_its_terminal_unless_it_is_logged() {
        let ways = |stderr, logs| routes(OutputMode::Mixed, 0, Terminals { stderr }, logs);
        assert_eq!(ways(true, false), [Route::Inherit, Route::Inherit]);
        assert_eq!(ways(false, false), [Route::Inherit, Route::Tee]);
        assert_eq!(ways(true, true), [Route::Tee, Route::Tee]);
    }

    #[test]
    fn the_others_follow_the_mode() {
        let ways = |mode| routes(mode, 3, Terminals { stderr: true }, false);
        assert_eq!(ways(OutputMode::Mixed), [Route::Prefix; 2]);
        assert_eq!(ways(OutputMode::Prefixed), [Route::Prefix; 2]);
        assert_eq!(ways(OutputMode::Main), [Route::Hide; 2]);
    }
}
