//! Functions that this library's own replace.

use core::ffi::{CStr, c_void};

/// The function of this name in the first object behind this library that has it. Looked up at each call.
pub fn next(name: &CStr) -> Option<*mut c_void> {
    // SAFETY:
    // - the name ends with NUL.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}
