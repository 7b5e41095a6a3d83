//! The shapes s01 to s22 by name.
use anyhow::{Context, Result, bail};

use super::{batches, forms, places, rates, stores};

type Shape = fn() -> Result<()>;

const SHAPES: &[(&str, Shape)] = &[
    ("s01_all_in_one", places::s01_all_in_one),
    ("s02_helper", places::s02_helper),
    ("s03_method", places::s03_method),
    ("s04_hidden", places::s04_hidden),
    ("s05_loop_of_its_own", places::s05_loop_of_its_own),
    ("s06_one_call", forms::s06_one_call),
    ("s07_by_hand", forms::s07_by_hand),
    ("s08_accumulation", forms::s08_accumulation),
    ("s09_changed_gradients", forms::s09_changed_gradients),
    ("s10_own_optimizers", forms::s10_own_optimizers),
    ("s11_raw_leaves", forms::s11_raw_leaves),
    ("s12_losses", forms::s12_losses),
    ("s13_two_stores", stores::s13_two_stores),
    ("s14_target_networks", stores::s14_target_networks),
    ("s15_where_the_store_is", stores::s15_where_the_store_is),
    ("s15_another_shape", stores::s15_another_shape),
    ("s16_names_and_late_layers", stores::s16_names_and_late_layers),
    ("s17_frozen_and_unused", stores::s17_frozen_and_unused),
    ("s18_learning_rates", rates::s18_learning_rates),
    ("s19_batch_norm", rates::s19_batch_norm),
    ("s20_iterators", batches::s20_iterators),
    ("s20_text", batches::s20_text),
    ("s21_full_batch", batches::s21_full_batch),
    ("s22_random_batches", batches::s22_random_batches),
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
