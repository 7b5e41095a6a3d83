//! The shapes s01 to s22 by name.
use anyhow::{Context, Result, bail};

use super::places;

type Shape = fn() -> Result<()>;

const SHAPES: &[(&str, Shape)] = &[
    ("s01_all_in_one", places::s01_all_in_one),
    ("s02_helper", places::s02_helper),
    ("s03_method", places::s03_method),
    ("s04_hidden", places::s04_hidden),
    ("s05_loop_of_its_own", places::s05_loop_of_its_own),
];

/// Runs shapes one after the other.
pub(in crate::cases) fn run(args: &[String]) -> Result<()> {
    if args.is_empty() {
        bail!("expected shapes");
    }
    for arg in args {
        match SHAPES.iter().find(|(known, _)| known == arg) {
            Some((_, shape)) => shape().with_context(|| arg.clone())?,
            None => bail!("no shape is called {arg}"),
        }
    }
    Ok(())
}
