//! Finds every process that has memory on huge pages.

use super::{COVERAGE_VERSION, Usage};
use crate::{ObservationError, ProcessFiles, Unanswered, each_process};
use address_space::PageSize;
use linux::pages::transparent_huge_page;
use serde::Serialize;

/// The processes with memory on huge pages of any kind.
#[derive(Clone, Debug, Serialize)]
pub struct HugeProcesses {
    /// [`COVERAGE_VERSION`].
    pub version: u32,
    /// The most huge bytes first.
    pub processes: Vec<HugeProcess>,
    /// Number of processes that this user cannot inspect.
    pub not_permitted: u64,
    /// Processes that are left out because they do not answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unanswered: Vec<Unanswered>,
    /// Processes that cannot be read for another reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<UnreadableProcess>,
}

/// A process whose memory cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnreadableProcess {
    /// Its number.
    pub pid: i32,
    /// Why.
    pub reason: String,
}

/// One process with memory on huge pages.
#[derive(Clone, Debug, Serialize)]
pub struct HugeProcess {
    /// Its number.
    pub pid: i32,
    /// The name the kernel knows it by.
    pub name: String,
    /// All of its memory.
    pub usage: Usage,
}

/// All processes that have any memory on huge pages.
///
/// # Errors
/// [`ObservationError`] where `/proc` cannot be listed. A process that ends while it is read is skipped; one that this
/// user cannot inspect is counted, and one that cannot be read for another reason, or does not answer, is named.
pub fn processes_with_huge_pages() -> Result<HugeProcesses, ObservationError> {
    let mut found = HugeProcesses {
        version: COVERAGE_VERSION,
        processes: Vec::new(),
        not_permitted: 0,
        unanswered: Vec::new(),
        unreadable: Vec::new(),
    };
    let thp = transparent_huge_page();
    let mut no_proc = false;
    let look = move |process: &ProcessFiles| look_at(process, thp);
    each_process(look, |pid, looked| match looked {
        Ok(Ok(Some(process))) => found.processes.push(process),
        Ok(Ok(None) | Err(ObservationError::NoSuchProcess { .. })) => {}
        Ok(Err(ObservationError::NotPermitted { .. })) => found.not_permitted += 1,
        Ok(Err(ObservationError::ProcNotMounted)) => no_proc = true,
        // One process must not hide all others: its user chooses how long its smaps is.
        Ok(Err(error)) => found.unreadable.push(UnreadableProcess { pid, reason: error.in_full() }),
        Err(unanswered) => found.unanswered.push(unanswered),
    })?;
    if no_proc {
        return Err(ObservationError::ProcNotMounted);
    }
    found.unreadable.sort_by_key(|process| process.pid);
    found.processes.sort_by_key(|process| (std::cmp::Reverse(process.usage.huge_bytes()), process.pid));
    Ok(found)
}

/// Reads the rollup first, which costs the kernel a walk but little text. Only if the process has huge pages are all
/// mappings read, because only they show the sizes of hugetlb pages.
fn look_at(process: &ProcessFiles, thp: Option<PageSize>) -> Result<Option<HugeProcess>, ObservationError> {
    match process.text("smaps_rollup") {
        Ok(rollup) if !has_huge_bytes(&rollup) => return Ok(None),
        // Kernels before 4.14 have no rollup.
        Ok(_) | Err(ObservationError::Io { .. }) => {}
        Err(error) => return Err(error),
    }
    let mut usage = Usage::default();
    for mapping in process.smaps()? {
        usage += &Usage::of(&mapping, thp);
    }
    let name = process.name()?;
    Ok((usage.huge_bytes() > 0).then_some(HugeProcess { pid: process.pid(), name, usage }))
}

fn has_huge_bytes(rollup: &str) -> bool {
    const FIELDS: [&str; 5] = ["AnonHugePages", "ShmemPmdMapped", "FilePmdMapped", "Private_Hugetlb", "Shared_Hugetlb"];
    rollup.lines().filter_map(|line| line.split_once(':')).any(|(field, value)| {
        FIELDS.contains(&field) && value.trim().trim_end_matches(" kB").parse::<u64>().is_ok_and(|kib| kib > 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollup_tells_whether_there_is_anything_huge() {
        let rollup =
            |huge: &str| format!("1000-2000 ---p 00000000 00:00 0 [rollup]\nRss: 4 kB\nAnonHugePages: {huge} kB\n");
        assert!(has_huge_bytes(&rollup("    2048")));
        assert!(!has_huge_bytes(&rollup("       0")));
    }

    #[test]
    fn the_processes_of_this_machine_can_be_listed() {
        let found = processes_with_huge_pages().unwrap();
        assert!(found.processes.iter().all(|process| process.usage.huge_bytes() > 0 && !process.name.is_empty()));
    }
}
