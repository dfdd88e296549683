//! Requests to perf events that no library wraps.

use nix::errno::Errno;
use std::ffi::CStr;
use std::io;
use std::os::fd::AsRawFd;

/// The commands of `PERF_EVENT_IOC_PERIOD` and `PERF_EVENT_IOC_SET_FILTER` in linux/perf_event.h.
const PERIOD: u8 = 4;
const SET_FILTER: u8 = 6;
/// `PERF_EVENT_IOC_PERIOD`, for filters of system calls.
pub const PERF_EVENT_IOC_PERIOD: u64 = nix::request_code_write!(b'$', PERIOD, size_of::<u64>()) as u64;

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

/// Lets an event that is sampled by period take one in `period` events from now on.
///
/// # Errors
/// The kernel's: EINVAL for an event that is not sampled.
pub fn set_period(event: &impl AsRawFd, period: u64) -> io::Result<()> {
    // SAFETY:
    // - the argument points to a number that lives until the call returns, which only reads it.
    let result = unsafe { libc::ioctl(event.as_raw_fd(), PERF_EVENT_IOC_PERIOD as _, &raw const period) };
    Errno::result(result).map(drop).map_err(io::Error::from)
}
