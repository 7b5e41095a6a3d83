//! Order statistics of repeated measurements.

use std::fmt;

/// The middle of the values and of their halves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Quartiles {
    pub(crate) lower: f64,
    pub(crate) median: f64,
    pub(crate) upper: f64,
}

/// Quartiles by linear interpolation between order statistics, as numpy's default; none of no values.
pub(crate) fn quartiles(values: &[f64]) -> Option<Quartiles> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    let at = |part: f64| {
        let place = part * last as f64;
        let (below, above) = (place.floor() as usize, place.ceil() as usize);
        sorted[below] + (sorted[above] - sorted[below]) * place.fract()
    };
    Some(Quartiles { lower: at(0.25), median: at(0.5), upper: at(0.75) })
}

/// Three digits that count, or all before the point.
pub(crate) fn number(value: f64) -> String {
    let digits = match value.abs() {
        x if x >= 100.0 => 0,
        x if x >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}

/// The outer two, as `lower-upper`.
impl fmt::Display for Quartiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", number(self.lower), number(self.upper))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_are_those_of_numpy() {
        let even = quartiles(&[4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!(even, Quartiles { lower: 1.75, median: 2.5, upper: 3.25 });
        let odd = quartiles(&[5.0, 1.0, 9.0]).unwrap();
        assert_eq!(odd, Quartiles { lower: 3.0, median: 5.0, upper: 7.0 });
        let one = quartiles(&[7.0]).unwrap();
        assert_eq!((one.lower, one.median, one.upper), (7.0, 7.0, 7.0));
        assert_eq!(quartiles(&[]), None);
    }
}
