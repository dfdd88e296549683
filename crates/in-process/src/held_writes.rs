//! Holds the writes of other threads to some ranges for a moment, by the kernel's hand: `userfaultfd` in its mode for
//! write protection (Documentation/admin-guide/mm/userfaultfd.rst). Whoever writes, the kernel for a system call
//! included, waits until the hold ends; nobody sees an error or a signal.
//!
//! The thread that holds must not write to these ranges itself, and must not wait for a thread that does.

use crate::calls;
use address_space::AddressRange;
use alloc::vec::Vec;
use linux_raw_sys::general as linux;
use linux_raw_sys::ioctl::{UFFDIO_API, UFFDIO_REGISTER, UFFDIO_UNREGISTER, UFFDIO_WRITEPROTECT};

/// In a request to protect: protect, instead of taking the protection away (`linux/userfaultfd.h`).
const UFFDIO_WRITEPROTECT_MODE_WP: u64 = 1;

/// Protected ranges. Ends with [`HeldWrites::release`] or [`HeldWrites::leave_to_parent`].
pub struct HeldWrites {
    descriptor: i32,
    ranges: Vec<AddressRange>,
}

impl HeldWrites {
    /// Holds all writes from now on. None where the kernel does not do so: it needs Linux 5.19, and CAP_SYS_PTRACE or
    /// `vm.unprivileged_userfaultfd` = 1.
    pub fn hold(ranges: impl IntoIterator<Item = AddressRange>) -> Option<Self> {
        let mut held = Self { descriptor: open()?, ranges: Vec::new() };
        for range in ranges {
            if held.add(range).is_none() {
                held.release();
                return None;
            }
        }
        Some(held)
    }

    /// True where this process may do so.
    pub fn is_allowed() -> bool {
        open().map(calls::close).is_some()
    }

    fn add(&mut self, range: AddressRange) -> Option<()> {
        let wanted = as_kernel_has_it(range);
        let mode = u64::from(linux::UFFDIO_REGISTER_MODE_WP);
        let mut register = linux::uffdio_register { range: wanted, mode, ioctls: 0 };
        // SAFETY:
        // - the structure is what the request wants; registering changes no contents.
        unsafe { calls::ioctl(self.descriptor, UFFDIO_REGISTER, &mut register) }.ok()?;
        self.ranges.push(range);
        self.protect(range, UFFDIO_WRITEPROTECT_MODE_WP)
    }

    fn protect(&self, range: AddressRange, mode: u64) -> Option<()> {
        let mut protect = linux::uffdio_writeprotect { range: as_kernel_has_it(range), mode };
        // SAFETY:
        // - the structure is what the request wants; whoever writes waits, and no contents change.
        unsafe { calls::ioctl(self.descriptor, UFFDIO_WRITEPROTECT, &mut protect) }.ok().map(drop)
    }

    /// Lets everybody go on.
    pub fn release(self) {
        for range in &self.ranges {
            // Taking the protection away wakes those who wait; unregistering alone would not.
            let _ = self.protect(*range, 0);
            let mut range = as_kernel_has_it(*range);
            // SAFETY:
            // - as for `register`.
            let _ = unsafe { calls::ioctl(self.descriptor, UFFDIO_UNREGISTER, &mut range) };
        }
        // Closing wakes whoever should still wait.
        calls::close(self.descriptor);
    }

    /// In a child: the hold is the parent's, only its descriptor was inherited.
    pub fn leave_to_parent(self) {
        calls::close(self.descriptor);
    }
}

/// A descriptor that agreed on write protection of pool pages.
fn open() -> Option<i32> {
    let descriptor = calls::userfaultfd(linux::O_CLOEXEC).ok()?;
    let features = u64::from(linux::UFFD_FEATURE_PAGEFAULT_FLAG_WP | linux::UFFD_FEATURE_WP_HUGETLBFS_SHMEM);
    let mut api = linux::uffdio_api { api: u64::from(linux::UFFD_API), features, ioctls: 0 };
    // SAFETY:
    // - the structure is what the request wants.
    if unsafe { calls::ioctl(descriptor, UFFDIO_API, &mut api) }.is_err() {
        calls::close(descriptor);
        return None;
    }
    Some(descriptor)
}

fn as_kernel_has_it(range: AddressRange) -> linux::uffdio_range {
    linux::uffdio_range { start: range.start().0, len: range.len() }
}
