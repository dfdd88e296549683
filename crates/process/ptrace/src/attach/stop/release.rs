//! Lets threads go.

use super::{LiveProcess, STOP_TIMEOUT};
use crate::remote::restart;
use nix::unistd::Pid;
use std::time::Instant;

impl LiveProcess {
    /// Releases every held thread, beginning with those that may be sent a signal which the process ignores.
    pub fn release_all(&mut self) {
        let held: Vec<i32> = self.stopped.keys().copied().collect();
        let count = held.len();
        if count > 1 {
            self.receivers.look(self.pid, held.clone());
        }
        let (first, then): (Vec<i32>, Vec<i32>) = held.into_iter().partition(|&thread| self.receivers.contains(thread));
        for thread in first.into_iter().chain(then) {
            self.release(thread);
        }
        if let Some(since) = self.since.take() {
            self.standstill.add(since.elapsed(), count);
        }
    }

    /// Releases a held thread. A signal that comes before the thread runs again is no longer seen: it may have its handler
    /// run before the call that is made again.
    pub(super) fn release(&mut self, thread: i32) {
        if let Some(held) = self.stopped.remove(&thread) {
            let (failed, chosen) = (self.restarting.remove(&thread), self.chosen.remove(&thread));
            self.waits.refresh(Pid::from_raw(thread));
            if failed || chosen {
                let _ = restart::give_way_to_signals(Pid::from_raw(thread), failed);
            }
            let detached = held.thread.detach(held.signal);
            if let Some(told) = self.told.take().filter(|_| self.since.is_none()) {
                self.standstill.add_one(told.elapsed());
            }
            if detached.is_err() {
                self.await_end(thread);
            }
        }
    }

    /// Waits for a stopped thread that was killed, the only reason why a request fails. It stays traced until it is
    /// waited for; a thread that executes a program waits for that, and every request to trace a thread waits for the
    /// latter. The first thread is not waited for, since the other one takes over its number.
    pub(super) fn await_end(&self, thread: i32) {
        if thread != self.pid.as_raw() {
            // If it does not end in time, it is released when this process ends.
            let _ = self.waiter.wait(Pid::from_raw(thread), Instant::now() + STOP_TIMEOUT);
        }
    }
}
