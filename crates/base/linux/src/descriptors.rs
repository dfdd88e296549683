//! Descriptors of other processes, and the number that this process may have.

use crate::process_handle::ProcessHandle;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};

/// Raises the usual limit of 1,024 descriptors as far as this user may: one for each event on each CPU, or of each thread, can
/// be more. If it cannot be raised, the kernel refuses the events that exceed the limit.
pub fn allow_most() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

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
