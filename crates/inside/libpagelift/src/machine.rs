//! The machine's facts, read by system calls alone.

use crate::files;
use address_space::{AddressSpace, PageSize};
use alloc::string::String;
use alloc::vec::Vec;
use lift_plan::{MachineFacts, SpecialMapping};
use machine_facts::{Files, Kernel, Looks, THP, facts_of, is_thp_off, pmd_size};

/// The files of the machine that this process runs on.
struct System;

impl Files for System {
    fn text(&self, path: &str) -> Option<String> {
        files::text(&files::c_path(path)?).ok()
    }

    fn names_in(&self, path: &str) -> Vec<String> {
        files::c_path(path).and_then(|path| files::names_in(&path).ok()).unwrap_or_default()
    }
}

/// The machine's facts for a plan that concerns this process, as far as `looks` goes.
pub fn machine_facts(base_page: PageSize, looks: Looks) -> MachineFacts {
    let kernel = Kernel { base_page, release: linux_raw::kernel_release(), thp_size: pmd_size(&System, THP) };
    let facts = facts_of(&System, &kernel, "/proc/self", looks);
    if is_thp_off(&System.text("/proc/self/status").unwrap_or_default()) {
        return facts.with_thp_off_in_process();
    }
    facts
}

/// The mappings of this process that have a memory policy of their own.
pub fn placed_mappings(space: &AddressSpace) -> Vec<SpecialMapping> {
    machine_facts::placed_mappings(&System, "/proc/self", space)
}

/// Bytes of the smallest huge pages that are used by default.
#[cfg(feature = "preload")]
pub fn smallest_huge_page() -> u64 {
    machine_facts::smallest_huge_page(&System, pmd_size(&System, THP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_facts_are_those_that_the_command_line_sees() {
        compare();
        nix::sys::prctl::set_thp_disable(true).unwrap();
        compare();
        nix::sys::prctl::set_thp_disable(false).unwrap();
    }

    fn compare() {
        let base_page = crate::auxiliary::Auxiliary::read().unwrap().base_page;
        let (inside, outside) =
            (machine_facts(base_page, Looks::EVERYWHERE), machine_facts::machine_facts(std::process::id() as i32));
        let sizes = |facts: &MachineFacts| facts.pools.iter().map(|pool| pool.size).collect::<Vec<_>>();
        assert_eq!(sizes(&inside), sizes(&outside));
        assert_eq!(inside.thp, outside.thp);
        assert_eq!(inside.default_hugetlb, outside.default_hugetlb);
        assert_eq!(inside.memory_bound, outside.memory_bound);
        // Other processes start and end between the two readings.
        let ratio = inside.memory_available as f64 / outside.memory_available as f64;
        assert!((0.8..1.25).contains(&ratio), "{inside:?}\n{outside:?}");
        assert_eq!(inside.max_mappings, outside.max_mappings);
        assert_eq!(
            (inside.elf_machine, inside.movable_hugetlb, inside.collapse),
            (outside.elf_machine, outside.movable_hugetlb, outside.collapse)
        );
    }
}
