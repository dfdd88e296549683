//! Handles interrupted waits whose remaining time a stop does not show.
//!
//! The kernel keeps the remaining time of an interrupted wait (`struct restart_block`), and makes the thread call
//! `restart_syscall` instead. On AArch64 it does so on the return to user space, after the stop, and only for a thread
//! that is still at its call. A thread that is to be sent elsewhere is therefore first resumed until it makes the call,
//! and stopped in it once more: then its registers hold the call with which it has to continue. At no moment is it
//! anywhere else than without Pagelift.

use super::waiting::StopWaiter;
use crate::remote::RemoteMemory;
use crate::remote::arch;
use crate::remote::inflight_syscall::is_at_call;
use crate::remote::requests::{self, Resume};
use crate::remote::wait::{Stop, WaitReport};
use nix::errno::Errno;
use nix::unistd::Pid;
use std::time::Instant;

/// `FUTEX_CMD_MASK` and `FUTEX_WAIT` (`linux/futex.h`).
const FUTEX_COMMAND: u64 = 0x7f;
const FUTEX_WAIT: u64 = 0;

/// State of a thread after [`settle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It is stopped, and its registers show how it continues.
    Stopped,
    /// It is stopped by a signal that came in between.
    BySignal(i32),
    /// It has ended.
    Ended,
}

/// Makes sure that the registers of a stopped thread show how it continues.
///
/// # Errors
/// Those of ptrace; `ETIMEDOUT` where the thread does not stop again.
pub fn settle(thread: Pid, waiter: &StopWaiter, deadline: Instant) -> Result<Settled, Errno> {
    let registers = requests::registers(thread)?;
    let (number, arguments) = arch::call_registers(&registers);
    if arch::SHOWS_CALLS || !may_have_time_left(number, arguments) {
        return Ok(Settled::Stopped);
    }
    let at_call = RemoteMemory::open(thread.as_raw()).is_ok_and(|memory| is_at_call(&memory, &registers));
    if !at_call {
        return Ok(Settled::Stopped);
    }
    requests::resume(thread, Resume::ToSystemCall, 0)?;
    match waiter.wait(thread, deadline)? {
        // It makes the call now, be it the original one or `restart_syscall`.
        Some(WaitReport::Stopped(Stop::SystemCall)) => {}
        other => return settled(other),
    }
    requests::interrupt(thread)?;
    requests::resume(thread, Resume::Continue, 0)?;
    settled(waiter.wait(thread, deadline)?)
}

fn settled(report: Option<WaitReport>) -> Result<Settled, Errno> {
    match report {
        None => Err(Errno::ETIMEDOUT),
        Some(WaitReport::Ended) => Ok(Settled::Ended),
        Some(WaitReport::Stopped(Stop::Signal(signal))) => Ok(Settled::BySignal(signal)),
        Some(WaitReport::Stopped(Stop::SystemCall) | WaitReport::Stopped(Stop::Event { .. })) => Ok(Settled::Stopped),
    }
}

/// True for a call that waits for a relative time. A call that waits until an absolute time can be restarted unchanged.
fn may_have_time_left(number: i64, arguments: [u64; 6]) -> bool {
    match number {
        libc::SYS_nanosleep => true,
        libc::SYS_clock_nanosleep => arguments[1] & libc::TIMER_ABSTIME as u64 == 0,
        libc::SYS_futex => arguments[1] & FUTEX_COMMAND == FUTEX_WAIT && arguments[3] != 0,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_waits_of_a_certain_length_have_time_left() {
        let nanosleep = may_have_time_left(libc::SYS_nanosleep, [0; 6]);
        let relative = may_have_time_left(libc::SYS_clock_nanosleep, [1, 0, 8, 0, 0, 0]);
        let until = may_have_time_left(libc::SYS_clock_nanosleep, [1, 1, 8, 0, 0, 0]);
        assert_eq!([nanosleep, relative, until], [true, true, false]);
        let futex = |operation, time| may_have_time_left(libc::SYS_futex, [8, operation, 0, time, 0, 0]);
        assert_eq!(
            [futex(0, 8), futex(128, 8), futex(0, 0), futex(1, 8), futex(9, 8)],
            [true, true, false, false, false]
        );
        assert!(!may_have_time_left(libc::SYS_read, [0; 6]));
    }
}
