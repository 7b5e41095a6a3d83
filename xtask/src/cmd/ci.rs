//! `cargo xtask ci`: what a change must pass. The cheap checks all run, so that one round shows every fault;
//! the tests run only when they passed.

use std::time::Duration;

use anyhow::{Result, bail};

use crate::cmd::test;
use crate::step::Step;
use crate::workspace::Workspace;
use crate::{setup, style};

/// Runs the checks and then the tests.
///
/// # Errors
/// When anything fails, after a table of all checks.
pub(crate) fn run(ws: &Workspace) -> Result<()> {
    style::heading("setup");
    setup::provide(ws)?;
    style::heading("checks");
    let results: Vec<_> = checks(ws).into_iter().map(check).collect();
    style::heading("checks, in short");
    for (name, outcome) in &results {
        summary(name, outcome.as_ref());
    }
    let failed: Vec<_> = results.iter().filter(|(_, outcome)| outcome.is_err()).collect();
    if !failed.is_empty() {
        let names: Vec<_> = failed.iter().map(|(name, _)| *name).collect();
        bail!("{} of {} checks failed: {}", failed.len(), results.len(), names.join(", "));
    }
    style::heading("tests");
    test::run(ws, &test::Args::default())
}

/// Runs a check; a fault is told at once and again in the table.
fn check(step: Step) -> (&'static str, Result<Duration>) {
    let name = step.name;
    let outcome = step.run();
    if let Err(error) = &outcome {
        style::failure(error);
    }
    (name, outcome)
}

fn summary(name: &str, outcome: Result<&Duration, &anyhow::Error>) {
    match outcome {
        Ok(time) => style::doing("ok", &format!("{name} ({:.1} s)", time.as_secs_f64())),
        Err(_) => style::doing("FAILED", name),
    }
}

/// The checks that need no run of the programs, quickest first.
fn checks(ws: &Workspace) -> Vec<Step> {
    let mut docs = ws.cargo(["doc", "--quiet", "--workspace", "--no-deps"]);
    docs.env("RUSTDOCFLAGS", "-D warnings");
    let clippy = ["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"];
    let fuzz =
        ["check", "--quiet", "--manifest-path", "fuzz/Cargo.toml", "--target-dir", "target/fuzz"];
    let fuzz = ws.cargo(fuzz);
    let mut steps = vec![
        Step::new("Format", ws.cargo(["fmt", "--all", "--", "--check"]), "cargo fmt --all"),
        Step::new("Lints", ws.cargo(clippy), "mend what clippy names; an allow needs a reason"),
        Step::new(
            "Fuzzing",
            fuzz,
            "mend fuzz/, which compiles the modules of ddp-macros once more",
        ),
        Step::new("Docs", docs, "mend the documentation comment that rustdoc names"),
        Step::new("Older libtorch", ws.cargo(["xtask", "older"]), "see what it says"),
    ];
    if ws.has_cargo("deny") {
        let deny = ws.cargo(["deny", "check"]);
        steps.insert(1, Step::new("Licences", deny, "see deny.toml for what is allowed and why"));
    } else {
        style::note("cargo-deny is not installed; licences and advisories are not checked");
    }
    steps
}
