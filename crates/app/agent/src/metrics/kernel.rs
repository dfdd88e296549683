//! Counts of the kernel about huge pages: pools, transparent huge pages, compaction, shootdowns.

use machine_facts::Files;
use machine_facts::{PoolCounts, pool_counts};

/// Counters of /proc/vmstat with a series. node_exporter leaves them out by default.
pub(super) const VMSTAT: [&str; 8] = [
    "thp_fault_alloc",
    "thp_fault_fallback",
    "thp_collapse_alloc",
    "thp_collapse_alloc_failed",
    "thp_split_page",
    "compact_stall",
    "compact_fail",
    "compact_success",
];

/// The kernel's counts at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelCounts {
    /// The hugetlb pools.
    pub pools: Vec<PoolCounts>,
    /// Values of [`VMSTAT`], those that this kernel has.
    pub vmstat: Vec<(&'static str, u64)>,
    /// TLB shootdowns that CPUs have received since the boot. Absent on machines that send none by interrupts.
    pub shootdowns: Option<u64>,
}

impl KernelCounts {
    /// Reads them.
    pub fn read(files: &impl Files) -> Self {
        let vmstat = files.text("/proc/vmstat").unwrap_or_default();
        let value = |name: &'static str| {
            let line = vmstat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
            Some((name, line.trim().parse().ok()?))
        };
        Self {
            pools: pool_counts(files),
            vmstat: VMSTAT.into_iter().filter_map(value).collect(),
            shootdowns: files.text("/proc/interrupts").and_then(|text| shootdowns(&text)),
        }
    }
}

/// The sum of the row `TLB:` over all CPUs.
fn shootdowns(interrupts: &str) -> Option<u64> {
    let row = interrupts.lines().find_map(|line| line.trim_start().strip_prefix("TLB:"))?;
    let numbers = row.split_ascii_whitespace().map_while(|word| word.parse::<u64>().ok());
    Some(numbers.fold(0, u64::saturating_add))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Machine;

    impl Files for Machine {
        fn text(&self, path: &str) -> Option<String> {
            let text = match path {
                "/proc/vmstat" => {
                    "nr_free_pages 5\nthp_fault_alloc 12\nthp_fault_alloc_x 3\ncompact_fail 7\nthp_split_page x\n"
                }
                "/proc/interrupts" => "      CPU0 CPU1\n  9: 1 1 IO-APIC\nTLB:  30  12   TLB shootdowns\n",
                _ => return None,
            };
            Some(text.to_owned())
        }

        fn names_in(&self, _: &str) -> Vec<String> {
            Vec::new()
        }
    }

    #[test]
    fn only_whole_names_with_numbers_count() {
        let counts = KernelCounts::read(&Machine);
        assert_eq!(counts.vmstat, [("thp_fault_alloc", 12), ("compact_fail", 7)]);
        assert_eq!((counts.shootdowns, counts.pools.len()), (Some(42), 0));
    }
}
