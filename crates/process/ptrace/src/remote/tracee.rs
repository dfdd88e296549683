//! Types for the state of a traced thread.
//!
//! Only a stopped thread can be examined, changed and resumed; a running one can be interrupted, and waited for.
//! [`Stopped`] is made by a wait and consumed by the function that ends the stop, so that resuming a thread twice does
//! not compile.
//!
//! Two things end a stop from outside: SIGKILL, after which requests fail with ESRCH and the thread's end is reported
//! next, and another thread that executes a program, which takes over the number of the first thread (ptrace(2),
//! "execve(2) under ptrace").

use super::requests::{self, Resume};
use super::wait::{self, Stop, WaitReport};
use nix::errno::Errno;
use nix::unistd::Pid;
use std::time::Instant;

/// A traced thread that a wait has found in a ptrace stop.
#[derive(Debug)]
#[must_use = "the thread stays stopped until it is resumed or detached"]
pub struct Stopped {
    pid: Pid,
}

/// A traced thread that runs, or whose latest stop has not been waited for.
#[derive(Debug)]
pub struct Running {
    pid: Pid,
}

/// The state that a thread has reached.
#[derive(Debug)]
pub enum Waited {
    /// It is stopped.
    Stopped(Stopped, Stop),
    /// It has ended.
    Ended(Pid),
}

impl Stopped {
    /// The thread.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Resumes the thread with a signal (0: none). A thread that has been killed reports its end next.
    pub fn resume(self, how: Resume, signal: i32) -> Running {
        let _ = requests::resume(self.pid, how, signal);
        Running { pid: self.pid }
    }

    /// Lets the thread take a signal and stop again, before it takes the next one: at the first instruction of the
    /// signal's handler, or at its place.
    ///
    /// # Errors
    /// `ESRCH` where the thread has been killed.
    pub fn take_signal(self, signal: i32) -> Result<Running, Errno> {
        // In this order: the thread stops for the interrupt before it takes the next signal (`get_signal`).
        requests::interrupt(self.pid)?;
        requests::resume(self.pid, Resume::Continue, signal)?;
        Ok(Running { pid: self.pid })
    }

    /// Resumes the thread with a signal (0: none), no longer traced.
    ///
    /// # Errors
    /// `ESRCH` where the thread has been killed.
    pub fn detach(self, signal: i32) -> Result<(), Errno> {
        requests::detach(self.pid, signal)
    }

    /// Ends this state of a thread whose number another thread has taken over by executing a program: the stop after
    /// that exec is reported next.
    pub fn replaced_by_exec(self) -> Running {
        Running { pid: self.pid }
    }
}

impl Running {
    /// Begins to trace a thread without stopping it (`PTRACE_SEIZE`).
    ///
    /// # Errors
    /// `ESRCH` where the thread has ended, `EPERM` where it may not be traced or is traced by another process.
    pub fn seize(pid: Pid, options: i32) -> Result<Self, Errno> {
        requests::seize(pid, options).map(|()| Self { pid })
    }

    /// A thread that this process traces already and that has not been waited for since it was resumed.
    pub fn already_traced(pid: Pid) -> Self {
        Self { pid }
    }

    /// A thread whose stop has been reported by a wait for its number, or is known from the kernel.
    pub fn has_stopped(self) -> Stopped {
        Stopped { pid: self.pid }
    }

    /// The thread.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Tells the thread to stop.
    ///
    /// # Errors
    /// `ESRCH` where the thread has ended.
    pub fn interrupt(&self) -> Result<(), Errno> {
        requests::interrupt(self.pid)
    }

    /// Waits until the thread has stopped or ended.
    ///
    /// # Errors
    /// As for [`wait::wait_for`].
    pub fn wait(self) -> Result<Waited, Errno> {
        wait::wait_for(self.pid).map(|report| Waited::from_report(self.pid, report))
    }

    /// Waits until the thread has stopped or ended, or until the deadline; then it is returned. The report of a signal stays
    /// pending, see [`wait::poll_keeping_signals`].
    ///
    /// # Errors
    /// As for [`wait::wait_for`].
    pub fn wait_until(self, deadline: Instant) -> Result<Result<Waited, Self>, Errno> {
        let report = wait::wait_until_keeping_signals(self.pid, deadline)?;
        Ok(report.map(|report| Waited::from_report(self.pid, report)).ok_or(self))
    }
}

impl Waited {
    /// Waits for any traced thread.
    ///
    /// # Errors
    /// As for [`wait::wait_for_any`].
    pub fn any() -> Result<Self, Errno> {
        wait::wait_for_any().map(|(pid, report)| Self::from_report(pid, report))
    }

    /// Returns the report of any traced thread, if one is pending.
    ///
    /// # Errors
    /// As for [`wait::wait_for_any`].
    pub fn any_pending() -> Result<Option<Self>, Errno> {
        Ok(wait::poll_any()?.map(|(pid, report)| Self::from_report(pid, report)))
    }

    fn from_report(pid: Pid, report: WaitReport) -> Self {
        match report {
            WaitReport::Ended => Self::Ended(pid),
            WaitReport::Stopped(stop) => Self::Stopped(Stopped { pid }, stop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_thread_that_was_killed_at_its_stop_reports_its_end_next() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let running = Running::seize(Pid::from_raw(child.id() as i32), 0).unwrap();
        running.interrupt().unwrap();
        let Waited::Stopped(stopped, stop) = running.wait().unwrap() else { panic!("the process has ended") };
        assert_eq!(stop, Stop::Event { event: libc::PTRACE_EVENT_STOP, signal: libc::SIGTRAP });
        child.kill().unwrap();
        let waited = stopped.resume(Resume::Continue, 0).wait().unwrap();
        assert!(matches!(waited, Waited::Ended(pid) if pid.as_raw() == child.id() as i32), "{waited:?}");
        drop(child.wait());
    }
}
