//! Extended attributes of files (xattr(7)).

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// The longest value, and the longest list of names (`XATTR_SIZE_MAX` and `XATTR_LIST_MAX`, linux/limits.h).
const LONGEST: usize = 64 << 10;

/// Reads an extended attribute into `value` and returns its length in bytes.
///
/// # Errors
/// The kernel's: `ENODATA` where the file has no such attribute, `EOPNOTSUPP` where its file system has none, `ERANGE`
/// where `value` is too short.
pub fn get(path: &CStr, name: &CStr, value: &mut [u8]) -> io::Result<usize> {
    // SAFETY:
    // - both names end with NUL, and `value` has room for as many bytes as its length says.
    length(unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) })
}

/// Returns the length in bytes of an extended attribute of a file, or of a symbolic link itself.
///
/// # Errors
/// The kernel's: `ENODATA` where the file has no such attribute, `EOPNOTSUPP` where its file system has none.
pub fn length_without_following(path: &CStr, name: &CStr) -> io::Result<usize> {
    // SAFETY:
    // - both names end with NUL; a value of no bytes asks for the length only (getxattr(2)).
    length(unsafe { libc::lgetxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) })
}

/// Returns an extended attribute of an open file.
///
/// # Errors
/// The kernel's: `ENODATA` where the file has no such attribute, `EOPNOTSUPP` where its file system has none.
pub fn of_file(file: &File, name: &CStr) -> io::Result<Vec<u8>> {
    let mut value = vec![0; LONGEST];
    // SAFETY:
    // - the name ends with NUL, and `value` has room for as many bytes as its length says.
    let result = unsafe { libc::fgetxattr(file.as_raw_fd(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    value.truncate(length(result)?);
    value.shrink_to_fit();
    Ok(value)
}

/// Returns the names of an open file's extended attributes, as far as the caller may see them.
///
/// # Errors
/// The kernel's: `EOPNOTSUPP` where its file system has none.
pub fn names_of(file: &File) -> io::Result<Vec<CString>> {
    let mut list = vec![0_u8; LONGEST];
    // SAFETY:
    // - `list` has room for as many bytes as its length says.
    let result = unsafe { libc::flistxattr(file.as_raw_fd(), list.as_mut_ptr().cast(), list.len()) };
    list.truncate(length(result)?);
    let names = list.split(|&byte| byte == 0).filter(|name| !name.is_empty());
    Ok(names.filter_map(|name| CString::new(name).ok()).collect())
}

/// Returns the extended attributes of an open file, as far as the caller may see them; none if the file system has none.
///
/// # Errors
/// The kernel's.
pub fn all_of(file: &File) -> io::Result<BTreeMap<CString, Vec<u8>>> {
    let names = match names_of(file) {
        Ok(names) => names,
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(BTreeMap::new()),
        Err(error) => return Err(error),
    };
    let mut all = BTreeMap::new();
    for name in names {
        match of_file(file, &name) {
            Ok(value) => drop(all.insert(name, value)),
            // Removed since the names were read.
            Err(error) if error.raw_os_error() == Some(libc::ENODATA) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// Sets an extended attribute of an open file.
///
/// # Errors
/// The kernel's.
pub fn set(file: &File, name: &CStr, value: &[u8]) -> io::Result<()> {
    // SAFETY:
    // - the name ends with NUL, and `value` has as many bytes as its length says.
    let result = unsafe { libc::fsetxattr(file.as_raw_fd(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Removes an extended attribute of an open file.
///
/// # Errors
/// The kernel's: `ENODATA` where the file has no such attribute.
pub fn remove(file: &File, name: &CStr) -> io::Result<()> {
    // SAFETY:
    // - the name ends with NUL.
    let result = unsafe { libc::fremovexattr(file.as_raw_fd(), name.as_ptr()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn length(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}
