//! Holds the writes of other threads to some ranges, by `userfaultfd` in write-protect mode
//! (Documentation/admin-guide/mm/userfaultfd.rst). A thread that writes, also by a system call, waits until the hold ends;
//! it sees neither an error nor a signal.
//!
//! The holding thread must not write to these ranges itself, and must not wait for a thread that does.

use address_space::AddressRange;
use alloc::vec::Vec;
use linux_raw::kernel::general as linux;
use linux_raw::kernel::ioctl::{UFFDIO_API, UFFDIO_REGISTER, UFFDIO_UNREGISTER, UFFDIO_WRITEPROTECT};

/// `UFFDIO_WRITEPROTECT_MODE_WP` (`linux/userfaultfd.h`): protect; without it, the request removes the protection.
const UFFDIO_WRITEPROTECT_MODE_WP: u64 = 1;

/// Protected ranges. Ends with [`HeldWrites::release`] or [`HeldWrites::leave_to_parent`].
pub struct HeldWrites {
    file: FaultFile,
    ranges: Vec<AddressRange>,
}

/// A userfaultfd, closed when dropped, which wakes the threads that still wait.
struct FaultFile(i32);

impl Drop for FaultFile {
    fn drop(&mut self) {
        // SAFETY:
        // - this value has opened the descriptor and ends here.
        unsafe { linux_raw::close(self.0) };
    }
}

impl HeldWrites {
    /// Holds all writes to the ranges from now on. `None` if the kernel refuses: Linux 5.19 is needed, and CAP_SYS_PTRACE or
    /// `vm.unprivileged_userfaultfd` = 1.
    pub fn hold(ranges: impl IntoIterator<Item = AddressRange>) -> Option<Self> {
        let mut held = Self { file: open()?, ranges: Vec::new() };
        for range in ranges {
            if held.add(range).is_none() {
                held.release();
                return None;
            }
        }
        Some(held)
    }

    /// True if this process may hold writes.
    pub fn is_allowed() -> bool {
        open().is_some()
    }

    fn add(&mut self, range: AddressRange) -> Option<()> {
        let wanted = as_kernel_has_it(range);
        let mode = u64::from(linux::UFFDIO_REGISTER_MODE_WP);
        let mut register = linux::uffdio_register { range: wanted, mode, ioctls: 0 };
        // SAFETY:
        // - the structure is what the request wants; registering changes no contents.
        unsafe { linux_raw::ioctl(self.file.0, UFFDIO_REGISTER, &mut register) }.ok()?;
        self.ranges.push(range);
        self.protect(range, UFFDIO_WRITEPROTECT_MODE_WP)
    }

    fn protect(&self, range: AddressRange, mode: u64) -> Option<()> {
        let mut protect = linux::uffdio_writeprotect { range: as_kernel_has_it(range), mode };
        // SAFETY:
        // - the structure is what the request wants; whoever writes waits, and no contents change.
        unsafe { linux_raw::ioctl(self.file.0, UFFDIO_WRITEPROTECT, &mut protect) }.ok().map(drop)
    }

    /// Ends the hold: all waiting threads continue.
    pub fn release(self) {
        for range in &self.ranges {
            // Removing the protection wakes the threads that wait; unregistering alone would not.
            let _ = self.protect(*range, 0);
            let mut range = as_kernel_has_it(*range);
            // SAFETY:
            // - as for `register`.
            let _ = unsafe { linux_raw::ioctl(self.file.0, UFFDIO_UNREGISTER, &mut range) };
        }
    }

    /// Closes the inherited descriptor in a child; the hold is the parent's.
    pub fn leave_to_parent(self) {}
}

/// Opens a userfaultfd that supports write protection of pool pages.
fn open() -> Option<FaultFile> {
    let file = linux_raw::userfaultfd(linux::O_CLOEXEC).map(FaultFile).ok()?;
    let features = u64::from(linux::UFFD_FEATURE_PAGEFAULT_FLAG_WP | linux::UFFD_FEATURE_WP_HUGETLBFS_SHMEM);
    let mut api = linux::uffdio_api { api: u64::from(linux::UFFD_API), features, ioctls: 0 };
    // SAFETY:
    // - the structure is what the request wants.
    unsafe { linux_raw::ioctl(file.0, UFFDIO_API, &mut api) }.ok()?;
    Some(file)
}

fn as_kernel_has_it(range: AddressRange) -> linux::uffdio_range {
    linux::uffdio_range { start: range.start().0, len: range.len() }
}
