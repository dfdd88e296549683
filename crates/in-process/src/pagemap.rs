//! `/proc/self/pagemap`: which pages are present and which are huge (`Documentation/admin-guide/mm/pagemap.rst`).

use crate::calls::{self, Errno};
use crate::files::File;
use address_space::{Address, AddressRange, PageSize, RangeSet};
use alloc::vec;
use linux_raw_sys::general::{PAGE_IS_FILE, PAGE_IS_HUGE, PAGE_IS_PRESENT, PAGE_IS_SWAPPED, page_region, pm_scan_arg};

/// `PAGEMAP_SCAN`, `_IOWR('f', 16, struct pm_scan_arg)` of `linux/fs.h` (Linux 6.7).
const PAGEMAP_SCAN: u32 = 3 << 30 | (size_of::<pm_scan_arg>() as u32) << 16 | (b'f' as u32) << 8 | 16;
/// In an entry: the page is present / is in swap.
const ENTRY_PRESENT: u64 = 1 << 63;
const ENTRY_SWAPPED: u64 = 1 << 62;
/// In an entry: the page is one of a file, or shared anonymous memory.
const ENTRY_OF_FILE: u64 = 1 << 61;
/// Regions that one call may return.
const REGIONS: usize = 256;
/// Entries read at once.
const ENTRIES: u64 = 4096;

/// The pagemap of this process.
pub struct Pagemap {
    file: File,
    base_page: PageSize,
}

impl Pagemap {
    /// Opens it.
    ///
    /// # Errors
    /// The kernel's: no `/proc`, or no permission.
    pub fn open(base_page: PageSize) -> Result<Self, Errno> {
        Ok(Self { file: File::open(c"/proc/self/pagemap")?, base_page })
    }

    /// The parts of `range` that are mapped by huge pages.
    ///
    /// # Errors
    /// The kernel's; kernels before 6.7 cannot tell.
    pub fn huge(&self, range: AddressRange) -> Result<RangeSet, Errno> {
        self.scan(range, u64::from(PAGE_IS_HUGE | PAGE_IS_PRESENT), 0)
    }

    /// The pages of `range` that have been touched: present, or swapped out.
    ///
    /// # Errors
    /// The kernel's.
    pub fn touched(&self, range: AddressRange) -> Result<RangeSet, Errno> {
        let touched = |entry| entry & (ENTRY_PRESENT | ENTRY_SWAPPED) != 0;
        self.scan(range, 0, u64::from(PAGE_IS_PRESENT | PAGE_IS_SWAPPED)).or_else(|_| self.entries_that(range, touched))
    }

    /// The pages of `range`, a private mapping of a file, that no longer are the file's: somebody has written to them.
    ///
    /// # Errors
    /// The kernel's.
    pub fn changed(&self, range: AddressRange) -> Result<RangeSet, Errno> {
        let Ok(mut there) = self.scan(range, 0, u64::from(PAGE_IS_PRESENT | PAGE_IS_SWAPPED)) else {
            let changed =
                |entry| entry & ENTRY_SWAPPED != 0 || (entry & ENTRY_PRESENT != 0 && entry & ENTRY_OF_FILE == 0);
            return self.entries_that(range, changed);
        };
        let of_file = self.scan(range, u64::from(PAGE_IS_FILE | PAGE_IS_PRESENT), 0)?;
        of_file.iter().for_each(|file| there.remove(file));
        Ok(there)
    }

    fn scan(&self, range: AddressRange, all_of: u64, any_of: u64) -> Result<RangeSet, Errno> {
        let mut found = RangeSet::new();
        let mut regions = vec![page_region { start: 0, end: 0, categories: 0 }; REGIONS];
        let mut start = range.start().0;
        while start < range.end().0 {
            let mut argument = pm_scan_arg {
                size: size_of::<pm_scan_arg>() as u64,
                flags: 0,
                start,
                end: range.end().0,
                walk_end: 0,
                vec: regions.as_mut_ptr() as u64,
                vec_len: REGIONS as u64,
                max_pages: 0,
                category_inverted: 0,
                category_mask: all_of,
                category_anyof_mask: any_of,
                return_mask: u64::from(PAGE_IS_PRESENT),
            };
            // SAFETY:
            // - the argument is what the request wants, and `vec` points to `vec_len` regions that nobody else uses.
            let count = unsafe { calls::ioctl(self.file.descriptor(), PAGEMAP_SCAN, &mut argument) }?;
            for region in &regions[..count.min(REGIONS)] {
                found.insert(AddressRange::new(Address(region.start), Address(region.end)));
            }
            if argument.walk_end <= start {
                break;
            }
            start = argument.walk_end;
        }
        Ok(found)
    }

    fn entries_that(&self, range: AddressRange, fits: impl Fn(u64) -> bool) -> Result<RangeSet, Errno> {
        let mut found = RangeSet::new();
        let page = self.base_page.bytes();
        let mut buffer = vec![0u8; (ENTRIES * 8) as usize];
        let mut at = range.start();
        while at < range.end() {
            let wanted = (8 * ((range.end() - at) / page).clamp(1, ENTRIES)) as usize;
            let read = calls::read_at(self.file.descriptor(), &mut buffer[..wanted], at.0 / page * 8)?;
            if read < 8 {
                break;
            }
            for entry in buffer[..read].chunks_exact(8) {
                let entry = u64::from_ne_bytes(entry.try_into().unwrap_or_default());
                if fits(entry) {
                    found.insert(AddressRange::sized(at, page));
                }
                at = at + page;
            }
        }
        Ok(found)
    }
}
