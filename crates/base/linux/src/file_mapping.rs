//! Mappings of files in this process. Only system calls read through them, because a direct read is fatal if the file
//! has been truncated. They serve to ask the kernel which pages would map a file, to keep its pages mapped, and to fill
//! files of hugetlbfs, which has no `write`.

use crate::constants::{MADV_COLLAPSE, MADV_POPULATE_READ, MADV_POPULATE_WRITE};
use crate::pages::base_page;
use address_space::{Address, AddressRange, PageSize};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Most places that one `process_vm_readv` takes (`UIO_MAXIOV`, `linux/uio.h`).
const MOST_PLACES: usize = 1024;

/// A shared mapping of a part of a file, placed so that huge pages can map it. Unmapped when dropped.
#[derive(Debug)]
pub struct FileMapping {
    /// The reserved address range, which contains the mapping.
    reserved: (usize, usize),
    mapping: (usize, usize),
}

impl FileMapping {
    /// Maps `length` bytes at `offset` for reading, at an address that agrees with the offset modulo `huge`.
    ///
    /// # Errors
    /// The kernel's; `EINVAL` for an offset or length that is not a multiple of `huge`.
    pub fn readable(file: &File, offset: u64, length: u64, huge: PageSize) -> io::Result<Self> {
        Self::new(file, offset, length, huge, libc::PROT_READ)
    }

    /// Like [`FileMapping::readable`], but executable too, where the file and its mount allow that: before Linux 6.12 the
    /// kernel collapses pages of a file on disk in executable mappings only.
    ///
    /// # Errors
    /// As [`FileMapping::readable`].
    pub fn executable_if_allowed(file: &File, offset: u64, length: u64, huge: PageSize) -> io::Result<Self> {
        Self::new(file, offset, length, huge, libc::PROT_READ | libc::PROT_EXEC)
            .or_else(|_| Self::readable(file, offset, length, huge))
    }

    fn new(file: &File, offset: u64, length: u64, huge: PageSize, protection: i32) -> io::Result<Self> {
        let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
        if !offset.is_multiple_of(huge.bytes()) || !length.is_multiple_of(huge.bytes()) || length == 0 {
            return Err(invalid());
        }
        let length = usize::try_from(length).map_err(|_| invalid())?;
        let position = libc::off_t::try_from(offset).map_err(|_| invalid())?;
        let huge = usize::try_from(huge.bytes()).map_err(|_| invalid())?;
        let room = length.checked_add(huge).ok_or_else(invalid)?;
        // SAFETY:
        // - no address is given, so that the kernel chooses a free one.
        let reserved = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            libc::mmap(std::ptr::null_mut(), room, libc::PROT_NONE, flags, -1, 0)
        };
        if reserved == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mut mapping = Self { reserved: (reserved as usize, room), mapping: (0, 0) };
        let place = (reserved as usize).next_multiple_of(huge);
        // SAFETY:
        // - `place` to `place + length` is in the new reservation, which has no other user.
        let placed = unsafe {
            let flags = libc::MAP_SHARED | libc::MAP_FIXED;
            libc::mmap(place as *mut libc::c_void, length, protection, flags, file.as_raw_fd(), position)
        };
        if placed == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            // The call may have removed the reservation there, and another thread may have mapped something in its
            // place.
            mapping.reserved = (0, 0);
            // SAFETY:
            // - the reservation was made above, and only this function uses it.
            unsafe { release_around(reserved as usize, room, place, length) };
            return Err(error);
        }
        mapping.mapping = (place, length);
        Ok(mapping)
    }

    /// The address range of the mapping.
    pub fn range(&self) -> AddressRange {
        AddressRange::sized(Address(self.mapping.0 as u64), self.mapping.1 as u64)
    }

    /// Makes every page of the mapping present.
    ///
    /// # Errors
    /// `EINVAL` on Linux before 5.14; otherwise why a page cannot be allocated.
    pub fn populate(&self) -> io::Result<()> {
        self.advise(MADV_POPULATE_READ)
    }

    /// Collapses base pages into huge pages, as far as the kernel has any.
    ///
    /// # Errors
    /// `EINVAL` on Linux before 6.1; `EAGAIN` or `ENOMEM` where memory is fragmented or short.
    pub fn collapse(&self) -> io::Result<()> {
        self.advise(MADV_COLLAPSE)
    }

    /// Makes the page cache read whole huge pages if a page of this mapping is missing (`MADV_HUGEPAGE`).
    ///
    /// # Errors
    /// `EINVAL` on a kernel without transparent huge pages.
    pub fn prefer_huge(&self) -> io::Result<()> {
        self.advise(libc::MADV_HUGEPAGE)
    }

    /// Ends read-ahead for this mapping (`MADV_RANDOM`): a page that is missing is read alone.
    ///
    /// # Errors
    /// The kernel's.
    pub fn expect_random_reads(&self) -> io::Result<()> {
        self.advise(libc::MADV_RANDOM)
    }

    /// Makes the pages of a part of the mapping present; `at` is the part's distance from the start, in bytes.
    ///
    /// # Errors
    /// `EFAULT` if the file was truncated or cannot be read; `EINVAL` on Linux before 5.14, and for a part outside of
    /// the mapping.
    pub fn populate_part(&self, at: u64, length: u64) -> io::Result<()> {
        self.advise_part(at, length, MADV_POPULATE_READ)
    }

    /// Makes the pages at `places` present, distances from the start in bytes, by one call for many pages. A page that
    /// the file has lost, or that cannot be read, stays untouched.
    ///
    /// # Errors
    /// `EINVAL` where the process may not call process_vm_readv(2), on Linux before 5.14; for a place beyond the mapping.
    pub fn touch(&self, places: &[u64]) -> io::Result<()> {
        let (mut left, mut reads) = (places, true);
        while !left.is_empty() {
            let batch = &left[..left.len().min(MOST_PLACES)];
            let done = if reads { self.read_a_byte_at_each(batch)? } else { None };
            reads = done.is_some();
            left = &left[done.unwrap_or(0)..];
            if done == Some(batch.len()) {
                continue;
            }
            let Some((place, others)) = left.split_first() else { return Ok(()) };
            let page = base_page().bytes();
            match self.populate_part(place / page * page, page) {
                Err(error) if error.raw_os_error() != Some(libc::EFAULT) => return Err(error),
                _ => left = others,
            }
        }
        Ok(())
    }

    /// Number of places at which a byte was read, up to the first that cannot be read; `None` where this process may not
    /// make the call.
    fn read_a_byte_at_each(&self, places: &[u64]) -> io::Result<Option<usize>> {
        let mut bytes = [0u8; MOST_PLACES];
        let byte_at = |place: &u64| {
            let (start, _) = self.part(*place, 1)?;
            Ok(libc::iovec { iov_base: start as *mut libc::c_void, iov_len: 1 })
        };
        let from: Vec<libc::iovec> = places.iter().take(MOST_PLACES).map(byte_at).collect::<io::Result<_>>()?;
        let to = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: from.len() };
        let count = from.len() as libc::c_ulong;
        // SAFETY:
        // - the kernel writes to `bytes` alone, which has room for a byte of each place, and reads the mapping by itself:
        //   where it cannot, it returns an error.
        let read = unsafe { libc::process_vm_readv(libc::getpid(), &raw const to, 1, from.as_ptr(), count, 0) };
        match usize::try_from(read) {
            Ok(read) => Ok(Some(read)),
            Err(_) if io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT) => Ok(Some(0)),
            Err(_) => Ok(None),
        }
    }

    /// Takes the pages of a part of the mapping out of the page tables; the page cache keeps them (`MADV_DONTNEED`).
    ///
    /// # Errors
    /// `EINVAL` for a part that is outside of the mapping, or is locked.
    pub fn withdraw_part(&self, at: u64, length: u64) -> io::Result<()> {
        self.advise_part(at, length, libc::MADV_DONTNEED)
    }

    /// Collapses a part of the mapping, like [`FileMapping::collapse`].
    ///
    /// # Errors
    /// As [`FileMapping::collapse`]; `EINVAL` too on file systems whose files this kernel does not collapse.
    pub fn collapse_part(&self, at: u64, length: u64) -> io::Result<()> {
        self.advise_part(at, length, MADV_COLLAPSE)
    }

    /// True if every page of a part of the mapping is in the page cache (mincore(2)). Nothing is read. The kernel reports
    /// every page as cached to a user who neither owns the file nor may write it.
    ///
    /// # Errors
    /// The kernel's; `EINVAL` for a part that is not in the mapping.
    pub fn is_cached(&self, at: u64, length: u64) -> io::Result<bool> {
        Ok(self.cached_pages(at, length)?.iter().all(|page| page & 1 == 1))
    }

    /// Bytes of a part of the mapping that are in the page cache, as [`FileMapping::is_cached`] has it.
    ///
    /// # Errors
    /// As [`FileMapping::is_cached`].
    pub fn cached_bytes(&self, at: u64, length: u64) -> io::Result<u64> {
        let pages = self.cached_pages(at, length)?;
        Ok(pages.iter().filter(|page| **page & 1 == 1).count() as u64 * base_page().bytes())
    }

    /// Returns a byte for each page; its lowest bit is set if the page is in the page cache.
    fn cached_pages(&self, at: u64, length: u64) -> io::Result<Vec<u8>> {
        let (start, length) = self.part(at, length)?;
        let mut pages = vec![0u8; length.div_ceil(base_page().bytes() as usize)];
        // SAFETY:
        // - the range is this mapping's own, and `pages` has a byte for each of its pages, which the kernel fills.
        let result = unsafe { libc::mincore(start as *mut libc::c_void, length, pages.as_mut_ptr()) };
        if result == 0 { Ok(pages) } else { Err(io::Error::last_os_error()) }
    }

    /// Locks a part of the mapping into memory, until the mapping is dropped (mlock(2)).
    ///
    /// # Errors
    /// `ENOMEM` or `EPERM` where `RLIMIT_MEMLOCK` does not allow it; `ENOMEM` too where pages cannot be read.
    pub fn lock_part(&self, at: u64, length: u64) -> io::Result<()> {
        let (start, length) = self.part(at, length)?;
        // SAFETY:
        // - the range is this mapping's own, and locking does not change what it shows.
        let result = unsafe { libc::mlock(start as *const libc::c_void, length) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn advise_part(&self, at: u64, length: u64, advice: i32) -> io::Result<()> {
        let (start, length) = self.part(at, length)?;
        // SAFETY:
        // - `part` gives a part of this mapping, and the public functions only give advice that keeps contents.
        unsafe { advise(start, length, advice) }
    }

    /// Address and length of a part of the mapping.
    fn part(&self, at: u64, length: u64) -> io::Result<(usize, usize)> {
        let (start, whole) = self.mapping;
        let is_inside = at.checked_add(length).is_some_and(|end| end <= whole as u64);
        if is_inside { Ok((start + at as usize, length as usize)) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    fn advise(&self, advice: i32) -> io::Result<()> {
        let (start, length) = self.mapping;
        // SAFETY:
        // - this mapping, and this module only gives advice that keeps contents.
        unsafe { advise(start, length, advice) }
    }
}

/// Unmaps a reservation of `room` bytes on both sides of a place in it.
///
/// # Safety
/// Both sides are mapped, and nobody uses them.
unsafe fn release_around(start: usize, room: usize, place: usize, length: usize) {
    for (from, to) in [(start, place), (place + length, start + room)] {
        if from < to {
            // SAFETY:
            // - the caller's promise.
            unsafe { libc::munmap(from as *mut libc::c_void, to - from) };
        }
    }
}

/// Gives advice on a part of a [`FileMapping`].
///
/// # Safety
/// The range is in one mapping that the caller borrows, and the advice keeps the mapping's contents.
unsafe fn advise(start: usize, length: usize, advice: i32) -> io::Result<()> {
    // SAFETY:
    // - the caller's promise.
    let result = unsafe { libc::madvise(start as *mut libc::c_void, length, advice) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        let (start, length) = self.reserved;
        if length > 0 {
            // SAFETY:
            // - the reservation and the mapping in it are this value's own, and no reference points into them.
            unsafe { libc::munmap(start as *mut libc::c_void, length) };
        }
    }
}

/// Writes whole huge pages to a file of hugetlbfs, which must be long enough and have its pages allocated there.
///
/// # Errors
/// The kernel's; `EINVAL` for an offset or length that is not a multiple of `huge`.
pub fn write_huge_pages(file: &File, offset: u64, bytes: &[u8], huge: PageSize) -> io::Result<()> {
    let mapping = FileMapping::new(file, offset, bytes.len() as u64, huge, libc::PROT_READ | libc::PROT_WRITE)?;
    // The pages are allocated before they are touched: a failed allocation is an error here and a fatal signal below.
    match mapping.advise(MADV_POPULATE_WRITE) {
        Err(error) if error.raw_os_error() != Some(libc::EINVAL) => return Err(error),
        _ => {}
    }
    // SAFETY:
    // - the mapping is writable, as long as `bytes`, and this function's own.
    // - `bytes` is a slice of ordinary memory, so that the two do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), mapping.mapping.0 as *mut u8, bytes.len()) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn what_is_written_through_a_mapping_is_in_the_file() {
        let page = crate::pages::base_page();
        let path = std::env::temp_dir().join(format!("pagelift-file-mapping-{}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.set_len(4 * page.bytes()).unwrap();
        let bytes = vec![7; page.bytes() as usize];
        write_huge_pages(&file, page.bytes(), &bytes, page).unwrap();
        let mut read = vec![0; 2 * page.bytes() as usize];
        file.read_exact_at(&mut read, page.bytes()).unwrap();
        assert_eq!((&read[..bytes.len()], read[bytes.len()]), (&bytes[..], 0));
        assert!(write_huge_pages(&file, 1, &bytes, page).is_err());
    }

    /// The addresses of the pages that this process has in its page tables.
    fn touched_in(range: AddressRange) -> Vec<Address> {
        let page = crate::pages::base_page();
        let touched = crate::pagemap::Pagemap::open(std::process::id() as i32, page).unwrap().touched(range).unwrap();
        touched.iter().flat_map(|part| part.pages(page).collect::<Vec<_>>()).map(|part| part.start()).collect()
    }

    #[test]
    fn mappings_agree_with_their_offset_and_go_with_their_value() {
        let huge = PageSize::new(crate::pages::base_page().bytes() * 512).unwrap();
        let path = std::env::temp_dir().join(format!("pagelift-file-mapped-{}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.set_len(3 * huge.bytes()).unwrap();
        let maps = || std::fs::read_to_string("/proc/self/maps").unwrap().contains("pagelift-file-mapped");
        let mapping = FileMapping::readable(&file, huge.bytes(), 2 * huge.bytes(), huge).unwrap();
        assert!(mapping.range().start().is_aligned(huge) && mapping.range().len() == 2 * huge.bytes());
        assert!(maps());
        let page = crate::pages::base_page().bytes();
        mapping.expect_random_reads().unwrap();
        mapping.populate_part(huge.bytes(), page).unwrap();
        mapping.lock_part(0, page).unwrap();
        assert!(mapping.populate_part(2 * huge.bytes(), page).is_err() && mapping.populate_part(u64::MAX, 2).is_err());
        mapping.touch(&[0, huge.bytes() + page, page]).unwrap();
        assert!(mapping.touch(&[2 * huge.bytes()]).is_err());
        assert!(mapping.is_cached(0, page).unwrap() && mapping.is_cached(2 * huge.bytes(), page).is_err());
        mapping.withdraw_part(huge.bytes(), huge.bytes()).unwrap();
        let touched = touched_in(mapping.range());
        assert!(touched.contains(&mapping.range().start()) && touched.contains(&(mapping.range().start() + page)));
        assert!(!touched.contains(&(mapping.range().start() + huge.bytes() + page)), "{touched:?}");
        file.set_len(2 * huge.bytes()).unwrap();
        // A page that is gone keeps none of the others from being touched.
        mapping.withdraw_part(page, page).unwrap();
        mapping.touch(&[huge.bytes(), 2 * page]).unwrap();
        assert!(touched_in(mapping.range()).contains(&(mapping.range().start() + 2 * page)));
        assert_eq!(mapping.populate_part(huge.bytes(), page).unwrap_err().raw_os_error(), Some(libc::EFAULT));
        drop(mapping);
        assert!(!maps());
        assert!(FileMapping::readable(&file, 0, 0, huge).is_err());
        std::fs::remove_file(&path).unwrap();
        let unmappable = File::open("/proc/self/status").unwrap();
        assert!(FileMapping::readable(&unmappable, 0, huge.bytes(), huge).is_err());
    }
}
