//! Sandboxes that the program makes for itself: seccomp filters end it at calls that they do not expect (seccomp(2)). The C
//! library's allocator makes no others than mmap, munmap, mremap, mprotect, madvise and brk, so that from then on this heap
//! does without calls that only make it faster, or find out why a mapping has failed.
//!
//! A filter of the program's needs a call of prctl(2) before: PR_SET_SECCOMP sets one, and seccomp(2), also in libseccomp, needs
//! PR_SET_NO_NEW_PRIVS from all but privileged programs. Filters from before the start of the program must allow what it
//! executes, and so what this heap calls. A call of prctl that does not go through the C library is not seen.

use crate::c_library::PRCTL;
use crate::sys::{set_errno, system_call};
use core::ffi::{c_int, c_ulong, c_void};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

unsafe extern "C" {
    /// Defined in `own_calls.h`.
    #[link_name = "mimalloc_in_sandbox"]
    safe static IS_ENTERED: AtomicBool;
}

/// True once the program has begun to set a filter.
pub fn is_entered() -> bool {
    IS_ENTERED.load(Relaxed)
}

type Prctl = unsafe extern "C" fn(c_int, c_ulong, c_ulong, c_ulong, c_ulong) -> c_int;

/// prctl(2). The C library's is variadic: like it, this passes four arguments on, whatever they hold.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(
    option: c_int,
    second: c_ulong,
    third: c_ulong,
    fourth: c_ulong,
    fifth: c_ulong,
) -> c_int {
    if matches!(option, libc::PR_SET_SECCOMP | libc::PR_SET_NO_NEW_PRIVS) {
        IS_ENTERED.store(true, Relaxed);
    }
    if let Some(next) = PRCTL.get() {
        // SAFETY:
        // - the symbol is a function that takes these arguments from the same places; the caller's promise.
        return unsafe { core::mem::transmute::<*mut c_void, Prctl>(next)(option, second, third, fourth, fifth) };
    }
    let arguments = [option as usize, second as usize, third as usize, fourth as usize, fifth as usize];
    // SAFETY:
    // - the caller's promise.
    match unsafe { system_call(libc::SYS_prctl, arguments) } {
        Ok(result) => result as c_int,
        Err(error) => {
            set_errno(error as c_int);
            -1
        }
    }
}
