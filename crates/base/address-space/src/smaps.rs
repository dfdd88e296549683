//! Parses `/proc/PID/smaps`: how the kernel backs each mapping (proc_pid_smaps(5)).

use crate::maps::parse_line;
use crate::{AddressRange, Mapping, MapsError, PageSize, RangeSet};
use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;

/// One smaps entry: a mapping and the kernel's counts for it, in bytes.
#[derive(Clone, Debug)]
pub struct MappingUsage {
    /// The mapping itself.
    pub mapping: Mapping,
    /// Resident, hugetlb pages not counted.
    pub resident: u64,
    /// Marked as accessed since the marks were last cleared, hugetlb pages not counted: those that a page table entry of this
    /// process marks, and those whose page is marked itself.
    pub referenced: u64,
    /// Pages changed by this process alone.
    pub private_dirty: u64,
    /// Anonymous transparent huge pages mapped whole.
    pub anonymous_huge: u64,
    /// tmpfs huge pages mapped whole.
    pub shmem_huge: u64,
    /// Huge pages of another file system mapped whole.
    pub file_huge: u64,
    /// Pages of the hugetlb pool, private and shared.
    pub hugetlb: u64,
    /// Pages of the hugetlb pool that another page table maps, too: of a forked process, or of another one that maps the file.
    pub shared_hugetlb: u64,
    /// Page size by which the kernel manages the mapping.
    pub kernel_page_size: Option<PageSize>,
    /// Memory protection key; 0 where none is set.
    pub protection_key: u64,
    /// Two-letter flags, for example `hg` (advised huge) or `ht` (hugetlb), with blanks between; empty on kernels that
    /// do not report them.
    pub flags: String,
}

impl MappingUsage {
    /// Bytes that the kernel backs by huge pages, of any source.
    pub fn huge(&self) -> u64 {
        self.anonymous_huge + self.shmem_huge + self.file_huge + self.hugetlb
    }

    /// Returns the huge parts of the mapping according to its smaps entry, the only report before Linux 6.7: the whole
    /// mapping, or those whole pages of `size` that are completely touched, if their number equals the count. `touched`
    /// returns the touched parts of a range, and is called only if the entry does not suffice.
    pub fn huge_parts(&self, size: PageSize, touched: impl FnOnce(AddressRange) -> Option<RangeSet>) -> RangeSet {
        let (huge, whole) = (self.huge(), self.mapping.range.whole_pages(size));
        if huge == 0 || huge == whole.len() {
            return if huge == 0 { RangeSet::new() } else { RangeSet::from_iter([whole]) };
        }
        // Every part of a huge page counts as touched, so those that are huge are among these.
        let throughout: RangeSet =
            touched(whole).unwrap_or_default().iter().map(|part| part.whole_pages(size)).collect();
        if throughout.bytes() == huge { throughout } else { RangeSet::new() }
    }

    /// Resident bytes, hugetlb pages counted.
    pub fn resident_with_hugetlb(&self) -> u64 {
        self.resident + self.hugetlb
    }

    /// True if the mapping has the two-letter flag.
    pub fn has_flag(&self, flag: &str) -> bool {
        self.flags.split(' ').any(|found| found == flag)
    }
}

/// Reads the text of `/proc/PID/smaps`. Fields that a kernel does not have count as zero.
///
/// # Errors
/// [`MapsError`] for a line that is neither a mapping nor a field.
pub fn parse_smaps(text: &str) -> Result<Vec<MappingUsage>, MapsError> {
    let mut usages: Vec<MappingUsage> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let error = || MapsError::new(index, line);
        let first_is_field = line.as_bytes().first().is_some_and(u8::is_ascii_uppercase);
        if !first_is_field {
            usages.push(empty(parse_line(line).ok_or_else(error)?));
            continue;
        }
        let (field, value) = line.split_once(':').ok_or_else(error)?;
        read_field(usages.last_mut().ok_or_else(error)?, field, value.trim()).ok_or_else(error)?;
    }
    Ok(usages)
}

/// The flags and protection key of one mapping, from its smaps entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingFlags {
    /// Addresses.
    pub range: AddressRange,
    /// Memory protection key; 0 where none is set.
    pub protection_key: u64,
    /// As in [`MappingUsage`].
    pub flags: String,
}

/// Parses only the flags in the text of `/proc/PID/smaps`, which is faster than [`parse_smaps`].
///
/// # Errors
/// [`MapsError`] as for [`parse_smaps`].
pub fn parse_flags(text: &str) -> Result<Vec<MappingFlags>, MapsError> {
    let mut all: Vec<MappingFlags> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let error = || MapsError::new(index, line);
        match line.as_bytes().first() {
            Some(b'V') if line.starts_with("VmFlags:") => {
                line["VmFlags:".len()..].trim().clone_into(&mut all.last_mut().ok_or_else(error)?.flags);
            }
            Some(b'P') if line.starts_with("ProtectionKey:") => {
                let key = line["ProtectionKey:".len()..].trim().parse().map_err(|_| error())?;
                all.last_mut().ok_or_else(error)?.protection_key = key;
            }
            Some(first) if first.is_ascii_uppercase() => {}
            _ => {
                let range = parse_line(line).ok_or_else(error)?.range;
                all.push(MappingFlags { range, protection_key: 0, flags: String::new() });
            }
        }
    }
    Ok(all)
}

/// True if a part of `range` allows indirect branches to landing pads only (`PROT_BTI` of AArch64), by the text of
/// `/proc/PID/smaps`.
///
/// # Errors
/// [`MapsError`] as for [`parse_smaps`].
pub fn guards_branches(text: &str, range: AddressRange) -> Result<bool, MapsError> {
    let has_flag = |mapping: &MappingFlags| mapping.flags.split(' ').any(|flag| flag == "bt");
    Ok(parse_flags(text)?.iter().any(|mapping| mapping.range.overlaps(range) && has_flag(mapping)))
}

fn empty(mapping: Mapping) -> MappingUsage {
    MappingUsage {
        mapping,
        resident: 0,
        referenced: 0,
        private_dirty: 0,
        anonymous_huge: 0,
        shmem_huge: 0,
        file_huge: 0,
        hugetlb: 0,
        shared_hugetlb: 0,
        kernel_page_size: None,
        protection_key: 0,
        flags: String::new(),
    }
}

fn read_field(usage: &mut MappingUsage, field: &str, value: &str) -> Option<()> {
    let bytes = || value.strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024);
    match field {
        "Rss" => usage.resident = bytes()?,
        "Referenced" => usage.referenced = bytes()?,
        "Private_Dirty" => usage.private_dirty = bytes()?,
        "AnonHugePages" => usage.anonymous_huge = bytes()?,
        "ShmemPmdMapped" => usage.shmem_huge = bytes()?,
        "FilePmdMapped" => usage.file_huge = bytes()?,
        "Private_Hugetlb" => usage.hugetlb = usage.hugetlb.checked_add(bytes()?)?,
        "Shared_Hugetlb" => {
            usage.shared_hugetlb = bytes()?;
            usage.hugetlb = usage.hugetlb.checked_add(usage.shared_hugetlb)?;
        }
        "KernelPageSize" => usage.kernel_page_size = PageSize::new(bytes()?).ok(),
        "ProtectionKey" => usage.protection_key = value.parse().ok()?,
        "VmFlags" => usage.flags = value.to_owned(),
        _ => {}
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Address;
    use proptest::prelude::*;

    const TEXT: &str = "\
55d0c1000000-55d0c1200000 r-xp 00000000 00:0f 77                         /anon_hugepage (deleted)
Size:               2048 kB
KernelPageSize:     2048 kB
Rss:                   0 kB
Private_Hugetlb:    2048 kB
THPeligible:           0
VmFlags: rd ex mr mw me de ht 
7f0000200000-7f0000600000 rw-p 00000000 00:00 0 
Rss:                2052 kB
AnonHugePages:      2048 kB
VmFlags: rd wr hg
";

    #[test]
    fn huge_bytes_are_counted_by_source() {
        let usages = parse_smaps(TEXT).unwrap();
        assert_eq!((usages[0].hugetlb, usages[0].huge()), (2 << 20, 2 << 20));
        assert_eq!(usages[0].kernel_page_size.unwrap().bytes(), 2 << 20);
        assert_eq!((usages[1].anonymous_huge, usages[1].resident), (2 << 20, 2052 << 10));
        assert!(usages[1].has_flag("hg") && !usages[0].has_flag("hg"));
    }

    #[test]
    fn every_kind_of_huge_page_counts() {
        let text = "\
1000-2000 rw-s 0 0:1 5 /dev/shm/x
Rss:                   3 kB
Referenced:            2 kB
Private_Dirty:         5 kB
AnonHugePages:         7 kB
ShmemPmdMapped:       11 kB
FilePmdMapped:        13 kB
Private_Hugetlb:      17 kB
Shared_Hugetlb:       19 kB
";
        let usage = &parse_smaps(text).unwrap()[0];
        let fields = [usage.resident, usage.private_dirty, usage.anonymous_huge, usage.shmem_huge, usage.file_huge];
        assert_eq!(fields, [3, 5, 7, 11, 13].map(|kib| kib << 10));
        assert_eq!((usage.hugetlb, usage.huge()), (36 << 10, (7 + 11 + 13 + 36) << 10));
        assert_eq!(usage.shared_hugetlb, 19 << 10);
        assert_eq!((usage.resident_with_hugetlb(), usage.referenced), (39 << 10, 2 << 10));
    }

    #[test]
    fn where_a_mapping_is_huge_is_told_only_where_it_is_sure() {
        let size = PageSize::new(2 << 20).unwrap();
        let usage = parse_smaps(TEXT).unwrap().remove(1);
        let at = |start: u64, end: u64| AddressRange::new(Address(start), Address(end));
        let parts = |touched: &[AddressRange]| usage.huge_parts(size, |_| Some(touched.iter().copied().collect()));
        let (first, second) = (at(0x7f00_0020_0000, 0x7f00_0040_0000), at(0x7f00_0040_0000, 0x7f00_0060_0000));
        let edge = at(0x7f00_0020_0000, 0x7f00_0020_1000);
        assert_eq!(parts(&[edge, second]), RangeSet::from_iter([second]));
        assert_eq!(parts(&[first, second]), RangeSet::new());
        assert_eq!(parts(&[edge]), RangeSet::new());
        assert_eq!(usage.huge_parts(size, |_| None), RangeSet::new());
        let all = MappingUsage { anonymous_huge: 4 << 20, ..usage.clone() };
        assert_eq!(all.huge_parts(size, |_| None), RangeSet::from_iter([all.mapping.range]));
        let none = MappingUsage { anonymous_huge: 0, ..usage.clone() };
        assert_eq!(none.huge_parts(size, |range| Some(RangeSet::from_iter([range]))), RangeSet::new());
    }

    #[test]
    fn flags_are_the_same_by_either_reader() {
        let text = format!("{TEXT}7f0000600000-7f0000601000 rw-p 00000000 00:00 0 \nProtectionKey:         3\n");
        let usages = parse_smaps(&text).unwrap();
        let of = |usage: MappingUsage| (usage.mapping.range, usage.protection_key, usage.flags);
        let expected: Vec<_> = usages.into_iter().map(of).collect();
        let found = parse_flags(&text).unwrap();
        assert_eq!(found.into_iter().map(|m| (m.range, m.protection_key, m.flags)).collect::<Vec<_>>(), expected);
        assert!(parse_flags("VmFlags: rd\n").is_err() && parse_flags("none\n").is_err());
    }

    #[test]
    fn fields_of_later_kernels_are_passed_over_by_either_reader() {
        let text = "1000-2000 rw-p 0 00:00 0\nVmFlags: rd wr\nVmLater:       3 kB\nProtectionKeys:  1\n";
        let (flags, usage) = (parse_flags(text).unwrap().remove(0), parse_smaps(text).unwrap().remove(0));
        assert_eq!((flags.flags.as_str(), flags.protection_key), ("rd wr", 0));
        assert_eq!((usage.flags.as_str(), usage.protection_key), ("rd wr", 0));
    }

    proptest! {
        #[test]
        fn no_damaged_smaps_makes_the_reader_panic(at in 0..TEXT.len(), with in any::<char>()) {
            let damaged: String = TEXT.char_indices().map(|(i, c)| if i == at { with } else { c }).collect();
            let _ = parse_smaps(&damaged);
            let _ = parse_flags(&damaged);
        }
    }

    #[test]
    fn code_that_guards_its_branches_is_found() {
        let text = "1000-2000 r-xp 0 00:00 0\nVmFlags: rd ex mr bt \n3000-4000 r-xp 0 00:00 0\nVmFlags: rd ex\n";
        let guarded = |start, length| guards_branches(text, AddressRange::sized(Address(start), length)).unwrap();
        assert!(guarded(0x1000, 0x1000) && guarded(0x1fff, 0x2000));
        assert!(!guarded(0x2000, 0x1000) && !guarded(0x3000, 0x1000));
    }
}
