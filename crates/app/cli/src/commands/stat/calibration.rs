//! The time of page walks if the PMU counts them but not their cycles, as on AMD's Zen and Arm's Neoverse N1 to V2: an
//! estimate from the cost of a walk on this machine.

use super::report::{Estimated, Outcome, Report, Walked};
use crate::commands::probe;
use translation::working_set::verdicts;

/// Measures the cost of a walk, in this thread, and estimates the share of the CPU time. The measured reach then
/// determines the verdicts on the pages in use.
pub fn estimated(mut report: Report) -> Report {
    let (walks, cpu_seconds) = match walks(&report) {
        Ok(found) => found,
        Err(why) => return Report { estimated: Some(Outcome::NotMeasured(why)), ..report },
    };
    let probe = match probe::beside() {
        Ok(probe) => probe,
        Err(why) => return Report { estimated: Some(Outcome::NotMeasured(why)), ..report },
    };
    let walk =
        |measured: &translation::tlb_probe::MeasuredSizes| measured.series.first().and_then(|base| base.levels.walk);
    let costs = Walked { code: walk(&probe.code), data: walk(&probe.data) };
    report.tlb = probe::reach(&probe);
    if let Some(Outcome::Measured(marks)) = &mut report.marks {
        marks.verdicts = verdicts(&marks.working_set, &report.tlb);
    }
    Report { estimated: Some(Outcome::Measured(of(&walks, &costs, cpu_seconds))), ..report }
}

/// The walks of all cores, and the CPU seconds in which they were counted.
fn walks(report: &Report) -> Result<(Walked, f64), String> {
    let Outcome::Measured(cores) = &report.page_walks else { return Err("no page walks were counted".to_owned()) };
    // Cores on which no program has run need no counts.
    let cores: Vec<_> = cores.iter().filter(|core| core.counts.has_run()).collect();
    if cores.iter().all(|core| core.walks.code.cycles.value().is_some() && core.walks.data.cycles.value().is_some()) {
        return Err("the PMU counts the cycles of page walks itself".to_owned());
    }
    let Outcome::Measured(activity) = &report.activity else { return Err("the CPU time was not counted".to_owned()) };
    // A count that is missing on one kind of cores is unknown for all.
    let sum = |count: fn(&translation::walk_counters::Counts) -> Option<f64>| {
        cores.iter().map(|core| count(&core.counts)).sum()
    };
    let walks = Walked {
        code: sum(|counts| counts.walks_of_code().value()),
        data: sum(|counts| counts.walks_of_data().value()),
    };
    Ok((walks, activity.cpu_seconds()))
}

/// The shares of this number of walks, at a cost in ns, in this number of CPU seconds.
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
