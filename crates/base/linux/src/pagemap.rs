//! `/proc/PID/pagemap`: which pages are present and which are huge.
//!
//! Uses `PAGEMAP_SCAN` (Linux 6.7, `Documentation/admin-guide/mm/pagemap.rst`), which returns ranges. On older kernels
//! entries are read one by one and do not show huge pages; [`Pagemap::huge`] fails there.

use crate::text::open_of_process;
use crate::watch::watched;
use address_space::{Address, AddressRange, PageSize, RangeSet};
pub use linux_raw::pagemap::PAGEMAP_SCAN;
use linux_raw::pagemap::{EMPTY_REGION, Entry, Wanted, entries_that, scan};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

/// Regions that one call may return.
const REGIONS: usize = 128;
/// Most entries read at once.
const ENTRIES: u64 = 8192;

/// Pages of private anonymous memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrivatePages {
    /// In memory.
    pub present: u64,
    /// In memory, and in the page tables of another process, too.
    pub common: u64,
    /// Swapped out.
    pub swapped: u64,
    /// Guard pages (`MADV_GUARD_INSTALL`). Linux 6.13 and 6.14 report them as swapped.
    pub guards: u64,
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
        Ok(Self { file: open_of_process(format!("/proc/{pid}/pagemap"))?, base_page })
    }

    /// Returns the parts of `range` that are mapped by huge pages, of the pool or transparent.
    ///
    /// # Errors
    /// `ENOTTY` or `EINVAL` on kernels before 6.7; otherwise the kernel's.
    pub fn huge(&self, range: AddressRange) -> io::Result<RangeSet> {
        self.scan(range, Wanted::HUGE)
    }

    /// Returns the pages of `range`, a private mapping of a file, that have been written to and are no longer the
    /// file's.
    ///
    /// # Errors
    /// The kernel's.
    pub fn changed(&self, range: AddressRange) -> io::Result<RangeSet> {
        self.scan(range, Wanted::CHANGED).or_else(|_| self.changed_by_entries(range))
    }

    fn changed_by_entries(&self, range: AddressRange) -> io::Result<RangeSet> {
        self.entries_that(range, Entry::is_changed)
    }

    /// Returns the pages of `range` that have been touched: present, or swapped out.
    ///
    /// # Errors
    /// The kernel's.
    pub fn touched(&self, range: AddressRange) -> io::Result<RangeSet> {
        self.scan(range, Wanted::TOUCHED).or_else(|_| self.read_entries(range))
    }

    /// Returns the pages of `range` that are present or swapped out. If the kernel reports it (Linux 6.7), the zero
    /// page, which maps memory that was only read, is omitted.
    ///
    /// # Errors
    /// The kernel's.
    pub fn with_contents(&self, range: AddressRange) -> io::Result<RangeSet> {
        self.scan(range, Wanted::WITH_CONTENTS).or_else(|_| self.read_entries(range))
    }

    /// Returns the number of bytes of `range` that are resident. If the kernel reports it (Linux 6.7), the zero page,
    /// which maps memory that was only read, does not count.
    ///
    /// # Errors
    /// The kernel's.
    pub fn resident(&self, range: AddressRange) -> io::Result<u64> {
        let scanned = |wanted| {
            let mut bytes = 0;
            self.scan_each(range, wanted, |found| bytes += found.len()).map(|()| bytes)
        };
        match scanned(Wanted::PRESENT) {
            Ok(present) => Ok(present.saturating_sub(scanned(Wanted::ZERO_PAGE)?)),
            Err(_) => {
                let there = self.entries_that(range, Entry::is_present)?;
                Ok(there.iter().map(AddressRange::len).sum())
            }
        }
    }

    /// Counts the pages of `range`, which is private anonymous memory. The zero page, which backs memory that was only read, is
    /// left out if the kernel reports it (Linux 6.7), or the numbers of page frames (CAP_SYS_ADMIN). Otherwise it counts as
    /// common.
    ///
    /// # Errors
    /// The kernel's.
    pub fn private_pages(&self, range: AddressRange) -> io::Result<PrivatePages> {
        let mut found = PrivatePages::default();
        let page = self.base_page.bytes();
        self.entries_that(range, |entry| {
            match entry {
                _ if entry.is_guard() => found.guards += page,
                _ if entry.is_present() => found.present += page,
                _ if entry.is_touched() => found.swapped += page,
                _ => {}
            }
            found.common += if entry.is_common() { page } else { 0 };
            false
        })?;
        if found.common > 0 {
            let mut zeros = 0;
            let scanned = self.scan_each(range, Wanted::ZERO_PAGE, |part| zeros += part.len());
            if scanned.is_err() {
                zeros = self.zeros_by_frame(range).unwrap_or(0);
            }
            found.present = found.present.saturating_sub(zeros);
            found.common = found.common.saturating_sub(zeros);
        }
        Ok(found)
    }

    /// Returns the number of bytes of `range` that the zero page maps; `None` if the kernel hides its frame.
    fn zeros_by_frame(&self, range: AddressRange) -> Option<u64> {
        let zero = zero_frame(self.base_page)?;
        let found = self.entries_that(range, |entry| entry.is_common() && entry.frame() == Some(zero));
        Some(found.ok()?.bytes())
    }

    /// Returns the parts of `range`, which is private anonymous memory, that are mapped by huge pages other than the huge page
    /// of zeros.
    ///
    /// # Errors
    /// `ENOTTY` or `EINVAL` on kernels before 6.7; otherwise the kernel's.
    pub fn huge_private(&self, range: AddressRange) -> io::Result<RangeSet> {
        self.scan(range, Wanted::HUGE_WITH_CONTENTS)
    }

    fn scan(&self, range: AddressRange, wanted: Wanted) -> io::Result<RangeSet> {
        let mut found = RangeSet::new();
        self.scan_each(range, wanted, |part| found.insert(part))?;
        Ok(found)
    }

    fn scan_each(&self, range: AddressRange, wanted: Wanted, found: impl FnMut(AddressRange)) -> io::Result<()> {
        let read = || scan(self.file.as_raw_fd(), range, wanted, &mut [EMPTY_REGION; REGIONS], found);
        watched(|| format!("reading the page tables of {range}"), read).map_err(io::Error::from_raw_os_error)
    }

    fn read_entries(&self, range: AddressRange) -> io::Result<RangeSet> {
        self.entries_that(range, Entry::is_touched)
    }

    fn entries_that(&self, range: AddressRange, fits: impl FnMut(Entry) -> bool) -> io::Result<RangeSet> {
        let pages = (range.len() / self.base_page.bytes()).clamp(1, ENTRIES);
        let mut buffer = vec![0; pages as usize * Entry::BYTES];
        let read = |into: &mut [u8], offset| self.file.read_exact_at(into, offset).map(|()| into.len());
        entries_that(range, self.base_page, &mut buffer, read, fits)
    }
}

/// Returns the frame of the zero page: of a page of this process that was only read. x86-64 and AArch64 have one zero page.
fn zero_frame(base_page: PageSize) -> Option<u64> {
    static FOUND: OnceLock<Option<u64>> = OnceLock::new();
    let find = || {
        let length = NonZeroUsize::new(usize::try_from(base_page.bytes()).ok()?)?;
        // SAFETY:
        // - a new mapping, which nothing else knows of.
        let page = unsafe { mmap_anonymous(None, length, ProtFlags::PROT_READ, MapFlags::MAP_PRIVATE) }.ok()?;
        // SAFETY:
        // - the page is mapped and readable.
        unsafe { page.cast::<u8>().read_volatile() };
        let mut frame = None;
        let range = AddressRange::sized(Address(page.as_ptr() as u64), base_page.bytes());
        let own = Pagemap::open(std::process::id().cast_signed(), base_page);
        let look = |entry: Entry| {
            frame = entry.frame();
            false
        };
        let looked = own.and_then(|own| own.entries_that(range, look));
        // SAFETY:
        // - the mapping of this function, to which no reference exists.
        let _ = unsafe { munmap(page, length.get()) };
        looked.ok().and(frame)
    };
    *FOUND.get_or_init(find)
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
        // - a new mapping, which nothing else knows of.
        let at = unsafe { nix::sys::mman::mmap(None, length, protection, flags, &file, 0) }.unwrap();
        let memory = at.as_ptr().cast::<u8>();
        for number in [0, 1, 5] {
            // SAFETY:
            // - the page is in the mapping, which is readable and writable.
            unsafe { memory.add(number * page as usize).write_volatile(1) };
        }
        // SAFETY:
        // - as above; the page is only read, and stays the file's.
        unsafe { memory.add(3 * page as usize).read_volatile() };
        let range = AddressRange::sized(Address(memory as u64), pages * page);
        let pagemap = Pagemap::open(std::process::id() as i32, base_page()).unwrap();
        let expected: RangeSet =
            [0, 1, 5].map(|n| AddressRange::sized(range.start() + n * page, page)).into_iter().collect();
        assert_eq!(pagemap.changed(range).unwrap(), expected);
        assert_eq!(pagemap.changed_by_entries(range).unwrap(), expected);
        // SAFETY:
        // - the mapping of this test, which is not used afterwards.
        unsafe { nix::sys::mman::munmap(at, length.get()) }.unwrap();
    }

    #[test]
    fn private_pages_are_counted_by_what_they_hold() {
        let page = base_page().bytes();
        let length = std::num::NonZeroUsize::new(8 * page as usize).unwrap();
        let (protection, flags) = (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE);
        // SAFETY:
        // - a new mapping, which nothing else knows of.
        let at = unsafe { mmap_anonymous(None, length, protection, flags) }.unwrap();
        let memory = at.as_ptr().cast::<u8>();
        // SAFETY:
        // - the pages are part of the mapping, which is readable and writable.
        unsafe {
            memory.write_volatile(1);
            memory.add(2 * page as usize).write_volatile(1);
            memory.add(5 * page as usize).read_volatile();
        }
        let range = AddressRange::sized(Address(memory as u64), 8 * page);
        let pagemap = Pagemap::open(std::process::id() as i32, base_page()).unwrap();
        let zero_is_known = pagemap.huge_private(range).is_ok() || pagemap.zeros_by_frame(range).is_some();
        let zeros = if zero_is_known { 0 } else { page };
        let expected = PrivatePages { present: 2 * page + zeros, common: zeros, ..PrivatePages::default() };
        assert_eq!(pagemap.private_pages(range).unwrap(), expected);
        // As before Linux 6.7. Without CAP_SYS_ADMIN the kernel hides the frame.
        let is_told = nix::unistd::geteuid().is_root();
        assert_eq!(pagemap.zeros_by_frame(range).filter(|_| is_told), is_told.then_some(page));
        // SAFETY:
        // - the mapping of this test, which is not used afterwards.
        unsafe { munmap(at, length.get()) }.unwrap();
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
