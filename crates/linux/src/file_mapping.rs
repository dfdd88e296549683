//! Mappings of files in this process. Nothing is ever read through them: a read is fatal where the file has been
//! truncated. They serve to ask the kernel by which pages a file would be mapped, and to fill files of hugetlbfs, which
//! has no `write`.

use crate::constants::{MADV_COLLAPSE, MADV_POPULATE_READ, MADV_POPULATE_WRITE};
use address_space::{Address, AddressRange, PageSize};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

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
        // - `place` to `place + length` lies in the new reservation, which nothing else knows of.
        let placed = unsafe {
            let flags = libc::MAP_SHARED | libc::MAP_FIXED;
            libc::mmap(place as *mut libc::c_void, length, protection, flags, file.as_raw_fd(), position)
        };
        if placed == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            // The call may have removed the reservation there, and another thread may have mapped something in its
            // place.
            mapping.reserved = (0, 0);
            mapping.release_around(reserved as usize, room, place, length);
            return Err(error);
        }
        mapping.mapping = (place, length);
        Ok(mapping)
    }

    /// Unmaps the reservation on both sides of a place.
    fn release_around(&self, start: usize, room: usize, place: usize, length: usize) {
        for (from, to) in [(start, place), (place + length, start + room)] {
            if from < to {
                // SAFETY:
                // - both sides belong to the reservation that this mapping made; nothing else knows of them.
                unsafe { libc::munmap(from as *mut libc::c_void, to - from) };
            }
        }
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

    /// Makes the page cache read whole huge pages where a page of this mapping is missing (`MADV_HUGEPAGE`).
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
    /// `EFAULT` where the file was truncated or cannot be read; `EINVAL` on Linux before 5.14, and for a part that does
    /// not lie in the mapping.
    pub fn populate_part(&self, at: u64, length: u64) -> io::Result<()> {
        self.advise_part(at, length, MADV_POPULATE_READ)
    }

    /// Collapses a part of the mapping, like [`FileMapping::collapse`].
    ///
    /// # Errors
    /// As [`FileMapping::collapse`]; `EINVAL` too on file systems whose files this kernel does not collapse.
    pub fn collapse_part(&self, at: u64, length: u64) -> io::Result<()> {
        self.advise_part(at, length, MADV_COLLAPSE)
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
        advise(start, length, advice)
    }

    /// Address and length of a part of the mapping.
    fn part(&self, at: u64, length: u64) -> io::Result<(usize, usize)> {
        let (start, whole) = self.mapping;
        let is_inside = at.checked_add(length).is_some_and(|end| end <= whole as u64);
        if is_inside { Ok((start + at as usize, length as usize)) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    fn advise(&self, advice: i32) -> io::Result<()> {
        let (start, length) = self.mapping;
        advise(start, length, advice)
    }
}

/// Gives advice on a part of a [`FileMapping`], of a kind that leaves what the mapping shows.
fn advise(start: usize, length: usize, advice: i32) -> io::Result<()> {
    // SAFETY:
    // - the range is a mapping's own, as the caller states, and no advice used here changes what it shows.
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
        file.set_len(huge.bytes()).unwrap();
        assert_eq!(mapping.populate_part(huge.bytes(), page).unwrap_err().raw_os_error(), Some(libc::EFAULT));
        drop(mapping);
        assert!(!maps());
        assert!(FileMapping::readable(&file, 0, 0, huge).is_err());
        std::fs::remove_file(&path).unwrap();
        let unmappable = File::open("/proc/self/status").unwrap();
        assert!(FileMapping::readable(&unmappable, 0, huge.bytes(), huge).is_err());
    }
}
