//! The whole of a process's mappings.

use crate::{Address, AddressRange, Mapping, MappingName, MapsError, PageSize, parse_maps};
use alloc::vec::Vec;

/// A process's mappings, sorted and without overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressSpace {
    mappings: Vec<Mapping>,
}

impl AddressSpace {
    /// Reads the text of `/proc/PID/maps`.
    ///
    /// # Errors
    /// [`MapsError`], see [`parse_maps`].
    pub fn parse(maps: &str) -> Result<Self, MapsError> {
        Ok(Self { mappings: parse_maps(maps)? })
    }

    /// A space with these mappings, which must not overlap; they are sorted here.
    pub fn from_mappings(mut mappings: Vec<Mapping>) -> Self {
        mappings.sort_by_key(|m| m.range.start());
        debug_assert!(mappings.windows(2).all(|w| w[0].range.end() <= w[1].range.start()));
        Self { mappings }
    }

    /// All mappings, lowest first.
    pub fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    /// The mapping that holds `address`.
    pub fn find(&self, address: Address) -> Option<&Mapping> {
        let index = self.mappings.partition_point(|m| m.range.end() <= address);
        self.mappings.get(index).filter(|m| m.range.contains(address))
    }

    /// The mappings that share a byte with `range`.
    pub fn overlapping(&self, range: AddressRange) -> &[Mapping] {
        let first = self.mappings.partition_point(|m| m.range.end() <= range.start());
        let last = self.mappings.partition_point(|m| m.range.start() < range.end());
        &self.mappings[first..last.max(first)]
    }

    /// True if `range` contains no mapping.
    pub fn is_free(&self, range: AddressRange) -> bool {
        self.overlapping(range).is_empty()
    }

    /// True where every byte of `range` is mapped.
    pub fn is_fully_mapped(&self, range: AddressRange) -> bool {
        self.overlapping(range).iter().map(|m| m.range.intersect(range).len()).sum::<u64>() == range.len()
    }

    /// The brk area, as the kernel marks it; adjacent mappings are joined.
    pub fn heap(&self) -> Option<AddressRange> {
        let mut heap: Option<AddressRange> = None;
        for mapping in self.mappings.iter().filter(|m| m.name == MappingName::Heap) {
            heap = match heap {
                Some(so_far) if so_far.end() == mapping.range.start() => {
                    Some(AddressRange::new(so_far.start(), mapping.range.end()))
                }
                Some(so_far) => Some(so_far),
                None => Some(mapping.range),
            };
        }
        heap
    }

    /// The highest free place of `length` bytes below `below` whose start is `offset` modulo `size`,
    /// at least `margin` bytes away from every mapping and above `lowest`.
    pub fn free_place_below(
        &self,
        below: Address,
        length: u64,
        size: PageSize,
        offset: u64,
        margin: u64,
        lowest: Address,
    ) -> Option<Address> {
        let mut top = below;
        loop {
            let highest = top.0.checked_sub(length)?.checked_sub(margin)?;
            let aligned = Address(highest).align_down(size).0.checked_add(offset % size.bytes())?;
            let start = if aligned > highest { aligned.checked_sub(size.bytes())? } else { aligned };
            let wanted = AddressRange::new(Address(start.checked_sub(margin)?), Address(start + length + margin));
            if wanted.start() < lowest {
                return None;
            }
            match self.overlapping(wanted).first() {
                None => return Some(Address(start)),
                Some(in_the_way) => top = in_the_way.range.start(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RangeSet;
    use proptest::prelude::*;

    fn space() -> AddressSpace {
        AddressSpace::parse(
            "10000-20000 r--p 0 0:0 0\n20000-30000 rw-p 0 0:0 0 [heap]\n30000-31000 rw-p 0 0:0 0 [heap]\n50000-60000 r--p 0 0:0 0\n",
        )
        .unwrap()
    }

    fn range(start: u64, end: u64) -> AddressRange {
        AddressRange::new(Address(start), Address(end))
    }

    #[test]
    fn look_ups_find_what_is_there() {
        let space = space();
        assert_eq!(space.find(Address(0x1ffff)).unwrap().range, range(0x10000, 0x20000));
        assert!(space.find(Address(0x31000)).is_none());
        assert!(space.is_free(range(0x31000, 0x50000)) && !space.is_free(range(0x31000, 0x50001)));
        assert!(space.is_fully_mapped(range(0x10000, 0x31000)) && !space.is_fully_mapped(range(0x10000, 0x31001)));
        assert_eq!(space.heap().unwrap(), range(0x20000, 0x31000));
    }

    #[test]
    fn mappings_are_sorted_and_only_heaps_that_touch_are_one() {
        let line = |text: &str| parse_maps(text).unwrap().remove(0);
        let (low, high) = (line("1000-2000 rw-p 0 0:0 0 [heap]"), line("4000-5000 rw-p 0 0:0 0 [heap]"));
        let space = AddressSpace::from_mappings(vec![high.clone(), low.clone()]);
        assert_eq!(space.mappings(), [low, high]);
        assert_eq!(space.heap(), Some(range(0x1000, 0x2000)));
        assert_eq!(AddressSpace::default().heap(), None);
    }

    /// The highest place that fits, found by trying each page.
    fn place_by_trying(
        space: &AddressSpace,
        [below, length, size, offset, margin, lowest]: [u64; 6],
    ) -> Option<Address> {
        let fits = |start: &u64| {
            let (from, to) = (start.checked_sub(margin), start + length + margin);
            let free = from.is_some_and(|from| from >= lowest && space.is_free(range(from, to)));
            free && to <= below && start % size == offset % size
        };
        (0..below >> 12).rev().map(|page| page << 12).find(fits).map(Address)
    }

    proptest! {
        #[test]
        fn a_free_place_is_the_highest_that_fits(
            mapped in prop::collection::vec((0u64..60, 1u64..8), 0..6),
            [below, length, offset, margin, lowest] in [0u64..64, 1u64..10, 0u64..24, 0u64..4, 0u64..20],
            shift in 0u32..4,
        ) {
            let pages: RangeSet =
                mapped.iter().map(|&(at, pages)| range(at << 12, (at + pages) << 12)).collect();
            let text: String = pages.iter().map(|r| format!("{r} rw-p 0 0:0 0\n")).collect();
            let space = AddressSpace::parse(&text).unwrap();
            let [below, length, offset, margin, lowest] = [below, length, offset, margin, lowest].map(|n| n << 12);
            let size = 0x1000 << shift;
            let expected = place_by_trying(&space, [below, length, size, offset, margin, lowest]);
            let size = PageSize::new(size).unwrap();
            let found = space.free_place_below(Address(below), length, size, offset, margin, Address(lowest));
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_free_place_has_its_offset_and_its_margin() {
        let size = PageSize::new(0x10000).unwrap();
        let place = space().free_place_below(Address(0x60000), 0x5000, size, 0x3000, 0x1000, Address(0x1000));
        assert_eq!(place, Some(Address(0x43000)));
        let place = space().free_place_below(Address(0x43000), 0x8000, size, 0x3000, 0x1000, Address(0x1000));
        assert_eq!(place, Some(Address(0x33000)));
        let none = space().free_place_below(Address(0x20000), 0x9000, size, 0x3000, 0x1000, Address(0x8000));
        assert_eq!(none, None);
    }

    #[test]
    fn a_free_place_with_its_margin_may_begin_at_the_lowest_address() {
        let size = PageSize::new(0x1000).unwrap();
        let place = |lowest| {
            AddressSpace::default().free_place_below(Address(0x8000), 0x2000, size, 0, 0x1000, Address(lowest))
        };
        assert_eq!([place(0x4000), place(0x4001)], [Some(Address(0x5000)), None]);
    }
}
