//! Makes text from other processes safe to print.

/// Returns the text with every control character replaced. Any user can choose names of files and processes, and an
/// escape sequence or a newline in one would act on the reader's terminal or break a line in two.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Returns a word as a shell takes it literally, with every control character replaced.
pub fn quoted(word: &str) -> String {
    let word = printable(word);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word,
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_a_quoted_word_as_it_was() {
        assert_eq!([quoted("-a=b/c"), quoted(""), quoted("a b")], ["-a=b/c", "''", "'a b'"]);
        assert_eq!([quoted("it's"), quoted("$x"), quoted("a;b")], [r"'it'\''s'", "'$x'", "'a;b'"]);
        assert_eq!(quoted("a\u{1b}[31m"), "'a?[31m'");
    }
}
