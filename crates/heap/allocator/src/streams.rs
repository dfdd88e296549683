//! The C library's lock of its list of streams, around a fork.
//!
//! glibc's fork takes that lock after the handlers have run, and its own heap's locks after it. This heap's locks are taken by a
//! handler, so they would be first: while the forking thread waits for the list, which a thread in `fflush(NULL)` holds, that
//! thread can wait for a stream, and the stream's thread for memory. So the list is locked before the heap, as glibc does
//! (posix/fork.c, glibc 2.36). The lock is recursive.

use crate::c_library::{LOCK_STREAMS, RESET_STREAMS, UNLOCK_STREAMS};
use crate::locks::this_thread;
use crate::threads::is_only_one;
use crate::turn::is_nested;
use core::ffi::c_void;
use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// The thread that holds the lock for its fork; 0 if there is none.
static HELD_BY: AtomicUsize = AtomicUsize::new(0);

/// Locks the list, unless a fork of this thread around this one has. glibc takes it only if there are other threads.
pub fn lock() {
    if is_only_one() || HELD_BY.load(SeqCst) == this_thread() || UNLOCK_STREAMS.get().is_none() {
        return;
    }
    // SAFETY:
    // - the symbol is the C library's function of this type.
    if unsafe { call(LOCK_STREAMS.get()) } {
        HELD_BY.store(this_thread(), SeqCst);
    }
}

/// Unlocks it in the parent, after the outermost fork.
pub fn unlock() {
    if is_nested() || HELD_BY.compare_exchange(this_thread(), 0, SeqCst, SeqCst).is_err() {
        return;
    }
    // SAFETY:
    // - as in `lock`; this thread has locked it.
    unsafe { call(UNLOCK_STREAMS.get()) };
}

/// Unlocks it in the child, in which glibc resets the lock if it saw other threads. A fork around this one holds it again.
///
/// # Safety
/// The process has one thread.
pub unsafe fn forget() {
    let is_own = HELD_BY.swap(0, SeqCst) == this_thread();
    // SAFETY:
    // - the symbol is the C library's function of this type; by the caller's promise no other thread uses the lock.
    if is_own && unsafe { call(RESET_STREAMS.get()) } && is_nested() {
        // SAFETY:
        // - as in `lock`.
        unsafe { call(LOCK_STREAMS.get()) };
        HELD_BY.store(this_thread(), SeqCst);
    }
}

/// Calls a function that takes and returns nothing; false if there is none.
///
/// # Safety
/// It is such a function, and may be called now.
unsafe fn call(function: Option<*mut c_void>) -> bool {
    let Some(function) = function else { return false };
    // SAFETY:
    // - the caller's promise.
    unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C" fn()>(function)() };
    true
}
