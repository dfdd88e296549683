//! The outcome of a plan, as read back from the kernel.

use crate::Difference;
use address_space::{AddressRange, PageSize, Protection, RangeSet};
use alloc::string::String;
use alloc::vec::Vec;
use lift_plan::{Kind, Reason, Source};
use serde::Serialize;

/// A source that was tried for a range and did not serve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FailedAttempt {
    /// The source.
    pub source: Source,
    /// Why.
    pub reason: Reason,
}

/// A part of a lifted range that is not on huge pages, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Uncovered {
    /// Addresses.
    pub range: AddressRange,
    /// Why.
    pub reason: Reason,
}

/// The outcome for one range of the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RangeOutcome {
    /// Name of the object.
    pub object: String,
    /// The kinds of memory in the range.
    pub kinds: Vec<Kind>,
    /// Whole huge pages of the plan.
    pub range: AddressRange,
    /// Protection.
    pub protection: Protection,
    /// The source that served; `None` if the range is not lifted. It is untouched then, except for [`Self::displaced`] parts.
    pub source: Option<Source>,
    /// Size of the huge pages.
    pub page_size: PageSize,
    /// The memory that is on new pages, huge or not.
    #[serde(skip)]
    pub lifted: RangeSet,
    /// The memory that the kernel reports on huge pages.
    pub covered: RangeSet,
    /// Bytes advised in place that are untouched: they become huge when they are touched.
    pub advised: u64,
    /// Bytes made resident, as the plan counts them.
    pub made_resident: u64,
    /// Sources that did not serve.
    pub failed: Vec<FailedAttempt>,
    /// The uncovered parts, with reasons.
    pub uncovered: Vec<Uncovered>,
}

impl RangeOutcome {
    /// Returns the parts whose contents are not in their place ([`Reason::Displaced`]).
    pub fn displaced(&self) -> RangeSet {
        let is_displaced = |uncovered: &&Uncovered| matches!(uncovered.reason, Reason::Displaced { .. });
        self.uncovered.iter().filter(is_displaced).map(|uncovered| uncovered.range).collect()
    }

    /// True if the range is lifted and all its touched memory is covered.
    pub fn is_complete(&self) -> bool {
        self.source.is_some() && self.uncovered.is_empty()
    }
}

/// The outcome of sealing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sealing {
    /// Bytes that are sealed.
    pub sealed: u64,
    /// Bytes that should be sealed and are not.
    pub not_sealed: u64,
    /// The first reason.
    pub reason: Option<Reason>,
}

/// The outcome of a whole plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LiftOutcome {
    /// Range by range, in the plan's order.
    pub ranges: Vec<RangeOutcome>,
    /// Differences of the address space that no step should have made. Always empty unless memory is displaced
    /// ([`Reason::Displaced`]) or Pagelift has a fault.
    pub unexpected: Vec<Difference>,
    /// Outcome of sealing, if it was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sealing: Option<Sealing>,
}

impl LiftOutcome {
    /// Returns the bytes of the lifted ranges that the kernel backs by huge pages.
    pub fn covered(&self) -> u64 {
        self.ranges.iter().map(|range| range.covered.bytes()).sum()
    }

    /// Returns the bytes that the lift made resident.
    pub fn made_resident(&self) -> u64 {
        self.ranges.iter().map(|range| range.made_resident).sum()
    }

    /// True if every range of the plan is lifted and no touched memory is uncovered.
    pub fn is_complete(&self) -> bool {
        self.unexpected.is_empty() && self.ranges.iter().all(RangeOutcome::is_complete)
    }
}
