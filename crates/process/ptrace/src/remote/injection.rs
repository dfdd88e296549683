//! Makes a stopped thread execute single system calls, by the code of `guest_code`: with all signals blocked, and
//! stopped again after each call by a SIGURG that it sends to itself.

mod arguments;
mod error;

pub(crate) use arguments::{OpenFile, arguments_to_open};
pub use error::InjectError;

use arguments::{Opening, Scratch};

use crate::remote::RemoteMemory;
use crate::remote::arch::{self, GuestCall, Registers, guest, numbers};
use crate::remote::guest_code::{GuestCode, mappings_with_room};
use crate::remote::last_call::{Ended, LastCall, starts_by_stack_alone};
use crate::remote::requests::{self, Resume};
use crate::remote::seccomp::{FilterAnswer, Filters};
use crate::remote::spin_wait::SpinWait;
use crate::remote::status::ThreadStatus;
use crate::remote::tracee::Stopped;
use crate::remote::wait::{self, LONGEST_CALL, Stop, WaitReport};
use address_space::{Address, AddressRange, AddressSpace, LoadedObject, PageSize};
use nix::errno::Errno;
use nix::unistd::Pid;
use std::io;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

/// All signals but SIGURG, which reports the end of a call.
const ALL_BUT_URGENT: u64 = !(1 << (libc::SIGURG - 1));

/// Call numbers in a list that mark its end, and a store of a word.
const END_OF_LIST: i64 = -1;
const STORE: i64 = -2;

/// Number of words in an entry of a list.
const ENTRY_WORDS: usize = 7;

/// A step of a list that the process executes in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestStep {
    /// A system call. Where it fails, the steps after it are not executed.
    Call(GuestCall),
    /// Stores a word.
    Store(Address, u64),
}

/// A stopped thread that executes system calls. It cannot be resumed as long as this lives.
///
/// A call that does not return within [`LONGEST_CALL`] cannot be taken back. The thread is left alone then: it completes the call,
/// and continues with its own registers and signal mask, as if this process had been killed. The code and the arguments
/// stay in the process. Once the call returns, the thread reports SIGURG, at which it can be released.
///
/// [`Injector::finish`] restores its registers, signal mask and memory, closes what was opened and unmaps what was
/// mapped for arguments. Dropping this, which is for errors, makes no further call: a file that was opened by
/// [`Injector::begin_to_open`], a page that [`Injector::scratch`] had to map, and a SIGURG of another sender that came in
/// between are not taken care of; all else is restored.
pub struct Injector<'a> {
    stopped: PhantomData<&'a Stopped>,
    pid: Pid,
    own_number: i32,
    /// `None` once the thread is restored.
    code: Option<GuestCode>,
    code_at: Address,
    saved: Registers,
    saved_mask: u64,
    scratch: Option<Scratch>,
    memory: RemoteMemory,
    /// The thread is in the code: its registers and its signal mask are changed.
    inside: bool,
    /// A SIGURG of another sender that has come in between.
    urgent: Option<libc::siginfo_t>,
    /// The process has been stopped by SIGSTOP in between.
    group_stopped: bool,
    /// A call is being made: its number, [`END_OF_LIST`] for a list.
    begun: Option<i64>,
    /// Limit of each call.
    longest: Duration,
    /// The call that has not returned within the limit. The thread may still be in it, and is left alone.
    no_return: Option<i64>,
    /// The thread's seccomp filters, and the error with which they reject the next call.
    filters: Filters,
    refused: Option<Errno>,
    opening: Option<Opening>,
    spin_wait: SpinWait,
    /// The process has ended or executed another program, or is in a call that does not return. It is left alone.
    gone: bool,
    has_executed: bool,
}

impl<'a> Injector<'a> {
    /// Takes over a stopped thread, whose status is `status`. The thread is in a ptrace stop again when this is dropped.
    ///
    /// # Errors
    /// [`InjectError`]; the thread is then as it was.
    pub fn new(stopped: &'a Stopped, space: &AddressSpace, status: &ThreadStatus) -> Result<Self, InjectError> {
        let saved = requests::registers(stopped.pid())?;
        Self::with_registers(stopped, space, status, saved)
    }

    /// Takes over a stopped thread that continues with the registers `saved`.
    pub(crate) fn with_registers(
        stopped: &'a Stopped,
        space: &AddressSpace,
        status: &ThreadStatus,
        saved: Registers,
    ) -> Result<Self, InjectError> {
        let pid = stopped.pid();
        if requests::dispatches_calls(pid) {
            return Err(InjectError::Dispatched);
        }
        let memory = RemoteMemory::open(pid.as_raw())?;
        let saved_mask = requests::signal_mask(pid)?;
        let code = GuestCode::place(pid, &memory, guest::CALL.code(), mappings_with_room(space))
            .map_err(InjectError::NoRoom)?;
        let own_number = status.own_number.unwrap_or(pid.as_raw());
        let injector = Self {
            stopped: PhantomData,
            pid,
            own_number,
            code_at: code.at(),
            code: Some(code),
            saved,
            saved_mask,
            scratch: None,
            memory,
            inside: false,
            urgent: None,
            group_stopped: false,
            begun: None,
            longest: LONGEST_CALL,
            no_return: None,
            // The follower has reported filters that cannot be read.
            filters: Filters::of(pid, status).unwrap_or_default(),
            refused: None,
            opening: None,
            spin_wait: SpinWait::new(),
            gone: false,
            has_executed: false,
        };
        injector.write_state()?;
        Ok(injector)
    }

    /// The address of the state with which the thread continues if this process is killed.
    fn state(&self) -> Address {
        arch::stack_pointer(&self.saved) - guest::STATE_BYTES as u64
    }

    fn write_state(&self) -> io::Result<()> {
        self.memory.write(self.state(), &guest::state(&self.saved, self.saved_mask))
    }

    /// The process's memory.
    pub fn memory(&self) -> &RemoteMemory {
        &self.memory
    }

    /// The process.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// The PID of the process in its innermost PID namespace, which it uses in its own calls.
    pub fn own_number(&self) -> i32 {
        self.own_number
    }

    /// Returns why the process is lost, if it has ended or executed another program, or does not return from a call. Data
    /// that were read from the process are invalid then.
    pub fn loss(&self) -> Option<InjectError> {
        self.gone.then(|| match self.no_return {
            Some(number) => InjectError::no_return(number, self.longest),
            None if self.has_executed => InjectError::Executed,
            None => InjectError::Gone,
        })
    }

    /// True where `range` contains the code that makes the system calls.
    pub fn stands_in(&self, range: AddressRange) -> bool {
        range.contains(self.code_at)
    }

    /// The registers with which the thread continues.
    pub fn registers(&self) -> &Registers {
        &self.saved
    }

    /// The place of the address at which the thread continues, for a [`GuestStep::Store`] that changes it.
    pub(crate) fn place_of_next_instruction(&self) -> Address {
        self.state() + guest::STATE_PC
    }

    /// Changes the registers with which the thread continues. The stack pointer must not change.
    ///
    /// # Errors
    /// Where the process's memory cannot be written.
    pub fn change_registers(&mut self, change: impl FnOnce(&mut Registers)) -> io::Result<()> {
        change(&mut self.saved);
        self.write_state()
    }

    /// Makes a system call. The inner result is the call's.
    ///
    /// # Errors
    /// [`InjectError`] where the call could not be made at all.
    pub fn call(&mut self, number: i64, arguments: [u64; 6]) -> Result<Result<u64, Errno>, InjectError> {
        self.begin(number, arguments)?;
        self.end()
    }

    /// Begins a system call and returns while it is being made, for work that needs no thread of the process.
    /// [`Injector::end`] must be called for its result.
    ///
    /// # Errors
    /// [`InjectError`] where the call could not be begun.
    pub(crate) fn begin(&mut self, number: i64, arguments: [u64; 6]) -> Result<(), InjectError> {
        self.await_opened()?;
        if let Some(loss) = self.loss() {
            return Err(loss);
        }
        let call = GuestCall { number, arguments };
        self.refused = self.refusal_of(&call);
        if self.refused.is_some() { Ok(()) } else { self.send(call, None) }
    }

    /// True if the thread's filters allow a call by the instruction before `behind`.
    pub(crate) fn allows(&self, call: &GuestCall, behind: Address) -> bool {
        self.filters.judge(call.number, call.arguments, behind.0) == FilterAnswer::Allowed
    }

    /// Returns the error with which the thread's filters reject a call. A call that would kill the thread is not made.
    fn refusal_of(&self, call: &GuestCall) -> Option<Errno> {
        match self.filters.judge(call.number, call.arguments, self.code_at.0) {
            FilterAnswer::Allowed => None,
            FilterAnswer::Fails(errno) => Some(errno),
            FilterAnswer::Refused => Some(Errno::EPERM),
        }
    }

    /// Sends the thread into the code. If this process is killed from here on, the thread makes the call and continues
    /// with its own state.
    fn send(&mut self, call: GuestCall, list: Option<Address>) -> Result<(), InjectError> {
        let registers = guest::call_registers(&self.saved, self.code_at, self.state(), self.own_number, &call, list);
        requests::set_registers(self.pid, &registers)?;
        if !self.inside {
            // After the registers: if this process is killed, the code restores the mask.
            self.inside = true;
            requests::set_signal_mask(self.pid, ALL_BUT_URGENT & !requests::FAULTS)?;
        }
        requests::resume(self.pid, Resume::Continue, 0)?;
        self.begun = Some(if list.is_some() { END_OF_LIST } else { call.number });
        Ok(())
    }

    /// Waits for the end of the call that was begun. The inner result is the call's.
    ///
    /// # Errors
    /// [`InjectError`] where the call could not be made at all.
    pub(crate) fn end(&mut self) -> Result<Result<u64, Errno>, InjectError> {
        if let Some(errno) = self.refused.take() {
            return Ok(Err(errno));
        }
        let registers = self.wait_until_reported()?;
        Ok(call_result(&registers))
    }

    /// Makes the process execute all these steps without a stop in between; `at` is memory for them. If this process is
    /// killed in the meantime, the steps are still completed. Returns the number of executed steps, and the error of
    /// the failed one.
    ///
    /// # Errors
    /// [`InjectError`] where the steps could not be executed at all.
    pub(crate) fn run(&mut self, steps: &[GuestStep], at: Address) -> Result<(usize, Result<(), Errno>), InjectError> {
        self.await_opened()?;
        let refusal = |step: &GuestStep| if let GuestStep::Call(call) = step { self.refusal_of(call) } else { None };
        if let Some(errno) = steps.iter().find_map(refusal) {
            return Ok((0, Err(errno)));
        }
        let mut words: Vec<u64> = Vec::new();
        for step in steps {
            words.extend(match step {
                GuestStep::Call(GuestCall { number, arguments: [a, b, c, d, e, f] }) => {
                    [*number as u64, *a, *b, *c, *d, *e, *f]
                }
                GuestStep::Store(at, value) => [STORE as u64, at.0, *value, 0, 0, 0, 0],
            });
        }
        words.push(END_OF_LIST as u64);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.memory.write(at, &bytes)?;
        // A call without an effect comes first, since the code begins with a call.
        self.send(GuestCall { number: libc::SYS_getpid, arguments: [0; 6] }, Some(at))?;
        let registers = self.wait_until_reported()?;
        let done = (guest::list_position(&registers) - at) as usize / (ENTRY_WORDS * size_of::<u64>());
        Ok(match call_result(&registers) {
            Ok(_) => (done, Ok(())),
            // The position counts the step that has failed.
            Err(errno) => (done.saturating_sub(1), Err(errno)),
        })
    }

    /// Waits until the thread has stopped after its call, and returns its registers.
    fn wait_until_reported(&mut self) -> Result<Registers, InjectError> {
        let Some(number) = self.begun.take() else { return Err(InjectError::Ptrace(Errno::EINVAL)) };
        let deadline = Instant::now() + self.longest;
        let reported = self.code_at + guest::call_reported();
        loop {
            let mut delivered = 0;
            let Some(report) = self.spin_wait.wait_until(self.pid, deadline)? else {
                // Nobody can take the call back. The thread completes it, and continues with its own state.
                (self.gone, self.no_return) = (true, Some(number));
                return Err(InjectError::no_return(number, self.longest));
            };
            match report {
                WaitReport::Stopped(Stop::Signal(libc::SIGURG)) => {
                    let information = requests::signal_information(self.pid)?;
                    let registers = requests::registers(self.pid)?;
                    if !self.is_own_signal(&information) {
                        self.urgent = Some(information);
                    }
                    // Pending signals of one number are merged, so that this one may carry another sender's payload.
                    if arch::instruction_pointer(&registers) == reported {
                        return Ok(registers);
                    }
                }
                // SIGSTOP cannot be blocked, and a later SIGCONT ends its group stop only once it is delivered. A
                // resumed tracee runs in spite of the group stop.
                WaitReport::Stopped(Stop::Signal(libc::SIGSTOP)) => {
                    self.group_stopped = true;
                    delivered = libc::SIGSTOP;
                }
                // It stays pending: a thread that is resumed with a signal that it blocks by then queues it again.
                WaitReport::Stopped(Stop::Signal(signal)) if requests::is_sent_fault(self.pid, signal) => {
                    requests::set_signal_mask(self.pid, ALL_BUT_URGENT)?;
                    delivered = signal;
                }
                // All other signals are blocked except those of a fault, which would only occur again.
                WaitReport::Stopped(Stop::Signal(signal)) => return Err(InjectError::Fault(signal)),
                // The thread has been made to execute another program, whose registers must not change.
                WaitReport::Stopped(Stop::Event { event: libc::PTRACE_EVENT_EXEC, .. }) => {
                    (self.gone, self.has_executed) = (true, true);
                    return Err(InjectError::Executed);
                }
                WaitReport::Stopped(Stop::Event { .. }) | WaitReport::Stopped(Stop::SystemCall) => {}
                WaitReport::Ended => {
                    self.gone = true;
                    return Err(InjectError::Gone);
                }
            }
            requests::resume(self.pid, Resume::Continue, delivered)?;
        }
    }

    /// True for the signal by which the code reports the end of a call.
    fn is_own_signal(&self, information: &libc::siginfo_t) -> bool {
        information.si_code == libc::SI_TKILL && requests::sender(information) == self.own_number
    }

    /// Returns a page of the process's memory for arguments that a call reads from memory. Its contents are restored in
    /// the end.
    ///
    /// It is below the stack, in memory that a thread without a running signal handler does not use; without such
    /// memory, a page is mapped.
    ///
    /// # Errors
    /// [`InjectError`]; the inner result is `mmap`'s.
    pub fn scratch(&mut self, base_page: PageSize) -> Result<Result<Address, Errno>, InjectError> {
        if self.scratch.is_none() {
            self.scratch = self.below_stack(base_page);
        }
        if let Some(scratch) = &self.scratch {
            return Ok(Ok(scratch.start()));
        }
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let mapped = self.call(numbers::SYS_mmap, [0, base_page.bytes(), protection, flags, u64::MAX, 0])?;
        Ok(mapped.map(|start| {
            self.scratch = Some(Scratch::Mapped(AddressRange::sized(Address(start), base_page.bytes())));
            Address(start)
        }))
    }

    fn below_stack(&self, base_page: PageSize) -> Option<Scratch> {
        let top = arch::stack_pointer(&self.saved).0.checked_sub(guest::STACK_BYTES)?;
        let at = Address(top.checked_sub(base_page.bytes())? & !15);
        let mut before = vec![0; base_page.bytes() as usize];
        self.memory.read(at, &mut before).ok()?;
        Some(Scratch::BelowStack(at, before))
    }

    /// Makes the process begin to open a file for reading, and returns while the call is being made.
    ///
    /// # Errors
    /// [`InjectError`]. A lack of memory for the path is not an error: the file is not opened then.
    pub fn begin_to_open(&mut self, path: &str, base_page: PageSize) -> Result<(), InjectError> {
        let Ok(scratch) = self.scratch(base_page)? else { return Ok(()) };
        let bytes = [path.as_bytes(), &[0]].concat();
        if bytes.len() as u64 > base_page.bytes() {
            return Ok(());
        }
        self.memory.write(scratch, &bytes)?;
        self.begin(numbers::SYS_openat, arguments_to_open(scratch))?;
        self.opening = Some(Opening { path: path.to_owned(), descriptor: None });
        Ok(())
    }

    /// Waits until the process has opened its file; then the memory for the path is free.
    pub(crate) fn await_opened(&mut self) -> Result<(), InjectError> {
        if self.opening.as_ref().is_none_or(|opening| opening.descriptor.is_some()) {
            return Ok(());
        }
        let opened = self.end();
        match (&mut self.opening, opened) {
            (Some(opening), Ok(Ok(descriptor))) => opening.descriptor = Some(descriptor),
            (_, Ok(Err(_))) => self.opening = None,
            (_, opened) => {
                self.opening = None;
                return opened.map(drop);
            }
        }
        Ok(())
    }

    /// Returns the file that the process has opened. Its descriptor belongs to the caller from now on.
    pub(crate) fn take_opened(&mut self) -> Result<Option<OpenFile>, InjectError> {
        self.await_opened()?;
        let opening = self.opening.take();
        Ok(opening.and_then(|Opening { path, descriptor }| Some(OpenFile { path, descriptor: descriptor? })))
    }

    /// The scratch page, if one is mapped: it does not belong to the program.
    pub fn scratch_range(&self) -> Option<AddressRange> {
        match &self.scratch {
            Some(Scratch::Mapped(range)) => Some(*range),
            _ => None,
        }
    }

    /// Restores registers and signal mask. The thread stays in a ptrace stop; a signal that has come in between is
    /// pending again.
    ///
    /// # Errors
    /// [`InjectError`] where the process has ended.
    pub fn finish(mut self) -> Result<(), InjectError> {
        self.undo_own_calls();
        let signal = self.send_urgent_again();
        self.leave_code()?;
        signal
    }

    /// Like [`Injector::finish`], for a thread that is about to enter the dynamic linker of this executable, before the
    /// process is released: also drops the page that the code was written to, where that is possible. Then nothing
    /// private of the calls is left.
    ///
    /// # Errors
    /// [`InjectError`] where the process has ended or executes another program.
    pub fn finish_before_linker(
        mut self,
        space: &AddressSpace,
        executable: &LoadedObject,
        linker: &LoadedObject,
        base_page: PageSize,
    ) -> Result<(), InjectError> {
        self.undo_own_calls();
        let is_disturbed = self.urgent.is_some() || self.group_stopped;
        let signal = self.send_urgent_again();
        let is_entered = arch::instruction_pointer(&self.saved) == linker.entry();
        if self.inside && !is_disturbed && is_entered && starts_by_stack_alone(executable) {
            self.drop_page_of_code(space, linker.extent().widened(base_page), base_page)?;
        }
        self.leave_code()?;
        signal
    }

    fn drop_page_of_code(
        &mut self,
        space: &AddressSpace,
        linker: AddressRange,
        base_page: PageSize,
    ) -> Result<(), InjectError> {
        let Some(code) = self.code.as_ref().map(GuestCode::range) else { return Ok(()) };
        let found = LastCall::find(self.pid, &self.memory, code, &self.saved, space, linker, base_page);
        let is_allowed = |last: &LastCall| {
            let (call, behind) = last.made();
            self.filters.judge(call.number, call.arguments, behind.0) == FilterAnswer::Allowed
        };
        let Some(last) = found.filter(is_allowed) else { return Ok(()) };
        requests::set_signal_mask(self.pid, self.saved_mask)?;
        match last.make(&self.memory, self.spin_wait)? {
            Ended::Returned { result, group_stopped } => {
                (self.inside, self.group_stopped) = (false, group_stopped);
                if group_stopped {
                    requests::interrupt(self.pid)?;
                }
                // A dropped page need not be erased.
                self.code.take_if(|_| result.is_ok());
                Ok(())
            }
            Ended::NoReturn => {
                (self.gone, self.no_return) = (true, Some(numbers::SYS_madvise));
                Err(InjectError::no_return(numbers::SYS_madvise, LONGEST_CALL))
            }
            Ended::Gone { executed } => {
                (self.gone, self.has_executed) = (true, executed);
                Err(if executed { InjectError::Executed } else { InjectError::Gone })
            }
        }
    }

    /// Closes what was opened, and unmaps or restores the memory for arguments.
    fn undo_own_calls(&mut self) {
        if let Ok(Some(opened)) = self.take_opened() {
            let _ = self.call(numbers::SYS_close, [opened.descriptor, 0, 0, 0, 0, 0]);
        }
        // If either fails, something is left behind, but the registers must be restored nevertheless. A call that has not
        // returned may still read its arguments.
        match self.scratch.take().filter(|_| !self.gone) {
            Some(Scratch::BelowStack(at, before)) => drop(self.memory.write(at, &before)),
            // A separate mapping of one page: unmapping it splits nothing.
            Some(Scratch::Mapped(page)) => {
                let _ = self.call(numbers::SYS_munmap, [page.start().0, page.len(), 0, 0, 0, 0]);
            }
            None => {}
        }
    }

    /// Makes a SIGURG of another sender pending again, with its payload. A thread that is resumed with a signal that it
    /// blocks keeps it pending (`ptrace_signal` of the kernel's `signal.c`), and stops for the interrupt before it does
    /// anything else.
    fn send_urgent_again(&mut self) -> Result<(), InjectError> {
        let Some(information) = self.urgent.take().filter(|_| self.inside && !self.gone) else { return Ok(()) };
        requests::set_signal_mask(self.pid, u64::MAX)?;
        requests::set_signal_information(self.pid, &information)?;
        requests::interrupt(self.pid)?;
        requests::resume(self.pid, Resume::Continue, libc::SIGURG)?;
        match wait::wait_for(self.pid)? {
            WaitReport::Ended => {
                self.gone = true;
                Err(InjectError::Gone)
            }
            _ => Ok(()),
        }
    }

    /// Takes the thread out of the code, and the code out of the process. The thread continues with its own state even
    /// if this process is killed in between.
    fn leave_code(&mut self) -> Result<(), InjectError> {
        if std::mem::take(&mut self.inside) && !self.gone {
            requests::set_signal_mask(self.pid, self.saved_mask)?;
            requests::set_registers_of_same_program(self.pid, &self.saved)?;
            if self.group_stopped {
                // A thread that stays traced stops once more and reports the group stop of its process.
                requests::interrupt(self.pid)?;
            }
        }
        // Memory that cannot be written belongs to a process that has ended.
        if let Some(code) = self.code.take().filter(|_| !self.gone) {
            let _ = code.erase(self.pid, &self.memory);
        }
        Ok(())
    }

    /// Ends the process with an exit status.
    ///
    /// # Errors
    /// [`InjectError`] where the process cannot be made to end. One that has ended already is not an error.
    pub fn exit_group(mut self, status: i32) -> Result<(), InjectError> {
        match self.call(numbers::SYS_exit_group, [status as u64, 0, 0, 0, 0, 0]) {
            Ok(Ok(_)) | Err(InjectError::Gone) => Ok(()),
            Ok(Err(errno)) => Err(InjectError::Ptrace(errno)),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Injector<'_> {
    fn drop(&mut self) {
        if self.begun.is_some() {
            // If the registers changed during a call, the call's result would be lost.
            let _ = self.wait_until_reported();
        }
        if let Some(Scratch::BelowStack(at, before)) = self.scratch.take()
            && !self.gone
        {
            let _ = self.memory.write(at, &before);
        }
        let _ = self.leave_code();
    }
}

/// Linux returns errors as -1 to -4095.
fn call_result(registers: &Registers) -> Result<u64, Errno> {
    let result = guest::call_result(registers);
    if (-4095..0).contains(&result) { Err(Errno::from_raw(-result as i32)) } else { Ok(result as u64) }
}

#[cfg(test)]
mod tests;
