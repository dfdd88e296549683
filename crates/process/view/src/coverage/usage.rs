//! Byte counts of the kernel.

use address_space::{MappingUsage, PageSize};
use serde::Serialize;
use std::fmt;
use std::ops::AddAssign;

/// The kinds of huge pages that the kernel counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HugeKind {
    /// A page of the hugetlb pool (`Private_Hugetlb`, `Shared_Hugetlb`).
    Hugetlb,
    /// An anonymous transparent huge page (`AnonHugePages`).
    Thp,
    /// A huge page of a tmpfs file or of shared memory (`ShmemPmdMapped`).
    Tmpfs,
    /// A huge page of the page cache of another file system (`FilePmdMapped`).
    File,
}

impl fmt::Display for HugeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hugetlb => "hugetlb",
            Self::Thp => "thp",
            Self::Tmpfs => "tmpfs",
            Self::File => "file",
        })
    }
}

/// Bytes on huge pages of one kind and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HugeBytes {
    /// The kind of page.
    pub kind: HugeKind,
    /// The page's size, if the kernel reports it.
    pub page_size: Option<PageSize>,
    /// Bytes of the range on such pages.
    pub bytes: u64,
}

/// The kernel's counts for some memory, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Bytes of addresses.
    pub mapped: u64,
    /// Bytes that are in memory now, on pages of any size.
    pub resident: u64,
    /// Bytes that are on huge pages, by kind and size.
    pub huge: Vec<HugeBytes>,
}

impl Usage {
    /// Returns the counts of one mapping in smaps. `thp` is the size of transparent huge pages on this machine.
    pub fn of(mapping: &MappingUsage, thp: Option<PageSize>) -> Self {
        let mut usage =
            Self { mapped: mapping.mapping.range.len(), resident: mapping.resident_with_hugetlb(), huge: Vec::new() };
        usage.add_huge(HugeKind::Hugetlb, mapping.kernel_page_size, mapping.hugetlb);
        usage.add_huge(HugeKind::Thp, thp, mapping.anonymous_huge);
        usage.add_huge(HugeKind::Tmpfs, thp, mapping.shmem_huge);
        usage.add_huge(HugeKind::File, thp, mapping.file_huge);
        usage
    }

    /// Bytes on huge pages of any kind.
    pub fn huge_bytes(&self) -> u64 {
        self.huge.iter().map(|huge| huge.bytes).sum()
    }

    fn add_huge(&mut self, kind: HugeKind, page_size: Option<PageSize>, bytes: u64) {
        if bytes == 0 {
            return;
        }
        match self.huge.iter_mut().find(|huge| (huge.kind, huge.page_size) == (kind, page_size)) {
            Some(huge) => huge.bytes += bytes,
            None => {
                self.huge.push(HugeBytes { kind, page_size, bytes });
                self.huge.sort_by_key(|huge| (huge.kind, huge.page_size));
            }
        }
    }
}

impl AddAssign<&Usage> for Usage {
    fn add_assign(&mut self, other: &Usage) {
        self.mapped += other.mapped;
        self.resident += other.resident;
        for huge in &other.huge {
            self.add_huge(huge.kind, huge.page_size, huge.bytes);
        }
    }
}
