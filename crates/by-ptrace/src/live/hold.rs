//! A held thread that makes system calls by itself.

use super::page::CallPage;
use super::waiting::StopWaiter;
use crate::RemoteMemory;
use crate::arch::{self, Registers};
use crate::injection::InjectError;
use crate::requests::{self, CallStop, Resume};
use crate::wait::Report;
use nix::errno::Errno;
use nix::unistd::Pid;
use std::time::{Duration, Instant};

/// How long one call may take: the longest ones fill memory of some GiB.
const PATIENCE: Duration = Duration::from_secs(30);

/// A thread on its round through the code of a [`CallPage`].
pub struct Hold<'a> {
    thread: Pid,
    page: &'a CallPage,
    memory: &'a RemoteMemory,
    waiter: &'a StopWaiter,
    /// Where it goes on.
    registers: Registers,
    inside: bool,
}

impl<'a> Hold<'a> {
    /// Takes a stopped thread.
    ///
    /// # Errors
    /// [`InjectError`]; the thread is as it was.
    pub fn new(
        thread: Pid,
        page: &'a CallPage,
        memory: &'a RemoteMemory,
        waiter: &'a StopWaiter,
    ) -> Result<Self, InjectError> {
        let mut registers = requests::registers(thread)?;
        // What the kernel would do on its way out, had we not sent the thread elsewhere.
        arch::rewind_call(&mut registers);
        page.set_return(memory, thread, &registers)?;
        Ok(Self { thread, page, memory, waiter, registers, inside: false })
    }

    /// Makes one call. Were we killed now, the thread would make it and go on.
    ///
    /// # Errors
    /// [`InjectError`] where it could not be made at all; the inner result is the call's own.
    pub fn call(&mut self, number: i64, arguments: [u64; 6]) -> Result<Result<u64, Errno>, InjectError> {
        self.page.set_call(self.memory, number, arguments)?;
        if !self.inside {
            let mut registers = self.registers;
            arch::enter_loop(&mut registers, self.page.code().start(), self.page.data());
            // In this order: were we killed in between, the thread would go its round with its signals as they are, and
            // were we killed afterwards, the code would put the mask back.
            requests::set_registers(self.thread, &registers)?;
            self.inside = true;
            requests::set_signal_mask(self.thread, u64::MAX)?;
        }
        self.run_through_call()?;
        let result = arch::result(&requests::registers(self.thread)?);
        Ok(if (-4095..0).contains(&result) { Err(Errno::from_raw(-result as i32)) } else { Ok(result as u64) })
    }

    /// Lets the thread leave the code; it is stopped where it was before.
    ///
    /// # Errors
    /// [`InjectError`].
    pub fn finish(mut self) -> Result<(), InjectError> {
        if self.inside {
            // There is no call in the page any more, so the thread puts its signal mask back. From there the code would
            // load the registers one by one; we do it at once.
            self.run_through_call()?;
            self.page.set_outside(self.memory)?;
            arch::forget_call(self.thread)?;
            requests::set_registers(self.thread, &self.registers)?;
        }
        Ok(())
    }

    fn run_through_call(&mut self) -> Result<(), InjectError> {
        self.run_to(CallStop::Entry)?;
        self.run_to(CallStop::Exit)
    }

    fn run_to(&mut self, wanted: CallStop) -> Result<(), InjectError> {
        let deadline = Instant::now() + PATIENCE;
        let mut delivered = 0;
        loop {
            requests::resume(self.thread, Resume::ToSystemCall, delivered)?;
            delivered = 0;
            match self.waiter.wait(self.thread, deadline)? {
                // It goes its round by itself whenever it can.
                None => return Err(InjectError::Ptrace(Errno::ETIMEDOUT)),
                Some(Report::SystemCall) if requests::call_stop(self.thread)? == wanted => return Ok(()),
                // It cannot be blocked, and a SIGCONT that follows ends it only once it is delivered. A traced thread
                // that is told to go on does so in spite of the group stop, which takes hold of it when it is released.
                Some(Report::Signal(libc::SIGSTOP)) => delivered = libc::SIGSTOP,
                // All else is blocked; a fault is not, and would only come again.
                Some(Report::Signal(signal)) => return Err(InjectError::Fault(signal)),
                Some(Report::Ended) => return Err(InjectError::Gone),
                Some(Report::SystemCall | Report::Event { .. }) => {}
            }
        }
    }
}
