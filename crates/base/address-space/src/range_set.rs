//! Sets of addresses.

use crate::AddressRange;
use alloc::vec::Vec;
use serde::Serialize;

/// A set of addresses, held as ranges that are sorted, not empty and do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct RangeSet {
    ranges: Vec<AddressRange>,
}

impl RangeSet {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the bytes of `range`.
    pub fn insert(&mut self, range: AddressRange) {
        if range.is_empty() {
            return;
        }
        let first = self.ranges.partition_point(|r| r.end() < range.start());
        let last = self.ranges.partition_point(|r| r.start() <= range.end());
        let merged = self.ranges[first..last]
            .iter()
            .fold(range, |merged, r| AddressRange::new(merged.start().min(r.start()), merged.end().max(r.end())));
        self.ranges.splice(first..last, [merged]);
    }

    /// Takes out the bytes of `range`.
    pub fn remove(&mut self, range: AddressRange) {
        if range.is_empty() {
            return;
        }
        let first = self.ranges.partition_point(|r| r.end() <= range.start());
        let cut = self.ranges[first..].iter().take_while(|r| r.overlaps(range)).count();
        let cut = first..first + cut;
        let kept: Vec<_> =
            self.ranges[cut.clone()].iter().flat_map(|r| r.without(range)).filter(|r| !r.is_empty()).collect();
        self.ranges.splice(cut, kept);
    }

    /// The ranges, sorted.
    pub fn iter(&self) -> impl Iterator<Item = AddressRange> + '_ {
        self.ranges.iter().copied()
    }

    /// Bytes in the set.
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|r| r.len()).sum()
    }

    /// True for the empty set.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Bytes of `range` that are in the set.
    pub fn bytes_in(&self, range: AddressRange) -> u64 {
        self.within(range).map(AddressRange::len).sum()
    }

    /// The parts of the set within `range`.
    pub fn within(&self, range: AddressRange) -> impl Iterator<Item = AddressRange> + '_ {
        let first = self.ranges.partition_point(|r| r.end() <= range.start());
        self.ranges[first..].iter().map(move |r| r.intersect(range)).take_while(|r| !r.is_empty())
    }

    /// True if all of `range` is in the set.
    pub fn covers(&self, range: AddressRange) -> bool {
        self.bytes_in(range) == range.len()
    }

    /// True if a byte of `range` is in the set.
    pub fn overlaps(&self, range: AddressRange) -> bool {
        self.within(range).next().is_some()
    }
}

impl FromIterator<AddressRange> for RangeSet {
    fn from_iter<I: IntoIterator<Item = AddressRange>>(ranges: I) -> Self {
        let mut set = Self::new();
        ranges.into_iter().for_each(|range| set.insert(range));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Address;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn behaves_as_a_set_of_bytes(
            steps in prop::collection::vec((any::<bool>(), 0u64..40, 0u64..12), 0..40),
            asked in prop::collection::vec((0u64..45, 0u64..14), 8),
        ) {
            let (mut set, mut model) = (RangeSet::new(), BTreeSet::new());
            for (add, start, length) in steps {
                let range = AddressRange::sized(Address(start), length);
                if add { set.insert(range) } else { set.remove(range) }
                for byte in start..start + length {
                    if add { model.insert(byte); } else { model.remove(&byte); }
                }
                let bytes: BTreeSet<u64> = set.iter().flat_map(|r| r.start().0..r.end().0).collect();
                prop_assert_eq!(&bytes, &model);
                prop_assert!(set.ranges.windows(2).all(|w| w[0].end() < w[1].start()));
            }
            prop_assert_eq!(set.bytes(), model.len() as u64);
            prop_assert_eq!(set.is_empty(), model.is_empty());
            prop_assert_eq!(&set.iter().collect::<RangeSet>(), &set);
            for (start, length) in asked {
                let range = AddressRange::sized(Address(start), length);
                let inside: BTreeSet<u64> = model.range(start..start + length).copied().collect();
                let found: BTreeSet<u64> = set.within(range).flat_map(|r| r.start().0..r.end().0).collect();
                prop_assert_eq!(&found, &inside);
                prop_assert!(set.within(range).all(|r| !r.is_empty()));
                prop_assert_eq!(set.bytes_in(range), inside.len() as u64);
                prop_assert_eq!(set.covers(range), inside.len() as u64 == length);
                prop_assert_eq!(set.overlaps(range), !inside.is_empty());
            }
        }
    }
}
