//! Handles programs that a process executes while it is being worked on.
//!
//! A thread that executes a program takes over the number of its process's first thread, and stays traced if it was
//! (ptrace(2), "execve(2) under ptrace"). It stays at the stop after the exec until it is resumed.

use super::{Held, LiveProcess, STOP_TIMEOUT, StopError, WAKE_POLL_INTERVAL};
use crate::remote::refusal::tracer_in;
use crate::remote::requests;
use crate::remote::status::is_ending;
use crate::remote::tracee::Running;
use linux::text::text_of;
use nix::unistd::Pid;
use std::thread;
use std::time::{Duration, Instant};

/// Time for which a first thread that has ended is observed: another one that executes a program takes its number at
/// once.
const ENDING: Duration = Duration::from_millis(10);

/// Why no thread of a process is stopped any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    Executed,
    Lost(i32),
}

impl LiveProcess {
    /// Records that the process has executed another program; none of its threads is stopped from now on.
    pub fn note_exec(&mut self) -> StopError {
        self.over = Some(Over::Executed);
        let first = self.pid.as_raw();
        // What was known of the thread belongs to the previous program.
        self.restarting.remove(&first);
        self.chosen.remove(&first);
        self.stopped.entry(first).and_modify(|held| held.signal = 0);
        StopError::Executed
    }

    /// True where the process is known to have executed another program.
    pub fn is_replaced(&self) -> bool {
        self.over == Some(Over::Executed)
    }

    /// Records that a thread has not returned from a call; none is stopped from now on.
    pub fn note_lost(&mut self, thread: Pid) -> StopError {
        self.over = Some(Over::Lost(thread.as_raw()));
        self.stopped.remove(&thread.as_raw());
        StopError::Lost(thread.as_raw())
    }

    /// True where a thread has vanished because it has executed another program: then it has the number of the process
    /// and is still traced. It is released. No pending report is consumed.
    pub fn has_executed(&mut self) -> bool {
        let started = Instant::now();
        while self.over.is_none() {
            match requests::is_at_exec(self.pid) {
                Ok(true) => drop(self.note_exec()),
                // It is stopped, and has executed nothing.
                Ok(false) => break,
                // On its way to that stop or another one, if this process traces it.
                Err(_) if self.is_ours() => {
                    let limit = if is_ending(self.pid, self.pid.as_raw()) { ENDING } else { STOP_TIMEOUT };
                    if started.elapsed() > limit {
                        break;
                    }
                    thread::sleep(WAKE_POLL_INTERVAL);
                }
                Err(_) => break,
            }
        }
        let executed = self.over == Some(Over::Executed);
        if executed {
            // Known from the kernel: its report is not consumed.
            let thread = Running::already_traced(self.pid).has_stopped();
            self.stopped.insert(self.pid.as_raw(), Held { thread, signal: 0 });
            self.release(self.pid.as_raw());
        }
        executed
    }

    /// True where this process traces the first thread.
    fn is_ours(&self) -> bool {
        let status = text_of(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        tracer_in(&status).is_some_and(|tracer| tracer.parse() == Ok(std::process::id()))
    }

    /// Stops threads, unless the process is to be left alone. Where it has executed another program, none is held
    /// afterwards.
    pub(super) fn unless_executed(
        &mut self,
        stop: impl FnOnce(&mut Self) -> Result<Pid, StopError>,
    ) -> Result<Pid, StopError> {
        match self.over {
            Some(Over::Executed) => return Err(StopError::Executed),
            Some(Over::Lost(thread)) => return Err(StopError::Lost(thread)),
            None => {}
        }
        stop(self).inspect_err(|error| {
            if matches!(error, StopError::Executed) {
                self.give_up();
            }
        })
    }

    /// True for the first thread while another one is traced and has not stopped: if that one is executing another
    /// program, it takes over the first one's number.
    pub(super) fn may_be_replaced(&mut self, thread: i32) -> Result<bool, StopError> {
        if thread == self.pid.as_raw() {
            for other in self.threads_traced() {
                match self.waiter.wait_shortly(Pid::from_raw(other), Instant::now()) {
                    Ok(None) => {}
                    status => drop(self.note_stop(other, status)?),
                }
            }
        }
        Ok(thread == self.pid.as_raw() && !self.traced.is_empty())
    }
}
