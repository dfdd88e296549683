//! The facts about a machine on which plans depend.

use crate::numa_facts::NumaFacts;
use address_space::{AddressRange, PageSize};
use alloc::string::String;
use alloc::vec::Vec;
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
    /// Returns the reserved pages, from the number that the kernel prints.
    ///
    /// Linux counts below zero while a child has the pages of a private mapping whose process has ended
    /// (`__unmap_hugepage_range` in `mm/hugetlb.c`, since Linux 6.10), and prints that without a sign. The true number is
    /// unknown then.
    pub const fn reserved_of(printed: u64) -> u64 {
        if printed > i64::MAX as u64 { 0 } else { printed }
    }

    /// Returns the available pages, from the kernel's counts of free, reserved, overcommit and surplus pages.
    pub const fn available_of(free: u64, reserved: u64, overcommit: u64, surplus: u64) -> u64 {
        // Nothing limits the number that an administrator writes for overcommit.
        free.saturating_sub(reserved).saturating_add(overcommit.saturating_sub(surplus))
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
    /// Reads the general mode, such as `always [madvise] never`, and the mode of one size: since Linux 6.8 each size
    /// has its own mode, which may refer to the general one. A missing file is passed as an empty text.
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
    /// Bytes that can be made resident without memory pressure: available memory, or a part of the room below the
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

    /// Returns the size used if the user names none: that of transparent huge pages, otherwise the default of hugetlb.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The facts of a machine with two pools of one page each.
    fn facts() -> MachineFacts {
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
        assert_eq!(HugePool::available_of(7, 0, u64::MAX, 0), u64::MAX);
        assert_eq!([3, i64::MAX as u64, u64::MAX, u64::MAX - 3].map(HugePool::reserved_of), [3, i64::MAX as u64, 0, 0]);
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
}
