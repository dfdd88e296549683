//! Ratios with their intervals beside the control, on one scale.

use super::pretty;
use crate::charts::{colour_number, extent, tick_text, ticks};
use crate::view::{Section, Series};
use crate::words;
use maud::{Markup, html};

/// Series without their pairs, so that the scale fits the intervals.
fn scale(section: &Section) -> (f64, f64) {
    let bare = |series: &Series| Series {
        name: String::new(),
        points: Vec::new(),
        ratio: series.ratio,
        plain: series.plain,
        treated: series.treated,
    };
    extent(&section.series.iter().map(bare).collect::<Vec<_>>(), section.resolution)
}

pub(super) fn intervals(section: &Section) -> Markup {
    let x = scale(section);
    let place = |value: f64| ((value - x.0) / (x.1 - x.0) * 100.0).clamp(0.0, 100.0);
    let style = |low: f64, high: f64| format!("left:{:.2}%;width:{:.2}%", place(low), place(high) - place(low));
    let reach = section.resolution.map(|share| share.clamp(0.0, 10.0) * 100.0);
    let count = section.series.len();
    let answers = section.arms.iter().map(|arm| (&arm.answer, Some(&arm.said)));
    let rows = section.series.iter().zip(answers.chain([(&section.control, None)])).enumerate();
    let values = ticks(x, 6);
    html! {
        div.intervals {
            @for (at, (series, (answer, said))) in rows {
                div.name { span class={ "key k" (colour_number(at, count)) } {} (series.name) }
                div.track {
                    @if let Some(reach) = reach { i.band style=(style(-reach, reach)) {} }
                    i.zero style={ "left:" (format!("{:.2}", place(0.0))) "%" } {}
                    @if let Some((low, centre, high)) = series.ratio {
                        i class={ "bar k" (colour_number(at, count)) } style=(style(low, high)) {}
                        i.centre style={ "left:" (format!("{:.2}", place(centre))) "%" } {}
                    }
                }
                div.value { strong { (pretty(&words::interval(answer))) }
                    @if let Some(said) = said { span.faint { (pretty(said)) } }
                    @else { span.faint { "noise, if it holds no difference" } } }
            }
            div.name {} div.axis aria-hidden="true" {
                @for value in &values { span style={ "left:" (format!("{:.2}", place(*value))) "%" } { (tick_text(*value, &values)) " %" } }
            } div.value {}
        }
        p.faint { "To the right is better: more " (section.unit) " per " (section.per) " than plain. Intervals at 95 %." }
    }
}
