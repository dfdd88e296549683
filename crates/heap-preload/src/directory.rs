//! Directories of `/proc` whose entries are numbers.

use crate::sys::{close, open};
use core::ffi::CStr;

/// Calls `each` with every entry that is a number, for as long as it says true; `None` where it said false, or the
/// kernel does not show the whole.
pub fn for_each_number(path: &CStr, mut each: impl FnMut(u32) -> bool) -> Option<()> {
    let directory = open(path, libc::O_DIRECTORY)?;
    let mut buffer = [0u64; 512];
    let whole = loop {
        // SAFETY:
        // - the kernel writes whole records into the buffer, at most its length.
        let length =
            unsafe { libc::syscall(libc::SYS_getdents64, directory, buffer.as_mut_ptr(), size_of_val(&buffer)) };
        if length <= 0 {
            break length == 0;
        }
        if !take_records(&buffer, length as usize, &mut each) {
            break false;
        }
    };
    // SAFETY:
    // - opened above, and used no more.
    unsafe { close(directory) };
    whole.then_some(())
}

/// Records of getdents64(2): inode and offset (8 bytes each), length (2), type (1), name.
fn take_records(buffer: &[u64; 512], length: usize, each: &mut impl FnMut(u32) -> bool) -> bool {
    let mut at = 0;
    while at < length {
        // SAFETY:
        // - the kernel wrote whole records up to `length`, each with its own length and a name that ends with NUL.
        let (size, name) = unsafe {
            let record = buffer.as_ptr().cast::<u8>().add(at);
            (record.add(16).cast::<u16>().read_unaligned() as usize, CStr::from_ptr(record.add(19).cast()))
        };
        at += size;
        let number = name.to_str().ok().and_then(|name| name.parse().ok());
        if number.is_some_and(|number| !each(number)) {
            return false;
        }
    }
    true
}
