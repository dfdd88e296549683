//! The facts on which plans depend: [`MachineFacts`] are the huge pages that a machine and a process's cgroups provide,
//! [`ProcessFacts`] what is known about a process. The former are read here; the latter are gathered here by the readers of
//! the planner's callers, which read another process or their own.
//!
//! The parsers read files only through [`Files`]. The implementation by the standard library is here (feature `std`);
//! libpagelift, which runs inside programs without a runtime, has its own.
#![cfg_attr(not(any(test, feature = "std")), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod cgroup;
mod cgroup_mount;
#[cfg(feature = "std")]
mod cgroup_view;
mod facts;
mod files;
mod fragmentation;
mod gathering;
mod machine;
mod meminfo;
mod node_set;
mod nodes;
mod numa;
mod numa_facts;
mod pools;
mod process;
#[cfg(feature = "std")]
mod system;
mod thp;

pub use cgroup::{
    CgroupDirectory, CgroupLimits, Cgroups, Controller, HugetlbCgroup, HugetlbLimit, MemoryFiles, NO_LIMIT,
    for_each_directory,
};
#[cfg(feature = "std")]
pub use cgroup_view::cgroup_path;
pub use facts::{HugePool, MachineFacts, PoolLimit, SpecialMapping, ThpFacts, ThpMode};
pub use files::Files;
pub use fragmentation::{FreeBlocks, PageBlocks, free_blocks, page_blocks};
pub use gathering::{CachedFiles, FileReader, FileState, cached_files, touched_memory};
pub use machine::{
    Kernel, Looks, elf_machine, facts_of, is_thp_off, memory_available_to, smallest_huge_page, usual_huge_page_of,
};
pub use meminfo::meminfo_bytes;
pub use node_set::Nodes;
pub use nodes::{MOST_NODES, NODES, NodeMemory, allowed_nodes, node_memory, node_numbers, numbers_in};
pub use numa::{
    PoolPagesOnNode, bytes_by_mapping, bytes_on_nodes, nodes_with_cpus, numa_facts, placed_mappings, pool_pages_by_node,
};
pub use numa_facts::{NodeFacts, NumaFacts};
pub use pools::{NodePool, POOLS, PoolCounts, default_hugetlb, pool_counts, pool_directory, pools_at};
pub use process::{CacheShortfall, CachedFile, ImageSpan, ProcessFacts};
#[cfg(feature = "std")]
pub use system::{System, base_page, machine_facts, machine_facts_for, memory_available, system_thp, usual_huge_page};
pub use thp::{THP, ThpSize, chosen_word, largest_below, pmd_size, thp_at, thp_sizes};
