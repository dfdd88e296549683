//! Waits for what takes a few microseconds.
//!
//! A thread that sleeps until another has made a system call is woken by an interrupt from the other's processor, where its
//! own has gone idle: some 20 microseconds on a virtual machine, more than most calls take. So where there is another
//! processor for the other to run on, this one looks again and again for a while, and gives way to whoever else wants it.

use crate::wait::{self, Report};
use kernel_calls::processors;
use nix::sched::sched_yield;
use nix::unistd::Pid;

/// So often, at half a microsecond or so each.
const LOOKS: u32 = 200;

/// How long to look before sleeping.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    looks: u32,
}

impl Patience {
    /// None where there is one processor only.
    pub fn new() -> Self {
        Self { looks: if processors::there_are_several() { LOOKS } else { 0 } }
    }

    /// Waits for the next thing that a traced thread reports.
    ///
    /// # Errors
    /// As for [`wait::wait_for`].
    pub fn wait(self, thread: Pid) -> nix::Result<Report> {
        for _ in 0..self.looks {
            match wait::poll(thread)? {
                Some(report) => return Ok(report),
                None => sched_yield()?,
            }
        }
        wait::wait_for(thread)
    }
}
