//! Times of options and settings: `90s`, `5m`, `2h`.

use alloc::format;
use alloc::string::String;
use core::fmt;
use core::time::Duration;

/// Units in nanoseconds. A word that ends with another one is before it.
const UNITS: [(&str, u64); 7] = [
    ("ms", 1_000_000),
    ("us", 1_000),
    ("min", SECOND * 60),
    ("s", SECOND),
    ("m", SECOND * 60),
    ("h", SECOND * 3600),
    ("d", SECOND * 86_400),
];

/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

/// The times that an option accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeRange {
    least: Duration,
    most: Duration,
    /// A number alone is in seconds.
    has_seconds: bool,
}

impl TimeRange {
    /// Times from `least` to `most`. A number alone is in seconds.
    pub const fn new(least: Duration, most: Duration) -> Self {
        Self { least, most, has_seconds: true }
    }

    /// Times from `least` to `most` of options whose times are usually much shorter or longer than seconds. A number alone is
    /// an error, except 0.
    pub const fn with_unit(least: Duration, most: Duration) -> Self {
        Self { least, most, has_seconds: false }
    }

    /// Reads a decimal number and its unit: `400ms`, `1.5s`, `90 s`, `5m`, `5min`, `2h`, `30d`.
    ///
    /// # Errors
    /// The text is no time, or not in the range. The message has the range and examples.
    pub fn read(&self, text: &str) -> Result<Duration, String> {
        let time = self.time(text.trim()).filter(|time| (self.least..=self.most).contains(time));
        time.ok_or_else(|| match decimal(text.trim()) {
            Some(_) if !self.has_seconds => format!("found `{text}` without a unit, needed {self}"),
            _ => format!("found `{text}`, needed {self}"),
        })
    }

    fn time(&self, text: &str) -> Option<Duration> {
        let with_unit = UNITS.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)));
        let alone = || (self.has_seconds || decimal(text) == Some(0.0)).then_some((text, SECOND));
        let (number, factor) = with_unit.or_else(alone)?;
        let nanoseconds = decimal(number.trim_end())? * factor as f64;
        // Above 2^53 the product is no longer exact to a nanosecond, which no option needs.
        (nanoseconds < u64::MAX as f64).then(|| Duration::from_nanos((nanoseconds + 0.5) as u64))
    }
}

impl fmt::Display for TimeRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (least, most) = (time_word(self.least), time_word(self.most));
        write!(f, "a time from {least} to {most}, such as 500ms, 90s, 5m or 2h")?;
        f.write_str(if self.has_seconds { "; a number alone is in seconds" } else { ", with its unit" })
    }
}

/// Reads digits with at most one point. `f64` alone would also read `inf`, `nan`, signs and exponents.
pub(crate) fn decimal(text: &str) -> Option<f64> {
    let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse::<f64>().ok().filter(|number| is_decimal && number.is_finite())
}

/// The word for a time that [`TimeRange::read`] reads, with the largest unit of which the time is a whole multiple.
pub fn time_word(time: Duration) -> String {
    const SHOWN: [(&str, u128); 6] = [
        ("d", 86_400_000_000_000),
        ("h", 3_600_000_000_000),
        ("m", 60_000_000_000),
        ("s", 1_000_000_000),
        ("ms", 1_000_000),
        ("us", 1_000),
    ];
    let nanoseconds = time.as_nanos();
    let whole = SHOWN.iter().find(|(_, factor)| nanoseconds > 0 && nanoseconds.is_multiple_of(*factor));
    match whole {
        Some((unit, factor)) => format!("{}{unit}", nanoseconds / factor),
        None => format!("{}s", time.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const SECONDS: TimeRange = TimeRange::new(Duration::from_millis(100), HOUR);

    #[test]
    fn times_have_a_number_and_a_unit() {
        for (text, milliseconds) in [
            ("90", 90_000),
            ("90s", 90_000),
            ("1.5", 1_500),
            ("500ms", 500),
            ("0.1", 100),
            ("5m", 300_000),
            ("5min", 300_000),
            ("5 min", 300_000),
            ("1h", 3_600_000),
            ("3600", 3_600_000),
        ] {
            assert_eq!(SECONDS.read(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in ["", "s", "0", "99ms", "3601", "2h", "-1", "+1", "1e3", "inf", "nan", "1.2.3", "5M", "5 x", "5ss"] {
            let error = SECONDS.read(text).unwrap_err();
            let rest = "a time from 100ms to 1h, such as 500ms, 90s, 5m or 2h; a number alone is in seconds";
            assert_eq!(error, format!("found `{text}`, needed {rest}"));
        }
    }

    #[test]
    fn a_number_alone_is_in_seconds_or_refused() {
        let with_unit = TimeRange::with_unit(Duration::ZERO, HOUR);
        assert_eq!(with_unit.read("5m"), Ok(HOUR / 12));
        assert_eq!([with_unit.read("0"), with_unit.read("0ms")], [Ok(Duration::ZERO), Ok(Duration::ZERO)]);
        let needed = "a time from 0s to 1h, such as 500ms, 90s, 5m or 2h, with its unit";
        assert_eq!(with_unit.read("400").unwrap_err(), format!("found `400` without a unit, needed {needed}"));
        assert_eq!(with_unit.read("2h").unwrap_err(), format!("found `2h`, needed {needed}"));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,20}") {
            let _ = SECONDS.read(&text);
        }

        #[test]
        fn a_written_time_is_read_again(milliseconds in 0..1_000_000_000_u64) {
            let (time, all) = (Duration::from_millis(milliseconds), TimeRange::with_unit(Duration::ZERO, Duration::from_secs(1 << 30)));
            prop_assert_eq!(all.read(&time_word(time)), Ok(time));
        }
    }
}
