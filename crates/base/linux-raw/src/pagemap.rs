//! Formats of `/proc/PID/pagemap`: the argument of `PAGEMAP_SCAN` and the 64-bit entries
//! (`Documentation/admin-guide/mm/pagemap.rst`).
//!
//! `PAGEMAP_SCAN` (Linux 6.7) returns ranges. On older kernels entries are read one by one; they do not show huge
//! pages.

use crate::{Errno, call};
use address_space::{Address, AddressRange, PageSize, RangeSet};
use linux_raw_sys::general as linux;
use linux_raw_sys::general::{PAGE_IS_FILE, PAGE_IS_HUGE, PAGE_IS_PFNZERO, PAGE_IS_PRESENT, PAGE_IS_SWAPPED};

/// `struct page_region` of `linux/fs.h`: a range that a scan has found.
pub use linux_raw_sys::general::page_region as Region;

/// `PAGEMAP_SCAN`, `_IOWR('f', 16, struct pm_scan_arg)` of `linux/fs.h`.
pub const PAGEMAP_SCAN: u32 = 3 << 30 | (size_of::<linux::pm_scan_arg>() as u32) << 16 | (b'f' as u32) << 8 | 16;

/// A region before it is filled in.
pub const EMPTY_REGION: Region = Region { start: 0, end: 0, categories: 0 };

/// The pages that a scan finds, by their categories (`PAGE_IS_*`).
#[derive(Clone, Copy)]
pub struct Wanted {
    /// A page has all these,
    all_of: u32,
    /// none of the following,
    none_of: u32,
    /// and, unless this is 0, at least one in this field.
    any_of: u32,
}

impl Wanted {
    const ANYTHING: Self = Self { all_of: 0, none_of: 0, any_of: 0 };
    /// Pages that are present.
    pub const PRESENT: Self = Self { all_of: PAGE_IS_PRESENT, ..Self::ANYTHING };
    /// Huge pages that are present, of the pool or transparent.
    pub const HUGE: Self = Self { all_of: PAGE_IS_HUGE | PAGE_IS_PRESENT, ..Self::ANYTHING };
    /// Huge pages without the huge page of zeros.
    pub const HUGE_WITH_CONTENTS: Self = Self { none_of: PAGE_IS_PFNZERO, ..Self::HUGE };
    /// The kernel's page of zeros, which maps memory that was only read.
    pub const ZERO_PAGE: Self = Self { all_of: PAGE_IS_PRESENT | PAGE_IS_PFNZERO, ..Self::ANYTHING };
    /// Pages that were ever touched: present, or swapped out.
    pub const TOUCHED: Self = Self { any_of: PAGE_IS_PRESENT | PAGE_IS_SWAPPED, ..Self::ANYTHING };
    /// Touched pages other than the kernel's page of zeros.
    pub const WITH_CONTENTS: Self = Self { none_of: PAGE_IS_PFNZERO, ..Self::TOUCHED };
    /// Touched pages that are not a file's: in a private mapping of a file, those that were written to.
    pub const CHANGED: Self = Self { none_of: PAGE_IS_FILE, ..Self::TOUCHED };
}

/// Calls `found` for each part of `range` that consists of wanted pages. `pagemap` is an open `/proc/PID/pagemap`;
/// `regions` is room for the kernel's answers, and its length the number of answers per system call.
///
/// # Errors
/// `ENOTTY` or `EINVAL` on kernels before 6.7; otherwise the kernel's.
pub fn scan(
    pagemap: i32,
    range: AddressRange,
    wanted: Wanted,
    regions: &mut [Region],
    mut found: impl FnMut(AddressRange),
) -> Result<(), Errno> {
    let mut start = range.start().0;
    while start < range.end().0 {
        let mut argument = linux::pm_scan_arg {
            size: size_of::<linux::pm_scan_arg>() as u64,
            flags: 0,
            start,
            end: range.end().0,
            walk_end: 0,
            vec: regions.as_mut_ptr() as u64,
            vec_len: regions.len() as u64,
            max_pages: 0,
            category_inverted: u64::from(wanted.none_of),
            category_mask: u64::from(wanted.all_of | wanted.none_of),
            category_anyof_mask: u64::from(wanted.any_of),
            return_mask: u64::from(PAGE_IS_PRESENT),
        };
        let arguments = [pagemap as usize, PAGEMAP_SCAN as usize, &raw mut argument as usize, 0, 0, 0];
        // SAFETY:
        // - the argument is a `struct pm_scan_arg` that has its size in it and lives until after the call.
        // - `vec` points to `vec_len` regions, which this function has borrowed exclusively.
        let count = unsafe { call(linux::__NR_ioctl, arguments) }?;
        for region in &regions[..count.min(regions.len())] {
            found(AddressRange::new(Address(region.start), Address(region.end)));
        }
        if argument.walk_end <= start {
            break;
        }
        start = argument.walk_end;
    }
    Ok(())
}

/// An entry of the pagemap: 64 bits for each page of the base size.
#[derive(Clone, Copy)]
pub struct Entry(u64);

impl Entry {
    /// Bytes of an entry.
    pub const BYTES: usize = 8;
    /// No other process has the page (Linux 4.2). Never set for the kernel's page of zeros.
    const EXCLUSIVE: u64 = 1 << 56;
    /// A guard page (`MADV_GUARD_INSTALL`); Linux 6.15, before that it looks swapped.
    const GUARD: u64 = 1 << 58;
    /// The page is one of a file, or shared anonymous memory.
    const OF_FILE: u64 = 1 << 61;
    const SWAPPED: u64 = 1 << 62;
    const PRESENT: u64 = 1 << 63;
    /// Number of the page frame, if the page is present; 0 for readers without CAP_SYS_ADMIN.
    const FRAME: u64 = (1 << 55) - 1;

    /// True if the page is present.
    pub fn is_present(self) -> bool {
        self.0 & Self::PRESENT != 0
    }

    /// True if the page is present, and another process has it, too, or it is the kernel's page of zeros.
    pub fn is_common(self) -> bool {
        self.is_present() && self.0 & Self::EXCLUSIVE == 0
    }

    /// The number of the page frame; `None` if the page is not present, or the kernel hides the number.
    pub fn frame(self) -> Option<u64> {
        Some(self.0 & Self::FRAME).filter(|&frame| frame != 0 && self.is_present())
    }

    /// True if the page is a guard page.
    pub fn is_guard(self) -> bool {
        self.0 & Self::GUARD != 0
    }

    /// True if the page was ever touched: it is present, or swapped out.
    pub fn is_touched(self) -> bool {
        self.0 & (Self::PRESENT | Self::SWAPPED) != 0
    }

    /// True for a touched page that is not a file's.
    pub fn is_changed(self) -> bool {
        self.0 & Self::SWAPPED != 0 || (self.is_present() && self.0 & Self::OF_FILE == 0)
    }
}

/// The pages of `range` whose entries fit. `read` reads from the pagemap at a byte offset and returns the number of bytes;
/// less than one entry ends the search. `buffer` has room for at least one entry.
///
/// # Errors
/// Those of `read`.
pub fn entries_that<E>(
    range: AddressRange,
    base_page: PageSize,
    buffer: &mut [u8],
    mut read: impl FnMut(&mut [u8], u64) -> Result<usize, E>,
    mut fits: impl FnMut(Entry) -> bool,
) -> Result<RangeSet, E> {
    let mut found = RangeSet::new();
    let page = base_page.bytes();
    let most = (buffer.len() / Entry::BYTES) as u64;
    let mut at = range.start();
    while at < range.end() {
        let bytes = ((range.end() - at) / page).clamp(1, most) as usize * Entry::BYTES;
        let read = read(&mut buffer[..bytes], at.0 / page * Entry::BYTES as u64)?;
        if read < Entry::BYTES {
            break;
        }
        for entry in buffer[..read].chunks_exact(Entry::BYTES) {
            if fits(Entry(u64::from_ne_bytes(entry.try_into().unwrap_or_default()))) {
                found.insert(AddressRange::sized(at, page));
            }
            at = at + page;
        }
    }
    Ok(found)
}
