//! Waits for traced threads, and decodes what they report.
//!
//! The decoding is our own because nix's `WaitStatus` knows the signals 1 to 31 only: its `waitpid` gives EINVAL for a
//! thread that stops for a real-time signal (signal(7)), and the report is lost.

use nix::errno::Errno;
use nix::unistd::Pid;
use rustix::process::{WaitOptions, WaitStatus, waitpid};

/// Set in the signal of a system call stop (`PTRACE_O_TRACESYSGOOD`, ptrace(2)).
const SYSTEM_CALL_BIT: i32 = 0x80;

/// What a traced thread has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// It has ended: by itself or by a signal.
    Ended,
    /// It is stopped at the delivery of this signal, 1 to 64.
    Signal(i32),
    /// It is stopped before or behind a system call.
    SystemCall,
    /// It is stopped by a `PTRACE_EVENT_*`.
    Event {
        /// Which event.
        event: i32,
        /// SIGTRAP; for `PTRACE_EVENT_STOP` of a group stop the signal that has stopped the process.
        signal: i32,
    },
}

impl Report {
    /// `None` for what is no report of a tracee.
    fn of(status: WaitStatus) -> Option<Self> {
        if status.exited() || status.signaled() {
            return Some(Self::Ended);
        }
        let signal = status.stopping_signal()?;
        Some(match status.as_raw() >> 16 {
            0 if signal == libc::SIGTRAP | SYSTEM_CALL_BIT => Self::SystemCall,
            0 => Self::Signal(signal),
            event => Self::Event { event, signal },
        })
    }

    /// The signal that a thread at this stop is about to get; 0: none.
    pub fn delivered_signal(self) -> i32 {
        if let Self::Signal(signal) = self { signal } else { 0 }
    }

    /// True where job control has stopped the whole process.
    pub fn is_group_stop(self) -> bool {
        matches!(self, Self::Event { event: libc::PTRACE_EVENT_STOP, signal } if signal != libc::SIGTRAP)
    }
}

/// Waits for the next report of one thread.
///
/// # Errors
/// `ECHILD` where it is no tracee of ours; whatever else waitpid(2) gives but EINTR.
pub fn wait_for(thread: Pid) -> Result<Report, Errno> {
    loop {
        if let Some((_, report)) = wait(Some(thread), WaitOptions::empty())? {
            return Ok(report);
        }
    }
}

/// Waits for the next report of any thread.
///
/// # Errors
/// `ECHILD` where there are no tracees and children; whatever else waitpid(2) gives but EINTR.
pub fn wait_for_any() -> Result<(Pid, Report), Errno> {
    loop {
        if let Some(report) = wait(None, WaitOptions::empty())? {
            return Ok(report);
        }
    }
}

/// The report of one thread, if there is one now.
///
/// # Errors
/// As for [`wait_for`].
pub fn poll(thread: Pid) -> Result<Option<Report>, Errno> {
    Ok(wait(Some(thread), WaitOptions::NOHANG)?.map(|(_, report)| report))
}

fn wait(thread: Option<Pid>, options: WaitOptions) -> Result<Option<(Pid, Report)>, Errno> {
    // Threads of other processes are reported with `__WALL` only (wait(2)).
    let options = options | WaitOptions::from_bits_retain(libc::__WALL as u32);
    loop {
        let found = match thread {
            Some(thread) => waitpid(rustix::process::Pid::from_raw(thread.as_raw()), options),
            None => rustix::process::wait(options),
        };
        match found {
            Ok(found) => {
                let report = found.and_then(|(pid, status)| Some((pid, Report::of(status)?)));
                return Ok(report.map(|(pid, report)| (Pid::from_raw(pid.as_raw_nonzero().get()), report)));
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Errno::from_raw(errno.raw_os_error())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::{self, Resume};
    use nix::sys::signal::{Signal, kill};
    use std::process::Command;

    fn send(pid: Pid, signal: i32) {
        // SAFETY:
        // - sends a signal to a child of this test and touches no memory.
        assert_eq!(unsafe { libc::kill(pid.as_raw(), signal) }, 0);
    }

    #[test]
    fn each_of_the_64_signals_is_reported_by_its_number() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32);
        requests::seize(pid, libc::PTRACE_O_TRACESYSGOOD).unwrap();
        for signal in (1..=64).filter(|&signal| signal != libc::SIGKILL && signal != libc::SIGCONT) {
            // 32 and 33 are the C library's own; the kernel sends them like any other.
            send(pid, signal);
            assert_eq!(wait_for(pid), Ok(Report::Signal(signal)));
            assert_eq!(poll(pid), Ok(None));
            requests::resume(pid, Resume::Continue, 0).unwrap();
        }
        requests::interrupt(pid).unwrap();
        assert_eq!(wait_for(pid), Ok(Report::Event { event: libc::PTRACE_EVENT_STOP, signal: libc::SIGTRAP }));
        requests::resume(pid, Resume::ToSystemCall, 0).unwrap();
        // Where a signal has interrupted the sleep, it is made again by a system call.
        assert_eq!(wait_for(pid), Ok(Report::SystemCall));
        kill(pid, Signal::SIGKILL).unwrap();
        assert_eq!(wait_for(pid), Ok(Report::Ended));
        assert_eq!(poll(pid), Err(Errno::ECHILD));
        drop(child.wait());
    }

    #[test]
    fn a_group_stop_is_told_from_our_own() {
        let stop = |signal| Report::Event { event: libc::PTRACE_EVENT_STOP, signal };
        assert!(stop(libc::SIGTSTP).is_group_stop() && !stop(libc::SIGTRAP).is_group_stop());
        assert!(!Report::Signal(libc::SIGSTOP).is_group_stop());
        assert_eq!([Report::Signal(40), stop(libc::SIGSTOP), Report::Ended].map(Report::delivered_signal), [40, 0, 0]);
    }
}
