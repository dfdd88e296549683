//! A table of records by address: a hash table with linear probing, in a separate mapping. A look-up, an insertion and a
//! removal examine few places on average, however many records there are.

use crate::sys::{map_anywhere, unmap};
use core::mem::MaybeUninit;
use core::ptr::null_mut;

/// A place of the table. All zero in a new mapping.
#[derive(Clone, Copy)]
struct Place<T: Copy> {
    /// 0 if the place is free.
    address: usize,
    record: MaybeUninit<T>,
}

/// Number of places at first.
const LEAST: usize = 64;
/// The table has at least so many places for each record: the mean number of places up to a free one is 2.5 then.
const PLACES_FOR_EACH: usize = 2;

/// Records by addresses other than 0.
pub struct ByAddress<T: Copy> {
    places: *mut Place<T>,
    /// Number of places: 0, or a power of two.
    capacity: usize,
    count: usize,
    /// Number of places that were examined.
    #[cfg(test)]
    pub steps: core::cell::Cell<usize>,
}

/// The place in which the search for an address begins, among `capacity` places. Addresses are multiples of a power of two,
/// at regular distances: all bits have to count (the end of MurmurHash3, in public domain).
fn first_place(address: usize, capacity: usize) -> usize {
    let mut mixed = address as u64;
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        mixed = (mixed ^ mixed >> 33).wrapping_mul(factor);
    }
    (mixed ^ mixed >> 33) as usize & (capacity - 1)
}

impl<T: Copy> ByAddress<T> {
    pub const fn new() -> Self {
        Self {
            places: null_mut(),
            capacity: 0,
            count: 0,
            #[cfg(test)]
            steps: core::cell::Cell::new(0),
        }
    }

    /// Number of records.
    pub fn count(&self) -> usize {
        self.count
    }

    fn places(&self) -> &[Place<T>] {
        if self.capacity == 0 {
            return &[];
        }
        // SAFETY:
        // - the mapping has so many places, was all zero, which is a place, and lives as long as the table refers to it.
        unsafe { core::slice::from_raw_parts(self.places, self.capacity) }
    }

    fn places_mut(&mut self) -> &mut [Place<T>] {
        if self.capacity == 0 {
            return &mut [];
        }
        // SAFETY:
        // - as in `places`, and `self` is borrowed exclusively.
        unsafe { core::slice::from_raw_parts_mut(self.places, self.capacity) }
    }

    /// The place of an address, or the free place for it. There are places, of which at least one is free.
    fn search(&self, address: usize) -> usize {
        let places = self.places();
        let mut at = first_place(address, places.len());
        loop {
            #[cfg(test)]
            self.steps.set(self.steps.get() + 1);
            if places[at].address == address || places[at].address == 0 {
                return at;
            }
            at = (at + 1) & (places.len() - 1);
        }
    }

    /// The place of an address that has a record.
    fn find(&self, address: usize) -> Option<usize> {
        if self.count == 0 || address == 0 {
            return None;
        }
        Some(self.search(address)).filter(|&at| self.places()[at].address != 0)
    }

    /// The record of an address.
    pub fn get(&self, address: usize) -> Option<T> {
        // SAFETY:
        // - a place with an address has a record.
        self.find(address).map(|at| unsafe { self.places()[at].record.assume_init() })
    }

    /// Makes room for one more record; false if there is no memory for it. Nothing changes before the new places are filled.
    pub fn make_room(&mut self) -> bool {
        if (self.count + 1) * PLACES_FOR_EACH <= self.capacity {
            return true;
        }
        let capacity = (self.capacity * 2).max(LEAST);
        let Some(start) = map_anywhere(capacity * size_of::<Place<T>>(), false, 0) else { return false };
        let mut larger = Self { places: start as *mut Place<T>, capacity, ..Self::new() };
        for place in self.places().iter().filter(|place| place.address != 0) {
            let at = larger.search(place.address);
            larger.places_mut()[at] = *place;
        }
        let (old, bytes) = (self.places as usize, self.capacity * size_of::<Place<T>>());
        (self.places, self.capacity) = (larger.places, capacity);
        // SAFETY:
        // - the mapping of the old places, to which nothing refers any more.
        unsafe { unmap(old, bytes) };
        true
    }

    /// Sets the record of an address other than 0, and returns the one that it replaces. [`ByAddress::make_room`] has returned
    /// true since the last record was added.
    pub fn set(&mut self, address: usize, record: T) -> Option<T> {
        let at = self.search(address);
        let place = Place { address, record: MaybeUninit::new(record) };
        let before = core::mem::replace(&mut self.places_mut()[at], place);
        self.count += usize::from(before.address == 0);
        // SAFETY:
        // - a place with an address has a record.
        (before.address != 0).then(|| unsafe { before.record.assume_init() })
    }

    /// Removes the record of an address, and returns it. Records behind it move up, so that no search finds a free place before
    /// its record.
    pub fn remove(&mut self, address: usize) -> Option<T> {
        let mut free = self.find(address)?;
        let removed = self.places()[free].record;
        let last = self.capacity - 1;
        let mut at = free;
        loop {
            at = (at + 1) & last;
            #[cfg(test)]
            self.steps.set(self.steps.get() + 1);
            let place = self.places()[at];
            if place.address == 0 {
                break;
            }
            let first = first_place(place.address, self.capacity);
            // Its search passes the free place.
            if at.wrapping_sub(first) & last >= at.wrapping_sub(free) & last {
                self.places_mut()[free] = place;
                free = at;
            }
        }
        self.places_mut()[free].address = 0;
        self.count -= 1;
        // SAFETY:
        // - its place had an address.
        Some(unsafe { removed.assume_init() })
    }

    /// All records, in no particular order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        // SAFETY:
        // - a place with an address has a record.
        self.places_mut()
            .iter_mut()
            .filter(|place| place.address != 0)
            .map(|place| unsafe { place.record.assume_init_mut() })
    }
}
