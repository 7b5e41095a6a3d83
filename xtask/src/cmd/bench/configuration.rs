//! The configurations that are measured against each other, and how each is started.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::programs::Programs;
use crate::workspace::Workspace;

/// The peer's program, from the root of the workspace.
const PEER: &str = "xtask/peers/ddp_bench.py";

/// Whose training step it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    PyTorch,
    Ours,
}

/// One line of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Configuration {
    pub(crate) name: String,
    pub(crate) side: Side,
    pub(crate) ranks: u32,
    /// PyTorch only: gradients are views of the buckets.
    pub(crate) bucket_view: bool,
}

/// Every configuration. The first of each number of ranks is what the others are compared with.
pub(crate) fn all(ranks: u32) -> Vec<Configuration> {
    let line = |name: &str, side, ranks, bucket_view| Configuration {
        name: match ranks {
            1 => format!("{name}, 1 process"),
            _ => format!("{name}, {ranks} ranks"),
        },
        side,
        ranks,
        bucket_view,
    };
    vec![
        line("PyTorch DDP", Side::PyTorch, ranks, false),
        line("PyTorch DDP with bucket views", Side::PyTorch, ranks, true),
        line("this project", Side::Ours, ranks, false),
        line("PyTorch", Side::PyTorch, 1, false),
        line("this project", Side::Ours, 1, false),
    ]
}

impl Configuration {
    /// The peer, under torchrun where there are several ranks; on loopback alone.
    pub(crate) fn pytorch(&self, ws: &Workspace, python: &Path) -> Command {
        let mut command = ws.command(python);
        if self.ranks > 1 {
            command.args(["-m", "torch.distributed.run", "--standalone"]);
            command.args(["--local-addr=127.0.0.1", &format!("--nproc-per-node={}", self.ranks)]);
            command.env("GLOO_SOCKET_IFNAME", "lo");
        }
        command.arg(PEER).args(self.bucket_view.then_some("--bucket-view"));
        command
    }

    /// Our program, under our launcher where there are several ranks.
    ///
    /// # Errors
    /// When a program was not built.
    pub(crate) fn ours(&self, ws: &Workspace, programs: &Programs) -> Result<Command> {
        let step = programs.path("bench_step")?;
        if self.ranks == 1 {
            return Ok(ws.command(step));
        }
        let mut command = ws.command(programs.path("cargo-ddp")?);
        command.args(["run", "-n", &self.ranks.to_string(), "--exec"]).arg(step).arg("--");
        Ok(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::render;

    #[test]
    fn the_peer_runs_alone_or_under_torchrun() {
        let ws = Workspace::at(Path::new("/repo"));
        let lines: Vec<_> = all(2)
            .iter()
            .filter(|configuration| configuration.side == Side::PyTorch)
            .map(|configuration| render(&configuration.pytorch(&ws, Path::new("/venv/python"))))
            .collect();
        let torchrun = "python -m torch.distributed.run --standalone --local-addr=127.0.0.1 \
                        --nproc-per-node=2 xtask/peers/ddp_bench.py";
        let wanted = [
            torchrun.to_owned(),
            format!("{torchrun} --bucket-view"),
            "python xtask/peers/ddp_bench.py".to_owned(),
        ];
        assert_eq!(lines, wanted);
    }
}
