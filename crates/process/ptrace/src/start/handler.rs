//! Decisions at the stops of a start, and the trait of the code that makes them.

use crate::remote::arch::guest;
use crate::remote::requests;
use crate::remote::status::ThreadStatus;
use crate::remote::tracee::Stopped;
use crate::remote::{InjectError, Injector};
use address_space::{Address, AddressSpace};
use std::io;

/// A program that the kernel has just mapped and that has not run yet.
pub struct ExecStop<'a> {
    pub(super) stopped: &'a Stopped,
    pub(super) entry: Address,
    pub(super) status: ThreadStatus,
}

/// A program before its first own instruction, with all its threads stopped.
pub struct EntryStop<'a> {
    pub(super) stopped: &'a Stopped,
    pub(super) status: ThreadStatus,
    /// Number of other threads, all stopped.
    pub other_threads: usize,
}

/// Decision of the handler at the exec stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterExec {
    /// The program is not lifted.
    Nothing,
    /// The program is not lifted, and its process is no longer traced.
    LeaveAlone,
    /// The program stops again at this address.
    StopAt(Address),
    /// The program is at its entry already.
    AtEntry,
    /// The program ends with this status before it runs.
    End(i32),
    /// The dynamic linker was started as a program: [`Handler::mapped`] is called after each of its system calls.
    WatchMaps,
}

/// Decision of the handler at the entry stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// The process is no longer traced.
    Release,
    /// The process stays traced: its descendants may be lifted too.
    Follow,
    /// The process ends with this status before it runs.
    Exit(i32),
}

/// Decides at the stops. Its functions are in the order in which a start calls them.
pub trait Handler {
    /// Called when a program has been mapped.
    fn at_exec(&mut self, stop: &ExecStop) -> AfterExec;
    /// Called after each system call of a dynamic linker that was started as a program. Returns the entry of the program,
    /// once it is mapped.
    fn mapped(&mut self, stop: &ExecStop) -> Option<Address>;
    /// Called while a program runs to its entry, to read what is needed there.
    fn while_loading(&mut self, _pid: i32) {}
    /// Called when a program is about to be entered.
    fn at_entry(&mut self, stop: &EntryStop) -> After;
    /// Called instead of [`Handler::at_entry`] for a program that cannot be stopped there and is not lifted.
    fn missed(&mut self, pid: i32, why: &io::Error) -> After;
    /// Called instead of [`Handler::at_entry`] for a program that has ended before it was stopped there. Its number may be
    /// another process's.
    fn ended_unseen(&mut self, _pid: i32) {}
    /// Called instead of [`Handler::at_exec`] or [`Handler::at_entry`] for a program that cannot make the calls of a lift.
    fn refused(&mut self, pid: i32, why: &str) -> After;
    /// True if this process does not end when there is nothing left to follow, so that no program may wait for its end.
    fn stays(&self) -> bool {
        false
    }
    /// Called when the launched process ends, if it is still traced because its descendants are followed. It has its descriptors.
    fn ends(&mut self, _pid: i32) {}
    /// Called when the process is no longer traced. It runs.
    fn released(&mut self, _pid: i32) {}
    /// Called for a program that was killed, since it could not be made to end by itself as the handler has decided.
    fn killed(&mut self, pid: i32, why: &InjectError);
}

impl ExecStop<'_> {
    /// The process.
    pub fn pid(&self) -> i32 {
        self.stopped.pid().as_raw()
    }

    /// The address at which the thread will run: the entry of the program, or of its dynamic linker.
    pub fn instruction_pointer(&self) -> Address {
        self.entry
    }

    /// Makes the thread execute system calls.
    ///
    /// # Errors
    /// [`InjectError`].
    pub fn injector(&self, space: &AddressSpace) -> Result<Injector<'_>, InjectError> {
        let mut registers = requests::registers(self.stopped.pid())?;
        guest::after_exec(&mut registers);
        Injector::with_registers(self.stopped, space, &self.status, registers)
    }
}

impl EntryStop<'_> {
    /// The process.
    pub fn pid(&self) -> i32 {
        self.stopped.pid().as_raw()
    }

    /// True if the process has switched transparent huge pages off for itself.
    pub fn thp_is_off(&self) -> bool {
        self.status.thp_off
    }

    /// Makes the main thread execute system calls, as long as it is stopped:
    ///
    /// ```
    /// fn within<'a>(stop: &'a ptrace::EntryStop<'_>, space: &address_space::AddressSpace) -> Option<ptrace::Injector<'a>> {
    ///     stop.injector(space).ok()
    /// }
    /// ```
    ///
    /// An injector does not outlive the stop:
    ///
    /// ```compile_fail
    /// fn beyond(stop: &ptrace::EntryStop<'_>, space: &address_space::AddressSpace) -> Option<ptrace::Injector<'static>> {
    ///     stop.injector(space).ok()
    /// }
    /// ```
    ///
    /// # Errors
    /// [`InjectError`].
    pub fn injector(&self, space: &AddressSpace) -> Result<Injector<'_>, InjectError> {
        Injector::new(self.stopped, space, &self.status)
    }
}
