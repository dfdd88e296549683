//! The report of one lift, from which the JSON, the line and the table are made.

use crate::heap::HeapInPlace;
use crate::nodes::{FarPages, Home, NodeBytes, far_pages, home_of};
use crate::shared::InPlaceReports;
use address_space::RangeSet;
use lift_execution::{LiftOutcome, RangeOutcome, Report};
use lift_plan::{Coverable, Kind, Later, MachineFacts, Numa, Plan, Price, Reason, Refusal, Source};
use linux::pages::transparent_huge_page;
use linux::written_file;
use machine_facts::{System, bytes_on_nodes};
use process_view::ProcessFiles;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

/// Version of the format; it grows with every change that breaks a reader.
pub const VERSION: u32 = 1;

/// All lifts of data files by the helper of a start.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DataFilesLifted {
    /// Number of checks of a process that put memory on huge pages.
    pub lifts: u64,
    /// Bytes that they put there.
    pub covered_bytes: u64,
    /// Longest time for which all threads of a process were stopped, in microseconds.
    pub longest_stop_microseconds: u64,
    /// The parts that the last check left alone.
    pub refusals: Vec<Refusal>,
}

/// The change of a program's base address.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum Base {
    /// Kept: the program is not position-independent, or another base covers no more and does not suit an image.
    Kept {
        /// Why.
        why: String,
    },
    /// Moved before the first instruction.
    Moved {
        /// Bytes that huge pages could cover at the kernel's base.
        before: Coverable,
        /// Bytes that they can cover at the chosen base.
        after: Coverable,
        /// The base was chosen for the file's own page cache: its addresses agree with its offsets, and both numbers
        /// count only the parts that huge folios of the file show.
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
    /// The lift.
    #[serde(flatten)]
    pub lift: Report,
    /// The base.
    pub base: Option<Base>,
    /// Number of threads that were stopped besides the main thread.
    pub other_threads: usize,
    /// Bytes of lifted mappings on each NUMA node; empty on a machine with one node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeBytes>,
    /// Pages of files and images that the program uses from other NUMA nodes than its own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub far_pages: Vec<FarPages>,
    /// Objects of which the store has copies by NUMA node, but none for the program's node, each with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_on_node: Vec<String>,
    /// Time for which the program was stopped, at both stops together, in microseconds.
    pub stopped_microseconds: u64,
    /// A setting of the program's own that was suspended during the lift and could not be restored, with the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub still_suspended: Option<String>,
    /// Outcome for the heap, if `attach` was asked to collapse it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heap: Option<HeapInPlace>,
    /// Outcomes for the memory of all chosen processes that was lifted in place, in the report of the first one.
    #[serde(flatten)]
    pub in_place: InPlaceReports,
    /// Outcomes for mapped data files that the helper of a start has lifted as they became resident.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_files: Option<DataFilesLifted>,
    /// The work of the helper, if memory is lifted in place as it fills.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watched: Option<Watched>,
    /// Memory that is lifted when the program has paid for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub postponed: Option<Postponed>,
    /// Mapped files that could not be parsed.
    pub not_understood: Vec<String>,
    /// Objects without an image, if there is a store, each with the reason.
    pub without_image: Vec<String>,
    /// The command or change that fixes a reason, if there is one, by the reason's own words.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub fixes: BTreeMap<String, String>,
}

/// Memory whose lift a program pays for by the CPU time that it uses.
#[derive(Clone, Debug, Serialize)]
pub struct Postponed {
    /// Its size.
    pub bytes: u64,
    /// The predicted price.
    pub price: Price,
    /// CPU time that the program has used when it has paid.
    pub due_microseconds: u64,
    /// Its state.
    #[serde(flatten)]
    pub state: PostponedState,
}

impl Postponed {
    /// Memory that is lifted later, before the program has paid; `None` if there is none.
    pub fn of(later: &Later) -> Option<Self> {
        (!later.lifts.is_empty()).then(|| Self {
            bytes: later.lifts.iter().map(|lift| lift.range.len()).sum(),
            price: later.price,
            due_microseconds: later.due.as_micros() as u64,
            state: PostponedState::Waiting,
        })
    }
}

/// State of memory that is lifted later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum PostponedState {
    /// The program had not paid when the report was written. A report is not written again if the program ends before.
    Waiting,
    /// The program has ended before it had paid.
    Ended,
    /// The program has executed another one before it had paid.
    Executed,
    /// It was lifted, as the report shows.
    Lifted {
        /// CPU time that the program had used.
        used_microseconds: u64,
    },
    /// The program had paid, and could not be lifted.
    Refused {
        /// Why.
        why: String,
    },
}

/// The work of a helper beside a program whose memory is lifted in place as it fills.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Watched {
    /// State of the program and its descendants.
    pub state: WatchedState,
    /// Number of checks of their memory.
    pub looks: u64,
    /// Number of looks that put memory on huge pages.
    pub lifts: u64,
    /// Time that the looks took without the lifts, in microseconds.
    pub looking_microseconds: u64,
    /// The most processes at one look.
    pub most_processes: usize,
}

/// State of a program and its descendants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WatchedState {
    /// One still ran when the report was written.
    #[default]
    Running,
    /// All had ended.
    Ended,
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
            data_files: None,
            watched: None,
            postponed: None,
            not_understood: Vec::new(),
            without_image: Vec::new(),
            fixes: BTreeMap::new(),
        }
    }

    /// Adds a plan and its outcome to the report.
    pub fn take(&mut self, plan: Plan, outcome: LiftOutcome, duration: Duration) {
        let unlifted = self.lift.unlifted.take();
        self.lift = Report { unlifted, ..Report::new(plan, outcome, duration.as_micros() as u64) };
        self.find_fixes();
    }

    /// Adds the outcome of a later lift of the same process.
    pub fn add_later(&mut self, later: Self) {
        let Report { ranges, refusals, unexpected, sealing, lift_microseconds, .. } = later.lift;
        let is_replaced = |range: &RangeOutcome| ranges.iter().any(|other| other.range.overlaps(range.range));
        self.lift.ranges.retain(|range| !is_replaced(range));
        self.lift.ranges.extend(ranges);
        // If only the start could have lifted a range, the later lift refuses it; the start's reason is more precise.
        let at_start = self.lift.refusals.iter().filter(|refusal| matches!(refusal.reason, Reason::OnlyAtStart { .. }));
        let planned: RangeSet = self.lift.ranges.iter().map(|range| range.range).collect();
        let mut kept = Vec::new();
        for refusal in at_start {
            let mut rest = RangeSet::from_iter([refusal.range]);
            planned.within(refusal.range).for_each(|range| rest.remove(range));
            kept.extend(rest.iter().map(|range| Refusal { range, ..refusal.clone() }));
        }
        let is_new = |refusal: &Refusal| kept.iter().all(|known| !known.range.overlaps(refusal.range));
        let new: Vec<_> = refusals.into_iter().filter(is_new).collect();
        self.lift.refusals = [kept, new].concat();
        self.lift.covered_bytes = self.lift.ranges.iter().map(|range| range.covered.bytes()).sum();
        self.lift.advised_bytes = self.lift.ranges.iter().map(|range| range.advised).sum();
        self.lift.made_resident_bytes = self.lift.ranges.iter().map(|range| range.made_resident).sum();
        self.lift.lift_microseconds = self.lift.lift_microseconds.saturating_add(lift_microseconds);
        self.lift.unexpected.extend(unexpected);
        self.lift.sealing = sealing.or(self.lift.sealing.take());
        (self.nodes, self.far_pages, self.still_suspended) = (later.nodes, later.far_pages, later.still_suspended);
        self.find_fixes();
    }

    fn find_fixes(&mut self) {
        let of_ranges = self.lift.ranges.iter().flat_map(|range| {
            range.failed.iter().map(|failed| &failed.reason).chain(range.uncovered.iter().map(|part| &part.reason))
        });
        let reasons = self.lift.refusals.iter().map(|refusal| &refusal.reason).chain(of_ranges);
        self.fixes = fixes(reasons);
    }

    /// Adds the nodes of the lifted memory, as the kernel reports them now.
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

    /// Returns the report as a line, without a line feed.
    pub fn line(&self) -> String {
        self.lift.line(&self.program, self.pid)
    }

    /// Returns the line about code and data if the heap is reported apart. The heap includes the program's break.
    pub fn line_beside_heap(&self) -> String {
        self.lift.without(Kind::Heap).line(&self.program, self.pid)
    }

    /// True if all requested memory is on huge pages. If the heap was requested and is, code and data that fill no huge
    /// page do not count.
    pub fn is_complete(&self) -> bool {
        match &self.heap {
            None => self.lift.is_complete(),
            Some(heap) => heap.is_complete() && self.is_complete_beside_a_heap(),
        }
    }

    /// True if all code and data that fill a huge page are on huge pages.
    pub(crate) fn is_complete_beside_a_heap(&self) -> bool {
        self.lift.is_complete() || self.lift.leaves_no_whole_page(transparent_huge_page())
    }

    /// Writes the report: the only document of its file, or one more line.
    ///
    /// # Errors
    /// The kernel's.
    pub fn write(&self, path: &Path, as_line: bool) -> io::Result<()> {
        write_document(self, path, as_line)
    }

    /// Writes the report to an open file.
    ///
    /// # Errors
    /// The kernel's.
    pub fn write_to(&self, mut file: File) -> io::Result<()> {
        file.write_all(document_text(self, false)?.as_bytes())
    }
}

/// Writes JSON: the only document of its file, or one more line.
pub(crate) fn write_document(document: &impl Serialize, path: &Path, as_line: bool) -> io::Result<()> {
    let text = document_text(document, as_line)?;
    let mut file = if as_line { written_file::append(path)? } else { written_file::create(path)? };
    file.write_all(text.as_bytes())
}

/// Returns JSON with a line feed.
pub(crate) fn document_text(document: &impl Serialize, as_line: bool) -> io::Result<String> {
    let text = if as_line { serde_json::to_string(document)? } else { serde_json::to_string_pretty(document)? };
    Ok(foreign_text::escaped_json(&text) + "\n")
}

/// The fix of each reason, by the reason's words. Reasons of several files have one text: their fix names no file.
fn fixes<'a>(reasons: impl Iterator<Item = &'a Reason>) -> BTreeMap<String, String> {
    let mut fixes = BTreeMap::<String, String>::new();
    for reason in reasons {
        let Some(fix) = reason.fix() else { continue };
        let known = fixes.entry(reason.to_string()).or_insert_with(|| fix.clone());
        if *known != fix {
            *known = reason.without_file().fix().unwrap_or(fix);
        }
    }
    fixes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::Anonymous;
    use address_space::{Address, AddressRange, PageSize, Protection};

    const PAGE: u64 = 2 << 20;

    fn range(first: u64, pages: u64) -> AddressRange {
        AddressRange::sized(Address(first * PAGE), pages * PAGE)
    }

    fn lifted(range: AddressRange, covered: AddressRange) -> RangeOutcome {
        RangeOutcome {
            object: "program".to_owned(),
            kinds: vec![Kind::Text],
            range,
            protection: Protection::READ_EXECUTE,
            source: Some(Source::Thp),
            page_size: PageSize::new(PAGE).unwrap(),
            lifted: RangeSet::from_iter([covered]),
            covered: RangeSet::from_iter([covered]),
            advised: range.len() - covered.len(),
            made_resident: covered.len(),
            failed: Vec::new(),
            uncovered: Vec::new(),
        }
    }

    fn report(ranges: Vec<RangeOutcome>, refusals: Vec<(AddressRange, Reason)>) -> LiftReport {
        let mut report = LiftReport::new(1, "program".to_owned());
        let refusal = |(range, reason)| Refusal { object: "program".to_owned(), kinds: Vec::new(), range, reason };
        let plan =
            Plan { refusals: refusals.into_iter().map(refusal).collect(), considered: 40 * PAGE, ..Plan::default() };
        report.take(plan, LiftOutcome { ranges, ..LiftOutcome::default() }, Duration::from_millis(1));
        report
    }

    #[test]
    fn a_later_lift_counts_no_memory_twice_and_loses_no_refusal() {
        let (price, allowance) = (Duration::from_millis(9), Duration::from_millis(5));
        let at_start = || Reason::OnlyAtStart { price, allowance, why: "cannot be made while the program runs" };
        let unpaid = Reason::Unpaid { price, due: Duration::from_millis(900) };
        let mut first = report(
            vec![lifted(range(0, 2), range(0, 2)), lifted(range(4, 4), range(4, 1))],
            vec![(range(10, 6), unpaid), (range(20, 4), at_start())],
        );
        // The second range again, the one that was not paid, and a part of one that only a start could lift.
        let later = report(
            vec![
                lifted(range(4, 4), range(4, 3)),
                lifted(range(10, 6), range(10, 6)),
                lifted(range(22, 2), range(22, 2)),
            ],
            vec![(range(20, 2), Reason::RunningAndWritable), (range(30, 1), Reason::NotReadable)],
        );
        first.add_later(later);
        assert_eq!(first.lift.considered_bytes, 40 * PAGE);
        assert_eq!(first.lift.covered_bytes, (2 + 3 + 6 + 2) * PAGE);
        assert_eq!((first.lift.advised_bytes, first.lift.lift_microseconds), (PAGE, 2000));
        let refusals: Vec<_> = first.lift.refusals.iter().map(|refusal| (refusal.range, &refusal.reason)).collect();
        assert_eq!(refusals, [(range(20, 2), &at_start()), (range(30, 1), &Reason::NotReadable)]);
        assert_eq!(first.fixes.len(), 1, "{:?}", first.fixes);
    }

    #[test]
    fn beside_a_lifted_heap_only_ranges_count_that_fill_a_huge_page() {
        let Some(huge) = transparent_huge_page().map(PageSize::bytes) else { return };
        let beside_a_heap = |bytes: u64| {
            let mut report =
                report(Vec::new(), vec![(AddressRange::sized(Address(PAGE), bytes), Reason::RunningAndWritable)]);
            let of = |huge| Anonymous { resident: 700 << 20, huge };
            report.heap = Some(HeapInPlace { before: of(0), after: of(698 << 20), left: 0, left_alone: Vec::new() });
            report.is_complete()
        };
        assert!(beside_a_heap(360 << 10) && !beside_a_heap(2 * huge));
    }

    /// A program break whose edges fill no huge page, and four bytes of data beside it.
    #[test]
    fn the_break_is_part_of_a_heap_that_was_collapsed() {
        let Some(huge) = transparent_huge_page() else { return };
        let part = |first: u64, bytes: u64| AddressRange::sized(Address(first * PAGE), bytes);
        let no_page = |bytes| Reason::NoWholePage { bytes, size: huge };
        let refusals = vec![
            (part(60, 4 << 10), Reason::RunningAndWritable),
            (part(61, 8 << 10), no_page(8 << 10)),
            (part(99, 940 << 10), no_page(940 << 10)),
        ];
        let mut report = report(vec![lifted(range(100, 20), range(100, 20))], refusals);
        (report.lift.ranges[0].kinds, report.lift.refusals[2].kinds) = (vec![Kind::Heap], vec![Kind::Heap]);
        assert!(!report.is_complete(), "data");
        let of = |huge| Anonymous { resident: 64 << 20, huge };
        report.heap = Some(HeapInPlace { before: of(0), after: of(62 << 20), left: 0, left_alone: Vec::new() });
        assert!(report.is_complete());
        assert_eq!(
            report.line_beside_heap(),
            "pagelift: program[1]: nothing lifted: holds no whole 2 MiB page (8.0 KiB)"
        );
        report.lift.ranges[0].source = None;
        assert!(!report.is_complete(), "a range that is not lifted");
    }

    #[test]
    fn the_fix_for_several_files_names_none_of_them() {
        let reason = |path: &str| Reason::NoImage { file: Some(path.to_owned()) };
        let fix_of = |reasons: &[Reason]| fixes(reasons.iter()).into_values().collect::<Vec<_>>();
        assert_eq!(fix_of(&[reason("/a b")]), ["pagelift image setup; pagelift image add '/a b'"]);
        let of_both = fix_of(&[reason("/a"), reason("/b"), reason("/a")]);
        assert_eq!(of_both, ["pagelift image setup; pagelift image add FILE"]);
    }
}
