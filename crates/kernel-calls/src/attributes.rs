//! Extended attributes of files (xattr(7)).

use std::ffi::CStr;
use std::io;

/// Reads an extended attribute into `value` and returns its length in bytes.
///
/// # Errors
/// The kernel's: `ENODATA` where the file has no such attribute, `ERANGE` where `value` is too short.
pub fn get(path: &CStr, name: &CStr, value: &mut [u8]) -> io::Result<usize> {
    // SAFETY:
    // - both names end with NUL, and `value` has room for as many bytes as the call is told.
    let length = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    if length < 0 { Err(io::Error::last_os_error()) } else { Ok(length as usize) }
}
