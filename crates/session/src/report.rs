//! The report of one lift, from which the JSON, the line and the table are made.

use crate::heap::HeapInPlace;
use crate::nodes::{FarPages, Home, NodeBytes, far_pages, home_of};
use crate::shared::InPlaceReports;
use lift_execution::{Outcome, RangeOutcome, Report};
use lift_plan::{Coverable, MachineFacts, Numa, Plan, Source};
use linux::written_file;
use machine_facts::{System, bytes_on_nodes};
use process_view::ProcessFiles;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

/// Version of the format; it grows with every change that breaks a reader.
pub const VERSION: u32 = 1;

/// What was done with a program's base address.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum Base {
    /// Kept: the program is not position-independent, or another base covers no more and is not that of an image.
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
    /// What was lifted.
    #[serde(flatten)]
    pub lift: Report,
    /// The base.
    pub base: Option<Base>,
    /// Number of threads that were stopped besides the main thread.
    pub other_threads: usize,
    /// Bytes of lifted mappings on each NUMA node; empty on a machine with one node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeBytes>,
    /// Pages of files and images that the program runs from and that lie on other NUMA nodes than its own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub far_pages: Vec<FarPages>,
    /// Objects of which the store has copies by NUMA node, but none for the program's node, each with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_on_node: Vec<String>,
    /// Time for which the program was stopped, at both stops together, in microseconds.
    pub stopped_microseconds: u64,
    /// A setting of the program's own that was suspended during the lift and could not be put back, with the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub still_suspended: Option<String>,
    /// Outcome for the heap, where `attach` was asked to collapse it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heap: Option<HeapInPlace>,
    /// Outcomes for the memory of all chosen processes that was lifted in place, in the report of the first one.
    #[serde(flatten)]
    pub in_place: InPlaceReports,
    /// Mapped files that could not be parsed.
    pub not_understood: Vec<String>,
    /// Objects without an image, where there is a store, each with the reason.
    pub without_image: Vec<String>,
    /// The command or change that fixes a reason, where there is one, by the reason's own words.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub fixes: BTreeMap<String, String>,
}

impl LiftReport {
    /// Returns a report of a program of which nothing is known yet.
    pub fn new(pid: i32, program: String) -> Self {
        Self {
            format: "pagelift-report",
            version: VERSION,
            pid,
            program,
            lift: Report::default(),
            base: None,
            other_threads: 0,
            nodes: Vec::new(),
            far_pages: Vec::new(),
            not_on_node: Vec::new(),
            stopped_microseconds: 0,
            still_suspended: None,
            heap: None,
            in_place: InPlaceReports::default(),
            not_understood: Vec::new(),
            without_image: Vec::new(),
            fixes: BTreeMap::new(),
        }
    }

    /// Adds a plan and its outcome to the report.
    pub fn take(&mut self, plan: Plan, outcome: Outcome, duration: Duration) {
        let unlifted = self.lift.unlifted.take();
        self.lift = Report { unlifted, ..Report::new(plan, outcome, duration.as_micros() as u64) };
        let of_ranges = self.lift.ranges.iter().flat_map(|range| {
            range.failed.iter().map(|failed| &failed.reason).chain(range.uncovered.iter().map(|part| &part.reason))
        });
        let reasons = self.lift.refusals.iter().map(|refusal| &refusal.reason).chain(of_ranges);
        self.fixes = reasons.filter_map(|reason| Some((reason.to_string(), reason.fix()?))).collect();
    }

    /// Adds where the lifted memory lies, as the kernel shows it now.
    pub fn look_at_nodes(&mut self, machine: &MachineFacts, numa: Numa) {
        let home = home_of(self.pid, machine, numa);
        if home == Home::OneNode {
            return;
        }
        let Ok(space) = ProcessFiles::of(self.pid).maps() else { return };
        let lifted = self.lift.ranges.iter().flat_map(|range| range.lifted.iter()).collect();
        let found = bytes_on_nodes(&System, &format!("/proc/{}", self.pid), &space, &lifted);
        self.nodes = found.into_iter().map(|(node, bytes)| NodeBytes { node, bytes }).collect();
        let is_shared = |range: &&RangeOutcome| matches!(range.source, Some(Source::File | Source::Image));
        let shared: Vec<_> = self.lift.ranges.iter().filter(is_shared).flat_map(|range| range.lifted.iter()).collect();
        self.far_pages = far_pages(self.pid, &space, home, &shared);
    }

    /// Returns the line that tells it, without its end.
    pub fn line(&self) -> String {
        self.lift.line(&self.program, self.pid)
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
    text = foreign_text::escaped_json(&text);
    text.push('\n');
    let mut file = if as_line { written_file::append(path)? } else { written_file::create(path)? };
    file.write_all(text.as_bytes())
}
