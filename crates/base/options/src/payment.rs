//! Limits on the cost of a lift: time at the start, and a share of CPU time later.

use crate::time::{TimeRange, decimal};
use alloc::format;
use alloc::string::String;
use core::fmt;
use core::str::FromStr;
use core::time::Duration;

/// The longest time that [`StartCost`] takes for a number.
const LONGEST: Duration = Duration::from_secs(3600);
/// Times that [`StartCost`] takes.
const COSTS: TimeRange = TimeRange::with_unit(Duration::ZERO, LONGEST);
/// A share of one, in millionths.
const WHOLE: u32 = 1_000_000;

/// The time that copies of memory may take while a program is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartCost {
    /// Any time: the whole lift is made at the start.
    Any,
    /// At most this time, as predicted.
    AtMost(Duration),
}

impl StartCost {
    /// The usual allowance.
    pub const USUAL: Self = Self::AtMost(Duration::from_millis(5));
}

impl fmt::Display for StartCost {
    /// The word that [`StartCost::from_str`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::AtMost(time) => write!(f, "{}ms", time.as_micros() as f64 / 1000.0),
        }
    }
}

impl FromStr for StartCost {
    type Err = String;
    /// Reads `any`, or a time with its unit: `5ms`, `0.5ms`, `2s`.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "any" {
            return Ok(Self::Any);
        }
        COSTS.read(text).map(Self::AtMost).map_err(|error| format!("{error}, or any"))
    }
}

/// The largest share of a program's CPU time that a lift may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostShare {
    millionths: u32,
}

impl Default for CostShare {
    /// One percent.
    fn default() -> Self {
        Self { millionths: WHOLE / 100 }
    }
}

impl CostShare {
    /// The CPU time of which `cost` is this share.
    pub fn time_for(self, cost: Duration) -> Duration {
        let nanoseconds = cost.as_nanos().saturating_mul(u128::from(WHOLE)) / u128::from(self.millionths.max(1));
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }

    /// The cost that is this share of a CPU time.
    pub fn of(self, time: Duration) -> Duration {
        let nanoseconds = time.as_nanos().saturating_mul(u128::from(self.millionths)) / u128::from(WHOLE);
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for CostShare {
    /// The word that [`CostShare::from_str`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", f64::from(self.millionths) / f64::from(WHOLE / 100))
    }
}

impl FromStr for CostShare {
    type Err = String;
    /// Reads a percentage: `1%`, `0.5%`, `2`.
    fn from_str(text: &str) -> Result<Self, String> {
        let percent = decimal(text.strip_suffix('%').unwrap_or(text)).filter(|percent| *percent <= 100.0);
        let millionths = percent.map(|percent| (percent * f64::from(WHOLE / 100)) as u32);
        let share = millionths.filter(|millionths| *millionths > 0).map(|millionths| Self { millionths });
        share.ok_or_else(|| format!("found `{text}`, needed a percentage from 0.0001% to 100%"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn start_costs_are_read_as_they_are_written() {
        let cases = [("5ms", 5_000), ("0.5ms", 500), ("2s", 2_000_000), ("0", 0), ("3600s", 3_600_000_000)];
        for (text, microseconds) in cases {
            let cost: StartCost = text.parse().unwrap();
            assert_eq!(cost, StartCost::AtMost(Duration::from_micros(microseconds)), "{text}");
            assert_eq!(cost.to_string().parse(), Ok(cost));
        }
        assert_eq!("any".parse(), Ok(StartCost::Any));
        assert_eq!(StartCost::Any.to_string(), "any");
        assert!("5".parse::<StartCost>().unwrap_err().starts_with("found `5` without a unit, needed a time "));
        for text in ["", "ms", "s", "-1", "+1", "1e3", "inf", "nan", "5 x", "3601s", "Any", "5%"] {
            assert!(text.parse::<StartCost>().unwrap_err().starts_with(&format!("found `{text}`, needed ")), "{text}");
        }
    }

    #[test]
    fn shares_are_read_as_they_are_written() {
        for (text, word) in [("1%", "1%"), ("1", "1%"), ("0.5%", "0.5%"), ("100", "100%"), ("0.0001%", "0.0001%")] {
            let share: CostShare = text.parse().unwrap();
            assert_eq!(share.to_string(), word);
            assert_eq!(word.parse(), Ok(share));
        }
        assert_eq!("1%".parse(), Ok(CostShare::default()));
        for text in ["", "%", "0", "0%", "0.00001%", "101%", "-1%", "1e1%", "1%%", "x"] {
            assert!(text.parse::<CostShare>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_cost_is_a_share_of_the_time_for_it() {
        let share: CostShare = "2%".parse().unwrap();
        assert_eq!(share.time_for(Duration::from_millis(30)), Duration::from_millis(1500));
        assert_eq!(share.of(Duration::from_millis(1500)), Duration::from_millis(30));
        assert_eq!(CostShare::default().time_for(Duration::ZERO), Duration::ZERO);
        let smallest: CostShare = "0.0001%".parse().unwrap();
        assert!(smallest.time_for(Duration::MAX) > Duration::from_secs(1 << 30));
    }
}
