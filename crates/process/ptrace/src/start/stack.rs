//! A stack for a process that shares the memory of this one.

use linux::pages::base_page;
use std::ffi::c_void;
use std::io;
use std::ptr::null_mut;

/// Size in bytes: the kernel's default for a main thread. Only used pages become resident.
const BYTES: usize = 8 << 20;

/// Memory for a stack, with a guard page below it.
pub struct Stack {
    start: *mut c_void,
}

impl Stack {
    /// # Errors
    /// The kernel's: no memory.
    pub fn new() -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
        // SAFETY:
        // - a new mapping, at an address that the kernel chooses.
        let start = unsafe { libc::mmap(null_mut(), BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stack = Self { start };
        // SAFETY:
        // - the first page of memory that is not used yet.
        if unsafe { libc::mprotect(start, base_page().bytes() as usize, libc::PROT_NONE) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // A huge page would have to be cleared for a few kilobytes. Kernels without transparent huge pages refuse the
        // advice.
        // SAFETY:
        // - advice that keeps all contents.
        unsafe { libc::madvise(start, BYTES, libc::MADV_NOHUGEPAGE) };
        Ok(stack)
    }

    /// The upper end of the stack, from which it grows down. Aligned to a page.
    pub fn end(&self) -> *mut c_void {
        self.start.wrapping_byte_add(BYTES)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY:
        // - this memory was mapped by `new`, and the process that ran on it has ended.
        unsafe { libc::munmap(self.start, BYTES) };
    }
}
