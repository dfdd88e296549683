//! Makes text of a record fit to be shown.

/// The longest text that is shown, in characters; a longer one is cut in its middle.
const MOST: usize = 320;

/// Returns the text without control characters, and without marks that hide text or change its direction.
pub fn visible(text: &str) -> String {
    text.chars().map(visible_character).collect()
}

fn visible_character(c: char) -> char {
    if foreign_text::acts_on_reader(c) { '\u{fffd}' } else { c }
}

/// Like [`visible`], and of bounded length.
pub(crate) fn shown(text: &str) -> String {
    let count = text.chars().count();
    if count <= MOST {
        return visible(text);
    }
    let half = MOST / 2;
    let (first, last) = (text.chars().take(half), text.chars().skip(count - half));
    first.chain(['…']).chain(last).map(visible_character).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_invisible_and_nothing_endless_is_left() {
        assert_eq!(shown("a\u{202e}b\nc\u{1b}[31m"), "a\u{fffd}b\u{fffd}c\u{fffd}[31m");
        assert_eq!(shown("сервер ×2"), "сервер ×2");
        let long = shown(&format!("{}{}", "a".repeat(1000), "z".repeat(1000)));
        assert_eq!(long.chars().count(), MOST + 1);
        assert!(long.starts_with("aaa") && long.contains('…') && long.ends_with("zzz"));
    }
}
