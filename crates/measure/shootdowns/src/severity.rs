//! The severity of a process's shootdowns.

use crate::summary::ProcessSummary;
use serde::Serialize;

/// Below this rate a process loses less than one percent of a CPU, at 20 µs for each shootdown.
const FEW: f64 = 100.0;
/// From this rate on the time matters, even if it is not measured: 5 µs each are half a percent of a CPU, and each receiver loses
/// as much.
const MANY: f64 = 1000.0;
/// Shares of one CPU's time.
const NOTHING: f64 = 0.01;
const LITTLE: f64 = 0.05;

/// The recommended action for the shootdowns of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// Nothing: they cost less than 1 % of a CPU.
    Nothing,
    /// They cost up to 5 % of a CPU, which matters for latency only.
    Little,
    /// A cure is worth its price.
    Cure,
}

/// The cost of a process's shootdowns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Severity {
    /// The recommended action.
    pub level: Level,
    /// Time of threads in the calls that send them, or waiting for answers, whichever is longer, and in interrupts, as a share
    /// of one CPU's time; `None` if neither is measured. Page faults (copy on write) wait outside of the calls.
    pub share: Option<f64>,
    /// Waiting is longer than the calls, or the calls are not measured.
    #[serde(skip)]
    pub is_waiting: bool,
    /// Shootdowns sent each second, or calls that may send some.
    pub rate: f64,
    /// Page faults each second; a part touches returned memory again.
    pub faults: Option<f64>,
}

impl Severity {
    /// The severity of a process's counts in this number of seconds.
    pub fn of(process: &ProcessSummary, seconds: f64) -> Self {
        let each_second = |count: f64| count / seconds.max(f64::MIN_POSITIVE);
        let (calls, waited) = (process.call_seconds, process.waited_seconds);
        let is_waiting = waited > calls;
        let sending = if is_waiting { waited } else { calls };
        let spent = sending.map(|sending| sending + process.interrupted_seconds.unwrap_or(0.0));
        let (share, rate) = (spent.map(each_second), each_second(process.sent));
        let level = match share {
            _ if rate < FEW => Level::Nothing,
            Some(share) if share < NOTHING => Level::Nothing,
            Some(share) if share < LITTLE => Level::Little,
            None if rate < MANY => Level::Little,
            _ => Level::Cure,
        };
        Self { level, share, is_waiting, rate, faults: process.page_faults.map(|faults| each_second(faults as f64)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(sent: f64, calls: Option<f64>, waited: Option<f64>, interrupted: Option<f64>) -> Level {
        let (call_seconds, waited_seconds, interrupted_seconds) = (calls, waited, interrupted);
        let process =
            ProcessSummary { sent, call_seconds, waited_seconds, interrupted_seconds, ..ProcessSummary::default() };
        Severity::of(&process, 10.0).level
    }

    #[test]
    fn few_shootdowns_and_little_time_need_nothing() {
        assert_eq!(level(120.0, None, None, None), Level::Nothing, "12 a second");
        assert_eq!(level(120.0, Some(9.0), None, None), Level::Nothing, "the calls take long for another reason");
        assert_eq!(level(5_000.0, Some(0.09), None, None), Level::Nothing);
        assert_eq!(level(5_000.0, None, Some(0.09), Some(0.2)), Level::Little);
        assert_eq!(level(5_000.0, Some(0.3), Some(0.01), Some(0.4)), Level::Cure);
        assert_eq!(level(9_980.0, Some(0.0), Some(0.18), None), Level::Little, "copy on write waits in page faults");
        assert_eq!(level(5_000.0, None, None, None), Level::Little, "not measured");
        assert_eq!(level(10_000.0, None, None, None), Level::Cure, "not measured, but many");
    }

    #[test]
    fn numbers_are_rates() {
        let process = ProcessSummary { sent: 50.0, page_faults: Some(30), ..ProcessSummary::default() };
        let severity = Severity::of(&process, 10.0);
        assert_eq!((severity.rate, severity.faults, severity.share), (5.0, Some(3.0), None));
    }
}
