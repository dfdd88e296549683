//! Descriptors of other processes.

use crate::process_handle::ProcessHandle;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};

/// Duplicates a descriptor of another process (`pidfd_getfd`, Linux 5.6).
///
/// # Errors
/// The kernel's: no such process or descriptor, no permission to trace it, or an older kernel.
pub fn duplicate_of(pid: i32, descriptor: i32) -> io::Result<File> {
    let pidfd = ProcessHandle::open(pid)?;
    // SAFETY:
    // - pidfd_getfd takes three integers and touches no memory of this process.
    let copy = unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), descriptor, 0) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY:
    // - the call has just returned this descriptor, and nothing else owns it.
    Ok(unsafe { File::from_raw_fd(copy as i32) })
}
