//! The whole machine.

use super::counters::Counters;
use super::{Outcome, Report, VERSION};
use crate::commands::reading::confine_to;
use confinement::Reads;
use linux::text::text_of;
use nix::unistd::{SysconfVar, sysconf};
use process_view::Activity;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};
use translation::walk_counters::Target;
use translation::working_set::Reach;

/// The interval for checks of an interruption.
const LOOK: Duration = Duration::from_millis(50);

/// Measures all CPUs.
pub fn measure(time: Duration, interrupted: &Arc<AtomicBool>) -> anyhow::Result<Report> {
    let counters = Counters::start(Target::System);
    confine_to(Reads::Own);
    let (before, start) = (activity()?, Instant::now());
    while start.elapsed() < time && !interrupted.load(Ordering::Relaxed) {
        sleep(LOOK.min(time.saturating_sub(start.elapsed())));
    }
    let seconds = start.elapsed().as_secs_f64();
    let ended_early = interrupted.load(Ordering::Relaxed).then(|| "interrupted".to_owned());
    Ok(Report {
        version: VERSION,
        what: "all CPUs".to_owned(),
        pid: None,
        memory_of: None,
        seconds,
        ended_early,
        activity: Outcome::Measured(activity()?.since(&before)),
        coverage: None,
        page_walks: counters.finish(),
        estimated: None,
        marks: None,
        tlb: Reach::of_this_cpu(),
    })
}

/// Reads the activity of all processes (proc_vmstat(5), proc_stat(5)). The kernel does not distinguish voluntary
/// switches here: all are counted as voluntary.
fn activity() -> std::io::Result<Activity> {
    let (vmstat, stat) = (text_of("/proc/vmstat")?, text_of("/proc/stat")?);
    let number = |text: &str, name: &str| -> u64 {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.and_then(|value| value.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    };
    let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100) as f64;
    let cpu: Vec<f64> =
        stat.lines().next().unwrap_or_default().split_whitespace().skip(1).flat_map(str::parse).collect();
    let at = |index: usize| cpu.get(index).copied().unwrap_or(0.0) / ticks;
    let major = number(&vmstat, "pgmajfault");
    Ok(Activity {
        minor_faults: number(&vmstat, "pgfault").saturating_sub(major),
        major_faults: major,
        // user and nice; system, irq and softirq.
        user_seconds: at(0) + at(1),
        system_seconds: at(2) + at(5) + at(6),
        voluntary_switches: number(&stat, "ctxt"),
        involuntary_switches: 0,
    })
}
