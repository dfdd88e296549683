//! System calls that a stop makes fail though no signal was handled.
//!
//! Most interrupted calls are made again by the kernel itself. Some give EINTR whenever their thread was stopped
//! (signal(7), "Interruption of system calls and library functions by stop signals"); these are made again here, so that
//! the program never sees an error that it would not have seen without us.

use crate::arch::{self, Interrupted};
use crate::requests;
use nix::errno::Errno;
use nix::unistd::Pid;

/// io_pgetevents(2) on x86-64 (Linux 4.18), which libc does not name.
const IO_PGETEVENTS: i64 = 333;

/// Calls that give EINTR after any stop, and can simply be made again.
const FREQUENT: [i64; 9] = [
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_uring_enter,
    libc::SYS_io_getevents,
    IO_PGETEVENTS,
];

/// Calls that give it for some descriptors: files in user space, inotify, sockets with a limit of time. They give it
/// only where they have done nothing yet; a connect that is made again goes on waiting (`inet_stream_connect`).
const FOR_SOME_FILES: [i64; 14] = [
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_futex,
];

/// True for a call that gives EINTR after any stop.
pub fn gives_error(number: i64) -> bool {
    FREQUENT.contains(&number)
}

/// True for a call of a thread that has children, or is about to have one.
pub fn concerns_children(number: i64) -> bool {
    [libc::SYS_wait4, libc::SYS_waitid, libc::SYS_fork, libc::SYS_vfork, libc::SYS_clone, libc::SYS_clone3]
        .contains(&number)
}

/// Lets a stopped thread make its call again where it failed with EINTR, unless a signal is handled before: what our
/// stop, or a signal that only passes because of it, has made fail is made again; what a signal of the program's own
/// has interrupted still gives EINTR.
///
/// # Errors
/// ptrace's; the thread has been killed.
pub fn mend(thread: Pid) -> Result<(), Errno> {
    let mut registers = requests::registers(thread)?;
    let call = arch::interrupted_call(&registers);
    let can_be_repeated = FREQUENT.contains(&call) || FOR_SOME_FILES.contains(&call);
    if arch::interrupted(&registers) == Interrupted::WithError && can_be_repeated {
        arch::make_again_unless_handled(&mut registers);
        requests::set_registers(thread, &registers)?;
    }
    Ok(())
}
