//! Waits for threads to stop, up to a deadline.

use crate::remote::wait::{self, WaitReport};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use std::os::fd::AsFd;
use std::time::Instant;

/// Maximum number of milliseconds between two polls. Every stop of a traced thread is reported by SIGCHLD (ptrace(2));
/// where that is ignored or received elsewhere, a poll finds the stop.
const POLL_MILLISECONDS: u8 = 1;

/// Minimum number of polls before a wait times out: where the whole machine was suspended, a deadline passes although
/// no thread has had time to stop.
const FEWEST_POLLS: u32 = 100;

/// Blocks SIGCHLD in the calling thread, and so in those that it starts later. A thread that does not block it may receive the
/// signal in place of a [`StopWaiter`] of another thread, which would find the stop at its next poll only. For the beginning of a
/// command that stops threads.
pub fn leave_stops_to_waiters() {
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGCHLD);
    // Without it a stop is found by a poll.
    let _ = mask.thread_block();
}

/// Receives SIGCHLD of the calling thread by a descriptor. Dropping it restores the signal mask.
pub struct StopWaiter {
    descriptor: Option<SignalFd>,
    mask_before: Option<SigSet>,
}

impl StopWaiter {
    /// Blocks SIGCHLD in the calling thread and opens the descriptor.
    pub fn take() -> Self {
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGCHLD);
        let mask_before = mask.thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK).ok();
        let descriptor = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).ok();
        Self { descriptor, mask_before }
    }

    /// Returns what a thread reports; `None` where it has reported nothing by the deadline. The report of a signal stays
    /// pending: the kernel delivers the signal if this process is killed.
    ///
    /// # Errors
    /// As for [`wait::wait_for`].
    pub fn wait(&self, thread: Pid, deadline: Instant) -> Result<Option<WaitReport>, Errno> {
        self.look(thread, deadline, FEWEST_POLLS)
    }

    /// Like [`StopWaiter::wait`], but without the allowance for a machine that was suspended.
    ///
    /// # Errors
    /// As for [`wait::wait_for`].
    pub fn wait_shortly(&self, thread: Pid, deadline: Instant) -> Result<Option<WaitReport>, Errno> {
        self.look(thread, deadline, 1)
    }

    fn look(&self, thread: Pid, deadline: Instant, fewest: u32) -> Result<Option<WaitReport>, Errno> {
        let mut looks = 0;
        loop {
            looks += 1;
            match wait::poll_keeping_signals(thread)? {
                None if looks < fewest || Instant::now() < deadline => self.sleep(),
                report => return Ok(report),
            }
        }
    }

    /// Sleeps until any traced thread may have stopped.
    fn sleep(&self) {
        let Some(descriptor) = &self.descriptor else {
            let _ = poll(&mut [], PollTimeout::from(POLL_MILLISECONDS));
            return;
        };
        let mut waited = [PollFd::new(descriptor.as_fd(), PollFlags::POLLIN)];
        // The signal is consumed, since it would end every later sleep at once; its thread does not matter.
        if poll(&mut waited, PollTimeout::from(POLL_MILLISECONDS)).is_ok_and(|ready| ready > 0) {
            let _ = descriptor.read_signal();
        }
    }
}

impl Drop for StopWaiter {
    fn drop(&mut self) {
        self.descriptor = None;
        if let Some(mask) = self.mask_before {
            let _ = mask.thread_set_mask();
        }
    }
}
