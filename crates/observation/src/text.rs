//! Text from other processes, fit to be printed.

/// The text with every control character replaced: names of files and processes are anybody's to choose, and an escape
/// sequence or a newline in one would act on the reader's terminal or break a line in two.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
