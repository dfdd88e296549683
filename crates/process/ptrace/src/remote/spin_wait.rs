//! Waits for reports that take a few microseconds to come.
//!
//! A thread that sleeps until another thread has made a system call is woken by an interrupt from the other CPU, where
//! its own has gone idle: about 20 microseconds on a virtual machine, more than most calls take. Where another CPU is
//! available, this thread therefore polls for a while and yields its CPU between polls.

use crate::remote::wait::{self, WaitReport};
use linux::cpus;
use nix::sched::sched_yield;
use nix::unistd::Pid;
use std::time::Instant;

/// Number of polls before sleeping; each takes about 0.5 µs.
const POLLS: u32 = 200;

/// Polls for a while before sleeping.
#[derive(Clone, Copy, Debug)]
pub struct SpinWait {
    polls: u32,
}

impl SpinWait {
    /// Polls only if this thread may run on several CPUs.
    pub fn new() -> Self {
        Self { polls: if cpus::several_are_allowed() { POLLS } else { 0 } }
    }

    /// Waits for the next report of a traced thread; `None` if there is none by the deadline.
    ///
    /// # Errors
    /// As for [`wait::wait_for`].
    pub fn wait_until(self, thread: Pid, deadline: Instant) -> nix::Result<Option<WaitReport>> {
        for _ in 0..self.polls {
            match wait::poll(thread)? {
                None => sched_yield()?,
                report => return Ok(report),
            }
        }
        wait::wait_until(thread, deadline)
    }
}
