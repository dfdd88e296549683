//! The time of page walks where the PMU counts them but not their cycles, as on AMD's Zen and Arm's Neoverse N1 to V2: an
//! estimate from what a walk costs on this machine.

use super::report::{Estimated, Outcome, Report, Walked};
use std::time::Duration;
use tlb_probe::{Options, probe};

/// Bounds of the measurement of a walk's cost: as long as `pagelift probe` needs to reach beyond 3,000 entries that hold four
/// pages each.
const OPTIONS: Options = Options { time: Duration::from_secs(4), memory: 256 << 20 };

/// Measures what a walk costs, in this thread, and estimates the share of the CPU time.
pub fn estimate(report: &Report) -> Outcome<Estimated> {
    let (walks, cpu_seconds) = match walks(report) {
        Ok(found) => found,
        Err(why) => return Outcome::NotMeasured(why),
    };
    let available = machine_facts::machine_facts(std::process::id() as i32).memory_available;
    let needed = 3 * OPTIONS.memory;
    if available < needed {
        let (needed, found) = (needed >> 20, available >> 20);
        return Outcome::NotMeasured(format!("measuring a page walk needs {needed} MiB, {found} are available"));
    }
    let probe = probe(&OPTIONS);
    let walk = |measured: &tlb_probe::Measured| measured.series.first().and_then(|base| base.levels.walk);
    let costs = Walked { code: walk(&probe.code), data: walk(&probe.data) };
    Outcome::Measured(of(&walks, &costs, cpu_seconds))
}

/// The walks of all cores, and the CPU seconds in which they were counted.
fn walks(report: &Report) -> Result<(Walked, f64), String> {
    let Outcome::Measured(cores) = &report.page_walks else { return Err("no page walks were counted".to_owned()) };
    if cores.iter().all(|core| core.walks.code.cycles.value().is_some() && core.walks.data.cycles.value().is_some()) {
        return Err("the PMU counts the cycles of page walks itself".to_owned());
    }
    let Outcome::Measured(activity) = &report.activity else { return Err("the CPU time was not counted".to_owned()) };
    let sum = |count: fn(&walk_counters::Counts) -> Option<f64>| {
        let counts = cores.iter().filter_map(|core| count(&core.counts)).collect::<Vec<_>>();
        (!counts.is_empty()).then(|| counts.iter().sum())
    };
    let walks = Walked {
        code: sum(|counts| counts.walks_of_code().value()),
        data: sum(|counts| counts.walks_of_data().value()),
    };
    Ok((walks, activity.cpu_seconds()))
}

/// The shares that so many walks of such a cost in ns have of so many CPU seconds.
fn of(walks: &Walked, nanoseconds: &Walked, cpu_seconds: f64) -> Estimated {
    let share = |walks: Option<f64>, cost: Option<f64>| {
        let share = walks? * cost? / 1e9 / cpu_seconds;
        share.is_finite().then_some(share)
    };
    Estimated {
        nanoseconds: nanoseconds.clone(),
        share: Walked { code: share(walks.code, nanoseconds.code), data: share(walks.data, nanoseconds.data) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_walks_times_cost_over_cpu_time() {
        let walks = Walked { code: Some(1e6), data: Some(20e6) };
        let costs = Walked { code: None, data: Some(40.0) };
        let estimated = of(&walks, &costs, 4.0);
        assert_eq!(estimated.share, Walked { code: None, data: Some(0.2) });
        assert_eq!(estimated.nanoseconds, costs);
        assert_eq!(of(&walks, &costs, 0.0).share, Walked::default());
    }
}
