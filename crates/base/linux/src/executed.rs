//! The path by which this program was executed.

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Returns the path that was passed to execve(2), which may lead through links and may be relative to the working
/// folder at that time. It exists without /proc too, for example while a package manager works in another root. `None`
/// if the kernel passed none.
pub fn executed_path() -> Option<PathBuf> {
    // SAFETY:
    // - getauxval(3) reads what the kernel has given to this process, and needs nothing.
    let at = unsafe { libc::getauxval(libc::AT_EXECFN) } as *const c_char;
    if at.is_null() {
        return None;
    }
    // SAFETY:
    // - AT_EXECFN is the address of a string that ends with NUL, which the kernel has put above the stack.
    // - nothing in this program writes there, and it stays as long as the process.
    let path = unsafe { CStr::from_ptr(at) };
    Some(PathBuf::from(OsStr::from_bytes(path.to_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_leads_to_this_program() {
        let path = executed_path().unwrap().canonicalize().unwrap();
        assert_eq!(path, std::env::current_exe().unwrap().canonicalize().unwrap());
    }
}
