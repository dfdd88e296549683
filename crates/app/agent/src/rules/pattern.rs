//! Patterns of paths and names: `*` and `?`.

use serde::Deserialize;
use std::fmt;

/// Largest length of a pattern in bytes.
const LONGEST: usize = 4096;

/// A pattern for a whole text: `*` matches any number of characters, `/` among them, and `?` exactly one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct Pattern(String);

impl Pattern {
    /// Returns true if the whole text matches.
    ///
    /// Takes at most the product of both lengths in steps: only the last `*` is tried again.
    pub fn matches(&self, text: &str) -> bool {
        let (pattern, text): (Vec<char>, Vec<char>) = (self.0.chars().collect(), text.chars().collect());
        let (mut at, mut position) = (0, 0);
        // The last `*`, and the position in the text up to which it matches.
        let mut star = None;
        while position < text.len() {
            match pattern.get(at) {
                Some('*') => {
                    star = Some((at, position));
                    at += 1;
                }
                Some(&wanted) if wanted == '?' || wanted == text[position] => {
                    at += 1;
                    position += 1;
                }
                _ => {
                    let Some((star_at, matched)) = star else { return false };
                    star = Some((star_at, matched + 1));
                    at = star_at + 1;
                    position = matched + 1;
                }
            }
        }
        pattern[at..].iter().all(|&rest| rest == '*')
    }

    /// True if it begins with `/`, as every path does.
    pub fn begins_with_slash(&self) -> bool {
        self.0.starts_with('/')
    }

    /// True if it matches texts that begin with `/`.
    pub fn may_begin_with_slash(&self) -> bool {
        self.0.starts_with(['/', '*', '?'])
    }

    /// True if it matches texts that end with `end`.
    pub fn may_end_with(&self, end: &str) -> bool {
        let last = self.0.rsplit(['*', '?']).next().unwrap_or_default();
        last.ends_with(end) || end.ends_with(last)
    }
}

impl TryFrom<String> for Pattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text.is_empty() {
            return Err("an empty pattern matches nothing; needed: a text such as \"*/bin/postgres\"".to_owned());
        }
        if text.len() > LONGEST {
            return Err(format!("a pattern of {} bytes; needed: at most {LONGEST}", text.len()));
        }
        Ok(Self(text))
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::try_from(text.to_owned()).unwrap()
    }

    #[test]
    fn matches_whole_texts() {
        for (wanted, text, expected) in [
            ("/usr/sbin/mariadbd", "/usr/sbin/mariadbd", true),
            ("/usr/sbin/mariadbd", "/usr/sbin/mariadbd-safe", false),
            ("*/bin/postgres", "/usr/lib/postgresql/15/bin/postgres", true),
            ("*/bin/postgres", "/bin/postgres (deleted)", false),
            ("kubepods*", "kubepods.slice/x", true),
            ("*a*b", "aabab", true),
            ("*a*b", "aaba", false),
            ("pyth?n3.*", "pyth\u{f6}n3.12", true),
            ("?", "", false),
            ("*", "", true),
            ("[a]", "a", false),
        ] {
            assert_eq!(pattern(wanted).matches(text), expected, "{wanted} {text}");
        }
    }

    #[test]
    fn beginnings_and_ends_may_match() {
        for (wanted, expected) in [("/a", true), ("*a", true), ("?a", true), ("a", false)] {
            assert_eq!(pattern(wanted).may_begin_with_slash(), expected, "{wanted}");
        }
        for (wanted, expected) in
            [("a.service", true), ("a@*", true), ("*vice", true), ("a", false), ("*.slice", false)]
        {
            assert_eq!(pattern(wanted).may_end_with(".service"), expected, "{wanted}");
        }
    }

    #[test]
    fn refuses_empty_and_endless_patterns() {
        assert!(Pattern::try_from(String::new()).is_err());
        assert!(Pattern::try_from("a".repeat(LONGEST + 1)).is_err());
    }

    /// Tries every way to match.
    fn oracle(pattern: &[char], text: &[char]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some(('*', rest)) => (0..=text.len()).any(|skipped| oracle(rest, &text[skipped..])),
            Some((wanted, rest)) => text
                .split_first()
                .is_some_and(|(first, others)| (*wanted == '?' || wanted == first) && oracle(rest, others)),
        }
    }

    proptest! {
        #[test]
        fn agrees_with_every_way_to_match(wanted in "[ab*?]{1,8}", text in "[ab]{0,10}") {
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            prop_assert_eq!(pattern(&wanted).matches(&text), oracle(&chars(&wanted), &chars(&text)));
        }
    }
}
