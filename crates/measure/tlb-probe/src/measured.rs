//! What was measured of all page sizes.

use crate::Backing;
use crate::series::Series;
use crate::simulated::Simulated;
use linux::pages::base_page;
use serde::Serialize;

/// A page size that could not be measured.
#[derive(Clone, Debug, Serialize)]
pub struct Unmeasured {
    /// What the memory should have lain on.
    pub backing: Backing,
    /// Why it does not.
    pub reason: String,
}

/// All page sizes, for loads or for code.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Measured {
    /// Base pages first.
    pub series: Vec<Series>,
    /// What there was no memory for.
    pub unmeasured: Vec<Unmeasured>,
    /// What CPUID's sizes predict; absent where there are none, or the curve ends before the walks.
    pub simulated: Option<Simulated>,
}

impl Measured {
    /// The times of base pages.
    pub(crate) fn base(&self) -> Option<&Series> {
        self.series.iter().find(|series| series.backing == Backing::Base)
    }

    /// Bytes that the second level reaches with base pages; absent where the curve does not show the walks beyond it, without
    /// which a rise may be something else.
    pub fn reach(&self) -> Option<u64> {
        let base = self.base()?;
        base.levels.second_reach.filter(|_| base.levels.walk.is_some())
    }

    /// Entries of the two levels for base pages, as far as the curve shows them; the number for the second level is
    /// [`Measured::pages_held`].
    pub(crate) fn entries(&self) -> Option<(usize, usize)> {
        let first = base_page().pages_for(self.base()?.levels.first_reach?);
        Some((usize::try_from(first).ok()?, usize::try_from(self.pages_held()?).ok()?))
    }

    /// Base pages that the second level holds where the program's pages lie in memory as the probe's do, one behind the other:
    /// several may share an entry. Absent as [`Measured::reach`] is.
    pub fn pages_held(&self) -> Option<u64> {
        Some(base_page().pages_for(self.reach()?))
    }
}
