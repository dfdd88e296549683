//! Reads waits of a relative time before their threads are stopped.

use super::LiveProcess;
use crate::remote::timed_wait::TimedWait;
use nix::unistd::Pid;

impl LiveProcess {
    /// Notes the wait of a relative time in which a thread sleeps, if any. It replaces the note of an earlier stop.
    pub(super) fn look_at_wait(&mut self, thread: i32) {
        let earlier = self.waits.remove(&thread);
        let wait = TimedWait::of(self.pid, thread, &mut self.clock, earlier.as_ref());
        self.waits.extend(wait.map(|wait| (thread, wait)));
    }

    /// Lets a thread that is about to be released wait only until the time of its wait is over.
    pub(super) fn refresh_wait(&mut self, thread: i32) {
        if let Some(wait) = self.waits.get_mut(&thread) {
            wait.refresh(self.pid, Pid::from_raw(thread));
        }
    }
}
