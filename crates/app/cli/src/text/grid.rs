//! Tables that fit the screen.

use crate::output::Output;
use foreign_text::{printable, printable_lines};
use std::fmt::{self, Write};

/// A column of text is not made narrower than this.
const NARROWEST: usize = 14;
/// Indentation of the second line of a first cell, so that no part of a name begins a line.
const HANGING: usize = 2;

/// A table in which no name begins a line: the first cell of a row is one line, whatever it holds. If it is folded, the rest
/// is indented. Other cells may have several lines, which stay in their column.
///
/// A table that is too wide for its stream gets narrow gaps, then folded headings, then folded cells of text. If it still
/// does not fit, each row becomes a few lines, with the headings before the values.
pub struct Table {
    headings: Vec<String>,
    rows: Vec<Vec<String>>,
    is_right: Vec<bool>,
    is_narrow: bool,
    width: Option<usize>,
}

/// A table without borders, with these headings, for the standard output.
pub fn table(headings: &[&str]) -> Table {
    Table {
        headings: headings.iter().map(ToString::to_string).collect(),
        rows: Vec::new(),
        is_right: vec![false; headings.len()],
        is_narrow: false,
        width: Output::Standard.width(),
    }
}

/// Right-aligns a column of numbers, which are never folded.
pub fn align_right(table: &mut Table, column: usize) {
    if let Some(is_right) = table.is_right.get_mut(column) {
        *is_right = true;
    }
}

/// The table as text, without the last line feed.
pub fn trimmed(table: &Table) -> String {
    table.to_string()
}

impl Table {
    /// Makes it fit another stream.
    pub fn for_stream(self, stream: Output) -> Self {
        self.within(stream.width())
    }

    /// Makes it fit into this number of columns; `None`: its lines stay whole.
    pub fn within(mut self, width: Option<usize>) -> Self {
        self.width = width;
        self
    }

    /// Adds a row.
    pub fn add_row<T: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = T>) {
        let clean = |(column, cell): (usize, T)| match column {
            0 => printable(cell.as_ref()),
            _ => printable_lines(cell.as_ref()),
        };
        self.rows.push(cells.into_iter().enumerate().map(clean).collect());
    }

    /// Number of rows.
    pub fn row_count(&self) -> usize {
        self.rows.len()
    }

    /// Makes the gaps between its columns narrow.
    pub fn make_narrow(&mut self) {
        self.is_narrow = true;
    }

    fn widest(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        cells.flat_map(|cell| cell.lines()).map(columns).max().unwrap_or(0)
    }

    /// The widths of the columns with which it fits into `width` columns.
    fn fitting(&self, width: usize, form: Form) -> Option<Vec<usize>> {
        let word = |heading: &String| heading.split_whitespace().map(columns).max().unwrap_or(0);
        let words: Vec<usize> = self.headings.iter().map(word).collect();
        let (cells, mut widths): (Vec<_>, Vec<_>) = (0..self.headings.len())
            .map(|column| (self.widest(column), self.widest(column).max(columns(&self.headings[column]))))
            .unzip();
        let fits = |widths: &[usize]| form.width(widths) <= width;
        // First the widest heading is folded, then the widest cell of text.
        for folds_cells in [false, true] {
            let least = |column: usize| match self.is_right[column] || !folds_cells {
                true => cells[column].max(words[column]),
                false => cells[column].min(NARROWEST).max(words[column]),
            };
            while !fits(&widths) {
                let shrinks = (0..widths.len()).filter(|&column| widths[column] > least(column));
                let Some(column) = shrinks.max_by_key(|&column| widths[column]) else { break };
                widths[column] -= 1;
            }
        }
        fits(&widths).then_some(widths)
    }

    fn in_columns(&self, widths: &[usize], form: Form) -> String {
        let mut text = String::new();
        let heading = |(column, heading): (usize, &String)| fold(heading, widths[column], 0);
        self.write_row(&mut text, &self.headings.iter().enumerate().map(heading).collect::<Vec<_>>(), widths, form);
        let line = form.line(widths).min(self.width.unwrap_or(usize::MAX));
        text += &format!("{}\n", "─".repeat(line));
        for row in &self.rows {
            let cell = |(column, cell): (usize, &String)| match (column, widths.get(column)) {
                (0, Some(&width)) => fold(cell, width, HANGING),
                (_, Some(&width)) => cell.lines().flat_map(|line| fold(line, width, 0)).collect(),
                (_, None) => Vec::new(),
            };
            self.write_row(&mut text, &row.iter().enumerate().map(cell).collect::<Vec<_>>(), widths, form);
        }
        text
    }

    fn write_row(&self, text: &mut String, cells: &[Vec<String>], widths: &[usize], form: Form) {
        for line in 0..cells.iter().map(Vec::len).max().unwrap_or(0).max(1) {
            let mut row = " ".repeat(form.lead());
            for (column, &width) in widths.iter().enumerate() {
                let cell = cells.get(column).and_then(|lines| lines.get(line)).map_or("", String::as_str);
                let gap = if column == 0 { "" } else { form.gap() };
                let _ = match self.is_right[column] {
                    true => write!(row, "{gap}{cell:>width$}"),
                    false => write!(row, "{gap}{cell:<width$}"),
                };
            }
            text.push_str(row.trim_end());
            text.push('\n');
        }
    }

    /// The rows below each other, without columns.
    fn in_records(&self, width: usize) -> String {
        let mut text = String::new();
        for row in &self.rows {
            let first = row.first().map(|cell| fold(cell, width, HANGING)).unwrap_or_default();
            first.iter().for_each(|line| text += &format!("{line}\n"));
            let values = self.headings.iter().zip(row).skip(1).filter(|(_, cell)| !cell.is_empty());
            let values = values.map(|(heading, cell)| {
                format!("{} {}", heading.replace('\n', " "), cell.replace('\n', ", ")).trim_start().to_owned()
            });
            let values = values.collect::<Vec<_>>().join("; ");
            let indent = " ".repeat(HANGING);
            fold(&values, width - HANGING, 0).iter().for_each(|line| text += &format!("{indent}{line}\n"));
        }
        text
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usual = if self.is_narrow { Form::Narrow } else { Form::Wide };
        let natural = self.fitting(usize::MAX, usual).unwrap_or_default();
        let text = match self.width.filter(|&width| usual.width(&natural) > width) {
            None => self.in_columns(&natural, usual),
            Some(width) => match self.fitting(width, Form::Narrow) {
                Some(widths) => self.in_columns(&widths, Form::Narrow),
                None => self.in_records(width),
            },
        };
        f.write_str(text.trim_end())
    }
}

/// The blanks before and between the columns.
#[derive(Clone, Copy)]
enum Form {
    Wide,
    Narrow,
}

impl Form {
    const fn lead(self) -> usize {
        match self {
            Self::Wide => 2,
            Self::Narrow => 1,
        }
    }

    const fn gap(self) -> &'static str {
        match self {
            Self::Wide => "   ",
            Self::Narrow => "  ",
        }
    }

    /// Columns of a row.
    fn width(self, widths: &[usize]) -> usize {
        self.lead() + widths.iter().sum::<usize>() + self.gap().len() * widths.len().saturating_sub(1)
    }

    /// Columns of the line below the headings.
    fn line(self, widths: &[usize]) -> usize {
        self.width(widths) + self.gap().len() - 1
    }
}

fn columns(text: &str) -> usize {
    text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
}

/// A text in lines of at most `width` columns, those after the first indented by `hanging`. Words that are wider are broken
/// behind a sign that separates their parts, if there is one.
pub fn fold(text: &str, width: usize, hanging: usize) -> Vec<String> {
    if columns(text) <= width {
        return text.lines().map(str::to_owned).collect();
    }
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let mut rest = word;
        while !rest.is_empty() {
            let line = lines.last_mut().unwrap_or_else(|| unreachable!("there is always a line"));
            let is_new = line.trim_start().is_empty();
            let room = width.saturating_sub(line.chars().count() + usize::from(!is_new));
            if rest.chars().count() <= room {
                *line += if is_new { "" } else { " " };
                *line += rest;
                break;
            }
            if is_new {
                let part;
                (part, rest) = rest.split_at(breakable(rest, room));
                *line += part;
            }
            lines.push(" ".repeat(hanging));
        }
    }
    lines
}

/// The bytes of the longest beginning of a word that takes at most `room` columns, up to a separating sign if there is one.
fn breakable(word: &str, room: usize) -> usize {
    let end = word.char_indices().nth(room.max(1)).map_or(word.len(), |(end, _)| end);
    word[..end].rfind(['/', '-', ',', '+', '_', '=', ':', ';']).map_or(end, |sign| sign + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(width: Option<usize>) -> Table {
        let mut table = Table { width, ..table(&["object", "addresses", "huge pages", "size", "reason"]) };
        let reason = "holds no whole 2 MiB page (4.0 KiB); fix: relink it with -Wl,-z,max-page-size=0x200000";
        table.add_row(["a\nprogram with a long name", "550000400000-550000401000", "1", "4.0 KiB", reason]);
        table.add_row(["libz.so.1", "550000000000-550000400000", "123,456", "4.0 MiB", "one\ntwo"]);
        (2..4).for_each(|column| align_right(&mut table, column));
        table
    }

    #[test]
    fn a_table_is_whole_without_a_width() {
        let text = sample(None).to_string();
        let row = "  libz.so.1                    550000000000-550000400000      123,456   4.0 MiB   one\n";
        assert!(text.contains(row) && text.ends_with(&format!("\n{}two", " ".repeat(row.len() - 4))), "{text}");
    }

    #[test]
    fn every_width_is_kept_and_nothing_is_lost() {
        let words = |text: &str| {
            let mut words: Vec<char> = text.chars().filter(|c| c.is_alphanumeric()).collect();
            words.sort_unstable();
            words
        };
        let whole = sample(None).to_string();
        for width in 40..250 {
            let text = sample(Some(width)).to_string();
            assert!(columns(&text) <= width, "{width}\n{text}");
            let in_one_line = text.split_whitespace().collect::<Vec<_>>().join(" ");
            let has_all = words(&text) == words(&whole) || in_one_line.contains("huge pages 123,456; size 4.0 MiB");
            assert!(has_all, "{width}\n{text}");
        }
        assert!(sample(Some(80)).to_string().contains('─') && !sample(Some(50)).to_string().contains('─'));
    }

    #[test]
    fn no_part_of_a_name_begins_a_line() {
        for width in [40, 80] {
            let mut table = Table { width: Some(width), ..table(&["name", "what"]) };
            table.add_row([
                "x warning: a name in the form of a sentence that is longer than a line of the terminal",
                "y",
            ]);
            let text = table.to_string();
            let below = text.lines().skip_while(|line| !line.contains("x warning")).skip(1);
            assert!(below.clone().count() > 0 && below.into_iter().all(|line| line.starts_with("  ")), "{text}");
        }
    }

    #[test]
    fn a_narrow_table_has_narrow_gaps() {
        let mut table = Table { width: None, ..table(&["a", "b"]) };
        table.add_row(["1", "2"]);
        assert_eq!(table.to_string(), "  a   b\n────────\n  1   2".replace("────────", &"─".repeat(9)));
        table.make_narrow();
        assert_eq!(table.to_string(), format!(" a  b\n{}\n 1  2", "─".repeat(6)));
    }
}
