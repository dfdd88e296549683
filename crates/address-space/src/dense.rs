//! Which huge pages of a range are worth making out of what has been touched.

use crate::{AddressRange, MappingName, MappingUsage, PageSize, RangeSet};
use alloc::vec::Vec;

/// A huge page is made where at least one of so many parts of it has been touched: no more memory becomes resident than
/// is in use.
const LEAST_TOUCHED: u64 = 2;

/// Mappings that are left alone, by their flags in smaps (proc_pid_smaps(5)): advised against huge pages, locked,
/// registered with userfaultfd, device memory.
const LEFT_ALONE: [&str; 6] = ["nh", "lo", "um", "uw", "ui", "io"];

/// True for anonymous memory of the process alone that is written to and not all huge.
pub fn may_be_collapsed(usage: &MappingUsage) -> bool {
    let mapping = &usage.mapping;
    let anonymous = mapping.inode == 0 && !matches!(mapping.name, MappingName::Stack | MappingName::Special(_));
    let left = usage.resident > usage.anonymous_huge && usage.hugetlb == 0;
    anonymous
        && !mapping.shared
        && mapping.protection.write
        && left
        && !LEFT_ALONE.iter().any(|flag| usage.has_flag(flag))
}

/// Runs of huge pages that are dense and not huge yet, each at most `at_once` bytes long.
pub fn dense_runs(
    range: AddressRange,
    huge: PageSize,
    touched: &RangeSet,
    already: &RangeSet,
    at_once: u64,
) -> Vec<AddressRange> {
    let mut runs: Vec<AddressRange> = Vec::new();
    for page in range.pages(huge) {
        if touched.bytes_in(page) * LEAST_TOUCHED < page.len() || already.overlaps(page) {
            continue;
        }
        match runs.last_mut() {
            Some(last) if last.end() == page.start() && last.len() < at_once => {
                *last = AddressRange::new(last.start(), page.end());
            }
            _ => runs.push(page),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Address;

    #[test]
    fn only_dense_pages_that_are_not_huge_are_taken() {
        let huge = PageSize::new(1 << 21).unwrap();
        let page = |number: u64, share: u64| AddressRange::sized(Address(number << 21), (1 << 21) / share);
        let mut touched = RangeSet::new();
        for (number, share) in [(1, 1), (2, 2), (3, 4), (4, 1), (5, 1)] {
            touched.insert(page(number, share));
        }
        let mut already = RangeSet::new();
        already.insert(page(5, 1));
        let range = AddressRange::new(Address(1 << 21), Address(7 << 21));
        let runs = dense_runs(range, huge, &touched, &already, 64 << 20);
        let both = AddressRange::new(Address(1 << 21), Address(3 << 21));
        assert_eq!(runs, [both, page(4, 1)]);
    }
}
