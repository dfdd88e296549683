//! The width of screens, and lines that are folded to fit it.
//!
//! A text for a terminal has no line wider than the terminal. Where the output is no terminal, lines stay whole: a file or
//! a filter has no width, and a script finds a sentence in one line. `COLUMNS` sets the width in both cases.

use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Texts for narrower terminals are as wide as this: tables need so much.
const NARROWEST: usize = 40;
/// Number of columns by which the rest of a folded line is indented.
const HANGING: usize = 2;

static IS_FITTED: AtomicBool = AtomicBool::new(false);
static AT_START: OnceLock<Option<usize>> = OnceLock::new();

/// Makes all texts of this process fit their streams. Without it, as in tests of texts, lines stay whole. The width of
/// `stream` is kept for [`at_start`].
pub fn fit_screens(stream: impl AsFd) {
    IS_FITTED.store(true, Ordering::Relaxed);
    let _ = AT_START.set(of(stream));
}

/// The number of columns of the stream at the start of this process. The helper of `run` writes to the program's
/// standard error and has no columns of its own.
pub fn at_start() -> Option<usize> {
    AT_START.get().copied().flatten()
}

/// The number of columns for a text that is written to `stream`: `COLUMNS`, or the width of the terminal. `None` if lines
/// stay whole.
pub fn of(stream: impl AsFd) -> Option<usize> {
    if !IS_FITTED.load(Ordering::Relaxed) {
        return None;
    }
    let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok()).filter(|&columns| columns > 0);
    columns.or_else(|| linux::terminal::columns(stream)).map(|columns: usize| columns.max(NARROWEST))
}

/// The number of columns that a line takes; sequences that colour it take none.
pub fn columns(line: &str) -> usize {
    let mut is_text = true;
    let counts = |c: char| {
        let was_text = is_text;
        is_text = if was_text { c != '\u{1b}' } else { c == 'm' };
        was_text && is_text
    };
    line.chars().map(counts).filter(|&counts| counts).count()
}

/// The text with each line folded at blanks to at most `width` columns. Commands in backticks stay whole if they fit. Words
/// always stay whole.
pub fn folded(text: &str, width: Option<usize>) -> String {
    let Some(width) = width.filter(|&width| text.lines().any(|line| columns(line) > width)) else {
        return text.to_owned();
    };
    let end = if text.ends_with('\n') { "\n" } else { "" };
    text.lines().map(|line| fold(line, width)).collect::<Vec<_>>().join("\n") + end
}

fn fold(line: &str, width: usize) -> String {
    if columns(line) <= width {
        return line.to_owned();
    }
    let indent = line.len() - line.trim_start_matches(' ').len();
    let hanging = (indent + HANGING).min(width / 2);
    let mut lines = vec![" ".repeat(indent.min(width / 2))];
    let mut begins = true;
    for unit in units(&line[indent..], width - hanging) {
        let line = lines.last_mut().unwrap_or_else(|| unreachable!("there is always a line"));
        if begins || columns(line) + 1 + columns(&unit) <= width {
            if !begins {
                line.push(' ');
            }
            line.push_str(&unit);
            begins = false;
        } else if !unit.is_empty() {
            lines.push(" ".repeat(hanging) + &unit);
        }
    }
    lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n")
}

/// The words of a line; words between backticks are one unit if that takes at most `most` columns.
fn units(line: &str, most: usize) -> Vec<String> {
    let is_open = |unit: &str| unit.matches('`').count() % 2 == 1;
    let mut units: Vec<String> = Vec::new();
    let mut quoted: Vec<&str> = Vec::new();
    for word in line.split(' ') {
        quoted.push(word);
        let unit = quoted.join(" ");
        if !is_open(&unit) && columns(&unit) <= most {
            units.push(unit);
            quoted.clear();
        } else if columns(&unit) > most {
            units.extend(quoted.drain(..).map(str::to_owned));
        }
    }
    units.extend(quoted.into_iter().map(str::to_owned));
    units
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_fold_at_blanks_with_their_indentation() {
        let text = "short\n  one two three four\nend\n";
        assert_eq!(folded(text, Some(12)), "short\n  one two\n    three\n    four\nend\n");
        assert_eq!(folded(text, None), text);
        assert_eq!(folded("a  b   c", Some(6)), "a  b\n  c");
        assert_eq!(folded("overlong-word x", Some(6)), "overlong-word\n  x");
        assert_eq!(folded("no line feed", Some(7)), "no line\n  feed");
    }

    #[test]
    fn commands_stay_whole_where_they_fit() {
        assert_eq!(folded("fix: `pagelift pool` now", Some(17)), "fix:\n  `pagelift pool`\n  now");
        assert_eq!(folded("fix: `pagelift pool show` now", Some(15)), "fix: `pagelift\n  pool show`\n  now");
        assert_eq!(folded("a ` b c d e f g h", Some(8)), "a ` b c\n  d e f\n  g h");
    }

    #[test]
    fn colours_take_no_columns() {
        let text = "\u{1b}[1;31mone\u{1b}[0m two";
        assert_eq!(columns(text), 7);
        assert_eq!(folded(text, Some(7)), text);
    }
}
