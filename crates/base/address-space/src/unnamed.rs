//! Mappings without their names, and the comparison of mappings within a range.

use crate::{AddressRange, AddressSpace, Mapping, Protection};
use alloc::vec::Vec;

/// A mapping without its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnnamedMapping {
    /// Addresses.
    pub range: AddressRange,
    /// Protection.
    pub protection: Protection,
    /// `MAP_SHARED`.
    pub shared: bool,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Major and minor number of the device, as `/proc/PID/maps` shows them.
    pub device: (u32, u32),
    /// Inode number; 0 for anonymous memory.
    pub inode: u64,
}

impl From<&Mapping> for UnnamedMapping {
    fn from(mapping: &Mapping) -> Self {
        let &Mapping { range, protection, shared, offset, device, inode, .. } = mapping;
        Self { range, protection, shared, offset, device, inode }
    }
}

impl UnnamedMapping {
    /// True if two lists of mappings are the same within a range. Their parts outside may have grown or shrunk.
    pub fn are_same(before: &[Self], now: &[Self], range: AddressRange) -> bool {
        before.len() == now.len() && before.iter().zip(now).all(|(a, b)| a.is_same(b, range))
    }

    fn is_same(&self, other: &Self, range: AddressRange) -> bool {
        let place = |mapping: &Self| mapping.range.start().0.wrapping_sub(mapping.offset);
        self.range.intersect(range) == other.range.intersect(range)
            && (self.protection, self.inode, self.device, self.shared)
                == (other.protection, other.inode, other.device, other.shared)
            && (self.inode == 0 || place(self) == place(other))
    }
}

impl AddressSpace {
    /// True if the mappings within `range` are the same as in `before`, and anonymous ones have the same names. The
    /// path of a file may have changed. New anonymous memory without a name is the same as older memory without one.
    pub fn is_unchanged_in(&self, range: AddressRange, before: &Self) -> bool {
        let unnamed = |space: &Self| space.overlapping(range).iter().map(UnnamedMapping::from).collect::<Vec<_>>();
        let mut pairs = before.overlapping(range).iter().zip(self.overlapping(range));
        UnnamedMapping::are_same(&unnamed(before), &unnamed(self), range)
            && pairs.all(|(a, b)| a.inode != 0 || a.name == b.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Address;

    #[test]
    fn mappings_may_differ_only_outside_of_the_range() {
        let range = AddressRange::new(Address(0x20_0000), Address(0x40_0000));
        let mapping = |start: u64, end: u64, offset: u64, inode: u64| UnnamedMapping {
            range: AddressRange::new(Address(start), Address(end)),
            protection: Protection { read: true, write: false, execute: true },
            shared: false,
            offset,
            device: (8, 1),
            inode,
        };
        let planned = mapping(0x10_0000, 0x50_0000, 0x10_0000, 7);
        let is_same = |found: &[UnnamedMapping]| UnnamedMapping::are_same(&[planned], found, range);
        assert!(is_same(&[planned]) && is_same(&[mapping(0x20_0000, 0x40_0000, 0x20_0000, 7)]));
        assert!(!is_same(&[]) && !is_same(&[planned, planned]));
        let mut writable = planned;
        writable.protection.write = true;
        for other in [
            writable,
            UnnamedMapping { shared: true, ..planned },
            UnnamedMapping { device: (8, 2), ..planned },
            mapping(0x10_0000, 0x50_0000, 0x10_0000, 8),
            mapping(0x10_0000, 0x50_0000, 0x11_0000, 7),
            mapping(0x10_0000, 0x30_0000, 0x10_0000, 7),
        ] {
            assert!(!is_same(&[other]), "{other:?}");
        }
        // The offset of anonymous memory is its address at its beginning, or 0.
        let anonymous = |offset| mapping(0x10_0000, 0x50_0000, offset, 0);
        assert!(UnnamedMapping::are_same(&[anonymous(0)], &[anonymous(0x10_0000)], range));
    }

    #[test]
    fn anonymous_memory_with_another_name_is_other_memory() {
        let range = AddressRange::new(Address(0x2000), Address(0x4000));
        let space = |lines: &str| AddressSpace::parse(lines).unwrap();
        let before = space("1000-3000 r-xp 0 8:1 7 /opt/prog\n3000-5000 rw-p 0 0:0 0 [anon:data]\n");
        let same = |lines: &str| space(lines).is_unchanged_in(range, &before);
        assert!(same("2000-3000 r-xp 1000 8:1 7 /opt/prog (deleted)\n3000-6000 rw-p 0 0:0 0 [anon:data]\n"));
        assert!(!same("1000-3000 r-xp 0 8:1 7 /opt/prog\n3000-5000 rw-p 0 0:0 0\n"));
        assert!(!same("1000-3000 r-xp 0 8:1 8 /opt/prog\n3000-5000 rw-p 0 0:0 0 [anon:data]\n"));
        assert!(!same("1000-3000 r-xp 0 8:1 7 /opt/prog\n") && !same(""));
    }
}
