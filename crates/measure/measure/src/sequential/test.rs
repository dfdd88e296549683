//! The limits at which a measurement ends.

use super::Signs;
use serde::{Deserialize, Serialize};

/// Limits at which a lift is kept or undone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// A lift is kept only if it gains more than this, as a share: memory and switches must be paid for.
    pub least_gain: f64,
    /// E-value against "the gain is at most `least_gain`" at which a lift is kept. A high one takes the place of a correction
    /// for many programs: of 2,000 programs, 0.2 % of the claims were false in a simulation.
    pub keep_at: f64,
    /// A gain of this share is worth more measuring; a smaller one is not.
    pub worthwhile_gain: f64,
    /// E-value against "the gain is at least `worthwhile_gain`" at which a lift is undone.
    pub put_back_at: f64,
    /// E-value against "the lift does no harm".
    pub harm_at: f64,
    /// E-value of the control on either side at which the measurement has no result.
    pub control_at: f64,
    /// Blocks of the lift after which it ends undecided.
    pub most_blocks: u32,
}

impl Default for Rule {
    fn default() -> Self {
        Self {
            least_gain: 0.005,
            keep_at: 400.0,
            worthwhile_gain: 0.015,
            put_back_at: 20.0,
            harm_at: 20.0,
            control_at: 20.0,
            most_blocks: 100,
        }
    }
}

/// The end of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decision {
    /// The lift gains more than the least gain.
    Keep,
    /// The lift gains less than the least gain.
    PutBack,
    /// The program is slower with the lift.
    Harm,
    /// The last block has been measured.
    Undecided,
    /// The control differs from itself: the machine or the load favours one side.
    ControlDiffers,
}

impl Decision {
    /// True if the program stays lifted.
    pub fn keeps(self) -> bool {
        self == Self::Keep
    }
}

/// One measurement, block by block.
#[derive(Clone, Debug)]
pub struct Test {
    rule: Rule,
    gains: Signs,
    no_gain: Signs,
    harms: Signs,
    control: [Signs; 2],
    values: Vec<f64>,
}

impl Test {
    /// A test without blocks.
    pub fn new(rule: Rule) -> Self {
        Self {
            rule,
            gains: Signs::default(),
            no_gain: Signs::default(),
            harms: Signs::default(),
            control: [Signs::default(); 2],
            values: Vec::new(),
        }
    }

    /// Adds a block of the lift: the logarithm of the ratio of the rates, lifted over plain. Returns the decision once there
    /// is one; no block should follow it.
    pub fn add(&mut self, value: f64) -> Option<Decision> {
        self.values.push(value);
        self.gains.count(value > self.rule.least_gain.ln_1p());
        self.no_gain.count(value < self.rule.worthwhile_gain.ln_1p());
        self.harms.count(value < 0.0);
        self.decision()
    }

    /// Adds a control block. Returns the decision if the control differs from itself.
    pub fn add_control(&mut self, value: f64) -> Option<Decision> {
        self.control[0].count(value > 0.0);
        self.control[1].count(value < 0.0);
        self.control_differs().then_some(Decision::ControlDiffers)
    }

    fn control_differs(&self) -> bool {
        self.control.iter().any(|signs| signs.reaches(self.rule.control_at))
    }

    fn decision(&self) -> Option<Decision> {
        if self.harms.reaches(self.rule.harm_at) {
            Some(Decision::Harm)
        } else if self.no_gain.reaches(self.rule.put_back_at) {
            Some(Decision::PutBack)
        } else if self.gains.reaches(self.rule.keep_at) {
            Some(Decision::Keep)
        } else {
            (self.gains.blocks >= self.rule.most_blocks).then_some(Decision::Undecided)
        }
    }

    /// The natural logarithm of the e-value against "the gain is at most the least gain".
    pub fn log_evidence(&self) -> f64 {
        self.gains.log_evidence()
    }

    /// Values of the blocks of the lift, in their order.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// Control blocks.
    pub fn controls(&self) -> u32 {
        self.control[0].blocks
    }
}

#[cfg(test)]
#[path = "simulation.rs"]
mod simulation;

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of equal blocks after which a decision is made, and the decision.
    fn decided(value: f64) -> (usize, Decision) {
        let mut test = Test::new(Rule::default());
        (1..).find_map(|number| test.add(value).map(|decision| (number, decision))).unwrap()
    }

    #[test]
    fn equal_blocks_decide_as_the_rule_says() {
        assert_eq!(decided(0.03), (12, Decision::Keep));
        assert_eq!(decided(0.01), (7, Decision::PutBack), "more than the least gain, but not worthwhile");
        assert_eq!(decided(0.0), (7, Decision::PutBack));
        assert_eq!(decided(-0.001), (7, Decision::Harm));
        assert!(Decision::Keep.keeps() && !Decision::Undecided.keeps());
    }

    #[test]
    fn blocks_on_both_sides_end_undecided() {
        let mut test = Test::new(Rule::default());
        for number in 1..=100 {
            let value = if number % 2 == 0 { 0.02 } else { 0.0 };
            assert_eq!(test.add(value), (number == 100).then_some(Decision::Undecided), "block {number}");
        }
        assert_eq!(test.values().len(), 100);
    }

    #[test]
    fn a_control_on_one_side_refuses_a_verdict() {
        for side in [0.01, -0.01] {
            let mut test = Test::new(Rule::default());
            let found = (1..).find_map(|number| test.add_control(side).map(|decision| (number, decision)));
            assert_eq!(found, Some((7, Decision::ControlDiffers)));
            assert_eq!(test.controls(), 7);
        }
        let mut equal = Test::new(Rule::default());
        assert!((0..100).all(|_| equal.add_control(0.0).is_none()), "equal windows are no difference");
    }
}
