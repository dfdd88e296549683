//! Collapses a running program's allocated memory onto transparent huge pages in place, and reads back the outcome.
//!
//! Pool pages cannot be used here: memory that a running program may be writing to cannot be replaced.

use crate::SessionError;
use address_space::MappingName;
use heap_choice::{CollapseError, collapse_once, collapsible};
use lift_plan::MachineFacts;
use linux::pages::base_page;
use process_view::ProcessFiles;
use serde::Serialize;

/// Requirements of `process_madvise(MADV_COLLAPSE)` on another process.
pub const COLLAPSE_NEEDS: &str = "needed: Linux 6.1 and CAP_SYS_NICE, which root has";

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
}

impl HeapInPlace {
    /// True if all blocks that could be collapsed are on huge pages, and there are some.
    pub fn is_complete(&self) -> bool {
        self.left == 0 && self.after.huge > 0
    }
}

/// Collapses a process's anonymous memory where at least half of a huge page is in use. `before` is the memory before that, and
/// before a lift that the report includes.
///
/// # Errors
/// The kernel has no transparent huge pages or refuses, or the process has ended.
pub fn collapse_in_place(pid: i32, machine: &MachineFacts, before: Anonymous) -> Result<HeapInPlace, SessionError> {
    let refused = |why: String| SessionError::Refused(format!("heap: {why}"));
    let Some(thp) = machine.thp else { return Err(refused("this kernel has no transparent huge pages".into())) };
    match collapse_once(pid, thp.size, base_page()) {
        Ok(_) => {
            let left = collapsible(pid, thp.size, base_page()).unwrap_or(0);
            Ok(HeapInPlace { before, after: anonymous(pid)?, left })
        }
        Err(CollapseError::Gone) => Err(refused("the process has ended, or cannot be read".into())),
        Err(CollapseError::Refused(error)) => {
            Err(refused(format!("collapsing is refused ({error}); {COLLAPSE_NEEDS}")))
        }
    }
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
