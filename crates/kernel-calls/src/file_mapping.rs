//! Mappings of files in this process, through which nothing is ever read: a file that shrinks meanwhile would make a
//! read fatal. They serve to ask the kernel by which pages a file would be mapped, and to fill files of hugetlbfs, which
//! has no `write`.

use crate::numbers::{MADV_COLLAPSE, MADV_POPULATE_WRITE};
use address_space::{Address, AddressRange, PageSize};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `MADV_POPULATE_READ` (Linux 5.14, `asm-generic/mman-common.h`).
const MADV_POPULATE_READ: i32 = 22;

/// A shared mapping of a part of a file, placed so that huge pages can map it. Unmapped when dropped.
#[derive(Debug)]
pub struct FileMapping {
    /// What was reserved, the mapping somewhere in it.
    reserved: (usize, usize),
    mapping: (usize, usize),
}

impl FileMapping {
    /// Maps `length` bytes at `offset` for reading, at an address that agrees with the offset modulo `huge`.
    ///
    /// # Errors
    /// The kernel's; `EINVAL` for an offset or length that is no multiple of `huge`.
    pub fn readable(file: &File, offset: u64, length: u64, huge: PageSize) -> io::Result<Self> {
        Self::new(file, offset, length, huge, libc::PROT_READ)
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
        // - no address is given, so that the kernel takes one where nothing lies.
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
        // - `place` to `place + length` lies in what was just reserved, which nobody else knows of.
        let placed = unsafe {
            let flags = libc::MAP_SHARED | libc::MAP_FIXED;
            libc::mmap(place as *mut libc::c_void, length, protection, flags, file.as_raw_fd(), position)
        };
        if placed == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            // The call may have removed the reservation there, and another thread may have mapped something since.
            mapping.reserved = (0, 0);
            mapping.release_around(reserved as usize, room, place, length);
            return Err(error);
        }
        mapping.mapping = (place, length);
        Ok(mapping)
    }

    /// Gives back what lies on both sides of a place.
    fn release_around(&self, start: usize, room: usize, place: usize, length: usize) {
        for (from, to) in [(start, place), (place + length, start + room)] {
            if from < to {
                // SAFETY:
                // - both sides belong to the reservation that this mapping made; nobody else knows of them.
                unsafe { libc::munmap(from as *mut libc::c_void, to - from) };
            }
        }
    }

    /// Where it lies.
    pub fn range(&self) -> AddressRange {
        AddressRange::sized(Address(self.mapping.0 as u64), self.mapping.1 as u64)
    }

    /// Makes every page of it present.
    ///
    /// # Errors
    /// `EINVAL` on Linux before 5.14; else why a page cannot be had.
    pub fn populate(&self) -> io::Result<()> {
        self.advise(MADV_POPULATE_READ)
    }

    /// Turns ordinary pages into huge ones, as far as the kernel finds some.
    ///
    /// # Errors
    /// `EINVAL` on Linux before 6.1; `EAGAIN` or `ENOMEM` where memory is fragmented or short.
    pub fn collapse(&self) -> io::Result<()> {
        self.advise(MADV_COLLAPSE)
    }

    fn advise(&self, advice: i32) -> io::Result<()> {
        let (start, length) = self.mapping;
        // SAFETY:
        // - the range is this mapping's own, and neither advice changes what it shows.
        let result = unsafe { libc::madvise(start as *mut libc::c_void, length, advice) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
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
/// The kernel's; `EINVAL` for an offset or length that is no multiple of `huge`.
pub fn write_huge_pages(file: &File, offset: u64, bytes: &[u8], huge: PageSize) -> io::Result<()> {
    let mapping = FileMapping::new(file, offset, bytes.len() as u64, huge, libc::PROT_READ | libc::PROT_WRITE)?;
    // Present before they are touched: a page that cannot be had is an error here and a fatal signal below.
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
        drop(mapping);
        assert!(!maps());
        assert!(FileMapping::readable(&file, 0, 0, huge).is_err());
        std::fs::remove_file(&path).unwrap();
        let unmappable = File::open("/proc/self/status").unwrap();
        assert!(FileMapping::readable(&unmappable, 0, huge.bytes(), huge).is_err());
    }
}
