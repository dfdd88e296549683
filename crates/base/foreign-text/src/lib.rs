//! Text that others have chosen, made safe for terminals, JSON and shells.
//!
//! Any user can choose names of files, processes, programs and cgroups, and a file can hold any name. On a terminal an
//! escape sequence acts on the reader, a line feed makes a line that looks like Pagelift's own, and marks of direction or
//! of no width make a name look like another one. A quote, a semicolon or a line feed in a command that is printed for
//! pasting makes another command.
//!
//! Pure: no I/O, no `unsafe`.
#![forbid(unsafe_code)]
#![cfg_attr(not(any(test, feature = "std")), no_std)]

extern crate alloc;

mod shell;

pub use shell::{UNPRINTABLE, quoted_path_text, quoted_text};
#[cfg(feature = "std")]
pub use shell::{quoted, quoted_path, words};

use alloc::format;
use alloc::string::String;

/// The character in place of one that is not printed.
const REPLACEMENT: char = '?';

/// True for characters that act on their reader: control characters, separators of lines, and what has no width or changes
/// the direction of text (Unicode's default ignorable code points and bidirectional controls).
pub fn acts_on_reader(c: char) -> bool {
    match c {
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' => true,
        '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' => true,
        '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' => true,
        '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}' => true,
        c => c.is_control(),
    }
}

/// True for a text that [`printable`] leaves as it is.
pub fn is_printable(text: &str) -> bool {
    !text.contains(acts_on_reader)
}

/// Returns the text with every character replaced that acts on its reader, line feeds included.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if acts_on_reader(c) { REPLACEMENT } else { c }).collect()
}

/// Returns a text of several lines with every character replaced that acts on its reader, except line feeds.
pub fn printable_lines(text: &str) -> String {
    text.chars().map(|c| if acts_on_reader(c) && c != '\n' { REPLACEMENT } else { c }).collect()
}

/// Returns a JSON text of the same value in which characters that act on their reader are written as escapes. JSON requires
/// that below U+0020 only.
pub fn escaped_json(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        // Outside of strings JSON has no other characters of this kind than line feeds.
        if c == '\n' || !acts_on_reader(c) {
            text.push(c);
            continue;
        }
        let mut units = [0; 2];
        c.encode_utf16(&mut units).iter().for_each(|unit| text.push_str(&format!("\\u{unit:04x}")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "a\u{1b}[31mb\nc\rd\u{9b}e\u{202e}f\u{200b}g\u{2028}h\u{e0041}i\u{7f}";

    #[test]
    fn nothing_that_acts_on_its_reader_is_printed() {
        assert_eq!(printable(HOSTILE), "a?[31mb?c?d?e?f?g?h?i?");
        assert_eq!(printable_lines(HOSTILE), "a?[31mb\nc?d?e?f?g?h?i?");
        assert_eq!(printable("сервер ×2 日本語"), "сервер ×2 日本語");
        assert!(is_printable("сервер ×2") && !is_printable("a\tb"));
    }

    #[test]
    fn json_keeps_its_value() {
        let escaped = escaped_json("{\n  \"a\": \"\u{9b}\u{e0041}é\"\n}");
        assert_eq!(escaped, "{\n  \"a\": \"\\u009b\\udb40\\udc41é\"\n}");
    }
}
