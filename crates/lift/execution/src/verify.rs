//! Compares a process's mappings before and after a lift.

use address_space::{AddressRange, AddressSpace, Mapping, Protection, RangeSet};
use alloc::vec::Vec;
use core::fmt;
use lift_plan::{Method, Plan, RangeLift};
use serde::Serialize;

/// A range of memory with an unexpected mapping or protection after a lift.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Addresses.
    pub range: AddressRange,
    /// Protection expected; `None` if nothing should be mapped.
    pub expected: Option<Protection>,
    /// Protection found; `None` if nothing is mapped.
    pub found: Option<Protection>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut part = |name, protection: Option<Protection>| match protection {
            Some(protection) => write!(f, "; {name} {protection}"),
            None => write!(f, "; {name} no mapping"),
        };
        part("needed", self.expected)?;
        part("found", self.found)
    }
}

/// True if the lift can replace the program's own mappings in the range. Memory that is lifted in place keeps its
/// mappings: later differences there are changes by the program itself, for example a heap that shrinks.
pub fn exchanges_mappings(lift: &RangeLift) -> bool {
    let parts = lift.attempts.iter().flat_map(|attempt| &attempt.parts);
    parts.into_iter().any(|part| !matches!(part.method, Method::InPlace { .. }))
}

/// Returns every difference in mappings and their protections, except the protections that the plan sets.
///
/// Byte-exact: a lift must keep mappings and protections, inside of its ranges and outside.
pub fn compare(before: &AddressSpace, after: &AddressSpace, plan: &Plan) -> Vec<Difference> {
    let mut differences = Vec::new();
    for range in stretches(before, after, plan) {
        let old = protection_at(before, range);
        let found = protection_at(after, range);
        // A range whose lift failed keeps its old protection, which may differ from the plan's if data and code are
        // merged.
        let planned = plan.lifts.iter().find(|lift| lift.range.covers(range)).map(|lift| lift.protection);
        if found != old && (old.is_none() || found != planned) {
            differences.push(Difference { range, expected: old, found });
        }
    }
    differences
}

/// Cuts the address space at every border of either map and of the plan.
fn stretches(before: &AddressSpace, after: &AddressSpace, plan: &Plan) -> Vec<AddressRange> {
    let mapped: RangeSet = before.mappings().iter().chain(after.mappings()).map(|mapping| mapping.range).collect();
    let ranges = before.mappings().iter().chain(after.mappings()).map(|mapping| mapping.range);
    let mut borders: Vec<_> =
        ranges.chain(plan.lifts.iter().map(|lift| lift.range)).flat_map(|range| [range.start(), range.end()]).collect();
    borders.sort_unstable();
    borders.dedup();
    borders.windows(2).map(|pair| AddressRange::new(pair[0], pair[1])).filter(|range| mapped.covers(*range)).collect()
}

fn protection_at(space: &AddressSpace, range: AddressRange) -> Option<Protection> {
    space.find(range.start()).map(|mapping: &Mapping| mapping.protection)
}
