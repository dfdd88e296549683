//! The latencies in an answer, in words.

use crate::words::percent;
use measure::latency::Latency;
use measure::record::{ArmLatency, Record};
use measure::statistics::Estimate;

/// The waiting times of requests, plain and in each arm, a line for each; none if they were not measured.
pub fn latency(record: &Record) -> Vec<String> {
    let Some(all) = record.latencies() else { return Vec::new() };
    let mut lines = vec![format!("latency, plain: {}", times(&all.plain))];
    for (name, arm) in record.header.arms.iter().zip(&all.arms) {
        let Some(ArmLatency { latency, p99 }) = arm else { continue };
        let against = match (p99, &all.control) {
            (Some(p99), Some(control)) => format!("{} (plain against itself {})", interval(p99), interval(control)),
            _ => "too few blocks for an interval".to_owned(),
        };
        lines.push(format!("latency, {name}: {}: {against}", times(latency)));
    }
    lines
}

fn times(latency: &Latency) -> String {
    format!("half within {}, 99 % within {}", time(latency.median), time(latency.p99))
}

fn interval(ratio: &Estimate) -> String {
    format!("{} % [{}, {}]", percent(ratio.centre), percent(ratio.low), percent(ratio.high))
}

/// Three digits of a time in seconds.
fn time(seconds: f64) -> String {
    let (value, unit) = match seconds {
        seconds if seconds < 1e-3 => (seconds * 1e6, "µs"),
        seconds if seconds < 1.0 => (seconds * 1e3, "ms"),
        seconds => (seconds, "s"),
    };
    let places = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.places$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits() {
        let shown = [0.0, 1.234e-5, 9.996e-6, 4.56e-4, 1.234e-3, 0.0567, 2.0, 300.0].map(time);
        assert_eq!(shown, ["0.00 µs", "12.3 µs", "10.0 µs", "456 µs", "1.23 ms", "56.7 ms", "2.00 s", "300 s"]);
    }
}
