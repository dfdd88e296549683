//! Measures the costs of a lift: making huge pages present, and copying onto them.

use crate::tlb_probe::Backing;
use crate::tlb_probe::region::{NoMemory, Region};
use lift_plan::Costs;
use machine_facts::{ThpMode, usual_huge_page};
use std::time::{Duration, Instant};

/// Bytes that are filled and copied in one round, in whole huge pages.
const BYTES: u64 = 16 << 20;
/// Rounds; the median counts.
const ROUNDS: usize = 7;

/// Returns the costs of this machine. Calls and pauses, which matter for small lifts only, are not measured: for them the usual
/// costs are returned. The range is the middle half of both times together. `None` if there are no transparent huge pages, no free ones, or larger ones than a round takes.
pub(crate) fn lift_costs(mode: Option<ThpMode>) -> Option<(Costs, (u64, u64))> {
    if mode.is_none_or(|mode| mode == ThpMode::OffInProcess) {
        return None;
    }
    let page = usual_huge_page()?;
    let bytes = BYTES / page.bytes() * page.bytes();
    if bytes == 0 {
        return None;
    }
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push(round(usize::try_from(bytes).ok()?, page).ok()?);
    }
    let sorted = |time: fn(&(Duration, Duration)) -> Duration| {
        let of_mib = |time: Duration| time.as_nanos() as f64 * (1 << 20) as f64 / bytes as f64;
        let mut times: Vec<u64> = rounds.iter().map(|round| (of_mib(time(round)).round() as u64).max(1)).collect();
        times.sort_unstable();
        times
    };
    let median = |time| sorted(time)[ROUNDS / 2];
    let costs = Costs { fill: median(|round| round.0), copy: median(|round| round.1), ..Costs::USUAL };
    let both = sorted(|round| round.0 + round.1);
    Some((costs, (both[ROUNDS / 4], both[ROUNDS - 1 - ROUNDS / 4])))
}

/// Returns the time to make huge pages present, and the time to copy as much onto them.
fn round(bytes: usize, page: address_space::PageSize) -> Result<(Duration, Duration), NoMemory> {
    let from = Region::new(bytes, Backing::Base)?;
    let (to, fill) = Region::filled(bytes, page)?;
    let started = Instant::now();
    to.copy_from(&from);
    Ok((fill, started.elapsed()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_measured_where_there_are_huge_pages() {
        let Some((costs, (low, high))) = lift_costs(Some(ThpMode::Madvise)) else { return };
        assert!(0 < low && low <= high, "{low} to {high}");
        // From 1 TiB/s to 1 MiB/s.
        assert!([costs.fill, costs.copy].iter().all(|cost| (1_000..1_000_000_000).contains(cost)), "{costs:?}");
        assert_eq!((costs.call, costs.pause), (Costs::USUAL.call, Costs::USUAL.pause));
        assert_eq!(lift_costs(None).or(lift_costs(Some(ThpMode::OffInProcess))), None);
    }
}
