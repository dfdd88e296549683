//! The cost of address translation on this machine, with base pages and with each size of huge pages, for loads and for
//! code.
//!
//! A chain of dependent accesses visits one cache line in each stretch of memory as long as a base page, in random
//! order. The same number of lines, packed one after the other, is the control: the additional time of the spread lines
//! is translation. On a bare machine the lines of many base pages in one huge page share one TLB entry. In a virtual
//! machine whose host backs the memory by small pages they do not: an entry covers the smaller one of both page sizes.
//!
//! Everything works for an ordinary user. Times are nanoseconds.

#[allow(unsafe_code)]
mod chain;
mod curve;
mod lift_costs;
mod load;
mod measure;
mod measured;
mod passes;
#[allow(unsafe_code)]
mod region;
mod series;
mod simulated;
mod verdict;

pub use curve::{Curve, Levels, Point};
pub use load::Load;
pub use measure::{Options, Probe, is_virtual_machine};
pub use measured::{MeasuredSizes, Unmeasured};
pub use passes::probe;
pub use region::NoMemory;
pub use series::{LevelRanges, Series};
pub use simulated::Simulated;
pub use verdict::{Compared, ProbeVerdict};

use address_space::PageSize;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The pages that back memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "source", content = "page_bytes")]
pub enum Backing {
    /// Base pages.
    Base,
    /// Transparent huge pages.
    #[serde(with = "bytes")]
    Transparent(PageSize),
    /// Pages of the hugetlb pool.
    #[serde(with = "bytes")]
    Pool(PageSize),
}

impl Backing {
    /// Its page size.
    pub fn page(self) -> PageSize {
        match self {
            Self::Base => linux::pages::base_page(),
            Self::Transparent(page) | Self::Pool(page) => page,
        }
    }
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Base => write!(f, "{}", self.page()),
            Self::Transparent(page) => write!(f, "{page} THP"),
            Self::Pool(page) => write!(f, "{page} pool"),
        }
    }
}

/// Page sizes as numbers of bytes.
mod bytes {
    use address_space::PageSize;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(page: &PageSize, serializer: S) -> Result<S::Ok, S::Error> {
        page.bytes().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PageSize, D::Error> {
        PageSize::new(u64::deserialize(deserializer)?).map_err(|error| D::Error::custom(error.to_string()))
    }
}
