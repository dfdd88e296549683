//! Repeats a measurement: results that differ have a range, and no share.

use crate::tlb_probe::lift_costs::lift_costs;
use crate::tlb_probe::load::Loading;
use crate::tlb_probe::measure::{Options, Probe, measure_once};
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
    probe.lift_costs = lift_costs(machine_facts(std::process::id() as i32).thp.map(|thp| thp.mode));
    probe
}

/// The pass in the middle, with the ranges of all.
fn merged(mut passes: Vec<Probe>) -> Probe {
    let walks = |pass: &Probe| pass.verdict.as_ref().map_or(0.0, |verdict| verdict.data.base);
    passes.sort_by(|one, other| walks(one).total_cmp(&walks(other)));
    let reaches = |of: fn(&Probe) -> Option<u64>| range(passes.iter().map(of));
    let (data, code) = (reaches(|pass| pass.data.reach()), reaches(|pass| pass.code.reach()));
    let verdict = of_all(&passes.iter().filter_map(|pass| pass.verdict.as_ref()).collect::<Vec<_>>());
    let count = passes.len();
    let mut middle = passes.swap_remove(count / 2);
    (middle.passes, middle.verdict) = (count, verdict);
    (middle.data.reaches, middle.code.reaches) = (data, code);
    middle
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
    use crate::tlb_probe::Backing;
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

    #[test]
    fn a_reach_that_one_pass_does_not_show_is_unknown() {
        assert_eq!(range([Some(8), Some(2), Some(4)].into_iter()), Some((2, 8)));
        assert_eq!(range([Some(8), None].into_iter()), None);
    }
}
