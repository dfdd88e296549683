//! The hugetlb pools (`Documentation/admin-guide/mm/hugetlbpage.rst`).

use crate::facts::HugePool;
use crate::files::Files;
use crate::meminfo::meminfo_bytes;
use crate::nodes::{NODES, node_numbers};
use address_space::PageSize;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use serde::Serialize;

/// Where the kernel shows its pools.
pub const POOLS: &str = "/sys/kernel/mm/hugepages";

/// The kernel's counts of one pool, in pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PoolCounts {
    /// Page size.
    pub size: PageSize,
    /// All pages, surplus pages included.
    pub total: u64,
    /// Pages that hold nothing.
    pub free: u64,
    /// Free pages that are promised to mappings which have not touched them yet.
    pub reserved: u64,
    /// Pages beyond the pool's own, which go back to the system when they are freed.
    pub surplus: u64,
    /// Maximum number of surplus pages.
    pub overcommit: u64,
    /// Size of the pages that a page of this pool can be split into (`demote_size`, Linux 5.16).
    pub demotes_to: Option<PageSize>,
    /// The counts of each node; empty if they were not read, or on a kernel without NUMA.
    pub nodes: Vec<NodePool>,
}

/// The part of a pool on one NUMA node, in pages. The kernel counts reserved pages for the whole machine only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NodePool {
    /// Number of the node.
    pub node: u32,
    /// All pages on the node, surplus pages included.
    pub total: u64,
    /// Pages that hold nothing.
    pub free: u64,
    /// Surplus pages.
    pub surplus: u64,
}

impl NodePool {
    /// Pages that stay in the pool when they are freed, which is what a write to `nr_hugepages` sets.
    pub const fn persistent(&self) -> u64 {
        self.total.saturating_sub(self.surplus)
    }
}

impl PoolCounts {
    /// Free pages that are promised to nobody.
    pub const fn unpromised(&self) -> u64 {
        HugePool::available_of(self.free, self.reserved, 0, 0)
    }

    /// Number of surplus pages that may still be allocated.
    pub const fn headroom(&self) -> u64 {
        self.overcommit.saturating_sub(self.surplus)
    }

    /// Pages that hold something.
    pub const fn used(&self) -> u64 {
        self.total.saturating_sub(self.free)
    }

    /// Pages that stay in the pool when they are freed, which is what a write to `nr_hugepages` sets.
    pub const fn persistent(&self) -> u64 {
        self.total.saturating_sub(self.surplus)
    }

    /// The counts of one node.
    pub fn on_node(&self, node: u32) -> Option<&NodePool> {
        self.nodes.iter().find(|pool| pool.node == node)
    }

    /// Free pages of a node that are certainly not reserved: it is unknown from which node the kernel will take
    /// reserved pages, so all are subtracted.
    pub fn unpromised_on(&self, node: u32) -> u64 {
        self.on_node(node).map_or(0, |pool| pool.free.saturating_sub(self.reserved))
    }

    fn summary(&self) -> HugePool {
        let available = HugePool::available_of(self.free, self.reserved, self.overcommit, self.surplus);
        HugePool { size: self.size, total: self.total, available }
    }
}

/// The pools below a directory, smallest page size first; empty if the kernel has none.
///
/// Available pages are free less reserved, plus what overcommit still allows.
pub fn pools_at(files: &impl Files, directory: &str) -> Vec<HugePool> {
    counts_at(files, directory).iter().map(PoolCounts::summary).collect()
}

/// The counts of all pools of the machine, with the counts of each node, smallest page size first.
pub fn pool_counts(files: &impl Files) -> Vec<PoolCounts> {
    let mut pools = counts_at(files, POOLS);
    let nodes = node_numbers(files);
    for pool in &mut pools {
        pool.demotes_to = demote_size(files, pool.size);
        pool.nodes = nodes.iter().filter_map(|&node| node_pool(files, node, pool.size)).collect();
    }
    pools
}

/// The directory of a pool's files: for the whole machine, or for one node.
pub fn pool_directory(size: PageSize, node: Option<u32>) -> String {
    match node {
        None => format!("{POOLS}/{}", size.directory()),
        Some(node) => format!("{NODES}/node{node}/hugepages/{}", size.directory()),
    }
}

/// `demote_size` is a text such as `2048kB`.
fn demote_size(files: &impl Files, size: PageSize) -> Option<PageSize> {
    let text = files.text(&format!("{}/demote_size", pool_directory(size, None)))?;
    let kib: u64 = text.trim().strip_suffix("kB")?.parse().ok()?;
    PageSize::new(kib.checked_mul(1024)?).ok()
}

fn node_pool(files: &impl Files, node: u32, size: PageSize) -> Option<NodePool> {
    let directory = pool_directory(size, Some(node));
    let read = |file: &str| files.number(&format!("{directory}/{file}"));
    let (total, free) = (read("nr_hugepages")?, read("free_hugepages")?);
    Some(NodePool { node, total, free, surplus: read("surplus_hugepages").unwrap_or(0) })
}

fn counts_at(files: &impl Files, directory: &str) -> Vec<PoolCounts> {
    let names = files.names_in(directory);
    let mut pools: Vec<_> = names.iter().filter_map(|name| counts_of(files, directory, name)).collect();
    pools.sort_by_key(|pool| pool.size);
    pools
}

fn counts_of(files: &impl Files, directory: &str, name: &str) -> Option<PoolCounts> {
    let size = PageSize::of_directory(name)?;
    let read = |file: &str| files.number(&format!("{directory}/{name}/{file}")).unwrap_or(0);
    let [total, overcommit] = ["nr_hugepages", "nr_overcommit_hugepages"].map(read);
    // An empty pool, the common case, has no other facts, and each file costs a start 5 microseconds.
    let rest = if total == 0 { [0; 3] } else { ["free_hugepages", "resv_hugepages", "surplus_hugepages"].map(read) };
    let [free, printed, surplus] = rest;
    let reserved = HugePool::reserved_of(printed);
    Some(PoolCounts { size, total, free, reserved, surplus, overcommit, demotes_to: None, nodes: Vec::new() })
}

/// Size of the pages that mmap takes for MAP_HUGETLB without a size, and whose pool `vm.nr_hugepages` sets.
pub fn default_hugetlb(meminfo: &str) -> Option<PageSize> {
    PageSize::new(meminfo_bytes(meminfo, "Hugepagesize")?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tests::WrittenFiles;

    fn write(files: &mut WrittenFiles, directory: &str, numbers: &[(&str, u64)]) {
        numbers.iter().for_each(|(name, value)| files.write(&format!("{directory}/{name}"), value));
    }

    #[test]
    fn available_is_free_less_reserved_plus_overcommit() {
        let mut files = WrittenFiles::default();
        let numbers = [
            ("nr_hugepages", 10),
            ("free_hugepages", 7),
            ("resv_hugepages", 3),
            ("nr_overcommit_hugepages", 5),
            ("surplus_hugepages", 1),
        ];
        write(&mut files, "/pools/hugepages-2048kB", &numbers);
        files.write("/pools/hugepages-64kB/nr_hugepages", 1);
        files.write("/pools/not-a-pool/nr_hugepages", 1);
        let pools = pools_at(&files, "/pools");
        let found: Vec<_> = pools.iter().map(|pool| (pool.size.bytes(), pool.total, pool.available)).collect();
        assert_eq!(found, [(64 << 10, 1, 0), (2 << 20, 10, 8)]);
        assert!(pools_at(&files, "/elsewhere").is_empty());
        let counts = &counts_at(&files, "/pools")[1];
        assert_eq!((counts.unpromised(), counts.headroom(), counts.used(), counts.persistent()), (4, 4, 3, 9));
    }

    /// A daemon that was lifted before it forked has this effect on Linux 6.18.
    #[test]
    fn a_count_of_reserved_pages_below_zero_leaves_free_pages_available() {
        let mut files = WrittenFiles::default();
        let numbers = [("nr_hugepages", 64), ("free_hugepages", 60), ("resv_hugepages", 4u64.wrapping_neg())];
        write(&mut files, "/pools/hugepages-2048kB", &numbers);
        assert_eq!(pools_at(&files, "/pools")[0].available, 60);
        let counts = &counts_at(&files, "/pools")[0];
        assert_eq!((counts.reserved, counts.unpromised(), counts.used()), (0, 60, 4));
    }

    #[test]
    fn each_node_has_its_part() {
        let (mut files, size) = (WrittenFiles::default(), PageSize::new(1 << 30).unwrap());
        write(
            &mut files,
            &pool_directory(size, None),
            &[("nr_hugepages", 5), ("free_hugepages", 4), ("resv_hugepages", 1)],
        );
        files.write(&format!("{}/demote_size", pool_directory(size, None)), "2048kB");
        let node = |total, free| [("nr_hugepages", total), ("free_hugepages", free), ("surplus_hugepages", 1)];
        write(&mut files, &pool_directory(size, Some(0)), &node(2, 2));
        write(&mut files, &pool_directory(size, Some(3)), &node(3, 2));
        files.write("/sys/devices/system/node/online", "0,3");
        let pools = pool_counts(&files);
        let found: Vec<_> =
            pools[0].nodes.iter().map(|node| (node.node, node.total, node.free, node.surplus)).collect();
        assert_eq!(found, [(0, 2, 2, 1), (3, 3, 2, 1)]);
        assert_eq!(pools[0].demotes_to, PageSize::new(2 << 20).ok());
        assert_eq!([pools[0].unpromised_on(0), pools[0].unpromised_on(3), pools[0].unpromised_on(9)], [1, 1, 0]);
        assert_eq!(pools[0].on_node(3).unwrap().persistent(), 2);
    }

    #[test]
    fn the_default_size_stands_in_meminfo() {
        assert_eq!(default_hugetlb("Hugepagesize:       2048 kB\n"), PageSize::new(2 << 20).ok());
        assert_eq!(default_hugetlb("Hugepagesize:       3 kB\n"), None);
    }
}
