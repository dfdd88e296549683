//! Requests to perf events that no library wraps.

use nix::errno::Errno;
use std::ffi::CStr;
use std::io;
use std::os::fd::AsRawFd;

/// The command of `PERF_EVENT_IOC_SET_FILTER` in linux/perf_event.h.
const SET_FILTER: u8 = 6;

/// Lets a tracepoint's event count and sample only what passes `filter`, an expression over the fields of its format
/// (Documentation/trace/events.rst).
///
/// # Errors
/// The kernel's: EINVAL for an expression that it does not understand.
pub fn set_filter(event: &impl AsRawFd, filter: &CStr) -> io::Result<()> {
    // The request has the size of a pointer in its number, and its argument is the text itself.
    let request = nix::request_code_write!(b'$', SET_FILTER, size_of::<*const libc::c_char>());
    // SAFETY:
    // - the text ends with NUL, and the call only reads it.
    let result = unsafe { libc::ioctl(event.as_raw_fd(), request as _, filter.as_ptr()) };
    Errno::result(result).map(drop).map_err(io::Error::from)
}
