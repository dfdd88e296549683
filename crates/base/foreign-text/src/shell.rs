//! Words of commands that are printed to be pasted into a shell.

use crate::is_printable;
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
#[cfg(feature = "std")]
use std::ffi::OsStr;
#[cfg(feature = "std")]
use std::path::Path;

/// Stands in place of a word that cannot be printed, so that the text is no command: every shell refuses it.
pub const UNPRINTABLE: &str = "(a name with control characters)";

/// Returns a word, quoted so that a POSIX shell takes it literally. Returns [`UNPRINTABLE`] if the word has characters that
/// act on its reader.
pub fn quoted_text(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    match (is_printable(word), !word.is_empty() && word.chars().all(is_plain)) {
        (false, _) => UNPRINTABLE.to_owned(),
        (true, true) => word.to_owned(),
        (true, false) => shlex::try_quote(word).map_or_else(|_| UNPRINTABLE.to_owned(), |quoted| quoted.into_owned()),
    }
}

/// Returns a path as [`quoted_text`] does, and so that no command takes it for an option.
pub fn quoted_path_text(path: &str) -> String {
    if path.starts_with('-') { quoted_text(&format!("./{path}")) } else { quoted_text(path) }
}

/// Returns a word as [`quoted_text`] does; [`UNPRINTABLE`] in place of one that is not UTF-8.
#[cfg(feature = "std")]
pub fn quoted(word: impl AsRef<OsStr>) -> String {
    word.as_ref().to_str().map_or_else(|| UNPRINTABLE.to_owned(), quoted_text)
}

/// Returns a path as [`quoted_path_text`] does; [`UNPRINTABLE`] in place of one that is not UTF-8.
#[cfg(feature = "std")]
pub fn quoted_path(path: impl AsRef<Path>) -> String {
    path.as_ref().to_str().map_or_else(|| UNPRINTABLE.to_owned(), quoted_path_text)
}

/// Returns words as [`quoted`] does, with blanks between them.
#[cfg(feature = "std")]
pub fn words(words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> String {
    words.into_iter().map(quoted).collect::<alloc::vec::Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn plain_words_stay_and_others_are_quoted() {
        assert_eq!([quoted("-a=b/c"), quoted(""), quoted("a b")], ["-a=b/c", "''", "'a b'"]);
        assert_eq!([quoted("$x"), quoted("a;b"), quoted("~")], ["'$x'", "'a;b'", "'~'"]);
        assert_eq!(words(["a b", "c"]), "'a b' c");
    }

    #[test]
    fn no_command_has_a_word_that_cannot_be_printed() {
        for word in ["a\u{1b}[31m", "a\nb", "a\u{202e}b", "\0"] {
            assert_eq!(quoted(word), UNPRINTABLE);
        }
        assert_eq!(quoted(OsStr::from_bytes(b"a\xffb")), UNPRINTABLE);
        let command = format!("true {UNPRINTABLE}; echo reached");
        let output = std::process::Command::new("sh").args(["-c", &command]).output().unwrap();
        assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    }

    #[test]
    fn a_path_is_no_option() {
        assert_eq!(quoted_path("--force"), "./--force");
        assert_eq!(quoted_path("-a b"), "'./-a b'");
        assert_eq!(quoted_path("/-x"), "/-x");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_shell_reads_a_quoted_word_as_it_was(word in "[ -~é]{0,12}|['\"`$\\\\!#;&|<>*?\\[\\]~ ]{0,8}") {
            let command = format!("printf '[%s]' {} x", quoted(&word));
            let output = std::process::Command::new("sh").args(["-c", &command]).output().unwrap();
            prop_assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("[{word}][x]"));
        }
    }
}
