//! The data for `pagelift pool show`: pools, their users, and the memory around them.

use crate::Users;
use address_space::PageSize;
use machine_facts::{
    CgroupLimits, Cgroups, Files, PoolCounts, THP, ThpSize, free_blocks, meminfo_bytes, pool_counts, thp_sizes,
};
use serde::Serialize;

/// Everything about the pools at one moment.
#[derive(Debug, Serialize)]
pub struct PoolsView {
    /// Always `pagelift-pools`.
    pub format: &'static str,
    /// Version of the format; it grows with every change that breaks a reader.
    pub version: u32,
    /// The pools, smallest pages first.
    pub pools: Vec<PoolView>,
    /// Their users.
    pub users: Users,
    /// Limits of the caller's own cgroups.
    pub cgroup: CgroupLimits,
    /// Transparent huge pages, smallest first.
    pub thp: Vec<ThpSize>,
    /// Memory.
    pub memory: MemoryView,
    /// Memory set aside for contiguous allocations; `None` without any.
    pub cma: Option<CmaView>,
}

/// One pool, with values that follow from the kernel's counts.
#[derive(Debug, Serialize)]
pub struct PoolView {
    /// The counts.
    #[serde(flatten)]
    pub counts: PoolCounts,
    /// Free pages that are promised to nobody.
    pub available: u64,
    /// Surplus pages that may still be allocated.
    pub headroom: u64,
    /// Used pages of which nobody is seen to be the user.
    pub unexplained: u64,
}

/// The machine's memory, in bytes.
#[derive(Debug, Serialize)]
pub struct MemoryView {
    /// All.
    pub total: u64,
    /// Memory that is available without pressure.
    pub available: u64,
    /// Anonymous transparent huge pages.
    pub anonymous_huge: u64,
    /// Huge pages of tmpfs and shared memory.
    pub shmem_huge: u64,
    /// Huge pages of the page cache of other file systems.
    pub file_huge: u64,
    /// Free memory of each node.
    pub free: Vec<FreeView>,
}

/// Free memory of one node.
#[derive(Debug, Serialize)]
pub struct FreeView {
    /// The node.
    pub node: u32,
    /// Free bytes, in pieces of any size.
    pub bytes: u64,
    /// For each size of pool, the pages that could be had at once; none for sizes larger than the largest piece that the
    /// kernel keeps.
    pub at_once: Vec<(PageSize, u64)>,
}

/// Memory set aside by `cma=` or `hugetlb_cma=`, in bytes.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct CmaView {
    /// All.
    pub total: u64,
    /// Free; the rest is lent to movable memory or in use.
    pub free: u64,
    /// The kernel's parameter `hugetlb_cma`, if it was given.
    pub for_huge_pages: Option<String>,
}

impl PoolsView {
    /// Reads everything through `files`, except for the users, who were read before.
    pub fn new(files: &impl Files, users: Users, base_page: PageSize) -> Self {
        let pools = pool_counts(files);
        let sizes: Vec<_> = pools.iter().map(|pool| pool.size).collect();
        let meminfo = files.text("/proc/meminfo").unwrap_or_default();
        let view = |counts: PoolCounts| PoolView {
            available: counts.unpromised(),
            headroom: counts.headroom(),
            unexplained: users.unexplained(counts.size, counts.used()),
            counts,
        };
        Self {
            format: "pagelift-pools",
            version: 1,
            pools: pools.into_iter().map(view).collect(),
            cgroup: Cgroups::of(files, "/proc/self").limits(files, &sizes),
            thp: thp_sizes(files, THP),
            memory: memory(files, &meminfo, &sizes, base_page),
            cma: cma(&meminfo, &files.text("/proc/cmdline").unwrap_or_default()),
            users,
        }
    }
}

fn memory(files: &impl Files, meminfo: &str, sizes: &[PageSize], base_page: PageSize) -> MemoryView {
    let bytes = |field| meminfo_bytes(meminfo, field).unwrap_or(0);
    let free = free_blocks(files).into_iter().map(|free| FreeView {
        node: free.node,
        bytes: free.bytes(base_page),
        at_once: sizes.iter().filter_map(|&size| Some((size, free.pages_of(size, base_page)?))).collect(),
    });
    MemoryView {
        total: bytes("MemTotal"),
        available: bytes("MemAvailable"),
        anonymous_huge: bytes("AnonHugePages"),
        shmem_huge: bytes("ShmemHugePages"),
        file_huge: bytes("FileHugePages"),
        free: free.collect(),
    }
}

fn cma(meminfo: &str, command_line: &str) -> Option<CmaView> {
    let total = meminfo_bytes(meminfo, "CmaTotal").filter(|&total| total > 0)?;
    let parameter = command_line.split_whitespace().find_map(|word| word.strip_prefix("hugetlb_cma="));
    let free = meminfo_bytes(meminfo, "CmaFree").unwrap_or(0);
    Some(CmaView { total, free, for_huge_pages: parameter.map(str::to_owned) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated::{Simulated, SimulatedNode};

    #[test]
    fn a_machine_with_two_nodes_is_seen_whole() {
        let first = SimulatedNode { total: 6, free: 4, surplus: 1, at_once: 9, after_compaction: 2 };
        let mut machine = Simulated::new(&[first, SimulatedNode { total: 2, free: 2, ..SimulatedNode::default() }]);
        machine.reserved = 3;
        let view = PoolsView::new(&machine, Users::default(), PageSize::new(1 << 12).unwrap());
        let pool = &view.pools[0];
        assert_eq!((pool.counts.total, pool.available, pool.headroom, pool.unexplained), (8, 3, 0, 2));
        assert_eq!(pool.counts.nodes.iter().map(|node| node.free).collect::<Vec<_>>(), [4, 2]);
        let free: Vec<_> =
            view.memory.free.iter().map(|free| (free.node, free.bytes >> 20, free.at_once[0].1)).collect();
        assert_eq!(free, [(0, 22, 9), (1, 0, 0)]);
        assert_eq!(view.memory.total, 16 << 30);
        let json = serde_json::to_value(&view).unwrap();
        assert_eq!((&json["pools"][0]["total"], &json["pools"][0]["available"]), (&8.into(), &3.into()));
    }

    #[test]
    fn memory_set_aside_is_shown_with_its_parameter() {
        let meminfo = "CmaTotal:   2048 kB\nCmaFree:    1024 kB\n";
        let expected = CmaView { total: 2 << 20, free: 1 << 20, for_huge_pages: Some("0:2G".to_owned()) };
        assert_eq!(cma(meminfo, "quiet hugetlb_cma=0:2G ro"), Some(expected));
        assert_eq!(cma("CmaTotal: 0 kB\n", ""), None);
    }
}
