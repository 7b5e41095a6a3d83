//! What all charts share: their size and font, curves with names, and the box of names.

use anyhow::{Result, anyhow};
use plotters::coord::ranged1d::Ranged;
use plotters::prelude::*;

pub(crate) const SIZE: (u32, u32) = (880, 420);
pub(crate) const FONT: (&str, u32) = ("sans-serif", 14);

/// A curve: its name and its points.
pub(crate) type Curve = (String, Vec<(f64, f64)>);
/// How drawing ends.
pub(crate) type Drawn<'a> =
    std::result::Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

/// What `draw` draws, as SVG.
///
/// # Errors
/// When the drawing fails.
pub(crate) fn svg(draw: impl for<'a> FnOnce(&'a mut String) -> Drawn<'a>) -> Result<String> {
    let mut svg = String::new();
    draw(&mut svg).map_err(|error| anyhow!("drawing a chart: {error}"))?;
    Ok(svg)
}

/// Draws curves, each in a colour of its own.
pub(crate) fn curves<'a, 'b: 'a, X, Y>(
    chart: &mut ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, Y>>,
    curves: impl IntoIterator<Item = Curve>,
) -> Drawn<'b>
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    for (kind, (name, points)) in curves.into_iter().enumerate() {
        let colour = Palette99::pick(kind).stroke_width(2);
        chart
            .draw_series(LineSeries::new(points, colour))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour));
    }
    Ok(())
}

/// Draws the box of names.
pub(crate) fn names<'a, 'b: 'a, X, Y>(
    chart: &mut ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, Y>>,
    position: SeriesLabelPosition,
) -> Drawn<'b>
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    let mut labels = chart.configure_series_labels();
    labels.position(position).background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3));
    labels.draw()
}
