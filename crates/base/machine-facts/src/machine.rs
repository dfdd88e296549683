//! All facts of a machine together.

use crate::cgroup::{CgroupLimits, Cgroups};
use crate::facts::{HugePool, MachineFacts, PoolLimit, ThpFacts, ThpMode};
use crate::files::Files;
use crate::meminfo::meminfo_bytes;
use crate::numa::numa_facts;
use crate::pools::{POOLS, default_hugetlb, pools_at};
use crate::thp::{THP, thp_at};
use address_space::PageSize;
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use options::Policy;

/// Share of available memory that is kept free, so that a lift never brings the machine or a cgroup to its limit.
const SHARE_LEFT_ALONE: u64 = 16;

/// `vm.max_map_count` where it cannot be read: the kernel's default.
const USUAL_MOST_MAPPINGS: u64 = 65530;

/// `e_machine` of programs that run natively here and that this build can lift (elf.h: EM_X86_64, EM_AARCH64).
pub fn elf_machine() -> u16 {
    if cfg!(target_arch = "x86_64") { 62 } else { 183 }
}

/// Facts about the running kernel that are in no file, or are known already.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// Ordinary page size.
    pub base_page: PageSize,
    /// Major and minor number of its release.
    pub release: (u32, u32),
    /// Size of a transparent huge page; `None` without them.
    pub thp_size: Option<PageSize>,
}

/// Which facts are read; each costs a start some microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Looks {
    /// The hugetlb pools.
    pub at_pools: bool,
    /// Memory and what bounds it, and the mode of transparent huge pages.
    pub at_memory: bool,
}

impl Looks {
    /// Reads everything.
    pub const EVERYWHERE: Self = Self { at_pools: true, at_memory: true };

    /// Reads what a plan by this policy may use.
    pub fn for_policy(policy: &Policy) -> Self {
        let at_pools = policy.may_take_from_pools();
        Self { at_pools, at_memory: at_pools || policy.may_fill_memory() }
    }
}

/// The facts for a plan for the process whose directory in /proc is `process`. Facts that are not read count as none,
/// as unbounded, and as off. The process's own setting of transparent huge pages is not included.
pub fn facts_of(files: &impl Files, kernel: &Kernel, process: &str, looks: Looks) -> MachineFacts {
    let off = || kernel.thp_size.map(|size| ThpFacts { size, mode: ThpMode::Never });
    let unbounded = (!looks.at_memory).then(|| unbounded_facts(files, kernel, off()));
    // Without transparent huge pages, meminfo has the size of the available huge pages.
    if let Some(facts) = unbounded.filter(|facts| facts.thp.is_some()) {
        return facts;
    }
    let pools = if looks.at_pools { pools_at(files, POOLS) } else { Vec::new() };
    let sizes: Vec<_> = pools.iter().map(|pool| pool.size).collect();
    // No limit matters to a pool that has nothing to give.
    let giving: Vec<_> = pools.iter().filter(|pool| pool.available > 0).map(|pool| pool.size).collect();
    let limits = Cgroups::of(files, process).limits(files, &giving);
    let meminfo = files.text("/proc/meminfo").unwrap_or_default();
    let mut facts = unbounded_facts(files, kernel, kernel.thp_size.and_then(|size| thp_at(files, THP, size)));
    facts.pool_limits = pools.iter().filter_map(|pool| limit_of(pool, &limits)).collect();
    facts.pools = pools.into_iter().map(|pool| cut_by(pool, &limits)).collect();
    facts.numa = numa_facts(files, process, &sizes);
    facts.default_hugetlb = default_hugetlb(&meminfo);
    (facts.memory_available, facts.memory_bound) = memory_left(&meminfo, limits.memory.as_ref());
    facts
}

/// Bytes of memory that a lift may make resident for the process whose directory in /proc is `process`.
pub fn memory_available_to(files: &impl Files, process: &str) -> u64 {
    let limits = Cgroups::of(files, process).limits(files, &[]);
    memory_left(&files.text("/proc/meminfo").unwrap_or_default(), limits.memory.as_ref()).0
}

/// Returns the limit that leaves fewer pages than the pool has.
fn limit_of(pool: &HugePool, limits: &CgroupLimits) -> Option<PoolLimit> {
    let found = limits.hugetlb_of(pool.size).filter(|limit| limit.left / pool.size.bytes() < pool.available)?;
    Some(PoolLimit { size: pool.size, pool: pool.available, limit: found.limit, file: found.file.clone() })
}

/// Returns the pool as far as a process with these limits may use it.
fn cut_by(pool: HugePool, limits: &CgroupLimits) -> HugePool {
    let allowed = limits.hugetlb_of(pool.size).map_or(u64::MAX, |limit| limit.left / pool.size.bytes());
    HugePool { available: pool.available.min(allowed), ..pool }
}

/// Bytes that a lift may make resident, and what sets that bound.
fn memory_left(meminfo: &str, cgroup: Option<&(u64, String)>) -> (u64, String) {
    let available = meminfo_bytes(meminfo, "MemAvailable").unwrap_or(u64::MAX);
    let (memory, bound) = match cgroup {
        // At the limit of its cgroup a program is killed; what is left must serve more than the lift.
        Some((left, directory)) if *left < available => (left / 2, format!("cgroup {directory}")),
        _ => (available, "available memory".to_owned()),
    };
    (memory - memory / SHARE_LEFT_ALONE, bound)
}

/// Returns the facts without pools and memory bounds.
fn unbounded_facts(files: &impl Files, kernel: &Kernel, thp: Option<ThpFacts>) -> MachineFacts {
    MachineFacts {
        elf_machine: elf_machine(),
        base_page: kernel.base_page,
        pools: Vec::new(),
        pool_limits: Vec::new(),
        default_hugetlb: None,
        thp,
        movable_hugetlb: kernel.release >= (5, 16),
        collapse: kernel.release >= (6, 1),
        refaults_huge: kernel.release >= (6, 18),
        memory_available: u64::MAX,
        memory_bound: String::new(),
        max_mappings: files.number("/proc/sys/vm/max_map_count").unwrap_or(USUAL_MOST_MAPPINGS),
        numa: None,
    }
}

/// The size of huge pages that is used if the user names none, from the size of a transparent huge page, if there is
/// one; reads only the files that this needs.
pub fn usual_huge_page_of(files: &impl Files, thp_size: Option<PageSize>) -> Option<PageSize> {
    let default = || default_hugetlb(&files.text("/proc/meminfo").unwrap_or_default());
    let smallest_pool = || pools_at(files, POOLS).first().map(|pool| pool.size);
    thp_size.or_else(default).or_else(smallest_pool)
}

/// Bytes of the smallest huge page that is used if the user names none; the largest number without huge pages.
pub fn smallest_huge_page(files: &impl Files, thp_size: Option<PageSize>) -> u64 {
    let default = default_hugetlb(&files.text("/proc/meminfo").unwrap_or_default());
    thp_size.into_iter().chain(default).map(PageSize::bytes).min().unwrap_or(u64::MAX)
}

/// True if a process's status shows that it has disabled transparent huge pages for itself (`THP_enabled`, Linux 5.0).
pub fn is_thp_off(status: &str) -> bool {
    status.lines().find_map(|line| line.strip_prefix("THP_enabled:")).is_some_and(|value| value.trim() == "0")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HugetlbLimit;
    use crate::files::tests::WrittenFiles;
    use options::{Kind, Kinds, Pages};

    #[test]
    fn programs_that_are_lifted_are_of_the_kind_of_this_one() {
        // `e_machine` (elf.h).
        let header = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(elf_machine().to_ne_bytes(), header[18..20]);
    }

    #[test]
    fn memory_is_looked_at_where_a_policy_may_fill_it_or_takes_from_pools() {
        let of = |pages, page_size| {
            let looks =
                Looks::for_policy(&Policy { pages, page_size, kinds: Kinds::of(&[Kind::Text]), ..Policy::default() });
            (looks.at_pools, looks.at_memory)
        };
        assert_eq!(of(Pages::Image, None), (false, false));
        assert_eq!(of(Pages::Thp, None), (false, true));
        assert_eq!(of(Pages::Image, PageSize::new(2 << 20).ok()), (true, true));
    }

    #[test]
    fn a_pool_is_read_with_the_limit_of_the_process() {
        let mut files = WrittenFiles::default();
        for (name, value) in [("nr_hugepages", 9), ("free_hugepages", 4)] {
            files.write(&format!("{POOLS}/hugepages-2048kB/{name}"), value);
        }
        files.write("/proc/7/cgroup", "0::/a");
        files.write("/proc/self/mountinfo", "30 20 0:26 / /two rw - cgroup2 cgroup2 rw");
        files.write("/two/a/hugetlb.2MB.max", 6 << 20);
        files.write("/two/a/hugetlb.2MB.current", 2 << 20);
        let kernel = Kernel { base_page: PageSize::new(4096).unwrap(), release: (6, 1), thp_size: None };
        let facts = facts_of(&files, &kernel, "/proc/7", Looks::EVERYWHERE);
        assert_eq!(facts.pools.iter().map(|pool| (pool.total, pool.available)).collect::<Vec<_>>(), [(9, 2)]);
        assert_eq!(facts.pool_limits.iter().map(|limit| (limit.pool, limit.limit)).collect::<Vec<_>>(), [(4, 6 << 20)]);
    }

    #[test]
    fn the_smallest_of_the_usual_huge_pages_is_meant() {
        let mut files = WrittenFiles::default();
        assert_eq!(smallest_huge_page(&files, None), u64::MAX);
        files.write("/proc/meminfo", "Hugepagesize:    1048576 kB\n");
        assert_eq!(smallest_huge_page(&files, None), 1 << 30);
        assert_eq!(smallest_huge_page(&files, PageSize::new(2 << 20).ok()), 2 << 20);
    }

    #[test]
    fn what_a_kernel_can_do_is_known_by_its_release() {
        let of = |release| {
            let kernel = Kernel { base_page: PageSize::new(4096).unwrap(), release, thp_size: None };
            let facts = facts_of(&WrittenFiles::default(), &kernel, "/proc/7", Looks::EVERYWHERE);
            (facts.movable_hugetlb, facts.collapse, facts.refaults_huge)
        };
        assert_eq!((of((5, 15)), of((5, 16))), ((false, false, false), (true, false, false)));
        assert_eq!((of((6, 0)), of((6, 1))), ((true, false, false), (true, true, false)));
        assert_eq!(
            (of((6, 17)), of((6, 18)), of((7, 0))),
            ((true, true, false), (true, true, true), (true, true, true))
        );
    }

    #[test]
    fn what_is_not_looked_at_is_unbounded_and_off() {
        let mut files = WrittenFiles::default();
        files.write("/proc/meminfo", "MemAvailable:    32 kB\n");
        files.write("/sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n");
        let size = |bytes| PageSize::new(bytes).unwrap();
        let kernel = Kernel { base_page: size(4096), release: (6, 1), thp_size: Some(size(2 << 20)) };
        let found = |looks| {
            let facts = facts_of(&files, &kernel, "/proc/7", looks);
            (facts.memory_available, facts.thp.unwrap().mode)
        };
        assert_eq!(found(Looks::EVERYWHERE), (30 << 10, ThpMode::Always));
        assert_eq!(memory_available_to(&files, "/proc/7"), 30 << 10);
        assert_eq!(found(Looks { at_pools: false, at_memory: false }), (u64::MAX, ThpMode::Never));
    }

    #[test]
    fn memory_is_bound_by_the_machine_or_by_a_tighter_cgroup() {
        let meminfo = "MemTotal: 64 kB\nMemAvailable:    32 kB\n";
        let machine = |bytes: u64| (bytes, "available memory".to_owned());
        assert_eq!(memory_left(meminfo, None), machine(30 << 10));
        let cgroup = |left: u64| (left, "/sys/fs/cgroup/a".to_owned());
        assert_eq!(memory_left(meminfo, Some(&cgroup(32 << 10))), machine(30 << 10));
        assert_eq!(memory_left(meminfo, Some(&cgroup(16 << 10))), (7680, "cgroup /sys/fs/cgroup/a".to_owned()));
        assert_eq!(memory_left("", Some(&cgroup(16 << 10))).0, 7680);
    }

    #[test]
    fn a_pool_gives_no_more_than_a_cgroup_allows() {
        let size = |bytes: u64| PageSize::new(bytes).unwrap();
        let limit = HugetlbLimit { size: size(2 << 20), left: (8 << 20) - 1, limit: 9 << 20, file: "/c/max".into() };
        let limits = CgroupLimits { memory: None, hugetlb: vec![limit] };
        let available = |bytes: u64, available: u64| {
            let pool = HugePool { size: size(bytes), total: 9, available };
            let cut = cut_by(pool, &limits);
            assert_eq!((cut.size, cut.total), (pool.size, 9));
            cut.available
        };
        let limited = |available: u64| limit_of(&HugePool { size: size(2 << 20), total: 9, available }, &limits);
        let found = PoolLimit { size: size(2 << 20), pool: 4, limit: 9 << 20, file: "/c/max".into() };
        assert_eq!((limited(3), limited(4)), (None, Some(found)));
        assert_eq!([available(2 << 20, 9), available(2 << 20, 2), available(1 << 30, 9)], [3, 2, 9]);
    }

    #[test]
    fn a_process_says_that_it_has_no_transparent_huge_pages() {
        assert!(is_thp_off("Name:\tprog\nTHP_enabled:\t0\nThreads:\t1\n"));
        assert!(!is_thp_off("THP_enabled:\t1\n") && !is_thp_off("Name:\tprog\n") && !is_thp_off(""));
    }
}
