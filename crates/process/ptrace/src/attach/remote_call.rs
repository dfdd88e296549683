//! Makes a stopped thread execute system calls by the code of a call page, or one call by that for one call.
//!
//! The code is in the program's memory, which others can write: other threads, and processes that share it. Each call
//! is therefore checked at its entry, and cancelled if it is not the expected one. After an exec the thread is not
//! changed any more.

use super::call_page::CallPage;
use super::code_slot::CodeSlot;
use super::waiting::StopWaiter;
use crate::remote::RemoteMemory;
use crate::remote::arch::{self, Interrupted, Registers, numbers};
use crate::remote::injection::InjectError;
use crate::remote::requests::{self, CallStop, Resume};
use crate::remote::seccomp::{FilterAnswer, Filters};
use crate::remote::status::ThreadStatus;
use crate::remote::tracee::Stopped;
use crate::remote::wait::{self, LONGEST_CALL, Stop, WaitReport};
use address_space::Address;
use nix::errno::Errno;
use nix::unistd::Pid;
use std::io;
use std::time::{Duration, Instant};

/// Time for a thread to return to a stop at its call, even after the calls have used up theirs.
const TIME_TO_STOP: Duration = Duration::from_secs(2);

/// The code by which a thread makes calls.
#[derive(Clone, Copy)]
pub enum Means<'a> {
    /// Any number of calls, by a call page.
    Page(&'a CallPage),
    /// One call, which maps the call page at this address or unmaps it, by the code for one call.
    Once(&'a CodeSlot, Address),
}

impl Means<'_> {
    pub fn set_return(&self, memory: &RemoteMemory, thread: Pid, registers: &Registers, mask: u64) -> io::Result<()> {
        match self {
            Self::Page(page) => page.set_return(memory, thread, registers, mask),
            Self::Once(slot, page) => slot.write_once(memory, thread, registers, mask, *page),
        }
    }

    /// Makes the call the next one of a thread that is sent into the code with these registers.
    pub fn set_call(
        &self,
        memory: &RemoteMemory,
        registers: &mut Registers,
        number: i64,
        arguments: [u64; 6],
    ) -> io::Result<()> {
        match self {
            Self::Page(page) => {
                page.set_call(memory, number, arguments)?;
                arch::enter_loop(registers, page.code().start(), page.data());
            }
            Self::Once(slot, _) => arch::enter_once(registers, Self::instruction(slot, number), number, arguments),
        }
        Ok(())
    }

    fn instruction(slot: &CodeSlot, number: i64) -> Address {
        slot.instruction_of_once(number == numbers::SYS_munmap)
    }

    /// The address after the instruction that makes this call.
    fn behind_call(&self, number: i64) -> Address {
        match self {
            Self::Page(page) => page.behind_call(),
            Self::Once(slot, _) => Self::instruction(slot, number) + arch::SYSCALL_INSTRUCTION.len() as u64,
        }
    }

    /// Number and arguments of the call by which a thread that leaves the code restores its signal mask.
    fn mask_call(&self) -> (i64, [u64; 4]) {
        let mask = match self {
            Self::Page(page) => page.mask(),
            Self::Once(slot, _) => slot.mask_of_once(),
        };
        (libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as u64, mask.0, 0, size_of::<u64>() as u64])
    }

    fn set_outside(&self, memory: &RemoteMemory) -> io::Result<()> {
        match self {
            Self::Page(page) => page.set_outside(memory),
            Self::Once(..) => Ok(()),
        }
    }

    /// Takes back a call that the thread has not begun, where that is possible.
    fn withdraw_call(&self, memory: &RemoteMemory) {
        if let Self::Page(page) = self {
            let _ = page.withdraw_call(memory);
        }
    }
}

/// Where the thread is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Where it was stopped.
    Outside,
    /// In the code of the call page.
    Inside,
    /// Out of reach: it runs, has ended, or has executed another program.
    Lost,
    /// At its original place again; it makes no more calls.
    PutBack,
}

/// A stopped thread that makes calls by code in its program. It cannot be released as long as this lives.
pub struct RemoteCaller<'a> {
    stopped: &'a Stopped,
    means: Means<'a>,
    memory: &'a RemoteMemory,
    waiter: &'a StopWaiter,
    filters: &'a Filters,
    /// The registers that it was stopped with.
    stopped_with: Registers,
    /// The registers with which it continues from anywhere else, and the signals that it blocks then.
    registers: Registers,
    mask: u64,
    state: State,
    /// Limit of all waits.
    deadline: Instant,
    /// Releases the other threads, where the calls take longer than until this time.
    lend: Option<(Instant, &'a mut dyn FnMut())>,
}

impl<'a> RemoteCaller<'a> {
    /// Takes over a stopped thread, which has these filters, until a deadline.
    ///
    /// # Errors
    /// [`InjectError`]; the thread is unchanged.
    pub fn new(
        stopped: &'a Stopped,
        means: Means<'a>,
        memory: &'a RemoteMemory,
        waiter: &'a StopWaiter,
        filters: &'a Filters,
        deadline: Instant,
    ) -> Result<Self, InjectError> {
        let thread = stopped.pid();
        let stopped_with = requests::registers(thread)?;
        let mut registers = stopped_with;
        // As the kernel does on the return to user space, where the thread is not sent elsewhere.
        arch::rewind_call(&mut registers);
        let mask = requests::signal_mask(thread)?;
        means.set_return(memory, thread, &registers, mask)?;
        let state = State::Outside;
        let lend = None;
        Ok(Self { stopped, means, memory, waiter, filters, stopped_with, registers, mask, state, deadline, lend })
    }

    /// Runs `lend` once, if a call has not returned after `at_once` from now: it releases other threads.
    pub fn lending(mut self, at_once: Duration, lend: &'a mut dyn FnMut()) -> Self {
        self.lend = Some((Instant::now() + at_once, lend));
        self
    }

    /// Makes one call, if the thread's filters allow it. If this process is killed, the thread completes the call and
    /// continues.
    ///
    /// # Errors
    /// [`InjectError`] if the call could not be made at all; the thread is restored then, if it still exists, and makes
    /// no more calls. The inner result is the call's.
    pub fn call(&mut self, number: i64, arguments: [u64; 6]) -> Result<Result<u64, Errno>, InjectError> {
        match self.filters.judge(number, arguments, self.means.behind_call(number).0) {
            FilterAnswer::Allowed => {}
            FilterAnswer::Fails(errno) => return Ok(Err(errno)),
            FilterAnswer::Refused => return Err(InjectError::Filtered),
        }
        let made = self.make(number, &arguments);
        let result = made.map_err(|error| self.give_up(error))?;
        Ok(if (-4095..0).contains(&result) { Err(Errno::from_raw(-result as i32)) } else { Ok(result as u64) })
    }

    fn make(&mut self, number: i64, arguments: &[u64; 6]) -> Result<i64, InjectError> {
        if matches!(self.state, State::Lost | State::PutBack) {
            return Err(InjectError::Gone);
        }
        if self.state == State::Inside && matches!(self.means, Means::Once(..)) {
            return Err(InjectError::Interfered);
        }
        let mut registers = self.registers;
        self.means.set_call(self.memory, &mut registers, number, *arguments)?;
        if self.state == State::Outside {
            // In this order: if this process is killed in between, the thread runs through the code with its own signal
            // mask; if it is killed afterwards, the code restores the mask.
            requests::set_registers_of_same_program(self.stopped.pid(), &registers)?;
            self.state = State::Inside;
            requests::set_signal_mask(self.stopped.pid(), !requests::FAULTS)?;
        }
        self.run_through_call(number, arguments)?;
        Ok(arch::result(&requests::registers(self.stopped.pid())?))
    }

    /// Makes one call and takes the thread out of the code, as [`RemoteCaller::call`] and [`RemoteCaller::finish`] do. The
    /// second result is true if the thread has left the code.
    pub fn once(mut self, number: i64, arguments: [u64; 6]) -> (Result<Result<u64, Errno>, InjectError>, bool) {
        let made = self.call(number, arguments);
        let left = self.leave();
        let result = made.and_then(|made| left.map(|()| made));
        (result, matches!(self.state, State::Outside | State::PutBack))
    }

    /// Takes the thread out of the code; it stays stopped where it was before. The second result is true if it is not stopped, since
    /// it has not come back from a call, or has ended.
    pub fn finish(mut self) -> (Result<(), InjectError>, bool) {
        (self.leave(), self.state == State::Lost)
    }

    fn leave(&mut self) -> Result<(), InjectError> {
        if self.state == State::Inside {
            // There is no call any more, so that the thread restores its signal mask. From there the code would load the
            // registers one by one; here they are set at once.
            let (number, arguments) = self.means.mask_call();
            let made = self.run_through_call(number, &arguments);
            made.and_then(|()| self.put_back()).map_err(|error| self.give_up(error))?;
        }
        Ok(())
    }

    /// Restores the thread, if it still exists.
    fn give_up(&mut self, error: InjectError) -> InjectError {
        if self.state == State::Inside && self.put_back().is_err() {
            self.state = State::Lost;
        }
        error
    }

    fn put_back(&mut self) -> Result<(), InjectError> {
        // A page that the program has unmapped needs no mark.
        let _ = self.means.set_outside(self.memory);
        arch::forget_call(self.stopped.pid())?;
        requests::set_registers_of_same_program(self.stopped.pid(), &self.registers)?;
        requests::set_signal_mask(self.stopped.pid(), self.mask)?;
        self.state = State::PutBack;
        self.leave_restart_to_kernel()
    }

    /// Lets the kernel decide whether the call in which the thread was stopped is restarted or fails with EINTR, if the
    /// registers of a stop determine that: signals that have arrived since may end it, and only the kernel knows
    /// whether their handlers restart calls (SA_RESTART). It decides on the way out of a stop for a signal or an
    /// interruption (`arch_do_signal_or_restart`), so the thread is brought to such a stop, at its call. If this
    /// process is killed in between, the thread makes the call again.
    fn leave_restart_to_kernel(&mut self) -> Result<(), InjectError> {
        let thread = self.stopped.pid();
        if arch::interrupted(&self.stopped_with) == Interrupted::No {
            return Ok(());
        }
        requests::interrupt(thread)?;
        let deadline = self.deadline.max(Instant::now() + TIME_TO_STOP);
        let mut delivered = 0;
        loop {
            requests::resume(thread, Resume::Continue, delivered)?;
            match self.waiter.wait(thread, deadline).inspect_err(|_| self.state = State::Lost)? {
                Some(WaitReport::Stopped(Stop::Event { event: libc::PTRACE_EVENT_STOP, .. })) => break,
                // The interruption comes before any signal but one that was being handled.
                Some(WaitReport::Stopped(Stop::Signal(signal))) => delivered = signal,
                Some(WaitReport::Stopped(Stop::Event { event: libc::PTRACE_EVENT_EXEC, .. })) => {
                    self.state = State::Lost;
                    return Err(InjectError::Executed);
                }
                Some(WaitReport::Stopped(_)) => delivered = 0,
                Some(WaitReport::Ended) => {
                    self.state = State::Lost;
                    return Err(InjectError::Gone);
                }
                None => {
                    self.state = State::Lost;
                    return Err(InjectError::Ptrace(Errno::ETIMEDOUT));
                }
            }
        }
        // It is elsewhere if it has begun to handle a signal.
        let now = requests::registers(thread)?;
        let place = |registers: &Registers| (arch::instruction_pointer(registers), arch::stack_pointer(registers));
        if place(&now) == place(&self.registers) {
            requests::set_registers_of_same_program(thread, &self.stopped_with)?;
        }
        Ok(())
    }

    /// Lets the thread make exactly this call.
    fn run_through_call(&mut self, number: i64, arguments: &[u64]) -> Result<(), InjectError> {
        self.run_to(CallStop::Entry)?;
        let registers = requests::registers(self.stopped.pid())?;
        let (found, its_arguments) = arch::call_registers(&registers);
        let is_ours = found == number && its_arguments[..arguments.len()] == *arguments;
        // The kernel runs the filters after this stop (`syscall_trace_enter`).
        if !is_ours || self.filters.have_grown(self.stopped.pid()) {
            self.cancel_call(&registers)?;
            return Err(InjectError::Interfered);
        }
        self.run_to(CallStop::Exit)
    }

    /// Cancels the call at whose entry the thread is stopped.
    fn cancel_call(&mut self, registers: &Registers) -> Result<(), InjectError> {
        let filters = Filters::of(self.stopped.pid(), &ThreadStatus::read(self.stopped.pid()));
        let (_, arguments) = arch::call_registers(&self.registers);
        let behind = arch::instruction_pointer(registers).0;
        let number = filters.map_or(-1, |filters| filters.harmless_call(arguments, behind));
        arch::replace_call(self.stopped.pid(), &self.registers, number)?;
        self.run_to(CallStop::Exit)
    }

    fn wait(&mut self, wanted: CallStop, deadline: Instant) -> Result<Option<WaitReport>, Errno> {
        if let Some((until, lend)) = self.lend.take_if(|_| wanted == CallStop::Exit) {
            let report = self.waiter.wait_shortly(self.stopped.pid(), until)?;
            if report.is_some() {
                self.lend = Some((until, lend));
                return Ok(report);
            }
            lend();
        }
        self.waiter.wait(self.stopped.pid(), deadline)
    }

    fn run_to(&mut self, wanted: CallStop) -> Result<(), InjectError> {
        let deadline = self.deadline.min(Instant::now() + LONGEST_CALL);
        let mut delivered = 0;
        while Instant::now() < deadline {
            requests::resume(self.stopped.pid(), Resume::ToSystemCall, delivered)?;
            delivered = 0;
            match self.wait(wanted, deadline).inspect_err(|_| self.state = State::Lost)? {
                // It completes the code by itself when it can, as when its cgroup is thawed; without a call that it has not
                // begun, whose result nobody would know.
                None => {
                    if wanted == CallStop::Entry {
                        self.means.withdraw_call(self.memory);
                    }
                    self.state = State::Lost;
                    break;
                }
                Some(WaitReport::Stopped(Stop::SystemCall)) if requests::call_stop(self.stopped.pid())? == wanted => {
                    return Ok(());
                }
                Some(WaitReport::Stopped(Stop::Event { event: libc::PTRACE_EVENT_EXEC, .. })) => {
                    self.state = State::Lost;
                    return Err(InjectError::Executed);
                }
                // SIGSTOP cannot be blocked, and a later SIGCONT ends its group stop only once it is delivered. A
                // resumed tracee runs in spite of the group stop, which applies to it when it is released.
                Some(WaitReport::Stopped(Stop::Signal(libc::SIGSTOP))) => delivered = libc::SIGSTOP,
                // It stays pending: a thread that is resumed with a signal that it blocks by then queues it again.
                Some(WaitReport::Stopped(Stop::Signal(signal)))
                    if requests::is_sent_fault(self.stopped.pid(), signal) =>
                {
                    requests::set_signal_mask(self.stopped.pid(), u64::MAX)?;
                    delivered = signal;
                }
                // All other signals are blocked except those of a fault, which would only occur again.
                Some(WaitReport::Stopped(Stop::Signal(signal))) => {
                    // The program must not receive it if this process is killed once the thread is at its place again.
                    let _ = wait::poll(self.stopped.pid());
                    return Err(InjectError::Fault(signal));
                }
                Some(WaitReport::Ended) => {
                    self.state = State::Lost;
                    return Err(InjectError::Gone);
                }
                Some(WaitReport::Stopped(Stop::SystemCall) | WaitReport::Stopped(Stop::Event { .. })) => {}
            }
        }
        Err(InjectError::Ptrace(Errno::ETIMEDOUT))
    }
}
