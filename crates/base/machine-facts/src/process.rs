//! The facts about a process on which a plan depends.

use crate::facts::SpecialMapping;
use address_space::{AddressRange, AddressSpace, FileNumbers, LoadedObject, Mapping, PageSize, RangeSet};
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;
use serde::Serialize;

/// A range of a process that a shared image can show.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ImageSpan {
    /// Addresses of the process, in whole base pages.
    pub range: AddressRange,
    /// The image's path.
    pub path: String,
    /// Offset in the image of the span's first byte; agrees with its address modulo `page_size`.
    pub offset: u64,
    /// Size of the image's huge pages.
    pub page_size: PageSize,
    /// The NUMA node of the image, if the image is a copy for one node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<u32>,
}

/// The reason in words why a file is not in huge folios.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CacheShortfall {
    /// The reason: found and needed.
    pub why: String,
    /// The command or change that fixes it, if there is one.
    pub fix: Option<String>,
}

/// The parts of an object's file that are in huge folios of the page cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CachedFile {
    /// The object's path, as maps shows it.
    pub path: String,
    /// Its numbers, as maps shows them: another file may have had the path before.
    pub numbers: FileNumbers,
    /// The parts in huge folios, as offsets in bytes, in their order.
    pub huge: Vec<Range<u64>>,
    /// Path by which the process itself opens the same file, if there is one.
    pub own_path: Option<String>,
    /// The reason for which the other parts are not in huge folios, if it is known.
    pub shortfall: Option<CacheShortfall>,
}

impl CachedFile {
    /// True if the mapping shows this file.
    pub fn is_shown_by(&self, mapping: &Mapping) -> bool {
        mapping.file_numbers() == self.numbers && mapping.path() == Some(self.path.as_str())
    }

    /// True if the whole part is in huge folios.
    pub fn holds(&self, part: &Range<u64>) -> bool {
        let index = self.huge.partition_point(|huge| huge.end <= part.start);
        self.huge.get(index).is_some_and(|huge| huge.start <= part.start && part.end <= huge.end)
    }
}

/// The facts about the process on which a plan depends.
#[derive(Clone, Debug, Default)]
pub struct ProcessFacts {
    /// Its mappings.
    pub space: AddressSpace,
    /// Its ELF objects.
    pub objects: Vec<LoadedObject>,
    /// Pages of anonymous mappings that have been touched: present or swapped out.
    pub touched: RangeSet,
    /// The ranges that shared images can show. They contain no page that differs from its file.
    pub images: Vec<ImageSpan>,
    /// The parts of its objects' files that are in huge folios of the page cache.
    pub cached: Vec<CachedFile>,
    /// Pages of these files' mappings that the process has written, and that are therefore private.
    pub changed: RangeSet,
    /// Mappings that must not be replaced.
    pub special: Vec<SpecialMapping>,
    /// Pages of code that hold a breakpoint or a uprobe, and must not be copied.
    pub probed: RangeSet,
    /// Semaphores of USDT probes in writable pages of files, which must not be copied.
    pub semaphores: RangeSet,
    /// The program sets up its own RELRO after this moment (a static program at its entry).
    pub relocates_itself: bool,
    /// The program runs: writable memory may change at any moment, and the kernel may be writing to it.
    pub running: bool,
    /// The program is stopped, but has other threads, which resume at once if the lifter is killed: their writes
    /// between the copy of a range and its exchange would be lost.
    pub other_threads: bool,
}

impl ProcessFacts {
    /// True if a copy of writable memory may miss a write of the program.
    pub fn may_write_during_copies(&self) -> bool {
        self.running || self.other_threads
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_shows_a_file_by_its_path_device_and_inode_together() {
        let numbers = FileNumbers { device: (0xfe, 0), inode: 7 };
        let file = CachedFile { path: "/bin/exe".into(), numbers, ..CachedFile::default() };
        let lines = "\
1000-2000 r-xp 0 fe:00 7 /bin/exe
2000-3000 r-xp 0 fe:00 8 /bin/exe
3000-4000 r-xp 0 fe:01 7 /bin/exe
4000-5000 r-xp 0 fe:00 7 /bin/other
5000-6000 rw-p 0 00:00 0
";
        let space = AddressSpace::parse(lines).unwrap();
        let shown: Vec<_> = space.mappings().iter().map(|mapping| file.is_shown_by(mapping)).collect();
        assert_eq!(shown, [true, false, false, false, false]);
    }

    #[test]
    fn a_part_is_held_by_one_huge_part_that_has_all_of_it() {
        let file = CachedFile { huge: vec![0x1000..0x3000, 0x5000..0x6000], ..CachedFile::default() };
        let held = [0x1000..0x3000, 0x2000..0x3000, 0x5000..0x6000];
        let not_held = [0..0x2000, 0x2000..0x4000, 0x2000..0x6000, 0x6000..0x7000];
        assert!(held.iter().all(|part| file.holds(part)));
        assert!(!not_held.iter().any(|part| file.holds(part)));
    }
}
