//! Restarts system calls that a stop makes fail although no signal was handled.
//!
//! The kernel restarts most interrupted calls itself. Some fail with EINTR whenever their thread was stopped
//! (signal(7), "Interruption of system calls and library functions by stop signals"); these are restarted here, so that
//! the program never sees an error that only Pagelift has caused.

use super::inflight_syscall::{InflightSyscall, is_at_call};
use crate::remote::RemoteMemory;
use crate::remote::arch::{self, Interrupted, Registers};
use crate::remote::requests;
use crate::remote::status::ThreadStatus;
use crate::remote::timed_wait::TimedWaits;
use address_space::Address;
use linux::interrupted::IO_PGETEVENTS;
pub use linux::interrupted::{can_be_repeated, ends_with_any_handler, gives_error, may_end_in_part};
use nix::errno::Errno;
use nix::unistd::Pid;

/// Calls of a thread that has children or is creating one.
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

/// True for a call of a thread that has children or is creating one.
pub fn concerns_children(number: i64) -> bool {
    CONCERNING_CHILDREN.contains(&number)
}

/// Makes a stopped thread restart its call if that failed with EINTR, unless a signal is handled first: a call is
/// restarted that the stop has made fail, or a signal that is only delivered because of the stop; a call that a handled
/// signal of the program has interrupted still fails with EINTR. `signal` is the signal for which the thread has
/// stopped, 0 for a stop by this process. `before` is the call in which it was last seen to wait, if that is needed;
/// `waits` has the wait of a relative time in which it was seen just before the stop was requested.
/// Returns true if the thread is now about to make that call.
///
/// # Errors
/// Those of ptrace: the thread has been killed.
pub fn restart_interrupted(
    process: Pid,
    thread: Pid,
    signal: i32,
    before: Option<&InflightSyscall>,
    waits: Option<&mut TimedWaits>,
) -> Result<bool, Errno> {
    let mut registers = requests::registers(thread)?;
    if put_back_into_call(process, thread, &registers)? {
        return Ok(true);
    }
    let first_argument = if arch::SHOWS_CALLS {
        shown_argument(&registers)
    } else if handles_a_signal(thread, signal) {
        None
    } else {
        let stopped = seen(&registers);
        if before.is_some_and(|before| before.is_next(&stopped)) {
            // The kernel restarts none of these by itself, so an earlier stop has prepared this restart.
            return Ok(gives_error(stopped.number));
        }
        let ended = arch::result(&registers) == -i64::from(libc::EINTR) && can_be_repeated(stopped.number);
        if ended && !has_own_mask_again(process, thread, &stopped) {
            hidden_argument(process, thread, &stopped, before)
        } else {
            None
        }
    };
    let Some(first_argument) = first_argument else { return Ok(false) };
    let mut stopped = seen(&registers);
    stopped.arguments[0] = first_argument;
    arch::make_again(&mut registers, first_argument);
    if let Some(waits) = waits {
        waits.shorten(thread, &stopped, &mut registers);
    }
    requests::set_registers_of_same_program(thread, &registers)?;
    if !arch::SHOWS_CALLS {
        end_mask_of_call(thread)?;
    }
    Ok(true)
}

/// Returns a thread to its call if it was stopped between the kernel's restart of the call and the call itself, on its
/// way out of an earlier stop. The kernel has decided for this restart that no signal is handled: the handler of a
/// signal that has arrived since would run, and not end the call. Returns false if the thread is elsewhere.
fn put_back_into_call(process: Pid, thread: Pid, registers: &Registers) -> Result<bool, Errno> {
    let mut put_back = *registers;
    let is_there = || RemoteMemory::open(process.as_raw()).is_ok_and(|memory| is_at_call(&memory, registers));
    let is_rewound = arch::undo_rewind(&mut put_back) && is_there();
    if is_rewound {
        requests::set_registers_of_same_program(thread, &put_back)?;
    }
    Ok(is_rewound)
}

/// Lets the call that a thread is about to repeat fail with EINTR instead, if a handler will run first that ends it,
/// and the kernel does not do so itself: it decides that before a stop on AArch64, and has no record of the call if the
/// thread has been elsewhere. `failed` is true if [`restart_interrupted`] has removed such an EINTR. Calls that the
/// kernel restarts after a handler with SA_RESTART are repeated: it is not visible which handlers have that flag.
///
/// # Errors
/// Those of ptrace: the thread has been killed.
pub fn give_way_to_signals(thread: Pid, failed: bool) -> Result<(), Errno> {
    if !arch::SHOWS_CALLS && handles_a_signal(thread, 0) {
        let mut registers = requests::registers(thread)?;
        let (number, _) = arch::call_registers(&registers);
        let ends = ends_with_any_handler(number) || failed && can_be_repeated(number);
        // After a failed injected call the thread may be elsewhere.
        let is_there = || RemoteMemory::open(thread.as_raw()).is_ok_and(|memory| is_at_call(&memory, &registers));
        if ends && is_there() {
            arch::give_error(&mut registers);
            requests::set_registers_of_same_program(thread, &registers)?;
        }
    }
    Ok(())
}

/// Ends the signal mask that a call has set for its own time, as the kernel does at the end of a call: a signal that only
/// this call lets in waits for it then, and ends it. Its handler would run before the call otherwise.
fn end_mask_of_call(thread: Pid) -> Result<(), Errno> {
    // PTRACE_GETSIGMASK gives the mask that the thread had before the call, PTRACE_SETSIGMASK makes it the present one
    // (`ptrace_request` of kernel/ptrace.c).
    requests::set_signal_mask(thread, requests::signal_mask(thread)?)
}

/// True if a handler will run for the signal, or for a pending one.
fn handles_a_signal(thread: Pid, signal: i32) -> bool {
    let status = ThreadStatus::read(thread);
    status.has_signal_to_handle() || (signal != 0 && status.handles(signal))
}

/// Returns the first argument of a failed call that a thread has just left, as kept by the kernel. The kernel keeps
/// that of the last call, which is rt_sigreturn if a handler has run since. The argument belongs to this call if the
/// thread was seen to wait in it with this argument, or if no handler can have run. Kernels that show the result in its
/// place (not 6.1.176, seen with 6.12.117) leave only the earlier observation, if the thread has slept in no other call
/// since.
fn hidden_argument(
    process: Pid,
    thread: Pid,
    stopped: &InflightSyscall,
    before: Option<&InflightSyscall>,
) -> Option<u64> {
    let kept = arch::kept_first_argument(process, thread, stopped.number).ok().flatten()?;
    let before = before.filter(|before| before.is_ended_by(stopped));
    if kept == stopped.arguments[0] {
        let call = before.filter(|before| before.was_the_last_sleep(process, thread));
        return call.map(|before| before.arguments[0]);
    }
    let was_seen = before.is_some_and(|before| before.arguments[0] == kept);
    (was_seen || (is_behind_call(process, stopped) && !may_run_handlers(thread, stopped))).then_some(kept)
}

/// True if the call has set a signal mask for its own duration, which is no longer in force: a handler has run since.
fn has_own_mask_again(process: Pid, thread: Pid, call: &InflightSyscall) -> bool {
    let is_wait = [libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2].contains(&call.number);
    let at = Some(call.arguments[4]).filter(|&at| is_wait && at != 0);
    let read = |at| RemoteMemory::open(process.as_raw()).and_then(|memory| memory.read_word(Address(at))).ok();
    at.and_then(read).is_some_and(|mask| !ThreadStatus::read(thread).has_mask(mask))
}

fn is_behind_call(process: Pid, stopped: &InflightSyscall) -> bool {
    let length = arch::SYSCALL_INSTRUCTION.len();
    let mut code = vec![0; length];
    let read = RemoteMemory::open(process.as_raw())
        .and_then(|memory| memory.read(Address(stopped.behind.wrapping_sub(length as u64)), &mut code));
    read.is_ok() && code == arch::SYSCALL_INSTRUCTION
}

/// False if the thread blocks every signal that its process handles, and the call does not unblock any.
fn may_run_handlers(thread: Pid, call: &InflightSyscall) -> bool {
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

/// Returns what the registers of a stopped thread show of the call that it was in.
fn seen(registers: &Registers) -> InflightSyscall {
    let (number, arguments) = arch::call_registers(registers);
    let Address(stack) = arch::stack_pointer(registers);
    let Address(behind) = arch::instruction_pointer(registers);
    InflightSyscall { number, arguments, stack, behind, sleeps: None }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::remote::tracee::{Running, Stopped, Waited};
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, kill, sigaction};
    use nix::unistd::{ForkResult, fork, pause, pipe};
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::{AsFd, IntoRawFd, OwnedFd};
    use std::thread;
    use std::time::Duration;

    extern "C" fn nothing(_: i32) {}

    /// A child that waits in pause, and writes one byte once that has ended.
    fn pausing() -> (Pid, OwnedFd) {
        let (ends, reports) = pipe().unwrap();
        // SAFETY:
        // - the child makes system calls only.
        if let ForkResult::Parent { child } = unsafe { fork() }.unwrap() {
            return (child, ends);
        }
        let reports = reports.into_raw_fd();
        let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::SA_RESTART, SigSet::empty());
        // SAFETY:
        // - the handler does nothing; the byte is of this function.
        unsafe {
            let _ = sigaction(Signal::SIGUSR1, &action);
            pause();
            libc::write(reports, b"e".as_ptr().cast(), 1);
            libc::_exit(0);
        }
    }

    fn stop(child: Pid) -> Stopped {
        let running = Running::seize(child, libc::PTRACE_O_TRACESYSGOOD).unwrap();
        let call = || std::fs::read_to_string(format!("/proc/{child}/syscall")).unwrap_or_default();
        while !call().starts_with(&format!("{} ", libc::SYS_pause)) {
            thread::sleep(Duration::from_millis(1));
        }
        running.interrupt().unwrap();
        let Waited::Stopped(stopped, _) = running.wait().unwrap() else { panic!("the child has ended") };
        stopped
    }

    #[test]
    fn a_signal_ends_a_call_that_the_kernel_was_about_to_restart() {
        let (child, ends) = pausing();
        let stopped = stop(child);
        // As in a stop that comes right after the kernel has rewound the registers.
        let mut registers = requests::registers(child).unwrap();
        let number = registers.orig_rax;
        arch::rewind_call(&mut registers);
        registers.orig_rax = number;
        requests::set_registers_of_same_program(child, &registers).unwrap();
        let restarts = restart_interrupted(child, child, 0, None, None);
        kill(child, Signal::SIGUSR1).unwrap();
        stopped.detach(0).unwrap();
        let ready = poll(&mut [PollFd::new(ends.as_fd(), PollFlags::POLLIN)], PollTimeout::from(10_000u16)).unwrap();
        let mut byte = [0];
        let ended = ready == 1 && File::from(ends).read(&mut byte).unwrap() == 1;
        kill(child, Signal::SIGKILL).unwrap();
        nix::sys::wait::waitpid(child, None).unwrap();
        assert!(ended && byte == *b"e", "pause has not ended");
        assert_eq!(restarts, Ok(true));
    }
}
