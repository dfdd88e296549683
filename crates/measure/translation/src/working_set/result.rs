//! The results of a measurement.

use crate::working_set::{Cleared, LeftOut, Part, PartMarks};
use address_space::PageSize;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Version of the form in which [`WorkingSet`] is written; grows when a field changes its meaning.
pub const VERSION: u32 = 1;

/// Pages that one page fault can mark in any case: those around the one that is needed (fault_around_bytes is 64 KiB).
const PAGES_AROUND: u64 = 16;

/// Pages that one page fault can mark, at most: those around the needed one, or those in the largest folio that a fault
/// makes and maps by base pages.
pub(crate) fn pages_per_fault(folio: Option<PageSize>, base: PageSize) -> u64 {
    folio.map_or(0, |folio| folio.bytes() / base.bytes()).max(PAGES_AROUND)
}

/// The marks at one moment after a clear. Times are seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reading {
    /// The time that was waited for.
    pub after: f64,
    /// The shortest time that any page had to be marked: from the end of the clear to the start of the reading.
    pub shortest: f64,
    /// The longest: from the start of the clear to the end of the reading.
    pub longest: f64,
    /// CPU time of the process from the start of the clear to the end of the reading; `None` if the kernel does not
    /// report it.
    pub cpu: Option<f64>,
    /// Page faults in that time.
    pub faults: u64,
    /// Pages that each fault can have marked, at most.
    pub pages_per_fault: u64,
    /// The marked memory.
    pub parts: BTreeMap<Part, PartMarks>,
}

impl Reading {
    /// Bytes marked in all memory.
    pub fn marked(&self) -> u64 {
        self.parts.values().map(|marks| marks.marked).sum()
    }

    /// Certain page walks: marks of private anonymous memory that page faults do not explain. On x86-64 only: elsewhere
    /// the kernel may mark several pages for one (contiguous entries of AArch64).
    fn walks(&self) -> u64 {
        if !cfg!(target_arch = "x86_64") {
            return 0;
        }
        let marked = self.parts.iter().filter(|(part, _)| part.is_private_anonymous());
        let pages: u64 = marked.map(|(_, marks)| marks.pages.least).sum();
        pages.saturating_sub(self.faults.saturating_mul(self.pages_per_fault))
    }
}

/// One clear and the readings after it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Round {
    /// Seconds from the moment from which rounds are dated to the start of the clear.
    pub begun: f64,
    /// Seconds that the clear took.
    pub clear: f64,
    /// Seconds that each reading took.
    pub reads: Vec<f64>,
    /// In order of time; fewer than requested if the process has ended.
    pub readings: Vec<Reading>,
}

/// The cost of the observation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Cost {
    /// The longest time in seconds for which threads of the process may have waited for the map of its memory, at each
    /// clear.
    pub longest_clear: f64,
    /// The longest reading, in seconds: for its time the process cannot change the map.
    pub longest_read: f64,
    /// Number of clears.
    pub clears: u64,
    /// Number of readings.
    pub reads: u64,
    /// Seconds of all clears and readings together.
    pub total: f64,
}

/// A lower bound of page walks in a time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WalkBound {
    /// Walks.
    pub walks: u64,
    /// Seconds in which they were.
    pub seconds: f64,
    /// CPU seconds of the process in that time.
    pub cpu_seconds: Option<f64>,
}

impl WalkBound {
    /// Walks a second.
    pub fn per_second(&self) -> f64 {
        self.walks as f64 / self.seconds
    }
}

/// Pages marked over time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkingSet {
    /// [`VERSION`].
    pub version: u32,
    /// The cleared memory.
    pub cleared: Cleared,
    /// The memory that was not read.
    pub left_out: Option<LeftOut>,
    /// The readings of one round: the median of all rounds by the marks of the last reading.
    pub curve: Vec<Reading>,
    /// When that round began, as [`Round::begun`].
    pub begun: f64,
    /// A lower bound of page walks, from the reading that gives the highest rate; `None` if none can be given.
    pub walks: Option<WalkBound>,
    /// The cost.
    pub cost: Cost,
    /// Everything that was read.
    pub rounds: Vec<Round>,
}

impl WorkingSet {
    /// `skipped`: number of first rounds that are only shown if no other has as many readings.
    pub(crate) fn new(cleared: Cleared, left_out: Option<LeftOut>, rounds: Vec<Round>, skipped: usize) -> Self {
        let (begun, curve) =
            middle(&rounds, skipped).map_or_else(Default::default, |round| (round.begun, round.readings.clone()));
        let walks = walk_bound(&curve);
        Self { version: VERSION, cleared, left_out, cost: cost(&rounds), curve, begun, walks, rounds }
    }

    /// The marks of one kind of memory, by time.
    pub fn of(&self, part: Part) -> Vec<PartMarks> {
        self.curve.iter().map(|reading| reading.parts.get(&part).copied().unwrap_or_default()).collect()
    }

    /// The kinds of memory that there are.
    pub fn parts(&self) -> Vec<Part> {
        let mut parts: Vec<Part> = self.curve.iter().flat_map(|reading| reading.parts.keys().copied()).collect();
        parts.sort_unstable();
        parts.dedup();
        parts
    }
}

fn middle(rounds: &[Round], skipped: usize) -> Option<&Round> {
    let points = rounds.iter().map(|round| round.readings.len()).max().unwrap_or(0);
    let whole = |from: usize| rounds.iter().skip(from).filter(|round| round.readings.len() == points).collect();
    let later: Vec<&Round> = whole(skipped);
    let mut whole = if later.is_empty() { whole(0) } else { later };
    whole.sort_by_key(|round| round.readings.last().map(Reading::marked));
    whole.get(whole.len() / 2).copied()
}

fn walk_bound(curve: &[Reading]) -> Option<WalkBound> {
    let bound =
        |reading: &Reading| WalkBound { walks: reading.walks(), seconds: reading.longest, cpu_seconds: reading.cpu };
    let bounds = curve.iter().map(bound).filter(|bound| bound.walks > 0 && bound.seconds > 0.0);
    bounds.max_by(|one, other| one.per_second().total_cmp(&other.per_second()))
}

fn cost(rounds: &[Round]) -> Cost {
    let clears = || rounds.iter().map(|round| round.clear);
    let reads = || rounds.iter().flat_map(|round| round.reads.iter().copied());
    Cost {
        longest_clear: clears().fold(0.0, f64::max),
        longest_read: reads().fold(0.0, f64::max),
        clears: clears().count() as u64,
        reads: reads().count() as u64,
        total: clears().sum::<f64>() + reads().sum::<f64>(),
    }
}

/// Seconds as a number.
pub(crate) fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::working_set::Entries;

    fn reading(longest: f64, heap_pages: u64, code_pages: u64, faults: u64) -> Reading {
        let marks = |pages: u64| PartMarks {
            resident: 1 << 30,
            marked: pages << 12,
            pages: Entries { least: pages, most: pages },
            ..PartMarks::default()
        };
        let parts = BTreeMap::from([(Part::Anonymous, marks(heap_pages)), (Part::Code, marks(code_pages))]);
        let pages_per_fault = PAGES_AROUND;
        Reading { after: longest, shortest: longest, longest, cpu: Some(longest / 2.0), faults, pages_per_fault, parts }
    }

    fn round(clear: f64, readings: Vec<Reading>) -> Round {
        Round { begun: 0.3, clear, reads: vec![0.002; readings.len()], readings }
    }

    #[test]
    fn a_fault_marks_the_pages_of_the_largest_folio_that_it_makes() {
        let size = |bytes: u64| PageSize::new(bytes).unwrap();
        assert_eq!(pages_per_fault(None, size(4 << 10)), 16);
        assert_eq!(pages_per_fault(Some(size(32 << 10)), size(4 << 10)), 16);
        assert_eq!(pages_per_fault(Some(size(512 << 10)), size(4 << 10)), 128);
        assert_eq!(pages_per_fault(Some(size(512 << 10)), size(64 << 10)), 16);
    }

    #[test]
    fn the_curve_is_the_median_of_the_rounds() {
        let rounds = [700, 500, 9_000].map(|pages| round(0.001, vec![reading(0.001, pages, 10, 0)]));
        let set = WorkingSet::new(Cleared::All, None, rounds.to_vec(), 0);
        assert_eq!((set.of(Part::Anonymous)[0].pages.least, set.begun), (700, 0.3));
        assert_eq!(set.parts(), [Part::Code, Part::Anonymous]);
        assert!(set.of(Part::Heap)[0].resident == 0);
        assert_eq!((set.cost.clears, set.cost.reads), (3, 3));
        assert!((set.cost.total - 0.009).abs() < 1e-9);
    }

    #[test]
    fn the_start_of_a_command_is_shown_only_where_no_other_round_is_as_long() {
        let of = |rounds: &[(u64, usize)]| {
            let round = |&(pages, points): &(u64, usize)| round(0.001, vec![reading(0.001, pages, 10, 0); points]);
            let set = WorkingSet::new(Cleared::All, None, rounds.iter().map(round).collect(), 1);
            set.of(Part::Anonymous)[0].pages.least
        };
        assert_eq!(of(&[(500, 3), (400, 3), (600, 3)]), 600);
        assert_eq!(of(&[(500, 3), (400, 3), (600, 2)]), 400);
        assert_eq!(of(&[(500, 3), (400, 2)]), 500);
        assert_eq!(of(&[(500, 3), (400, 3), (300, 4)]), 300);
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_bound_of_walks_counts_anonymous_pages_only_and_leaves_room_for_faults() {
        let set = |readings| WorkingSet::new(Cleared::All, None, vec![round(0.001, readings)], 0);
        let walks = set(vec![reading(0.002, 1_300, 400, 10), reading(0.5, 11_800, 420, 10)]).walks.unwrap();
        assert_eq!((walks.walks, walks.seconds, walks.cpu_seconds), (1_140, 0.002, Some(0.001)));
        assert!((walks.per_second() - 570_000.0).abs() < 1e-6);
        assert_eq!(set(vec![reading(0.002, 150, 9_000, 10)]).walks, None);
        // Ten faults of 512 KiB each mark all of their pages.
        let large = Reading { pages_per_fault: 128, ..reading(0.002, 1_300, 400, 10) };
        assert_eq!(set(vec![large.clone()]).walks.unwrap().walks, 20);
        assert_eq!(set(vec![Reading { faults: 11, ..large }]).walks, None);
        assert_eq!(set(Vec::new()).walks, None);
    }
}
