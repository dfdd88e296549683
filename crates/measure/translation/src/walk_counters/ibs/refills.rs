//! The summary of samples of translations. Pure.

use super::decoding::{Refill, Translation};
use crate::walk_counters::{Counts, Measured, What};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Page walks among the samples that are required for their mean.
pub const LEAST_WALKS: u64 = 30;
/// Standard errors on each side of a mean that make its interval at 95 %.
const NORMAL_95: f64 = 1.96;

/// Duration of page walks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// Page walks that were sampled.
    pub samples: u64,
    /// Their mean, in core cycles.
    pub cycles: f64,
    /// Half of the mean's interval at 95 %, in core cycles.
    pub margin: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    count: u64,
    cycles: u64,
    squares: u64,
}

impl Sum {
    fn add(&mut self, cycles: u16) {
        let cycles = u64::from(cycles);
        self.count += 1;
        self.cycles = self.cycles.saturating_add(cycles);
        self.squares = self.squares.saturating_add(cycles * cycles);
    }

    fn since(self, before: Self) -> Self {
        Self {
            count: self.count.saturating_sub(before.count),
            cycles: self.cycles.saturating_sub(before.cycles),
            squares: self.squares.saturating_sub(before.squares),
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            count: self.count.saturating_add(other.count),
            cycles: self.cycles.saturating_add(other.cycles),
            squares: self.squares.saturating_add(other.squares),
        }
    }

    fn latency(&self) -> Option<Latency> {
        if self.count < LEAST_WALKS {
            return None;
        }
        let count = self.count as f64;
        let mean = self.cycles as f64 / count;
        let variance = ((self.squares as f64 - count * mean * mean) / (count - 1.0)).max(0.0);
        Some(Latency { samples: self.count, cycles: mean, margin: NORMAL_95 * (variance / count).sqrt() })
    }
}

/// Samples of code, or of data.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    records: u64,
    hidden: u64,
    walks: Sum,
    by_page: BTreeMap<What, Sum>,
}

impl Tally {
    pub fn add(&mut self, translation: Translation) {
        self.records += 1;
        match translation {
            Translation::None | Translation::L1Hit | Translation::L2Hit(_) => {}
            Translation::Hidden => self.hidden += 1,
            Translation::Walk(Refill { cycles, page }) => {
                self.walks.add(cycles);
                if let Some(page) = page {
                    self.by_page.entry(page).or_default().add(cycles);
                }
            }
        }
    }

    /// Combines each number with the other tally's.
    fn with(&self, other: &Self, numbers: fn(u64, u64) -> u64, sums: fn(Sum, Sum) -> Sum) -> Self {
        let of = |tally: &Self, page| tally.by_page.get(page).copied().unwrap_or_default();
        let pages: BTreeSet<What> = self.by_page.keys().chain(other.by_page.keys()).copied().collect();
        Self {
            records: numbers(self.records, other.records),
            hidden: numbers(self.hidden, other.hidden),
            walks: sums(self.walks, other.walks),
            by_page: pages.iter().map(|page| (*page, sums(of(self, page), of(other, page)))).collect(),
        }
    }

    pub fn refills(&self) -> Refills {
        let by_page = self.by_page.iter().filter_map(|(&page, sum)| Some((page, sum.latency()?))).collect();
        let Self { records, hidden, walks, .. } = self;
        let walk = walks.latency().ok_or_else(|| match *hidden > LEAST_WALKS.max(walks.count) {
            true => format!(
                "of {records} IBS samples {hidden} do not report how the address was translated; needed: root on Zen 5 with Linux \
                 6.15 to 7.0, which hide it from others"
            ),
            false => format!(
                "{} of {records} IBS samples are page walks; needed: {LEAST_WALKS}; fix: a longer --for, or it seldom walks",
                walks.count
            ),
        });
        Refills { records: *records, walk, by_page }
    }
}

/// The results for code, or for data.
#[derive(Clone, Debug, PartialEq)]
pub struct Refills {
    /// Samples of all kinds.
    pub records: u64,
    /// Page walks, or the reason why there is no result.
    pub walk: Result<Latency, String>,
    /// By page size, if the CPU reports it and enough were sampled.
    pub by_page: Vec<(What, Latency)>,
}

impl Refills {
    /// Nothing, for this reason.
    pub(super) fn none(why: String) -> Self {
        Self { records: 0, walk: Err(why), by_page: Vec::new() }
    }
}

/// The time of page walks: the mean of the samples, times the count.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WalkTime {
    /// The duration of a walk.
    pub walk: Latency,
    /// By page size, if known.
    pub by_page: Vec<(What, Latency)>,
    /// Cycles of all walks over all cycles. Walks overlap with other work and with each other: at most so much.
    pub share: f64,
    /// Half of its interval at 95 %; of the sampled latency only.
    pub margin: f64,
}

/// An estimate, or why there is none.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Estimate {
    /// From samples of IBS.
    FromSamples(WalkTime),
    /// Why there is none.
    NotEstimated(String),
}

impl Estimate {
    fn of(refills: &Refills, walks: Measured, cycles: &Measured) -> Self {
        let walk = match &refills.walk {
            Ok(walk) => *walk,
            Err(why) => return Self::NotEstimated(why.clone()),
        };
        let (walks, cycles) = match (walks, cycles) {
            (Measured::Value(walks), Measured::Value(cycles)) => (walks, *cycles),
            (Measured::NotCounted(why), _) => return Self::NotEstimated(why),
            (_, Measured::NotCounted(why)) => return Self::NotEstimated(why.clone()),
        };
        if cycles <= 0.0 {
            return Self::NotEstimated("no cycles at all".to_owned());
        }
        let per_cycle = walks / cycles;
        let by_page = refills.by_page.clone();
        Self::FromSamples(WalkTime { walk, by_page, share: per_cycle * walk.cycles, margin: per_cycle * walk.margin })
    }
}

/// Samples that were taken until some moment, or why there are none.
#[derive(Clone, Debug)]
pub struct Samples {
    pub(super) code: Result<Tally, String>,
    pub(super) data: Result<Tally, String>,
}

impl Samples {
    fn with(&self, other: &Self, both: impl Fn(&Tally, &Tally) -> Tally) -> Self {
        let of = |one: &Result<Tally, String>, other: &Result<Tally, String>| match (one, other) {
            (Ok(one), Ok(other)) => Ok(both(one, other)),
            (Err(why), _) | (_, Err(why)) => Err(why.clone()),
        };
        Self { code: of(&self.code, &other.code), data: of(&self.data, &other.data) }
    }

    /// Those since an earlier moment.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        self.with(before, |now, before| now.with(before, u64::saturating_sub, Sum::since))
    }

    /// Those of both.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.with(other, |one, other| one.with(other, u64::saturating_add, Sum::plus))
    }

    /// Their result for page walks that were counted at the same time.
    pub fn of(&self, counts: &Counts) -> SampledWalks {
        let refills = |tally: &Result<Tally, String>| match tally {
            Ok(tally) => tally.refills(),
            Err(why) => Refills::none(why.clone()),
        };
        SampledWalks::of(&refills(&self.code), &refills(&self.data), counts)
    }
}

/// The time of page walks of code and of data.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SampledWalks {
    /// Instruction fetches.
    pub code: Estimate,
    /// Loads and stores.
    pub data: Estimate,
}

impl SampledWalks {
    /// Estimates walks from counts and samples of the same time.
    pub fn of(code: &Refills, data: &Refills, counts: &Counts) -> Self {
        let cycles = counts.all_cycles();
        Self {
            code: Estimate::of(code, counts.walks_of_code(), &cycles),
            data: Estimate::of(data, counts.walks_of_data(), &cycles),
        }
    }

    /// Each figure with its name. Shares are in percent.
    pub fn figures(&self) -> Vec<(String, Measured)> {
        let figures = |side: &str, estimate: &Estimate| {
            let of = |value: fn(&WalkTime) -> f64| match estimate {
                Estimate::FromSamples(time) => Measured::Value(value(time)),
                Estimate::NotEstimated(why) => Measured::NotCounted(why.clone()),
            };
            [
                ("cycles in page walks at most, estimated from IBS samples, %", of(|time| 100.0 * time.share)),
                ("half of its interval at 95 %, %", of(|time| 100.0 * time.margin)),
                ("cycles of a page walk, estimated from IBS samples", of(|time| time.walk.cycles)),
            ]
            .map(|(what, value)| (format!("{side}: {what}"), value))
        };
        [figures("code", &self.code), figures("data", &self.data)].concat()
    }
}

#[cfg(test)]
mod tests;
