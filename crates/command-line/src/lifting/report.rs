//! The report of one lift: for JSON, for the one line, and for the table.

use crate::lifting::heap_in_place::HeapInPlace;
use address_space::PageSize;
use lift_execution::{Outcome, RangeOutcome};
use lift_plan::{Coverable, Edge, Plan, Reason, Refusal, Source};
use serde::Serialize;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

/// Changes with every change that breaks a reader.
pub const VERSION: u32 = 1;

/// What was done about a program's base.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum Base {
    /// Not position-independent, or nothing to gain.
    Kept {
        /// Why.
        why: String,
    },
    /// Moved before the first instruction.
    Moved {
        /// What huge pages could cover at the kernel's base. Bytes.
        before: Coverable,
        /// What they can cover at the chosen one.
        after: Coverable,
    },
}

/// What became of one program.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Always `pagelift-report`.
    pub format: &'static str,
    /// [`VERSION`].
    pub version: u32,
    /// Process.
    pub pid: i32,
    /// Name of the program's file.
    pub program: String,
    /// Why the program runs as it is, where it does.
    pub unlifted: Option<String>,
    /// The base.
    pub base: Option<Base>,
    /// Threads that were stopped beside the main thread.
    pub other_threads: usize,
    /// Bytes of all memory that was chosen.
    pub considered_bytes: u64,
    /// Bytes of it that the kernel says are on huge pages.
    pub covered_bytes: u64,
    /// Bytes of it that were advised and become huge when touched.
    pub advised_bytes: u64,
    /// Bytes that the lift made resident.
    pub made_resident_bytes: u64,
    /// Time of preparing and executing the plan, in microseconds.
    pub lift_microseconds: u64,
    /// Time that the program stood still for us at both stops, in microseconds.
    pub stopped_microseconds: u64,
    /// What became of the heap, where `attach` was to collapse it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heap: Option<HeapInPlace>,
    /// Each range of the plan.
    pub ranges: Vec<RangeOutcome>,
    /// What the plan refused.
    pub refusals: Vec<Refusal>,
    /// Edges of lifted ranges.
    pub edges: Vec<Edge>,
    /// Mapped files that could not be understood.
    pub not_understood: Vec<String>,
    /// Objects that no image could show where there is a store, each with the reason.
    pub without_image: Vec<String>,
    /// Differences that no step should have made; always empty unless Pagelift has a fault.
    pub unexpected: Vec<lift_execution::Difference>,
}

impl Report {
    /// A report of a program of which nothing is known yet.
    pub fn new(pid: i32, program: String) -> Self {
        Self {
            format: "pagelift-report",
            version: VERSION,
            pid,
            program,
            unlifted: None,
            base: None,
            other_threads: 0,
            considered_bytes: 0,
            covered_bytes: 0,
            advised_bytes: 0,
            made_resident_bytes: 0,
            lift_microseconds: 0,
            stopped_microseconds: 0,
            heap: None,
            ranges: Vec::new(),
            refusals: Vec::new(),
            edges: Vec::new(),
            not_understood: Vec::new(),
            without_image: Vec::new(),
            unexpected: Vec::new(),
        }
    }

    /// Takes over a plan and what became of it.
    pub fn take(&mut self, plan: Plan, outcome: Outcome, duration: Duration) {
        self.considered_bytes = plan.considered;
        self.covered_bytes = outcome.covered();
        self.advised_bytes = outcome.ranges.iter().map(|range| range.advised).sum();
        self.made_resident_bytes = outcome.made_resident();
        self.lift_microseconds = duration.as_micros() as u64;
        self.ranges = outcome.ranges;
        self.unexpected = outcome.unexpected;
        self.refusals = plan.refusals;
        self.edges = plan.edges;
    }

    /// Bytes covered, by source and page size.
    pub fn sources(&self) -> Vec<(Source, PageSize, u64)> {
        let mut sources: Vec<(Source, PageSize, u64)> = Vec::new();
        for range in self.ranges.iter().filter(|range| !range.covered.is_empty()) {
            let Some(source) = range.source else { continue };
            match sources.iter_mut().find(|(s, size, _)| (*s, *size) == (source, range.page_size)) {
                Some((.., bytes)) => *bytes += range.covered.bytes(),
                None => sources.push((source, range.page_size, range.covered.bytes())),
            }
        }
        sources
    }

    /// True where everything that the plan promised is there, and that is not nothing.
    pub fn is_complete(&self) -> bool {
        self.unlifted.is_none()
            && self.unexpected.is_empty()
            && self.covered_bytes + self.advised_bytes > 0
            && self.ranges.iter().all(|range| range.source.is_some() && range.uncovered.is_empty())
            && self.refusals.iter().all(|refusal| matches!(refusal.reason, Reason::NoWholePage { .. }))
    }

    /// The weightiest reason for memory that is not on huge pages though it has whole huge pages, and its bytes.
    pub fn main_shortfall(&self) -> Option<(u64, &Reason)> {
        let uncovered = self.ranges.iter().flat_map(|r| &r.uncovered).map(|u| (u.range.len(), &u.reason));
        let refused = self.refusals.iter().map(|refusal| (refusal.range.len(), &refusal.reason));
        let all: Vec<_> = uncovered.chain(refused).collect();
        let weightiest = |small: bool| {
            let fits = move |reason: &Reason| matches!(reason, Reason::NoWholePage { .. }) == small;
            let (_, reason) = all.iter().filter(|(_, r)| fits(r)).max_by_key(|(bytes, _)| *bytes)?;
            let same = |r: &Reason| std::mem::discriminant(r) == std::mem::discriminant(*reason);
            Some((all.iter().filter(|(_, r)| same(r)).map(|(bytes, _)| bytes).sum(), *reason))
        };
        weightiest(false).or_else(|| weightiest(true))
    }

    /// Writes the report: the only document of its file, or one more line of it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn write(&self, path: &Path, as_line: bool) -> io::Result<()> {
        let mut text = if as_line { serde_json::to_string(self)? } else { serde_json::to_string_pretty(self)? };
        text.push('\n');
        let mut options = OpenOptions::new();
        options.create(true).write(true).append(as_line).truncate(!as_line);
        options.open(path)?.write_all(text.as_bytes())
    }
}
