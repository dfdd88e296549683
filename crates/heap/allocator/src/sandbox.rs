//! Sandboxes that the program makes for itself: seccomp filters end it at calls that they do not expect (seccomp(2)). The C
//! library's allocator makes no others than mmap, munmap, mremap, mprotect, madvise and brk, so that from then on this heap
//! does without calls that only make it faster, or find out why a mapping has failed.
//!
//! A filter of the program's needs a call of prctl(2) before: PR_SET_SECCOMP sets one, and seccomp(2), also in libseccomp, needs
//! PR_SET_NO_NEW_PRIVS from all but privileged programs. Filters from before the start of the program must allow what it
//! executes, and so what this heap calls. A call of prctl that does not go through the C library is not seen (`prctl`).

use core::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};

unsafe extern "C" {
    /// Defined in `own_calls.h`.
    #[link_name = "mimalloc_in_sandbox"]
    safe static IS_ENTERED: AtomicBool;
}

/// The process whose calls count: a child of vfork(2) has the memory of its parent, and another sandbox.
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// Notes that the heap acts in this process.
pub fn is_in_process() {
    PROCESS.store(linux_raw::process_id(), Relaxed);
}

/// True once the program has begun to set a filter.
pub fn is_entered() -> bool {
    IS_ENTERED.load(Relaxed)
}

/// Notes that the calling process is about to set a filter.
pub fn begins() {
    if !is_entered() && linux_raw::process_id() == PROCESS.load(Relaxed) {
        IS_ENTERED.store(true, Relaxed);
    }
}
