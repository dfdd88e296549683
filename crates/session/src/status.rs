//! Reads the memory that the kernel backs with huge pages now, in one process or in all.

use crate::heap::{PreloadedHeapView, preloaded_heap};
use crate::names::program_name;
use crate::nodes::{FarPages, Home, far_pages};
use address_space::MappingUsage;
use lift_plan::Numa;
use linux::nodes::has_several_nodes;
use machine_facts::{System, numa_facts};
use process_view::coverage::{Coverage, HugeProcesses, LostContents};
use process_view::{ObservationError, ProcessFiles, ProcessMemory, each_of, processes_with_huge_pages};
use serde::Serialize;
use std::collections::BTreeMap;

/// The coverage of a process, and the record of a preloaded heap in it.
#[derive(Serialize)]
pub struct ProcessStatus {
    /// Coverage from smaps.
    #[serde(flatten)]
    pub coverage: Coverage,
    /// The preloaded heap, if one is active in the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preloaded_heap: Option<PreloadedHeapView>,
    /// Parts of copies of files that the process has discarded, and that read as zeros.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<LostContents>,
    /// Files and images that it maps by huge pages from other NUMA nodes than its own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub far_pages: Vec<FarPages>,
}

/// Returns the status of one process.
///
/// # Errors
/// The process has ended, or may not be read.
pub fn status_of(pid: i32) -> Result<ProcessStatus, ObservationError> {
    let memory = ProcessMemory::read(pid)?;
    let (coverage, lost) = (Coverage { name: program_name(pid), ..memory.coverage() }, memory.lost());
    Ok(ProcessStatus { coverage, preloaded_heap: preloaded_heap(pid), lost, far_pages: far_pages_of(&memory) })
}

/// Returns the files and images that a process maps by huge pages from other NUMA nodes than its own.
pub fn far_pages_of(memory: &ProcessMemory) -> Vec<FarPages> {
    if !has_several_nodes() {
        return Vec::new();
    }
    let is_huge = |usage: &&MappingUsage| usage.mapping.inode != 0 && usage.huge() > 0;
    let huge: Vec<_> = memory.usages.iter().filter(is_huge).map(|usage| usage.mapping.range).collect();
    let Some(facts) = numa_facts(&System, &format!("/proc/{}", memory.pid), &[]) else { return Vec::new() };
    let home = facts.home(Numa::Own).map_or(Home::Unknown, Home::Node);
    let Ok(space) = ProcessFiles::of(memory.pid).maps() else { return Vec::new() };
    far_pages(memory.pid, &space, home, &huge)
}

/// Returns the status of all processes that have memory on huge pages.
///
/// # Errors
/// /proc is not mounted or cannot be listed.
pub fn status_of_all() -> Result<HugeProcesses, ObservationError> {
    let mut found = processes_with_huge_pages()?;
    let pids: Vec<_> = found.processes.iter().map(|process| process.pid).collect();
    let mut names = BTreeMap::new();
    // One that has answered before may be silent now: it keeps its short name.
    each_of(pids, |process| program_name(process.pid()), |pid, name| names.extend(name.ok().map(|name| (pid, name))));
    for process in &mut found.processes {
        names.remove(&process.pid).into_iter().for_each(|name| process.name = name);
    }
    Ok(found)
}
