//! Follows a start: the exec stop, the entry stop, and where asked the descendants.
//!
//! The follower passes on every signal and every stop as it came. What happens at the two stops is the handler's.

use crate::arch::{self, guest};
use crate::entry_stop::AwaitedEntry;
use crate::live::restart;
use crate::requests::{self, CallStop, Resume};
use crate::status::ThreadStatus;
use crate::wait::{self, Report};
use crate::{InjectError, Injector, StoppedThreads, farewell, seccomp};
use address_space::{Address, AddressSpace};
use kernel_calls::text::text_of;
use nix::errno::Errno;
use nix::unistd::Pid;
use std::collections::HashMap;
use std::{fs, io};

/// A program that the kernel has just mapped and that has not run yet.
pub struct ExecStop {
    pid: Pid,
    entry: Address,
    status: ThreadStatus,
}

/// A program before its first own instruction, with all its threads stopped.
pub struct EntryStop {
    pid: Pid,
    status: ThreadStatus,
    /// How many other threads are stopped.
    pub other_threads: usize,
}

/// What the handler wants after the exec stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterExec {
    /// Nothing to do with this program.
    Nothing,
    /// Stop again when the program reaches this address.
    StopAt(Address),
    /// The program is at its entry already.
    AtEntry,
    /// The program ends with this status before it runs.
    End(i32),
    /// The dynamic linker was started as a program: ask [`Handler::mapped`] after each of its system calls.
    WatchMaps,
}

/// What becomes of a process after its entry stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// It is no longer traced.
    Release,
    /// It is followed on: its descendants may be lifted too.
    Follow,
    /// It ends with this status before it runs.
    Exit(i32),
}

/// Decides at the stops.
pub trait Handler {
    /// A program has been mapped.
    fn at_exec(&mut self, stop: &ExecStop) -> AfterExec;
    /// A program runs towards its entry: time for what will be needed there.
    fn meanwhile(&mut self, _pid: i32) {}
    /// The dynamic linker, started as a program, has made a system call: where the program is entered, once known.
    fn mapped(&mut self, stop: &ExecStop) -> Option<Address>;
    /// A program is about to be entered.
    fn at_entry(&mut self, stop: &EntryStop) -> After;
    /// A program cannot be stopped at its entry and runs on as it is.
    fn missed(&mut self, pid: i32, why: &io::Error) -> After;
}

impl ExecStop {
    /// The process.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// Where the thread goes on: the program's entry, or that of its dynamic linker.
    pub fn instruction_pointer(&self) -> Address {
        self.entry
    }

    /// Takes the thread over for system calls.
    ///
    /// # Errors
    /// [`InjectError`].
    pub fn injector(&self, space: &AddressSpace) -> Result<Injector, InjectError> {
        let mut registers = requests::registers(self.pid)?;
        guest::after_exec(&mut registers);
        Injector::with_registers(self.pid, space, &self.status, registers)
    }
}

impl EntryStop {
    /// The process.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// True where the process has switched transparent huge pages off for itself.
    pub fn thp_is_off(&self) -> bool {
        self.status.thp_off
    }

    /// Takes the main thread over for system calls.
    ///
    /// # Errors
    /// [`InjectError`].
    pub fn injector(&self, space: &AddressSpace) -> Result<Injector, InjectError> {
        Injector::new(self.pid, space, &self.status)
    }
}

/// What a traced thread is on its way to.
#[derive(Debug)]
enum State {
    /// Its next exec.
    Plain,
    /// The program's entry.
    Entry(AwaitedEntry),
    /// The mapping of a program by a dynamic linker that was started as one.
    Mapping,
}

/// Follows one launched process, or it and all its descendants.
pub struct Follower {
    options: i32,
    descendants: bool,
    /// This process does not end when there is nothing left to follow.
    stays: bool,
    /// The process that has started us, as long as it has executed nothing.
    launcher: Option<Pid>,
    threads: HashMap<i32, State>,
}

impl Follower {
    /// Seizes the process that has started this one and is about to exec.
    ///
    /// # Errors
    /// The kernel's: no permission, or traced by another already.
    pub fn seize(pid: Pid, descendants: bool) -> io::Result<Self> {
        let mut options = libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_TRACESYSGOOD;
        if descendants {
            options |= libc::PTRACE_O_TRACEFORK | libc::PTRACE_O_TRACEVFORK | libc::PTRACE_O_TRACECLONE;
        }
        requests::seize(pid, options)?;
        Ok(Self {
            options,
            descendants,
            stays: false,
            launcher: Some(pid),
            threads: HashMap::from([(pid.as_raw(), State::Plain)]),
        })
    }

    /// Says that this process has more to do afterwards, so that no program may wait for its end.
    #[must_use]
    pub fn that_stays(self, stays: bool) -> Self {
        Self { stays, ..self }
    }

    /// Runs until nothing is traced any more.
    ///
    /// # Errors
    /// waitpid's, where it cannot be known any more what the traced threads do. They go on as they are when this process
    /// ends.
    pub fn run(self, handler: &mut impl Handler) -> io::Result<()> {
        let mut following = Following { follower: self, handler };
        while !following.follower.threads.is_empty() {
            match wait::wait_for_any() {
                Ok((pid, report)) => following.take(pid, report),
                // No tracees left: all have ended or been released.
                Err(Errno::ECHILD) => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }
}

/// A follower at work.
struct Following<'h, H: Handler> {
    follower: Follower,
    handler: &'h mut H,
}

impl<H: Handler> Following<'_, H> {
    fn take(&mut self, pid: Pid, report: Report) {
        match report {
            Report::Ended => drop(self.follower.threads.remove(&pid.as_raw())),
            Report::Event { event, signal } => self.take_event(pid, signal, event),
            Report::SystemCall => self.take_system_call(pid),
            Report::Signal(signal) => self.take_signal(pid, signal),
        }
    }

    fn take_event(&mut self, pid: Pid, signal: i32, event: i32) {
        self.follower.threads.entry(pid.as_raw()).or_insert(State::Plain);
        match event {
            libc::PTRACE_EVENT_EXEC => {
                if let Ok(former) = requests::event_message(pid)
                    && former as i32 != pid.as_raw()
                {
                    self.follower.threads.remove(&(former as i32));
                }
                self.take_exec(pid);
            }
            // A stop signal has stopped the whole process: it stays so until SIGCONT.
            libc::PTRACE_EVENT_STOP if is_stop_signal(signal) => resume(pid, Resume::Listen, 0),
            _ => self.go_on(pid, 0),
        }
    }

    fn take_exec(&mut self, pid: Pid) {
        self.follower.threads.insert(pid.as_raw(), State::Plain);
        let launcher = self.follower.launcher.take_if(|launcher| *launcher == pid);
        let status = launcher.and_then(ThreadStatus::of_our_launcher).unwrap_or_else(|| ThreadStatus::read(pid));
        if let Err(why) = seccomp::permit(pid, &status, self.follower.options) {
            let after = self.handler.missed(pid.as_raw(), &io::Error::other(why));
            return self.leave(pid, after, 0);
        }
        let Ok(registers) = requests::registers(pid) else { return self.go_on(pid, 0) };
        let stop = ExecStop { pid, entry: arch::instruction_pointer(&registers), status };
        match self.handler.at_exec(&stop) {
            AfterExec::Nothing => {
                self.leave(pid, if self.follower.descendants { After::Follow } else { After::Release }, 0)
            }
            AfterExec::StopAt(entry) => self.await_entry(pid, AwaitedEntry::at_exec(pid, entry)),
            AfterExec::AtEntry => {
                // A static position-independent program may have been moved.
                if let Ok(mut registers) = requests::registers(pid) {
                    guest::after_exec(&mut registers);
                    let _ = requests::set_registers(pid, &registers);
                }
                self.at_entry(pid);
            }
            AfterExec::End(status) => self.leave(pid, After::Exit(status), 0),
            AfterExec::WatchMaps => {
                self.follower.threads.insert(pid.as_raw(), State::Mapping);
                self.go_on(pid, 0);
            }
        }
    }

    fn await_entry(&mut self, pid: Pid, entry: io::Result<AwaitedEntry>) {
        match entry {
            Ok(entry) => {
                self.follower.threads.insert(pid.as_raw(), State::Entry(entry));
                self.go_on(pid, 0);
                self.handler.meanwhile(pid.as_raw());
            }
            Err(error) => {
                self.follower.threads.insert(pid.as_raw(), State::Plain);
                let after = self.handler.missed(pid.as_raw(), &error);
                self.leave(pid, after, 0);
            }
        }
    }

    fn take_system_call(&mut self, pid: Pid) {
        let watching = matches!(self.follower.threads.get(&pid.as_raw()), Some(State::Mapping));
        if watching && requests::call_stop(pid) == Ok(CallStop::Exit) {
            let stop = ExecStop { pid, entry: Address(0), status: ThreadStatus::read(pid) };
            if let Some(entry) = self.handler.mapped(&stop) {
                match AwaitedEntry::in_linker(pid, entry).transpose() {
                    Some(awaited) => return self.await_entry(pid, awaited),
                    // The linker does not know it yet: after its next call.
                    None => return self.go_on(pid, 0),
                }
            }
        }
        self.go_on(pid, 0);
    }

    fn take_signal(&mut self, pid: Pid, signal: i32) {
        let entered = match self.follower.threads.get(&pid.as_raw()) {
            Some(State::Entry(entry)) if entry.is_reached(pid, signal) => entry.enter(pid),
            _ => {
                // One that nobody handles would pass unnoticed, were the thread not traced.
                let _ = restart::mend(pid, pid, signal, None);
                return self.go_on(pid, signal);
            }
        };
        self.follower.threads.insert(pid.as_raw(), State::Plain);
        if let Err(error) = entered {
            let after = self.handler.missed(pid.as_raw(), &error);
            return self.leave(pid, after, 0);
        }
        self.at_entry(pid);
    }

    fn at_entry(&mut self, pid: Pid) {
        let status = ThreadStatus::read(pid);
        let traced = |thread: i32| self.follower.threads.contains_key(&thread);
        let others = match status.threads {
            // The only one stands still, so that there will be no other.
            1 => Ok(StoppedThreads::default()),
            _ => StoppedThreads::stop(pid, self.follower.options, traced),
        };
        let mut others = match others {
            Ok(others) => others,
            Err(error) => {
                let after = self.handler.missed(pid.as_raw(), &error);
                return self.leave(pid, after, 0);
            }
        };
        let stop = EntryStop { pid, status, other_threads: others.count() };
        let after = match seccomp::permit(pid, &status, self.follower.options) {
            Ok(()) => self.handler.at_entry(&stop),
            Err(why) => self.handler.missed(pid.as_raw(), &io::Error::other(why)),
        };
        if after == After::Follow {
            for thread in others.resume() {
                self.follower.threads.entry(thread).or_insert(State::Plain);
            }
        } else {
            others.release();
        }
        self.leave(pid, after, 0);
    }

    fn leave(&mut self, pid: Pid, after: After, signal: i32) {
        match after {
            After::Follow => {
                // Filters that were suspended for us are in force again.
                let _ = requests::set_options(pid, self.follower.options);
                self.go_on(pid, signal);
            }
            After::Release => {
                if !self.follower.descendants && !self.follower.stays && farewell::is_needed(pid) {
                    // A program that keeps a dead child runs all the same.
                    let _ = take_leave(pid);
                }
                self.release_threads(pid);
                let _ = requests::detach(pid, signal);
                // Where nobody else is followed we end now, for which the program need not wait: 0.1 ms on one processor.
                let _ = nix::sched::sched_yield();
            }
            After::Exit(status) => {
                if let Err(error) = end(pid, status) {
                    // It cannot be made to end by itself; running on unlifted is what was to be prevented.
                    let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
                    eprintln!("pagelift: {pid}: {error}");
                }
                self.follower.threads.remove(&pid.as_raw());
            }
        }
    }

    /// Forgets the threads of a process that is released; those that `StoppedThreads` released are no longer traced.
    fn release_threads(&mut self, pid: Pid) {
        self.follower.threads.remove(&pid.as_raw());
        if self.follower.threads.is_empty() {
            return;
        }
        let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else { return };
        for thread in entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()) {
            self.follower.threads.remove(&thread);
        }
    }

    fn go_on(&mut self, pid: Pid, signal: i32) {
        let how = match self.follower.threads.get(&pid.as_raw()) {
            Some(State::Mapping) => Resume::ToSystemCall,
            _ => Resume::Continue,
        };
        resume(pid, how, signal);
    }
}

/// Lets a thread go on. A thread that was killed meanwhile reports its end next.
fn resume(pid: Pid, how: Resume, signal: i32) {
    let _ = requests::resume(pid, how, signal);
}

fn take_leave(pid: Pid) -> Result<(), InjectError> {
    let mut injector = injector_of(pid)?;
    farewell::prepare(&mut injector)?;
    injector.finish()
}

fn space_of(pid: Pid) -> io::Result<AddressSpace> {
    AddressSpace::parse(&text_of(format!("/proc/{pid}/maps"))?).map_err(io::Error::other)
}

fn injector_of(pid: Pid) -> Result<Injector, InjectError> {
    Injector::new(pid, &space_of(pid)?, &ThreadStatus::read(pid))
}

fn end(pid: Pid, status: i32) -> Result<(), InjectError> {
    injector_of(pid)?.exit_group(status)
}

fn is_stop_signal(signal: i32) -> bool {
    [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU].contains(&signal)
}
