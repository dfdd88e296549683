//! The cost of address translation on the machine, measured before the first block.

use serde::{Deserialize, Serialize};

/// The cost of address translation, by page size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Translation {
    /// Costs of loads; base pages first.
    #[serde(default)]
    pub data: Vec<PageCosts>,
    /// Costs of jumps in code.
    #[serde(default)]
    pub code: Vec<PageCosts>,
    /// The hypervisor backs huge pages by smaller ones; absent if that is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub splintered: Option<bool>,
    /// The compared times of loads in all passes; absent in records of before they were kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_ranges: Option<CostRanges>,
    /// The compared times of jumps in code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code_ranges: Option<CostRanges>,
    /// CPUs that other programs used meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub others: Option<f64>,
    /// Why nothing was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_measured: Option<String>,
}

/// The cost of translation with pages of one size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PageCosts {
    /// The pages: `4 KiB`, `2 MiB THP`.
    pub pages: String,
    /// Footprints in bytes, rising, and ns of translation of one access.
    pub points: Vec<(u64, f64)>,
}

/// Two page sizes at one footprint, with the least and the most of several passes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CostRanges {
    /// The huge pages, as in [`PageCosts`].
    pub pages: String,
    /// Number of passes.
    pub passes: usize,
    /// ns on base pages.
    pub base: (f64, f64),
    /// ns on the huge pages.
    pub huge: (f64, f64),
    /// The share of the time that huge pages save, 0 to 1; absent if the passes differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved: Option<(f64, f64)>,
}

/// The most page sizes of one record.
const MOST_SIZES: usize = 8;
/// The most footprints of one page size: two for each power of two.
const MOST_POINTS: usize = 128;

impl Translation {
    pub(crate) fn is_bounded(&self) -> bool {
        let is_bounded = |sizes: &[PageCosts]| {
            sizes.len() <= MOST_SIZES && sizes.iter().all(|size| size.points.len() <= MOST_POINTS)
        };
        is_bounded(&self.data) && is_bounded(&self.code)
    }
}

/// Two page sizes at the largest footprint that both were measured at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compared<'a> {
    /// Bytes.
    pub footprint: u64,
    /// Base pages, and ns.
    pub base: (&'a str, f64),
    /// Huge pages, and ns.
    pub huge: (&'a str, f64),
}

/// Compares each size of huge pages with base pages.
pub fn compared<'a>(sizes: &'a [PageCosts]) -> Vec<Compared<'a>> {
    let [base, huge @ ..] = sizes else { return Vec::new() };
    let at_both = |huge: &PageCosts| {
        let mut both = base.points.iter().rev().filter_map(|&(footprint, cost)| {
            Some((footprint, cost, huge.points.iter().find(|point| point.0 == footprint)?.1))
        });
        both.next()
    };
    let compare = |huge: &'a PageCosts| {
        let (footprint, of_base, of_huge) = at_both(huge)?;
        Some(Compared { footprint, base: (&base.pages, of_base), huge: (&huge.pages, of_huge) })
    };
    huge.iter().filter_map(compare).collect()
}
