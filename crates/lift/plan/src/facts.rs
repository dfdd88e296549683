//! The planner's input: facts about the machine and the process.

use crate::numa_facts::NumaFacts;
use crate::reason::CacheShortfall;
use address_space::{AddressRange, AddressSpace, LoadedObject, Mapping, PageSize, RangeSet};
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;
use serde::Serialize;

/// A pool of hugetlb pages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HugePool {
    /// Page size.
    pub size: PageSize,
    /// Pages in the pool.
    pub total: u64,
    /// Pages that a new mapping can use: free less reserved, plus what overcommit still allows, limited by the
    /// process's hugetlb cgroup.
    pub available: u64,
}

impl HugePool {
    /// Returns the available pages, from the kernel's counts of free, reserved, overcommit and surplus pages.
    pub const fn available_of(free: u64, reserved: u64, overcommit: u64, surplus: u64) -> u64 {
        free.saturating_sub(reserved) + overcommit.saturating_sub(surplus)
    }
}

/// Mode of transparent huge pages, `/sys/kernel/mm/transparent_hugepage/enabled`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ThpMode {
    /// Everywhere.
    Always,
    /// Where advised.
    Madvise,
    /// Nowhere.
    Never,
    /// Not in this process (`prctl(PR_SET_THP_DISABLE)`, which children inherit).
    OffInProcess,
}

impl ThpMode {
    /// Reads the general mode, such as `always [madvise] never`, and that of one size: since Linux 6.8 each size has a
    /// mode of its own, which may refer to the general one. A missing file is passed as an empty text.
    pub fn read(general: &str, own: &str) -> Option<Self> {
        let word = match chosen(own) {
            Some("inherit") | None => chosen(general)?,
            Some(mode) => mode,
        };
        Some(match word {
            "always" => Self::Always,
            "madvise" => Self::Madvise,
            _ => Self::Never,
        })
    }
}

/// Returns the word in brackets.
fn chosen(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0)
}

/// A limit of a hugetlb cgroup that leaves a process fewer pages than the pool has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PoolLimit {
    /// Page size.
    pub size: PageSize,
    /// Pages that the pool has for a process without a limit.
    pub pool: u64,
    /// The limit in bytes.
    pub limit: u64,
    /// The file that sets it.
    pub file: String,
}

/// Transparent huge pages of this kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ThpFacts {
    /// The size that one page-middle-directory entry maps.
    pub size: PageSize,
    /// System-wide mode.
    pub mode: ThpMode,
}

/// The facts about the machine on which a plan depends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MachineFacts {
    /// `e_machine` of the programs that this build can lift.
    pub elf_machine: u16,
    /// Ordinary page size.
    pub base_page: PageSize,
    /// Pools, smallest size first; empty on a kernel without hugetlb.
    pub pools: Vec<HugePool>,
    /// Limits of cgroups that leave fewer pages than the pools have.
    pub pool_limits: Vec<PoolLimit>,
    /// The kernel's default hugetlb size (`Hugepagesize` in `/proc/meminfo`).
    pub default_hugetlb: Option<PageSize>,
    /// Transparent huge pages; `None` on a kernel without them.
    pub thp: Option<ThpFacts>,
    /// `mremap` moves hugetlb mappings (Linux 5.16).
    pub movable_hugetlb: bool,
    /// `MADV_COLLAPSE` exists (Linux 6.1).
    pub collapse: bool,
    /// `MADV_DONTNEED` frees the page tables that it empties, so that the next access to a file in huge folios gets a
    /// huge entry (seen with Linux 6.18, not with 6.12).
    pub refaults_huge: bool,
    /// Bytes that can be made resident without memory pressure: available memory, or a part of what is left below the
    /// tightest memory cgroup limit. Memory that the program itself has yet to touch is not subtracted.
    pub memory_available: u64,
    /// Name of the bound that sets `memory_available`, for messages.
    pub memory_bound: String,
    /// `vm.max_map_count`.
    pub max_mappings: u64,
    /// NUMA; `None` on a machine with one node.
    pub numa: Option<NumaFacts>,
}

impl MachineFacts {
    /// Returns the pool of pages of this size.
    pub fn pool(&self, size: PageSize) -> Option<&HugePool> {
        self.pools.iter().find(|pool| pool.size == size)
    }

    /// Returns the size used where the user names none: that of transparent huge pages, else the default of hugetlb.
    pub fn usual_huge_page(&self) -> Option<PageSize> {
        self.thp.map(|thp| thp.size).or(self.default_hugetlb).or_else(|| self.pools.first().map(|pool| pool.size))
    }

    /// Returns the facts of this machine as if its pools and its memory lacked nothing, to find what a lift would take. Pool
    /// pages are movable then: what they would hold of a program that runs is what its next start takes on any kernel.
    pub fn with_plentiful_pools(self) -> Self {
        /// Far more than any program has, and far from where sums overflow.
        const PLENTY_BYTES: u64 = 1 << 47;
        let plenty = |pool: HugePool| HugePool { available: PLENTY_BYTES / pool.size.bytes(), ..pool };
        let pools: Vec<_> = self.pools.into_iter().map(plenty).collect();
        let numa = self.numa.map(|mut numa| {
            for node in &mut numa.nodes {
                node.pools = pools.iter().map(|pool| (pool.size, pool.available)).collect();
                node.memory = PLENTY_BYTES;
            }
            numa
        });
        Self { pools, memory_available: PLENTY_BYTES, numa, movable_hugetlb: true, ..self }
    }

    /// Returns the facts for a process that has disabled transparent huge pages for itself.
    pub fn with_thp_off_in_process(self) -> Self {
        Self { thp: self.thp.map(|thp| ThpFacts { mode: ThpMode::OffInProcess, ..thp }), ..self }
    }
}

/// A mapping that carries a property which a copy of its memory would lose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecialMapping {
    /// Where.
    pub range: AddressRange,
    /// The property, for messages.
    pub property: String,
}

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
    /// The NUMA node on which the image lies, where it is a copy for one node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<u32>,
}

/// How the file of an object lies in the page cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CachedFile {
    /// The object's path, as maps shows it.
    pub path: String,
    /// Major and minor number of its device, as maps shows them.
    pub device: (u32, u32),
    /// Its inode number, as maps shows it: another file may have had the path before.
    pub inode: u64,
    /// The parts in huge folios, as offsets in bytes, in their order.
    pub huge: Vec<Range<u64>>,
    /// Path by which the process itself opens the same file, if there is one.
    pub own_path: Option<String>,
    /// Why the other parts do not lie in huge folios, if that is known.
    pub shortfall: Option<CacheShortfall>,
}

impl CachedFile {
    /// True where the mapping shows this file.
    pub fn is_shown_by(&self, mapping: &Mapping) -> bool {
        (mapping.device, mapping.inode) == (self.device, self.inode) && mapping.path() == Some(self.path.as_str())
    }

    /// True where all of the part lies in huge folios.
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
    /// What shared images can show of it. Pages that differ from their file are not in these.
    pub images: Vec<ImageSpan>,
    /// How the files of its objects lie in the page cache.
    pub cached: Vec<CachedFile>,
    /// Pages of these files' mappings that were written to, and are the process's own.
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
    /// The program stands still, but has other threads, which go on at once should the lifter be killed: what they write
    /// between the copy of a range and its exchange would be lost.
    pub other_threads: bool,
}

impl ProcessFacts {
    /// True where a copy of writable memory may miss what the program writes.
    pub fn may_write_during_copies(&self) -> bool {
        self.running || self.other_threads
    }
}

/// The facts of a machine with two pools of one page each.
#[cfg(test)]
pub(crate) fn bare() -> MachineFacts {
    let size = |bytes: u64| PageSize::new(bytes).unwrap();
    let pool = |bytes: u64| HugePool { size: size(bytes), total: 1, available: 1 };
    MachineFacts {
        elf_machine: 62,
        base_page: size(1 << 12),
        pools: vec![pool(1 << 21), pool(1 << 30)],
        default_hugetlb: Some(size(1 << 30)),
        thp: Some(ThpFacts { size: size(1 << 21), mode: ThpMode::Madvise }),
        movable_hugetlb: true,
        collapse: true,
        refaults_huge: true,
        memory_available: 0,
        memory_bound: String::new(),
        max_mappings: 0,
        numa: None,
        pool_limits: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::bare as facts;
    use super::*;

    #[test]
    fn the_chosen_mode_stands_in_brackets() {
        assert_eq!(ThpMode::read("always [madvise] never\n", ""), Some(ThpMode::Madvise));
        assert_eq!(ThpMode::read("[always] madvise never", "always [inherit] madvise never"), Some(ThpMode::Always));
        assert_eq!(ThpMode::read("[always] madvise never", "always inherit madvise [never]"), Some(ThpMode::Never));
        assert_eq!(ThpMode::read("always madvise", ""), None);
    }

    #[test]
    fn available_pages_are_free_and_not_reserved_or_still_allowed() {
        assert_eq!(HugePool::available_of(7, 3, 5, 1), 4 + 4);
        assert_eq!(HugePool::available_of(3, 7, 1, 5), 0);
        assert_eq!(HugePool::available_of(7, 0, 0, 0), 7);
    }

    #[test]
    fn plentiful_pools_keep_their_sizes() {
        let plentiful = facts().with_plentiful_pools();
        let pages: Vec<_> =
            plentiful.pools.iter().map(|pool| (pool.size.bytes(), pool.total, pool.available)).collect();
        assert_eq!(pages, [(1 << 21, 1, 1 << 26), (1 << 30, 1, 1 << 17)]);
        assert_eq!(plentiful.memory_available, 1 << 47);
    }

    #[test]
    fn a_pool_is_found_by_its_size() {
        let facts = facts();
        assert_eq!(facts.pool(facts.pools[1].size), Some(&facts.pools[1]));
        assert_eq!(facts.pool(facts.base_page), None);
    }

    #[test]
    fn the_usual_size_is_that_of_transparent_pages_then_the_default_then_the_smallest() {
        let usual = |facts: &MachineFacts| facts.usual_huge_page().map(PageSize::bytes);
        let without_thp = MachineFacts { thp: None, ..facts() };
        let without_default = MachineFacts { default_hugetlb: None, ..without_thp.clone() };
        let without_pools = MachineFacts { pools: Vec::new(), ..without_default.clone() };
        assert_eq!([usual(&facts()), usual(&without_thp)], [Some(1 << 21), Some(1 << 30)]);
        assert_eq!([usual(&without_default), usual(&without_pools)], [Some(1 << 21), None]);
    }

    #[test]
    fn a_process_switches_transparent_pages_off_and_nothing_else() {
        let off = ThpFacts { mode: ThpMode::OffInProcess, ..facts().thp.unwrap() };
        assert_eq!(facts().with_thp_off_in_process(), MachineFacts { thp: Some(off), ..facts() });
        let without = MachineFacts { thp: None, ..facts() };
        assert_eq!(without.clone().with_thp_off_in_process(), without);
    }

    #[test]
    fn a_mapping_shows_a_file_by_its_path_device_and_inode_together() {
        let file = CachedFile { path: "/bin/exe".into(), device: (0xfe, 0), inode: 7, ..CachedFile::default() };
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
