//! The kernel's view of a process: its memory, its mappings, its counters.

use address_space::{ProcessStat, StatCounters};
use measure::record::{AddressMap, Counters, HexAddress, HugeBytes, MapRange, MemoryUse, Observation};
use nix::sys::resource::Usage as ResourceUsage;
use nix::sys::time::TimeValLike;
use nix::unistd::{SysconfVar, sysconf};
use process_view::coverage::{HugeKind, Part, RangeCoverage, Shown, Usage};
use process_view::{ProcessFiles, ProcessMemory, printable};

/// Observes a process. `None` if it cannot be read, or has no memory any more: an experiment continues without an
/// observation.
pub(crate) fn look_at(pid: i32) -> Option<Observation> {
    let memory = ProcessMemory::read(pid).ok()?;
    let ranges = memory.ranges();
    let mut total = Usage::default();
    ranges.iter().for_each(|range| total += &range.usage);
    if total.mapped == 0 {
        return None;
    }
    let ranges = ranges.into_iter().map(|range| map_range(&range)).collect();
    Some(Observation {
        process: memory.name,
        memory: Some(memory_use(pid, &total)),
        map: Some(AddressMap::new(memory.base_page.bytes(), ranges)),
        ..Observation::default()
    })
}

/// The proportional set size is read after `total`: while a process grows, it can be the larger of the two.
fn memory_use(pid: i32, total: &Usage) -> MemoryUse {
    let files = ProcessFiles::of(pid);
    let rollup = files.text("smaps_rollup").unwrap_or_default();
    // Pss leaves out the pool. Its private pages are this process's alone.
    let pool = field(&rollup, "Private_Hugetlb").unwrap_or(0);
    MemoryUse {
        resident: total.resident,
        proportional: field(&rollup, "Pss").map(|bytes| bytes.saturating_add(pool)),
        huge: huge(total),
        page_tables: files.text("status").ok().and_then(|text| field(&text, "VmPTE")),
    }
}

/// The value of a line `Name:   123 kB`, in bytes.
fn field(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    value.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn huge(usage: &Usage) -> Vec<HugeBytes> {
    let bytes = |huge: &process_view::coverage::HugeBytes| HugeBytes {
        kind: HugeKind::to_string(&huge.kind),
        page_size: huge.page_size.map(|size| size.bytes()),
        bytes: huge.bytes,
    };
    usage.huge.iter().map(bytes).collect()
}

fn map_range(coverage: &RangeCoverage) -> MapRange {
    let (kind, name) = match &coverage.shown {
        Shown::Object { name, parts, .. } => {
            (parts.iter().map(Part::to_string).collect::<Vec<_>>().join("+"), name.as_str())
        }
        Shown::Memory { kind, path } => {
            let path = path.as_deref().unwrap_or_default();
            (kind.to_string(), path.rsplit('/').next().unwrap_or(path))
        }
    };
    MapRange {
        start: HexAddress(coverage.range.start().0),
        end: HexAddress(coverage.range.end().0),
        protection: coverage.protection.to_string(),
        kind,
        object: printable(name),
        resident: coverage.usage.resident,
        huge: huge(&coverage.usage),
    }
}

/// Counters of a process and of all threads that it has had, from `/proc/PID/stat` (proc_pid_stat(5)).
pub(crate) fn counters_of(pid: i32) -> Option<Counters> {
    let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten()? as f64;
    parse_stat(&ProcessFiles::of(pid).text("stat").ok()?, ticks)
}

fn parse_stat(text: &str, ticks: f64) -> Option<Counters> {
    ProcessStat::parse(text)?.counters().map(|counted| counters_of_stat(counted, ticks))
}

/// Counters of a process, and of its children that have ended and were waited for, from the text of `/proc/PID/stat`.
pub(crate) fn counters_with_children(text: &str, ticks: f64) -> Option<(Counters, Counters)> {
    let stat = ProcessStat::parse(text)?;
    Some((counters_of_stat(stat.counters()?, ticks), counters_of_stat(stat.counters_of_children()?, ticks)))
}

fn counters_of_stat(counted: StatCounters, ticks: f64) -> Counters {
    Counters {
        minor_faults: counted.minor_faults,
        major_faults: counted.major_faults,
        user: counted.user_ticks as f64 / ticks,
        system: counted.system_ticks as f64 / ticks,
    }
}

/// The counters that getrusage(2) returns.
pub(crate) fn counters_in(usage: &ResourceUsage) -> Counters {
    let seconds = |time: nix::sys::time::TimeVal| time.num_microseconds() as f64 / 1e6;
    Counters {
        minor_faults: usage.minor_page_faults() as u64,
        major_faults: usage.major_page_faults() as u64,
        user: seconds(usage.user_time()),
        system: seconds(usage.system_time()),
    }
}

/// The difference between two moments. A counter that has wrapped counts as zero.
pub(crate) fn between(before: Counters, after: Counters) -> Counters {
    Counters {
        minor_faults: after.minor_faults.saturating_sub(before.minor_faults),
        major_faults: after.major_faults.saturating_sub(before.major_faults),
        user: (after.user - before.user).max(0.0),
        system: (after.system - before.system).max(0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_can_be_looked_at() {
        let pid = std::process::id() as i32;
        let seen = look_at(pid).unwrap();
        let (memory, map) = (seen.memory.unwrap(), seen.map.unwrap());
        // Other tests grow this process between the two readings, so no order of the two sizes holds.
        assert!(memory.resident > 0 && memory.proportional > Some(0) && memory.page_tables > Some(0));
        let program = std::env::current_exe().unwrap();
        let name = program.file_name().unwrap().to_str().unwrap();
        let text = map.ranges.iter().find(|range| range.object == name && range.kind == "text").unwrap();
        assert!(text.resident > 0 && text.protection.starts_with("r-x") && text.mapped() >= text.resident);
        assert!(counters_of(pid).unwrap().minor_faults > 0);
        assert!(look_at(i32::MAX).is_none() && counters_of(i32::MAX).is_none());
    }

    #[test]
    fn the_kernel_s_texts_are_read() {
        let stat = "12 (a) b (c) S 1 2 3 4 5 6 70 80 90 100 250 50 1 2 20\n";
        let counters = Counters { minor_faults: 70, major_faults: 90, user: 2.5, system: 0.5 };
        assert_eq!(parse_stat(stat, 100.0), Some(counters));
        assert_eq!(parse_stat("12 (a", 100.0), None);
        let children = Counters { minor_faults: 80, major_faults: 100, user: 0.01, system: 0.02 };
        assert_eq!(counters_with_children(stat, 100.0), Some((counters, children)));
        assert_eq!(field("Rss: 1 kB\nPss:       2 kB\nPss_Dirty: 3 kB\n", "Pss"), Some(2048));
        assert_eq!(between(counters, Counters::default()), Counters::default());
    }
}
