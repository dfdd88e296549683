//! What the times mean for a program. Pure.

use crate::Backing;
use crate::measured::Measured;
use crate::series::Series;
use serde::Serialize;

/// Page entries that any second-level TLB of the last ten years holds.
const FEW_ENTRIES: u64 = 512;

/// What huge pages save here.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// The huge pages it is about.
    pub backing: Backing,
    /// The footprint at which data was compared, in bytes, and both translations in ns, base pages first.
    pub data: Compared,
    /// Code, compared in the same way at its own footprint; absent where it was not measured.
    pub code: Option<Compared>,
    /// True where a footprint of few huge pages, which any TLB holds, still costs page walks: the hypervisor backs this
    /// machine's memory by smaller pages than its guest believes.
    pub splintered: bool,
    /// True where the CPU says that it is a virtual one.
    pub virtual_machine: Option<bool>,
}

/// Two page sizes at one footprint.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Bytes.
    pub footprint: u64,
    /// ns of one access with base pages.
    pub base: f64,
    /// ns of one access with huge pages.
    pub huge: f64,
}

impl Compared {
    /// The share of the translation that huge pages save, 0 to 1; absent where base pages cost nothing.
    pub fn saved(&self) -> Option<f64> {
        (self.base > 0.0).then(|| (1.0 - self.huge / self.base).clamp(0.0, 1.0))
    }
}

impl Verdict {
    /// From the times of loads and of code. `None` where base pages or huge pages could not be measured.
    pub fn of(data: &Measured, code: &Measured, virtual_machine: Option<bool>) -> Option<Self> {
        let (base, huge) = pair(data)?;
        let compared = compare(base, huge)?;
        let code = pair(code).and_then(|(base, huge)| compare(base, huge));
        Some(Self {
            backing: huge.backing,
            data: compared,
            code,
            splintered: is_splintered(base, huge),
            virtual_machine,
        })
    }
}

fn pair(measured: &Measured) -> Option<(&Series, &Series)> {
    let base = measured.base()?;
    let huge = measured.series.iter().filter(|series| series.backing != Backing::Base);
    Some((base, huge.min_by_key(|series| series.backing.page().bytes())?))
}

/// At the largest footprint that both have.
fn compare(base: &Series, huge: &Series) -> Option<Compared> {
    let largest = |series: &Series| series.curve.points.last().map(|point| point.footprint);
    let footprint = largest(base)?.min(largest(huge)?);
    let at = |series: &Series| series.curve.translation_at(footprint);
    Some(Compared { footprint, base: at(base)?, huge: at(huge)? })
}

/// A footprint of [`FEW_ENTRIES`] huge pages costs clearly more than a hit in the second level does.
fn is_splintered(base: &Series, huge: &Series) -> bool {
    let Some(hit) = base.levels.second_hit else { return false };
    let page = huge.backing.page().bytes();
    let held = huge.curve.translation_at(page.saturating_mul(FEW_ENTRIES)).unwrap_or(0.0);
    held > 2.0 * hit + huge.curve.resolution()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::curve::{Curve, Point};
    use address_space::PageSize;

    fn series(backing: Backing, times: &[(u64, f64)]) -> Series {
        let point = |&(footprint, time): &(u64, f64)| Point {
            slots: (footprint / 4096) as usize,
            footprint,
            access: time,
            translation: time,
            quartiles: (time, time),
        };
        let curve = Curve { points: times.iter().map(point).collect() };
        Series { backing, levels: curve.levels(), curve }
    }

    fn measured(huge: &[(u64, f64)]) -> Measured {
        let base = [(1 << 16, 0.0), (1 << 18, 0.0), (1 << 19, 3.0), (1 << 21, 3.0), (1 << 23, 3.0), (1 << 27, 40.0)];
        let thp = Backing::Transparent(PageSize::new(2 << 20).unwrap());
        Measured { series: vec![series(Backing::Base, &base), series(thp, huge)], ..Measured::default() }
    }

    #[test]
    fn on_bare_metal_few_huge_pages_cost_no_walks() {
        let data = measured(&[(1 << 16, 0.0), (1 << 23, 0.0), (1 << 27, 3.0)]);
        let verdict = Verdict::of(&data, &Measured::default(), Some(false)).unwrap();
        assert!(!verdict.splintered && verdict.code.is_none());
        assert_eq!(verdict.data, Compared { footprint: 1 << 27, base: 40.0, huge: 3.0 });
        assert!((verdict.data.saved().unwrap() - 0.925).abs() < 1e-9);
    }

    #[test]
    fn walks_within_few_huge_pages_show_a_splintering_host() {
        let data = measured(&[(1 << 16, 0.0), (1 << 23, 3.0), (1 << 27, 20.0)]);
        let verdict = Verdict::of(&data, &Measured::default(), Some(true)).unwrap();
        assert!(verdict.splintered);
        assert_eq!(verdict.data.saved(), Some(0.5));
    }

    #[test]
    fn without_huge_pages_there_is_no_verdict() {
        let mut data = measured(&[(1 << 16, 0.0)]);
        data.series.pop();
        assert!(Verdict::of(&data, &Measured::default(), None).is_none());
    }
}
