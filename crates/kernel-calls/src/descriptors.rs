//! Descriptors of other processes.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A duplicate of another process's descriptor (`pidfd_getfd`, Linux 5.6).
///
/// # Errors
/// The kernel's: no such process or descriptor, no permission to trace it, or no such call.
pub fn duplicate_of(pid: i32, descriptor: i32) -> io::Result<File> {
    // SAFETY:
    // - pidfd_open takes two integers and touches no memory of ours.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if pidfd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY:
    // - the call has just returned this descriptor, and nobody else owns it.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd as i32) };
    // SAFETY:
    // - pidfd_getfd takes three integers and touches no memory of ours.
    let copy = unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), descriptor, 0) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY:
    // - the call has just returned this descriptor, and nobody else owns it.
    Ok(unsafe { File::from_raw_fd(copy as i32) })
}
