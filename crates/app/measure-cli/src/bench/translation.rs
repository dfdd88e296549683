//! The cost of address translation here, for the record.

use cli::commands::probe::beside;
use measure::record::{CostRanges, PageCosts, Translation};
use translation::tlb_probe::{Compared, MeasuredSizes, Probe, ProbeVerdict};

/// Measures it, in this thread.
pub(super) fn measured() -> Translation {
    match beside() {
        Ok(probe) => of(&probe),
        Err(why) => Translation { not_measured: Some(why), ..Translation::default() },
    }
}

fn of(probe: &Probe) -> Translation {
    let sizes = |measured: &MeasuredSizes| {
        let series = measured.series.iter().map(|series| PageCosts {
            pages: series.backing.to_string(),
            points: series.curve.points.iter().map(|point| (point.footprint, point.translation)).collect(),
        });
        series.collect()
    };
    let verdict = probe.verdict.as_ref();
    let ranges = |verdict: &ProbeVerdict, of: &Compared| CostRanges {
        pages: verdict.backing.to_string(),
        passes: of.passes,
        base: of.bases,
        huge: of.huges,
        saved: of.saved(),
    };
    Translation {
        data: sizes(&probe.data),
        code: sizes(&probe.code),
        splintered: verdict.and_then(|verdict| verdict.splintered),
        data_ranges: verdict.map(|verdict| ranges(verdict, &verdict.data)),
        code_ranges: verdict.and_then(|verdict| Some(ranges(verdict, verdict.code.as_ref()?))),
        others: probe.load.map(|load| load.others),
        not_measured: None,
    }
}
