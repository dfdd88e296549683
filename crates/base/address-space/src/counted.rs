//! Nouns that agree with numbers, for all texts.

use alloc::format;
use alloc::string::String;

/// A number with its noun: `1 page`, `2 processes`.
pub fn counted(number: u64, noun: &str) -> String {
    format!("{number} {}", agreeing(number, noun))
}

/// The noun alone, for a number that is formatted in another way.
pub fn agreeing(number: u64, noun: &str) -> String {
    let plural = match noun {
        _ if number == 1 => "",
        _ if noun.ends_with('s') => "es",
        _ => "s",
    };
    format!("{noun}{plural}")
}

#[cfg(test)]
mod tests {
    use super::{agreeing, counted};

    #[test]
    fn nouns_agree_with_numbers() {
        assert_eq!([0, 1, 2].map(|number| counted(number, "page")), ["0 pages", "1 page", "2 pages"]);
        assert_eq!([1, 1000].map(|number| counted(number, "process")), ["1 process", "1000 processes"]);
        assert_eq!([1, 1000].map(|number| agreeing(number, "pair")), ["pair", "pairs"]);
    }
}
