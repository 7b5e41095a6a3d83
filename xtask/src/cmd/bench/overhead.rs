//! What the attribute costs where there is one process, and what a timeline costs: blocks of steps with and without, in turn
//! within one run.

use anyhow::Result;
use serde::Deserialize;

use super::configuration::OURS;
use super::record::{OverheadRow, Record};
use super::steps::{self, Model};
use super::{Bench, turn};
use crate::stats::quartiles;

/// How often and how long to measure.
#[derive(clap::Args, Clone)]
pub(crate) struct Args {
    /// How many runs give pairs of blocks
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// About how long the measured steps of a run may take, in seconds; at least 5 pairs of blocks are measured
    #[arg(long, default_value_t = 20.0)]
    seconds: f64,
}

/// What is added to the steps of a model.
struct Added {
    what: &'static str,
    /// As the program calls it.
    option: &'static str,
    model: Model,
    ranks: u32,
}

/// The model of many small layers has the most hooks a second, and so the most to lose.
const ADDED: [Added; 4] = [
    attribute(Model::Layers),
    attribute(Model::Conv),
    timeline(Model::Layers),
    timeline(Model::Conv),
];

const fn attribute(model: Model) -> Added {
    Added { what: "the attribute, on one process", option: "attribute", model, ranks: 1 }
}

const fn timeline(model: Model) -> Added {
    Added { what: "a timeline", option: "timeline", model, ranks: 2 }
}

/// The line that a measured program prints: milliseconds a step, a pair of blocks at each place.
#[derive(Debug, Deserialize)]
struct Blocks {
    without_ms: Vec<f64>,
    with_ms: Vec<f64>,
}

/// Each model with each addition, in turn.
///
/// # Errors
/// When a program fails.
pub(super) fn measure(bench: &Bench, args: &Args) -> Result<Vec<OverheadRow>> {
    let folder = tempfile::tempdir()?;
    let row = |added: &Added| OverheadRow::new(added.what, added.model.name(), added.ranks);
    let mut rows: Vec<OverheadRow> = ADDED.iter().map(row).collect();
    for repeat in 1..=args.repeats {
        for (added, row) in ADDED.iter().zip(&mut rows) {
            let mut command = steps::command(bench, added.model, args.seconds, added.ranks, &OURS)?;
            command.args(["--alternate", added.option]);
            if added.option == "timeline" {
                command.env("DDP_TRACE", folder.path().join("trace.json"));
            }
            let blocks: Blocks = bench.measure(command)?;
            row.without_ms.extend(blocks.without_ms);
            row.with_ms.extend(blocks.with_ms);
            let figure = quartiles(&row.added())
                .map_or_else(String::new, |by| format!("{:+.1} %", by.median));
            turn(
                "overhead",
                repeat,
                args.repeats,
                &figure,
                &format!("{}, {}", row.what, row.model),
            );
        }
    }
    Ok(rows)
}

impl OverheadRow {
    /// What was added, in per cent of a step, pair by pair: the blocks of a pair follow each other.
    fn added(&self) -> Vec<f64> {
        let pairs = self.without_ms.iter().zip(&self.with_ms);
        pairs.map(|(without, with)| 100.0 * (with / without - 1.0)).collect()
    }
}

/// A Markdown table.
pub(super) fn table(record: &Record) -> String {
    let mut lines = vec![
        "## What is added to a step\n".to_owned(),
        "A run has blocks of four steps with it and without it in turn. The difference is that of two blocks which follow each \
         other: the median and the quartiles over the pairs.\n"
            .to_owned(),
        "| what | model | ranks | pairs | without, ms | with, ms | difference | quartiles |".to_owned(),
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |".to_owned(),
    ];
    lines.extend(record.overheads.iter().filter_map(|row| {
        let added = row.added();
        let (without, with) = (quartiles(&row.without_ms)?, quartiles(&row.with_ms)?);
        let added_by = quartiles(&added)?;
        Some(format!(
            "| {} | {} | {} | {} | {:.2} | {:.2} | {:+.1} % | {:+.1} % to {:+.1} % |",
            row.what,
            row.model,
            row.ranks,
            added.len(),
            without.median,
            with.median,
            added_by.median,
            added_by.lower,
            added_by.upper
        ))
    }));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::bench::machine::Machine;

    #[test]
    fn a_difference_is_that_of_a_pair() {
        let mut record = Record::new(Machine::sample());
        let mut row = OverheadRow::new("it", "mlp", 2);
        // The machine got slower; each pair differs by a tenth all the same.
        row.without_ms = vec![10.0, 20.0, 40.0];
        row.with_ms = vec![11.0, 22.0, 44.0];
        record.overheads = vec![row];
        let line = "| it | mlp | 2 | 3 | 20.00 | 22.00 | +10.0 % | +10.0 % to +10.0 % |";
        assert_eq!(table(&record).lines().last(), Some(line));
    }
}
