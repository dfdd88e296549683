//! Selects the huge pages of a range that are worth making, by how much of each has been touched.

use crate::{AddressRange, MappingName, MappingUsage, PageSize, RangeSet};
use alloc::vec::Vec;

/// A huge page is made if at least this fraction (one part in this number) has been touched, which bounds the memory
/// that becomes resident.
const LEAST_TOUCHED: u64 = 2;

/// Mappings that are not changed, by their flags in smaps (proc_pid_smaps(5)): advised against huge pages, locked,
/// registered with userfaultfd, device memory.
const LEFT_ALONE: [&str; 6] = ["nh", "lo", "um", "uw", "ui", "io"];

/// True for private anonymous memory that is writable and not all huge.
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
    use crate::{Address, parse_smaps};

    /// The usage of a mapping with this header line and these fields.
    fn usage(header: &str, fields: &str) -> MappingUsage {
        parse_smaps(&format!("1000-9000 {header}\n{fields}")).unwrap().remove(0)
    }

    #[test]
    fn only_private_written_memory_that_is_not_all_huge_may_be_collapsed() {
        let some = "Rss: 32 kB\nAnonHugePages: 16 kB\nVmFlags: rd wr\n";
        for (header, fields, expected) in [
            ("rw-p 0 00:00 0", some, true),
            ("rw-p 0 00:00 0 [heap]", some, true),
            ("rw-p 0 00:00 0 [anon:arena]", some, true),
            ("rw-p 0 00:00 0 [stack]", some, false),
            ("rw-p 0 00:00 0 [vvar]", some, false),
            ("rw-p 0 fe:00 7 /usr/bin/prog", some, false),
            ("rw-s 0 00:00 0", some, false),
            ("r--p 0 00:00 0", some, false),
            ("rw-p 0 00:00 0", "Rss: 32 kB\nAnonHugePages: 32 kB\n", false),
            ("rw-p 0 00:00 0", "Rss: 0 kB\n", false),
            ("rw-p 0 00:00 0", "Rss: 32 kB\nPrivate_Hugetlb: 32 kB\n", false),
        ] {
            assert_eq!(may_be_collapsed(&usage(header, fields)), expected, "{header} {fields}");
        }
        for flag in LEFT_ALONE {
            let fields = format!("Rss: 32 kB\nVmFlags: rd wr {flag} mr\n");
            assert!(!may_be_collapsed(&usage("rw-p 0 00:00 0", &fields)), "{flag}");
        }
    }

    #[test]
    fn runs_are_no_longer_than_one_is_to_be() {
        let (huge, page) = (PageSize::new(1 << 21).unwrap(), 1 << 21);
        let all = AddressRange::sized(Address(page), 5 * page);
        let touched = RangeSet::from_iter([all]);
        let runs = dense_runs(all, huge, &touched, &RangeSet::new(), 2 * page);
        assert_eq!(runs.iter().map(|run| run.len() / page).collect::<Vec<_>>(), [2, 2, 1]);
        assert_eq!(runs.into_iter().collect::<RangeSet>(), touched);
    }

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
