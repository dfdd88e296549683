//! The measurements of one build in short.

use super::record::{Key, Standing, VerdictRecord};
use super::store::Store;
use measure::sequential::Decision;
use std::fmt;

/// The verdict on a build, and the measurements behind it.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// The verdict.
    pub standing: Standing,
    /// Measurements that kept the lift.
    pub kept: u32,
    /// Measurements that found too little gain.
    pub put_back: u32,
    /// Measurements that found harm.
    pub harms: u32,
    /// Measurements without a decision.
    pub undecided: u32,
    /// Measurements on this machine since its last boot.
    pub here: u32,
    /// Gain as a share: lower end of the interval, middle, upper end.
    pub gain: Option<[f64; 3]>,
}

impl Default for Summary {
    fn default() -> Self {
        let standing = Standing::Unknown;
        Self { standing, kept: 0, put_back: 0, harms: 0, undecided: 0, here: 0, gain: None }
    }
}

impl Summary {
    /// The summary of the first key with a verdict; of the last key if none has one.
    pub fn of_keys(store: &Store, keys: impl IntoIterator<Item = Key>, boot: &str, now: u64) -> Self {
        let mut found = Self::default();
        for key in keys {
            found = store.record(&key).map_or_else(Self::default, |record| Self::of(record, boot, now));
            if found.standing != Standing::Unknown {
                break;
            }
        }
        found
    }

    /// The summary of a record at a time in seconds since 1970, on the machine with this boot ID.
    pub fn of(record: &VerdictRecord, boot: &str, now: u64) -> Self {
        let number = |wanted: &[Decision]| {
            let found = record.counted(now).filter(|found| wanted.contains(&found.decision));
            u32::try_from(found.count()).unwrap_or(u32::MAX)
        };
        let here = record.counted(now).filter(|found| found.boot == boot).count();
        Self {
            standing: record.standing(now),
            kept: number(&[Decision::Keep]),
            put_back: number(&[Decision::PutBack]),
            harms: number(&[Decision::Harm]),
            undecided: number(&[Decision::Undecided, Decision::ControlDiffers]),
            here: u32::try_from(here).unwrap_or(u32::MAX),
            gain: record.gain(now),
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.standing {
            Standing::Unknown => "not known yet whether a lift pays",
            Standing::Pays => "a lift pays",
            Standing::DoesNotPay => "a lift does not pay",
        };
        let number = self.kept + self.put_back + self.harms + self.undecided;
        if number == 0 {
            return write!(f, "{verdict}: its build has not been measured here");
        }
        let plural = if number == 1 { "" } else { "s" };
        write!(f, "{verdict}: {number} measurement{plural}")?;
        let parts = [("kept it", self.kept), ("found too little gain", self.put_back), ("found harm", self.harms)];
        let parts = parts.into_iter().chain([("undecided", self.undecided)]).filter(|(_, number)| *number > 0);
        let parts: Vec<_> = parts.map(|(what, number)| format!("{number} {what}")).collect();
        write!(f, " ({})", parts.join(", "))?;
        self.gain.map_or(Ok(()), |gain| write!(f, ", gain {}", gain_text(gain)))
    }
}

/// An interval in percent: `+2.1 % (+0.9 to +3.3)`.
pub fn gain_text([low, middle, high]: [f64; 3]) -> String {
    let [low, middle, high] = [low, middle, high].map(|share| share * 100.0);
    format!("{middle:+.1} % ({low:+.1} to {high:+.1})")
}

/// A decision as a part of a sentence.
pub fn decision_text(decision: Decision) -> &'static str {
    match decision {
        Decision::Keep => "the lift pays",
        Decision::PutBack => "the lift gains too little",
        Decision::Harm => "the program is slower with the lift",
        Decision::Undecided => "undecided",
        Decision::ControlDiffers => "undecided: plain differs from itself",
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{Key, Measurement};
    use super::*;

    fn record(decisions: &[(Decision, &str)]) -> VerdictRecord {
        let text = |text: &str| text.to_owned();
        let key = Key { build: text("b"), cpu: text("c"), kernel: text("k"), thp: text("t"), options: text("o") };
        let mut record = VerdictRecord::new(key, "server");
        record.measurements = decisions
            .iter()
            .map(|&(decision, boot)| Measurement {
                decision,
                boot: text(boot),
                at: 1000,
                blocks: 9,
                log_evidence: 3.0,
                gain: Some([-0.02, -0.01, 0.0]),
            })
            .collect();
        record
    }

    #[test]
    fn a_summary_counts_by_decision_and_boot() {
        use Decision::{ControlDiffers, Harm, Keep, PutBack};
        let record = record(&[(Keep, "a"), (PutBack, "a"), (PutBack, "b"), (ControlDiffers, "b"), (Harm, "b")]);
        let summary = Summary::of(&record, "b", 1000);
        assert_eq!((summary.here, summary.kept, summary.put_back), (3, 1, 2));
        assert_eq!(
            summary.to_string(),
            "a lift does not pay: 5 measurements (1 kept it, 2 found too little gain, 1 found harm, 1 undecided), \
             gain -1.0 % (-2.0 to +0.0)"
        );
        let later = Summary::of(&record, "b", 1000 + 200 * 86_400);
        assert_eq!(later, Summary::default(), "what no longer counts is not shown");
        assert_eq!(later.to_string(), "not known yet whether a lift pays: its build has not been measured here");
    }
}
