//! Makes text from other processes safe to print.

/// Returns the text with every control character replaced. Any user can choose names of files and processes, and an
/// escape sequence or a newline in one would act on the reader's terminal or break a line in two.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
