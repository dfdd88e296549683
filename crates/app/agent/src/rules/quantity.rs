//! Quantities of the configuration: times, shares and sizes, each with its unit.

use address_space::{format_bytes, parse_size};
use options::TimeRange;
use serde::Deserialize;
use std::fmt;
use std::time::Duration;

/// Longest time that a setting may have.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

/// A time such as `"10s"`, `"50ms"` or `"5min"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct Time(pub Duration);

impl TryFrom<String> for Time {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        TimeRange::with_unit(Duration::ZERO, LONGEST).read(&text).map(Self)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(time) = self;
        if time.as_secs() >= 120 && time.as_secs() % 60 == 0 && time.subsec_nanos() == 0 {
            write!(f, "{} min", time.as_secs() / 60)
        } else if time.as_secs() > 0 {
            write!(f, "{} s", rounded(time.as_secs_f64()))
        } else {
            write!(f, "{} ms", rounded(time.as_secs_f64() * 1e3))
        }
    }
}

/// A share such as `"0.5%"`, at most 100 %.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Deserialize)]
#[serde(try_from = "String")]
pub struct Share(f64);

impl Share {
    /// The whole.
    pub const ALL: Self = Self(1.0);
    /// Nothing.
    pub const NONE: Self = Self(0.0);

    /// A share in percent, between 0 and 100.
    pub fn percent(percent: f64) -> Self {
        Self((percent / 100.0).clamp(0.0, 1.0))
    }

    /// The share as a number between 0 and 1.
    pub fn ratio(self) -> f64 {
        self.0
    }
}

impl TryFrom<String> for Share {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let percent = text.trim().strip_suffix('%').and_then(|percent| number(percent.trim_end()));
        match percent {
            Some(percent) if percent <= 100.0 => Ok(Self::percent(percent)),
            _ => Err(format!("found \"{text}\"; needed: a share from \"0%\" to \"100%\", such as \"0.5%\"")),
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", rounded(self.0 * 100.0))
    }
}

/// A number of bytes such as `"8M"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct Size(pub u64);

impl TryFrom<String> for Size {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let needed = |_| format!("found \"{text}\"; needed: a size such as \"8M\" or \"1.5G\"");
        parse_size(&text).map(Self).map_err(needed)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format_bytes(self.0))
    }
}

/// Reads digits with at most one point; `f64` alone would read `inf`, `nan`, signs and exponents too.
fn number(text: &str) -> Option<f64> {
    let is_digits = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if is_digits { text.parse().ok() } else { None }
}

/// The number with at most three decimals.
fn rounded(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn time(text: &str) -> Result<Time, String> {
        Time::try_from(text.to_owned())
    }

    fn share(text: &str) -> Result<Share, String> {
        Share::try_from(text.to_owned())
    }

    #[test]
    fn times_have_units() {
        for (text, expected) in [
            ("10s", Duration::from_secs(10)),
            ("50 ms", Duration::from_millis(50)),
            ("0.5s", Duration::from_millis(500)),
            ("5min", Duration::from_secs(300)),
            ("2m", Duration::from_secs(120)),
            ("1h", Duration::from_secs(3600)),
            ("0s", Duration::ZERO),
        ] {
            assert_eq!(time(text), Ok(Time(expected)), "{text}");
        }
        for text in ["", "10", "s", "-1s", "1e9s", "infs", "nans", "1.2.3s", "8d", "999999h", "10 S"] {
            assert!(time(text).is_err(), "{text}");
        }
        assert_eq!(time("90s").unwrap().to_string(), "90 s");
        assert_eq!(time("0.05s").unwrap().to_string(), "50 ms");
        assert_eq!(time("2h").unwrap().to_string(), "120 min");
    }

    #[test]
    fn shares_are_percents() {
        assert_eq!(share("0.5%"), Ok(Share::percent(0.5)));
        assert_eq!(share("1 %").unwrap().to_string(), "1 %");
        for text in ["", "%", "1", "101%", "-1%", "nan%", "inf%", "1e1%"] {
            assert!(share(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_have_units() {
        let size = |text: &str| Size::try_from(text.to_owned());
        assert_eq!((size("8M"), size("0"), size("4096")), (Ok(Size(8 << 20)), Ok(Size(0)), Ok(Size(4096))));
        assert!(["8", "1.5", "M"].iter().all(|text| size(text).is_err()));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,20}") {
            let _ = (time(&text), share(&text), Size::try_from(text));
        }
    }
}
