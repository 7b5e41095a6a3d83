//! `cargo xtask simulate`: how steps scale to more ranks than one has, from latency and bandwidth; see `cost` for the model.

mod cost;

use anyhow::{Context, Result};
use plotters::prelude::*;

use self::cost::{Compute, Link, in_turn, line, overlapped, two_level};
use crate::cmd::bench::record::{Record, ReduceRow, StepRow};
use crate::plot::{self, Drawn, FONT, SIZE};
use crate::stats::{number, quartiles};
use crate::style;
use crate::workspace::Workspace;

/// What is simulated. The defaults are round figures for hosts of 8 GPUs; give those of your own.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Trainable numbers of the model, 4 bytes each
    #[arg(long, default_value_t = 124e6)]
    parameters: f64,
    /// A step on one rank, in milliseconds; each rank has a batch of its own
    #[arg(long, default_value_t = 250.0)]
    step_ms: f64,
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    ranks_per_host: u32,
    /// Microseconds a message within a host
    #[arg(long, default_value_t = 5.0)]
    local_us: f64,
    /// 10^9 bytes a second within a host
    #[arg(long, default_value_t = 100.0)]
    local_gb_s: f64,
    /// Microseconds a message between hosts
    #[arg(long, default_value_t = 20.0)]
    network_us: f64,
    /// 10^9 bytes a second of a host's network
    #[arg(long, default_value_t = 12.5)]
    network_gb_s: f64,
    /// Take the link within a host from the all-reduces that docs/benchmarks.json has of this configuration
    #[arg(long, value_name = "CONFIGURATION")]
    fit: Option<String>,
    /// Write docs/scaling.md and its chart; without it the chart goes into target/
    #[arg(long)]
    record: bool,
}

/// How gradients are reduced, and whether meanwhile the backward goes on.
const WAYS: [&str; 4] =
    ["ring, overlapped", "tree, overlapped", "two levels, overlapped", "two levels, in turn"];
/// Numbers of ranks.
const RANKS: [u32; 8] = [8, 16, 32, 64, 128, 256, 512, 1024];

/// Prints the table and writes the chart; compares with what was measured where there is a record.
///
/// # Errors
/// When there is no such record, or a file cannot be written.
pub(crate) fn run(ws: &Workspace, args: &Args) -> Result<()> {
    let record = Record::stored(ws)?;
    let local = match &args.fit {
        Some(configuration) => fitted(record.as_ref(), configuration)?,
        None => Link::of(args.local_us, args.local_gb_s),
    };
    let rows: Vec<Row> = RANKS.iter().map(|&ranks| Row::new(args, local, ranks)).collect();
    let mut text = table(args, local, &rows);
    if let Some(record) = &record {
        text += &format!("\n\n{}", check(record));
    }
    println!("{text}");
    let folder = if args.record { ws.docs() } else { ws.own_target() };
    std::fs::create_dir_all(&folder)?;
    let path = folder.join("scaling.svg");
    std::fs::write(&path, chart(&rows)?)?;
    if args.record {
        let head = "# Scaling, simulated\n\nMade by `cargo xtask simulate --record`";
        let tail = "![Efficiency over ranks](scaling.svg)";
        std::fs::write(folder.join("scaling.md"), format!("{head}. {text}\n\n{tail}\n"))?;
    }
    style::doing("Written", &path.display().to_string());
    Ok(())
}

/// The link that the sweep on the fewest ranks shows.
fn fitted(record: Option<&Record>, configuration: &str) -> Result<Link> {
    let rows = record.map(|record| record.all_reduce.as_slice()).unwrap_or_default();
    let rows = rows.iter().filter(|row| row.configuration == configuration);
    let row = rows.min_by_key(|row| row.ranks);
    let link = row.and_then(|row| Some(Link::of_ring(row.ranks, line(&points(row))?)));
    link.with_context(|| format!("docs/benchmarks.json has no all-reduces of `{configuration}`"))
}

/// Bytes and median seconds of each size.
fn points(row: &ReduceRow) -> Vec<(f64, f64)> {
    let sizes = row.bytes.iter().zip(&row.times_us);
    sizes
        .filter_map(|(&bytes, times)| Some((bytes as f64, quartiles(times)?.median / 1e6)))
        .collect()
}

/// Seconds on so many ranks.
struct Row {
    ranks: u32,
    /// An all-reduce of all gradients: by a ring, a tree, in two levels.
    reduces: [f64; 3],
    /// A step of each of `WAYS`.
    steps: [f64; 4],
    alone: f64,
}

impl Row {
    fn new(args: &Args, local: Link, ranks: u32) -> Self {
        let network = Link::of(args.network_us, args.network_gb_s);
        let per_host = args.ranks_per_host;
        // Neighbours share a host, so that a flat ring and a tree cross each host's network once each way; a ring goes as
        // fast as its slowest link.
        let flat = if ranks <= per_host { local } else { local.or_slower(network) };
        let (inside, hosts) = (ranks.min(per_host), ranks.div_ceil(per_host));
        let ring = |bytes| flat.ring(ranks, bytes);
        let tree = |bytes| local.tree(inside, bytes) + network.tree(hosts, bytes);
        let levels = |bytes| two_level(local, network, per_host, ranks, bytes);
        let (alone, bytes) = (args.step_ms / 1e3, 4.0 * args.parameters);
        let compute = Compute::of_step(alone);
        let steps = [
            overlapped(compute, bytes, ring),
            overlapped(compute, bytes, tree),
            overlapped(compute, bytes, levels),
            in_turn(compute, bytes, levels),
        ];
        Self { ranks, reduces: [ring(bytes), tree(bytes), levels(bytes)], steps, alone }
    }

    /// Percent of the step on one rank.
    fn efficiency(&self) -> [f64; 4] {
        self.steps.map(|step| 100.0 * self.alone / step)
    }
}

fn table(args: &Args, local: Link, rows: &[Row]) -> String {
    let mut lines = vec![
        format!(
            "{:.0} million parameters, {} ms a step on one rank, hosts of {} ranks; a message takes {:.1} µs and {:.2} GB/s within a \
             host, {} µs and {} GB/s between hosts. Times are those of one all-reduce of all gradients. Percentages are the step \
             on one rank over the step, in which gradients are reduced by buckets.\n",
            args.parameters / 1e6,
            args.step_ms,
            args.ranks_per_host,
            1e6 * local.latency,
            1e-9 / local.per_byte,
            args.network_us,
            args.network_gb_s
        ),
        format!("| ranks | ring, ms | tree, ms | two levels, ms | {} |", WAYS.join(" | ")),
        format!("|{}", " ---: |".repeat(4 + WAYS.len())),
    ];
    lines.extend(rows.iter().map(|row| {
        let times = row.reduces.map(|time| number(1e3 * time)).join(" | ");
        let shares = row.efficiency().map(|share| format!("{share:.0} %")).join(" | ");
        format!("| {} | {times} | {shares} |", row.ranks)
    }));
    lines.join("\n")
}

/// Steps as the model has them from the recorded all-reduces and the step of one process, beside those recorded.
fn check(record: &Record) -> String {
    let mut lines = vec![
        "Against the record: the all-reduce is the line through the recorded sweep, the computation that of one process, times the \
         ranks that share a core. Ranks on CPUs compute and communicate on the same cores, so a step lies between overlapped and in turn, \
         and above where they also share the memory's bandwidth.\n"
            .to_owned(),
        "| model | ranks | configuration | overlapped, ms | in turn, ms | measured, ms |".to_owned(),
        "| --- | ---: | --- | ---: | ---: | ---: |".to_owned(),
    ];
    lines.extend(record.steps.iter().filter_map(|row| check_row(record, row)));
    lines.join("\n")
}

/// None for one process, and where no all-reduce of the configuration was measured.
fn check_row(record: &Record, row: &StepRow) -> Option<String> {
    let same =
        |other: &&ReduceRow| (&other.configuration, other.ranks) == (&row.configuration, row.ranks);
    let (a, b) = line(&points(record.all_reduce.iter().find(same)?))?;
    // On several ranks freed memory is kept.
    let alone = |other: &&StepRow| {
        (other.model == row.model, other.ranks) == (true, 1)
            && other.configuration == "this project, memory kept"
    };
    let alone = quartiles(&record.steps.iter().find(alone)?.step_ms)?.median / 1e3;
    let crowd = (f64::from(row.ranks) / record.machine.cores as f64).max(1.0);
    let compute = Compute::of_step(alone * crowd);
    let (bytes, reduce) = (4.0 * row.parameters as f64, |bytes| a + b * bytes);
    Some(format!(
        "| {} | {} | {} | {} | {} | {} |",
        row.model,
        row.ranks,
        row.configuration,
        number(1e3 * overlapped(compute, bytes, reduce)),
        number(1e3 * in_turn(compute, bytes, reduce)),
        number(quartiles(&row.step_ms)?.median)
    ))
}

/// Efficiency over the number of ranks, as SVG.
fn chart(rows: &[Row]) -> Result<String> {
    plot::svg(|svg| draw(svg, rows))
}

fn draw<'a>(svg: &'a mut String, rows: &[Row]) -> Drawn<'a> {
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (first, last) = (f64::from(RANKS[0]), f64::from(RANKS[RANKS.len() - 1]));
    let mut chart = ChartBuilder::on(&root)
        .caption("Simulated efficiency of a step", FONT)
        .margin(20)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d((first..last * 1.01).log_scale().base(2.0), 0.0..100.0)?;
    let mut mesh = chart.configure_mesh();
    mesh.light_line_style(TRANSPARENT).x_labels(RANKS.len());
    mesh.x_desc("ranks")
        .y_desc("% of the step on one rank")
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| format!("{y:.0}"));
    mesh.draw()?;
    let curve = |(kind, name): (usize, &str)| {
        let point = |row: &Row| (f64::from(row.ranks), row.efficiency()[kind]);
        (name.to_owned(), rows.iter().map(point).collect())
    };
    plot::curves(&mut chart, WAYS.into_iter().enumerate().map(curve))?;
    plot::names(&mut chart, SeriesLabelPosition::LowerLeft)?;
    root.present()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// All-reduces on two ranks that take 10 µs and 1 ms a MB, and a model with 1 MB of gradients.
    fn record() -> Record {
        let step = |ranks, configuration: &str, ms: f64| {
            json!({"model": "m", "ranks": ranks, "configuration": configuration, "parameters": 250_000,
                "step_ms": [ms], "start_s": [], "peak_mib": []})
        };
        let record = json!({
            "machine": {"cpu": "", "cores": 2, "memory_gib": 1, "libtorch": ""},
            "steps": [step(1, "this project, memory kept", 3.0), step(2, "this project", 3.5)],
            "all_reduce": [{"ranks": 2, "configuration": "this project", "bytes": [1_000, 1_000_000],
                "times_us": [[11.0], [1010.0]], "copy_gb_s": []}],
        });
        serde_json::from_value(record).unwrap()
    }

    #[test]
    fn recorded_all_reduces_give_a_link_and_a_step() {
        let link = fitted(Some(&record()), "this project").unwrap();
        let wanted = Link { latency: 5e-6, per_byte: 1e-9 };
        assert!((link.latency / wanted.latency - 1.0).abs() < 1e-6, "{link:?}");
        assert!((link.per_byte / wanted.per_byte - 1.0).abs() < 1e-6, "{link:?}");
        // One bucket, which the backward has filled when it ends: nothing is hidden.
        let text = check(&record());
        assert_eq!(text.lines().last(), Some("| m | 2 | this project | 4.01 | 4.01 | 3.50 |"));
        let error = fitted(None, "this project").unwrap_err().to_string();
        assert!(error.contains("no all-reduces of `this project`"), "{error}");
    }

    #[test]
    fn the_table_and_the_chart_have_all_ranks_and_ways() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        let Line { args } = clap::Parser::parse_from(["simulate"]);
        let local = Link::of(args.local_us, args.local_gb_s);
        let rows: Vec<Row> = RANKS.iter().map(|&ranks| Row::new(&args, local, ranks)).collect();
        assert_eq!(table(&args, local, &rows).lines().count(), 4 + RANKS.len());
        let svg = chart(&rows).unwrap();
        assert!(WAYS.iter().all(|way| svg.contains(way)) && svg.contains("1024"), "{svg}");
    }
}
