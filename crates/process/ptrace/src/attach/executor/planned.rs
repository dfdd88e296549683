//! Compares the mappings of a range with the plan while threads are stopped.
//!
//! The time must not grow with the number of the program's other mappings: a list of 60,000 takes the kernel about 50 ms.

use super::LiveExecutor;
use address_space::AddressRange;
use lift_execution::Executor;
use linux::mappings::{UnnamedMapping, mappings_in};

impl LiveExecutor {
    /// True if a range has the mappings that it had when it was planned.
    pub(super) fn is_as_planned(&mut self, range: AddressRange) -> bool {
        let planned: Vec<UnnamedMapping> = self.planned.overlapping(range).iter().map(UnnamedMapping::from).collect();
        let found = mappings_in(self.process.pid().as_raw(), range);
        if found.is_ok_and(|found| are_same(&planned, &found, range)) {
            return true;
        }
        // Before Linux 6.11 only the list shows them.
        let Ok(space) = self.space() else { return false };
        let listed: Vec<UnnamedMapping> = space.overlapping(range).iter().map(UnnamedMapping::from).collect();
        are_same(&planned, &listed, range)
    }
}

/// True if mappings are the same within a range. Their parts outside may have grown or shrunk.
fn are_same(planned: &[UnnamedMapping], found: &[UnnamedMapping], range: AddressRange) -> bool {
    let place = |mapping: &UnnamedMapping| mapping.range.start().0.wrapping_sub(mapping.offset);
    let same = |a: &UnnamedMapping, b: &UnnamedMapping| {
        a.range.intersect(range) == b.range.intersect(range)
            && (a.protection, a.inode, a.device, a.shared) == (b.protection, b.inode, b.device, b.shared)
            && (a.inode == 0 || place(a) == place(b))
    };
    planned.len() == found.len() && planned.iter().zip(found).all(|(a, b)| same(a, b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use address_space::{Address, Protection};

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
        let is_same = |found: &[UnnamedMapping]| are_same(&[planned], found, range);
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
        assert!(are_same(&[anonymous(0)], &[anonymous(0x10_0000)], range));
    }
}
