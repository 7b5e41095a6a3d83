//! The charts of docs/benchmarks.md, drawn as SVG.

use anyhow::Result;
use plotters::prelude::*;

use super::configuration;
use super::record::{Record, ReduceRow};
use super::report::{memory_gb_s, step_base};
use crate::plot::{self, Curve, Drawn, FONT, SIZE};
use crate::stats::quartiles;

/// How many times faster a step is than PyTorch DDP's as it comes: a group of bars for each model and number of ranks, a
/// bar for each other configuration that several ranks have.
///
/// # Errors
/// When the drawing fails.
pub(super) fn steps(record: &Record) -> Result<Option<String>> {
    let shown: Vec<&str> =
        configuration::steps(2).iter().skip(1).map(|configuration| configuration.name).collect();
    let mut groups: Vec<String> = Vec::new();
    // Group, configuration, ratio.
    let mut bars: Vec<(usize, usize, f64)> = Vec::new();
    for row in record.steps.iter().filter(|row| row.ranks > 1) {
        let Some(kind) = shown.iter().position(|&name| name == row.configuration) else { continue };
        let base = step_base(record, row).and_then(|base| quartiles(&base.step_ms));
        let (Some(base), Some(own)) = (base, quartiles(&row.step_ms)) else { continue };
        let name = format!("{} x{}", row.model, row.ranks);
        let group = groups.iter().position(|known| *known == name).unwrap_or_else(|| {
            groups.push(name);
            groups.len() - 1
        });
        bars.push((group, kind, base.median / own.median));
    }
    if bars.is_empty() {
        return Ok(None);
    }
    plot::svg(|svg| draw_steps(svg, &groups, &shown, &bars)).map(Some)
}

fn draw_steps<'a>(
    svg: &'a mut String,
    groups: &[String],
    shown: &[&str],
    bars: &[(usize, usize, f64)],
) -> Drawn<'a> {
    let highest = bars.iter().fold(1.0, |highest: f64, bar| highest.max(bar.2));
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption("Step time of PyTorch DDP over that of each configuration", FONT)
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(50)
        .build_cartesian_2d(0.0..groups.len() as f64, 0.0..highest * 1.35)?;
    let label = |x: &f64| {
        let group = x.floor() as usize;
        groups.get(group).cloned().unwrap_or_default()
    };
    // A label stands at the left end of its group; with one tick a group plotters places them there.
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(groups.len() + 1)
        .x_label_formatter(&label)
        .x_label_offset(SIZE.0 as i32 / (2 * groups.len().max(1) as i32))
        .y_desc("times as fast")
        .draw()?;
    let width = 0.8 / shown.len() as f64;
    for (kind, name) in shown.iter().enumerate() {
        let colour = Palette99::pick(kind).filled();
        let rectangles = bars.iter().filter(|bar| bar.1 == kind).map(|&(group, _, ratio)| {
            let left = group as f64 + 0.1 + width * kind as f64;
            Rectangle::new([(left, 0.0), (left + 0.9 * width, ratio)], colour)
        });
        chart
            .draw_series(rectangles)?
            .label(*name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour));
    }
    chart.draw_series(LineSeries::new([(0.0, 1.0), (groups.len() as f64, 1.0)], BLACK))?;
    plot::names(&mut chart, SeriesLabelPosition::UpperRight)?;
    root.present()
}

/// A line for each configuration: size over time, against the size; and what the memory would allow.
///
/// # Errors
/// When the drawing fails.
pub(super) fn all_reduce(record: &Record) -> Result<Option<String>> {
    let mut lines: Vec<Curve> = Vec::new();
    for row in &record.all_reduce {
        lines.push((format!("{}, {} ranks", row.configuration, row.ranks), points(row)));
    }
    let mut ranks: Vec<u32> = record.all_reduce.iter().map(|row| row.ranks).collect();
    ranks.dedup();
    for ranks in ranks {
        let Some(memory) = memory_gb_s(record, ranks) else { continue };
        // Every rank's buffer is read and written once.
        let bound = memory / (2.0 * f64::from(ranks));
        let ends = ends(&lines);
        let line = vec![(ends.0, bound), (ends.1, bound)];
        lines.push((format!("bound of the memory, {ranks} ranks"), line));
    }
    if lines.iter().all(|(_, points)| points.is_empty()) {
        return Ok(None);
    }
    plot::svg(|svg| draw_lines(svg, &lines)).map(Some)
}

/// Bytes and GB/s of each size.
fn points(row: &ReduceRow) -> Vec<(f64, f64)> {
    let sizes = row.bytes.iter().zip(&row.times_us);
    sizes
        .filter_map(|(&bytes, times)| {
            Some((bytes as f64, bytes as f64 / (1e3 * quartiles(times)?.median)))
        })
        .collect()
}

/// The smallest and the largest size.
fn ends(lines: &[Curve]) -> (f64, f64) {
    let sizes = lines.iter().flat_map(|(_, points)| points.iter().map(|point| point.0));
    sizes.fold((f64::MAX, 1.0), |(low, high), size| (size.min(low), size.max(high)))
}

fn draw_lines<'a>(svg: &'a mut String, lines: &[Curve]) -> Drawn<'a> {
    let speeds = lines.iter().flat_map(|(_, points)| points.iter().map(|point| point.1));
    let (slowest, fastest) = speeds
        .fold((f64::MAX, 1e-3), |(low, high): (f64, f64), speed| (speed.min(low), speed.max(high)));
    let (smallest, largest) = ends(lines);
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption("Bandwidth of the all-reduce alone", FONT)
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(
            (smallest..largest * 1.01).log_scale(),
            (slowest / 2.0..fastest * 4.0).log_scale(),
        )?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("bytes")
        .y_desc("GB/s")
        .x_label_formatter(&|bytes| size(*bytes))
        .draw()?;
    plot::curves(&mut chart, lines.iter().cloned())?;
    plot::names(&mut chart, SeriesLabelPosition::LowerRight)?;
    root.present()
}

/// A number of bytes in the unit that suits it.
fn size(bytes: f64) -> String {
    let units = ["B", "KB", "MB", "GB"];
    let steps = (bytes.max(1.0).log10() / 3.0).floor().clamp(0.0, 3.0);
    format!("{:.0} {}", bytes / 1000_f64.powf(steps), units[steps as usize])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::bench::report::tests::sample;

    #[test]
    fn bars_show_ratios_and_lines_bandwidths() {
        let svg = steps(&sample()).unwrap().unwrap();
        assert!(svg.contains("mlp x2") && svg.contains("this project"), "{svg}");
        let svg = all_reduce(&sample()).unwrap().unwrap();
        for text in ["this project, 2 ranks", "bound of the memory, 2 ranks", "GB/s"] {
            assert!(svg.contains(text), "{text} is missing in {svg}");
        }
    }

    #[test]
    fn sizes_are_told_in_units() {
        assert_eq!(size(4096.0), "4 KB");
        assert_eq!(size(268_435_456.0), "268 MB");
    }
}
