//! Looks at the machine before a measurement.

use crate::machine::{CpuTimes, MachineFacts, PoolFacts};
use machine_facts::{PoolCounts, System, THP, base_page, chosen_word, meminfo_bytes, pool_counts};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Reads the kernel's facts about the machine, and counts for the time `watch` how much other programs use its CPUs;
/// the caller runs no program during that time. Facts that cannot be read are omitted, never guessed.
pub fn look_at_machine(watch: Duration) -> MachineFacts {
    let meminfo = read("/proc/meminfo").unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo").unwrap_or_default();
    let thp = |file: &str| chosen_word(&read(Path::new(THP).join(file))?).map(str::to_owned);
    let shares = watch_cpus(watch);
    MachineFacts {
        architecture: std::env::consts::ARCH.to_owned(),
        kernel: read("/proc/sys/kernel/osrelease").map(|t| t.trim().to_owned()).unwrap_or_default(),
        cpu_model: cpuinfo_value(&cpuinfo, "model name").or_else(|| cpuinfo_value(&cpuinfo, "CPU part")),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        virtual_machine: cpuinfo_value(&cpuinfo, "flags").map(|f| f.split(' ').any(|flag| flag == "hypervisor")),
        base_page_bytes: base_page().bytes(),
        memory_bytes: meminfo_bytes(&meminfo, "MemTotal"),
        available_bytes: meminfo_bytes(&meminfo, "MemAvailable"),
        thp_enabled: thp("enabled"),
        thp_defrag: thp("defrag"),
        pools: pools(),
        governors: governors(),
        other_load: shares.map(|(busy, _)| busy),
        stolen: shares.map(|(_, stolen)| stolen),
    }
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok()
}

fn cpuinfo_value(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))?;
    line.split_once(':').map(|(_, value)| value.trim().to_owned())
}

fn watch_cpus(watch: Duration) -> Option<(f64, f64)> {
    let times = || CpuTimes::parse(&read("/proc/stat")?);
    let earlier = times()?;
    std::thread::sleep(watch);
    times()?.shares_since(earlier)
}

fn pools() -> Vec<PoolFacts> {
    let facts = |pool: &PoolCounts| PoolFacts {
        page_bytes: pool.size.bytes(),
        total: pool.total,
        free: pool.free.saturating_sub(pool.reserved),
    };
    pool_counts(&System).iter().map(facts).collect()
}

fn governors() -> Vec<String> {
    let Ok(entries) = fs::read_dir("/sys/devices/system/cpu/cpufreq") else { return Vec::new() };
    let governor = |entry: fs::DirEntry| read(entry.path().join("scaling_governor")).map(|t| t.trim().to_owned());
    entries.flatten().filter_map(governor).collect::<BTreeSet<_>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_can_be_looked_at() {
        let facts = look_at_machine(Duration::from_millis(50));
        assert!(facts.base_page_bytes.is_power_of_two(), "{facts:?}");
        assert!(facts.cpus > 0 && !facts.kernel.is_empty(), "{facts:?}");
        assert!(facts.memory_bytes >= facts.available_bytes, "{facts:?}");
    }
}
