//! Errors of the configuration, with their place.

use std::fmt;
use std::ops::Range;

/// Longest part of a source line that is shown, in characters.
const LONGEST_SHOWN: usize = 160;

/// An error of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    /// The file, as it was named.
    pub file: String,
    /// Place in the file; `None` if the error concerns the whole file.
    pub place: Option<FilePosition>,
    /// The value found, the value needed, and the fix.
    pub message: String,
}

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePosition {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The text of the line.
    pub source: String,
}

impl FilePosition {
    /// The place of the first byte of `span`.
    pub(super) fn of(text: &str, span: &Range<usize>) -> Self {
        let start = (0..=span.start.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        let before = &text[..start];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        Self {
            line: before.matches('\n').count() + 1,
            column: text[line_start..start].chars().count() + 1,
            source: text[line_start..].lines().next().unwrap_or_default().chars().take(LONGEST_SHOWN).collect(),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(place) = &self.place else { return write!(f, "{}: {}", self.file, self.message) };
        writeln!(f, "{}:{}:{}: {}", self.file, place.line, place.column, self.message)?;
        let number = place.line.to_string();
        writeln!(f, " {number} | {}", place.source)?;
        // Tabs are kept, so that the mark has the place that a terminal gives it.
        let until_mark = place.source.chars().take(place.column - 1);
        let margin: String = until_mark.map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
        write!(f, " {} | {margin}^", " ".repeat(number.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_the_line_with_a_mark() {
        let text = "a = 1\n\u{e4}\tb = 2\n";
        let place = FilePosition::of(text, &(9..10));
        assert_eq!((place.line, place.column), (2, 3));
        let error = ConfigError { file: "x.toml".to_owned(), place: Some(place), message: "no".to_owned() };
        assert_eq!(error.to_string(), "x.toml:2:3: no\n 2 | \u{e4}\tb = 2\n   |  \t^");
    }

    #[test]
    fn a_place_behind_the_end_or_within_a_character_is_no_panic() {
        assert_eq!(FilePosition::of("\u{e4}", &(1..2)).column, 1);
        assert_eq!(FilePosition::of("a\n", &(90..91)).line, 2);
        assert_eq!(FilePosition::of("", &(0..0)).source, "");
    }
}
