//! Reads which huge pages a machine and a process's cgroups provide: the planner's
//! [`MachineFacts`](lift_plan::MachineFacts).
//!
//! The parsers read files only through [`Files`]. The implementation by the standard library is here (feature `std`);
//! libpagelift, which runs inside programs without a runtime, has its own.
#![cfg_attr(not(any(test, feature = "std")), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod cgroup;
mod files;
mod fragmentation;
mod machine;
mod nodes;
mod numa;
mod pools;
#[cfg(feature = "std")]
mod system;
mod thp;

pub use cgroup::{CgroupLimits, Cgroups, HugetlbCgroup, HugetlbLimit};
pub use files::Files;
pub use fragmentation::{FreeBlocks, PageBlocks, free_blocks, page_blocks};
pub use machine::{
    Kernel, Looks, elf_machine, facts_of, is_thp_off, meminfo_bytes, smallest_huge_page, usual_huge_page_of,
};
pub use nodes::{NODES, NodeMemory, allowed_nodes, node_memory, node_numbers};
pub use numa::{bytes_on_nodes, placed_mappings};
pub use pools::{NodePool, POOLS, PoolCounts, default_hugetlb, pool_counts, pool_directory, pools_at};
#[cfg(feature = "std")]
pub use system::{System, base_page, machine_facts, machine_facts_for, system_thp, usual_huge_page};
pub use thp::{THP, ThpSize, pmd_size, thp_at, thp_sizes};
