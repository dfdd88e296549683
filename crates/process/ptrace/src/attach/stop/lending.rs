//! Calls that may take long, by one stopped thread: all others are released after some milliseconds.
//!
//! A call that opens a file may wait for a disk, or for a program that serves or checks the file, which may be a thread of this
//! very program.

use super::{Held, LiveProcess, StopError};
use crate::attach::signal_order::has_children;
use crate::remote::tracee::Stopped;
use nix::unistd::Pid;
use std::time::Duration;

/// Time that the calls of one stop may take while all threads are stopped.
pub const AT_ONCE: Duration = Duration::from_millis(5);

/// A stopped thread, taken from the others.
pub struct Taken(Held);

impl Taken {
    /// The thread.
    pub fn thread(&self) -> &Stopped {
        &self.0.thread
    }
}

impl LiveProcess {
    /// Stops one thread for calls that may take long. Where the threads compete for CPUs, all are stopped, and the others are
    /// to be released as soon as the calls have taken longer than [`AT_ONCE`].
    ///
    /// # Errors
    /// [`StopError`]; no thread is held then.
    pub fn stop_one_for_long(&mut self) -> Result<Pid, StopError> {
        if !self.one_may_stay {
            return self.stop_one_alone();
        }
        self.may_take_long = true;
        let found = self.unless_executed(Self::find_one_that_may_stay);
        self.may_take_long = false;
        found
    }

    /// A thread with children stays traced while others run only if there is no other, see `signal_order`.
    fn find_one_that_may_stay(&mut self) -> Result<Pid, StopError> {
        let found = self.find_one()?;
        if self.stopped.len() > 1 && has_children(self.pid, found.as_raw()) {
            self.one_may_stay = false;
            self.release_all();
            return self.find_one_alone();
        }
        Ok(found)
    }

    /// As [`LiveProcess::permitted_one`], where no thread fits that may stay traced while others run.
    pub(super) fn permitted_for_short_calls(&mut self) -> Option<i32> {
        let may_take_long = std::mem::take(&mut self.may_take_long);
        let found = if may_take_long { self.permitted_one() } else { None };
        self.may_take_long = may_take_long;
        found
    }

    /// Takes a stopped thread, so that [`LiveProcess::release_others`] leaves it stopped.
    pub fn take(&mut self, thread: Pid) -> Option<Taken> {
        self.stopped.remove(&thread.as_raw()).map(Taken)
    }

    /// Returns a thread that was taken. It is among the stopped ones again.
    pub fn put_back(&mut self, taken: Taken) {
        self.stopped.insert(taken.thread().pid().as_raw(), taken.0);
    }

    /// Releases all threads but the one that was taken, if others are held.
    pub fn release_others(&mut self) {
        if self.stopped.is_empty() {
            return;
        }
        let (told, count) = (self.told, self.stopped.len() + 1);
        self.release_all();
        self.standstill.threads = self.standstill.threads.max(count);
        // The stop of the thread that was taken lasts on.
        self.told = told;
    }
}
