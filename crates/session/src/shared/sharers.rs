//! All processes of the machine that have mapped a segment, and their page tables.

use address_space::Mapping;
use machine_facts::meminfo_bytes;
use process_view::ProcessFiles;
use shared_memory::{SegmentKey, SegmentKind};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Time for looking at all processes of the machine.
const MOST_TIME: Duration = Duration::from_secs(5);

/// The processes that share each segment.
#[derive(Clone, Debug, Default)]
pub(super) struct Sharers {
    by_segment: BTreeMap<SegmentKey, BTreeSet<i32>>,
    /// False if there was no time for all processes.
    pub is_complete: bool,
}

impl Sharers {
    /// Finds the sharers. Processes that may not be read, or that end meanwhile, are left out.
    pub fn of(keys: &[SegmentKey]) -> Self {
        let until = Instant::now() + MOST_TIME;
        let mut found = Self { by_segment: BTreeMap::new(), is_complete: true };
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        for pid in entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()) {
            if Instant::now() >= until {
                found.is_complete = false;
                break;
            }
            let Ok(space) = ProcessFiles::of(pid).maps() else { continue };
            for mapping in space.mappings().iter().filter(|mapping| mapping.shared) {
                for key in keys.iter().filter(|key| is_of(mapping, key)) {
                    found.by_segment.entry(*key).or_default().insert(pid);
                }
            }
        }
        found
    }

    /// Number of processes that share a segment.
    pub fn number_of(&self, key: &SegmentKey) -> usize {
        self.by_segment.get(key).map_or(0, BTreeSet::len)
    }

    /// All processes that share a segment.
    pub fn all(&self) -> BTreeSet<i32> {
        self.by_segment.values().flatten().copied().collect()
    }
}

/// True for a mapping of the segment. System V segments of other IPC namespaces may count, too.
pub(super) fn is_of(mapping: &Mapping, key: &SegmentKey) -> bool {
    let is_system_v = mapping.path().is_some_and(|path| path.starts_with("/SYSV"));
    (mapping.device, mapping.inode) == (key.device, key.inode) && is_system_v == (key.kind == SegmentKind::SystemV)
}

/// Bytes in the page tables of the processes (`VmPTE`).
pub(super) fn page_tables(pids: &BTreeSet<i32>) -> u64 {
    let of = |pid: &i32| meminfo_bytes(&ProcessFiles::of(*pid).text("status").ok()?, "VmPTE");
    pids.iter().filter_map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_page_tables() {
        let own = BTreeSet::from([std::process::id() as i32]);
        assert!(page_tables(&own) > 0 && page_tables(&BTreeSet::new()) == 0);
    }
}
