//! The second level's reach by the sizes that CPUID gives, simulated on the measured chains, and the number of
//! neighbouring pages in an entry that fits the measurement.

use crate::tlb_probe::chain::{Access, cycle, random_of};
use crate::tlb_probe::curve::{Curve, Point};
use crate::tlb_probe::series::Series;
use estimate::tlb_model::{Geometry, Side, Tlbs, sweep};
use serde::Serialize;

/// Log2 of the pages in an entry that are tried: AMD joins four (Software Optimization Guide for Family 19h), Arm's
/// contiguous bit 16 of 4 KiB.
const JOINED: [u8; 5] = [0, 1, 2, 3, 4];
/// Footprints are measured in steps of up to 1.5; two steps are the margin for sets, replacement and scattered memory.
const MARGIN: f64 = 2.25;

/// The second level's reach with base pages.
#[derive(Clone, Debug, Serialize)]
pub struct Simulated {
    /// Source of the sizes of the TLBs.
    pub source: String,
    /// Bytes, if each entry holds one page.
    pub by_cpuid: u64,
    /// Bytes that were measured.
    pub measured: u64,
    /// Pages in an entry with which the simulation comes nearest to that.
    pub joined: u32,
    /// Bytes, if each entry holds so many.
    pub nearest: u64,
}

impl Simulated {
    /// From the times of base pages; `None` if they were not measured up to their walks.
    pub(crate) fn of(base: &Series, access: Access, geometry: &Geometry) -> Option<Self> {
        let found = base.levels.second_reach?;
        let shift = base.backing.page().bytes().trailing_zeros() as u8;
        let joined = |log2: u8| geometry.clone().with_joined(shift, log2);
        let reach = |log2: &u8| Some((*log2, reach(&joined(*log2), access, shift, base)?));
        let reaches: Vec<(u8, u64)> = JOINED.iter().filter_map(reach).collect();
        let by_cpuid = reaches.iter().find(|(log2, _)| *log2 == 0)?.1;
        let distance = |reach: u64| (reach as f64 / found as f64).ln().abs();
        let (log2, nearest) = reaches.into_iter().min_by(|a, b| distance(a.1).total_cmp(&distance(b.1)))?;
        Some(Self { source: geometry.source.clone(), by_cpuid, measured: found, joined: 1 << log2, nearest })
    }

    /// True if simulation and measurement agree within the margin of two steps.
    pub fn agrees(&self) -> bool {
        let ratio = self.nearest as f64 / self.measured as f64;
        (1.0 / MARGIN..=MARGIN).contains(&ratio)
    }
}

/// The second level's reach of a simulated curve, with the measured costs of hits and walks.
fn reach(geometry: &Geometry, access: Access, shift: u8, measured: &Series) -> Option<u64> {
    let (hit, walk) = (measured.levels.second_hit?, measured.levels.walk?);
    let side = match access {
        Access::Data => Side::Data,
        Access::Code => Side::Instruction,
    };
    let point = |Point { slots, footprint, .. }: &Point| {
        let next = cycle(*slots, &mut random_of(*slots));
        let order = std::iter::successors(Some(0u32), |at| Some(next[*at as usize]));
        let shares = sweep(&mut Tlbs::new(geometry), side, shift, order.take(*slots).map(u64::from));
        let time = shares.second * hit + shares.walks * walk;
        Point { slots: *slots, footprint: *footprint, access: time, translation: time, quartiles: (time, time) }
    };
    Curve { points: measured.curve.points.iter().map(point).collect() }.levels().second_reach
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tlb_probe::{Backing, MeasuredSizes, ProbeVerdict};
    use address_space::PageSize;
    use estimate::tlb_model::{ArrayShape, Second, Sizes, known_cpu};

    /// 64 entries and 1,024 of 8 ways.
    fn geometry() -> Geometry {
        let sizes = Sizes::of(&[12]);
        Geometry {
            name: "test".into(),
            source: "a test".into(),
            instruction: vec![ArrayShape::full(sizes, 64)],
            data: vec![ArrayShape::full(sizes, 64)],
            second: Second::Shared(vec![ArrayShape::new(sizes, 1024, 8)]),
            joined: None,
        }
    }

    /// Times of a CPU whose second level holds this number of pages.
    fn measured(reach: usize) -> Series {
        let slots = (4..=15).flat_map(|bits| [1usize << bits, 3 << (bits - 1)]);
        let point = |slots: usize| {
            let time = if slots <= 64 {
                0.0
            } else if slots <= reach {
                3.0
            } else {
                30.0
            };
            let footprint = slots as u64 * 4096;
            Point { slots, footprint, access: time, translation: time, quartiles: (time, time) }
        };
        let curve = Curve { points: slots.map(point).collect() };
        Series::new(Backing::Base, curve)
    }

    #[test]
    fn a_cpu_with_the_entries_of_cpuid_agrees_without_joining() {
        let simulated = Simulated::of(&measured(1024), Access::Data, &geometry()).unwrap();
        assert_eq!((simulated.by_cpuid, simulated.nearest, simulated.joined), (1024 * 4096, 1024 * 4096, 1));
        assert!(simulated.agrees());
    }

    #[test]
    fn a_longer_reach_shows_how_many_pages_an_entry_holds() {
        let simulated = Simulated::of(&measured(4096), Access::Code, &geometry()).unwrap();
        assert_eq!((simulated.by_cpuid, simulated.nearest, simulated.joined), (1024 * 4096, 4096 * 4096, 4));
        assert!(simulated.agrees());
    }

    /// Curves of loads that `pagelift probe --json` has measured.
    #[derive(serde::Deserialize)]
    struct Recorded {
        base: Curve,
        huge: Curve,
    }

    /// A virtual machine on AMD's Zen 5, whose host splits huge pages: alone, and with its CPUs in use by others, which makes a
    /// walk ten times as long.
    const RECORDED: [&str; 2] =
        [include_str!("recorded/epyc-guest.json"), include_str!("recorded/epyc-guest-loaded.json")];

    #[test]
    fn recorded_curves_agree_with_the_cpu_s_model_within_the_margin() {
        for text in RECORDED {
            let Recorded { base, huge } = serde_json::from_str(text).unwrap();
            let thp = Backing::Transparent(PageSize::new(2 << 20).unwrap());
            let series = Series::new;
            let measured = MeasuredSizes {
                series: vec![series(Backing::Base, base), series(thp, huge)],
                ..MeasuredSizes::default()
            };
            let simulated = Simulated::of(measured.base().unwrap(), Access::Data, &known_cpu("zen5").unwrap()).unwrap();
            assert_eq!(simulated.by_cpuid, 4096 * 4096, "{simulated:?}");
            assert!(simulated.agrees() && simulated.joined == 1, "{simulated:?}");
            assert_eq!(measured.reach(), Some(simulated.measured));
            // A TLB of 512 entries is beyond the margin if each holds one page.
            let small = Simulated::of(measured.base().unwrap(), Access::Code, &known_cpu("zen3").unwrap()).unwrap();
            assert!((small.by_cpuid as f64) < small.measured as f64 / MARGIN, "{small:?}");
            let verdict = ProbeVerdict::of(&measured, &MeasuredSizes::default(), Some(true), None).unwrap();
            assert_eq!(verdict.splintered, Some(true), "{verdict:?}");
        }
    }

    #[test]
    fn what_no_joining_explains_does_not_agree() {
        let simulated = Simulated::of(&measured(256), Access::Data, &geometry()).unwrap();
        assert!(simulated.joined == 1 && !simulated.agrees(), "{simulated:?}");
        assert!(Simulated::of(&measured(1 << 20), Access::Data, &geometry()).is_none());
    }
}
