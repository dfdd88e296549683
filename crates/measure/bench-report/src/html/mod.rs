//! The page: its head, the summary of several records, and a section for each.

mod bars;
mod map;
mod section;
mod tables;

use crate::Detail;
use crate::view::Section;
use crate::words;
use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = include_str!("style.css");
/// Zooms address maps and shows the item at the pointer. No other part of the page needs a script.
const SCRIPT: &str = include_str!("zoom.js");
/// The beginning of the footer, by which a page is recognised.
pub(crate) const MADE_BY: &str = "Made by <code>pagelift report</code>";
/// The page's permissions in a browser: its own styles, and the script with this hash, for any record. A test compares
/// the hash with [`SCRIPT`]'s.
pub(crate) const POLICY: &str = include_str!("policy.txt");

/// The whole page.
pub(crate) fn page(sections: &[Section], detail: Detail) -> String {
    let title = match sections {
        [one] => format!("{}: {}", one.advice.headline, one.program),
        many => format!("Does it pay? {} measurements", many.len()),
    };
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                main {
                    @if sections.len() > 1 { (summary(sections)) }
                    @for (number, section) in sections.iter().enumerate() {
                        (section::section(section, number, sections.len() > 1, detail))
                    }
                }
                footer { (PreEscaped(MADE_BY)) " from records of " code { "pagelift bench -o" } "." }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    page.into_string()
}

/// A row for each arm of each record.
fn summary(sections: &[Section]) -> Markup {
    html! {
        header.top {
            h1 { "Does it pay?" }
            p { (sections.len()) " measurements" }
        }
        p.caption { "Work for the same cost, against plain" }
        div.scroll { table {
            thead { tr {
                th scope="col" { "Program" } th scope="col" { "Decision" } th scope="col" { "Arm" } th scope="col" { "Difference" }
                th scope="col" { "May be hidden" } th scope="col" { "Finding" } th.number scope="col" { "Blocks" }
            } }
            tbody {
                @for (number, section) in sections.iter().enumerate() {
                    @for arm in &section.arms {
                        tr {
                            th scope="row" { a href={ "#r" (number) } { (section.program) } }
                            td { (section.advice.headline) }
                            td { (arm.name) }
                            td.nowrap { (pretty(&words::interval(&arm.answer))) }
                            td.nowrap { (arm.hidden.as_deref().unwrap_or("–")) }
                            td { (pretty(&arm.said)) }
                            td.number { (section.blocks) }
                        }
                    }
                }
            }
        } }
    }
}

/// Minus signs for hyphens before digits.
pub(crate) fn pretty(text: &str) -> String {
    let mut pretty = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    let mut last = ' ';
    while let Some(c) = chars.next() {
        let is_minus = c == '-' && matches!(last, ' ' | '[' | '(') && chars.peek().is_some_and(char::is_ascii_digit);
        pretty.push(if is_minus { '\u{2212}' } else { c });
        last = c;
    }
    pretty
}
