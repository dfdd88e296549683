//! Finds the state of this process's files in the page cache: maps each once more, at addresses that agree with
//! offsets, touches it, and asks the kernel which parts it maps by huge pages.

use crate::files::File;
use crate::mapped_file::MappedFile;
use crate::pagemap::Pagemap;
use address_space::{Address, AddressRange, LoadedObject, Mapping, PageSize, RangeSet};
use alloc::vec::Vec;
use core::ops::Range;
use lift_plan::{MachineFacts, Policy, ProcessFacts};
use linux_raw::kernel::general as linux;
use machine_facts::{CachedFiles, FileReader, FileState, cached_files};

/// The state of the chosen objects' files. Empty if the kernel does not report which memory is huge (before Linux 6.7).
pub fn look(process: &ProcessFacts, machine: &MachineFacts, policy: &Policy) -> CachedFiles {
    let Ok(pagemap) = Pagemap::open(machine.base_page) else { return CachedFiles::default() };
    cached_files(process, machine, policy, &mut OwnFiles { process, base_page: machine.base_page, pagemap })
}

/// The files of this process.
struct OwnFiles<'a> {
    process: &'a ProcessFacts,
    base_page: PageSize,
    pagemap: Pagemap,
}

impl FileReader for OwnFiles<'_> {
    fn state(&mut self, object: &LoadedObject, mappings: &[&Mapping], size: PageSize) -> Option<FileState> {
        let file = MappedFile::open(&self.process.space, object)?;
        let huge = huge_parts_of(&file, mappings, size, self.base_page, &self.pagemap)?;
        Some(FileState { huge, shortfall: None, own_path: Some(file.path) })
    }

    fn changed(&mut self, range: AddressRange) -> Option<RangeSet> {
        self.pagemap.changed(range).ok()
    }
}

/// The parts of a mapped file in huge folios; `None` if they are unknown.
fn huge_parts_of(
    file: &MappedFile,
    mappings: &[&Mapping],
    size: PageSize,
    base_page: PageSize,
    pagemap: &Pagemap,
) -> Option<Vec<Range<u64>>> {
    let start = mappings.iter().map(|m| m.offset).min()?.checked_next_multiple_of(size.bytes())?;
    let end = mappings.iter().map(|m| m.offset.saturating_add(m.range.len())).max()?.min(file.size);
    let end = end - end % size.bytes();
    if start >= end {
        return Some(Vec::new());
    }
    let probe = Probe::new(&file.file, start, end - start, size).ok()?;
    let offset = |at: Address| start + (at - probe.range.start());
    let is_cached = cached_blocks(&file.file, start..end, size, base_page);
    for block in probe.range.pages(size).filter(|block| is_cached(offset(block.start()))) {
        probe.touch(AddressRange::sized(block.start(), base_page.bytes()));
    }
    let huge = pagemap.huge(probe.range).ok()?;
    let whole = huge.iter().map(|part| part.whole_pages(size)).filter(|part| !part.is_empty());
    Some(whole.map(|part| offset(part.start())..offset(part.end())).collect())
}

/// Returns which blocks of a part of a file may be in huge folios, by their offsets: touching a block that is not
/// cached would only read it from the disk. If the kernel does not report it, all may be.
fn cached_blocks(file: &File, offsets: Range<u64>, size: PageSize, base_page: PageSize) -> impl Fn(u64) -> bool {
    let pages = move |length: u64| length / base_page.bytes();
    let cached =
        |offset, length| linux_raw::cached_pages(file.descriptor(), offset, length).ok().map(|pages| pages.cached);
    let length = offsets.end - offsets.start;
    // This program executes the file, so some pages are cached: overlayfs reports none.
    let all = cached(offsets.start, length).is_none_or(|found| found == 0 || found >= pages(length));
    move |offset| all || cached(offset, size.bytes()).is_none_or(|found| found >= pages(size.bytes()))
}

/// A mapping of a part of a file, readable, at addresses that agree with its offsets. Unmapped when dropped.
struct Probe {
    range: AddressRange,
    /// The reservation that found the place.
    reserved: AddressRange,
}

impl Probe {
    fn new(file: &File, offset: u64, length: u64, size: PageSize) -> Result<Self, linux_raw::Errno> {
        let whole = (length + size.bytes()) as usize;
        let flags = linux::MAP_PRIVATE | linux::MAP_ANONYMOUS | linux::MAP_NORESERVE;
        // SAFETY:
        // - no MAP_FIXED: only free addresses are taken.
        let at = unsafe { linux_raw::mmap(0, whole, linux::PROT_NONE as i32, flags, -1, 0) }?;
        let reserved = AddressRange::sized(Address(at as u64), whole as u64);
        let start = reserved.start().align_up(size).unwrap_or(reserved.start());
        let range = AddressRange::sized(start, length);
        let (flags, bits) = (linux::MAP_PRIVATE | linux::MAP_FIXED, linux::PROT_READ as i32);
        // SAFETY:
        // - the place is in the reservation above, which has no other user.
        let mapped =
            unsafe { linux_raw::mmap(start.0 as usize, length as usize, bits, flags, file.descriptor(), offset) };
        if let Err(errno) = mapped {
            // The call may have removed the reservation there, and another thread may have mapped something in its
            // place.
            for rest in reserved.without(range).into_iter().filter(|rest| !rest.is_empty()) {
                // SAFETY:
                // - the reservation was made above, and only this function uses it.
                let _ = unsafe { linux_raw::munmap(rest) };
            }
            return Err(errno);
        }
        let probe = Self { range, reserved };
        // SAFETY:
        // - this advice keeps all contents. Without it a touch reads more of the file than its page.
        let _ = unsafe { linux_raw::madvise(probe.range, linux::MADV_RANDOM) };
        Ok(probe)
    }

    /// A part that the file has lost since stays untouched.
    fn touch(&self, page: AddressRange) {
        // SAFETY:
        // - this advice keeps all contents, and returns an error if an access would raise a signal.
        let _ = unsafe { linux_raw::madvise(page, linux::MADV_POPULATE_READ) };
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // SAFETY:
        // - this value reserved the memory, which has no other user.
        let _ = unsafe { linux_raw::munmap(self.reserved) };
    }
}
