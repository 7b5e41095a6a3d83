//! The configurations that are measured against each other, and how each is started.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::programs::Programs;
use crate::workspace::Workspace;

/// Whose program it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    PyTorch,
    Ours,
}

/// One way to run the same work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Configuration {
    pub(crate) name: &'static str,
    pub(crate) side: Side,
    /// Options of the program, beside those of the measurement.
    arguments: &'static [&'static str],
    environment: &'static [(&'static str, &'static str)],
}

/// What `Malloc::Keep` sets, as the C library's variables.
const KEEP: &[(&str, &str)] = &[
    ("MALLOC_MMAP_THRESHOLD_", "1073741824"),
    ("MALLOC_TRIM_THRESHOLD_", "2147483647"),
    ("MALLOC_TOP_PAD_", "268435456"),
];

const fn pytorch(
    name: &'static str,
    arguments: &'static [&'static str],
    environment: &'static [(&'static str, &'static str)],
) -> Configuration {
    Configuration { name, side: Side::PyTorch, arguments, environment }
}

const fn ours(
    name: &'static str,
    arguments: &'static [&'static str],
    environment: &'static [(&'static str, &'static str)],
) -> Configuration {
    Configuration { name, side: Side::Ours, arguments, environment }
}

/// This project as it comes.
pub(crate) const OURS: Configuration = ours("this project", &[], &[]);

/// One process: no communication on either side.
const ALONE: &[Configuration] = &[
    pytorch("PyTorch", &[], &[]),
    pytorch("PyTorch, memory kept", &[], KEEP),
    OURS,
    ours("this project, memory kept", &[], KEEP),
];

/// As many ranks as a small machine has cores. The first is PyTorch's default, the fourth ours. The last two bound what any
/// synchronisation can reach: ranks that only wait for each other, and processes that share the machine and nothing else.
const FEW: &[Configuration] = &[
    pytorch("PyTorch DDP", &[], &[]),
    pytorch("PyTorch DDP, bucket views", &["--bucket-view"], &[]),
    pytorch("PyTorch DDP, bucket views, memory kept", &["--bucket-view"], KEEP),
    OURS,
    ours("this project over Gloo", &[], &[("DDP_BACKEND", "gloo")]),
    ours("this project, memory not kept", &[], &[("DDP_MALLOC", "system")]),
    ours("in step, nothing exchanged", &["--in-step"], &[]),
    ours("no synchronisation, memory kept", &["--plain"], KEEP),
];

/// More ranks, whose jobs take long to start: PyTorch as it comes and at its best, and both transports of ours.
const MANY: &[Configuration] = &[FEW[0], FEW[2], FEW[3], FEW[4]];

/// The configurations of the training step. The first one is what the others are compared with.
pub(crate) fn steps(ranks: u32) -> &'static [Configuration] {
    match ranks {
        1 => ALONE,
        2 => FEW,
        _ => MANY,
    }
}

/// The configurations of the all-reduce alone. The first one is what the others are compared with.
pub(crate) const ALL_REDUCE: &[Configuration] = &[
    pytorch("PyTorch over Gloo", &[], &[]),
    OURS,
    ours("this project, as a call", &["--calls"], &[]),
    ours("this project over Gloo", &[], &[("DDP_BACKEND", "gloo")]),
];

impl Configuration {
    /// The peer's program `peer`, or ours called `program`, on that many ranks.
    ///
    /// # Errors
    /// When a program was not built.
    pub(crate) fn command(
        &self,
        ws: &Workspace,
        (python, peer): (&Path, &str),
        (programs, program): (&Programs, &str),
        ranks: u32,
    ) -> Result<Command> {
        let mut command = match self.side {
            Side::PyTorch => self.peer(ws, python, peer, ranks),
            Side::Ours => own(ws, programs, program, ranks)?,
        };
        command.args(self.arguments).envs(self.environment.iter().copied());
        Ok(command)
    }

    /// The peer, under torchrun where there are several ranks; on loopback alone.
    fn peer(&self, ws: &Workspace, python: &Path, peer: &str, ranks: u32) -> Command {
        let mut command = ws.command(python);
        if ranks > 1 {
            command.args(["-m", "torch.distributed.run", "--standalone"]);
            command.args(["--local-addr=127.0.0.1", &format!("--nproc-per-node={ranks}")]);
            command.env("GLOO_SOCKET_IFNAME", "lo");
        }
        command.arg(peer);
        command
    }
}

/// Our program, under our launcher where there are several ranks.
fn own(ws: &Workspace, programs: &Programs, program: &str, ranks: u32) -> Result<Command> {
    let program = programs.path(program)?;
    if ranks == 1 {
        return Ok(ws.command(program));
    }
    let mut command = ws.command(programs.path("cargo-ddp")?);
    command.args(["run", "-n", &ranks.to_string(), "--exec"]).arg(program).arg("--");
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::render;

    fn peers(ranks: u32) -> Vec<String> {
        let ws = Workspace::at(Path::new("/repo"));
        let none = Programs::default();
        steps(ranks)
            .iter()
            .filter(|configuration| configuration.side == Side::PyTorch)
            .map(|configuration| {
                let python = Path::new("/venv/python");
                let command = configuration.command(&ws, (python, "p.py"), (&none, "p"), ranks);
                render(&command.unwrap())
            })
            .collect()
    }

    #[test]
    fn the_peer_runs_alone_or_under_torchrun() {
        let torchrun = "python -m torch.distributed.run --standalone --local-addr=127.0.0.1 \
                        --nproc-per-node=2 p.py";
        let views = format!("{torchrun} --bucket-view");
        assert_eq!(peers(2), [torchrun.to_owned(), views.clone(), views]);
        assert_eq!(peers(4).len(), 2);
        assert_eq!(peers(1), ["python p.py"; 2]);
    }

    #[test]
    fn comparisons_begin_with_pytorch_as_it_comes() {
        for list in [steps(1), steps(4), ALL_REDUCE] {
            assert_eq!((list[0].side, list[0].arguments.len()), (Side::PyTorch, 0));
            assert!(list[0].environment.is_empty());
        }
    }
}
