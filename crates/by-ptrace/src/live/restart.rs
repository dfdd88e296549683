//! System calls that a stop makes fail though no signal was handled.
//!
//! Most interrupted calls are made again by the kernel itself. Some give EINTR whenever their thread was stopped
//! (signal(7), "Interruption of system calls and library functions by stop signals"); these are made again here, so that
//! the program never sees an error that it would not have seen without us.

use super::call_before::CallBefore;
use crate::arch::{self, Interrupted, Registers};
use crate::requests;
use crate::status::ThreadStatus;
use address_space::Address;
use nix::errno::Errno;
use nix::unistd::Pid;

/// io_pgetevents(2) (Linux 4.18), which libc does not name.
#[cfg(target_arch = "x86_64")]
const IO_PGETEVENTS: i64 = 333;
#[cfg(target_arch = "aarch64")]
const IO_PGETEVENTS: i64 = 292;

/// Calls that give EINTR after any stop, and can simply be made again.
const FREQUENT: &[i64] = &[
    #[cfg(target_arch = "x86_64")]
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

/// Calls of a thread that has children, or is about to have one.
const CONCERNING_CHILDREN: &[i64] = &[
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_clone,
    libc::SYS_clone3,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
];

/// True for a call that gives EINTR after any stop.
pub fn gives_error(number: i64) -> bool {
    FREQUENT.contains(&number)
}

/// True for a call of a thread that has children, or is about to have one.
pub fn concerns_children(number: i64) -> bool {
    CONCERNING_CHILDREN.contains(&number)
}

/// True for a call that may give EINTR after a stop, and can simply be made again.
pub fn can_be_repeated(number: i64) -> bool {
    FREQUENT.contains(&number) || FOR_SOME_FILES.contains(&number)
}

/// Lets a stopped thread make its call again where it failed with EINTR, unless a signal is handled before: what our
/// stop, or a signal that only passes because of it, has made fail is made again; what a signal of the program's own
/// has interrupted still gives EINTR. `signal`: what the thread has stopped for, 0 for our own stop. `before`: the call
/// it was last seen to wait in, where that is needed. True where the thread is now about to make that call.
///
/// # Errors
/// ptrace's; the thread has been killed.
pub fn mend(process: Pid, thread: Pid, signal: i32, before: Option<&CallBefore>) -> Result<bool, Errno> {
    let mut registers = requests::registers(thread)?;
    let first_argument = match before {
        _ if arch::SHOWS_CALLS => shown_argument(&registers),
        Some(before) if can_be_repeated(before.number) && !handles_a_signal(thread, signal) => {
            let stopped = seen(&registers);
            if before.is_next(&stopped) {
                return Ok(true);
            }
            let is_same = arch::result(&registers) == -i64::from(libc::EINTR) && before.is_ended_by(&stopped);
            // The kernel has kept it for the call that a thread made last: a handler that ran since has made others.
            let kept = || arch::kept_first_argument(process, thread, before.number).ok().flatten();
            (is_same && kept() == Some(before.arguments[0])).then_some(before.arguments[0])
        }
        _ => None,
    };
    let Some(first_argument) = first_argument else { return Ok(false) };
    arch::make_again(&mut registers, first_argument);
    requests::set_registers(thread, &registers)?;
    Ok(true)
}

/// Takes that back where the thread has got a signal to handle meanwhile, and the kernel does not do so itself.
///
/// # Errors
/// ptrace's; the thread has been killed.
pub fn give_way_to_signals(thread: Pid) -> Result<(), Errno> {
    if !arch::SHOWS_CALLS && handles_a_signal(thread, 0) {
        let mut registers = requests::registers(thread)?;
        arch::give_error(&mut registers);
        requests::set_registers(thread, &registers)?;
    }
    Ok(())
}

/// True where a handler will be run for the signal, or for one that is pending.
fn handles_a_signal(thread: Pid, signal: i32) -> bool {
    let status = ThreadStatus::read(thread);
    status.has_signal_to_handle() || (signal != 0 && status.handles(signal))
}

fn shown_argument(registers: &Registers) -> Option<u64> {
    let (number, arguments) = arch::call_registers(registers);
    let ours = arch::interrupted(registers) == Interrupted::WithError && can_be_repeated(number);
    ours.then_some(arguments[0])
}

/// What the stopped thread shows of the call that it was in.
fn seen(registers: &Registers) -> CallBefore {
    let (number, arguments) = arch::call_registers(registers);
    let Address(stack) = arch::stack_pointer(registers);
    let Address(behind) = arch::instruction_pointer(registers);
    CallBefore { number, arguments, stack, behind }
}
