//! What the attribute costs where there is one process, and what a timeline costs: with and without, in turn.

use anyhow::Result;

use super::configuration::{Configuration, OURS, PLAIN};
use super::record::{OverheadRow, Record};
use super::steps::{self, Measured, Model};
use super::{Bench, turn};
use crate::stats::quartiles;

/// How often to measure.
#[derive(clap::Args, Clone)]
pub(crate) struct Args {
    /// How often each pair is run
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// About how long the measured steps of a run may take, in seconds; at least 8 steps and at most 100 are
    #[arg(long, default_value_t = 1.5)]
    seconds: f64,
}

/// Two ways to run the same steps.
struct Pair {
    what: &'static str,
    model: Model,
    ranks: u32,
    without: Configuration,
    /// Whether the second one writes a timeline.
    traced: bool,
}

/// The model of many small layers has the most hooks a second, and so the most to lose.
const PAIRS: [Pair; 4] =
    [alone(Model::Layers), alone(Model::Conv), traced(Model::Layers), traced(Model::Conv)];

const fn alone(model: Model) -> Pair {
    Pair { what: "the attribute, on one process", model, ranks: 1, without: PLAIN, traced: false }
}

const fn traced(model: Model) -> Pair {
    Pair { what: "a timeline", model, ranks: 2, without: OURS, traced: true }
}

/// Every pair, in turn.
///
/// # Errors
/// When a program fails.
pub(super) fn measure(bench: &Bench, args: &Args) -> Result<Vec<OverheadRow>> {
    let folder = tempfile::tempdir()?;
    let row = |pair: &Pair| OverheadRow::new(pair.what, pair.model.name(), pair.ranks);
    let mut rows: Vec<OverheadRow> = PAIRS.iter().map(row).collect();
    for repeat in 1..=args.repeats {
        for (pair, row) in PAIRS.iter().zip(&mut rows) {
            let command = |configuration| {
                steps::command(bench, pair.model, args.seconds, pair.ranks, configuration)
            };
            let without: Measured = bench.measure(command(&pair.without)?)?;
            let mut with = command(&OURS)?;
            if pair.traced {
                with.env("DDP_TRACE", folder.path().join("trace.json"));
            }
            let with: Measured = bench.measure(with)?;
            let figure = format!("{:+.1} %", percent(with.median_ms / without.median_ms));
            let name = format!("{}, {}", pair.what, row.model);
            turn("overhead", repeat, args.repeats, &figure, &name);
            row.without_ms.push(without.median_ms);
            row.with_ms.push(with.median_ms);
        }
    }
    Ok(rows)
}

fn percent(ratio: f64) -> f64 {
    100.0 * (ratio - 1.0)
}

/// A Markdown table. The runs of a pair follow each other, so their ratio is taken pair by pair.
pub(super) fn table(record: &Record) -> String {
    let mut lines = vec![
        "## What is added to a step\n".to_owned(),
        "The difference is that of the two runs of a pair, which follow each other: the median and the quartiles over the pairs.\n"
            .to_owned(),
        "| what | model | ranks | pairs | without, ms | with, ms | difference | quartiles |".to_owned(),
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |".to_owned(),
    ];
    lines.extend(record.overheads.iter().filter_map(|row| {
        let pairs = row.without_ms.iter().zip(&row.with_ms);
        let added: Vec<f64> = pairs.map(|(without, with)| percent(with / without)).collect();
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
