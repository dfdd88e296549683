//! `/proc/thread-self/pagemap`: which pages of this process are present and which are huge.

use crate::files::File;
use address_space::{AddressRange, PageSize, RangeSet};
use alloc::vec;
use linux_raw::Errno;
use linux_raw::pagemap::{EMPTY_REGION, Entry, Wanted, entries_that, scan};

/// Regions that one call may return.
const REGIONS: usize = 256;
/// Entries read at once.
const ENTRIES: usize = 4096;

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
        Ok(Self { file: File::open(c"/proc/thread-self/pagemap")?, base_page })
    }

    /// The parts of `range` that are mapped by huge pages.
    ///
    /// # Errors
    /// The kernel's; kernels before 6.7 do not report it.
    pub fn huge(&self, range: AddressRange) -> Result<RangeSet, Errno> {
        self.scan(range, Wanted::HUGE)
    }

    /// The pages of `range` that have been touched: present, or swapped out.
    ///
    /// # Errors
    /// The kernel's.
    pub fn touched(&self, range: AddressRange) -> Result<RangeSet, Errno> {
        self.scan(range, Wanted::TOUCHED).or_else(|_| self.entries_that(range, Entry::is_touched))
    }

    /// The pages of `range`, a private mapping of a file, that are no longer the file's: they have been written to.
    ///
    /// # Errors
    /// The kernel's.
    pub fn changed(&self, range: AddressRange) -> Result<RangeSet, Errno> {
        self.scan(range, Wanted::CHANGED).or_else(|_| self.entries_that(range, Entry::is_changed))
    }

    fn scan(&self, range: AddressRange, wanted: Wanted) -> Result<RangeSet, Errno> {
        let mut found = RangeSet::new();
        let mut regions = vec![EMPTY_REGION; REGIONS];
        scan(self.file.descriptor(), range, wanted, &mut regions, |part| found.insert(part))?;
        Ok(found)
    }

    fn entries_that(&self, range: AddressRange, fits: impl Fn(Entry) -> bool) -> Result<RangeSet, Errno> {
        let mut buffer = vec![0; ENTRIES * Entry::BYTES];
        let read = |into: &mut [u8], offset| linux_raw::read_at(self.file.descriptor(), into, offset);
        entries_that(range, self.base_page, &mut buffer, read, fits)
    }
}
