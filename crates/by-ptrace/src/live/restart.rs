//! System calls that a stop makes fail though no signal was delivered.
//!
//! Most interrupted calls are made again by the kernel itself. Some give EINTR whenever their thread was stopped
//! (signal(7), "Interruption of system calls and library functions by stop signals"); these are made again here, so that
//! the program never sees an error that it would not have seen without us.

use super::call_before::{CallBefore, switches};
use crate::arch::{self, Interrupted, Registers};
use crate::requests;
use address_space::Address;
use nix::errno::Errno;
use nix::unistd::Pid;

/// So many of the calls below always give EINTR; the others do for some descriptors and arguments.
#[cfg(target_arch = "x86_64")]
const FREQUENT: usize = 6;
/// As above; there is no plain `epoll_wait`.
#[cfg(target_arch = "aarch64")]
const FREQUENT: usize = 5;

/// Calls that give EINTR after a stop and can simply be made again.
const REPEATABLE: [i64; FREQUENT + 4] = [
    #[cfg(target_arch = "x86_64")]
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

/// Lets a stopped thread make its call again where our stop has made it fail: it failed with EINTR, and no signal was
/// delivered, for the stop is not that of a signal. `before`: the call it slept in right before, where that is needed.
/// True where the thread is now about to make that call.
pub fn mend(process: Pid, thread: Pid, before: Option<&CallBefore>) -> Result<bool, Errno> {
    let mut registers = requests::registers(thread)?;
    let first_argument = match before {
        _ if arch::SHOWS_CALLS => shown_argument(&registers),
        Some(before) if REPEATABLE.contains(&before.number) => {
            // The registers could be read, so the thread has come to rest, and its switches are counted.
            let stopped = seen(process, thread, &registers);
            if before.is_next(&stopped) {
                return Ok(true);
            }
            before.first_argument(&stopped).filter(|_| arch::result(&registers) == -i64::from(libc::EINTR))
        }
        _ => None,
    };
    let Some(first_argument) = first_argument else { return Ok(false) };
    arch::make_again(&mut registers, first_argument);
    requests::set_registers(thread, &registers)?;
    Ok(true)
}

fn shown_argument(registers: &Registers) -> Option<u64> {
    let (number, arguments) = arch::call_registers(registers);
    let ours = arch::interrupted(registers) == Interrupted::WithError && REPEATABLE.contains(&number);
    ours.then_some(arguments[0])
}

/// What the stopped thread shows of the call that it was in.
fn seen(process: Pid, thread: Pid, registers: &Registers) -> CallBefore {
    let (number, arguments) = arch::call_registers(registers);
    let Address(stack) = arch::stack_pointer(registers);
    let Address(behind) = arch::instruction_pointer(registers);
    CallBefore { number, arguments, stack, behind, switches: switches(process, thread.as_raw()) }
}
