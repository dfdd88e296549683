//! What every executor offers: calls on the memory of one process whose threads stand still.

use address_space::{Address, AddressRange, AddressSpace, PageSize, Protection, RangeSet};
use lift_plan::Reason;

/// The pages behind new anonymous memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Ordinary pages, or transparent huge ones where advised.
    Ordinary,
    /// Pages of the hugetlb pool of this size.
    Hugetlb(PageSize),
}

/// A call that the kernel refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {}", std::io::Error::from_raw_os_error(*.errno))]
pub struct CallError {
    /// The call and its arguments' sense, `mremap` for example.
    pub call: &'static str,
    /// The error's number.
    pub errno: i32,
}

impl From<CallError> for Reason {
    fn from(error: CallError) -> Self {
        let text = std::io::Error::from_raw_os_error(error.errno).to_string();
        Self::Kernel { call: error.call, errno: error.errno, error: text }
    }
}

/// Calls on the memory of one process.
///
/// Every method is one change of the address space, complete when it returns `Ok`. A method that returns an error has
/// changed nothing, with the two exceptions that the kernel itself has: a failed [`Executor::map_at`] may have removed
/// what was mapped there, and a failed [`Executor::move_to`] what was mapped at the destination.
pub trait Executor {
    /// Maps `length` bytes of private anonymous memory anywhere, readable and writable.
    ///
    /// # Errors
    /// Whatever `mmap` gives.
    fn map(&mut self, length: u64, backing: Backing) -> Result<Address, CallError>;

    /// Maps private anonymous memory at `range`, where nothing is mapped, readable and writable.
    ///
    /// # Errors
    /// Whatever `mmap` gives.
    fn map_at(&mut self, range: AddressRange, backing: Backing) -> Result<(), CallError>;

    /// Unmaps.
    ///
    /// # Errors
    /// Whatever `munmap` gives.
    fn unmap(&mut self, range: AddressRange) -> Result<(), CallError>;

    /// `MADV_HUGEPAGE`.
    ///
    /// # Errors
    /// Whatever `madvise` gives.
    fn advise_huge(&mut self, range: AddressRange) -> Result<(), CallError>;

    /// Makes every page of writable memory present, so that no later fault on it can fail.
    ///
    /// # Errors
    /// Whatever the kernel gives; a shortage of pages is an error here, never a signal.
    fn populate(&mut self, range: AddressRange, page: PageSize) -> Result<(), CallError>;

    /// `MADV_COLLAPSE`: turns what the range holds into transparent huge pages.
    ///
    /// # Errors
    /// Whatever `madvise` gives, where any huge page of the range could not be made.
    fn collapse(&mut self, range: AddressRange) -> Result<(), CallError>;

    /// `mprotect`.
    ///
    /// # Errors
    /// Whatever `mprotect` gives.
    fn protect(&mut self, range: AddressRange, protection: Protection) -> Result<(), CallError>;

    /// Moves a mapping, replacing what is mapped at the destination: one `mremap(MREMAP_FIXED)`.
    ///
    /// # Errors
    /// Whatever `mremap` gives.
    fn move_to(&mut self, from: AddressRange, to: Address) -> Result<(), CallError>;

    /// Copies memory within the process.
    ///
    /// # Errors
    /// Where a byte of either side cannot be accessed.
    fn copy(&mut self, from: AddressRange, to: Address) -> Result<(), CallError>;

    /// Names private anonymous memory (`PR_SET_VMA_ANON_NAME`, Linux 5.17).
    ///
    /// # Errors
    /// Whatever `prctl` gives. Names only help people; nobody relies on them.
    fn name(&mut self, range: AddressRange, name: &str) -> Result<(), CallError>;

    /// The parts of `range` that the kernel backs by huge pages of at least `size` now.
    ///
    /// # Errors
    /// Where the kernel does not tell.
    fn huge(&mut self, range: AddressRange, size: PageSize) -> Result<RangeSet, CallError>;

    /// The process's mappings now.
    ///
    /// # Errors
    /// Where the kernel does not tell.
    fn space(&mut self) -> Result<AddressSpace, CallError>;
}
