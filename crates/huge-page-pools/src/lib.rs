//! What huge pages a machine and a process's cgroups have to give: the planner's [`MachineFacts`].
#![forbid(unsafe_code)]

mod cgroup;
mod machine;
mod pools;
mod thp;

pub use cgroup::{CgroupLimits, Cgroups, HugetlbLimit};
pub use kernel_calls::pages::base_page;
pub use machine::{elf_machine, machine_facts, machine_facts_for, system_thp, usual_huge_page};
pub use pools::pools_at;
pub use thp::thp_at;
