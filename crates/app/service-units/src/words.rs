//! Words as systemd splits them: `extract_first_word()` with EXTRACT_UNQUOTE and EXTRACT_CUNESCAPE (systemd 252,
//! `src/basic/extract-word.c`); unknown escapes stay unchanged, as in `extract_first_word_and_warn()`.

use thiserror::Error;

/// The separators of words.
pub const BLANKS: [char; 4] = [' ', '\t', '\n', '\r'];

/// Why a text has no first word that systemd would accept; it ignores the whole line then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WordError {
    /// A quote is not closed.
    #[error("a quote is not closed")]
    OpenQuote,
}

/// Returns the first word, without quotes and escapes, and the text after it without leading blanks; `None` if there is
/// no word.
///
/// # Errors
/// [`WordError::OpenQuote`].
pub fn first_word(text: &str) -> Result<Option<(Vec<u8>, &str)>, WordError> {
    let text = text.trim_start_matches(BLANKS);
    if text.is_empty() {
        return Ok(None);
    }
    let (mut word, mut quote, mut rest) = (Vec::new(), None, text);
    while let Some(character) = rest.chars().next() {
        let after = &rest[character.len_utf8()..];
        match (character, quote) {
            ('\\', _) => {
                rest = unescape(after, &mut word);
                continue;
            }
            (_, Some(open)) if character == open => quote = None,
            ('\'' | '"', None) => quote = Some(character),
            (_, None) if BLANKS.contains(&character) => return Ok(Some((word, after.trim_start_matches(BLANKS)))),
            _ => word.extend(character.encode_utf8(&mut [0; 4]).bytes()),
        }
        rest = after;
    }
    if quote.is_some() { Err(WordError::OpenQuote) } else { Ok(Some((word, ""))) }
}

/// Adds the character of an escape after a backslash, or the backslash itself if it begins no escape; returns the rest.
fn unescape<'a>(text: &'a str, word: &mut Vec<u8>) -> &'a str {
    let simple = |byte: u8| match byte {
        b'a' => Some(7),
        b'b' => Some(8),
        b'f' => Some(12),
        b'n' => Some(b'\n'),
        b'r' => Some(b'\r'),
        b't' => Some(b'\t'),
        b'v' => Some(11),
        b's' => Some(b' '),
        b'\\' | b'"' | b'\'' => Some(byte),
        _ => None,
    };
    let bytes = text.as_bytes();
    if let Some(byte) = bytes.first().copied().and_then(simple) {
        word.push(byte);
        return &text[1..];
    }
    match bytes.first() {
        Some(b'x') => {
            if let Some(value @ 1..) = number(text, 1, 2, 16) {
                word.push(value as u8);
                return &text[3..];
            }
        }
        Some(b'u' | b'U') => {
            let digits = if bytes[0] == b'u' { 4 } else { 8 };
            let character = number(text, 1, digits, 16).filter(|value| *value > 0).and_then(char::from_u32);
            if let Some(character) = character {
                word.extend(character.encode_utf8(&mut [0; 4]).bytes());
                return &text[1 + digits..];
            }
        }
        Some(b'0'..=b'7') => {
            if let Some(value @ 1..=255) = number(text, 0, 3, 8) {
                word.push(value as u8);
                return &text[3..];
            }
        }
        _ => {}
    }
    word.push(b'\\');
    let Some(character) = text.chars().next() else { return text };
    word.extend(character.encode_utf8(&mut [0; 4]).bytes());
    &text[character.len_utf8()..]
}

/// The number in `digits` digits from a position on.
fn number(text: &str, from: usize, digits: usize, radix: u32) -> Option<u32> {
    let digits = text.get(from..from + digits)?;
    let all = digits.chars().all(|digit| digit.is_digit(radix));
    all.then(|| u32::from_str_radix(digits, radix).ok()).flatten()
}

/// A word in the form that makes systemd read it as this text: specifiers are escaped, and variables too if `expands`
/// is true, that is, if systemd would insert their values.
pub fn quoted(text: &str, expands: bool) -> String {
    let mut word = text.replace('\\', "\\\\").replace('%', "%%");
    if expands {
        word = word.replace('$', "$$");
    }
    between_quotes(&word)
}

/// Between double quotes if the text needs them. Backslashes must have been escaped before.
pub fn between_quotes(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=,:@%$\\".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    let escape = |c: char| match c {
        '"' => "\\\"".to_owned(),
        '\n' => "\\n".to_owned(),
        '\r' => "\\r".to_owned(),
        other => other.to_string(),
    };
    format!("\"{}\"", text.chars().map(escape).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(mut text: &str) -> Vec<String> {
        let mut words = Vec::new();
        while let Some((word, rest)) = first_word(text).unwrap() {
            words.push(String::from_utf8_lossy(&word).into_owned());
            text = rest;
        }
        words
    }

    #[test]
    fn words_are_split_at_blanks_outside_of_quotes() {
        for (text, expected) in [
            (r#"a  b	c"#, &["a", "b", "c"][..]),
            (r#""a b" 'c d'"#, &["a b", "c d"]),
            (r#"x"a b"y'c d'z"#, &["xa byc dz"]),
            (r#"'"' "'" "" e"#, &["\"", "'", "", "e"]),
            (r"a\ b", &["a\\ b"]),
            (r"\x41\102\u0043\U00000044", &["ABCD"]),
            (r"a\sb\tc\\d\'e", &["a b\tc\\d'e"]),
            (r"\q \x4 \400", &["\\q", "\\x4", "\\400"]),
        ] {
            assert_eq!(words(text), expected, "{text}");
        }
        assert_eq!(first_word("'a b"), Err(WordError::OpenQuote));
        assert_eq!(first_word("  "), Ok(None));
    }

    proptest! {
        #[test]
        fn a_quoted_word_is_read_again(text in "[^\0]{0,12}", expands: bool) {
            let line = quoted(&text, expands);
            let (word, rest) = first_word(&line).unwrap().unwrap();
            let mut word = String::from_utf8(word).unwrap().replace("%%", "%");
            if expands {
                word = word.replace("$$", "$");
            }
            prop_assert_eq!((word, rest), (text, ""));
        }
    }
}
