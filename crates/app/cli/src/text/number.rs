//! Numbers in texts.

/// A number with commas between thousands.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number with its noun.
pub fn counted(number: u64, noun: &str) -> String {
    let plural = match noun {
        _ if number == 1 => "",
        _ if noun.ends_with('s') => "es",
        _ => "s",
    };
    format!("{number} {noun}{plural}")
}

/// A part of a number with its noun: "1 of 2 files".
pub fn of_all(part: usize, all: usize, noun: &str) -> String {
    format!("{part} of {}", counted(all as u64, noun))
}

#[cfg(test)]
mod tests {
    use super::{counted, grouped, of_all};

    #[test]
    fn nouns_of_parts_agree_with_all() {
        assert_eq!([1, 2].map(|all| of_all(1, all, "file")), ["1 of 1 file", "1 of 2 files"]);
    }

    #[test]
    fn nouns_agree_with_numbers() {
        assert_eq!([0, 1, 2].map(|number| counted(number, "page")), ["0 pages", "1 page", "2 pages"]);
        assert_eq!([1, 1000].map(|number| counted(number, "process")), ["1 process", "1000 processes"]);
    }

    #[test]
    fn thousands_are_grouped() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
