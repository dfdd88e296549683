//! Collapses a running program's allocated memory onto transparent huge pages in place, and reads back the outcome.
//!
//! Pool pages cannot be used here: memory that a running program may be writing to cannot be replaced. Blocks are planned and
//! lifted as other anonymous memory is, within the same bounds, but also those that are only half full.

use crate::SessionError;
use crate::shared::{InPlace, InPlaceOptions, InPlaceReport, LeftAlone, lift_for_user};
use address_space::MappingName;
use lift_plan::MachineFacts;
use process_view::ProcessFiles;
use serde::Serialize;
use shared_memory::{Fill, Reason};

/// Anonymous memory of a process, in bytes.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Anonymous {
    /// In RAM.
    pub resident: u64,
    /// Bytes on transparent huge pages.
    pub huge: u64,
}

/// Anonymous memory before and after its collapse.
#[derive(Clone, Debug, Serialize)]
pub struct HeapInPlace {
    /// Before.
    pub before: Anonymous,
    /// After.
    pub after: Anonymous,
    /// Bytes in blocks that are at least half in use and are still on base pages.
    pub left: u64,
    /// These blocks by reason, and the reasons why a part was not counted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_alone: Vec<LeftAlone>,
}

impl HeapInPlace {
    fn of(before: Anonymous, after: Anonymous, report: &InPlaceReport) -> Self {
        let left_alone = left_alone(report);
        Self { before, after, left: left_alone.iter().map(|left| left.bytes).sum(), left_alone }
    }

    /// True if all blocks that could be collapsed are on huge pages, and there are some.
    pub fn is_complete(&self) -> bool {
        self.left == 0 && self.left_alone.is_empty() && self.after.huge > 0
    }
}

/// Collapses a process's anonymous memory where at least half of a huge page is in use. `before` is the memory before that, and
/// before a lift that the report includes.
///
/// # Errors
/// The kernel has no transparent huge pages or refuses, or the process cannot be read.
pub fn collapse_in_place(pid: i32, machine: &MachineFacts, before: Anonymous) -> Result<HeapInPlace, SessionError> {
    if machine.thp.is_none() {
        return Err(SessionError::Refused("heap: this kernel has no transparent huge pages".into()));
    }
    let report = lift_for_user(&[pid], half_full())?;
    if let Some(why) = refusal(&report) {
        return Err(SessionError::Refused(format!("heap: {why}")));
    }
    Ok(HeapInPlace::of(before, anonymous(pid)?, &report))
}

/// The lift of a heap.
pub(super) const fn half_full() -> InPlaceOptions<'static> {
    InPlaceOptions { fill: Fill::Half, with_break: true, ..InPlaceOptions::of(InPlace::Anonymous) }
}

/// Why the kernel collapses nothing, and the fix, if it refuses all.
pub(super) fn refusal(report: &InPlaceReport) -> Option<String> {
    let is_refusal = |left: &&LeftAlone| matches!(left.cause, Some(Reason::NotPermitted | Reason::OldKernel { .. }));
    let refused = report.segments.iter().flat_map(|segment| &segment.left_alone).find(is_refusal)?;
    let fix = refused.fix.as_ref().map(|fix| format!("; fix: {fix}")).unwrap_or_default();
    Some(format!("collapsing is refused: {}{fix}", refused.reason))
}

/// Memory that was to be collapsed and was not, by reason. Memory that the program itself keeps off huge pages, or uses to less
/// than half, is left out.
pub(super) fn left_alone(report: &InPlaceReport) -> Vec<LeftAlone> {
    let skipped = report.skipped.iter().map(|process| LeftAlone {
        reason: process.reason.clone(),
        fix: None,
        blocks: 0,
        bytes: 0,
        is_fine: false,
        cause: None,
    });
    let left = report.segments.iter().flat_map(|segment| &segment.left_alone);
    left.filter(|left| !left.is_fine && !left.cause.as_ref().is_some_and(is_expected)).cloned().chain(skipped).collect()
}

fn is_expected(reason: &Reason) -> bool {
    matches!(
        reason,
        Reason::Holes { .. }
            | Reason::AdvisedAgainst
            | Reason::Watched
            | Reason::Mergeable
            | Reason::Locked
            | Reason::Guarded
            | Reason::Changed
            | Reason::Gone
    )
}

/// Anonymous memory of a process now.
pub(crate) fn anonymous(pid: i32) -> Result<Anonymous, SessionError> {
    let usages = ProcessFiles::of(pid).smaps()?;
    let is_anonymous = |name: &MappingName| !matches!(name, MappingName::Special(_) | MappingName::Stack);
    let all = usages.iter().filter(|usage| usage.mapping.inode == 0 && is_anonymous(&usage.mapping.name));
    Ok(all.fold(Anonymous::default(), |sum, usage| Anonymous {
        resident: sum.resident + usage.resident,
        huge: sum.huge + usage.anonymous_huge,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use machine_facts::machine_facts;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Child, Command, Stdio};

    /// A shell with 32 MiB of memory that it shares with a child, until it reads a line. It ends after another line.
    struct Forked(Child);

    impl Forked {
        fn start() -> Self {
            let script = "x=$(head -c 33554432 /dev/zero | tr '\\0' a); (echo ready; read y); echo alone; read z";
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
            Self(command.spawn().unwrap())
        }
    }

    impl Drop for Forked {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn memory_that_is_shared_since_a_fork_is_not_copied() {
        let mut shell = Forked::start();
        let mut lines = BufReader::new(shell.0.stdout.take().unwrap()).lines();
        let mut stdin = shell.0.stdin.take().unwrap();
        let (pid, machine) = (shell.0.id() as i32, machine_facts(std::process::id() as i32));
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        // Needs root, and a kernel that collapses.
        let Ok(heap) = collapse_in_place(pid, &machine, anonymous(pid).unwrap()) else { return };
        assert_eq!(heap.after.huge, heap.before.huge, "{heap:?}");
        assert!(heap.left >= 16 << 20 && !heap.is_complete(), "{heap:?}");
        let is_forked = |left: &LeftAlone| matches!(left.cause, Some(Reason::Forked { .. }));
        assert!(heap.left_alone.iter().all(is_forked), "{heap:?}");
        writeln!(stdin).unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), "alone");
        let heap = collapse_in_place(pid, &machine, anonymous(pid).unwrap()).unwrap();
        assert!(heap.after.huge >= heap.before.huge + (16 << 20) || !heap.left_alone.is_empty(), "{heap:?}");
    }

    #[test]
    fn a_heap_is_complete_only_if_all_blocks_were_counted() {
        let left = |cause: Reason| {
            let reason = cause.to_string();
            LeftAlone { reason, fix: None, blocks: 0, bytes: 0, is_fine: false, cause: Some(cause) }
        };
        let huge = Anonymous { resident: 8 << 20, huge: 8 << 20 };
        let heap = |left_alone| HeapInPlace { before: Anonymous::default(), after: huge, left: 0, left_alone };
        assert!(heap(Vec::new()).is_complete());
        assert!(!heap(vec![left(Reason::TooScattered)]).is_complete());
        assert!(!HeapInPlace { after: Anonymous::default(), ..heap(Vec::new()) }.is_complete());
        let by_program = [Reason::AdvisedAgainst, Reason::Mergeable, Reason::Holes { would_add: 1 }];
        assert!(by_program.iter().all(is_expected) && !is_expected(&Reason::Forked { common: 1 }));
    }
}
