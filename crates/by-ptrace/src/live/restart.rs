//! System calls that a stop makes fail though no signal was handled.
//!
//! Most interrupted calls are made again by the kernel itself. Some give EINTR whenever their thread was stopped
//! (signal(7), "Interruption of system calls and library functions by stop signals"); these are made again here, so that
//! the program never sees an error that it would not have seen without us.

use super::borrowing::is_at_call;
use super::call_before::CallBefore;
use crate::RemoteMemory;
use crate::arch::{self, Interrupted, Registers};
use crate::requests;
use crate::status::ThreadStatus;
use address_space::Address;
use kernel_calls::interrupted::IO_PGETEVENTS;
pub use kernel_calls::interrupted::{can_be_repeated, gives_error};
use nix::errno::Errno;
use nix::unistd::Pid;

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

/// True for a call of a thread that has children, or is about to have one.
pub fn concerns_children(number: i64) -> bool {
    CONCERNING_CHILDREN.contains(&number)
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
    let first_argument = if arch::SHOWS_CALLS {
        shown_argument(&registers)
    } else if handles_a_signal(thread, signal) {
        None
    } else {
        let stopped = seen(&registers);
        if before.is_some_and(|before| before.is_next(&stopped)) {
            return Ok(true);
        }
        let ended = arch::result(&registers) == -i64::from(libc::EINTR) && can_be_repeated(stopped.number);
        if ended { hidden_argument(process, thread, &stopped, before) } else { None }
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
        // Where a call for us has failed, it may stand elsewhere.
        let is_there = RemoteMemory::open(thread.as_raw()).is_ok_and(|memory| is_at_call(&memory, &registers));
        if is_there && can_be_repeated(arch::call_registers(&registers).0) {
            arch::give_error(&mut registers);
            requests::set_registers(thread, &registers)?;
        }
    }
    Ok(())
}

/// True where a handler will be run for the signal, or for one that is pending.
fn handles_a_signal(thread: Pid, signal: i32) -> bool {
    let status = ThreadStatus::read(thread);
    status.has_signal_to_handle() || (signal != 0 && status.handles(signal))
}

/// The first argument of a call that a thread stands behind and that has failed, as the kernel has kept it. It has kept
/// that of the last call; which was another, rt_sigreturn, where a handler has run since. It is this call's where the
/// thread was seen to wait in it with the same, or where no handler can have run.
fn hidden_argument(process: Pid, thread: Pid, stopped: &CallBefore, before: Option<&CallBefore>) -> Option<u64> {
    let kept = arch::kept_first_argument(process, thread, stopped.number).ok().flatten()?;
    let was_seen = before.is_some_and(|before| before.is_ended_by(stopped) && before.arguments[0] == kept);
    (was_seen || (is_behind_call(process, stopped) && !may_run_handlers(thread, stopped))).then_some(kept)
}

fn is_behind_call(process: Pid, stopped: &CallBefore) -> bool {
    let length = arch::SYSCALL_INSTRUCTION.len();
    let mut code = vec![0; length];
    let read = RemoteMemory::open(process.as_raw())
        .and_then(|memory| memory.read(Address(stopped.behind.wrapping_sub(length as u64)), &mut code));
    read.is_ok() && code == arch::SYSCALL_INSTRUCTION
}

/// False where the thread blocks every signal that its process handles, and the call lets in no other.
fn may_run_handlers(thread: Pid, call: &CallBefore) -> bool {
    let status = ThreadStatus::read(thread);
    let own_mask = match call.number {
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => call.arguments[4] != 0,
        IO_PGETEVENTS => call.arguments[5] != 0,
        libc::SYS_io_uring_enter => call.arguments[4] != 0,
        _ => false,
    };
    status.handles_any() && (own_mask || status.handles_any_unblocked())
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
