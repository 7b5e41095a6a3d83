//! The table of a model: medians, quartiles, and PyTorch's median over each.

use super::configuration::Configuration;
use crate::stats::quartiles;

/// A configuration and the median step of each of its runs, in milliseconds.
pub(crate) struct Row {
    configuration: Configuration,
    times: Vec<f64>,
}

impl From<(Configuration, Vec<f64>)> for Row {
    fn from((configuration, times): (Configuration, Vec<f64>)) -> Self {
        Self { configuration, times }
    }
}

/// A Markdown table; x is the median of the first row with as many ranks over the row's own.
pub(crate) fn render(model: &str, rows: &[Row]) -> String {
    let mut lines = vec![
        format!("| {model:<40} | runs | step ms | quartiles       |     x |"),
        "| ---------------------------------------- | ---: | ------: | --------------- | ----: |"
            .to_owned(),
    ];
    lines.extend(rows.iter().filter_map(|row| line(row, rows)));
    lines.join("\n")
}

fn line(row: &Row, rows: &[Row]) -> Option<String> {
    let ranks = row.configuration.ranks;
    let base = rows.iter().find(|base| base.configuration.ranks == ranks)?;
    let base = quartiles(&base.times)?.median;
    let own = quartiles(&row.times)?;
    let spread = format!("{:.2}-{:.2}", own.lower, own.upper);
    Some(format!(
        "| {:<40} | {:>4} | {:>7.2} | {spread:<15} | {:>5.2} |",
        row.configuration.name,
        row.times.len(),
        own.median,
        base / own.median
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::bench::configuration;

    #[test]
    fn each_row_is_compared_with_pytorch_on_as_many_ranks() {
        let times = [[20.0, 22.0, 21.0], [20.0; 3], [10.0, 10.5, 11.0], [8.0; 3], [4.0; 3]];
        let rows: Vec<_> = configuration::all(2)
            .into_iter()
            .zip(times)
            .map(|(configuration, times)| Row::from((configuration, times.to_vec())))
            .collect();
        let text = render("mlp", &rows);
        let ratios: Vec<_> = text
            .lines()
            .skip(2)
            .map(|line| line.rsplit('|').nth(1).unwrap_or_default().trim().to_owned())
            .collect();
        assert_eq!(ratios, ["1.00", "1.05", "2.00", "1.00", "2.00"]);
        assert!(text.contains("|   10.50 | 10.25-10.75"), "{text}");
    }
}
