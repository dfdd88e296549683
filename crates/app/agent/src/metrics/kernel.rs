//! Counts of the kernel about huge pages: pools, transparent huge pages, compaction, shootdowns.

use linux::interrupts::InterruptCounts;
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
    /// TLB shootdowns that CPUs have received since the agent's start, as [`ShootdownCounter`] sums them. Absent on machines that send none by interrupts.
    pub shootdowns: Option<u64>,
}

impl KernelCounts {
    /// Reads them, without shootdowns.
    pub fn read(files: &impl Files) -> Self {
        let vmstat = files.text("/proc/vmstat").unwrap_or_default();
        let value = |name: &'static str| {
            let line = vmstat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
            Some((name, line.trim().parse().ok()?))
        };
        Self { pools: pool_counts(files), vmstat: VMSTAT.into_iter().filter_map(value).collect(), shootdowns: None }
    }
}

/// A sum of received shootdowns that never falls, though the kernel's counters begin again after 2^32 and it shows only CPUs that are
/// online: a sum that falls would look like a restart, after which all count once more.
#[derive(Clone, Debug, Default)]
pub struct ShootdownCounter {
    last: InterruptCounts,
    sum: u64,
}

impl ShootdownCounter {
    /// Adds what the CPUs have received since the last reading, and returns the sum; `None` where it is not counted. It is 0 at the
    /// first reading, as every counter of a restarted agent.
    pub fn advance(&mut self, now: InterruptCounts) -> Option<u64> {
        now.shootdowns.as_ref()?;
        self.sum = self.sum.saturating_add(now.shootdowns_since(&self.last).unwrap_or(0));
        self.last = now;
        Some(self.sum)
    }
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
        assert_eq!(counts.pools.len(), 0);
    }

    #[test]
    fn the_sum_of_shootdowns_never_falls() {
        let text =
            |cpus: &str, counts: &str| InterruptCounts::parse(&format!("{cpus}\n TLB: {counts} TLB shootdowns\n"));
        let mut counter = ShootdownCounter::default();
        assert_eq!(counter.advance(text("CPU0 CPU1", "4294967290 12")), Some(0));
        // A CPU goes offline, and the counter of the other one begins again.
        assert_eq!(counter.advance(text("CPU0", "4")), Some(10));
        assert_eq!(counter.advance(InterruptCounts::default()), None);
        assert_eq!(counter.advance(text("CPU0 CPU1", "5 9")), Some(11));
        assert_eq!(ShootdownCounter::default().advance(InterruptCounts::default()), None);
    }
}
