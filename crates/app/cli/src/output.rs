//! Output of all commands: the only place that writes to standard output and standard error.
//!
//! Any user can choose names of files, processes and cgroups, and error texts contain such names. The output has no
//! character that acts on its reader, whatever the input holds: [`Output`] keeps line feeds, since a text has lines;
//! [`say!`](crate::say) and [`fail`] keep none, since a message is one line. Lines that are wider than the screen are folded
//! ([`width`]), and the rest is indented, so that no word of a name begins a line.

use crate::width;
use foreign_text::{escaped_json, is_printable, printable, printable_lines};
use serde::Serialize;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, IsTerminal, Write};

/// The colours of ECMA-48 that texts may have. No colour hides text.
pub const COLOURS: [&str; 5] = ["1", "1;31", "1;33", "32", "36"];
/// Moves the cursor to the top and clears the screen.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// One of the two streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Standard output, for results.
    Standard,
    /// Standard error, for messages.
    Error,
}

impl Output {
    fn write(self, text: &str) -> io::Result<()> {
        match self {
            Self::Standard => {
                let mut stream = io::stdout().lock();
                stream.write_all(text.as_bytes())?;
                stream.flush()
            }
            Self::Error => io::stderr().write_all(text.as_bytes()),
        }
    }

    /// Prints a text of any number of lines, which are folded to fit the stream; `write!` and `writeln!` call it.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn write_fmt(self, text: fmt::Arguments<'_>) -> io::Result<()> {
        self.print(&text.to_string())
    }

    /// Prints a text of any number of lines, which are folded to fit the stream.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn print(self, text: &str) -> io::Result<()> {
        self.write(&self.folded(&printable_lines(text)))
    }

    /// Prints a text whose lines stay whole: input for a program, or a file.
    ///
    /// # Errors
    /// The stream's errors.
    pub fn print_whole(self, text: &str) -> io::Result<()> {
        self.write(&printable_lines(text))
    }

    /// Prints a text that [`painted`] may have coloured in parts.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn print_coloured(self, text: &str) -> io::Result<()> {
        self.write(&self.folded(&with_colours(text)))
    }

    /// Clears the screen and prints a text.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn print_screen(self, text: &str) -> io::Result<()> {
        self.write(&format!("{CLEAR}{}", self.folded(&printable_lines(text))))
    }

    /// Prints a value as JSON, with a line feed behind it.
    ///
    /// # Errors
    /// Those of the stream, and of the value.
    pub fn print_json(self, value: &impl Serialize) -> anyhow::Result<()> {
        Ok(self.write(&json(value)?)?)
    }

    /// Prints a result as JSON, or in the form that `text` returns.
    ///
    /// # Errors
    /// Those of the stream, and of the value.
    pub fn print_either<T: Serialize>(
        self,
        as_json: bool,
        value: &T,
        text: impl Fn(&T) -> String,
    ) -> anyhow::Result<()> {
        match as_json {
            true => self.print_json(value),
            false => Ok(self.print(&text(value))?),
        }
    }

    /// Prints clap's result for the command line: help, the version, or an error. If a word of the command line has
    /// characters that act on a terminal, it is one line without colours. `words` is the command line: if `main` is not
    /// Rust's, a static program on musl finds none by `std::env`.
    pub fn print_usage(error: &clap::Error, words: &[OsString]) {
        let stream = if error.use_stderr() { Self::Error } else { Self::Standard };
        // The rendered text has no escape sequences, nor do the words; print() writes them to a terminal.
        let text = error.render().to_string();
        let _ = if !words.iter().all(|word| word.to_str().is_some_and(is_printable)) {
            // A line may have begun in one of the words.
            let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
            stream.write(&(stream.folded(&printable(&lines.join(" "))) + "\n"))
        } else if stream.folded(&text) == text {
            error.print()
        } else {
            stream.print(&text)
        };
    }

    /// The number of columns that its texts fit into; `None` if their lines stay whole.
    pub fn width(self) -> Option<usize> {
        match self {
            Self::Standard => width::of(io::stdout()),
            Self::Error => width::of(io::stderr()).or_else(width::at_start),
        }
    }

    fn folded(self, text: &str) -> String {
        width::folded(text, self.width())
    }

    /// True for a terminal.
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Standard => io::stdout().is_terminal(),
            Self::Error => io::stderr().is_terminal(),
        }
    }
}

/// Makes all texts of this process fit their streams ([`width`]).
pub fn fit_screens() {
    width::fit_screens(io::stderr());
}

/// A value as JSON that ends with a line feed, without characters that act on their reader.
///
/// # Errors
/// Those of the value.
pub fn json(value: &impl Serialize) -> serde_json::Result<String> {
    Ok(escaped_json(&serde_json::to_string_pretty(value)?) + "\n")
}

/// A text in one of [`COLOURS`].
pub fn painted(colour: &str, text: &str) -> String {
    format!("\u{1b}[{colour}m{text}\u{1b}[0m")
}

/// The text with everything replaced that acts on its reader, but for line feeds and [`COLOURS`].
fn with_colours(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let mut clean = printable_lines(parts.next().unwrap_or_default());
    for part in parts {
        let is_colour =
            |colour: &&str| part.strip_prefix('[').is_some_and(|rest| rest.starts_with(&format!("{colour}m")));
        clean.push(if COLOURS.iter().chain(&["0"]).any(is_colour) { '\u{1b}' } else { '?' });
        clean += &printable_lines(part);
    }
    clean
}

/// Prints one line to standard error, as `eprintln!` does; [`say!`](crate::say) calls it.
pub fn say(line: fmt::Arguments<'_>) {
    let _ = Output::Error.write(&(Output::Error.folded(&printable(&line.to_string())) + "\n"));
}

/// Prints one line to standard error, with the arguments of `eprintln!`.
#[macro_export]
macro_rules! say {
    ($($argument:tt)*) => { $crate::output::say(format_args!($($argument)*)) };
}

/// Several failures, each printed on a separate line.
#[derive(Debug)]
pub struct Failures(pub Vec<String>);

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("; "))
    }
}

impl std::error::Error for Failures {}

/// Says why a command failed.
pub fn fail(error: &anyhow::Error) {
    let mut text = String::new();
    match error.downcast_ref::<Failures>() {
        Some(Failures(lines)) => {
            lines.iter().for_each(|line| text += &format!("pagelift: {}\n", printable(line)));
        }
        None => text = format!("pagelift: {}\n", printable(&format!("{error:#}"))),
    }
    let _ = Output::Error.write(&Output::Error.folded(&text));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_colours_stay() {
        let text = format!("{} a\u{1b}[8mb\u{1b}]0;c\u{7}\nd\u{1b}", painted("1;31", "PROBLEM"));
        assert_eq!(with_colours(&text), "\u{1b}[1;31mPROBLEM\u{1b}[0m a?[8mb?]0;c?\nd?");
        assert_eq!(with_colours("\u{1b}[1;31"), "?[1;31");
    }
}
