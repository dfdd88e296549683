//! The time of page walks if the PMU counts them but not their cycles, as on AMD's Zen and Arm's Neoverse N1 to V2: an
//! estimate from the cost of a walk on this machine.

use super::report::{Estimated, Outcome, Report, Walked, is_stable};
use crate::commands::probe;
use translation::tlb_probe::MeasuredSizes;
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
    let costs = Costs { code: walk(&probe.code), data: walk(&probe.data) };
    report.tlb = probe::reach(&probe);
    if let Some(Outcome::Measured(marks)) = &mut report.marks {
        marks.verdicts = verdicts(&marks.working_set, &report.tlb);
    }
    let estimated = Estimated { load: probe.load, ..of(&walks, &costs, cpu_seconds) };
    Report { estimated: Some(Outcome::Measured(estimated)), ..report }
}

/// The least and the most of several passes, in ns.
type Range = (f64, f64);

/// The costs of a walk.
struct Costs {
    code: Option<Range>,
    data: Option<Range>,
}

/// The cost of a walk on base pages.
fn walk(measured: &MeasuredSizes) -> Option<Range> {
    measured.series.first().and_then(|base| base.ranges.walk)
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

/// The shares of this number of walks, at costs in ns, in this number of CPU seconds.
fn of(walks: &Walked, costs: &Costs, cpu_seconds: f64) -> Estimated {
    let share = |walks: Option<f64>, cost: Option<Range>| {
        let (_, most) = cost.filter(|(least, most)| is_stable(*least, *most))?;
        let share = walks? * most / 1e9 / cpu_seconds;
        share.is_finite().then_some(share)
    };
    let end = |of: fn(Range) -> f64| Walked { code: costs.code.map(of), data: costs.data.map(of) };
    Estimated {
        nanoseconds: end(|(_, most)| most),
        least_nanoseconds: end(|(least, _)| least),
        share: Walked { code: share(walks.code, costs.code), data: share(walks.data, costs.data) },
        load: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_walks_times_cost_over_cpu_time() {
        let walks = Walked { code: Some(1e6), data: Some(20e6) };
        let costs = Costs { code: None, data: Some((38.0, 40.0)) };
        let estimated = of(&walks, &costs, 4.0);
        assert_eq!(estimated.share, Walked { code: None, data: Some(0.2) });
        assert_eq!(estimated.nanoseconds, Walked { code: None, data: Some(40.0) });
        assert_eq!(estimated.least_nanoseconds, Walked { code: None, data: Some(38.0) });
        assert_eq!(of(&walks, &costs, 0.0).share, Walked::default());
    }

    #[test]
    fn costs_that_differ_give_no_share() {
        let walks = Walked { code: Some(1e6), data: Some(20e6) };
        let estimated = of(&walks, &Costs { code: Some((40.0, 44.0)), data: Some((39.0, 628.0)) }, 4.0);
        assert!(estimated.share.code.is_some() && estimated.share.data.is_none());
        assert_eq!((estimated.least_nanoseconds.data, estimated.nanoseconds.data), (Some(39.0), Some(628.0)));
    }
}
