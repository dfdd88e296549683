//! The checks: each is a function from facts to outcomes, and a line of [`CHECKS`].
//!
//! A check that needs a new fact takes it from [`Facts`], which `gather` fills; it reads no files. Checks for TLB
//! shootdowns, or for the cure of an allocator that causes them, belong to the area [`Area::Program`] and get a line
//! there; a measured working set belongs to [`crate::facts::RunningFacts`], from which the verdict takes it.

mod data_files;
mod host;
mod kernel;
mod measuring;
mod memory;
mod own_pages;
mod permission;
mod pool;
mod program;
mod settings;
mod thp;

use crate::facts::Facts;
use crate::finding::{Area, CheckOutcome, Fix, Severity};
pub(crate) use program::by_glibc;
pub(crate) use settings::{by_java, lift_target, lifts_in_place};

/// One check.
pub struct Check {
    /// Its name in JSON.
    pub name: &'static str,
    /// The area.
    pub area: Area,
    /// Examines the facts; no outcome if it does not apply.
    pub run: fn(&Facts) -> Vec<CheckOutcome>,
}

const fn check(name: &'static str, area: Area, run: fn(&Facts) -> Vec<CheckOutcome>) -> Check {
    Check { name, area, run }
}

/// All checks. Within one severity the report keeps this order.
pub const CHECKS: &[Check] = &[
    check("thp-mode", Area::Thp, thp::mode),
    check("thp-switched-off", Area::Thp, thp::switched_off),
    check("thp-defrag", Area::Thp, thp::defrag),
    check("khugepaged-bloat", Area::Thp, thp::bloat),
    check("khugepaged", Area::Thp, thp::khugepaged),
    check("shmem-enabled", Area::Thp, thp::shared),
    check("pool-cgroup", Area::Pool, pool::cgroup),
    check("pool-nodes", Area::Pool, pool::nodes),
    check("pool-pages", Area::Pool, pool::pages),
    check("pool-sizes", Area::Pool, pool::sizes),
    check("ptrace", Area::Permission, permission::ptrace),
    check("executable-memory", Area::Permission, permission::executable_memory),
    check("seccomp", Area::Permission, permission::seccomp),
    check("max-map-count", Area::Permission, permission::mappings),
    check("memlock", Area::Permission, permission::memlock),
    check("heap", Area::Program, settings::heap),
    check("shared-memory", Area::Program, settings::shared_memory),
    check("data-files", Area::Program, data_files::data_files),
    check("own-pages", Area::Program, own_pages::own_pages),
    check("java", Area::Program, settings::java),
    check("redis", Area::Program, settings::redis),
    check("node", Area::Program, settings::node),
    check("large-folios", Area::Program, program::large_folios),
    check("far-pages", Area::Program, program::far_pages),
    check("refused", Area::Program, program::refused),
    check("elf-thp", Area::Program, program::elf_thp),
    check("glibc-heap", Area::Program, program::glibc_heap),
    check("program", Area::Program, program::shape),
    check("fragmentation", Area::Memory, memory::fragmentation),
    check("min-free", Area::Memory, memory::min_free),
    check("swap", Area::Memory, memory::swap),
    check("ksm", Area::Memory, memory::ksm),
    check("damon", Area::Memory, memory::damon),
    check("numa-balancing", Area::Memory, memory::numa_balancing),
    check("host-backing", Area::Host, host::backing),
    check("itlb-multihit", Area::Host, host::executable_pages),
    check("kernel-features", Area::Kernel, kernel::features),
    check("perf-events", Area::Measuring, measuring::events),
    check("cpu-counters", Area::Measuring, measuring::cpu_counters),
    check("tracepoints", Area::Measuring, measuring::tracepoints),
];

fn found(
    severity: Severity,
    title: impl Into<String>,
    found: impl Into<String>,
    wanted: impl Into<String>,
    why: impl Into<String>,
    fix: Option<Fix>,
) -> Vec<CheckOutcome> {
    vec![CheckOutcome::Found {
        severity,
        title: title.into(),
        found: found.into(),
        wanted: wanted.into(),
        why: why.into(),
        fix,
    }]
}

fn fine(seen: impl Into<String>) -> Vec<CheckOutcome> {
    vec![CheckOutcome::fine(seen)]
}

#[cfg(test)]
pub(crate) mod tests;
