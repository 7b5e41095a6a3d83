//! The expansion of a long function, as a program's build has it (unoptimised, as cargo builds macros) and optimised.

use anyhow::{Context, Result};

use super::record::{ExpansionRow, Record};
use super::{Bench, output, turn};
use crate::stats::quartiles;
use crate::step::Step;

/// How often to measure.
#[derive(clap::Args, Clone)]
pub(crate) struct Args {
    /// How often each build is run
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
}

/// The test of the macro's crate that expands it, and prints how long that took.
const TEST: [&str; 5] = ["test", "--quiet", "-p", "ddp-macros", "--lib"];
const NAME: &str = "a_long_function_expands_quickly";
/// Names of the builds, and cargo's options for them. The profile for macros is not that of the programs.
const BUILDS: [(&str, &[&str]); 2] = [
    ("unoptimised", &[]),
    ("optimised", &["--release", "--config", "profile.release.build-override.opt-level=3"]),
];

/// Both builds, in turn.
///
/// # Errors
/// When a build or the test fails.
pub(super) fn measure(bench: &Bench, args: &Args) -> Result<Vec<ExpansionRow>> {
    let mut rows = Vec::new();
    for (name, options) in BUILDS {
        let mut build = bench.ws.cargo(TEST);
        build.args(options).arg("--no-run");
        Step::new("Building", build, "the macro's own tests show what is wrong").run()?;
        rows.push(ExpansionRow { build: name.to_owned(), lines: 0, ms: Vec::new() });
    }
    for repeat in 1..=args.repeats {
        for ((name, options), row) in BUILDS.iter().zip(&mut rows) {
            let mut test = bench.ws.cargo(TEST);
            test.args(*options).args([NAME, "--", "--nocapture"]);
            let text = output(&test, bench.limit)?;
            let (lines, ms) = measured(&text).with_context(|| format!("no time in\n{text}"))?;
            turn("expansion", repeat, args.repeats, &format!("{ms:.1} ms"), name);
            row.lines = lines;
            row.ms.push(ms);
        }
    }
    Ok(rows)
}

/// Lines and milliseconds in a line such as `expanding 700 lines: 12.3ms`.
fn measured(text: &str) -> Option<(u32, f64)> {
    let line = text.lines().find_map(|line| line.split_once("expanding ").map(|parts| parts.1))?;
    let (lines, rest) = line.split_once(" lines")?;
    let time = rest.split_whitespace().next_back()?;
    let (number, unit) = time.split_at(time.find(|c: char| !c.is_ascii_digit() && c != '.')?);
    let factor = match unit {
        "s" => 1e3,
        "ms" => 1.0,
        "µs" => 1e-3,
        _ => return None,
    };
    Some((lines.parse().ok()?, factor * number.parse::<f64>().ok()?))
}

/// A Markdown table.
pub(super) fn table(record: &Record) -> String {
    let mut lines = vec![
        "## Expansion of the attribute\n".to_owned(),
        "One function of many loops, by `expand` on `proc_macro2`'s own tokens, outside the compiler: the best of the rounds of \
         a run. Cargo builds macros unoptimised, also for a release build, unless a profile's `build-override` says otherwise.\n"
            .to_owned(),
        "| build of the macro | lines | runs | ms | quartiles |".to_owned(),
        "| --- | ---: | ---: | ---: | --- |".to_owned(),
    ];
    lines.extend(record.expansion.iter().filter_map(|row| {
        let ms = quartiles(&row.ms)?;
        let runs = row.ms.len();
        Some(format!("| {} | {} | {runs} | {:.1} | {ms} |", row.build, row.lines, ms.median))
    }));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::bench::machine::Machine;

    #[test]
    fn a_time_is_read_in_any_unit() {
        let text = "running 1 test\nexpanding 700 lines: 12.5ms\n     parse: 1.0ms\nok";
        assert_eq!(measured(text), Some((700, 12.5)));
        assert_eq!(measured("expanding 650 lines took 1.5s"), Some((650, 1500.0)));
        assert_eq!(measured("expanding 650 lines took 500µs"), Some((650, 0.5)));
        assert_eq!(measured("test x ... expanding 650 lines took 2ms"), Some((650, 2.0)));
        assert_eq!(measured("expanding 650 lines took long"), None);
        assert_eq!(measured("running 0 tests"), None);
    }

    #[test]
    fn a_row_has_its_build() {
        let mut record = Record::new(Machine::sample());
        let build = "optimised".to_owned();
        record.expansion = vec![ExpansionRow { build, lines: 700, ms: vec![3.0, 2.0, 4.0] }];
        let line = "| optimised | 700 | 3 | 3.0 | 2.50-3.50 |";
        assert_eq!(table(&record).lines().last(), Some(line));
    }
}
