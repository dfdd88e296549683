//! The plan of a lift in place, or its result as the kernel shows it.

use super::asking::{Asking, SkippedProcess};
use super::gather::Family;
use super::sharers::{Segments, Sharers, page_tables};
use super::tables::predicted;
use super::{InPlace, private};
use address_space::PageSize;
use process_view::ProcessFiles;
use serde::Serialize;
use shared_memory::{InPlaceOutcome, Mapped, Plan, Reason, Refused, Segment, SegmentKey, SegmentKind, SegmentPlan};
use std::collections::{BTreeMap, BTreeSet};

/// Blocks that are left alone for one reason.
#[derive(Clone, Debug, Serialize)]
pub struct LeftAlone {
    /// Why.
    pub reason: String,
    /// The fix, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
    /// Number of blocks.
    pub blocks: u64,
    /// Bytes of data in them.
    pub bytes: u64,
    /// Nothing is missing: no huge page fits there, or it is one of the pool.
    #[serde(skip)]
    pub is_fine: bool,
    /// The reason as a value, if there is one.
    #[serde(skip)]
    pub cause: Option<Reason>,
}

impl LeftAlone {
    fn of(refused: &Refused) -> Self {
        let (reason, fix) = (refused.reason.to_string(), refused.reason.fix());
        // A setting that could not be restored keeps no block from huge pages.
        let is_note = matches!(refused.reason, Reason::NotSuspended { .. }) && refused.blocks == 0;
        let is_fine = is_note || matches!(refused.reason, Reason::NoWholeBlock { .. } | Reason::Pool);
        let cause = Some(refused.reason.clone());
        Self { reason, fix, blocks: refused.blocks, bytes: refused.bytes, is_fine, cause }
    }
}

/// One segment. Sizes are in bytes.
#[derive(Clone, Debug, Serialize)]
pub struct SegmentReport {
    /// Name as maps shows it. Private memory has the name of its process.
    pub name: String,
    /// Kind.
    pub kind: SegmentKind,
    /// Device as maps shows it; 0 for private memory.
    pub device: (u32, u32),
    /// Inode, or the identifier of a System V segment; 0 for private memory.
    pub inode: u64,
    /// A process that has mapped it.
    pub pid: i32,
    /// Its first address there.
    pub address: String,
    /// Number of its mappings in the chosen processes.
    pub mappings: usize,
    /// Length with all holes.
    pub length: u64,
    /// Data, in memory or swapped out.
    pub data: u64,
    /// The most that a chosen process has in its page tables.
    pub resident: u64,
    /// Number of processes that share it, chosen or not.
    pub sharers: usize,
    /// The most that a chosen process maps by huge pages, before.
    pub huge_before: u64,
    /// The blocks that are to be lifted.
    pub planned: u64,
    /// Holes in them, which the lift fills, and swapped data, which it reads back.
    pub adds: u64,
    /// As `huge_before`, read back after the lift; absent if no process of the segment answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub huge_after: Option<u64>,
    /// Holes that were filled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filled: Option<u64>,
    /// Swapped data that was read back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_back: Option<u64>,
    /// Blocks that are left alone, by reason.
    pub left_alone: Vec<LeftAlone>,
}

/// Memory of some processes that is lifted in place.
#[derive(Clone, Debug, Serialize)]
pub struct InPlaceReport {
    /// Which.
    pub memory: InPlace,
    /// The segments that hold a huge page at least.
    pub segments: Vec<SegmentReport>,
    /// The chosen processes that were not read, or read in part only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<SkippedProcess>,
    /// Number of processes that have mapped at least one segment.
    pub sharers: usize,
    /// Not all processes of the machine could be read in time, and there may be more sharers.
    pub more_sharers: bool,
    /// Size of these processes' page tables before the lift, in bytes (`VmPTE`).
    pub page_tables_before: u64,
    /// And after the lift, as predicted before it. The tables of blocks that the lift makes huge are freed in each process that
    /// has them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_tables_predicted: Option<u64>,
    /// And after the lift, as read back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_tables_after: Option<u64>,
    /// Number of sharers that ended during the lift: the size after it lacks their page tables.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<usize>,
    /// Number of processes whose PR_SET_THP_DISABLE was suspended during the lift, by two calls of one of their threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspended: Option<usize>,
    /// Time of the lift.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub microseconds: Option<u64>,
    /// Time of the slowest block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worst_block_microseconds: Option<u64>,
}

/// The reports of all memory that was lifted in place, each by its kind.
#[derive(Clone, Debug, Default, Serialize)]
pub struct InPlaceReports {
    /// Shared memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared: Option<InPlaceReport>,
    /// Anonymous memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anon: Option<InPlaceReport>,
    /// Generated code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jit: Option<InPlaceReport>,
}

impl InPlaceReports {
    /// Adds a report.
    pub fn add(&mut self, report: InPlaceReport) {
        let place = match report.memory {
            InPlace::Shared => &mut self.shared,
            InPlace::Anonymous => &mut self.anon,
            InPlace::Jit => &mut self.jit,
        };
        *place = Some(report);
    }

    /// All reports, by value.
    pub(crate) fn into_all(self) -> impl Iterator<Item = InPlaceReport> {
        [self.shared, self.anon, self.jit].into_iter().flatten()
    }

    /// All reports.
    pub fn all(&self) -> impl Iterator<Item = &InPlaceReport> {
        [&self.shared, &self.anon, &self.jit].into_iter().flatten()
    }
}

impl InPlaceReport {
    /// True if all processes were read, and nothing was left alone that a huge page could hold.
    pub fn is_complete(&self) -> bool {
        self.skipped.is_empty() && self.segments.iter().flat_map(|segment| &segment.left_alone).all(|left| left.is_fine)
    }
}

/// The sharers of the segments, and their page tables, before a lift.
pub(super) struct Before {
    sharers: Sharers,
    skipped: Vec<SkippedProcess>,
    all: BTreeSet<i32>,
    page_tables: u64,
    /// Number of sharers that had page tables.
    alive: usize,
    predicted: Option<u64>,
    memory: InPlace,
    huge: PageSize,
}

impl Before {
    pub fn new(family: &Family, sharers: &Sharers, memory: InPlace, huge: PageSize) -> Self {
        let chosen = family.segments.iter().flat_map(|segment| segment.views.iter().map(|view| view.pid));
        let all: BTreeSet<i32> = sharers.all().into_iter().chain(chosen).collect();
        let skipped = family.skipped.clone();
        let (page_tables, alive) = page_tables(&all);
        Self { sharers: sharers.clone(), skipped, page_tables, alive, predicted: None, all, memory, huge }
    }

    /// Predicts the page tables after the lift. Unknown if not all sharers can be read in time.
    pub fn predicting(self, segments: &[Segment], plan: &Plan) -> Self {
        let tables = if self.sharers.is_complete { predicted(segments, plan, &self.all, self.huge) } else { None };
        match tables {
            Some(tables) => Self { page_tables: tables.before, predicted: Some(tables.after), ..self },
            None => self,
        }
    }

    /// The report of a plan.
    pub fn planned(&self, segments: &[Segment], plan: &Plan) -> InPlaceReport {
        let all = segments.iter().zip(&plan.segments);
        InPlaceReport {
            memory: self.memory,
            segments: all.map(|(segment, planned)| self.segment(segment, planned)).collect(),
            skipped: self.skipped.clone(),
            sharers: self.all.len(),
            more_sharers: !self.sharers.is_complete,
            page_tables_before: self.page_tables,
            page_tables_predicted: self.predicted,
            page_tables_after: None,
            ended: None,
            suspended: None,
            microseconds: None,
            worst_block_microseconds: None,
        }
    }

    /// The report of a lift, without its time and what was suspended.
    pub fn lifted(
        &self,
        segments: &[Segment],
        plan: &Plan,
        outcome: &InPlaceOutcome,
        asking: &mut Asking,
    ) -> InPlaceReport {
        let mut report = self.planned(segments, plan);
        let huge_now = huge_now(segments, asking);
        for ((told, huge), lifted) in report.segments.iter_mut().zip(huge_now).zip(&outcome.segments) {
            told.filled = Some(lifted.filled);
            told.read_back = Some(lifted.read_back);
            told.huge_after = huge;
            told.left_alone.extend(lifted.refused.iter().map(LeftAlone::of));
        }
        let (after, alive) = page_tables(&self.all);
        report.page_tables_after = Some(after);
        report.ended = self.alive.checked_sub(alive).filter(|ended| *ended > 0);
        report.worst_block_microseconds = Some(outcome.worst.as_micros() as u64);
        report
    }

    fn segment(&self, segment: &Segment, planned: &SegmentPlan) -> SegmentReport {
        let SegmentKey { device, inode, kind, .. } = segment.key;
        let first = segment.views.first();
        let chosen: BTreeSet<i32> = segment.views.iter().map(|view| view.pid).collect();
        SegmentReport {
            name: segment.name.clone(),
            kind,
            device,
            inode,
            pid: first.map_or(0, |view| view.pid),
            address: first.map_or_else(String::new, |view| format!("{:#x}", view.range.start().0)),
            mappings: segment.views.len(),
            length: segment.length(),
            data: planned.data,
            resident: segment.resident(),
            sharers: self.sharers.number_of(&segment.key).max(chosen.len()),
            huge_before: planned.huge,
            planned: planned.work.len() as u64 * self.huge.bytes(),
            adds: planned.adds(self.huge),
            huge_after: None,
            filled: None,
            read_back: None,
            left_alone: planned.refused.iter().map(LeftAlone::of).collect(),
        }
    }
}

/// The most that one process maps of each segment by huge pages now; `None` if no process of the segment answers.
fn huge_now(segments: &[Segment], asking: &mut Asking) -> Vec<Option<u64>> {
    let by_number = Segments::new(segments.iter().map(|segment| &segment.key));
    let mut most = vec![0; segments.len()];
    let pids: BTreeSet<i32> = segments.iter().flat_map(|segment| segment.views.iter().map(|view| view.pid)).collect();
    for pid in pids {
        let read = asking.with(pid, move || ProcessFiles::of(pid).smaps().ok());
        let Some(usages) = read.flatten() else { continue };
        let mut mapped: BTreeMap<usize, Mapped> = BTreeMap::new();
        for usage in usages.iter().filter(|usage| usage.mapping.shared) {
            for index in by_number.shown_by(&usage.mapping) {
                mapped.entry(index).or_default().add(usage.mapping.range, usage.mapping.offset, usage.huge());
            }
        }
        let mut of_process: BTreeMap<usize, u64> =
            mapped.iter().map(|(index, mapped)| (*index, mapped.bytes())).collect();
        let is_own = |segment: &Segment| segment.key.kind.is_private() && segment.key.scope == pid as u64;
        for (index, segment) in segments.iter().enumerate().filter(|(_, segment)| is_own(segment)) {
            of_process.insert(index, private::huge_now(&usages, &segment.views));
        }
        for (index, huge) in of_process {
            most[index] = huge.max(most[index]);
        }
    }
    let answers = |segment: &Segment| !segment.views.iter().all(|view| asking.is_silent(view.pid));
    segments.iter().zip(most).map(|(segment, most)| answers(segment).then_some(most)).collect()
}
