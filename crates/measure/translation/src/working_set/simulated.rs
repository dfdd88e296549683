//! Conclusions from marks, proved against the simulated TLB: a walk sets the mark of its page, a hit does not, and a
//! clear does not change the TLB (`tests/meaning.rs` shows the same on this machine).

use crate::working_set::{
    Cleared, Entries, Holds, Part, PartMarks, Reach, ReachVerdict, Reading, Round, WorkingSet, verdicts,
};
use estimate::tlb_model::{Geometry, Lookup, Side, Tlbs, Translation, known_cpu};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const CPU: &str = "zen3";
const ENTRIES: u64 = 2048;

fn geometry() -> Geometry {
    known_cpu(CPU).unwrap()
}

/// A process's data, whose pages are marked as an x86-64 CPU does it.
struct Marked {
    tlbs: Tlbs,
    marked: BTreeSet<u64>,
    /// Walks since the last clear.
    walks: u64,
}

impl Marked {
    fn new() -> Self {
        Self { tlbs: Tlbs::new(&geometry()), marked: BTreeSet::new(), walks: 0 }
    }

    fn access(&mut self, page: u64) {
        if self.tlbs.access(Side::Data, Translation { page, shift: 12 }) == Lookup::Walk {
            self.marked.insert(page);
            self.walks += 1;
        }
    }

    fn go_over(&mut self, pages: u64) {
        (0..pages).for_each(|page| self.access(page));
    }

    fn clear(&mut self) {
        (self.marked, self.walks) = (BTreeSet::new(), 0);
    }

    /// Another process had the CPU.
    fn flush(&mut self) {
        self.tlbs = Tlbs::new(&geometry());
    }

    fn pages(&self) -> u64 {
        self.marked.len() as u64
    }

    /// The kernel's report after so many seconds.
    fn reading(&self, seconds: f64) -> Reading {
        let marks = PartMarks {
            resident: 1 << 30,
            marked: self.pages() << 12,
            pages: Entries { least: self.pages(), most: self.pages() },
            ..PartMarks::default()
        };
        let parts = BTreeMap::from([(Part::Anonymous, marks)]);
        let (faults, pages_per_fault) = (0, 16);
        let (shortest, longest) = (seconds, seconds);
        Reading { after: seconds, shortest, longest, cpu: Some(seconds), faults, pages_per_fault, parts }
    }
}

fn set_of(readings: Vec<Reading>) -> WorkingSet {
    let round = Round { begun: 0.0, clear: 0.0, reads: vec![0.0; readings.len()], readings };
    WorkingSet::new(Cleared::All, None, vec![round], 0)
}

fn judged(set: &WorkingSet) -> ReachVerdict {
    let reach = Reach::of(&geometry());
    assert_eq!(reach.base_pages(Holds::Data), Some(ENTRIES));
    verdicts(set, &reach).remove(0).verdict
}

#[test]
fn pages_that_the_tlb_holds_stay_unmarked_until_it_is_flushed() {
    let mut process = Marked::new();
    process.go_over(ENTRIES);
    assert_eq!((process.pages(), process.walks), (ENTRIES, ENTRIES));
    process.clear();
    (0..10).for_each(|_| process.go_over(ENTRIES));
    assert_eq!((process.pages(), process.walks), (0, 0), "used ten times, and walked to never");
    process.flush();
    let first = process.reading(0.001);
    (0..10).for_each(|_| process.go_over(ENTRIES));
    assert_eq!((process.pages(), process.walks), (ENTRIES, ENTRIES), "once each after the flush");
    assert_eq!(judged(&set_of(vec![first, process.reading(0.5)])), ReachVerdict::Fits);
}

#[test]
fn more_pages_than_entries_are_marked_and_walked_to_again_and_again() {
    let pages = 4 * ENTRIES;
    let mut process = Marked::new();
    process.go_over(pages);
    process.clear();
    process.go_over(pages / 2);
    let first = process.reading(0.001);
    (0..9).for_each(|_| process.go_over(pages));
    let set = set_of(vec![first, process.reading(0.5)]);
    assert_eq!((process.pages(), process.walks), (pages, pages / 2 + 9 * pages));
    assert_eq!(judged(&set), ReachVerdict::Exceeds);
}

proptest! {
    #[test]
    fn marks_are_never_more_than_walks(
        steps in prop::collection::vec((0_u64..4, 1_u64..6_000, prop::bool::weighted(0.1), prop::bool::weighted(0.1)), 1..30),
    ) {
        let mut process = Marked::new();
        for (kind, number, flushes, clears) in steps {
            match kind {
                0 => process.go_over(number),
                1 => (0..number).for_each(|at| process.access(at * at % 6_007)),
                2 => (0..number).for_each(|_| process.access(number)),
                _ => (0..number).rev().for_each(|page| process.access(page)),
            }
            if flushes {
                process.flush();
            }
            if clears {
                process.clear();
            }
            prop_assert!(process.pages() <= process.walks);
            // The printed bound is one of these walks.
            let bound = set_of(vec![process.reading(0.001)]).walks.map_or(0, |bound| bound.walks);
            prop_assert!(bound <= process.walks, "{bound} of {}", process.walks);
        }
    }
}
