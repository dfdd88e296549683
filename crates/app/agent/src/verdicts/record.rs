//! The measurements of one build of a program, and the conclusion from them.

use foreign_text::is_printable;
use measure::sequential::{Decision, ResultLine};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

pub(super) const DAY: u64 = 86_400;
/// Days for which a measurement counts in full, and then half.
const FULL_DAYS: u64 = 30;
const HALF_DAYS: u64 = 90;
/// Weight of measurements that a verdict needs.
const NEEDED: f64 = 3.0;
/// Boots, or machines, that a good verdict needs: places of pages in memory differ between boots by a percent.
const NEEDED_BOOTS: usize = 2;
/// Measurements kept for one key; the oldest go first.
pub(super) const MOST_MEASUREMENTS: usize = 24;
/// Longest text of a key, in bytes.
const LONGEST_TEXT: usize = 200;

/// The scope of a verdict. Any other text, for example a new kernel release, is another key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    /// Build ID of the executable.
    pub build: String,
    /// CPU model.
    pub cpu: String,
    /// Kernel release.
    pub kernel: String,
    /// Settings of transparent huge pages.
    pub thp: String,
    /// Options of the rule: kinds, pages.
    pub options: String,
}

impl Key {
    fn texts(&self) -> [&str; 5] {
        [&self.build, &self.cpu, &self.kernel, &self.thp, &self.options]
    }
}

/// The result of one measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// The decision at its end.
    pub decision: Decision,
    /// Boot ID of the machine.
    pub boot: String,
    /// Time of its end, in seconds since 1970.
    pub at: u64,
    /// Blocks that counted.
    pub blocks: u32,
    /// Natural logarithm of the e-value against a gain of at most the least gain.
    pub log_evidence: f64,
    /// Gain as a share: lower end of the interval, median, upper end. Absent if there were too few blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain: Option<[f64; 3]>,
}

impl Measurement {
    /// The result of a measurement that ended at a time in seconds since 1970.
    pub fn of(result: &ResultLine, boot: &str, at: u64) -> Self {
        let ResultLine { decision, blocks, log_evidence, gain, .. } = *result;
        Self { decision, boot: boot.to_owned(), at, blocks, log_evidence, gain }
    }

    /// 1 for 30 days, then ½ until 90 days, then 0. A time in the future counts as now: clocks are corrected.
    fn weight(&self, now: u64) -> f64 {
        match now.saturating_sub(self.at) / DAY {
            0..FULL_DAYS => 1.0,
            FULL_DAYS..HALF_DAYS => 0.5,
            _ => 0.0,
        }
    }
}

/// The verdict on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// Too few measurements.
    Unknown,
    /// A lift pays: programs are lifted without a measurement.
    Pays,
    /// A lift does not pay: programs are not lifted.
    DoesNotPay,
}

impl Standing {
    /// All verdicts.
    pub const ALL: [Self; 3] = [Self::Unknown, Self::Pays, Self::DoesNotPay];

    /// The word in metrics and in JSON.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Pays => "pays",
            Self::DoesNotPay => "does-not-pay",
        }
    }
}

/// A key with its measurements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VerdictRecord {
    /// The key.
    #[serde(flatten)]
    pub key: Key,
    /// Name of the executable, for people.
    pub program: String,
    /// Measurements, oldest first.
    pub measurements: Vec<Measurement>,
}

impl VerdictRecord {
    /// A record without measurements.
    pub fn new(key: Key, program: &str) -> Self {
        Self { key, program: program.to_owned(), measurements: Vec::new() }
    }

    /// The verdict at a time in seconds since 1970.
    ///
    /// Any harm, or three measurements that put the lift back, forbid lifts; three that kept it, of two boots or machines,
    /// permit lifts without a measurement.
    pub fn standing(&self, now: u64) -> Standing {
        let counted = || self.counted(now);
        let weight = |wanted: Decision| -> f64 {
            counted().filter(|found| found.decision == wanted).map(|found| found.weight(now)).sum()
        };
        if weight(Decision::Harm) > 0.0 || weight(Decision::PutBack) >= NEEDED {
            return Standing::DoesNotPay;
        }
        let boots: BTreeSet<&str> =
            counted().filter(|found| found.decision.keeps()).map(|found| found.boot.as_str()).collect();
        if weight(Decision::Keep) >= NEEDED && boots.len() >= NEEDED_BOOTS { Standing::Pays } else { Standing::Unknown }
    }

    /// The measurements that still count.
    pub(super) fn counted(&self, now: u64) -> impl Iterator<Item = &Measurement> {
        self.measurements.iter().filter(move |measurement| measurement.weight(now) > 0.0)
    }

    /// True if any measurement still counts.
    pub fn counts(&self, now: u64) -> bool {
        self.counted(now).next().is_some()
    }

    /// The interval of the gain over processes, as a share: the least of the lower ends, the mean of the medians, the
    /// greatest of the upper ends. Processes differ in the places of their pages, so the interval is wide enough for
    /// all.
    pub fn gain(&self, now: u64) -> Option<[f64; 3]> {
        let gains: Vec<[f64; 3]> = self.counted(now).filter_map(|found| found.gain).collect();
        let of = |end: usize| gains.iter().map(move |gain| gain[end]);
        let middle = of(1).sum::<f64>() / gains.len().max(1) as f64;
        Some([of(0).reduce(f64::min)?, middle, of(2).reduce(f64::max)?])
    }

    /// Adds a measurement, and drops the oldest if there are too many. A measurement that is there already is not added again.
    pub fn add(&mut self, measurement: Measurement, now: u64) {
        if !self.measurements.contains(&measurement) {
            self.measurements.push(measurement);
        }
        self.drop_surplus(now);
    }

    /// Drops measurements above the limit. Measurements that no longer count stay below it: a clock that is far ahead for a moment
    /// must not delete them.
    fn drop_surplus(&mut self, now: u64) {
        self.measurements.sort_by_key(|measurement| measurement.at);
        // A harm forbids lifts as long as it counts, however often the program is measured afterwards.
        while self.measurements.len() > MOST_MEASUREMENTS {
            let is_harm = |found: &Measurement| found.decision == Decision::Harm;
            let is_over = |found: &Measurement| found.weight(now) == 0.0;
            let oldest = |may_go: &dyn Fn(&Measurement) -> bool| self.measurements.iter().position(may_go);
            // Measurements that do not count go first, and a harm after the others: with a wrong clock no measurement counts.
            let surplus = oldest(&|found| is_over(found) && !is_harm(found))
                .or_else(|| oldest(&|found| is_over(found) || !is_harm(found)));
            self.measurements.remove(surplus.unwrap_or(0));
        }
    }

    /// Time of the last measurement.
    pub(super) fn last(&self) -> u64 {
        self.measurements.iter().map(|measurement| measurement.at).max().unwrap_or(0)
    }

    /// The first error in a record from a file.
    pub(super) fn problem(&self) -> Option<String> {
        let boots = self.measurements.iter().map(|measurement| measurement.boot.as_str());
        let texts = self.key.texts().into_iter().chain([self.program.as_str()]).chain(boots);
        for text in texts {
            if text.len() > LONGEST_TEXT || !is_printable(text) {
                return Some(format!("a text is longer than {LONGEST_TEXT} bytes or is not printable"));
            }
        }
        if self.measurements.len() > MOST_MEASUREMENTS {
            return Some(format!(
                "found {} measurements; needed: at most {MOST_MEASUREMENTS}",
                self.measurements.len()
            ));
        }
        let is_sound = |gain: &[f64; 3]| gain.iter().all(|share| (-1.0..=1e3).contains(share)) && gain.is_sorted();
        let is_wrong = |found: &&Measurement| {
            !found.log_evidence.is_finite() || found.gain.as_ref().is_some_and(|gain| !is_sound(gain))
        };
        self.measurements.iter().any(|found| is_wrong(&found)).then(|| "a figure is out of range".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn key(build: &str) -> Key {
        let text = |text: &str| text.to_owned();
        Key { build: text(build), cpu: text("c"), kernel: text("6.18"), thp: text("madvise"), options: text("text") }
    }

    fn record(measurements: &[(Decision, &str, u64)]) -> VerdictRecord {
        let mut record = VerdictRecord::new(key("b"), "server");
        for (number, &(decision, boot, day)) in measurements.iter().enumerate() {
            let at = day * DAY + number as u64;
            let gain = Some([0.01, 0.02, 0.03 + number as f64]);
            record.add(Measurement { decision, boot: boot.to_owned(), at, blocks: 12, log_evidence: 6.0, gain }, at);
        }
        record
    }

    use Decision::{Harm, Keep, PutBack, Undecided};

    #[test]
    fn three_keeps_of_two_boots_pay() {
        let standing = |measurements: &[_]| record(measurements).standing(100 * DAY + 10);
        assert_eq!(standing(&[(Keep, "a", 100), (Keep, "b", 100)]), Standing::Unknown);
        assert_eq!(standing(&[(Keep, "a", 100); 3]), Standing::Unknown, "one boot");
        assert_eq!(standing(&[(Keep, "a", 100), (Keep, "a", 100), (Keep, "b", 100)]), Standing::Pays);
        let with_harm = [(Keep, "a", 100), (Keep, "a", 100), (Keep, "b", 100), (Harm, "b", 100)];
        assert_eq!(standing(&with_harm), Standing::DoesNotPay);
        assert_eq!(standing(&[(PutBack, "a", 100); 2]), Standing::Unknown);
        assert_eq!(standing(&[(PutBack, "a", 100); 3]), Standing::DoesNotPay);
        assert_eq!(standing(&[(Undecided, "a", 100); 9]), Standing::Unknown);
    }

    #[test]
    fn measurements_count_half_after_a_month_and_are_gone_after_three() {
        let keeps: Vec<_> = (0..4).map(|number| (Keep, if number % 2 == 0 { "a" } else { "b" }, 100)).collect();
        let at = |day: u64| record(&keeps).standing(day * DAY);
        assert_eq!([at(101), at(129), at(131)], [Standing::Pays, Standing::Pays, Standing::Unknown]);
        let six: Vec<_> = keeps.iter().chain(&keeps).copied().collect();
        assert_eq!(record(&six).standing(131 * DAY), Standing::Pays, "eight halves are four");
        assert_eq!(record(&six).standing(191 * DAY), Standing::Unknown);
        let harm = record(&[(Harm, "a", 100)]);
        assert_eq!([harm.standing(189 * DAY), harm.standing(191 * DAY)], [Standing::DoesNotPay, Standing::Unknown]);
        assert_eq!(harm.standing(0), Standing::DoesNotPay, "a clock that was set back");
    }

    #[test]
    fn a_harm_is_not_pushed_out() {
        let mut many = record(&[(Harm, "a", 100)]);
        for number in 0..MOST_MEASUREMENTS as u64 * 2 {
            many.add(
                record(&[(Keep, if number % 2 == 0 { "a" } else { "b" }, 101 + number % 5)]).measurements[0].clone(),
                107 * DAY,
            );
            let last = many.measurements.last().unwrap().clone();
            many.add(Measurement { at: last.at + number, ..last }, 107 * DAY);
        }
        assert_eq!((many.measurements.len(), many.standing(107 * DAY)), (MOST_MEASUREMENTS, Standing::DoesNotPay));
    }

    #[test]
    fn the_interval_covers_that_of_each_process() {
        let gain = record(&[(Keep, "a", 100), (Keep, "b", 100)]).gain(101 * DAY).unwrap();
        assert_eq!(gain, [0.01, 0.02, 1.03]);
        assert_eq!(record(&[]).gain(0), None);
    }

    #[test]
    fn surplus_measurements_are_dropped() {
        let mut many = record(&[(Keep, "a", 100); MOST_MEASUREMENTS + 5]);
        assert_eq!(many.measurements.len(), MOST_MEASUREMENTS);
        assert_eq!(many.measurements[0].at, 100 * DAY + 5);
        let again = many.measurements[3].clone();
        many.add(again, 101 * DAY);
        assert_eq!(many.measurements.len(), MOST_MEASUREMENTS, "an import of the same measurement");
    }

    /// A clock that was far ahead for a moment deleted all verdicts.
    #[test]
    fn a_clock_that_is_ahead_for_a_moment_deletes_nothing() {
        let mut harm = record(&[(Harm, "a", 100)]);
        let keeps = record(&[(Keep, "a", 101); MOST_MEASUREMENTS - 2]);
        keeps.measurements.into_iter().for_each(|keep| harm.add(keep, 101 * DAY));
        let ahead = Measurement { at: 9_000 * DAY, ..record(&[(Keep, "b", 1)]).measurements[0].clone() };
        harm.add(ahead, 9_000 * DAY);
        assert_eq!((harm.measurements.len(), harm.standing(9_000 * DAY)), (MOST_MEASUREMENTS, Standing::Unknown));
        assert_eq!(harm.standing(102 * DAY), Standing::DoesNotPay, "the clock was set back");
        // A full record.
        let ahead = Measurement { at: 9_001 * DAY, ..harm.measurements[MOST_MEASUREMENTS - 1].clone() };
        harm.add(ahead, 9_001 * DAY);
        assert_eq!(harm.measurements.len(), MOST_MEASUREMENTS);
        assert_eq!(harm.standing(102 * DAY), Standing::DoesNotPay, "a harm is not deleted before others");
    }

    /// Old harms would otherwise fill the record for good.
    #[test]
    fn harms_that_no_longer_count_are_dropped_first() {
        let mut many = record(&[(Harm, "a", 100); MOST_MEASUREMENTS]);
        record(&[(Keep, "a", 300), (Keep, "b", 300), (Keep, "a", 300)])
            .measurements
            .into_iter()
            .for_each(|keep| many.add(keep, 300 * DAY));
        assert_eq!((many.measurements.len(), many.standing(300 * DAY)), (MOST_MEASUREMENTS, Standing::Pays));
    }
}
