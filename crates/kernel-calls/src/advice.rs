//! Advice on the memory of another process (process_madvise(2)).

use crate::numbers::MADV_COLLAPSE;
use address_space::AddressRange;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// `MADV_COLLAPSE` on a range of another process (Linux 6.1; needs CAP_SYS_NICE and the right to trace it).
///
/// # Errors
/// The kernel's, where any huge page of the range could not be made.
pub fn collapse(pid: i32, range: AddressRange) -> io::Result<()> {
    // SAFETY:
    // - pidfd_open takes two integers and touches no memory of ours.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if pidfd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY:
    // - the call has just returned this descriptor, and nobody else owns it.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd as i32) };
    let vector = [range.start().0, range.len()];
    // SAFETY:
    // - the vector is one iovec: an address, which is the other process's and is not looked at here, and a length.
    let advised =
        unsafe { libc::syscall(libc::SYS_process_madvise, pidfd.as_raw_fd(), vector.as_ptr(), 1, MADV_COLLAPSE, 0) };
    match advised {
        -1 => Err(io::Error::last_os_error()),
        bytes if bytes as u64 == range.len() => Ok(()),
        _ => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
    }
}
