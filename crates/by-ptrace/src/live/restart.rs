//! System calls that a stop makes fail though no signal was delivered.
//!
//! Most interrupted calls are made again by the kernel itself. Some give EINTR whenever their thread was stopped
//! (signal(7), "Interruption of system calls and library functions by stop signals"); these are made again here, so that
//! the program never sees an error that it would not have seen without us.

use crate::arch::{self, Interrupted, Registers};
use crate::requests;
use nix::errno::Errno;
use nix::unistd::Pid;

/// So many of the calls below always give EINTR; the others do for some descriptors and arguments.
const FREQUENT: usize = 6;

/// Calls that give EINTR after a stop and can simply be made again.
#[cfg(target_arch = "x86_64")]
const REPEATABLE: [i64; 10] = [
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_read,
    libc::SYS_recvfrom,
    libc::SYS_io_getevents,
    libc::SYS_futex,
];

/// True for a call that gives EINTR after a stop.
pub fn gives_error(number: i64) -> bool {
    REPEATABLE[..FREQUENT].contains(&number)
}

/// True where the thread's call must be made again because of our stop: it failed with EINTR, and no signal was
/// delivered, for the stop is not that of a signal.
pub fn is_our_doing(registers: &Registers) -> bool {
    arch::interrupted(registers) == Interrupted::WithError && REPEATABLE.contains(&arch::interrupted_call(registers))
}

/// Lets a stopped thread make its call again where our stop has made it fail.
pub fn mend(thread: Pid) -> Result<(), Errno> {
    let mut registers = requests::registers(thread)?;
    if is_our_doing(&registers) {
        arch::rewind_call(&mut registers, true);
        requests::set_registers(thread, &registers)?;
    }
    Ok(())
}
