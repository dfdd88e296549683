//! CPUs that others use during a measurement (proc_stat(5)).

use nix::sys::time::TimeValLike;
use nix::time::{ClockId, clock_gettime};
use process_view::ProcessFiles;
use serde::Serialize;
use std::time::Instant;

/// The load by other programs during a measurement, as a number of CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Load {
    /// CPUs that other programs used.
    pub others: f64,
    /// CPUs that the hypervisor took.
    pub stolen: f64,
}

/// Counters at the beginning.
pub(crate) struct Loading {
    times: (f64, f64),
    own: f64,
    at: Instant,
}

impl Loading {
    /// Begins; `None` if the kernel does not report it.
    pub fn begin() -> Option<Self> {
        Some(Self { times: times()?, own: own()?, at: Instant::now() })
    }

    /// The load since then.
    pub fn end(self) -> Option<Load> {
        let ((busy, stolen), own, wall) = (times()?, own()? - self.own, self.at.elapsed().as_secs_f64());
        let of_wall = |seconds: f64| (seconds / wall).max(0.0);
        Some(Load { others: of_wall(busy - self.times.0 - own), stolen: of_wall(stolen - self.times.1) })
    }
}

fn own() -> Option<f64> {
    Some(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).ok()?.num_nanoseconds() as f64 / 1e9)
}

/// Seconds in which CPUs were busy, and seconds that were stolen, of all CPUs.
fn times() -> Option<(f64, f64)> {
    let ticks = ProcessFiles::of(std::process::id() as i32).auxiliary().ok()?.clock_ticks()? as f64;
    let (busy, stolen) = parsed(&linux::text::text_of("/proc/stat").ok()?)?;
    Some((busy as f64 / ticks, stolen as f64 / ticks))
}

/// user, nice, system, irq and softirq; steal.
fn parsed(text: &str) -> Option<(u64, u64)> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let numbers: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let [user, nice, system, _, _, irq, softirq, steal] = *numbers.get(..8)? else { return None };
    Some((user.saturating_add(nice).saturating_add(system).saturating_add(irq).saturating_add(softirq), steal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_and_own_time_are_no_load() {
        assert_eq!(parsed("cpu  10 2 30 999 50 4 5 60 7 0\ncpu0 1 1\n"), Some((51, 60)));
        assert_eq!([parsed("cpu  1 2\n"), parsed("")], [None, None]);
        let load = Loading::begin().and_then(Loading::end).unwrap();
        assert!(load.others >= 0.0 && load.stolen >= 0.0);
    }
}
