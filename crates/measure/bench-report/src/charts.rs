//! The drawings: all pairs over time, and their distribution. No text of a record is in them.

mod translation;

pub(crate) use translation::translation;

use crate::view::Series;
use measure::statistics::{quantile, sorted};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Colours are references into the style sheet: `#0000NN` becomes `var(--cNN)`.
const TEXT: RGBColor = RGBColor(0, 0, 0x10);
const GRID: RGBColor = RGBColor(0, 0, 0x11);
const ZERO: RGBColor = RGBColor(0, 0, 0x12);
const BAND: RGBColor = RGBColor(0, 0, 0x13);
/// Colour of the control; the colours of arms follow.
const CONTROL: RGBColor = RGBColor(0, 0, 0x20);
/// Number of colours of arms in the style sheet.
pub(crate) const ARM_COLOURS: usize = 6;
/// Size of text, in the units of plotters, which makes letters a fifth smaller: 13 units in SVG.
const TEXT_SIZE: i32 = 16;
/// Length by which the axis exceeds the quantiles of each series, as a share of their distance.
const MARGIN: f64 = 0.08;

/// A drawing, and the number of values that it does not show individually.
pub(crate) struct Drawing {
    pub svg: String,
    /// Pairs beyond the axis, which are drawn at its end.
    pub outside: usize,
    /// Number of pairs in a group if they are not drawn individually.
    pub grouped: Option<usize>,
}

/// The series' number in the style sheet: the control is 0, arms begin at 1.
pub(crate) fn colour_number(at: usize, count: usize) -> usize {
    if at + 1 == count { 0 } else { 1 + at % ARM_COLOURS }
}

fn colour(at: usize, count: usize) -> RGBColor {
    RGBColor(0, 0, CONTROL.2 + colour_number(at, count) as u8)
}

/// The colour of this number in the style sheet.
fn colour_of(number: usize) -> RGBColor {
    RGBColor(0, 0, CONTROL.2 + (number % (ARM_COLOURS + 1)) as u8)
}

/// The range of an axis that shows zero, the intervals, and all but the wildest values: those further from the middle half
/// than three times its width.
pub(crate) fn extent<'a>(series: impl IntoIterator<Item = &'a Series>, resolution: Option<f64>) -> (f64, f64) {
    let (mut low, mut high) = (0.0f64, 0.0f64);
    for one in series {
        let values = sorted(&one.points.iter().map(|point| point.1).collect::<Vec<_>>());
        if let [first, .., last] = values[..] {
            let (lower, upper) = (quantile(&values, 0.25), quantile(&values, 0.75));
            let reach = 3.0 * (upper - lower);
            (low, high) = (low.min(first.max(lower - reach)), high.max(last.min(upper + reach)));
        }
        if let Some((least, _, most)) = one.ratio {
            (low, high) = (low.min(least), high.max(most));
        }
    }
    let resolution = resolution.unwrap_or(0.0).clamp(0.0, 10.0) * 100.0;
    (low, high) = (low.min(-resolution), high.max(resolution));
    let margin = ((high - low) * MARGIN).max(0.05);
    (low - margin, high + margin)
}

/// Numbers that are easy to read, about `count`, within a range.
pub(crate) fn ticks((low, high): (f64, f64), count: usize) -> Vec<f64> {
    let rough = (high - low) / count.max(1) as f64;
    if !(rough.is_finite() && rough > 0.0) {
        return Vec::new();
    }
    let magnitude = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    let step = magnitude * steps.into_iter().find(|step| step * magnitude >= rough).unwrap_or(10.0);
    let first = (low / step).ceil() as i64;
    (first..first + 64).map(|number| number as f64 * step).take_while(|value| *value <= high).collect()
}

/// A tick's text: as many digits as its distance needs.
pub(crate) fn tick_text(value: f64, ticks: &[f64]) -> String {
    let step = ticks.windows(2).next().map_or(1.0, |pair| pair[1] - pair[0]);
    let digits = (-(step.abs().max(1e-6)).log10().floor()).clamp(0.0, 4.0) as usize;
    let value = if value.abs() < step / 1e3 { 0.0 } else { value };
    let sign = if value > 0.0 {
        "+"
    } else if value < 0.0 {
        "\u{2212}"
    } else {
        ""
    };
    format!("{sign}{:.digits$}", value.abs())
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Failure<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

/// Draws into a text of SVG; a drawing that plotters refuses is left out.
fn draw(width: u32, height: u32, label: &str, drawing: impl FnOnce(&Area<'_>) -> Result<(), ()>) -> String {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area();
        if drawing(&area).and_then(|()| area.present().map_err(drop)).is_err() {
            return String::new();
        }
    }
    let body = svg.split_once("<svg").and_then(|(_, rest)| rest.split_once('>')).map_or("", |(_, body)| body);
    let mut body =
        body.replace("\"#0000", "\"var(--c").replace(" font-family=\"sans-serif\"", "").replace(" opacity=\"1\"", "");
    // `var(--c20"` lacks its end.
    for number in 0..=0x30 {
        body = body.replace(&format!("var(--c{number:02X}\""), &format!("var(--c{number:02x})\""));
    }
    let body: String = body.lines().map(str::trim).collect();
    format!("<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{label}\">{body}")
}

fn failed(_: Failure<'_>) {}

/// A frame with an axis of percent to the left and one of other numbers below.
struct Frame {
    left: i32,
    right: i32,
    top: i32,
    bottom: i32,
    x: (f64, f64),
    y: (f64, f64),
}

impl Frame {
    fn x(&self, value: f64) -> i32 {
        self.left + (f64::from(self.right - self.left) * (value - self.x.0) / (self.x.1 - self.x.0)).round() as i32
    }

    fn y(&self, value: f64) -> i32 {
        self.bottom - (f64::from(self.bottom - self.top) * (value - self.y.0) / (self.y.1 - self.y.0)).round() as i32
    }

    fn text<'b>(&self, text: String, at: (i32, i32), h: HPos, v: VPos) -> Text<'b, (i32, i32), String> {
        let style = TextStyle::from(("sans-serif", TEXT_SIZE).into_font()).color(&TEXT).pos(Pos::new(h, v));
        Text::new(text, at, style)
    }

    fn line(&self, area: &Area<'_>, from: (i32, i32), to: (i32, i32), colour: RGBColor, width: u32) -> Result<(), ()> {
        area.draw(&PathElement::new(vec![from, to], colour.stroke_width(width))).map_err(failed)
    }

    fn box_of(&self, area: &Area<'_>, a: (i32, i32), b: (i32, i32), colour: RGBColor) -> Result<(), ()> {
        area.draw(&Rectangle::new([a, b], colour.filled())).map_err(failed)
    }
}

/// All pairs over time: a dot for each, or, of many, a dot at the median of neighbours and a line over their middle 80 %.
pub(crate) fn over_time(series: &[Series], resolution: Option<f64>, size: (u32, u32), most: usize) -> Drawing {
    let (width, height) = (size.0 as i32, size.1 as i32);
    let last = series.iter().flat_map(|one| &one.points).map(|point| point.0).fold(0.0, f64::max);
    let y = extent(series, resolution);
    let frame = Frame { left: 62, right: width - 12, top: 10, bottom: height - 46, x: (0.0, last.max(1e-3)), y };
    let all: usize = series.iter().map(|one| one.points.len()).sum();
    let groups = (all > most).then(|| all.div_ceil(most / 2));
    let mut outside = 0;
    let svg = draw(size.0, size.1, "All pairs over time", |area| {
        axes(&frame, area, resolution)?;
        for (at, one) in series.iter().enumerate().rev() {
            let colour = colour(at, series.len());
            outside += match groups {
                None => dots(&frame, area, one, colour)?,
                Some(group) => grouped(&frame, area, one, group, colour)?,
            };
            if let Some((_, centre, _)) = one.ratio {
                let y = frame.y(centre.clamp(frame.y.0, frame.y.1));
                frame.line(area, (frame.left, y), (frame.right, y), colour, 1)?;
            }
        }
        Ok(())
    });
    Drawing { svg, outside, grouped: groups }
}

fn axes(frame: &Frame, area: &Area<'_>, resolution: Option<f64>) -> Result<(), ()> {
    if let Some(share) = resolution {
        let reach = share.clamp(0.0, 10.0) * 100.0;
        let corners = ((frame.left, frame.y(reach.min(frame.y.1))), (frame.right, frame.y((-reach).max(frame.y.0))));
        frame.box_of(area, corners.0, corners.1, BAND)?;
    }
    let values = ticks(frame.y, 5);
    for &value in &values {
        let at = frame.y(value);
        frame.line(area, (frame.left, at), (frame.right, at), if value == 0.0 { ZERO } else { GRID }, 1)?;
        let text = tick_text(value, &values) + " %";
        area.draw(&frame.text(text, (frame.left - 6, at), HPos::Right, VPos::Center)).map_err(failed)?;
    }
    // Times of short experiments are in seconds.
    let (unit, factor) = if frame.x.1 < 3.0 { ("s", 60.0) } else { ("min", 1.0) };
    let times = ticks((0.0, frame.x.1 * factor), if frame.right > 500 { 8 } else { 4 });
    for &time in &times {
        let at = (frame.x(time / factor), frame.bottom + 8);
        let text = tick_text(time, &times).replace('+', "");
        area.draw(&frame.text(text, at, HPos::Center, VPos::Top)).map_err(failed)?;
    }
    let at = (frame.right, frame.bottom + 28);
    area.draw(&frame.text(format!("{unit} since the start"), at, HPos::Right, VPos::Top)).map_err(failed)
}

/// Draws each pair, and returns the number of pairs beyond the axis.
fn dots(frame: &Frame, area: &Area<'_>, series: &Series, colour: RGBColor) -> Result<usize, ()> {
    let mut outside = 0;
    for &(time, value) in &series.points {
        let (low, high) = frame.y;
        let (x, y) = (frame.x(time), frame.y(value.clamp(low, high)));
        if value < low || value > high {
            outside += 1;
            area.draw(&TriangleMarker::new((x, y), 4, colour.filled())).map_err(failed)?;
        } else if colour == CONTROL {
            area.draw(&Circle::new((x, y), 3, colour.stroke_width(1))).map_err(failed)?;
        } else {
            area.draw(&Circle::new((x, y), 3, colour.filled())).map_err(failed)?;
        }
    }
    Ok(outside)
}

fn grouped(frame: &Frame, area: &Area<'_>, series: &Series, group: usize, colour: RGBColor) -> Result<usize, ()> {
    let mut outside = 0;
    for points in series.points.chunks(group.max(1)) {
        let values = sorted(&points.iter().map(|point| point.1).collect::<Vec<_>>());
        let time = points.iter().map(|point| point.0).sum::<f64>() / points.len() as f64;
        let at = |share| frame.y(quantile(&values, share).clamp(frame.y.0, frame.y.1));
        let x = frame.x(time);
        outside += values.iter().filter(|value| !(frame.y.0..=frame.y.1).contains(value)).count();
        frame.line(area, (x, at(0.1)), (x, at(0.9)), colour, 1)?;
        area.draw(&Circle::new((x, at(0.5)), 3, colour.filled())).map_err(failed)?;
    }
    Ok(outside)
}

/// The distribution of the pairs of one series: bars over classes of equal width.
pub(crate) fn distribution(
    series: &Series,
    at: usize,
    count: usize,
    x: (f64, f64),
    size: (u32, u32),
    classes: usize,
) -> Drawing {
    let (width, height) = (size.0 as i32, size.1 as i32);
    let mut bars = vec![0usize; classes];
    let mut outside = 0;
    for &(_, value) in &series.points {
        outside += usize::from(!(x.0..=x.1).contains(&value));
        let place = ((value - x.0) / (x.1 - x.0) * classes as f64).floor();
        bars[place.clamp(0.0, (classes - 1) as f64) as usize] += 1;
    }
    let most = bars.iter().copied().max().unwrap_or(0).max(1);
    let frame = Frame { left: 16, right: width - 16, top: 8, bottom: height - 28, x, y: (0.0, most as f64) };
    let svg = draw(size.0, size.1, "Distribution of the pairs", |area| {
        let colour = colour(at, count);
        let values = ticks(x, if width > 500 { 9 } else { 5 });
        for &value in &values {
            let place = frame.x(value);
            frame.line(area, (place, frame.top), (place, frame.bottom), if value == 0.0 { ZERO } else { GRID }, 1)?;
            let text = tick_text(value, &values) + " %";
            area.draw(&frame.text(text, (place, frame.bottom + 7), HPos::Center, VPos::Top)).map_err(failed)?;
        }
        for (number, &bar) in bars.iter().enumerate().filter(|(_, bar)| **bar > 0) {
            let edge = |number: usize| frame.left + (frame.right - frame.left) * number as i32 / classes as i32;
            frame.box_of(area, (edge(number), frame.y(bar as f64)), (edge(number + 1) - 1, frame.bottom), colour)?;
        }
        if let Some((low, centre, high)) = series.ratio {
            let place = |value: f64| frame.x(value.clamp(x.0, x.1));
            frame.box_of(area, (place(low), frame.bottom + 1), (place(high), frame.bottom + 3), TEXT)?;
            frame.line(area, (place(centre), frame.top), (place(centre), frame.bottom + 3), TEXT, 2)?;
        }
        Ok(())
    });
    Drawing { svg, outside, grouped: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_within() {
        assert_eq!(ticks((-1.2, 2.3), 5), [-1.0, 0.0, 1.0, 2.0]);
        assert_eq!(ticks((0.0, 0.0), 5), Vec::<f64>::new());
        assert_eq!(ticks((f64::NAN, 1.0), 5), Vec::<f64>::new());
        let values = ticks((-0.1, 0.35), 5);
        assert_eq!(
            values.iter().map(|value| tick_text(*value, &values)).collect::<Vec<_>>(),
            ["\u{2212}0.1", "0.0", "+0.1", "+0.2", "+0.3"]
        );
    }

    #[test]
    fn colours_become_those_of_the_style_sheet() {
        let series = Series {
            name: String::new(),
            points: vec![(0.1, 1.0), (0.2, -1.0), (0.3, 300.0)],
            ratio: Some((-1.0, 0.2, 1.0)),
            plain: Default::default(),
            treated: Default::default(),
        };
        let drawing = over_time(&[series], Some(0.01), (600, 200), 100);
        assert!(drawing.svg.contains("var(--c20)") && drawing.svg.contains("var(--c10)"), "{}", drawing.svg);
        assert!(!drawing.svg.contains("\"#") && drawing.svg.ends_with("</svg>"), "{}", drawing.svg);
        assert_eq!((drawing.outside, drawing.grouped), (0, None));
    }
}
