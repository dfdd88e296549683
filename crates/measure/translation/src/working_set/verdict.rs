//! Decides whether the TLBs hold the pages in use.

use crate::working_set::{Holds, Part, PartMarks, Reach, Reading, WorkingSet};
use serde::Serialize;

/// Marks in a millisecond of CPU time that are few: 64,000 walks a second of 20 to 50 ns each take 0.1 to 0.3 % of a CPU.
const FEW_PER_MILLISECOND: f64 = 64.0;
/// CPU time in seconds from which a short time is meaningful: before, the process has hardly run.
const HAS_RUN: f64 = 0.5e-3;
/// CPU time in seconds up to which hardly any page is walked to twice.
const SHORT: f64 = 5e-3;
/// Share of marked bytes on huge pages from which memory counts as huge.
const MOSTLY: f64 = 0.8;

/// The possible gain from huge pages for one kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReachVerdict {
    /// All pages that were walked to in the longest time fit the last level of the TLB.
    Fits,
    /// They fit, but compete with other memory for the same entries, and together they do not.
    FitsAlone,
    /// More pages than the TLB has entries, but hardly any walk in a millisecond of the process's time, in all
    /// readings.
    SeldomWalked,
    /// More pages than the TLB has entries.
    Exceeds,
    /// Most of the pages in use are huge already.
    Huge,
    /// The size of the TLB is not known.
    Unknown,
}

/// The verdict on one kind of memory, with its reasons.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PartVerdict {
    /// The kind.
    pub part: Part,
    /// The verdict.
    pub verdict: ReachVerdict,
    /// Pages marked in the shortest time in which the process ran, at most.
    pub first: u64,
    /// The longest of their times, in seconds.
    pub first_within: f64,
    /// Pages marked in the longest time, at most.
    pub last: u64,
    /// The longest of their times, in seconds.
    pub last_within: f64,
    /// Base pages that the last level of the TLB holds.
    pub entries: Option<u64>,
    /// True if this was measured; otherwise it is from CPUID.
    pub is_measured: bool,
}

/// Judges each kind of memory of which anything was marked.
pub fn verdicts(set: &WorkingSet, reach: &Reach) -> Vec<PartVerdict> {
    let Some(last) = set.curve.last() else { return Vec::new() };
    // Memory that was not read competes, too.
    let unseen = set.left_out.is_some_and(|left_out| left_out.anonymous > 0);
    let has_run = |reading: &&Reading| reading.cpu.is_none_or(|cpu| cpu >= HAS_RUN);
    let first = set.curve.iter().find(has_run).unwrap_or(last);
    let short = first.cpu.filter(|&cpu| (HAS_RUN..=SHORT).contains(&cpu));
    let all: u64 = last.parts.values().map(|marks| marks.pages.most).sum();
    let judged = |(&part, marks): (&Part, &PartMarks)| {
        // Memory that was marked at first still is at last, even if the kernel's count may leave a narrower range.
        let at_first = first.parts.get(&part).map_or(0, |marks| marks.pages.most).min(marks.pages.most);
        let holds = if part == Part::Code { Holds::Code } else { Holds::Data };
        let entries = reach.base_pages(holds);
        let competing = match part {
            Part::Code if !reach.shared() => marks.pages.most,
            _ if unseen => u64::MAX,
            _ if reach.shared() => all,
            _ => all_of_data(last),
        };
        PartVerdict {
            part,
            verdict: verdict(marks, short.map(|_| highest_rate(set, part)), entries, competing),
            first: at_first,
            first_within: first.longest,
            last: marks.pages.most,
            last_within: last.longest,
            entries,
            is_measured: reach.measured_pages(holds).is_some(),
        }
    };
    last.parts.iter().filter(|(_, marks)| marks.marked > 0).map(judged).collect()
}

/// Pages marked in a millisecond of CPU time, in the reading with the most: a program may do little in the shortest
/// time and much in a longer one, and each such mark is a walk, too.
fn highest_rate(set: &WorkingSet, part: Part) -> f64 {
    let rate = |reading: &Reading| {
        let cpu = reading.cpu.filter(|&cpu| cpu >= HAS_RUN)?;
        Some(reading.parts.get(&part)?.pages.most as f64 / (1e3 * cpu))
    };
    set.curve.iter().filter_map(rate).fold(0.0, f64::max)
}

/// Pages that compete if code has a separate TLB.
fn all_of_data(last: &Reading) -> u64 {
    last.parts.iter().filter(|(part, _)| **part != Part::Code).map(|(_, marks)| marks.pages.most).sum()
}

/// `rate` is the highest number of pages marked in a millisecond of CPU time, if a short time was measured.
fn verdict(marks: &PartMarks, rate: Option<f64>, entries: Option<u64>, competing: u64) -> ReachVerdict {
    if marks.huge as f64 >= MOSTLY * marks.resident as f64 && marks.huge > 0 {
        return ReachVerdict::Huge;
    }
    match entries {
        None => ReachVerdict::Unknown,
        Some(entries) if marks.pages.most <= entries && competing <= entries => ReachVerdict::Fits,
        Some(entries) if marks.pages.most <= entries => ReachVerdict::FitsAlone,
        Some(_) if rate.is_some_and(|rate| rate < FEW_PER_MILLISECOND) => ReachVerdict::SeldomWalked,
        Some(_) => ReachVerdict::Exceeds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::working_set::{Cleared, Entries, HeldPages, LeftOut, Level, PageClass, Round};
    use std::collections::BTreeMap;

    fn marks(pages: u64, huge: u64) -> PartMarks {
        let resident = 1 << 30;
        PartMarks {
            resident,
            huge,
            marked: pages << 12,
            pages: Entries { least: pages, most: pages },
            ..PartMarks::default()
        }
    }

    fn set(first: &[(Part, PartMarks)], last: &[(Part, PartMarks)]) -> WorkingSet {
        set_of(0.0008, first, last)
    }

    fn set_of(first_cpu: f64, first: &[(Part, PartMarks)], last: &[(Part, PartMarks)]) -> WorkingSet {
        let reading = |after: f64, parts: &[(Part, PartMarks)]| Reading {
            after,
            shortest: after,
            longest: after,
            cpu: Some(if after < 0.1 { first_cpu } else { 0.4 }),
            faults: 0,
            pages_per_fault: 16,
            parts: parts.iter().copied().collect::<BTreeMap<_, _>>(),
        };
        let readings = vec![reading(0.001, first), reading(0.5, last)];
        WorkingSet::new(Cleared::All, None, vec![Round { begun: 0.0, clear: 0.0, reads: vec![0.0; 2], readings }], 0)
    }

    fn tlb(holds: Holds, entries: u64) -> Level {
        Level { level: 2, holds, pages: vec![PageClass::Base], entries }
    }

    fn judged(set: &WorkingSet, levels: Vec<Level>) -> Vec<(Part, ReachVerdict)> {
        verdicts(set, &Reach { levels, ..Reach::default() })
            .into_iter()
            .map(|judged| (judged.part, judged.verdict))
            .collect()
    }

    /// An example from java: 35 pages in a millisecond of CPU time, and in 400 ms more than 64 for each.
    #[test]
    fn a_quiet_moment_does_not_make_walks_seldom() {
        let levels = || vec![tlb(Holds::Code, 512), tlb(Holds::Data, 2048)];
        let of =
            |last| judged(&set(&[(Part::Anonymous, marks(35, 0))], &[(Part::Anonymous, marks(last, 0))]), levels());
        assert_eq!(of(60_000), [(Part::Anonymous, ReachVerdict::Exceeds)]);
        assert_eq!(of(20_000), [(Part::Anonymous, ReachVerdict::SeldomWalked)]);
    }

    #[test]
    fn no_more_pages_are_said_of_a_shorter_time() {
        let set = set(&[(Part::Code, marks(1_024, 0))], &[(Part::Code, marks(731, 0))]);
        let levels = vec![tlb(Holds::Code, 512), tlb(Holds::Data, 2048)];
        let verdict = &verdicts(&set, &Reach { levels, ..Reach::default() })[0];
        assert_eq!((verdict.first, verdict.last), (731, 731));
    }

    #[test]
    fn a_servers_code_fits_and_its_heap_does_not() {
        let first = [(Part::Code, marks(400, 0)), (Part::Anonymous, marks(1_300, 0))];
        let last = [(Part::Code, marks(420, 0)), (Part::Anonymous, marks(11_800, 0))];
        let set = set(&first, &last);
        let apart = judged(&set, vec![tlb(Holds::Code, 512), tlb(Holds::Data, 2048)]);
        assert_eq!(apart, [(Part::Code, ReachVerdict::Fits), (Part::Anonymous, ReachVerdict::Exceeds)]);
        let shared = judged(&set, vec![tlb(Holds::Both, 1536)]);
        assert_eq!(shared, [(Part::Code, ReachVerdict::FitsAlone), (Part::Anonymous, ReachVerdict::Exceeds)]);
        assert_eq!(judged(&set, Vec::new())[0].1, ReachVerdict::Unknown);
    }

    #[test]
    fn a_measured_reach_decides_and_is_named() {
        let set = set(&[(Part::Heap, marks(1_300, 0))], &[(Part::Heap, marks(4_000, 0))]);
        let told = Reach { levels: vec![tlb(Holds::Code, 512), tlb(Holds::Data, 2048)], ..Reach::default() };
        let of = |reach: &Reach| {
            let judged = verdicts(&set, reach).remove(0);
            (judged.verdict, judged.entries, judged.is_measured)
        };
        assert_eq!(of(&told), (ReachVerdict::Exceeds, Some(2048), false));
        let held = HeldPages { code: None, data: Some(6144) };
        assert_eq!(of(&told.with_measured(held)), (ReachVerdict::Fits, Some(6144), true));
    }

    #[test]
    fn what_was_left_out_competes() {
        let code = [(Part::Code, marks(400, 0))];
        let left_out = LeftOut { anonymous: 1 << 40, from: None, needed_milliseconds: 9, permitted_milliseconds: 1 };
        let set = WorkingSet { left_out: Some(left_out), ..set(&code, &code) };
        assert_eq!(judged(&set, vec![tlb(Holds::Both, 1536)])[0].1, ReachVerdict::FitsAlone);
        assert_eq!(judged(&set, vec![tlb(Holds::Code, 512), tlb(Holds::Data, 2048)])[0].1, ReachVerdict::Fits);
    }

    #[test]
    fn memory_that_is_seldom_walked_and_memory_on_huge_pages_are_told_apart() {
        let first = [(Part::Heap, marks(3, 0)), (Part::Anonymous, marks(500, 1 << 30))];
        let last = [(Part::Heap, marks(9_000, 0)), (Part::Anonymous, marks(500, 1 << 30)), (Part::Stack, marks(0, 0))];
        let judged = judged(&set(&first, &last), vec![tlb(Holds::Both, 1536)]);
        assert_eq!(judged, [(Part::Heap, ReachVerdict::SeldomWalked), (Part::Anonymous, ReachVerdict::Huge)]);
    }

    #[test]
    fn a_process_that_did_not_run_has_not_shown_that_it_seldom_walks() {
        let parts = |pages| [(Part::Heap, marks(pages, 0))];
        let set = set_of(0.00001, &parts(0), &parts(9_000));
        let verdict = &verdicts(&set, &Reach { levels: vec![tlb(Holds::Both, 1536)], ..Reach::default() })[0];
        assert_eq!((verdict.verdict, verdict.first, verdict.first_within), (ReachVerdict::Exceeds, 9_000, 0.5));
    }
}
