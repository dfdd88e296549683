//! Python's variable PYTHONMALLOC, for a program whose order requests it. It is not in the environment, since all
//! children would inherit it: Python reads it by getenv(3), after this library's constructor has run.

use crate::c_library::GET_VARIABLE;
use crate::objects;
use core::ffi::{CStr, c_char, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

const NAME: &CStr = c"PYTHONMALLOC";
const VALUE: &CStr = c"malloc";
/// A function that Python has only if it is built without its global lock (`Py_GIL_DISABLED`). Such a Python does not
/// know this value and exits.
const FREE_THREADED: &CStr = c"_Py_DecRefShared";

static IS_ASKED_FOR: AtomicBool = AtomicBool::new(false);

/// Answers Python's question from now on, unless this Python cannot have its objects from `malloc`.
///
/// # Safety
/// The process has one thread.
pub unsafe fn use_malloc() {
    // SAFETY:
    // - the caller's promise.
    IS_ASKED_FOR.store(!unsafe { objects::define(FREE_THREADED) }, Relaxed);
}

/// getenv(3), with an answer for Python if the user has set none.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getenv(name: *const c_char) -> *mut c_char {
    // SAFETY:
    // - the caller's promise: the name ends with NUL, and so does a value.
    unsafe {
        let value = real(name);
        let is_answered = !value.is_null() && !CStr::from_ptr(value).is_empty();
        if !is_answered && IS_ASKED_FOR.load(Relaxed) && CStr::from_ptr(name) == NAME {
            return VALUE.as_ptr().cast_mut();
        }
        value
    }
}

/// # Safety
/// As for getenv(3).
unsafe fn real(name: *const c_char) -> *mut c_char {
    let Some(function) = GET_VARIABLE.get() else { return null_mut() };
    // SAFETY:
    // - the symbol is the C library's function of this type; the caller's promise.
    unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char) -> *mut c_char>(function)(name) }
}
