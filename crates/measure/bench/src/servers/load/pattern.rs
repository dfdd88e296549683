//! Requests that differ from each other. Pure.

use fastrand::Rng;
use std::fmt::Write;

/// A text in which `{FIRST..LAST}` is replaced by another whole number in that range each time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    /// Each range follows its text.
    parts: Vec<(String, u64, u64)>,
    rest: String,
}

impl Pattern {
    pub(super) fn parse(text: &str) -> Self {
        let (mut parts, mut before, mut rest) = (Vec::new(), String::new(), text);
        while let Some((left, right)) = rest.split_once('{') {
            before += left;
            match right.split_once('}').and_then(|(inner, after)| Some((range(inner)?, after))) {
                Some(((first, last), after)) => {
                    parts.push((std::mem::take(&mut before), first, last));
                    rest = after;
                }
                None => {
                    before.push('{');
                    rest = right;
                }
            }
        }
        Self { parts, rest: before + rest }
    }

    /// The pattern with each text changed by `fill_in`; the ranges stay.
    pub(super) fn filled_in(&self, fill_in: impl Fn(&str) -> String) -> Self {
        let parts = self.parts.iter().map(|(before, first, last)| (fill_in(before), *first, *last)).collect();
        Self { parts, rest: fill_in(&self.rest) }
    }

    /// The next request.
    pub(super) fn next(&self, random: &mut Rng) -> String {
        let mut text = String::new();
        for (before, first, last) in &self.parts {
            // Writing to a string cannot fail.
            let _ = write!(text, "{before}{}", random.u64(*first..=*last));
        }
        text + &self.rest
    }
}

fn range(text: &str) -> Option<(u64, u64)> {
    let (first, last) = text.split_once("..")?;
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last).then_some((first, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_become_numbers_and_all_else_stays() {
        let mut random = Rng::with_seed(3);
        let pattern = Pattern::parse("SET {x} k{1..3} {9..9}{} {5..1}");
        let texts: std::collections::BTreeSet<String> = (0..200).map(|_| pattern.next(&mut random)).collect();
        assert_eq!(texts.into_iter().collect::<Vec<_>>(), [1, 2, 3].map(|k| format!("SET {{x}} k{k} 9{{}} {{5..1}}")));
        assert_eq!(Pattern::parse("PING").next(&mut random), "PING");
    }
}
