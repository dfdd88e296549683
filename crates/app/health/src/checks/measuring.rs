//! The requirements of measuring (perf_event_open(2)).

use super::{fine, found};
use crate::facts::{Attempt, Facts, Feature};
use crate::finding::{CheckOutcome, Fix, Severity};

/// Events of this process's own.
pub fn events(facts: &Facts) -> Vec<CheckOutcome> {
    match facts.attempt(Feature::Events) {
        Some(Attempt::Refused { words, .. }) => {
            let level = facts.measuring.paranoid.map_or_else(|| "not shown".to_owned(), |level| level.to_string());
            found(
                Severity::Note,
                "perf events may not be used",
                format!("tried: {words}; kernel.perf_event_paranoid = {level}"),
                "2 or less, or root",
                "`pagelift bench` counts no events; in containers a seccomp filter refuses them too",
                Some(Fix::sysctl("kernel.perf_event_paranoid", 2)),
            )
        }
        Some(Attempt::Works) => fine("perf events of own programs work"),
        _ => Vec::new(),
    }
}

/// Counters of the CPU.
pub fn cpu_counters(facts: &Facts) -> Vec<CheckOutcome> {
    // Said of the machine, not again of each program.
    if facts.program.is_some() {
        return Vec::new();
    }
    match facts.attempt(Feature::CpuCounters) {
        Some(Attempt::Refused { .. }) if facts.works(Feature::Events) => found(
            Severity::Note,
            "no CPU counters",
            match facts.host.virtual_machine {
                Some(true) => "the host gives this virtual machine no PMU",
                _ => "the kernel has no driver for this CPU's PMU",
            },
            "a PMU",
            "TLB misses cannot be counted here; `pagelift bench` and `pagelift probe` measure time instead",
            None,
        ),
        Some(Attempt::Works) => fine("the CPU's counters work"),
        _ => Vec::new(),
    }
}

/// Tracepoints.
pub fn tracepoints(facts: &Facts) -> Vec<CheckOutcome> {
    match facts.measuring.tracepoints {
        true => fine("tracepoints can be read"),
        false if !facts.is_root => {
            vec![CheckOutcome::for_root("tracepoints, by which system calls and shootdowns are counted")]
        }
        false => found(
            Severity::Note,
            "tracepoints cannot be read",
            "no tracefs, mounted or to be mounted",
            "CONFIG_TRACING, and CAP_SYS_ADMIN",
            "`pagelift bench --work auto` counts context switches instead of system calls",
            None,
        ),
    }
}
