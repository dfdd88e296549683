//! Kinds of memory, and their marks.

use address_space::{Mapping, MappingName, MappingUsage, PageSize};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::AddAssign;

/// A kind of memory, according to the map of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Everything executable, generated code too.
    Code,
    /// Private memory that is not writable: read-only data of programs and libraries, RELRO.
    ReadOnlyData,
    /// Writable private mappings of files: data of programs and libraries.
    Data,
    /// The brk area.
    Heap,
    /// Other writable private memory: mappings of allocators, stacks of threads, bss.
    Anonymous,
    /// The first thread's stack.
    Stack,
    /// Shared memory and shared mappings of files.
    Shared,
}

impl Part {
    /// The kind of a mapping; `None` for one that the kernel provides, and for one that cannot be read.
    pub fn of(mapping: &Mapping) -> Option<Self> {
        let protection = mapping.protection;
        Some(match &mapping.name {
            MappingName::Special(_) => return None,
            _ if !(protection.read || protection.write || protection.execute) => return None,
            _ if protection.execute => Self::Code,
            _ if mapping.shared => Self::Shared,
            MappingName::Stack => Self::Stack,
            MappingName::Heap => Self::Heap,
            _ if !protection.write => Self::ReadOnlyData,
            MappingName::File { .. } => Self::Data,
            _ => Self::Anonymous,
        })
    }

    /// True for memory of which only this process's own page table entries are marked, apart from pages that the kernel
    /// pins.
    pub fn is_private_anonymous(self) -> bool {
        matches!(self, Self::Heap | Self::Anonymous | Self::Stack)
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Code => "code",
            Self::ReadOnlyData => "read-only data",
            Self::Data => "data",
            Self::Heap => "heap (brk)",
            Self::Anonymous => "heap (mmap), bss",
            Self::Stack => "stack",
            Self::Shared => "shared",
        })
    }
}

/// A number of TLB entries, bounded by smaps, which counts bytes of a mapping without naming pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Entries {
    /// At least so many.
    pub least: u64,
    /// At most so many.
    pub most: u64,
}

impl AddAssign for Entries {
    fn add_assign(&mut self, other: Self) {
        self.least = self.least.saturating_add(other.least);
        self.most = self.most.saturating_add(other.most);
    }
}

/// The marked bytes in one kind of memory. Byte counts are the kernel's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PartMarks {
    /// Resident, the hugetlb pool not counted.
    pub resident: u64,
    /// Resident bytes that are mapped by transparent huge pages of any source.
    pub huge: u64,
    /// On pages of the hugetlb pool, of which the kernel counts no marks.
    pub pool: u64,
    /// Marked.
    pub marked: u64,
    /// Pages of the marked bytes, of both sizes: each is a TLB entry.
    pub pages: Entries,
    /// Huge pages among them.
    pub huge_pages: Entries,
}

impl PartMarks {
    /// Returns the marks of one mapping.
    fn of(usage: &MappingUsage, base: PageSize, huge: Option<PageSize>) -> Self {
        let mapped_huge = usage.anonymous_huge.saturating_add(usage.shmem_huge).saturating_add(usage.file_huge);
        let (resident, marked) = (usage.resident, usage.referenced);
        let huge_bytes = mapped_huge.min(resident);
        let mut marks = Self { resident, huge: huge_bytes, pool: usage.hugetlb, marked, ..Self::default() };
        let small_bytes = resident - huge_bytes;
        // Either as many marked bytes as possible are on huge pages, or as few as possible.
        let (most_huge, least_huge) = match huge {
            Some(huge) => {
                (marked.min(huge_bytes) / huge.bytes(), marked.saturating_sub(small_bytes).div_ceil(huge.bytes()))
            }
            None => (0, 0),
        };
        let huge_size = huge.map_or(0, PageSize::bytes);
        let total = |huge_pages: u64| {
            let rest = marked.saturating_sub(huge_pages.saturating_mul(huge_size));
            rest.div_ceil(base.bytes()).saturating_add(huge_pages)
        };
        marks.huge_pages = Entries { least: least_huge.min(most_huge), most: most_huge };
        marks.pages = Entries { least: total(most_huge), most: total(marks.huge_pages.least) };
        marks
    }
}

impl AddAssign for PartMarks {
    fn add_assign(&mut self, other: Self) {
        self.resident = self.resident.saturating_add(other.resident);
        self.huge = self.huge.saturating_add(other.huge);
        self.pool = self.pool.saturating_add(other.pool);
        self.marked = self.marked.saturating_add(other.marked);
        self.pages += other.pages;
        self.huge_pages += other.huge_pages;
    }
}

/// The marked bytes, by kind of memory. `huge` is the size of transparent huge pages.
pub fn count(usages: &[MappingUsage], base: PageSize, huge: Option<PageSize>) -> BTreeMap<Part, PartMarks> {
    let mut parts: BTreeMap<Part, PartMarks> = BTreeMap::new();
    for usage in usages {
        if let Some(part) = Part::of(&usage.mapping) {
            *parts.entry(part).or_default() += PartMarks::of(usage, base, huge);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use address_space::parse_smaps;
    use proptest::prelude::*;

    const BASE: u64 = 4 << 10;
    const HUGE: u64 = 2 << 20;

    fn size(bytes: u64) -> PageSize {
        PageSize::new(bytes).unwrap()
    }

    fn counted(text: &str) -> BTreeMap<Part, PartMarks> {
        count(&parse_smaps(text).unwrap(), size(BASE), Some(size(HUGE)))
    }

    #[test]
    fn each_mapping_has_its_kind() {
        let lines = "\
1000-2000 r-xp 0 0:1 5 /bin/program
2000-3000 r--p 0 0:1 5 /bin/program
3000-4000 rw-p 0 0:1 5 /bin/program
4000-5000 rw-p 0 0:0 0 
5000-6000 rw-p 0 0:0 0 [heap]
6000-7000 rw-s 0 0:1 5 /dev/shm/x
7000-8000 rw-p 0 0:0 0 [stack]
8000-9000 rwxp 0 0:0 0 
9000-a000 ---p 0 0:0 0 
a000-b000 r-xp 0 0:0 0 [vdso]
";
        let kinds: Vec<_> = parse_smaps(lines).unwrap().iter().map(|usage| Part::of(&usage.mapping)).collect();
        let expected = [
            Some(Part::Code),
            Some(Part::ReadOnlyData),
            Some(Part::Data),
            Some(Part::Anonymous),
            Some(Part::Heap),
            Some(Part::Shared),
            Some(Part::Stack),
            Some(Part::Code),
            None,
            None,
        ];
        assert_eq!(kinds, expected);
    }

    #[test]
    fn pages_of_both_sizes_are_told_apart_as_far_as_the_kernel_tells() {
        let mapping = |resident: u64, huge: u64, marked: u64| {
            let text = format!(
                "10000000-90000000 rw-p 0 0:0 0 \nRss: {resident} kB\nReferenced: {marked} kB\nAnonHugePages: {huge} kB\n"
            );
            counted(&text)[&Part::Anonymous]
        };
        let small = mapping(4000, 0, 40);
        assert_eq!((small.pages, small.huge_pages), (Entries { least: 10, most: 10 }, Entries::default()));
        let huge = mapping(8192, 8192, 4096);
        assert_eq!((huge.pages, huge.huge_pages), (Entries { least: 2, most: 2 }, Entries { least: 2, most: 2 }));
        // One huge page and a small one, or 513 small ones.
        let either = mapping(8192, 4096, 2052);
        assert_eq!((either.pages, either.huge_pages), (Entries { least: 2, most: 513 }, Entries { least: 0, most: 1 }));
        // All is marked: nothing is uncertain.
        let all = mapping(8192, 4096, 8192);
        assert_eq!((all.pages, all.huge_pages), (Entries { least: 1026, most: 1026 }, Entries { least: 2, most: 2 }));
    }

    #[test]
    fn pool_pages_are_kept_apart() {
        let parts =
            counted("10000000-90000000 r-xp 0 0:f 7 /anon_hugepage (deleted)\nRss: 0 kB\nPrivate_Hugetlb: 4096 kB\n");
        let code = parts[&Part::Code];
        assert_eq!((code.pool, code.resident, code.pages.most), (4 << 20, 0, 0));
    }

    proptest! {
        #[test]
        fn whatever_is_counted_has_sound_bounds(small in 0..4096_u64, huge in 0..8_u64, marked_small in 0..4096_u64, marked_huge in 0..8_u64) {
            let (marked_small, marked_huge) = (marked_small.min(small), marked_huge.min(huge));
            let usage = parse_smaps(&format!(
                "10000000-90000000 rw-p 0 0:0 0 \nRss: {} kB\nReferenced: {} kB\nAnonHugePages: {} kB\n",
                small * 4 + huge * 2048, marked_small * 4 + marked_huge * 2048, huge * 2048
            )).unwrap();
            let marks = count(&usage, size(BASE), Some(size(HUGE)))[&Part::Anonymous];
            let truth = marked_small + marked_huge;
            prop_assert!(marks.pages.least <= truth && truth <= marks.pages.most, "{truth} in {marks:?}");
            prop_assert!(marks.huge_pages.least <= marked_huge && marked_huge <= marks.huge_pages.most, "{marks:?}");
        }

        #[test]
        fn no_hostile_count_overflows(counts in prop::array::uniform4(0..u64::MAX >> 10)) {
            let [resident, referenced, huge, pool] = counts;
            let line = format!(
                "1000-2000 rw-p 0 0:0 0 \nRss: {resident} kB\nReferenced: {referenced} kB\nAnonHugePages: {huge} kB\nPrivate_Hugetlb: {pool} kB\n"
            );
            let usages = parse_smaps(&format!("{line}{}", line.replace("1000-2000", "2000-3000"))).unwrap();
            count(&usages, size(BASE), Some(size(HUGE)));
            count(&usages, size(BASE), None);
        }
    }
}
