//! Addresses in another process, as a type of their own, so that they cannot be mistaken for addresses in this process.

use crate::PageSize;
use core::fmt;
use core::ops::{Add, Sub};
use serde::{Serialize, Serializer};

/// A virtual address in the inspected process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Address(pub u64);

impl Address {
    /// Returns the nearest multiple of `size` at or below this address.
    pub fn align_down(self, size: PageSize) -> Self {
        Self(self.0 & !(size.bytes() - 1))
    }

    /// Returns the nearest multiple of `size` at or above this address; `None` past the end of the address space.
    pub fn align_up(self, size: PageSize) -> Option<Self> {
        self.0.checked_add(size.bytes() - 1).map(|a| Self(a).align_down(size))
    }

    /// True for a multiple of `size`.
    pub fn is_aligned(self, size: PageSize) -> bool {
        self.0 & (size.bytes() - 1) == 0
    }

    /// Returns this address plus `bytes`; `None` past the end of the address space.
    pub fn checked_add(self, bytes: u64) -> Option<Self> {
        self.0.checked_add(bytes).map(Self)
    }
}

impl Add<u64> for Address {
    type Output = Self;
    fn add(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

impl Sub<u64> for Address {
    type Output = Self;
    fn sub(self, bytes: u64) -> Self {
        Self(self.0.wrapping_sub(bytes))
    }
}

impl Sub for Address {
    type Output = u64;
    fn sub(self, other: Self) -> u64 {
        self.0.wrapping_sub(other.0)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Address {
    /// As text: JSON numbers lose precision above 2^53.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The addresses from `start` up to, not including, `end`. Never reversed; may be empty.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct AddressRange {
    start: Address,
    end: Address,
}

impl AddressRange {
    /// Returns the range between two addresses; an end before the start gives an empty range at `start`.
    pub fn new(start: Address, end: Address) -> Self {
        Self { start, end: end.max(start) }
    }

    /// Returns the range of `length` bytes at `start`, cut at the end of the address space.
    pub fn sized(start: Address, length: u64) -> Self {
        Self::new(start, Address(start.0.saturating_add(length)))
    }

    /// First address.
    pub fn start(self) -> Address {
        self.start
    }

    /// First address behind the range.
    pub fn end(self) -> Address {
        self.end
    }

    /// Length in bytes.
    pub fn len(self) -> u64 {
        self.end.0 - self.start.0
    }

    /// True if the range is empty.
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// True if `address` is in the range.
    pub fn contains(self, address: Address) -> bool {
        self.start <= address && address < self.end
    }

    /// True if all of `other` is in this range (an empty range is in any).
    pub fn covers(self, other: Self) -> bool {
        other.is_empty() || (self.start <= other.start && other.end <= self.end)
    }

    /// True if the two share a byte.
    pub fn overlaps(self, other: Self) -> bool {
        !self.intersect(other).is_empty()
    }

    /// Returns the bytes in both ranges; empty if there are none.
    pub fn intersect(self, other: Self) -> Self {
        Self::new(self.start.max(other.start), self.end.min(other.end))
    }

    /// Returns the whole pages of `size` in the range; empty if there are none.
    pub fn whole_pages(self, size: PageSize) -> Self {
        match self.start.align_up(size) {
            Some(start) => Self::new(start, self.end.align_down(size)),
            None => Self::new(self.end, self.end),
        }
    }

    /// Returns the range widened to whole pages of `size`.
    pub fn widened(self, size: PageSize) -> Self {
        let end = self.end.align_up(size).unwrap_or(Address(u64::MAX).align_down(size));
        Self::new(self.start.align_down(size), end)
    }

    /// Returns the range moved up by `bytes` (wrapping, so that a negative displacement can be passed as its two's
    /// complement).
    pub fn shifted(self, bytes: u64) -> Self {
        Self::sized(self.start + bytes, self.len())
    }

    /// The pages of `size` in the range, first to last; the last may be cut.
    pub fn pages(self, size: PageSize) -> impl Iterator<Item = Self> {
        let mut next = self.start;
        core::iter::from_fn(move || {
            if next >= self.end {
                return None;
            }
            let end = (next + 1).align_up(size).unwrap_or(self.end).min(self.end);
            let page = Self::new(next, end);
            next = end;
            Some(page)
        })
    }

    /// Returns the parts of this range below and above `other`.
    pub fn without(self, other: Self) -> [Self; 2] {
        if !self.overlaps(other) {
            return [self, Self::new(self.end, self.end)];
        }
        [Self::new(self.start, other.start.min(self.end)), Self::new(other.end.max(self.start), self.end)]
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:x}", self.start.0, self.end.0)
    }
}

impl fmt::Debug for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> AddressRange {
        AddressRange::new(Address(start), Address(end))
    }

    fn size(bytes: u64) -> PageSize {
        PageSize::new(bytes).unwrap()
    }

    #[test]
    fn addresses_are_moved_compared_and_shown() {
        assert_eq!((Address(0x3000) - 0x1000, Address(0x3000) + 0x1000), (Address(0x2000), Address(0x4000)));
        assert_eq!(Address(0x3000) - Address(0x1000), 0x2000);
        assert_eq!(
            [0x4000, 0x8000, 0x4001, 0x5000, 0].map(|at| Address(at).is_aligned(size(0x4000))),
            [true, true, false, false, true]
        );
        assert_eq!((format!("{}", Address(0x1f)), format!("{:?}", Address(0x1f))), ("0x1f".into(), "0x1f".into()));
        let shown = (format!("{}", range(0x10, 0x20)), format!("{:?}", range(0x10, 0x20)));
        assert_eq!(shown, ("10-20".into(), "10-20".into()));
    }

    #[test]
    fn a_range_holds_its_start_and_not_its_end() {
        let outer = range(0x1000, 0x3000);
        assert_eq!([0xfff, 0x1000, 0x2fff, 0x3000].map(|at| outer.contains(Address(at))), [false, true, true, false]);
        for (other, covered, overlaps) in [
            (range(0x1000, 0x3000), true, true),
            (range(0xfff, 0x3000), false, true),
            (range(0x1000, 0x3001), false, true),
            (range(0x0, 0x1000), false, false),
            (range(0x3000, 0x4000), false, false),
            (range(0x9000, 0x9000), true, false),
        ] {
            assert_eq!((outer.covers(other), outer.overlaps(other)), (covered, overlaps), "{other}");
        }
    }

    #[test]
    fn whole_pages_leave_both_edges() {
        assert_eq!(range(0x1000, 0x9000).whole_pages(size(0x4000)), range(0x4000, 0x8000));
        assert!(range(0x1000, 0x3000).whole_pages(size(0x4000)).is_empty());
        assert!(range(u64::MAX - 5, u64::MAX).whole_pages(size(0x4000)).is_empty());
    }

    #[test]
    fn without_keeps_what_lies_on_both_sides() {
        let [below, above] = range(0x1000, 0x9000).without(range(0x3000, 0x4000));
        assert_eq!((below, above), (range(0x1000, 0x3000), range(0x4000, 0x9000)));
        let [below, above] = range(0x1000, 0x2000).without(range(0x1000, 0x2000));
        assert!(below.is_empty() && above.is_empty());
    }

    #[test]
    fn pages_cut_the_first_and_the_last() {
        let pages: Vec<_> = range(0x1000, 0x9000).pages(size(0x4000)).collect();
        assert_eq!(pages, [range(0x1000, 0x4000), range(0x4000, 0x8000), range(0x8000, 0x9000)]);
    }
}
