//! What every executor offers: calls on the memory of one process whose threads stand still.

use crate::ErrnoText;
use address_space::{Address, AddressRange, AddressSpace, PageSize, Protection, RangeSet};
use alloc::string::ToString;
use lift_plan::Reason;

/// The number of "function not implemented", the same on every Linux architecture.
pub(crate) const ENOSYS: i32 = 38;

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
#[error("{call}: {}", ErrnoText(*.errno))]
pub struct CallError {
    /// The call and its arguments' sense, `mremap` for example.
    pub call: &'static str,
    /// The error's number.
    pub errno: i32,
}

impl From<CallError> for Reason {
    fn from(error: CallError) -> Self {
        let text = ErrnoText(error.errno).to_string();
        Self::Kernel { call: error.call, errno: error.errno, error: text }
    }
}

/// Calls on the memory of one process.
///
/// Every method is one change of the address space, complete when it returns `Ok`. A method that returns an error has
/// changed nothing that the program can see, with the one exception that the kernel itself has: a failed
/// [`Executor::move_to`] may have removed what was mapped at the destination. Pages may have been populated, collapsed
/// or advised in part, and memory of ours copied in part.
pub trait Executor {
    /// Maps `length` bytes of private anonymous memory anywhere, readable and writable.
    ///
    /// # Errors
    /// Whatever `mmap` gives.
    fn map(&mut self, length: u64, backing: Backing) -> Result<Address, CallError>;

    /// Maps private anonymous memory at `range`, where nothing is mapped, readable and writable. It never replaces
    /// anything (`MAP_FIXED_NOREPLACE`).
    ///
    /// # Errors
    /// Whatever `mmap` gives; `EEXIST` where something is mapped.
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

    /// Moves a mapping or part of one, replacing what is mapped at the destination: one `mremap(MREMAP_FIXED)`.
    ///
    /// # Errors
    /// Whatever `mremap` gives.
    fn move_to(&mut self, from: AddressRange, to: Address) -> Result<(), CallError>;

    /// Copies memory within the process.
    ///
    /// # Errors
    /// Where a byte of either side cannot be accessed.
    fn copy(&mut self, from: AddressRange, to: Address) -> Result<(), CallError>;

    /// Maps `length` bytes of a file anywhere, private, with its final protection. What the kernel has of it in memory is
    /// in the page tables afterwards (`MAP_POPULATE`), so that the first accesses need not do that; nothing depends on it.
    ///
    /// # Errors
    /// Whatever `open` and `mmap` give; `ENOSYS` from an executor that knows no shared images.
    fn map_file(
        &mut self,
        _path: &str,
        _offset: u64,
        _length: u64,
        _protection: Protection,
    ) -> Result<Address, CallError> {
        Err(CallError { call: "mapping a shared image", errno: ENOSYS })
    }

    /// The same in place of what is mapped at `range`, by one system call (`MAP_FIXED`).
    ///
    /// # Errors
    /// Whatever `open` and `mmap` give; `ENOSYS` from an executor that maps files elsewhere only. Where the kernel runs out
    /// of memory of its own, what was mapped may be gone (before Linux 6.12).
    fn map_file_at(
        &mut self,
        _path: &str,
        _offset: u64,
        _range: AddressRange,
        _protection: Protection,
    ) -> Result<(), CallError> {
        Err(CallError { call: "mapping a shared image in place", errno: ENOSYS })
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that is gone, by an executor that knows no images.
    struct Gone;

    const GONE: CallError = CallError { call: "any", errno: 3 };

    impl Executor for Gone {
        fn map(&mut self, _: u64, _: Backing) -> Result<Address, CallError> {
            Err(GONE)
        }
        fn map_at(&mut self, _: AddressRange, _: Backing) -> Result<(), CallError> {
            Err(GONE)
        }
        fn unmap(&mut self, _: AddressRange) -> Result<(), CallError> {
            Err(GONE)
        }
        fn advise_huge(&mut self, _: AddressRange) -> Result<(), CallError> {
            Err(GONE)
        }
        fn populate(&mut self, _: AddressRange, _: PageSize) -> Result<(), CallError> {
            Err(GONE)
        }
        fn collapse(&mut self, _: AddressRange) -> Result<(), CallError> {
            Err(GONE)
        }
        fn protect(&mut self, _: AddressRange, _: Protection) -> Result<(), CallError> {
            Err(GONE)
        }
        fn move_to(&mut self, _: AddressRange, _: Address) -> Result<(), CallError> {
            Err(GONE)
        }
        fn copy(&mut self, _: AddressRange, _: Address) -> Result<(), CallError> {
            Err(GONE)
        }
        fn name(&mut self, _: AddressRange, _: &str) -> Result<(), CallError> {
            Err(GONE)
        }
        fn huge(&mut self, _: AddressRange, _: PageSize) -> Result<RangeSet, CallError> {
            Err(GONE)
        }
        fn space(&mut self) -> Result<AddressSpace, CallError> {
            Err(GONE)
        }
    }

    #[test]
    fn an_executor_that_knows_no_images_says_so_by_enosys() {
        let nowhere = AddressRange::new(Address(0), Address(0));
        let elsewhere = Gone.map_file("/run/images/1", 0, 0, Protection::READ).unwrap_err();
        let in_place = Gone.map_file_at("/run/images/1", 0, nowhere, Protection::READ).unwrap_err();
        assert_eq!([elsewhere.errno, in_place.errno], [ENOSYS; 2]);
        assert_eq!(in_place.to_string(), "mapping a shared image in place: Function not implemented (os error 38)");
    }
}
