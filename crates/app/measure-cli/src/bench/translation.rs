//! The cost of address translation here, for the record.

use cli::commands::probe::beside;
use measure::record::{PageCosts, Translation};
use translation::tlb_probe::{MeasuredSizes, Probe};

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
    let splintered = probe.verdict.as_ref().and_then(|verdict| verdict.splintered);
    Translation { data: sizes(&probe.data), code: sizes(&probe.code), splintered, not_measured: None }
}
