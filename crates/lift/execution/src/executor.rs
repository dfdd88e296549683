//! The interface of every executor: calls on the memory of one process whose threads are stopped.

use crate::ErrnoText;
use address_space::{Address, AddressRange, AddressSpace, Mapping, PageSize, Protection, RangeSet};
use alloc::string::ToString;
use alloc::vec::Vec;
use lift_plan::{Placement, Reason};

/// The number of "function not implemented", the same on every Linux architecture.
pub const ENOSYS: i32 = 38;
/// The number of "input/output error", likewise: also the error of a write through `/proc/PID/mem` to memory for which there is no
/// page.
pub const EIO: i32 = 5;
/// The number of "bad address", likewise: also the error of populating memory for which there is no page.
pub const EFAULT: i32 = 14;
/// The number of "cannot allocate memory", likewise.
pub const ENOMEM: i32 = 12;

/// The pages behind new anonymous memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Ordinary pages, or transparent huge ones if advised.
    Ordinary,
    /// Pages of the hugetlb pool.
    Hugetlb {
        /// Their size.
        size: PageSize,
        /// The kernel reserves them, also for the copies that a write after a fork makes.
        ///
        /// Memory that is not written does without: where a private mapping with reserved pages outlives in a child the parent
        /// that reserved them, Linux counts too few reserved pages until the child ends (`__unmap_hugepage_range` in
        /// `mm/hugetlb.c`, since Linux 6.10), and promises pages that it does not have to other programs.
        reserve: bool,
    },
}

impl Backing {
    /// Size of the pool's pages; `None` for ordinary memory.
    pub const fn pool(self) -> Option<PageSize> {
        match self {
            Self::Ordinary => None,
            Self::Hugetlb { size, .. } => Some(size),
        }
    }
}

/// The part of a file that is mapped, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileMapping<'a> {
    /// The file's absolute path, as the process sees it.
    pub path: &'a str,
    /// Offset in the file of the mapping's beginning, in bytes.
    pub offset: u64,
    /// The final protection.
    pub protection: Protection,
}

/// A call that the kernel refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {}", ErrnoText(*.errno))]
pub struct CallError {
    /// The call, for example `mremap`.
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
/// [`Executor::move_to`] may have removed the mappings at the destination. Pages may have been populated, collapsed or
/// advised in part, and memory of ours copied in part.
pub trait Executor {
    /// Maps `length` bytes of private anonymous memory anywhere, readable and writable.
    ///
    /// # Errors
    /// The errors of `mmap`.
    fn map(&mut self, length: u64, backing: Backing) -> Result<Address, CallError>;

    /// Maps private anonymous memory, readable and writable, at `range`, which must be free. It never replaces anything
    /// (`MAP_FIXED_NOREPLACE`).
    ///
    /// # Errors
    /// The errors of `mmap`; `EEXIST` if something is mapped.
    fn map_at(&mut self, range: AddressRange, backing: Backing) -> Result<(), CallError>;

    /// Unmaps.
    ///
    /// # Errors
    /// The errors of `munmap`.
    fn unmap(&mut self, range: AddressRange) -> Result<(), CallError>;

    /// Maps `length` bytes of private anonymous memory at a multiple of `page`, readable and writable, advises transparent
    /// huge pages for it (`MADV_HUGEPAGE`), and names it ([`Executor::name`]). The name is missing if the kernel refuses
    /// it.
    ///
    /// # Errors
    /// The errors of `mmap`, `munmap` and `madvise`. Nothing stays mapped if the kernel does not refuse that, too.
    fn map_advised(&mut self, length: u64, page: PageSize, name: &str) -> Result<Address, CallError> {
        map_cut(self, length, page, name)
    }

    /// `MADV_HUGEPAGE`.
    ///
    /// # Errors
    /// The errors of `madvise`.
    fn advise_huge(&mut self, range: AddressRange) -> Result<(), CallError>;

    /// Sets the memory policy of memory without present pages (mbind(2)). The policy determines the NUMA nodes of the
    /// pages.
    ///
    /// # Errors
    /// The errors of `mbind`; `ENOSYS` from an executor without this call.
    fn place(&mut self, _range: AddressRange, _placement: &Placement) -> Result<(), CallError> {
        Err(CallError { call: "mbind", errno: ENOSYS })
    }

    /// Makes every page of writable memory present, so that no later fault on it can fail. Nobody has written to the memory:
    /// before Linux 5.14 zeros are written to it.
    ///
    /// # Errors
    /// The errors of the kernel; a shortage of pages is an error here, never a signal.
    fn populate(&mut self, range: AddressRange, page: PageSize) -> Result<(), CallError>;

    /// `MADV_COLLAPSE`: collapses the contents of the range into transparent huge pages.
    ///
    /// # Errors
    /// The errors of `madvise`, if any huge page of the range could not be made.
    fn collapse(&mut self, range: AddressRange) -> Result<(), CallError>;

    /// `mprotect`.
    ///
    /// # Errors
    /// The errors of `mprotect`.
    fn protect(&mut self, range: AddressRange, protection: Protection) -> Result<(), CallError>;

    /// True for memory of which a part allows indirect branches to landing pads only (`PROT_BTI`), which maps does not
    /// show. Only AArch64 has that.
    ///
    /// # Errors
    /// The kernel does not report it.
    fn guards_branches(&mut self, _range: AddressRange) -> Result<bool, CallError> {
        Ok(false)
    }

    /// `mprotect` with this protection and `PROT_BTI`.
    ///
    /// # Errors
    /// The errors of `mprotect`; `ENOSYS` from an executor on another architecture.
    fn guard_branches(&mut self, _range: AddressRange, _protection: Protection) -> Result<(), CallError> {
        Err(CallError { call: "mprotect(PROT_BTI)", errno: ENOSYS })
    }

    /// Moves a mapping or part of one, replacing the mappings at the destination: one `mremap(MREMAP_FIXED)`.
    ///
    /// # Errors
    /// The errors of `mremap`. `EBUSY`, which `mremap` does not return: the destination has changed since it was
    /// copied, and nothing was moved.
    fn move_to(&mut self, from: AddressRange, to: Address) -> Result<(), CallError>;

    /// Gives a mapping or part of one this protection, then moves it as [`Executor::move_to`].
    ///
    /// # Errors
    /// The errors of `mprotect` and of [`Executor::move_to`]. The mapping at `from` may have its new protection.
    fn seal_and_move(&mut self, from: AddressRange, to: Address, protection: Protection) -> Result<(), CallError> {
        self.protect(from, protection)?;
        self.move_to(from, to)
    }

    /// True if the destination of a failed [`Executor::move_to`] has its contents again before any thread of the
    /// program runs.
    fn restores_destination(&self) -> bool {
        false
    }

    /// Copies memory within the process.
    ///
    /// # Errors
    /// A byte of either range cannot be accessed.
    fn copy(&mut self, from: AddressRange, to: Address) -> Result<(), CallError>;

    /// Maps `length` bytes of a file anywhere, private. Pages that the kernel has in its
    /// cache are in the page tables afterwards (`MAP_POPULATE`), which saves faults; nothing depends on it.
    ///
    /// # Errors
    /// The errors of `open` and `mmap`; `ENOSYS` from an executor that knows no shared images.
    fn map_file(&mut self, _file: FileMapping<'_>, _length: u64) -> Result<Address, CallError> {
        Err(CallError { call: "mapping a shared image", errno: ENOSYS })
    }

    /// Like [`Executor::map_file`], but replaces the mappings at `range`, by one system call (`MAP_FIXED`).
    ///
    /// # Errors
    /// The errors of `open` and `mmap`; `ENOSYS` from an executor that cannot map files in place. If the kernel runs
    /// out of its own memory, the old mappings may be gone (before Linux 6.12).
    fn map_file_at(&mut self, _file: FileMapping<'_>, _range: AddressRange) -> Result<(), CallError> {
        Err(CallError { call: "mapping a shared image in place", errno: ENOSYS })
    }

    /// Maps `length` bytes of a file of the process anywhere, private, untouched. The caller checks the file's identity
    /// in [`Executor::space`].
    ///
    /// # Errors
    /// The errors of `open` and `mmap`; `ENOSYS` from an executor without this call.
    fn map_own_file(&mut self, _file: FileMapping<'_>, _length: u64) -> Result<Address, CallError> {
        Err(CallError { call: "mapping a file again", errno: ENOSYS })
    }

    /// Returns an error if a page of private file mappings has been written, and so no longer shows its file.
    ///
    /// # Errors
    /// `EBUSY` if a page was written; errors of the kernel's report; `ENOSYS` from an executor without this call.
    fn expect_unchanged(&mut self, _range: AddressRange) -> Result<(), CallError> {
        Err(CallError { call: "reading the pagemap", errno: ENOSYS })
    }

    /// Withdraws the page table entries of private mappings of files and makes them anew (`MADV_DONTNEED`, then
    /// `MADV_POPULATE_READ`), which changes nothing that the program can read: while no page has been written to, both
    /// show the file.
    ///
    /// # Errors
    /// `EBUSY` if a page has been written to, and would be lost; the errors of `madvise`; `ENOSYS` from an executor
    /// without this call.
    fn refault(&mut self, _range: AddressRange) -> Result<(), CallError> {
        Err(CallError { call: "madvise(MADV_DONTNEED)", errno: ENOSYS })
    }

    /// Puts the pages of files into the page tables (`MADV_POPULATE_READ`, Linux 5.14). A failure only means that they
    /// come there when they are accessed.
    ///
    /// # Errors
    /// The errors of `madvise`; `ENOSYS` from an executor without this call.
    fn touch(&mut self, _range: AddressRange) -> Result<(), CallError> {
        Err(CallError { call: "madvise(MADV_POPULATE_READ)", errno: ENOSYS })
    }

    /// Names private anonymous memory (`PR_SET_VMA_ANON_NAME`, Linux 5.17).
    ///
    /// # Errors
    /// The errors of `prctl`. Names only help people; no code relies on them.
    fn name(&mut self, range: AddressRange, name: &str) -> Result<(), CallError>;

    /// Returns the mappings within `range` that show an existing file and have no written page, so that their contents
    /// can be read from the file. Empty if the executor cannot determine this.
    fn unchanged_files(&mut self, _range: AddressRange) -> Vec<Mapping> {
        Vec::new()
    }

    /// `MADV_DONTDUMP`: leaves memory out of core dumps.
    ///
    /// # Errors
    /// The errors of `madvise`; `ENOSYS` from an executor without this call.
    fn leave_out_of_dumps(&mut self, _range: AddressRange) -> Result<(), CallError> {
        Err(CallError { call: "madvise(MADV_DONTDUMP)", errno: ENOSYS })
    }

    /// `mseal` (Linux 6.10): the kernel refuses from then on to unmap, move or protect the memory, or to discard it if
    /// it is not writable.
    ///
    /// # Errors
    /// The errors of `mseal`; `ENOSYS` on older kernels, and from an executor without this call.
    fn seal(&mut self, _range: AddressRange) -> Result<(), CallError> {
        Err(CallError { call: "mseal", errno: ENOSYS })
    }

    /// Returns the parts of `range` that the kernel backs by huge pages of at least `size` now.
    ///
    /// # Errors
    /// The kernel does not report it.
    fn query_huge(&mut self, range: AddressRange, size: PageSize) -> Result<RangeSet, CallError>;

    /// Returns the process's mappings now.
    ///
    /// # Errors
    /// The kernel does not report it.
    fn space(&mut self) -> Result<AddressSpace, CallError>;
}

/// Number of tries of a call that must succeed to restore memory. Such calls fail only for lack of kernel memory.
pub(crate) const TRIES: usize = 16;

/// Repeats a call that restores memory until it succeeds, at most 16 times.
///
/// # Errors
/// That of the last try.
pub fn persist<T>(mut call: impl FnMut() -> Result<T, CallError>) -> Result<T, CallError> {
    let mut result = call();
    for _ in 1..TRIES {
        if result.is_ok() {
            break;
        }
        result = call();
    }
    result
}

/// [`Executor::map_advised`] where the kernel chooses the address: ordinary memory may come at any base page, so one huge page
/// more is mapped, and both ends are cut off.
///
/// # Errors
/// As there.
pub fn map_cut<E: Executor + ?Sized>(
    executor: &mut E,
    length: u64,
    page: PageSize,
    name: &str,
) -> Result<Address, CallError> {
    let longer = length + page.bytes();
    let got = AddressRange::sized(executor.map(longer, Backing::Ordinary)?, longer);
    let start = got.start().align_up(page).unwrap_or(got.start());
    let wanted = AddressRange::sized(start, length);
    for slack in got.without(wanted).into_iter().filter(|slack| !slack.is_empty()) {
        if let Err(error) = executor.unmap(slack) {
            // Untouched slack costs only address space, but would stay for ever, so nothing is kept.
            let _ = persist(|| executor.unmap(got));
            return Err(error);
        }
    }
    if let Err(error) = executor.advise_huge(wanted) {
        let _ = persist(|| executor.unmap(wanted));
        return Err(error);
    }
    // Kernels without names for anonymous memory show none.
    let _ = executor.name(wanted, name);
    Ok(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An executor for a process that has ended, without support for images.
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
        fn query_huge(&mut self, _: AddressRange, _: PageSize) -> Result<RangeSet, CallError> {
            Err(GONE)
        }
        fn space(&mut self) -> Result<AddressSpace, CallError> {
            Err(GONE)
        }
    }

    #[test]
    fn an_executor_that_knows_no_images_says_so_by_enosys() {
        let nowhere = AddressRange::new(Address(0), Address(0));
        let image = FileMapping { path: "/run/images/1", offset: 0, protection: Protection::READ };
        let elsewhere = Gone.map_file(image, 0).unwrap_err();
        let in_place = Gone.map_file_at(image, nowhere).unwrap_err();
        assert_eq!([elsewhere.errno, in_place.errno], [ENOSYS; 2]);
        assert_eq!(in_place.to_string(), "mapping a shared image in place: Function not implemented (os error 38)");
    }
}
