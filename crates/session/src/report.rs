//! The report of one lift, from which the JSON, the line and the table are made.

use crate::heap::HeapInPlace;
use address_space::PageSize;
use lift_execution::{Outcome, RangeOutcome, Sealing};
use lift_plan::{Coverable, Edge, MachineFacts, Plan, Reason, Refusal, Shortfall, Source};
use machine_facts::{System, bytes_on_nodes};
use process_view::ProcessFiles;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

/// Version of the format; it grows with every change that breaks a reader.
pub const VERSION: u32 = 1;

/// What was done with a program's base address.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum Base {
    /// Kept: the program is not position-independent, or another base covers no more.
    Kept {
        /// Why.
        why: String,
    },
    /// Moved before the first instruction.
    Moved {
        /// What huge pages could cover at the kernel's base. Bytes.
        before: Coverable,
        /// What they can cover at the chosen base. Bytes.
        after: Coverable,
        /// The base was chosen for the file's own page cache: its addresses agree with its offsets, and both numbers
        /// count only what huge folios of the file show.
        congruent: bool,
        /// Why the base was chosen for copies or an image although huge folios of the file could show something.
        #[serde(skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
}

/// Bytes on one NUMA node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NodeBytes {
    /// Number of the node.
    pub node: u32,
    /// Bytes.
    pub bytes: u64,
}

/// The outcome for one program.
#[derive(Clone, Debug, Serialize)]
pub struct LiftReport {
    /// Always `pagelift-report`.
    pub format: &'static str,
    /// [`VERSION`].
    pub version: u32,
    /// Process.
    pub pid: i32,
    /// Name of the program's file.
    pub program: String,
    /// Why the program was not lifted, if so.
    pub unlifted: Option<String>,
    /// The base.
    pub base: Option<Base>,
    /// Number of threads that were stopped besides the main thread.
    pub other_threads: usize,
    /// Bytes of all memory that the policy chose.
    pub considered_bytes: u64,
    /// Bytes of it that the kernel reports on huge pages.
    pub covered_bytes: u64,
    /// Bytes of it that were advised, and become huge when they are touched.
    pub advised_bytes: u64,
    /// Bytes that the lift made resident.
    pub made_resident_bytes: u64,
    /// Bytes of lifted mappings on each NUMA node; empty on a machine with one node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeBytes>,
    /// Time to prepare and execute the plan, in microseconds.
    pub lift_microseconds: u64,
    /// Time for which the program was stopped, at both stops together, in microseconds.
    pub stopped_microseconds: u64,
    /// Outcome for the heap, where `attach` was asked to collapse it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heap: Option<HeapInPlace>,
    /// Outcome of sealing, where it was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sealing: Option<Sealing>,
    /// Each range of the plan.
    pub ranges: Vec<RangeOutcome>,
    /// What the plan refused.
    pub refusals: Vec<Refusal>,
    /// Edges of lifted ranges.
    pub edges: Vec<Edge>,
    /// Mapped files that could not be parsed.
    pub not_understood: Vec<String>,
    /// Objects without an image, where there is a store, each with the reason.
    pub without_image: Vec<String>,
    /// The command or change that fixes a reason, where there is one, by the reason's own words.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub fixes: BTreeMap<String, String>,
    /// Differences that no step should have made; always empty unless Pagelift has a fault.
    pub unexpected: Vec<lift_execution::Difference>,
}

impl LiftReport {
    /// Returns a report of a program of which nothing is known yet.
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
            nodes: Vec::new(),
            lift_microseconds: 0,
            stopped_microseconds: 0,
            heap: None,
            sealing: None,
            ranges: Vec::new(),
            refusals: Vec::new(),
            edges: Vec::new(),
            not_understood: Vec::new(),
            without_image: Vec::new(),
            unexpected: Vec::new(),
            fixes: BTreeMap::new(),
        }
    }

    /// Adds a plan and its outcome to the report.
    pub fn take(&mut self, plan: Plan, outcome: Outcome, duration: Duration) {
        self.considered_bytes = plan.considered;
        self.covered_bytes = outcome.covered();
        self.advised_bytes = outcome.ranges.iter().map(|range| range.advised).sum();
        self.made_resident_bytes = outcome.made_resident();
        self.lift_microseconds = duration.as_micros() as u64;
        self.ranges = outcome.ranges;
        self.unexpected = outcome.unexpected;
        self.sealing = outcome.sealing;
        self.refusals = plan.refusals;
        self.edges = plan.edges;
        let of_ranges = self.ranges.iter().flat_map(|range| {
            range.failed.iter().map(|failed| &failed.reason).chain(range.uncovered.iter().map(|part| &part.reason))
        });
        let reasons = self.refusals.iter().map(|refusal| &refusal.reason).chain(of_ranges);
        self.fixes = reasons.filter_map(|reason| Some((reason.to_string(), reason.fix()?))).collect();
    }

    /// Adds where the lifted memory lies, as the kernel shows it now.
    pub fn look_at_nodes(&mut self, machine: &MachineFacts) {
        if machine.numa.is_none() {
            return;
        }
        let Ok(space) = ProcessFiles::of(self.pid).maps() else { return };
        let lifted = self.ranges.iter().flat_map(|range| range.lifted.iter()).collect();
        let found = bytes_on_nodes(&System, &format!("/proc/{}", self.pid), &space, &lifted);
        self.nodes = found.into_iter().map(|(node, bytes)| NodeBytes { node, bytes }).collect();
    }

    /// Returns the bytes covered, by source and page size.
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

    /// True where the plan is not empty and all of it was carried out.
    pub fn is_complete(&self) -> bool {
        self.unlifted.is_none()
            && self.unexpected.is_empty()
            && self.sealing.as_ref().is_none_or(|sealing| sealing.not_sealed == 0)
            && self.covered_bytes + self.advised_bytes > 0
            && self.ranges.iter().all(|range| range.source.is_some() && range.uncovered.is_empty())
            && self.refusals.iter().all(|refusal| matches!(refusal.reason, Reason::NoWholePage { .. }))
    }

    /// Returns the reason that keeps most memory off huge pages.
    pub fn main_shortfall(&self) -> Option<Shortfall<'_>> {
        let uncovered = self.ranges.iter().flat_map(|r| &r.uncovered).map(|u| (u.range.len(), &u.reason));
        let refused = self.refusals.iter().map(|refusal| (refusal.range.len(), &refusal.reason));
        Shortfall::weightiest(uncovered.chain(refused))
    }

    /// Writes the report: the only document of its file, or one more line of it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn write(&self, path: &Path, as_line: bool) -> io::Result<()> {
        write_document(self, path, as_line)
    }
}

/// Writes JSON: the only document of its file, or one more line of it.
pub(crate) fn write_document(document: &impl Serialize, path: &Path, as_line: bool) -> io::Result<()> {
    let mut text = if as_line { serde_json::to_string(document)? } else { serde_json::to_string_pretty(document)? };
    text.push('\n');
    let mut options = OpenOptions::new();
    options.create(true).write(true).append(as_line).truncate(!as_line);
    options.open(path)?.write_all(text.as_bytes())
}
