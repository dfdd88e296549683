//! Repeats a measurement: results that differ have a range, and no share.

use crate::tlb_probe::Backing;
use crate::tlb_probe::curve::Levels;
use crate::tlb_probe::lift_costs::lift_costs;
use crate::tlb_probe::load::Loading;
use crate::tlb_probe::measure::{Options, Probe, measure_once};
use crate::tlb_probe::measured::MeasuredSizes;
use crate::tlb_probe::series::LevelRanges;
use crate::tlb_probe::verdict::{Compared, ProbeVerdict};
use machine_facts::machine_facts;
use std::time::{Duration, Instant};

/// Number of passes.
const PASSES: u32 = 3;

/// Measures this machine from the calling thread, several times. It should have a CPU to itself. A CPU that is too slow for
/// [`Options::most`] gets fewer passes.
pub fn probe(options: &Options) -> Probe {
    let (begin, loading) = (Instant::now(), Loading::begin());
    let part = Options { time: options.time / PASSES, ..*options };
    let mut passes: Vec<Probe> = Vec::new();
    let mut longest = Duration::ZERO;
    while passes.len() < PASSES as usize
        && (passes.is_empty() || begin.elapsed().saturating_add(longest) <= options.most)
    {
        let started = Instant::now();
        passes.push(measure_once(&part));
        longest = longest.max(started.elapsed());
    }
    let mut probe = merged(passes);
    probe.load = loading.and_then(Loading::end);
    let costs = lift_costs(machine_facts(std::process::id() as i32).thp.map(|thp| thp.mode));
    (probe.lift_costs, probe.lift_cost_range) = costs.unzip();
    probe
}

/// The middle pass with huge pages, with the ranges of all passes. If no pass has huge pages, the middle one of all.
fn merged(mut passes: Vec<Probe>) -> Probe {
    let walks = |pass: &Probe| pass.verdict.as_ref().map_or(0.0, |verdict| verdict.data.base);
    passes.sort_by(|one, other| walks(one).total_cmp(&walks(other)));
    let reaches = |of: fn(&Probe) -> Option<u64>| range(passes.iter().map(of));
    let (data, code) = (reaches(|pass| pass.data.reach()), reaches(|pass| pass.code.reach()));
    let verdict = of_all(&passes.iter().filter_map(|pass| pass.verdict.as_ref()).collect::<Vec<_>>());
    let (data_levels, code_levels) = (levels(&passes, |pass| &pass.data), levels(&passes, |pass| &pass.code));
    let (count, with_huge) = (passes.len(), passes.iter().filter(|pass| pass.verdict.is_some()).count());
    if verdict.is_some() {
        passes.retain(|pass| pass.verdict.is_some());
    }
    let mut middle = passes.swap_remove(passes.len() / 2);
    for (measured, levels) in [(&mut middle.data, data_levels), (&mut middle.code, code_levels)] {
        for series in &mut measured.series {
            let same = levels.iter().filter(|(backing, _)| *backing == series.backing);
            series.ranges = LevelRanges::over(same.map(|(_, levels)| levels));
        }
    }
    (middle.passes, middle.passes_with_huge, middle.verdict) = (count, with_huge, verdict);
    (middle.data.reaches, middle.code.reaches) = (data, code);
    middle
}

/// The levels of all page sizes in all passes.
fn levels(passes: &[Probe], of: fn(&Probe) -> &MeasuredSizes) -> Vec<(Backing, Levels)> {
    let of_pass = |pass| of(pass).series.iter().map(|series| (series.backing, series.levels.clone()));
    passes.iter().flat_map(of_pass).collect()
}

/// The least and the most; `None` if one is missing.
fn range(values: impl Iterator<Item = Option<u64>>) -> Option<(u64, u64)> {
    let values = values.collect::<Option<Vec<_>>>()?;
    Some((*values.iter().min()?, *values.iter().max()?))
}

/// The verdict of the pass in the middle, with the ranges of all. A fact on which the passes differ is unknown.
fn of_all(verdicts: &[&ProbeVerdict]) -> Option<ProbeVerdict> {
    let mut verdict = (*verdicts.get(verdicts.len() / 2)?).clone();
    verdict.data = verdict.data.over(&verdicts.iter().map(|other| other.data).collect::<Vec<_>>());
    verdict.code =
        verdict.code.map(|code| code.over(&verdicts.iter().filter_map(|v| v.code).collect::<Vec<Compared>>()));
    if verdicts.iter().any(|other| other.splintered != verdict.splintered) {
        (verdict.splintered, verdict.needed) = (None, None);
    }
    Some(verdict)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tlb_probe::curve::{Curve, Point};
    use crate::tlb_probe::series::Series;
    use address_space::PageSize;

    fn verdict(base: f64, huge: f64, splintered: Option<bool>) -> ProbeVerdict {
        ProbeVerdict {
            backing: Backing::Transparent(PageSize::new(2 << 20).unwrap()),
            data: Compared::new(1 << 28, base, huge),
            code: None,
            splintered,
            needed: None,
            virtual_machine: Some(true),
        }
    }

    fn merged_of(passes: &[(f64, f64, Option<bool>)]) -> ProbeVerdict {
        let verdicts: Vec<_> = passes.iter().map(|&(base, huge, split)| verdict(base, huge, split)).collect();
        of_all(&verdicts.iter().collect::<Vec<_>>()).unwrap()
    }

    /// As measured in one hour on one machine: 39 to 628 ns, and 56 to 95 %.
    #[test]
    fn passes_that_differ_have_a_range_and_no_share() {
        let quiet = merged_of(&[(39.0, 4.0, Some(true)), (40.0, 4.0, Some(true)), (42.0, 4.0, Some(true))]);
        assert_eq!((quiet.data.bases, quiet.data.huges), ((39.0, 42.0), (4.0, 4.0)));
        let (low, high) = quiet.data.saved().unwrap();
        assert!(low > 0.89 && high < 0.91 && quiet.splintered == Some(true));
        let loaded = merged_of(&[(39.0, 17.0, Some(true)), (200.0, 60.0, Some(false)), (628.0, 31.0, Some(true))]);
        assert_eq!((loaded.data.bases, loaded.data.saved(), loaded.splintered), ((39.0, 628.0), None, None));
        assert_eq!(merged_of(&[(40.0, 4.0, None)]).data.saved(), None, "one pass shows no stability");
        // A pass that was cut ends at another footprint.
        let mut cut = verdict(90.0, 4.0, None);
        cut.data.footprint = 1 << 20;
        let whole = verdict(40.0, 4.0, None);
        let merged = of_all(&[&cut, &whole, &whole]).unwrap();
        assert_eq!(merged.data.bases, (40.0, 40.0));
    }

    /// A pass whose base pages walk at this cost, and that has measured huge pages or not.
    fn pass(walk: f64, has_huge: bool) -> Probe {
        let times = [(16, 0.0), (18, 0.0), (19, 3.0), (21, 3.0), (23, 3.0), (27, walk)];
        let point = |(bits, time): (u32, f64)| {
            let footprint = 1 << bits;
            Point { slots: 1 << (bits - 12), footprint, access: time, translation: time, quartiles: (time, time) }
        };
        let base = Series::new(Backing::Base, Curve { points: times.map(point).to_vec() });
        let series = if has_huge { vec![base] } else { Vec::new() };
        Probe {
            base_page: 4096,
            virtual_machine: None,
            data: MeasuredSizes { series, ..MeasuredSizes::default() },
            code: MeasuredSizes::default(),
            lift_costs: None,
            lift_cost_range: None,
            verdict: has_huge.then(|| verdict(walk, 4.0, None)),
            passes: 1,
            passes_with_huge: usize::from(has_huge),
            load: None,
        }
    }

    #[test]
    fn levels_have_the_range_of_all_passes() {
        let merged = merged(vec![pass(118.0, true), pass(380.0, true), pass(200.0, true)]);
        let base = &merged.data.series[0];
        assert_eq!((base.levels.walk, base.ranges.walk), (Some(200.0), Some((118.0, 380.0))));
        assert_eq!(base.ranges.second_hit, Some((3.0, 3.0)));
    }

    /// While memory is fragmented, a pass may get no huge pages.
    #[test]
    fn the_shown_pass_has_measured_huge_pages() {
        let found = merged(vec![pass(0.0, false), pass(40.0, true), pass(0.0, false)]);
        assert_eq!((found.passes, found.data.series.len()), (3, 1));
        let compared = found.verdict.unwrap().data;
        assert_eq!((compared.passes, compared.saved()), (1, None));
        let none = merged(vec![pass(0.0, false), pass(0.0, false)]);
        assert!(none.verdict.is_none() && none.data.series.is_empty() && none.passes == 2);
    }

    #[test]
    fn a_reach_that_one_pass_does_not_show_is_unknown() {
        assert_eq!(range([Some(8), Some(2), Some(4)].into_iter()), Some((2, 8)));
        assert_eq!(range([Some(8), None].into_iter()), None);
    }
}
