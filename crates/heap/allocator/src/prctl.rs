//! prctl(2), by which a program begins a sandbox (`sandbox`).

use crate::c_library::PRCTL;
use crate::sandbox;
use crate::sys::{set_errno, system_call};
use core::ffi::{c_int, c_ulong, c_void};

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
        sandbox::begins();
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
