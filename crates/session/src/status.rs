//! Reads what the kernel backs with huge pages now, in one process or in all.

use crate::heap::{PreloadedHeapView, preloaded_heap};
use process_view::coverage::{Coverage, HugeProcesses, LostContents};
use process_view::{ObservationError, ProcessMemory, processes_with_huge_pages};
use serde::Serialize;

/// The coverage of a process, and the record of a preloaded heap in it.
#[derive(Serialize)]
pub struct ProcessStatus {
    /// Coverage from smaps.
    #[serde(flatten)]
    pub coverage: Coverage,
    /// The preloaded heap, where one is active in the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preloaded_heap: Option<PreloadedHeapView>,
    /// Parts of copies of files that the process has discarded, and that read as zeros.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<LostContents>,
}

/// Returns the status of one process.
///
/// # Errors
/// The process has ended, or may not be looked at.
pub fn status_of(pid: i32) -> Result<ProcessStatus, ObservationError> {
    let memory = ProcessMemory::read(pid)?;
    Ok(ProcessStatus { coverage: memory.coverage(), preloaded_heap: preloaded_heap(pid), lost: memory.lost() })
}

/// Returns the status of all processes that have memory on huge pages.
///
/// # Errors
/// /proc is not mounted or cannot be listed.
pub fn status_of_all() -> Result<HugeProcesses, ObservationError> {
    processes_with_huge_pages()
}
