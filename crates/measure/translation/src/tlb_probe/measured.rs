//! The results for all page sizes.

use crate::tlb_probe::Backing;
use crate::tlb_probe::series::Series;
use crate::tlb_probe::simulated::Simulated;
use linux::pages::base_page;
use serde::Serialize;

/// A page size that could not be measured.
#[derive(Clone, Debug, Serialize)]
pub struct Unmeasured {
    /// The requested pages of the memory.
    pub backing: Backing,
    /// Why it does not.
    pub reason: String,
}

/// All page sizes, for loads or for code.
#[derive(Clone, Debug, Default, Serialize)]
pub struct MeasuredSizes {
    /// Base pages first.
    pub series: Vec<Series>,
    /// Cases without sufficient memory.
    pub unmeasured: Vec<Unmeasured>,
    /// The prediction from CPUID's sizes; absent if there are none, or if the curve ends before the walks.
    pub simulated: Option<Simulated>,
    /// The least and the most of [`MeasuredSizes::reach`] in all passes; absent if a pass does not show it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reaches: Option<(u64, u64)>,
}

/// Two steps of a curve: a range within that is one reach (see [`Simulated::agrees`]).
const STEPS_APART: f64 = 2.25;

impl MeasuredSizes {
    /// The times of base pages.
    pub(crate) fn base(&self) -> Option<&Series> {
        self.series.iter().find(|series| series.backing == Backing::Base)
    }

    /// Bytes that the second level reaches with base pages; absent if the curve does not show the walks beyond, without
    /// which a rise may have another cause.
    pub fn reach(&self) -> Option<u64> {
        let base = self.base()?;
        base.levels.second_reach.filter(|_| base.levels.walk.is_some())
    }

    /// Entries of the two levels for base pages, if the curve shows them; the number for the second level is
    /// [`MeasuredSizes::pages_held`].
    pub(crate) fn entries(&self) -> Option<(usize, usize)> {
        let first = base_page().pages_for(self.base()?.levels.first_reach?);
        Some((usize::try_from(first).ok()?, usize::try_from(self.pages_held()?).ok()?))
    }

    /// Base pages that the second level holds if the program's pages are consecutive in memory, as in the probe:
    /// several may share an entry. Absent if [`MeasuredSizes::reach`] is absent in a pass, or if the passes differ.
    pub fn pages_held(&self) -> Option<u64> {
        let (least, most) = self.reaches?;
        let is_same = most as f64 <= STEPS_APART * least as f64;
        Some(base_page().pages_for(self.reach().filter(|_| is_same)?))
    }
}
