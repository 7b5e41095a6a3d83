//! The tables, and docs/benchmarks.md with its charts.

use anyhow::{Context, Result};

use super::record::{Record, ReduceRow, StepRow};
use super::{chart, expansion, loader, overhead, sampler};
use crate::stats::{number, quartiles};
use crate::style;
use crate::workspace::Workspace;

/// Writes docs/benchmarks.md and the charts it shows.
///
/// # Errors
/// When a file cannot be written.
pub(super) fn write(ws: &Workspace, record: &Record) -> Result<()> {
    let mut text = format!("{}{}\n", head(record), tables(record));
    let charts = [
        ("steps.svg", "Step time against PyTorch DDP", chart::steps(record)?),
        ("all-reduce.svg", "Bandwidth of the all-reduce", chart::all_reduce(record)?),
    ];
    let folder = ws.docs().join("benchmarks");
    std::fs::create_dir_all(&folder)?;
    for (name, title, svg) in charts {
        let Some(svg) = svg else { continue };
        let path = folder.join(name);
        std::fs::write(&path, svg).with_context(|| format!("writing {}", path.display()))?;
        text += &format!("\n![{title}](benchmarks/{name})\n");
    }
    let path = ws.docs().join("benchmarks.md");
    std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    style::doing("Written", &path.display().to_string());
    Ok(())
}

/// What a reader has to know before the figures.
fn head(record: &Record) -> String {
    let machine = &record.machine;
    format!(
        "# Benchmarks\n\n\
         Made by `cargo xtask bench --record`, to be repeated on your machine. This one: {}, {} cores, {} GiB, libtorch {} on both \
         sides, no GPU; all ranks on one host, one thread a rank.\n\n\
         Configurations run in turn, so that a change of the machine's load meets all alike. A run's figure is the median of its \
         steps; shown are the median of the runs and their quartiles. **x** is PyTorch DDP's median, as it comes, over the row's: \
         above 1 the row is faster, or smaller. *Bucket views* is `gradient_as_bucket_view=True`. *Memory kept* has glibc keep \
         freed memory, which this project does by itself on several ranks (`DDP_MALLOC`). *In step* is ranks that wait \
         for each other in each backward, as all data-parallel ranks must, and exchange no gradient: what is left when communication costs \
         nothing. *No synchronisation* is as many processes that train side by side and do not even wait.\n\n",
        machine.cpu, machine.cores, machine.memory_gib, machine.libtorch
    )
}

/// All tables, as Markdown.
pub(super) fn tables(record: &Record) -> String {
    let mut parts = Vec::new();
    if !record.steps.is_empty() {
        parts.push(steps("Step time", "ms", record, |row| &row.step_ms));
        parts.push(steps("From the start to the first step done", "s", record, |row| &row.start_s));
        parts.push(steps("Peak memory of a rank (VmHWM)", "MiB", record, |row| &row.peak_mib));
    }
    let mut add = |rows: usize, table: fn(&Record) -> String| {
        if rows > 0 {
            parts.push(table(record));
        }
    };
    add(record.all_reduce.len(), reduces);
    add(record.overheads.len(), overhead::table);
    add(record.loader.len(), loader::table);
    add(record.sampler.len(), sampler::table);
    add(record.expansion.len(), expansion::table);
    parts.join("\n\n")
}

/// One figure of all models and ranks.
fn steps(title: &str, unit: &str, record: &Record, figure: fn(&StepRow) -> &Vec<f64>) -> String {
    let mut lines = vec![
        format!("## {title}\n"),
        format!("| model | ranks | configuration | runs | {unit} | quartiles | x |"),
        "| --- | ---: | --- | ---: | ---: | --- | ---: |".to_owned(),
    ];
    for row in &record.steps {
        let base = step_base(record, row);
        let facts = (base.and_then(|base| quartiles(figure(base))), quartiles(figure(row)));
        let (Some(base), Some(own)) = facts else { continue };
        lines.push(format!(
            "| {} | {} | {} | {} | {} | {} | {:.2} |",
            row.model,
            row.ranks,
            row.configuration,
            figure(row).len(),
            number(own.median),
            own,
            base.median / own.median
        ));
    }
    lines.join("\n")
}

/// The row that others of its model and ranks are compared with: the first.
pub(super) fn step_base<'a>(record: &'a Record, row: &StepRow) -> Option<&'a StepRow> {
    record.steps.iter().find(|base| (&base.model, base.ranks) == (&row.model, row.ranks))
}

/// The all-reduce in all sizes.
fn reduces(record: &Record) -> String {
    let mut lines = vec![
        "## The all-reduce alone\n".to_owned(),
        "*GB/s* is the size over the time. *Of the memory* is the least that the ranks together must read and write (every rank's \
         buffer once each) over the time, as a part of what all ranks together reach when each only copies. *This project* is a \
         bucket in the transport's own memory, as a backward reduces it. *As a call* is `Scope::all_reduce` on a tensor of the \
         program's own: the ranks compare their calls, and the tensor is copied in and out.\n"
            .to_owned(),
        "| ranks | bytes | configuration | runs | µs | quartiles | GB/s | of the memory | x |".to_owned(),
        "| ---: | ---: | --- | ---: | ---: | --- | ---: | ---: | ---: |".to_owned(),
    ];
    for row in &record.all_reduce {
        for (at, &bytes) in row.bytes.iter().enumerate() {
            lines.extend(reduce_line(record, row, at, bytes));
        }
    }
    lines.join("\n")
}

fn reduce_line(record: &Record, row: &ReduceRow, at: usize, bytes: u64) -> Option<String> {
    let base = record.all_reduce.iter().find(|base| base.ranks == row.ranks)?;
    let place = base.bytes.iter().position(|&size| size == bytes)?;
    let base = quartiles(base.times_us.get(place)?)?;
    let own = quartiles(row.times_us.get(at)?)?;
    let speed = bytes as f64 / (1e3 * own.median);
    let part = memory_gb_s(record, row.ranks).map_or_else(
        || "-".to_owned(),
        |memory| format!("{:.0} %", 200.0 * f64::from(row.ranks) * speed / memory),
    );
    Some(format!(
        "| {} | {bytes} | {} | {} | {} | {} | {speed:.3} | {part} | {:.2} |",
        row.ranks,
        row.configuration,
        row.times_us[at].len(),
        number(own.median),
        own,
        base.median / own.median
    ))
}

/// What that many ranks together move by copying, over all runs.
pub(super) fn memory_gb_s(record: &Record, ranks: u32) -> Option<f64> {
    let rows = record.all_reduce.iter().filter(|row| row.ranks == ranks);
    let all: Vec<f64> = rows.flat_map(|row| row.copy_gb_s.iter().copied()).collect();
    quartiles(&all).map(|all| all.median)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::cmd::bench::machine::Machine;

    /// Two configurations on two ranks.
    pub(in crate::cmd::bench) fn sample() -> Record {
        let mut record = Record::new(Machine::sample());
        for (configuration, factor) in [("PyTorch DDP", 2.0), ("this project", 1.0)] {
            let mut row = StepRow::new("mlp", 2, configuration);
            row.step_ms = [10.0, 10.5, 11.0].map(|ms| ms * factor).to_vec();
            row.start_s = vec![factor];
            row.peak_mib = vec![300.0];
            record.steps.push(row);
            let mut row = ReduceRow::new(2, configuration, &[4096, 1 << 20]);
            row.times_us = vec![vec![10.0 * factor], vec![1000.0 * factor]];
            row.copy_gb_s = if factor > 1.0 { Vec::new() } else { vec![20.0] };
            record.all_reduce.push(row);
        }
        record
    }

    #[test]
    fn each_row_is_compared_with_pytorch_on_as_many_ranks() {
        let text = tables(&sample());
        assert!(
            text.contains("| mlp | 2 | this project | 3 | 10.5 | 10.2-10.8 | 2.00 |"),
            "{text}"
        );
        assert!(text.contains("| mlp | 2 | PyTorch DDP | 3 | 21.0 | 20.5-21.5 | 1.00 |"), "{text}");
        assert!(
            text.contains("| mlp | 2 | this project | 1 | 1.00 | 1.00-1.00 | 2.00 |"),
            "{text}"
        );
        assert!(text.contains("| mlp | 2 | this project | 1 | 300 | 300-300 | 1.00 |"), "{text}");
        // 2^20 bytes in 1 ms, and four times as much to read and write on two ranks, of 20 GB/s.
        let line = "| 2 | 1048576 | this project | 1 | 1000 | 1000-1000 | 1.049 | 21 % | 2.00 |";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn the_document_has_tables_and_the_charts_it_names() {
        let folder = tempfile::tempdir().unwrap();
        let ws = Workspace::at(folder.path());
        write(&ws, &sample()).unwrap();
        let text = std::fs::read_to_string(ws.docs().join("benchmarks.md")).unwrap();
        assert!(text.starts_with("# Benchmarks\n\nMade by"), "{text}");
        for chart in ["benchmarks/steps.svg", "benchmarks/all-reduce.svg"] {
            assert!(text.contains(chart), "{text}");
            let svg = std::fs::read_to_string(ws.docs().join(chart)).unwrap();
            assert!(svg.starts_with("<svg") && svg.contains("this project"), "{svg}");
        }
        let mut empty = sample();
        empty.steps.clear();
        empty.all_reduce.clear();
        write(&ws, &empty).unwrap();
        let text = std::fs::read_to_string(ws.docs().join("benchmarks.md")).unwrap();
        assert!(!text.contains("![") && !text.contains("##"), "{text}");
    }
}
