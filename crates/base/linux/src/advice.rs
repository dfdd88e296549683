//! Advice on the memory of another process (process_madvise(2)).

use crate::constants::MADV_COLLAPSE;
use crate::process_handle::ProcessHandle;
use crate::watch::watched;
use address_space::AddressRange;
use std::io;
use std::os::fd::AsRawFd;

/// As [`collapse_in`], of the process that has this PID now.
///
/// # Errors
/// The kernel's, also that there is no such process.
pub fn collapse(pid: i32, range: AddressRange) -> io::Result<()> {
    let process = ProcessHandle::open(pid)?;
    watched(|| format!("collapsing {range} of process {pid}"), || collapse_in(&process, range))
}

/// Applies `MADV_COLLAPSE` to a range of another process (Linux 6.1; needs CAP_SYS_NICE and the right to trace it).
///
/// # Errors
/// The kernel's, where a huge page of the range could not be made; `EAGAIN` where only a part of the range was
/// collapsed.
pub fn collapse_in(process: &ProcessHandle, range: AddressRange) -> io::Result<()> {
    let vector = [range.start().0, range.len()];
    // SAFETY:
    // - the vector is one iovec: an address of the other process, which is not accessed here, and a length.
    let advised =
        unsafe { libc::syscall(libc::SYS_process_madvise, process.as_raw_fd(), vector.as_ptr(), 1, MADV_COLLAPSE, 0) };
    match advised {
        -1 => Err(io::Error::last_os_error()),
        bytes if bytes as u64 == range.len() => Ok(()),
        _ => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
    }
}
