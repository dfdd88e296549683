//! What the planner is told about the machine and the process.

use address_space::{AddressRange, AddressSpace, LoadedObject, PageSize, RangeSet};
use alloc::string::String;
use alloc::vec::Vec;
use serde::Serialize;

/// One pool of hugetlb pages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HugePool {
    /// Page size.
    pub size: PageSize,
    /// Pages in the pool.
    pub total: u64,
    /// Pages that a new mapping can really have: free less reserved, plus what overcommit still allows, cut by the
    /// process's hugetlb cgroup.
    pub available: u64,
}

impl HugePool {
    /// Available pages, by the kernel's counts of free and reserved pages, and of those that overcommit allows and has
    /// given.
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
    /// mode of its own, which may refer to the general one. Empty texts are files that are not there.
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

/// The word in brackets.
fn chosen(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0)
}

/// Transparent huge pages of this kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ThpFacts {
    /// The size that one page-middle-directory entry maps.
    pub size: PageSize,
    /// System-wide mode.
    pub mode: ThpMode,
}

/// The machine, as far as a plan depends on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MachineFacts {
    /// `e_machine` of the programs that this build can lift.
    pub elf_machine: u16,
    /// Ordinary page size.
    pub base_page: PageSize,
    /// Pools, smallest size first; empty on a kernel without hugetlb.
    pub pools: Vec<HugePool>,
    /// The kernel's default hugetlb size (`Hugepagesize` in `/proc/meminfo`).
    pub default_hugetlb: Option<PageSize>,
    /// Transparent huge pages; `None` on a kernel without them.
    pub thp: Option<ThpFacts>,
    /// `mremap` moves hugetlb mappings (Linux 5.16).
    pub movable_hugetlb: bool,
    /// `MADV_COLLAPSE` exists (Linux 6.1).
    pub collapse: bool,
    /// Bytes that can be made resident without squeezing anybody: available memory, or a part of what is left below the
    /// tightest memory cgroup limit. What the program itself will still touch is not yet taken off.
    pub memory_available: u64,
    /// What sets `memory_available`, for messages.
    pub memory_bound: String,
    /// `vm.max_map_count`.
    pub max_mappings: u64,
}

impl MachineFacts {
    /// The pool of pages of this size.
    pub fn pool(&self, size: PageSize) -> Option<&HugePool> {
        self.pools.iter().find(|pool| pool.size == size)
    }

    /// The size used where the user names none: that of transparent huge pages, else the default of hugetlb.
    pub fn usual_huge_page(&self) -> Option<PageSize> {
        self.thp.map(|thp| thp.size).or(self.default_hugetlb).or_else(|| self.pools.first().map(|pool| pool.size))
    }

    /// The same machine as a process sees it that has switched transparent huge pages off for itself.
    pub fn with_thp_off_in_process(self) -> Self {
        Self { thp: self.thp.map(|thp| ThpFacts { mode: ThpMode::OffInProcess, ..thp }), ..self }
    }
}

/// A mapping that carries a property which a copy of its memory would lose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecialMapping {
    /// Where.
    pub range: AddressRange,
    /// What is special about it, for the message.
    pub property: String,
}

/// A stretch of a process that a shared image can show.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ImageSpan {
    /// Addresses of the process, in whole base pages.
    pub range: AddressRange,
    /// The image's path.
    pub path: String,
    /// Offset in the image of the span's first byte; agrees with its address modulo `page_size`.
    pub offset: u64,
    /// Size of the huge pages that the image stands on.
    pub page_size: PageSize,
}

/// The process, as far as a plan depends on it.
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
    /// Mappings that must not be replaced.
    pub special: Vec<SpecialMapping>,
    /// Pages of code in which a breakpoint or a uprobe stands, which must not be copied.
    pub probed: RangeSet,
    /// The program sets up its own RELRO after this moment (a static program at its entry).
    pub relocates_itself: bool,
    /// The program runs: writable memory may change at any moment, and the kernel may be writing to it.
    pub running: bool,
}

#[cfg(test)]
mod tests {
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
            memory_available: 0,
            memory_bound: String::new(),
            max_mappings: 0,
        }
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
