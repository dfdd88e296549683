//! The consequences of the times for a program. Pure.

use crate::tlb_probe::Backing;
use crate::tlb_probe::curve::BEYOND;
use crate::tlb_probe::measured::MeasuredSizes;
use crate::tlb_probe::series::Series;
use serde::Serialize;

/// Page entries that any second-level TLB of the last ten years holds.
const FEW_ENTRIES: u64 = 512;
/// The most base pages in an entry that is likely: AMD's CPUs and some of Arm's join four.
const JOINED: u64 = 4;
/// A reach in bytes that most CPUs do not exceed: 4,096 entries, each for four pages of 4 KiB.
const USUAL_REACH: u64 = 64 << 20;

/// The time that huge pages save here.
#[derive(Clone, Debug, Serialize)]
pub struct ProbeVerdict {
    /// The huge pages it is about.
    pub backing: Backing,
    /// The footprint at which data was compared, in bytes, and both translations in ns, base pages first.
    pub data: Compared,
    /// Code, compared in the same way at its own footprint; absent if it was not measured.
    pub code: Option<Compared>,
    /// True if a footprint of few huge pages, which any TLB holds, still costs page walks: the hypervisor backs this
    /// machine's memory by smaller pages than its guest uses. False if it costs none. Absent if not even base pages
    /// walk at the compared footprint: huge pages without walks then prove nothing.
    pub splintered: Option<bool>,
    /// If that is absent, the footprint in bytes that is likely to show it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needed: Option<u64>,
    /// True if the CPU reports that it is virtual.
    pub virtual_machine: Option<bool>,
}

/// Two page sizes at one footprint.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Bytes.
    pub footprint: u64,
    /// ns of one access with base pages.
    pub base: f64,
    /// ns of one access with huge pages.
    pub huge: f64,
    /// The least and the most with base pages, in all passes.
    pub bases: (f64, f64),
    /// The least and the most with huge pages.
    pub huges: (f64, f64),
    /// The least and the most of the share that huge pages save, 0 to 1; absent if base pages cost nothing, and after one pass.
    pub shares: Option<(f64, f64)>,
    /// Number of passes in these ranges.
    pub passes: usize,
}

/// Shares that differ by more are no result.
const STABLE: f64 = 0.1;

impl Compared {
    /// The times of one pass.
    pub fn new(footprint: u64, base: f64, huge: f64) -> Self {
        Self { footprint, base, huge, bases: (base, base), huges: (huge, huge), shares: None, passes: 1 }
    }

    /// Adds the ranges of all passes that ended at the same footprint.
    pub(crate) fn over(self, passes: &[Self]) -> Self {
        let same = || passes.iter().filter(|pass| pass.footprint == self.footprint);
        let range = |of: fn(&Self) -> f64| {
            same().map(of).fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), time| (low.min(time), high.max(time)))
        };
        let share = |pass: &Self| (1.0 - pass.huge / pass.base).clamp(0.0, 1.0);
        let has_share = same().count() > 1 && same().all(|pass| pass.base > 0.0);
        Self {
            bases: range(|pass| pass.base),
            huges: range(|pass| pass.huge),
            shares: has_share.then(|| range(share)),
            passes: same().count(),
            ..self
        }
    }

    /// The share of the translation that huge pages save, at least and at most; absent if the passes differ.
    pub fn saved(&self) -> Option<(f64, f64)> {
        self.shares.filter(|(low, high)| high - low <= STABLE)
    }
}

impl ProbeVerdict {
    /// From the times of loads and of code; `entries` is the number for base pages of data in the TLB's last level, if
    /// known. `None` if base pages or huge pages could not be measured.
    pub fn of(
        data: &MeasuredSizes,
        code: &MeasuredSizes,
        virtual_machine: Option<bool>,
        entries: Option<u64>,
    ) -> Option<Self> {
        let (base, huge) = pair(data)?;
        let compared = compare(base, huge)?;
        let code = pair(code).and_then(|(base, huge)| compare(base, huge));
        let splintered = is_splintered(base, huge, compared.footprint);
        let needed = splintered.is_none().then(|| needed(base, compared.footprint, entries));
        Some(Self { backing: huge.backing, data: compared, code, splintered, needed, virtual_machine })
    }
}

fn pair(measured: &MeasuredSizes) -> Option<(&Series, &Series)> {
    let base = measured.base()?;
    let huge = measured.series.iter().filter(|series| series.backing != Backing::Base);
    Some((base, huge.min_by_key(|series| series.backing.page().bytes())?))
}

/// At the largest footprint that both have.
fn compare(base: &Series, huge: &Series) -> Option<Compared> {
    let largest = |series: &Series| series.curve.points.last().map(|point| point.footprint);
    let footprint = largest(base)?.min(largest(huge)?);
    let at = |series: &Series| series.curve.translation_at(footprint);
    Some(Compared::new(footprint, at(base)?, at(huge)?))
}

/// True if a footprint of [`FEW_ENTRIES`] huge pages costs clearly more than a hit in the second level; `None` unless
/// base pages walk at `footprint`, the largest measured for both.
fn is_splintered(base: &Series, huge: &Series, footprint: u64) -> Option<bool> {
    let (hit, reach) = (base.levels.second_hit?, base.levels.second_reach?);
    if base.levels.walk.is_none() || footprint < reach.saturating_mul(BEYOND) {
        return None;
    }
    let page = huge.backing.page().bytes();
    let held = huge.curve.translation_at(page.saturating_mul(FEW_ENTRIES)).unwrap_or(0.0);
    Some(held > 2.0 * hit + huge.curve.resolution())
}

/// The footprint in bytes at which base pages are likely to walk: from the measured reach, otherwise from the entries,
/// each of which may hold several pages; larger than `footprint`, which was not enough.
fn needed(base: &Series, footprint: u64, entries: Option<u64>) -> u64 {
    let page = base.backing.page().bytes();
    let by_entries = || entries.map(|entries| entries.saturating_mul(page).saturating_mul(JOINED));
    let reach = base.levels.second_reach.or_else(by_entries).unwrap_or(USUAL_REACH);
    let needed = reach.saturating_mul(BEYOND).max(footprint.saturating_add(1));
    needed.checked_next_power_of_two().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tlb_probe::curve::{Curve, Point};
    use address_space::PageSize;

    fn series(backing: Backing, times: &[(u64, f64)]) -> Series {
        let point = |&(footprint, time): &(u64, f64)| Point {
            slots: (footprint / 4096) as usize,
            footprint,
            access: time,
            translation: time,
            quartiles: (time, time),
        };
        let curve = Curve { points: times.iter().map(point).collect() };
        Series::new(backing, curve)
    }

    /// Base pages that walk at the end.
    const BASE: [(u64, f64); 6] =
        [(1 << 16, 0.0), (1 << 18, 0.0), (1 << 19, 3.0), (1 << 21, 3.0), (1 << 23, 3.0), (1 << 27, 40.0)];

    fn measured(huge: &[(u64, f64)]) -> MeasuredSizes {
        both(&BASE, huge)
    }

    fn both(base: &[(u64, f64)], huge: &[(u64, f64)]) -> MeasuredSizes {
        let thp = Backing::Transparent(PageSize::new(2 << 20).unwrap());
        MeasuredSizes { series: vec![series(Backing::Base, base), series(thp, huge)], ..MeasuredSizes::default() }
    }

    #[test]
    fn on_bare_metal_few_huge_pages_cost_no_walks() {
        let data = measured(&[(1 << 16, 0.0), (1 << 23, 0.0), (1 << 27, 3.0)]);
        let verdict = ProbeVerdict::of(&data, &MeasuredSizes::default(), Some(false), None).unwrap();
        assert_eq!((verdict.splintered, verdict.needed), (Some(false), None));
        assert!(verdict.code.is_none());
        assert_eq!(verdict.data, Compared::new(1 << 27, 40.0, 3.0));
    }

    #[test]
    fn walks_within_few_huge_pages_show_a_splintering_host() {
        let data = measured(&[(1 << 16, 0.0), (1 << 23, 3.0), (1 << 27, 20.0)]);
        let verdict = ProbeVerdict::of(&data, &MeasuredSizes::default(), Some(true), None).unwrap();
        assert_eq!(verdict.splintered, Some(true));
    }

    /// `probe --memory 16M` if the second level reaches farther.
    #[test]
    fn where_base_pages_do_not_walk_the_host_is_not_seen() {
        let base = [(1 << 16, 0.0), (1 << 18, 0.0), (1 << 19, 3.0), (1 << 21, 3.0), (1 << 24, 3.0)];
        let data = both(&base, &[(1 << 16, 0.0), (1 << 19, 3.0), (1 << 24, 3.0)]);
        let of = |entries| ProbeVerdict::of(&data, &MeasuredSizes::default(), Some(true), entries).unwrap();
        assert_eq!((of(None).splintered, of(None).needed), (None, Some(256 << 20)));
        let page = Backing::Base.page().bytes();
        assert_eq!(of(Some(2048)).needed, Some((2048 * page * JOINED * BEYOND).max(1 << 25)));
        assert_eq!(of(Some(16)).needed, Some(1 << 25), "more than was not enough");
    }

    /// Some accesses hit still: huge pages that walk as often as these need not be split.
    #[test]
    fn where_base_pages_begin_to_walk_the_host_is_not_seen() {
        let base = [(1 << 16, 0.0), (1 << 18, 0.0), (1 << 19, 3.0), (1 << 23, 3.0), (1 << 24, 9.0)];
        let data = both(&base, &[(1 << 16, 0.0), (1 << 19, 3.0), (1 << 24, 5.0)]);
        let verdict = ProbeVerdict::of(&data, &MeasuredSizes::default(), Some(true), None).unwrap();
        assert_eq!((verdict.splintered, verdict.needed), (None, Some(1 << 25)));
    }

    #[test]
    fn without_huge_pages_there_is_no_verdict() {
        let mut data = measured(&[(1 << 16, 0.0)]);
        data.series.pop();
        assert!(ProbeVerdict::of(&data, &MeasuredSizes::default(), None, None).is_none());
    }
}
