//! `/proc/PID/pagemap`: which pages are present and which are huge.
//!
//! Uses `PAGEMAP_SCAN` (Linux 6.7, `Documentation/admin-guide/mm/pagemap.rst`), which answers by ranges. Before, entries
//! are read one by one, and huge pages cannot be told; [`Pagemap::huge`] says so by an error.

use address_space::{Address, AddressRange, PageSize, RangeSet};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

const PAGE_IS_FILE: u64 = 1 << 2;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;
const PAGE_IS_PFNZERO: u64 = 1 << 5;
const PAGE_IS_HUGE: u64 = 1 << 6;

/// In an entry: the page is present / is in swap.
const ENTRY_PRESENT: u64 = 1 << 63;
const ENTRY_SWAPPED: u64 = 1 << 62;
/// In an entry: the page is one of a file, or shared anonymous memory.
const ENTRY_OF_FILE: u64 = 1 << 61;

/// Regions that one call of the ioctl may return.
const REGIONS: usize = 128;

/// Which pages a scan shall find.
#[derive(Clone, Copy, Default)]
struct Wanted {
    /// Those that are all of this,
    all_of: u64,
    /// and nothing of this,
    none_of: u64,
    /// and something of this, where this is not 0.
    any_of: u64,
}

/// What was ever touched.
const TOUCHED: Wanted = Wanted { all_of: 0, none_of: 0, any_of: PAGE_IS_PRESENT | PAGE_IS_SWAPPED };

/// `struct page_region` of `linux/fs.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// `struct pm_scan_arg` of `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

mod ioctl {
    #![allow(missing_docs, reason = "the macro writes a documentation line of its own that the lint does not see")]
    nix::ioctl_readwrite!(pagemap_scan, b'f', 16, super::ScanArgument);
}

/// The pagemap of one process.
pub struct Pagemap {
    file: File,
    base_page: PageSize,
}

impl Pagemap {
    /// Opens the pagemap of a process.
    ///
    /// # Errors
    /// The kernel's: no such process, no permission, or no `/proc`.
    pub fn open(pid: i32, base_page: PageSize) -> io::Result<Self> {
        Ok(Self { file: File::open(format!("/proc/{pid}/pagemap"))?, base_page })
    }

    /// The parts of `range` that are mapped by huge pages, of the pool or transparent.
    ///
    /// # Errors
    /// `ENOTTY` or `EINVAL` on kernels before 6.7; else the kernel's.
    pub fn huge(&self, range: AddressRange) -> io::Result<RangeSet> {
        self.scan(range, Wanted { all_of: PAGE_IS_HUGE | PAGE_IS_PRESENT, ..Wanted::default() })
    }

    /// The pages of `range`, a private mapping of a file, that no longer are the file's: somebody has written to them.
    ///
    /// # Errors
    /// The kernel's.
    pub fn changed(&self, range: AddressRange) -> io::Result<RangeSet> {
        self.scan(range, Wanted { none_of: PAGE_IS_FILE, ..TOUCHED }).or_else(|_| self.changed_by_entries(range))
    }

    fn changed_by_entries(&self, range: AddressRange) -> io::Result<RangeSet> {
        self.read_entries_that(range, |entry| {
            entry & ENTRY_SWAPPED != 0 || (entry & ENTRY_PRESENT != 0 && entry & ENTRY_OF_FILE == 0)
        })
    }

    /// The pages of `range` that have been touched: present, or swapped out.
    ///
    /// # Errors
    /// The kernel's.
    pub fn touched(&self, range: AddressRange) -> io::Result<RangeSet> {
        self.scan(range, TOUCHED).or_else(|_| self.read_entries(range))
    }

    /// Bytes of `range` that are resident. Where the kernel tells, its page of zeros that stands for memory which was
    /// only read is none.
    ///
    /// # Errors
    /// The kernel's.
    pub fn resident(&self, range: AddressRange) -> io::Result<u64> {
        let scanned = |all_of| {
            let mut bytes = 0;
            let wanted = Wanted { all_of, ..Wanted::default() };
            self.scan_each(range, wanted, |found| bytes += found.len()).map(|()| bytes)
        };
        match scanned(PAGE_IS_PRESENT) {
            Ok(present) => Ok(present.saturating_sub(scanned(PAGE_IS_PRESENT | PAGE_IS_PFNZERO)?)),
            Err(_) => {
                let there = self.read_entries_that(range, |entry| entry & ENTRY_PRESENT != 0)?;
                Ok(there.iter().map(AddressRange::len).sum())
            }
        }
    }

    fn scan(&self, range: AddressRange, wanted: Wanted) -> io::Result<RangeSet> {
        let mut found = RangeSet::new();
        self.scan_each(range, wanted, |part| found.insert(part))?;
        Ok(found)
    }

    fn scan_each(&self, range: AddressRange, wanted: Wanted, mut found: impl FnMut(AddressRange)) -> io::Result<()> {
        let mut regions = [Region::default(); REGIONS];
        let mut start = range.start().0;
        while start < range.end().0 {
            let mut argument = ScanArgument {
                size: size_of::<ScanArgument>() as u64,
                start,
                end: range.end().0,
                vec: regions.as_mut_ptr() as u64,
                vec_len: REGIONS as u64,
                category_inverted: wanted.none_of,
                category_mask: wanted.all_of | wanted.none_of,
                category_anyof_mask: wanted.any_of,
                return_mask: PAGE_IS_PRESENT,
                ..ScanArgument::default()
            };
            // SAFETY:
            // - `argument` has the layout of `struct pm_scan_arg` and its size is in it.
            // - `vec` points to `vec_len` regions that live until after the call and that nobody else uses.
            let count = unsafe { ioctl::pagemap_scan(self.file.as_raw_fd(), &raw mut argument) }?;
            for region in &regions[..(count as usize).min(REGIONS)] {
                found(AddressRange::new(Address(region.start), Address(region.end)));
            }
            if argument.walk_end <= start {
                break;
            }
            start = argument.walk_end;
        }
        Ok(())
    }

    fn read_entries(&self, range: AddressRange) -> io::Result<RangeSet> {
        self.read_entries_that(range, |entry| entry & (ENTRY_PRESENT | ENTRY_SWAPPED) != 0)
    }

    fn read_entries_that(&self, range: AddressRange, fits: impl Fn(u64) -> bool) -> io::Result<RangeSet> {
        const ENTRIES: u64 = 8192;
        let mut found = RangeSet::new();
        let page = self.base_page.bytes();
        let mut at = range.start();
        while at < range.end() {
            let pages = ((range.end() - at) / page).min(ENTRIES);
            let mut bytes = vec![0u8; (pages * 8) as usize];
            self.file.read_exact_at(&mut bytes, at.0 / page * 8)?;
            for (index, entry) in bytes.chunks_exact(8).enumerate() {
                let entry = u64::from_ne_bytes(entry.try_into().unwrap_or_default());
                if fits(entry) {
                    found.insert(AddressRange::sized(at + index as u64 * page, page));
                }
            }
            at = at + pages.max(1) * page;
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base_page() -> PageSize {
        let size = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).unwrap().unwrap();
        PageSize::new(size as u64).unwrap()
    }

    #[test]
    fn both_ways_of_asking_agree_on_what_is_changed() {
        let page = base_page().bytes();
        let file = File::open("/proc/self/exe").unwrap();
        let pages = file.metadata().unwrap().len() / page;
        assert!(pages > 8);
        let protection = nix::sys::mman::ProtFlags::PROT_READ | nix::sys::mman::ProtFlags::PROT_WRITE;
        let length = std::num::NonZeroUsize::new((pages * page) as usize).unwrap();
        let flags = nix::sys::mman::MapFlags::MAP_PRIVATE;
        // SAFETY:
        // - a mapping of its own, which nobody else knows of.
        let at = unsafe { nix::sys::mman::mmap(None, length, protection, flags, &file, 0) }.unwrap();
        let memory = at.as_ptr().cast::<u8>();
        for number in [0, 1, 5] {
            // SAFETY:
            // - the page lies in the mapping, which is readable and writable.
            unsafe { memory.add(number * page as usize).write_volatile(1) };
        }
        // SAFETY:
        // - as above; it is read only, and stays the file's.
        unsafe { memory.add(3 * page as usize).read_volatile() };
        let range = AddressRange::sized(Address(memory as u64), pages * page);
        let pagemap = Pagemap::open(std::process::id() as i32, base_page()).unwrap();
        let expected: RangeSet =
            [0, 1, 5].map(|n| AddressRange::sized(range.start() + n * page, page)).into_iter().collect();
        assert_eq!(pagemap.changed(range).unwrap(), expected);
        assert_eq!(pagemap.changed_by_entries(range).unwrap(), expected);
        // SAFETY:
        // - the mapping of this test, used no more.
        unsafe { nix::sys::mman::munmap(at, length.get()) }.unwrap();
    }

    #[test]
    fn both_ways_of_asking_agree_on_what_is_touched() {
        let page = base_page().bytes() as usize;
        let mut memory = vec![0u8; 64 * page];
        memory.iter_mut().step_by(7 * page).for_each(|byte| *byte = 1);
        let start = Address(std::hint::black_box(&memory).as_ptr() as u64).align_up(base_page()).unwrap();
        let range = AddressRange::sized(start, 60 * page as u64);
        let pagemap = Pagemap::open(std::process::id() as i32, base_page()).unwrap();
        let entries = pagemap.read_entries(range).unwrap();
        assert!(!entries.is_empty());
        assert_eq!(pagemap.touched(range).unwrap(), entries);
        let all: u64 = entries.iter().map(AddressRange::len).sum();
        assert!((1..=all).contains(&pagemap.resident(range).unwrap()));
    }
}
