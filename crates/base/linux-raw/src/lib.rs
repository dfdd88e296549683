//! System calls without a C library, for code that runs without one, below one, or while memory is being moved or
//! shared with another process: these functions do not touch `errno`, allocate (unless they return a `RangeSet`), take
//! a lock, or panic, and they are no cancellation points (pthreads(7)).
//!
//! A function returns the kernel's error number as [`Errno`]; the manual page of the call that it is named after says
//! which there are. The kernel's constants and structures are in [`kernel`].
//! [`loaded_objects`] reads what the dynamic linker has loaded, without its functions.
#![cfg_attr(not(test), no_std)]
#![deny(unsafe_op_in_unsafe_fn)]

#[cfg(feature = "std")]
extern crate std;

#[cfg(target_arch = "aarch64")]
mod aarch64;
pub mod directory;
mod file_identity;
mod files;
pub mod loaded_objects;
mod lock;
mod memory;
pub mod pagemap;
mod process;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64::system_call;
#[cfg(target_arch = "aarch64")]
pub use aarch64::{stack_pointer, thread_pointer};
#[cfg(target_arch = "x86_64")]
use x86_64::system_call;
#[cfg(target_arch = "x86_64")]
pub use x86_64::{stack_pointer, thread_pointer};

pub use file_identity::{FileIdentity, device_number, device_numbers};
pub use files::{
    CachedPages, cached_pages, cached_status, close, evict, ioctl, open, read, read_at, read_link, read_to,
    read_uninterrupted, status_of, userfaultfd, write, write_pieces,
};
/// The kernel's constants and structures, generated from its headers.
pub use linux_raw_sys as kernel;
pub use lock::Lock;
pub use memory::{fill_hole, madvise, mbind, mmap, mprotect, mremap, mremap_to, munmap, name_memory, process_vm_readv};
#[rustfmt::skip]
pub use process::{
    ALL_SIGNALS, abort, close_all, execute, exit, forget_thread_word, futex_wait, futex_wait_at_most, futex_wake,
    futex_wake_one, kernel_release, monotonic_microseconds, process_id, set_child_subreaper, set_ptracer, set_signal_mask, thread_id, wait_for_end,
};

/// An error number, positive, as in errno(3).
pub type Errno = i32;

/// Highest error number that a system call returns, negated (Linux, `include/linux/err.h`).
const MAX_ERRNO: isize = 4095;

/// Makes the system call `number` and returns its result.
///
/// # Errors
/// The kernel's error number.
///
/// # Safety
/// As for the system call that is made.
pub unsafe fn call(number: u32, arguments: [usize; 6]) -> Result<usize, Errno> {
    // SAFETY:
    // - the caller's promise.
    let result = unsafe { system_call(number as usize, arguments) };
    if (-MAX_ERRNO..0).contains(&result) { Err(-result as Errno) } else { Ok(result as usize) }
}

/// As [`call`], with fewer arguments; the rest are 0.
///
/// # Errors
/// The kernel's error number.
///
/// # Safety
/// As for the system call that is made.
pub unsafe fn call_with<const COUNT: usize>(number: u32, arguments: [usize; COUNT]) -> Result<usize, Errno> {
    const { assert!(COUNT <= 6, "a system call has at most six arguments") };
    let arguments = core::array::from_fn(|index| arguments.get(index).copied().unwrap_or(0));
    // SAFETY:
    // - the caller's promise.
    unsafe { call(number, arguments) }
}
