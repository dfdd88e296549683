//! Waits for threads to stop, but not for ever.

use crate::wait::{self, Report};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use std::os::fd::AsFd;
use std::time::Instant;

/// Every stop of a traced thread is told by SIGCHLD (ptrace(2)). Where that is ignored, or somebody else has taken it, a
/// look after so many milliseconds finds the stop all the same.
const LOOK_EVERY: u8 = 1;

/// Nobody is given up before so many looks: where the whole machine has stood still, a deadline passes without anybody's
/// having had time to stop.
const FEWEST_LOOKS: u32 = 100;

/// Takes the calling thread's SIGCHLD; gives it back when dropped.
pub struct StopWaiter {
    descriptor: Option<SignalFd>,
    mask_before: Option<SigSet>,
}

impl StopWaiter {
    /// Takes it.
    pub fn take() -> Self {
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGCHLD);
        let mask_before = mask.thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK).ok();
        let descriptor = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).ok();
        Self { descriptor, mask_before }
    }

    /// What a thread reports; `None` where it has reported nothing by the deadline.
    ///
    /// # Errors
    /// As for [`wait::wait_for`].
    pub fn wait(&self, thread: Pid, deadline: Instant) -> Result<Option<Report>, Errno> {
        self.look(thread, deadline, FEWEST_LOOKS)
    }

    /// The same without an allowance for a machine that has stood still.
    ///
    /// # Errors
    /// As for [`wait::wait_for`].
    pub fn wait_shortly(&self, thread: Pid, deadline: Instant) -> Result<Option<Report>, Errno> {
        self.look(thread, deadline, 1)
    }

    fn look(&self, thread: Pid, deadline: Instant, fewest: u32) -> Result<Option<Report>, Errno> {
        let mut looks = 0;
        loop {
            looks += 1;
            match wait::poll(thread)? {
                None if looks < fewest || Instant::now() < deadline => self.sleep(),
                report => return Ok(report),
            }
        }
    }

    /// Sleeps until any traced thread may have stopped.
    fn sleep(&self) {
        let Some(descriptor) = &self.descriptor else {
            let _ = poll(&mut [], PollTimeout::from(LOOK_EVERY));
            return;
        };
        let mut waited = [PollFd::new(descriptor.as_fd(), PollFlags::POLLIN)];
        // Each signal is taken, for it would end every later sleep at once; which thread it tells of does not matter.
        if poll(&mut waited, PollTimeout::from(LOOK_EVERY)).is_ok_and(|ready| ready > 0) {
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
