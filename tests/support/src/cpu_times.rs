//! CPU time that a hypervisor gives to other machines. A measurement drops what is disturbed by that, and may then have no
//! decision.

use std::fs;

/// Times of all CPUs since the boot, in ticks (proc_stat(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuTimes {
    all: u64,
    stolen: u64,
}

impl CpuTimes {
    /// The times at this moment; zero if the kernel does not report them.
    pub fn now() -> Self {
        Self::parse(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    fn parse(stat: &str) -> Self {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
        // user nice system idle iowait irq softirq steal; guest time is counted in user already.
        let times: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).take(8).collect();
        Self { all: times.iter().sum(), stolen: times.get(7).copied().unwrap_or(0) }
    }

    /// The share of the CPUs' time since `begin` that the hypervisor has taken.
    pub fn stolen_since(self, begin: Self) -> f64 {
        let ticks = self.all.saturating_sub(begin.all).max(1);
        self.stolen.saturating_sub(begin.stolen) as f64 / ticks as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_stolen_time_is_of_all_time_between() {
        let begin = CpuTimes::parse("cpu  10 0 5 80 1 1 1 2 9 0\ncpu0 1 1\n");
        assert_eq!(begin, CpuTimes { all: 100, stolen: 2 });
        let end = CpuTimes::parse("cpu  60 0 25 90 5 5 5 10 50 0\n");
        assert!((end.stolen_since(begin) - 0.08).abs() < 1e-9, "{}", end.stolen_since(begin));
        assert!(begin.stolen_since(end).abs() < 1e-9 && begin.stolen_since(begin).abs() < 1e-9);
        assert_eq!(CpuTimes::parse(""), CpuTimes { all: 0, stolen: 0 });
        assert!(CpuTimes::now().all > 0);
    }
}
