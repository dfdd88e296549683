//! All facts of the machine together.

use crate::{CgroupLimits, Cgroups, pools_at, thp_at};
use address_space::PageSize;
use kernel_calls::pages::{base_page, transparent_huge_page};
use kernel_calls::text::text_of;
use lift_plan::{HugePool, MachineFacts, Policy, ThpFacts, ThpMode};
use std::path::{Path, PathBuf};

/// Of available memory this share is left alone, so that a lift never brings the machine or a cgroup to its limit.
const SHARE_LEFT_ALONE: u64 = 16;

const POOLS: &str = "/sys/kernel/mm/hugepages";

/// `e_machine` of programs that run natively here and that this build can lift (elf.h: EM_X86_64, EM_AARCH64).
pub fn elf_machine() -> u16 {
    if cfg!(target_arch = "x86_64") { 62 } else { 183 }
}

/// The machine's facts for a plan that concerns process `pid`.
pub fn machine_facts(pid: i32) -> MachineFacts {
    let facts = facts_with(pools_at(Path::new(POOLS)), &Cgroups::of(pid));
    if is_thp_off_in(pid) { facts.with_thp_off_in_process() } else { facts }
}

/// The same for a plan by `policy`, whatever the process has chosen for itself of transparent huge pages: pools, memory and
/// the cgroups that bound them, and the mode of transparent huge pages are looked at only where it may take from them, and
/// count as none, as without a bound, and as off else.
pub fn machine_facts_for(pid: i32, policy: &Policy) -> MachineFacts {
    let bounded = policy.may_take_from_pools() || policy.may_fill_memory();
    let off = || transparent_huge_page().map(|size| ThpFacts { size, mode: ThpMode::Never });
    let unbounded = (!bounded).then(|| unbounded_facts(off()));
    // Without transparent huge pages, meminfo is what tells the size of those there are.
    if let Some(facts) = unbounded.filter(|facts| facts.thp.is_some()) {
        return facts;
    }
    let pools = if policy.may_take_from_pools() { pools_at(Path::new(POOLS)) } else { Vec::new() };
    facts_with(pools, &Cgroups::of(pid))
}

fn facts_with(pools: Vec<HugePool>, cgroups: &Cgroups) -> MachineFacts {
    let sizes: Vec<_> = pools.iter().map(|pool| pool.size).collect();
    let limits = cgroups.limits(&sizes);
    let meminfo = text_of("/proc/meminfo").unwrap_or_default();
    let mut facts = unbounded_facts(system_thp());
    facts.pools = pools.into_iter().map(|pool| cut_by(pool, &limits)).collect();
    facts.default_hugetlb = default_hugetlb(&meminfo);
    (facts.memory_available, facts.memory_bound) = memory_left(&meminfo, limits.memory.as_ref());
    facts
}

/// The pool as far as a process with these limits may take from it.
fn cut_by(pool: HugePool, limits: &CgroupLimits) -> HugePool {
    let allowed = limits.hugetlb_of(pool.size).map_or(u64::MAX, |limit| limit.left / pool.size.bytes());
    HugePool { available: pool.available.min(allowed), ..pool }
}

/// Bytes that a lift may make resident, and what sets that bound.
fn memory_left(meminfo: &str, cgroup: Option<&(u64, PathBuf)>) -> (u64, String) {
    let available = meminfo_bytes(meminfo, "MemAvailable").unwrap_or(u64::MAX);
    let (memory, bound) = match cgroup {
        // At the limit of its cgroup a program is killed; what is left must serve more than the lift.
        Some((left, directory)) if *left < available => (left / 2, format!("cgroup {}", directory.display())),
        _ => (available, "available memory".to_owned()),
    };
    (memory - memory / SHARE_LEFT_ALONE, bound)
}

/// The facts but for pools and what bounds memory.
fn unbounded_facts(thp: Option<ThpFacts>) -> MachineFacts {
    let release = kernel_calls::release::kernel_release();
    MachineFacts {
        elf_machine: elf_machine(),
        base_page: base_page(),
        pools: Vec::new(),
        default_hugetlb: None,
        thp,
        movable_hugetlb: release >= (5, 16),
        collapse: release >= (6, 1),
        memory_available: u64::MAX,
        memory_bound: String::new(),
        max_mappings: max_mappings(),
    }
}

/// The size of huge pages that is used where the user names none, as [`MachineFacts::usual_huge_page`] has it, with no
/// more reading than that takes.
pub fn usual_huge_page() -> Option<PageSize> {
    let default = || default_hugetlb(&text_of("/proc/meminfo").unwrap_or_default());
    let smallest_pool = || pools_at(Path::new(POOLS)).first().map(|pool| pool.size);
    transparent_huge_page().or_else(default).or_else(smallest_pool)
}

/// Transparent huge pages as the system has them, whatever a process has chosen for itself.
pub fn system_thp() -> Option<ThpFacts> {
    thp_at(Path::new("/sys/kernel/mm/transparent_hugepage"), transparent_huge_page()?)
}

fn is_thp_off_in(pid: i32) -> bool {
    is_thp_off(&text_of(format!("/proc/{pid}/status")).unwrap_or_default())
}

/// True where the process has switched transparent huge pages off for itself (`THP_enabled` in its status, Linux 5.0).
fn is_thp_off(status: &str) -> bool {
    status.lines().find_map(|line| line.strip_prefix("THP_enabled:")).is_some_and(|value| value.trim() == "0")
}

/// `vm.max_map_count`; its default where it cannot be read.
fn max_mappings() -> u64 {
    let text = text_of("/proc/sys/vm/max_map_count").unwrap_or_default();
    text.trim().parse().unwrap_or(65530)
}

/// Size of the pages that mmap takes for MAP_HUGETLB without a size.
fn default_hugetlb(meminfo: &str) -> Option<PageSize> {
    PageSize::new(meminfo_bytes(meminfo, "Hugepagesize")?).ok()
}

fn meminfo_bytes(meminfo: &str, field: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HugetlbLimit;

    #[test]
    fn this_machine_has_facts() {
        let facts = machine_facts(std::process::id() as i32);
        assert!(facts.base_page.bytes() >= 4096);
        assert_eq!(facts.usual_huge_page(), usual_huge_page());
        assert!(facts.memory_available > 0 && facts.max_mappings > 0);
        assert!(facts.pools.windows(2).all(|pair| pair[0].size < pair[1].size));
    }

    #[test]
    fn meminfo_fields_are_bytes() {
        assert_eq!(meminfo_bytes("MemTotal: 8 kB\nHugepagesize:    2048 kB\n", "Hugepagesize"), Some(2 << 20));
        assert_eq!(meminfo_bytes("", "Hugepagesize"), None);
        assert_eq!(default_hugetlb("Hugepagesize:       2048 kB\n"), PageSize::new(2 << 20).ok());
        assert_eq!(default_hugetlb("Hugepagesize:       3 kB\n"), None);
    }

    #[test]
    fn memory_is_bound_by_the_machine_or_by_a_tighter_cgroup() {
        let meminfo = "MemTotal: 64 kB\nMemAvailable:    32 kB\n";
        let machine = |bytes: u64| (bytes, "available memory".to_owned());
        assert_eq!(memory_left(meminfo, None), machine(30 << 10));
        let cgroup = |left: u64| (left, PathBuf::from("/sys/fs/cgroup/a"));
        assert_eq!(memory_left(meminfo, Some(&cgroup(32 << 10))), machine(30 << 10));
        assert_eq!(memory_left(meminfo, Some(&cgroup(16 << 10))), (7680, "cgroup /sys/fs/cgroup/a".to_owned()));
        assert_eq!(memory_left("", Some(&cgroup(16 << 10))).0, 7680);
    }

    #[test]
    fn a_pool_gives_no_more_than_a_cgroup_allows() {
        let size = |bytes: u64| PageSize::new(bytes).unwrap();
        let limit = HugetlbLimit { size: size(2 << 20), left: (8 << 20) - 1, file: PathBuf::new() };
        let limits = CgroupLimits { memory: None, hugetlb: vec![limit] };
        let available = |bytes: u64, available: u64| {
            let pool = HugePool { size: size(bytes), total: 9, available };
            let cut = cut_by(pool, &limits);
            assert_eq!((cut.size, cut.total), (pool.size, 9));
            cut.available
        };
        assert_eq!([available(2 << 20, 9), available(2 << 20, 2), available(1 << 30, 9)], [3, 2, 9]);
    }

    #[test]
    fn a_process_says_that_it_has_no_transparent_huge_pages() {
        assert!(is_thp_off("Name:\tprog\nTHP_enabled:\t0\nThreads:\t1\n"));
        assert!(!is_thp_off("THP_enabled:\t1\n") && !is_thp_off("Name:\tprog\n") && !is_thp_off(""));
    }
}
