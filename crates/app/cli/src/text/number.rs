//! Numbers in texts.

pub use address_space::counted;

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

/// A part of a number with its noun: "1 of 2 files".
pub fn of_all(part: usize, all: usize, noun: &str) -> String {
    format!("{part} of {}", counted(all as u64, noun))
}

#[cfg(test)]
mod tests {
    use super::{grouped, of_all};

    #[test]
    fn nouns_of_parts_agree_with_all() {
        assert_eq!([1, 2].map(|all| of_all(1, all, "file")), ["1 of 1 file", "1 of 2 files"]);
    }

    #[test]
    fn thousands_are_grouped() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
