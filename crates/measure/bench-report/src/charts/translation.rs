//! The cost of translation over footprints: a line for each page size.

use super::{Area, Drawing, Frame, GRID, HPos, PathElement, VPos, ZERO, colour_of, draw, failed, tick_text, ticks};
use address_space::format_bytes;
use plotters::prelude::*;

/// More ns than any page walk takes: larger values of a record are drawn there.
const MOST: f64 = 1e4;

/// Room to the right of the last footprint for the half of its name that reaches beyond.
const LAST_LABEL: i32 = 34;

/// Draws points of footprints in bytes and ns: the footprint by its logarithm.
pub(crate) fn translation(sizes: &[Vec<(u64, f64)>], size: (u32, u32)) -> Drawing {
    let (width, height) = (size.0 as i32, size.1 as i32);
    let at = |&(footprint, cost): &(u64, f64)| ((footprint.max(1) as f64).log2(), bounded(cost));
    let curves: Vec<Vec<(f64, f64)>> = sizes.iter().map(|points| points.iter().map(at).collect()).collect();
    let all = || curves.iter().flatten();
    let (low, high) = all().fold((f64::MAX, f64::MIN), |(low, high), point| (low.min(point.0), high.max(point.0)));
    if low > high {
        return Drawing { svg: String::new(), outside: 0, grouped: None };
    }
    let most = all().map(|point| point.1).fold(1.0, f64::max);
    let (x, y) = ((low, high.max(low + 1.0)), (0.0, 1.06 * most));
    let frame = Frame { left: 62, right: width - LAST_LABEL, top: 10, bottom: height - 30, x, y };
    let svg = draw(size.0, size.1, "Translation of an access by footprint", |area| {
        axes(&frame, area)?;
        for (number, curve) in curves.iter().enumerate().rev() {
            let colour = colour_of(number);
            let places: Vec<(i32, i32)> = curve.iter().map(|point| (frame.x(point.0), frame.y(point.1))).collect();
            for &place in &places {
                area.draw(&Circle::new(place, 2, colour.filled())).map_err(failed)?;
            }
            area.draw(&PathElement::new(places, colour.stroke_width(2))).map_err(failed)?;
        }
        Ok(())
    });
    Drawing { svg, outside: 0, grouped: None }
}

fn bounded(cost: f64) -> f64 {
    if cost.is_finite() { cost.clamp(0.0, MOST) } else { 0.0 }
}

fn axes(frame: &Frame, area: &Area<'_>) -> Result<(), ()> {
    let values = ticks(frame.y, 5);
    for &value in &values {
        let at = frame.y(value);
        frame.line(area, (frame.left, at), (frame.right, at), if value == 0.0 { ZERO } else { GRID }, 1)?;
        let text = tick_text(value, &values).replace('+', "") + " ns";
        area.draw(&frame.text(text, (frame.left - 6, at), HPos::Right, VPos::Center)).map_err(failed)?;
    }
    let step = if frame.right > 500 { 2 } else { 4 };
    let powers = (frame.x.0.ceil() as u32..=frame.x.1.floor().min(63.0) as u32).step_by(step);
    for power in powers {
        let text = format_bytes(1 << power).replace(".0", "");
        let at = (frame.x(f64::from(power)), frame.bottom + 8);
        area.draw(&frame.text(text, at, HPos::Center, VPos::Top)).map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_size_has_its_line_and_footprints_are_named() {
        let base = vec![(1 << 16, 0.0), (1 << 20, 3.0), (1 << 26, 43.0)];
        let svg = translation(&[base, vec![(1 << 16, 0.0), (1 << 26, 14.9)]], (1000, 260)).svg;
        assert_eq!(svg.matches("var(--c20)").count(), 4, "a line and three points: {svg}");
        assert_eq!(svg.matches("var(--c21)").count(), 3, "a line and two points: {svg}");
        for text in ["64 KiB", "64 MiB", "40 ns"] {
            assert!(svg.contains(text), "no {text} in {svg}");
        }
    }

    #[test]
    fn the_name_of_the_last_footprint_ends_within_the_drawing() {
        const WIDTH: u32 = 1000;
        // Average width of a letter relative to the font size; as Chromium draws DejaVu Sans.
        const LETTER: f64 = 0.6;
        let svg = translation(&[vec![(1 << 16, 0.0), (1 << 28, 43.0)]], (WIDTH, 240)).svg;
        let label = svg.split("<text ").find(|text| text.contains("256 MiB")).unwrap();
        let number = |name: &str| {
            let value = label.split(&format!("{name}=\"")).nth(1).and_then(|rest| rest.split('"').next());
            value.unwrap().parse::<f64>().unwrap()
        };
        let end = number("x") + "256 MiB".len() as f64 / 2.0 * LETTER * number("font-size");
        assert!(end <= f64::from(WIDTH), "it ends at {end}");
    }

    #[test]
    fn hostile_points_are_drawn_within_bounds_and_no_points_not_at_all() {
        let wild = vec![(0, f64::NAN), (u64::MAX, f64::MAX), (u64::MAX, -1e300)];
        assert!(translation(&[wild], (420, 260)).svg.ends_with("</svg>"));
        assert!(translation(&[Vec::new()], (420, 260)).svg.is_empty());
    }
}
