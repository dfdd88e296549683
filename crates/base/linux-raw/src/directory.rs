//! Names in a directory, by getdents64(2) into a buffer of the caller's.

use crate::kernel::general as linux;
use crate::{Errno, call_with};
use core::ffi::CStr;
use core::ops::ControlFlow;

/// Calls `each` with every name in an open directory but `.` and `..`, until it breaks. Reads on from the descriptor's
/// position. A buffer of 280 bytes has room for the longest name; a larger one takes more names for each system call.
///
/// # Errors
/// Those of getdents64(2): `EINVAL` where the buffer has no room for the next name, `ENOENT` where the directory has been
/// removed.
pub fn for_each_name<B>(
    descriptor: i32,
    buffer: &mut [u8],
    mut each: impl FnMut(&CStr) -> ControlFlow<B>,
) -> Result<ControlFlow<B>, Errno> {
    loop {
        let arguments = [descriptor as usize, buffer.as_mut_ptr() as usize, buffer.len()];
        // SAFETY:
        // - the kernel writes at most as many bytes as the buffer has.
        let length = unsafe { call_with(linux::__NR_getdents64, arguments) }?;
        let mut names = Names(buffer.get(..length).unwrap_or_default());
        if length == 0 {
            return Ok(ControlFlow::Continue(()));
        }
        if let broken @ ControlFlow::Break(_) = names.try_for_each(&mut each) {
            return Ok(broken);
        }
    }
}

/// Names in a buffer that `getdents64` has filled: inode and offset of eight bytes each, the entry's length in two, a
/// type, and the name up to a NUL.
struct Names<'a>(&'a [u8]);

impl<'a> Iterator for Names<'a> {
    type Item = &'a CStr;

    fn next(&mut self) -> Option<&'a CStr> {
        const NAME: usize = 19;
        loop {
            let &[low, high] = self.0.get(16..18)? else { return None };
            let (entry, rest) = self.0.split_at_checked(usize::from(u16::from_ne_bytes([low, high])))?;
            self.0 = rest;
            let name = CStr::from_bytes_until_nul(entry.get(NAME..)?).ok()?;
            if !matches!(name.to_bytes(), b"." | b"..") {
                return Some(name);
            }
        }
    }
}
