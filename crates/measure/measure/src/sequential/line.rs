//! The report of a measurement: one JSON document a line.

use super::{Decision, Rule, Test, median_interval};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Line {
    /// A block that counted.
    Block(BlockLine),
    /// A block that was dropped.
    Dropped(DroppedLine),
    /// The end, with the decision.
    Result(ResultLine),
    /// The end without one: the reason.
    Failed(String),
}

/// A block that counted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockLine {
    /// Plain was compared with plain.
    pub is_control: bool,
    /// Logarithm of the ratio of the rates.
    pub value: f64,
    /// Natural logarithm of the e-value against a gain of at most the least gain, with this block.
    pub log_evidence: f64,
    /// Longest pause of the program by a lift so far, in microseconds.
    #[serde(default)]
    pub longest_pause_microseconds: u64,
    /// Sum of the pauses of the program so far, in microseconds.
    #[serde(default)]
    pub paused_microseconds: u64,
}

/// A block that was dropped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DroppedLine {
    /// Plain was compared with plain.
    pub is_control: bool,
    /// Why it was dropped.
    pub reason: String,
    /// Longest pause of the program by a lift so far, in microseconds.
    #[serde(default)]
    pub longest_pause_microseconds: u64,
    /// Sum of the pauses of the program so far, in microseconds.
    #[serde(default)]
    pub paused_microseconds: u64,
}

impl Line {
    /// The line of a block, with the longest pause of the program by a lift so far, and their sum. Other lines have no pause.
    #[must_use]
    pub fn with_pauses(mut self, longest: Duration, total: Duration) -> Self {
        let microseconds = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let (longest_of, sum_of) = match &mut self {
            Self::Block(block) => (&mut block.longest_pause_microseconds, &mut block.paused_microseconds),
            Self::Dropped(dropped) => (&mut dropped.longest_pause_microseconds, &mut dropped.paused_microseconds),
            Self::Result(_) | Self::Failed(_) => return self,
        };
        (*longest_of, *sum_of) = (microseconds(longest), microseconds(total));
        self
    }
}

/// The decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResultLine {
    /// The decision. The program is plain, also if the lift is to be kept.
    pub decision: Decision,
    /// Blocks of the lift that counted.
    pub blocks: u32,
    /// Control blocks that counted.
    pub controls: u32,
    /// Blocks that were dropped.
    pub dropped: u32,
    /// Natural logarithm of the e-value against a gain of at most the least gain.
    pub log_evidence: f64,
    /// Gain as a share: lower end of the interval, median, upper end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain: Option<[f64; 3]>,
    /// Name of a unit of work.
    pub unit: String,
}

/// Dropped blocks in a row after which a measurement ends undecided.
const MOST_DROPPED: u32 = 20;

/// Makes the lines of one measurement, and its decision.
#[derive(Clone, Debug)]
pub struct Measuring {
    test: Test,
    dropped: u32,
    dropped_in_a_row: u32,
    decision: Option<Decision>,
}

impl Measuring {
    /// A measurement without blocks.
    pub fn new(rule: Rule) -> Self {
        Self { test: Test::new(rule), dropped: 0, dropped_in_a_row: 0, decision: None }
    }

    /// Adds a block that counts.
    pub fn add(&mut self, is_control: bool, value: f64) -> Line {
        self.dropped_in_a_row = 0;
        let decision = if is_control { self.test.add_control(value) } else { self.test.add(value) };
        self.decision = self.decision.or(decision);
        let log_evidence = self.test.log_evidence();
        Line::Block(BlockLine {
            is_control,
            value,
            log_evidence,
            longest_pause_microseconds: 0,
            paused_microseconds: 0,
        })
    }

    /// Adds a block that was dropped.
    pub fn drop_block(&mut self, is_control: bool, reason: &str) -> Line {
        self.dropped += 1;
        self.dropped_in_a_row += 1;
        if self.dropped_in_a_row >= MOST_DROPPED {
            self.decision = self.decision.or(Some(Decision::Undecided));
        }
        Line::Dropped(DroppedLine {
            is_control,
            reason: reason.to_owned(),
            longest_pause_microseconds: 0,
            paused_microseconds: 0,
        })
    }

    /// True once there is a decision.
    pub fn is_decided(&self) -> bool {
        self.decision.is_some()
    }

    /// The last line. A measurement that was ended early is undecided.
    pub fn result(&self, unit: &str) -> ResultLine {
        let interval = median_interval(self.test.values());
        ResultLine {
            decision: self.decision.unwrap_or(Decision::Undecided),
            blocks: self.test.values().len() as u32,
            controls: self.test.controls(),
            dropped: self.dropped,
            log_evidence: self.test.log_evidence(),
            gain: interval.map(|interval| [interval.low, interval.middle, interval.high].map(f64::exp_m1)),
            unit: unit.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_with_the_decision() {
        let mut measuring = Measuring::new(Rule::default());
        measuring.drop_block(true, "steal");
        while !measuring.is_decided() {
            measuring.add(false, 0.03);
        }
        let result = measuring.result("system calls");
        assert_eq!((result.decision, result.blocks, result.dropped), (Decision::Keep, 12, 1));
        assert!(result.gain.is_some_and(|gain| gain.iter().all(|share| (share - 0.030_454).abs() < 1e-5)));
        let line = Line::Result(result);
        let text = serde_json::to_string(&line).unwrap();
        assert!(text.starts_with("{\"result\":{\"decision\":\"keep\",\"blocks\":12,"), "{text}");
        assert_eq!(serde_json::from_str::<Line>(&text).unwrap(), line);
    }

    #[test]
    fn a_block_has_the_pauses() {
        let (longest, total) = (Duration::from_millis(3), Duration::from_millis(9));
        let line = Measuring::new(Rule::default()).add(false, 0.1).with_pauses(longest, total);
        let text = serde_json::to_string(&line).unwrap();
        let pauses = ",\"longest_pause_microseconds\":3000,\"paused_microseconds\":9000";
        assert!(text.contains(pauses), "{text}");
        let earlier = text.replace(pauses, "");
        assert_eq!(serde_json::from_str::<Line>(&earlier).unwrap(), line.with_pauses(Duration::ZERO, Duration::ZERO));
    }

    #[test]
    fn a_machine_that_is_never_quiet_ends_undecided() {
        let mut measuring = Measuring::new(Rule::default());
        let lines = (1..).find(|_| {
            measuring.drop_block(false, "steal");
            measuring.is_decided()
        });
        assert_eq!((lines, measuring.result("x").decision), (Some(20), Decision::Undecided));
    }
}
