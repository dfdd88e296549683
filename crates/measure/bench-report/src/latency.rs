//! The latencies in an answer, in words.

use crate::words::percent;
use measure::record::{ArmLatency, Design, Latencies, Record};
use measure::statistics::{Estimate, GENERATIONS_FOR_T};

/// The waiting times of requests in each arm and in the plain windows of its blocks, a line for each; none if they were not
/// measured.
pub fn latency(record: &Record) -> Vec<String> {
    let Some(all) = record.latencies() else { return Vec::new() };
    let mut lines = Vec::new();
    for (name, arm) in record.header.arms.iter().zip(&all.arms) {
        let Some(ArmLatency { latency, plain, p99 }) = arm else { continue };
        let against = match (p99, &all.control) {
            (Some(p99), Some(control)) => format!("{} (plain against itself {})", interval(p99), interval(control)),
            _ => "too few blocks for an interval".to_owned(),
        };
        let [half, most] = [(latency.median, plain.median), (latency.p99, plain.p99)]
            .map(|(arm, plain)| format!("{} (plain {})", time(arm), time(plain)));
        lines.push(format!("latency, {name}: half within {half}, 99 % within {most}: {against}"));
    }
    lines
}

/// The addition to a decision about an arm whose requests wait longer; `None` if the interval does not show that.
pub(crate) fn longer_waits(record: &Record, arm: usize) -> Option<String> {
    let Latencies { arms, control } = record.latencies()?;
    let ArmLatency { latency, plain, p99 } = (*arms.get(arm)?)?;
    let (p99, control) = (p99?, control?);
    let starts = p99.generations.min(control.generations);
    if p99.low <= 1.0 || (record.header.design == Design::Servers && starts < GENERATIONS_FOR_T) {
        return None;
    }
    let waits = format!(
        "99 of 100 requests are answered within {} instead of {}, {}",
        time(latency.p99),
        time(plain.p99),
        interval(&p99)
    );
    // The rules for throughput: see `measure::toggle`.
    let resolution = control.low.ln().abs().max(control.high.ln().abs());
    let is_disturbed = control.low > 1.0 || control.high < 1.0;
    Some(if is_disturbed || p99.centre.ln() <= resolution {
        format!("{waits}; that is not certain, since plain differs from itself by {}", interval(&control))
    } else {
        format!("latency is worse: {waits}")
    })
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
