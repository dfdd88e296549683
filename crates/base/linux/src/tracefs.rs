//! The kernel's trace files (tracefs), without mounting them anywhere that others see.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Where distributions mount it (Linux, Documentation/trace/ftrace.rst).
const MOUNTED: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// `FSCONFIG_CMD_CREATE` of linux/mount.h.
const CREATE: libc::c_uint = 6;

/// The text of a file below tracefs, for example `events/raw_syscalls/sys_enter/id`. If tracefs is not mounted, it is
/// mounted temporarily, visible only to this process (fsmount(2), Linux 5.2; needs CAP_SYS_ADMIN).
///
/// # Errors
/// The kernel's.
pub fn text_below(path: &str) -> io::Result<String> {
    let found = MOUNTED.iter().find_map(|folder| std::fs::read_to_string(format!("{folder}/{path}")).ok());
    if let Some(text) = found {
        return Ok(text);
    }
    let mount = own_mount()?;
    let mut text = String::new();
    File::open(format!("/proc/self/fd/{}/{path}", mount.as_raw_fd()))?.read_to_string(&mut text)?;
    Ok(text)
}

fn own_mount() -> io::Result<OwnedFd> {
    let name: &CStr = c"tracefs";
    // SAFETY:
    // - the name ends with NUL, and the call writes no memory.
    let context = owned(unsafe { libc::syscall(libc::SYS_fsopen, name.as_ptr(), 1) })?;
    let nothing = std::ptr::null::<libc::c_char>();
    // SAFETY:
    // - this command takes neither key nor value.
    let made = unsafe { libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), CREATE, nothing, nothing, 0) };
    if made == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY:
    // - the call takes numbers only.
    owned(unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), 1, 0) })
}

fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY:
    // - the kernel has just made this descriptor, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(result as RawFd) })
}
