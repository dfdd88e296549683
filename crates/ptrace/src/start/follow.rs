//! Follows a start: the exec stop, the entry stop, and where asked the descendants.
//!
//! The follower passes on every signal and every stop as it came. What happens at the two stops is decided by the handler.

use super::entry_stop::AwaitedEntry;
use super::reap_stub;
use super::threads::StoppedThreads;
use crate::remote::arch::{self, guest};
use crate::remote::requests::{self, CallStop, Resume};
use crate::remote::restart;
use crate::remote::status::ThreadStatus;
use crate::remote::tracee::{Running, Stopped, Waited};
use crate::remote::wait::{self, Stop};
use crate::remote::{InjectError, Injector, seccomp};
use address_space::{Address, AddressSpace};
use linux::text::text_of;
use nix::errno::Errno;
use nix::unistd::Pid;
use std::collections::HashMap;
use std::{fs, io};

/// A program that the kernel has just mapped and that has not run yet.
pub struct ExecStop<'a> {
    stopped: &'a Stopped,
    entry: Address,
    status: ThreadStatus,
}

/// A program before its first own instruction, with all its threads stopped.
pub struct EntryStop<'a> {
    stopped: &'a Stopped,
    status: ThreadStatus,
    /// Number of other threads, all stopped.
    pub other_threads: usize,
}

/// What the handler decides at the exec stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterExec {
    /// The program is not lifted.
    Nothing,
    /// The program stops again at this address.
    StopAt(Address),
    /// The program is at its entry already.
    AtEntry,
    /// The program ends with this status before it runs.
    End(i32),
    /// The dynamic linker was started as a program: [`Handler::mapped`] is called after each of its system calls.
    WatchMaps,
}

/// What the handler decides at the entry stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// The process is no longer traced.
    Release,
    /// The process stays traced: its descendants may be lifted too.
    Follow,
    /// The process ends with this status before it runs.
    Exit(i32),
}

/// Decides at the stops. Its functions stand in the order in which a start calls them.
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

    /// True where the process has switched transparent huge pages off for itself.
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

/// How a program has come to its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    /// It begins there: it stands at the stop after its exec, unless it has made calls for the helper since.
    ByExec,
    /// By the code of [`AwaitedEntry`].
    BySignal,
}

/// Returns instruction and stack pointer of a thread that stands at the stop after an exec. Another exec shows by
/// another stack pointer, which the kernel randomises.
fn exec_stop(pid: Pid) -> Option<(Address, Address)> {
    pointers(pid).ok().filter(|_| requests::is_at_exec(pid) == Ok(true))
}

/// Returns instruction and stack pointer of a stopped thread; zeros for a 32-bit program, which is not lifted.
fn pointers(pid: Pid) -> Result<(Address, Address), Errno> {
    match requests::registers(pid) {
        Ok(registers) => Ok((arch::instruction_pointer(&registers), arch::stack_pointer(&registers))),
        Err(Errno::EIO) => Ok((Address(0), Address(0))),
        Err(errno) => Err(errno),
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

/// What becomes of a stopped thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// It is resumed with this signal (0: none).
    Resume(i32),
    /// It is resumed and runs to its entry, where it stops again.
    RunToEntry,
    /// It stays in its group stop until SIGCONT.
    StayInGroupStop,
    /// Its number has been taken over by a thread that has executed a program, and whose stop is reported next.
    ReportExec,
    /// The start of its program is over.
    Conclude(After),
}

/// Follows one launched process, or it and all its descendants.
pub struct Follower {
    options: i32,
    descendants: bool,
    /// This process does not end when there is nothing left to follow.
    stays: bool,
    /// The process that has started this one, as long as it has executed nothing.
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
        Running::seize(pid, options)?;
        Ok(Self {
            options,
            descendants,
            stays: false,
            launcher: Some(pid),
            threads: HashMap::from([(pid.as_raw(), State::Plain)]),
        })
    }

    /// Sets whether this process lives on after following, so that no program may wait for its end.
    #[must_use]
    pub fn that_stays(self, stays: bool) -> Self {
        Self { stays, ..self }
    }

    /// True where the only program that is followed is on its way to its entry.
    fn is_starting(&self) -> bool {
        let is_on_its_way = |state: &State| matches!(state, State::Entry(_));
        !self.descendants && (self.launcher.is_some() || self.threads.values().any(is_on_its_way))
    }

    /// True while a thread is traced. The kernel is asked where none is known: a descendant is traced from its first moment
    /// on, and not known before it or the thread that has made it is reported. That one may be killed before.
    fn traces(&self) -> bool {
        !self.threads.is_empty() || self.descendants && wait::any_is_to_be_reported()
    }

    /// Runs until nothing is traced any more.
    ///
    /// # Errors
    /// waitpid's, where the state of the traced threads can no longer be known. They run on unlifted when this process ends.
    pub fn run(self, handler: &mut impl Handler) -> io::Result<()> {
        let mut following = Following { follower: self, handler };
        while following.follower.traces() {
            let waited = if following.follower.is_starting() { Waited::any_soon() } else { Waited::any() };
            match waited {
                Ok(waited) => following.go_on(waited),
                // No tracees left: all have ended or been released.
                Err(Errno::ECHILD) => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }
}

/// A follower at work. Its functions stand in the order in which a start comes to them: each decides what becomes of a
/// stopped thread, and [`Following::carry_out`] alone resumes it.
struct Following<'h, H: Handler> {
    follower: Follower,
    handler: &'h mut H,
}

impl<H: Handler> Following<'_, H> {
    /// Takes one report.
    fn go_on(&mut self, waited: Waited) {
        match waited {
            Waited::Stopped(stopped, stop) => {
                let next = self.decide(&stopped, stop);
                self.carry_out(stopped, next);
            }
            Waited::Ended(pid) => drop(self.follower.threads.remove(&pid.as_raw())),
        }
    }

    fn decide(&mut self, stopped: &Stopped, stop: Stop) -> Next {
        match stop {
            Stop::Event { event, signal } => self.at_event(stopped, event, signal),
            Stop::SystemCall => self.at_system_call(stopped),
            Stop::Signal(signal) => self.at_signal(stopped, signal),
        }
    }

    fn at_event(&mut self, stopped: &Stopped, event: i32, signal: i32) -> Next {
        let pid = stopped.pid();
        self.follower.threads.entry(pid.as_raw()).or_insert(State::Plain);
        match event {
            libc::PTRACE_EVENT_EXEC => {
                if let Ok(former) = requests::event_message(pid)
                    && former as i32 != pid.as_raw()
                {
                    self.follower.threads.remove(&(former as i32));
                }
                self.at_exec(stopped)
            }
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => {
                self.at_fork(pid);
                Next::Resume(0)
            }
            // A stop signal has stopped the whole process: it stays stopped until SIGCONT.
            libc::PTRACE_EVENT_STOP if is_stop_signal(signal) => Next::StayInGroupStop,
            _ => Next::Resume(0),
        }
    }

    /// The thread has made another one, which is traced already. It may have been reported before, and even have ended.
    fn at_fork(&mut self, pid: Pid) {
        if let Ok(new) = requests::event_message(pid)
            && wait::is_to_be_reported(Pid::from_raw(new as i32))
        {
            self.follower.threads.entry(new as i32).or_insert(State::Plain);
        }
    }

    /// The kernel has mapped a program.
    fn at_exec(&mut self, stopped: &Stopped) -> Next {
        let pid = stopped.pid();
        self.follower.threads.insert(pid.as_raw(), State::Plain);
        let launcher = self.follower.launcher.take_if(|launcher| *launcher == pid);
        let status = launcher.and_then(ThreadStatus::of_our_launcher).unwrap_or_else(|| ThreadStatus::read(pid));
        if let Err(why) = seccomp::permit(pid, &status, &seccomp::NEEDED_AT_START) {
            return self.missed(pid, &io::Error::other(why));
        }
        let Ok((entry, _)) = pointers(pid) else { return Next::Resume(0) };
        let stop = ExecStop { stopped, entry, status };
        match self.handler.at_exec(&stop) {
            AfterExec::Nothing if self.follower.descendants => Next::Conclude(After::Follow),
            AfterExec::Nothing => Next::Conclude(After::Release),
            AfterExec::End(status) => Next::Conclude(After::Exit(status)),
            AfterExec::StopAt(entry) => self.await_entry(pid, AwaitedEntry::at_exec(pid, entry)),
            AfterExec::AtEntry => {
                // A static position-independent program may have been moved.
                if let Ok(mut registers) = requests::registers(pid) {
                    guest::after_exec(&mut registers);
                    let _ = requests::set_registers(pid, &registers);
                }
                self.at_entry(stopped, Came::ByExec)
            }
            AfterExec::WatchMaps => {
                self.follower.threads.insert(pid.as_raw(), State::Mapping);
                Next::Resume(0)
            }
        }
    }

    fn await_entry(&mut self, pid: Pid, entry: io::Result<AwaitedEntry>) -> Next {
        match entry {
            Ok(entry) => {
                self.follower.threads.insert(pid.as_raw(), State::Entry(entry));
                Next::RunToEntry
            }
            Err(error) => {
                self.follower.threads.insert(pid.as_raw(), State::Plain);
                self.missed(pid, &error)
            }
        }
    }

    /// A dynamic linker that was started as a program has made a call: it may have mapped the program.
    fn at_system_call(&mut self, stopped: &Stopped) -> Next {
        let pid = stopped.pid();
        let watching = matches!(self.follower.threads.get(&pid.as_raw()), Some(State::Mapping));
        if !watching || requests::call_stop(pid) != Ok(CallStop::Exit) {
            return Next::Resume(0);
        }
        let stop = ExecStop { stopped, entry: Address(0), status: ThreadStatus::read(pid) };
        let awaited = self.handler.mapped(&stop).and_then(|entry| AwaitedEntry::in_linker(pid, entry).transpose());
        match awaited {
            Some(awaited) => self.await_entry(pid, awaited),
            // The linker does not know the entry yet; it may after its next call.
            None => Next::Resume(0),
        }
    }

    fn at_signal(&mut self, stopped: &Stopped, signal: i32) -> Next {
        let pid = stopped.pid();
        let entered = match self.follower.threads.get(&pid.as_raw()) {
            Some(State::Entry(entry)) if entry.is_reached(pid, signal) => entry.enter(pid),
            _ => {
                // Were the thread not traced, a signal without a handler would not interrupt its call.
                let _ = restart::restart_interrupted(pid, pid, signal, None, None);
                return Next::Resume(signal);
            }
        };
        self.follower.threads.insert(pid.as_raw(), State::Plain);
        match entered {
            Ok(()) => self.at_entry(stopped, Came::BySignal),
            Err(_) if requests::is_at_exec(pid) == Ok(true) => Next::ReportExec,
            Err(error) => self.missed(pid, &error),
        }
    }

    /// The program is about to be entered: stops its other threads, if any, and lets the handler lift it.
    fn at_entry(&mut self, stopped: &Stopped, came: Came) -> Next {
        let pid = stopped.pid();
        let status = ThreadStatus::read(pid);
        let follower = &self.follower;
        let is_new = |thread: i32| follower.descendants && wait::is_to_be_reported(Pid::from_raw(thread));
        let traced = |thread: i32| follower.threads.contains_key(&thread) || is_new(thread);
        let others = match status.threads {
            // The only thread is stopped, so that there will be no other.
            1 => Ok(StoppedThreads::default()),
            _ => StoppedThreads::stop(pid, self.follower.options, traced),
        };
        let others = match others {
            Ok(others) => others,
            Err(error) => return self.missed(pid, &error),
        };
        if came == Came::BySignal && requests::is_at_exec(pid) == Ok(true) {
            others.release();
            return Next::ReportExec;
        }
        let exec_before = exec_stop(pid);
        let stop = EntryStop { stopped, status, other_threads: others.count() };
        let after = match seccomp::permit(pid, &status, &seccomp::NEEDED_AT_START) {
            Ok(_) => self.handler.at_entry(&stop),
            Err(why) => self.handler.missed(pid.as_raw(), &io::Error::other(why)),
        };
        if exec_stop(pid).is_some_and(|now| Some(now) != exec_before) {
            // A writer to its memory has made it execute another program, whose stop an injected call has waited for.
            others.release();
            return self.at_exec(stopped);
        }
        if after == After::Follow {
            for thread in others.resume() {
                self.follower.threads.entry(thread.pid().as_raw()).or_insert(State::Plain);
            }
        } else {
            others.release();
        }
        Next::Conclude(after)
    }

    /// The program cannot be stopped at its entry.
    fn missed(&mut self, pid: Pid, why: &io::Error) -> Next {
        Next::Conclude(self.handler.missed(pid.as_raw(), why))
    }

    /// Ends the stop of a thread.
    fn carry_out(&mut self, stopped: Stopped, next: Next) {
        match next {
            Next::Resume(signal) => drop(self.resume(stopped, signal)),
            Next::Conclude(After::Follow) => drop(self.resume(stopped, 0)),
            Next::StayInGroupStop => drop(stopped.resume(Resume::Listen, 0)),
            Next::ReportExec => drop(stopped.replaced_by_exec()),
            Next::RunToEntry => {
                let running = self.resume(stopped, 0);
                self.handler.while_loading(running.pid().as_raw());
            }
            Next::Conclude(After::Release) => self.release(stopped),
            Next::Conclude(After::Exit(status)) => self.end(stopped, status),
        }
    }

    fn resume(&self, stopped: Stopped, signal: i32) -> Running {
        let how = match self.follower.threads.get(&stopped.pid().as_raw()) {
            Some(State::Mapping) => Resume::ToSystemCall,
            _ => Resume::Continue,
        };
        stopped.resume(how, signal)
    }

    fn release(&mut self, stopped: Stopped) {
        if !self.follower.descendants && !self.follower.stays && reap_stub::is_needed(stopped.pid()) {
            // Without the stub the program runs all the same, and keeps a zombie.
            let _ = reap_helper_first(&stopped);
        }
        self.forget_threads(stopped.pid());
        let _ = stopped.detach(0);
        // Where no other process is followed, this one ends now. The program need not wait for that: 0.1 ms on one CPU.
        let _ = nix::sched::sched_yield();
    }

    fn end(&mut self, stopped: Stopped, status: i32) {
        let pid = stopped.pid();
        let ended = injector_of(&stopped).and_then(|injector| injector.exit_group(status));
        if let Err(error) = ended {
            // The process cannot be made to end by itself, and must not run on unlifted.
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
            eprintln!("pagelift: {pid}: {error}");
        }
        self.follower.threads.remove(&pid.as_raw());
    }

    /// Forgets the threads of a process that is released; those that `StoppedThreads` released are no longer traced.
    fn forget_threads(&mut self, pid: Pid) {
        self.follower.threads.remove(&pid.as_raw());
        if self.follower.threads.is_empty() {
            return;
        }
        let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else { return };
        for thread in entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()) {
            self.follower.threads.remove(&thread);
        }
    }
}

/// Makes the program wait for the end of this process, its child, before its first instruction.
fn reap_helper_first(stopped: &Stopped) -> Result<(), InjectError> {
    let mut injector = injector_of(stopped)?;
    reap_stub::prepare(&mut injector)?;
    injector.finish()
}

fn space_of(pid: Pid) -> io::Result<AddressSpace> {
    AddressSpace::parse(&text_of(format!("/proc/{pid}/maps"))?).map_err(io::Error::other)
}

fn injector_of(stopped: &Stopped) -> Result<Injector<'_>, InjectError> {
    Injector::new(stopped, &space_of(stopped.pid())?, &ThreadStatus::read(stopped.pid()))
}

fn is_stop_signal(signal: i32) -> bool {
    [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU].contains(&signal)
}

#[cfg(test)]
mod tests;
