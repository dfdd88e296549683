//! One record: the answer first, then its basis.

use super::{bars, map, pretty, tables};
use crate::Detail;
use crate::charts::{self, Drawing, colour_number};
use crate::decision::Next;
use crate::view::Section;
use address_space::counted;
use maud::{Markup, PreEscaped, html};

/// Pairs of a series from which its chart is drawn.
const FEWEST_PAIRS: usize = 2;

pub(super) fn section(section: &Section, number: usize, is_one_of_many: bool, detail: Detail) -> Markup {
    let advice = &section.advice;
    html! {
        article id={ "r" (number) } aria-labelledby={ "h" (number) } {
            header class={ "top " (advice.class) } {
                p.file { (section.file) }
                @if is_one_of_many {
                    h2 id={ "h" (number) } { (advice.headline) span.program { (section.program) } }
                } @else {
                    h1 id={ "h" (number) } { (advice.headline) span.program { (section.program) } }
                }
                p.sentence { (pretty(&advice.reason)) "." }
                @if let Some(next) = &advice.next { (step(next)) }
                @if section.arms.len() > 1 { p { (pretty(&section.sentence())) } }
                @for note in &section.notes { p.note { (note) } }
            }
            (part("Ratio and control", bars::intervals(section)))
            (part("All pairs over time", over_time(section, detail)))
            (part("Distribution", distribution(section, detail)))
            (part("Address map", map::map(section, number, detail)))
            (part("Lifted memory, and the rest", tables::lifts(section, detail)))
            (part("Memory", tables::memory(section)))
            @if !section.latency.is_empty() { (part("Latency", latency(section))) }
            (part("Counters", tables::counters(section)))
            @if section.arms.iter().any(|arm| arm.switch.is_some()) { (part("Cost of a switch", tables::switches(section))) }
            @if !section.translation.is_empty() { (part("Cost of address translation here", translation(section, detail))) }
            (part("The machine", tables::machine(section)))
            (part("How it was measured", method(section)))
        }
    }
}

/// The next step: a command in a box, from which it can be copied, or an instruction as text.
fn step(next: &Next) -> Markup {
    html! {
        div.next { span { "Next:" } @match next {
            Next::Command { command, purpose } => {
                pre.scroll tabindex="0" { (command) }
                @if let Some(purpose) = purpose { span.faint { (purpose) } }
            }
            Next::Words(words) => span { (words) },
        } }
    }
}

fn part(heading: &str, content: Markup) -> Markup {
    html! { section { h3 { (heading) } (content) } }
}

/// Names of the series beside their colours.
fn legend(section: &Section) -> Markup {
    let count = section.series.len();
    html! {
        ul.legend {
            @for (at, series) in section.series.iter().enumerate() {
                li { span class={ "key k" (colour_number(at, count)) } {} (series.name) }
            }
        }
    }
}

/// A drawing for wide windows and one for narrow ones, of which one is shown; only the narrow one if space is short.
fn both(wide: &Drawing, narrow: &Drawing, detail: Detail) -> Markup {
    html! {
        @if detail.is_short() {
            div.only { (PreEscaped(&narrow.svg)) }
        } @else {
            div.wide { (PreEscaped(&wide.svg)) }
            div.narrow { (PreEscaped(&narrow.svg)) }
        }
    }
}

/// The reason why pairs are not drawn: a chart of one value shows nothing that the number does not.
fn undrawn(section: &Section) -> Option<String> {
    let pairs: usize = section.series.iter().map(|series| series.points.len()).sum();
    if section.series.iter().any(|series| series.points.len() >= FEWEST_PAIRS) {
        return None;
    }
    Some(match pairs {
        0 => "No pair was measured.".to_owned(),
        pairs => format!(
            "Not drawn: found {}, needed {FEWEST_PAIRS} of one arm or of the control; fix: a longer --for.",
            counted(pairs as u64, "pair")
        ),
    })
}

fn over_time(section: &Section, detail: Detail) -> Markup {
    let draw = |size| charts::over_time(&section.series, section.resolution, size, detail.points);
    let (wide, narrow) = (draw((1000, 320)), draw((420, 300)));
    html! {
        @if let Some(why) = undrawn(section) {
            p.none { (why) }
        } @else {
            figure {
                (legend(section))
                (both(&wide, &narrow, detail))
                figcaption {
                    @match wide.grouped {
                        Some(group) => {
                            "Up to " (group) " neighbouring pairs share a dot, at their median; its line spans their middle 80 %. "
                        }
                        None => "Each dot is a pair: treated windows against the plain ones of the same block. ",
                    }
                    "Lines are centres; the band is what plain shows against itself. "
                    @if wide.outside > 0 { (beyond(wide.outside)) }
                }
            }
        }
    }
}

fn distribution(section: &Section, detail: Detail) -> Markup {
    let classes = (detail.points / 10).max(8);
    let x = charts::extent(&section.series, section.resolution);
    let count = section.series.len();
    html! {
        @if let Some(why) = undrawn(section) {
            p.none { (why) }
        } @else {
            @for (at, series) in section.series.iter().enumerate() {
                @let wide = charts::distribution(series, at, count, x, (1000, 110), classes);
                figure.row {
                    figcaption { span class={ "key k" (colour_number(at, count)) } {} (series.name)
                        span.faint { " " (counted(series.points.len() as u64, "pair"))
                            @if wide.outside > 0 { ", " (wide.outside) " beyond the axis" } } }
                    @if series.points.len() >= FEWEST_PAIRS {
                        (both(&wide, &charts::distribution(series, at, count, x, (420, 110), classes.div_ceil(2)), detail))
                    }
                }
            }
            p.faint { "The thick line is the centre, the bar below the axis its interval." }
        }
    }
}

/// `1 pair is beyond the axis and drawn at its end.`
fn beyond(pairs: usize) -> String {
    format!("{} {} beyond the axis and drawn at its end.", counted(pairs as u64, "pair"), tables::verb(pairs))
}

/// Lines about the time of requests, and their explanation.
fn latency(section: &Section) -> Markup {
    html! {
        ul { @for line in &section.latency { li { (pretty(line)) } } }
        p.faint { "Medians over windows. Each client sends a request once it has the answer to its last one, so that fewer are sent \
            while a server hesitates. A ratio is of the times within which 99 of 100 requests were answered." }
    }
}

fn translation(section: &Section, detail: Detail) -> Markup {
    html! {
        @for curves in &section.curves {
            p.caption { (curves.what) }
            figure {
                ul.legend { @for (number, name) in curves.names.iter().enumerate() {
                    li { span class={ "key k" (number % (charts::ARM_COLOURS + 1)) } {} (name) }
                } }
                (both(&charts::translation(&curves.points, (1000, 240)), &charts::translation(&curves.points, (420, 240)), detail))
            }
        }
        @for line in &section.translation { p { (line) } }
        p.faint { "Measured by " code { "bench --probe" } " before the first block: what an access takes longer by translation than "
            "as many packed closely, over the memory that it goes over at random." }
    }
}

fn method(section: &Section) -> Markup {
    html! {
        @for sentence in &section.method { p { (sentence) } }
        @if section.arms.iter().any(|arm| arm.options.is_some()) {
            dl {
                @for arm in &section.arms {
                    @if let Some(options) = &arm.options { dt { (arm.name) } dd { code { (options) } } }
                }
            }
        }
        p { "The same answer from the record: " code { "pagelift bench --from FILE" } }
    }
}
