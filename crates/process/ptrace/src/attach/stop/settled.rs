//! Brings the thread that is to make calls to a stop whose registers show how it continues.

use super::{LiveProcess, STOP_TIMEOUT, StopError};
use crate::attach::restart_block::{Settled, settle};
use nix::errno::Errno;
use nix::unistd::Pid;
use std::time::Instant;

impl LiveProcess {
    /// Makes sure that the registers of the thread that is to make calls show how it continues. Returns false if it
    /// cannot make calls.
    pub(super) fn settle(&mut self, thread: i32) -> Result<bool, StopError> {
        if !self.deliver_signal(thread)? {
            return Ok(false);
        }
        match settle(Pid::from_raw(thread), &self.waiter, Instant::now() + STOP_TIMEOUT) {
            Ok(Settled::Stopped) => return Ok(true),
            Ok(Settled::BySignal(signal)) => {
                self.stopped.get_mut(&thread).into_iter().for_each(|held| held.signal = signal)
            }
            Ok(Settled::Ended) => drop(self.stopped.remove(&thread)),
            Err(Errno::ESRCH) => {
                self.stopped.remove(&thread);
                self.await_end(thread);
            }
            Err(error) => {
                self.release_all();
                return Err(if error == Errno::ETIMEDOUT {
                    StopError::DoesNotStop(thread)
                } else {
                    StopError::Refused(error.to_string())
                });
            }
        }
        Ok(false)
    }

    /// Delivers the signal for which a held thread has stopped, and stops the thread again. Only a thread that is
    /// resumed from the signal's own stop receives it with its payload and in order; from any other stop the kernel
    /// sends a new one (`ptrace_report_syscall`). Returns false if the thread can no longer make calls.
    fn deliver_signal(&mut self, thread: i32) -> Result<bool, StopError> {
        if self.stopped.get(&thread).is_none_or(|held| held.signal == 0) {
            return Ok(true);
        }
        let Some(Ok(running)) = self.stopped.remove(&thread).map(|held| held.thread.take_signal(held.signal)) else {
            self.await_end(thread);
            return Ok(false);
        };
        self.traced.insert(thread, running);
        Ok(self.await_stop(thread, Instant::now() + STOP_TIMEOUT)? && self.fits(thread))
    }
}
