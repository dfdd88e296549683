//! Facts about the machine, and the facts that may spoil a measurement. Pure: the input is the text of the kernel's
//! files.

use serde::{Deserialize, Serialize};

/// The machine a measurement was taken on, as the kernel described it just before.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineFacts {
    /// Instruction set, `x86_64` for example.
    pub architecture: String,
    /// Kernel release.
    pub kernel: String,
    /// Name of the CPU's model from `/proc/cpuinfo`, absent if the kernel does not report it; `processor` in JSON.
    #[serde(rename = "processor")]
    pub cpu_model: Option<String>,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// True if the CPU reports that it is virtual; absent if that is unknown.
    pub virtual_machine: Option<bool>,
    /// Base page size in bytes.
    pub base_page_bytes: u64,
    /// Memory of the machine, in bytes.
    pub memory_bytes: Option<u64>,
    /// Memory available without swapping, in bytes.
    pub available_bytes: Option<u64>,
    /// Mode of transparent huge pages: always, madvise or never.
    pub thp_enabled: Option<String>,
    /// The effort of a fault for a transparent huge page.
    pub thp_defrag: Option<String>,
    /// Pools of the machine.
    pub pools: Vec<PoolFacts>,
    /// Frequency governors in use, each once; empty if the frequency is not visible here.
    pub governors: Vec<String>,
    /// Share of the CPUs' time that other programs used while no program of ours ran, 0 to 1; absent if unknown.
    pub other_load: Option<f64>,
    /// Share of the CPUs' time that the hypervisor gave to others, 0 to 1.
    pub stolen: Option<f64>,
}

/// A pool of huge pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolFacts {
    /// Page size in bytes.
    pub page_bytes: u64,
    /// Pages in the pool.
    pub total: u64,
    /// Pages free and not reserved.
    pub free: u64,
}

/// The CPUs' time so far, in ticks, from the first line of `/proc/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuTimes {
    /// All ticks.
    pub total: u64,
    /// Ticks idle or waiting for I/O.
    pub idle: u64,
    /// Ticks that the hypervisor gave to others.
    pub stolen: u64,
}

impl CpuTimes {
    /// Reads the text of `/proc/stat` (proc_stat(5)).
    pub fn parse(text: &str) -> Option<Self> {
        let line = text.lines().find_map(|l| l.strip_prefix("cpu "))?;
        let ticks: Vec<u64> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        // user nice system idle iowait irq softirq steal; guest time is counted in user already.
        let at = |index: usize| ticks.get(index).copied().unwrap_or(0);
        (ticks.len() >= 4).then(|| Self {
            total: (0..8).map(at).fold(0, u64::saturating_add),
            idle: at(3).saturating_add(at(4)),
            stolen: at(7),
        })
    }

    /// Shares of busy and of stolen time since `earlier`; `None` if no tick has passed.
    pub fn shares_since(self, earlier: Self) -> Option<(f64, f64)> {
        let total = self.total.checked_sub(earlier.total).filter(|&t| t > 0)? as f64;
        let idle = self.idle.saturating_sub(earlier.idle) as f64;
        let stolen = self.stolen.saturating_sub(earlier.stolen) as f64;
        Some((((total - idle - stolen) / total).clamp(0.0, 1.0), (stolen / total).clamp(0.0, 1.0)))
    }
}

impl MachineFacts {
    /// Conditions that may spoil a measurement here, one sentence each: found, and the fix.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(load) = self.other_load.filter(|&l| l > 0.05) {
            warnings.push(format!(
                "other programs use {:.0} % of the CPUs: intervals will be wide; stop them for a better measurement",
                load * 100.0
            ));
        }
        if let Some(stolen) = self.stolen.filter(|&s| s > 0.02) {
            warnings.push(format!("the hypervisor gave {:.0} % of the CPUs' time to others", stolen * 100.0));
        }
        let slow: Vec<_> = self.governors.iter().filter(|g| *g != "performance").map(String::as_str).collect();
        if !slow.is_empty() {
            warnings.push(format!(
                "the frequency governor is {}; for steadier bursts: cpupower frequency-set -g performance",
                slow.join(", ")
            ));
        }
        match self.thp_enabled.as_deref() {
            Some("always") => warnings.push(
                "transparent huge pages are `always` on: the plain program's data is on huge pages too, so less is left \
                 to win; for the difference to madvise: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
                    .to_owned(),
            ),
            Some("never") => warnings.push(
                "transparent huge pages are switched off; fix: echo madvise > \
                 /sys/kernel/mm/transparent_hugepage/enabled"
                    .to_owned(),
            ),
            _ => {}
        }
        if self.virtual_machine == Some(true) {
            warnings.push(
                "this is a virtual machine: its speed drifts, and a missed translation costs more than on bare metal"
                    .to_owned(),
            );
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_kernels_texts_are_read() {
        let earlier = CpuTimes::parse("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2 3 4\n").unwrap();
        let later = CpuTimes::parse("cpu  130 0 60 850 50 0 0 10 0 0\n").unwrap();
        assert_eq!(earlier, CpuTimes { total: 1000, idle: 850, stolen: 0 });
        let (busy, stolen) = later.shares_since(earlier).unwrap();
        assert!((busy - 0.4).abs() < 1e-9 && (stolen - 0.1).abs() < 1e-9);
    }

    #[test]
    fn a_quiet_machine_gives_no_warning_and_each_flaw_one() {
        let quiet = MachineFacts { thp_enabled: Some("madvise".into()), other_load: Some(0.0), ..Default::default() };
        assert_eq!(quiet.warnings(), Vec::<String>::new());
        let flawed = MachineFacts {
            thp_enabled: Some("never".into()),
            other_load: Some(0.5),
            stolen: Some(0.1),
            governors: vec!["powersave".into()],
            virtual_machine: Some(true),
            ..Default::default()
        };
        assert_eq!(flawed.warnings().len(), 5);
    }

    proptest! {
        #[test]
        fn no_text_makes_the_readers_panic(text in "\\PC*", digits in "cpu ( [0-9]{1,22}){0,12}") {
            let _ = CpuTimes::parse(&text);
            let _ = CpuTimes::parse(&digits);
        }
    }
}
