//! The copies and their originals, so that a copy is compared with its range once more before it replaces the range.
//!
//! Other threads run while memory is copied, and memory without write permission can change: a program that patches its
//! own code makes it writable for a moment, others write through `/proc/PID/mem`, and the kernel inserts uprobes. A
//! range that has changed is not lifted. No thread can be stopped from inside, so writes between the comparison and the
//! swap are lost (docs/LIMITS.md): that takes microseconds if the range shows a file, because only pages that differ
//! from the file are compared last.

use address_space::{Address, AddressRange, RangeSet};
use alloc::vec::Vec;

/// A range and the start of its copy.
pub type Copied = (AddressRange, Address);

/// The copies that have been made and not moved yet.
#[derive(Default)]
pub struct Copies {
    made: Vec<Copied>,
    /// Copies that show a file: what was not copied there is equal to what it is to replace.
    shown: RangeSet,
    /// Memory that is not writable. The rest is writable at its destination, which has no other writer
    /// (`live_restrictions`).
    sealed: RangeSet,
}

impl Copies {
    /// Notes a copy.
    pub fn note(&mut self, range: AddressRange, copy: Address) {
        self.made.push((range, copy));
    }

    /// Notes that a file was mapped.
    pub fn note_shown(&mut self, copy: AddressRange) {
        self.shown.insert(copy);
    }

    /// Notes whether memory is writable.
    pub fn note_protection(&mut self, range: AddressRange, is_writable: bool) {
        if is_writable { self.sealed.remove(range) } else { self.sealed.insert(range) }
    }

    /// Takes the copy at `from` out, which is to be moved to `to`, or unmapped. Returns what is to be compared before a move.
    pub fn take(&mut self, from: AddressRange, to: Address) -> Vec<Copied> {
        let (is_sealed, is_shown) = (self.sealed.covers(from), self.shown.covers(from));
        self.sealed.remove(from);
        self.shown.remove(from);
        let mut taken = Vec::new();
        self.made.retain(|&(range, copy)| {
            let is_in_it = from.covers(AddressRange::sized(copy, range.len()));
            if is_in_it && range.start().0.wrapping_sub(to.0) == copy - from.start() {
                taken.push((range, copy));
            }
            !is_in_it
        });
        match () {
            () if !is_sealed => Vec::new(),
            () if is_shown => [(AddressRange::sized(to, from.len()), from.start())].into(),
            () => taken,
        }
    }
}

/// Compares by words: the compiler's comparison of slices would call this library's `memcmp`, which goes byte by byte.
pub fn same(one: &[u8], other: &[u8]) -> bool {
    words(one).eq(words(other))
}

/// Pages as words.
fn words(page: &[u8]) -> impl Iterator<Item = u64> + '_ {
    page.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> AddressRange {
        AddressRange::new(Address(start), Address(end))
    }

    #[test]
    fn sealed_copies_are_compared_where_they_go_to_what_they_are_copies_of() {
        let mut copies = Copies::default();
        let made = [(range(0x1000, 0x3000), Address(0x9000)), (range(0x4000, 0x5000), Address(0xc000))];
        made.iter().for_each(|&(range, copy)| copies.note(range, copy));
        copies.note(range(0x7000, 0x8000), Address(0x2_0000));
        copies.note_protection(range(0x9000, 0xd000), false);
        assert_eq!(copies.take(range(0x9000, 0xd000), Address(0x1000)), made);
        // It has been moved: whatever comes to its place is something else.
        assert_eq!(copies.take(range(0x9000, 0xd000), Address(0x1000)), []);
        assert_eq!(copies.made.len(), 1);
        assert_eq!(copies.take(range(0x2_0000, 0x2_1000), Address(0x7000)), []);
    }

    #[test]
    fn copies_that_go_elsewhere_or_can_be_written_to_are_not_compared() {
        let mut copies = Copies::default();
        for (is_writable, to) in [(false, 0x2000), (true, 0x1000)] {
            copies.note(range(0x1000, 0x2000), Address(0x9000));
            copies.note_protection(range(0x9000, 0xa000), false);
            copies.note_protection(range(0x9000, 0xa000), is_writable);
            assert_eq!(copies.take(range(0x9000, 0xa000), Address(to)), []);
        }
    }

    #[test]
    fn what_shows_a_file_is_compared_whole() {
        let mut copies = Copies::default();
        copies.note_shown(range(0x9000, 0xb000));
        copies.note(range(0x1000, 0x2000), Address(0x9000));
        copies.note_protection(range(0x9000, 0xb000), false);
        assert_eq!(copies.take(range(0x9000, 0xb000), Address(0x1000)), [(range(0x1000, 0x3000), Address(0x9000))]);
    }
}
