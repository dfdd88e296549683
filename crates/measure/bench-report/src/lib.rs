//! Pages for people of the records that `pagelift bench -o` writes: HTML in one file, and Markdown for a pull request.
//!
//! The input is records and the output is text. A record may come from a stranger: [`view`] makes each of its texts
//! safe to show and bounds its length, and `maud` escapes texts in HTML; drawings contain no text of a record. A page
//! is drawn with less detail until it is shorter than [`MOST_BYTES`].
#![forbid(unsafe_code)]

mod charts;
mod clean;
pub mod decision;
mod html;
mod latency;
mod markdown;
pub mod switch_cost;
mod view;
pub mod words;

pub use clean::visible;
pub use latency::latency;

use measure::record::Record;
use view::Section;

/// The longest page, in bytes.
pub const MOST_BYTES: usize = 500_000;
/// The most records of one page.
pub const MOST_RECORDS: usize = 16;

/// A record and its origin.
#[derive(Clone, Debug)]
pub struct Source {
    /// Name of the file.
    pub name: String,
    /// The record.
    pub record: Record,
}

/// Makes a page of HTML, of at most [`MOST_RECORDS`] records.
pub fn html(sources: &[Source]) -> String {
    let sections: Vec<Section> = sources.iter().take(MOST_RECORDS).map(Section::of).collect();
    let mut detail = Detail::FULL;
    loop {
        let page = html::page(&sections, detail);
        match detail.less() {
            Some(less) if page.len() > MOST_BYTES => detail = less,
            _ => return page,
        }
    }
}

/// Makes Markdown for GitHub, of at most [`MOST_RECORDS`] records.
pub fn markdown(sources: &[Source]) -> String {
    let sections: Vec<Section> = sources.iter().take(MOST_RECORDS).map(Section::of).collect();
    markdown::text(&sections)
}

/// True if a text ends a page of [`html`] or [`markdown`].
pub fn is_page(end: &str) -> bool {
    end.contains(html::MADE_BY) && end.trim_end().ends_with("</html>") || end.trim_end().ends_with(markdown::MADE_BY)
}

/// The amount of detail on a page.
#[derive(Clone, Copy, Debug)]
struct Detail {
    /// Pairs of a chart that are drawn each for itself; more are drawn in groups.
    points: usize,
    /// Mappings of each state of an address map.
    mappings: usize,
    /// Rows of a table.
    rows: usize,
}

impl Detail {
    const FULL: Self = Self { points: 600, mappings: 240, rows: 40 };

    /// True if few points are drawn, so that each drawing appears once only.
    fn is_short(self) -> bool {
        self.points < 100
    }

    fn less(self) -> Option<Self> {
        let half = Self { points: self.points / 2, mappings: self.mappings / 2, rows: (self.rows / 2).max(6) };
        (self.points > 30).then_some(half)
    }
}

#[cfg(test)]
mod tests;
