//! All processes of the machine that have mapped a segment, and their page tables.

use address_space::{FileNumbers, Mapping};
use machine_facts::meminfo_bytes;
use process_view::{ProcessFiles, each_process};
use shared_memory::{SegmentKey, SegmentKind};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Time for looking at all processes of the machine.
const MOST_TIME: Duration = Duration::from_secs(5);

/// The processes that share each segment.
#[derive(Clone, Debug, Default)]
pub(super) struct Sharers {
    by_segment: BTreeMap<SegmentKey, BTreeSet<i32>>,
    /// False if there was no time for all processes, or one did not answer.
    pub is_complete: bool,
}

impl Sharers {
    /// Those of private memory.
    pub fn none() -> Self {
        Self { by_segment: BTreeMap::new(), is_complete: true }
    }

    /// Finds the sharers. Processes that may not be read, or that end meanwhile, are left out.
    pub fn of(keys: &[SegmentKey]) -> Self {
        let (until, segments) = (Instant::now() + MOST_TIME, Segments::new(keys));
        let mut found = Self::none();
        let look = move |process: &ProcessFiles| (Instant::now() < until).then(|| process.maps());
        let listed = each_process(look, |pid, looked| match looked {
            Ok(Some(Ok(space))) => {
                for mapping in space.mappings().iter().filter(|mapping| mapping.shared) {
                    for index in segments.shown_by(mapping) {
                        found.by_segment.entry(keys[index]).or_default().insert(pid);
                    }
                }
            }
            Ok(Some(Err(_))) => {}
            Ok(None) | Err(_) => found.is_complete = false,
        });
        found.is_complete &= listed.is_ok();
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

/// Finds segments by device and inode.
pub(super) struct Segments {
    /// Index of each segment, and whether it is a System V segment.
    by_number: BTreeMap<FileNumbers, Vec<(usize, bool)>>,
}

impl Segments {
    pub fn new<'a>(keys: impl IntoIterator<Item = &'a SegmentKey>) -> Self {
        let mut by_number = BTreeMap::<_, Vec<_>>::new();
        for (index, key) in keys.into_iter().enumerate() {
            by_number.entry(key.numbers()).or_default().push((index, key.kind == SegmentKind::SystemV));
        }
        Self { by_number }
    }

    /// The indices of the segments that a mapping can show. System V segments of other IPC namespaces may be among them.
    pub fn shown_by(&self, mapping: &Mapping) -> impl Iterator<Item = usize> {
        let is_system_v = mapping.path().is_some_and(|path| path.starts_with("/SYSV"));
        let found = self.by_number.get(&mapping.file_numbers()).into_iter().flatten();
        found.filter(move |(_, of_system_v)| *of_system_v == is_system_v).map(|(index, _)| *index)
    }
}

/// Bytes in the page tables of a process (`VmPTE`). An ended one has none.
pub(super) fn page_tables_of(pid: i32) -> Option<u64> {
    meminfo_bytes(&ProcessFiles::of(pid).text("status").ok()?, "VmPTE")
}

/// Bytes in the page tables of the processes (`VmPTE`), and the number of processes that have any. Ended ones have none.
pub(super) fn page_tables(pids: &BTreeSet<i32>) -> (u64, usize) {
    pids.iter().filter_map(|pid| page_tables_of(*pid)).fold((0, 0), |(sum, count), bytes| (sum + bytes, count + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_found_by_number_and_kind() {
        let key = |kind, inode| SegmentKey { device: (0, 1), inode, kind, scope: 0 };
        let keys = [key(SegmentKind::Memfd, 0), key(SegmentKind::SystemV, 0), key(SegmentKind::Memfd, 5)];
        let segments = Segments::new(&keys);
        let shown = |text: &str| {
            let mapping = address_space::AddressSpace::parse(&format!("1000-2000 rw-s 0 {text}\n")).unwrap();
            segments.shown_by(&mapping.mappings()[0]).collect::<Vec<_>>()
        };
        assert_eq!(shown("00:01 0 /SYSV00000000 (deleted)"), [1]);
        assert_eq!(shown("00:01 5 /memfd:x (deleted)"), [2]);
        assert_eq!((shown("00:02 5 /memfd:x (deleted)"), shown("00:01 0 /memfd:x (deleted)")), (vec![], vec![0]));
    }

    #[test]
    fn this_process_has_page_tables() {
        let own = BTreeSet::from([std::process::id() as i32]);
        assert!(page_tables(&own).0 > 0 && page_tables(&own).1 == 1);
        assert_eq!(page_tables(&BTreeSet::from([i32::MAX])), (0, 0));
    }
}
