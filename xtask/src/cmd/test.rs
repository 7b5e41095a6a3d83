//! `cargo xtask test [FILTER]`: doc tests first, so that the last line is the runner's.

use std::process::Command;

use anyhow::Result;

use crate::setup::{self, Libtorch};
use crate::step::Step;
use crate::style;
use crate::workspace::Workspace;

/// For the tests that compare with PyTorch: the python whose torch is the libtorch in use.
const TRUTH_PYTHON: &str = "DDP_TRUTH_PYTHON";

/// What to run.
#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// Only tests whose name holds this
    filter: Option<String>,
}

/// Runs the tests. With a filter the doc tests are left out, as they have no names to hold it.
pub(crate) fn run(ws: &Workspace, args: &Args) -> Result<()> {
    let libtorch = setup::provide(ws)?;
    if args.filter.is_none() {
        doc_tests(ws, &libtorch).run()?;
    }
    tests(ws, &libtorch, args.filter.as_deref()).run_as_last()
}

/// The examples in the documentation.
pub(crate) fn doc_tests(ws: &Workspace, libtorch: &Libtorch) -> Step {
    let command = ws.cargo(["test", "--quiet", "--workspace", "--doc"]);
    Step::new(
        "Doc tests",
        with_libtorch(command, libtorch),
        "run one package: cargo test --doc -p NAME",
    )
}

/// All other tests, by nextest where it is installed. Neither runner stops at the first failure.
pub(crate) fn tests(ws: &Workspace, libtorch: &Libtorch, filter: Option<&str>) -> Step {
    let mut command = if ws.has_cargo("nextest") {
        ws.cargo(["nextest", "run", "--workspace", "--no-fail-fast"])
    } else {
        style::note(
            "cargo-nextest is not installed; cargo test runs the tests, some minutes slower",
        );
        ws.cargo(["test", "--workspace", "--lib", "--bins", "--tests", "--no-fail-fast"])
    };
    command.args(filter);
    if let Some(python) = setup::owner_of(&libtorch.folder) {
        command.env(TRUTH_PYTHON, python);
    }
    let hint = "run one test alone: cargo xtask test NAME";
    Step::new("Tests", with_libtorch(command, libtorch), hint)
}

/// A library's own test and doc-test programs carry no path to libtorch: cargo passes link arguments on to the
/// programs of a package only.
fn with_libtorch(mut command: Command, libtorch: &Libtorch) -> Command {
    let mut paths = vec![libtorch.folder.join("lib")];
    if let Some(set) = std::env::var_os("LD_LIBRARY_PATH") {
        paths.extend(std::env::split_paths(&set));
    }
    if let Ok(joined) = std::env::join_paths(paths) {
        command.env("LD_LIBRARY_PATH", joined);
    }
    command
}
