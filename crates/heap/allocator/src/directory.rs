//! Directories of `/proc` whose entries are numbers.

use crate::sys::close;
use core::ffi::CStr;
use core::ops::ControlFlow;
use linux_raw::directory::for_each_name;

/// Calls `each` with every entry that is a number, as long as it returns true. `None` if it returned false, or if the
/// directory could not be read to its end.
pub fn for_each_number(path: &CStr, mut each: impl FnMut(u32) -> bool) -> Option<()> {
    let directory = linux_raw::open(path, libc::O_DIRECTORY as u32).ok()?;
    let end = for_each_name(directory, &mut [0; 4096], |name| {
        let number = name.to_str().ok().and_then(|name| name.parse().ok());
        if number.is_none_or(&mut each) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    // SAFETY:
    // - opened above, and used no more.
    unsafe { close(directory) };
    (end == Ok(ControlFlow::Continue(()))).then_some(())
}
