//! Follows a start: the exec stop, the entry stop, and where asked the descendants.
//!
//! The follower passes on every signal and every stop unchanged. The handler decides about the two stops.

mod state;

use super::entry_stop::AwaitedEntry;
use super::handler::{After, AfterExec, EntryStop, ExecStop, Handler};
use super::pace::{self, Look, Pace};
use super::parent_waits::look_before_an_end;
use super::reap_stub;
use super::threads::{NotAllStopped, StoppedThreads};
use crate::remote::arch::{self, guest};
use crate::remote::requests::{self, CallStop, Resume};
use crate::remote::restart;
use crate::remote::status::ThreadStatus;
use crate::remote::timed_wait::TimedWaits;
use crate::remote::tracee::{Running, Stopped, Waited};
use crate::remote::wait::{self, Stop};
use crate::remote::{InjectError, Injector, seccomp};
use address_space::{Address, AddressSpace};
use linux::same_memory::have_same_memory;
use linux::text::text_of;
use linux::urgency;
use nix::errno::Errno;
use nix::unistd::Pid;
use state::{Came, HeldThread, State};
use std::collections::HashMap;
use std::time::{Duration, Instant};
use std::{fs, io};

/// Where a stopped thread is.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Pointers {
    instruction: Address,
    stack: Address,
}

/// Returns the pointers of a thread that is at the stop after an exec. Another exec has another stack pointer, which the
/// kernel randomises.
fn exec_stop(pid: Pid) -> Option<Pointers> {
    pointers(pid).ok().filter(|_| requests::is_at_exec(pid) == Ok(true))
}

/// Returns the pointers of a stopped thread; zeros for a 32-bit program, which is not lifted.
fn pointers(pid: Pid) -> Result<Pointers, Errno> {
    let of = |instruction, stack| Pointers { instruction, stack };
    match requests::registers(pid) {
        Ok(registers) => Ok(of(arch::instruction_pointer(&registers), arch::stack_pointer(&registers))),
        Err(Errno::EIO) => Ok(of(Address(0), Address(0))),
        Err(errno) => Err(errno),
    }
}

/// Maximum time for which a program is held at its entry until all its threads have stopped. Threads in uninterruptible
/// sleep, or in vfork, stop only when that ends.
const STOP_TIMEOUT: Duration = Duration::from_millis(1500);

/// The next action for a stopped thread.
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
    /// It is held at its entry, to which it came in this way, until its other threads can be stopped.
    Hold { came: Came, since: Instant },
    /// It is not followed: it is resumed with this signal (0: none) and no longer traced.
    LeaveAlone(i32),
    /// The start of its program is over.
    Conclude(After),
}

/// Follows one launched process, or it and all its descendants.
pub struct Follower {
    options: i32,
    descendants: bool,
    /// The process that has started this one, as long as it has executed nothing.
    launcher: Option<Pid>,
    /// The process that is launched, also after its exec.
    root: Pid,
    threads: HashMap<i32, State>,
    /// How the programs are looked after that are on their way to their entries.
    pace: Pace,
    /// Waits in which threads were seen before the end of a child.
    waits: TimedWaits,
}

impl Follower {
    /// Seizes the process that has started this one and is about to exec.
    ///
    /// # Errors
    /// The kernel's: no permission, or traced by another already.
    pub fn seize(pid: Pid, descendants: bool) -> io::Result<Self> {
        // A child of a constructor's fork comes to the code at the entry, too, where nobody must wait for it.
        let mut options = libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACEFORK;
        if descendants {
            options |= libc::PTRACE_O_TRACEVFORK | libc::PTRACE_O_TRACECLONE;
        }
        Running::seize(pid, options)?;
        Ok(Self {
            options,
            descendants,
            launcher: Some(pid),
            root: pid,
            threads: HashMap::from([(pid.as_raw(), State::Plain)]),
            pace: Pace::new(descendants),
            waits: TimedWaits::default(),
        })
    }

    /// True while a thread is traced. The kernel is asked if none is known: a descendant is traced from its first
    /// moment on, and unknown before it or its creator is reported. The creator may be killed before.
    fn traces(&self) -> bool {
        !self.threads.is_empty() || self.descendants && wait::any_is_to_be_reported()
    }

    /// Waits until a child has ended or a thread has stopped, and reads the waits that the end would interrupt.
    fn look_before_an_end(&mut self) {
        if self.descendants {
            look_before_an_end(&mut self.waits, |thread| self.threads.contains_key(&thread));
        }
    }

    /// Runs until nothing is traced any more.
    ///
    /// # Errors
    /// waitpid's, where the state of the traced threads can no longer be known. They run on unlifted when this process ends.
    pub fn run(self, handler: &mut impl Handler) -> io::Result<()> {
        pace::expect_reports();
        let mut following = Following { follower: self, handler };
        while following.follower.traces() {
            match following.next_report() {
                Ok(waited) => following.go_on(waited),
                // No tracees left: all have ended or been released.
                Err(Errno::ECHILD) => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Tells programs to stop that have come to their entry. One that is elsewhere by then runs on.
    fn stop_announced(&mut self, look: Look) {
        for (thread, state) in &mut self.threads {
            let State::Entry { entry, told } = state else { continue };
            if !*told && (entry.is_announced() || look == Look::Late && entry.is_over()) {
                // A thread that has ended is reported.
                *told = requests::interrupt(Pid::from_raw(*thread)).is_ok();
            }
        }
    }

    /// Takes a thread that is held at its entry, for its other threads to be stopped.
    fn take_held(&mut self) -> Option<HeldThread> {
        let thread = *self.threads.iter().find(|(_, state)| matches!(state, State::Held(_)))?.0;
        match self.threads.insert(thread, State::Plain) {
            Some(State::Held(held)) => Some(held),
            _ => None,
        }
    }
}

/// A running follower. Its functions are in the order of a start: each decides about a stopped thread, and
/// [`Following::carry_out`] alone resumes it.
struct Following<'h, H: Handler> {
    follower: Follower,
    handler: &'h mut H,
}

impl<H: Handler> Following<'_, H> {
    /// Waits for the next report. In the meantime checks the programs on their way to their entries.
    fn next_report(&mut self) -> Result<Waited, Errno> {
        let found = self.look_after_entries();
        self.follower.pace.rest();
        if let Some(waited) = found? {
            return Ok(waited);
        }
        self.follower.look_before_an_end();
        Waited::any()
    }

    /// Looks after programs that are on their way to their entries, if any, until there is a report.
    fn look_after_entries(&mut self) -> Result<Option<Waited>, Errno> {
        while self.follower.threads.values().any(State::is_looked_after) || self.follower.pace.is_fast() {
            if let Some(waited) = Waited::any_pending()? {
                return Ok(Some(waited));
            }
            let look = self.follower.pace.look();
            if look != Look::Reports {
                self.follower.stop_announced(look);
                if let Some(HeldThread { stopped, came, since }) = self.follower.take_held() {
                    self.follower.pace.rest();
                    let next = self.at_entry(&stopped, came, since);
                    self.carry_out(stopped, next);
                    if !self.follower.traces() {
                        return Err(Errno::ECHILD);
                    }
                }
            }
            self.follower.pace.pause();
        }
        Ok(None)
    }

    /// Takes one report.
    fn go_on(&mut self, waited: Waited) {
        match waited {
            Waited::Stopped(stopped, stop) => {
                let next = self.decide(&stopped, stop);
                self.carry_out(stopped, next);
            }
            Waited::Ended(pid) => {
                let state = self.follower.threads.remove(&pid.as_raw());
                self.follower.waits.forget(pid);
                if matches!(state, Some(State::Entry { .. })) {
                    self.handler.ended_unseen(pid.as_raw());
                }
            }
        }
    }

    fn decide(&mut self, stopped: &Stopped, stop: Stop) -> Next {
        // Any stop ends the request to stop (`ptrace_stop` of the kernel's `signal.c`). After a group stop there is another.
        if let Some(State::Entry { told, .. }) = self.follower.threads.get_mut(&stopped.pid().as_raw()) {
            *told = stop.is_group_stop();
        }
        match stop {
            Stop::Event { event, signal } => self.at_event(stopped, event, signal),
            Stop::SystemCall => self.at_system_call(stopped),
            Stop::Signal(signal) => self.at_signal(stopped, signal),
        }
    }

    fn at_event(&mut self, stopped: &Stopped, event: i32, signal: i32) -> Next {
        let pid = stopped.pid();
        let state = self.follower.threads.entry(pid.as_raw()).or_insert(State::New);
        if matches!(state, State::Leaving) && event != libc::PTRACE_EVENT_EXEC {
            return Next::LeaveAlone(0);
        }
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
            libc::PTRACE_EVENT_EXIT => {
                self.handler.ends(pid.as_raw());
                Next::Resume(0)
            }
            // A stop signal has stopped the whole process: it stays stopped until SIGCONT.
            libc::PTRACE_EVENT_STOP if wait::is_stop_signal(signal) => Next::StayInGroupStop,
            libc::PTRACE_EVENT_STOP => self.at_stop(stopped),
            _ => Next::Resume(0),
        }
    }

    /// The thread has stopped for the first time, by [`Follower::stop_announced`], or since a group stop has ended.
    fn at_stop(&mut self, stopped: &Stopped) -> Next {
        let pid = stopped.pid();
        match self.follower.threads.get_mut(&pid.as_raw()) {
            Some(State::New) => self.at_first_stop(pid),
            Some(State::Entry { entry, .. }) => {
                if entry.is_reached(pid) {
                    return self.enter(stopped);
                }
                let is_over = entry.is_over();
                if is_over {
                    entry.leave(pid);
                }
                let _ = restart::restart_interrupted(pid, pid, 0, None, None);
                if is_over {
                    self.follower.threads.insert(pid.as_raw(), State::Plain);
                    return match self.missed(pid, &io::Error::other("its helper was not scheduled in time")) {
                        // It may be in a call, and is not at its entry: nothing may change its course.
                        Next::Conclude(After::Release) => Next::LeaveAlone(0),
                        next => next,
                    };
                }
                // A signal's handler runs first.
                Next::Resume(0)
            }
            _ => Next::Resume(0),
        }
    }

    /// A thread or a child has been made.
    fn at_first_stop(&mut self, pid: Pid) -> Next {
        for (parent, state) in &self.follower.threads {
            if let State::Entry { entry, .. } = state
                && have_same_memory(*parent, pid.as_raw()).is_ok_and(|same| !same)
            {
                // Children of other programs have other memory.
                let _ = entry.let_pass(pid);
            }
        }
        self.follower.threads.insert(pid.as_raw(), State::Plain);
        // Only the end of the launched process is of interest, whose options it has inherited.
        let _ = requests::set_options(pid, self.follower.options);
        if self.follower.descendants { Next::Resume(0) } else { Next::LeaveAlone(0) }
    }

    /// Puts a thread that waits at its entry there.
    fn enter(&mut self, stopped: &Stopped) -> Next {
        let pid = stopped.pid();
        let Some(State::Entry { entry, .. }) = self.follower.threads.insert(pid.as_raw(), State::Plain) else {
            return Next::Resume(0);
        };
        match entry.enter(pid) {
            Ok(()) => self.at_entry(stopped, Came::ByCode, Instant::now()),
            Err(_) if requests::is_at_exec(pid) == Ok(true) => Next::ReportExec,
            Err(error) => self.missed(pid, &error),
        }
    }

    /// The thread has made another one, which is traced already. It may have been reported before, and even have ended.
    fn at_fork(&mut self, pid: Pid) {
        if let Ok(new) = requests::event_message(pid)
            && wait::is_to_be_reported(Pid::from_raw(new as i32))
        {
            self.follower.threads.entry(new as i32).or_insert(State::New);
        }
    }

    /// The kernel has mapped a program.
    fn at_exec(&mut self, stopped: &Stopped) -> Next {
        let pid = stopped.pid();
        self.follower.threads.insert(pid.as_raw(), State::Plain);
        if self.follower.descendants && pid == self.follower.root {
            // A refusal costs a message at its end.
            let _ = requests::set_options(pid, self.follower.options | libc::PTRACE_O_TRACEEXIT);
        }
        let launcher = self.follower.launcher.take_if(|launcher| *launcher == pid);
        let status = launcher.and_then(ThreadStatus::of_our_launcher).unwrap_or_else(|| ThreadStatus::read(pid));
        if let Err(why) = seccomp::permit(pid, &status, &seccomp::NEEDED_AT_START) {
            return Next::Conclude(self.handler.refused(pid.as_raw(), &why));
        }
        let Ok(Pointers { instruction: entry, .. }) = pointers(pid) else { return Next::Resume(0) };
        let stop = ExecStop { stopped, entry, status };
        match self.handler.at_exec(&stop) {
            AfterExec::Nothing if self.follower.descendants => Next::Conclude(After::Follow),
            AfterExec::Nothing | AfterExec::LeaveAlone => Next::Conclude(After::Release),
            AfterExec::End(status) => Next::Conclude(After::Exit(status)),
            AfterExec::StopAt(entry) => self.await_entry(pid, AwaitedEntry::at_exec(pid, entry)),
            AfterExec::AtEntry => {
                // A static position-independent program may have been moved.
                if let Ok(mut registers) = requests::registers(pid) {
                    guest::after_exec(&mut registers);
                    let _ = requests::set_registers(pid, &registers);
                }
                self.at_entry(stopped, Came::ByExec, Instant::now())
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
                self.follower.threads.insert(pid.as_raw(), State::Entry { entry, told: false });
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
        if let Some(State::Leaving) = self.follower.threads.get(&pid.as_raw()) {
            return Next::LeaveAlone(0);
        }
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
        // Were the thread not traced, a signal without a handler would not interrupt its call.
        let _ = restart::restart_interrupted(pid, pid, signal, None, Some(&mut self.follower.waits));
        match self.follower.threads.get(&pid.as_raw()) {
            Some(State::Leaving) => Next::LeaveAlone(signal),
            _ => Next::Resume(signal),
        }
    }

    /// The program is about to be entered, and has been `since` then: stops its other threads, if any, and lets the handler
    /// lift it.
    fn at_entry(&mut self, stopped: &Stopped, came: Came, since: Instant) -> Next {
        let pid = stopped.pid();
        let status = ThreadStatus::read(pid);
        let follower = &self.follower;
        let is_new = |thread: i32| follower.descendants && wait::is_to_be_reported(Pid::from_raw(thread));
        let traced = |thread: i32| follower.threads.contains_key(&thread) || is_new(thread);
        let others = match status.threads {
            // The only thread is stopped, so that there will be no other.
            1 => Ok(StoppedThreads::default()),
            _ => StoppedThreads::stop(pid, self.follower.options, since + STOP_TIMEOUT, traced),
        };
        let others = match others {
            Ok(others) => others,
            Err(NotAllStopped { stopped, running, why }) => {
                self.let_go_on(stopped, running);
                // Other processes may have to run first, such as the child of a vfork.
                let is_asleep = why.kind() == io::ErrorKind::TimedOut;
                if is_asleep && since.elapsed() < STOP_TIMEOUT {
                    return Next::Hold { came, since };
                }
                return self.missed(pid, &why);
            }
        };
        if came == Came::ByCode && requests::is_at_exec(pid) == Ok(true) {
            others.release();
            return Next::ReportExec;
        }
        let exec_before = exec_stop(pid);
        let stop = EntryStop { stopped, status, other_threads: others.count() };
        let after = match seccomp::permit(pid, &status, &seccomp::NEEDED_AT_START) {
            Ok(_) => self.handler.at_entry(&stop),
            Err(why) => self.handler.refused(pid.as_raw(), &why),
        };
        if exec_stop(pid).is_some_and(|now| Some(now) != exec_before) {
            // A writer to its memory has made it execute another program, whose stop an injected call has waited for.
            others.release();
            return self.at_exec(stopped);
        }
        if after == After::Follow {
            self.let_go_on(others, Vec::new());
        } else {
            others.release();
        }
        Next::Conclude(after)
    }

    /// Resumes the other threads of a program, which stay traced if descendants are followed. Those that have not stopped
    /// are resumed when they do.
    fn let_go_on(&mut self, stopped: StoppedThreads, running: Vec<Running>) {
        let threads = &mut self.follower.threads;
        if self.follower.descendants {
            for thread in stopped.resume().into_iter().chain(running) {
                threads.entry(thread.pid().as_raw()).or_insert(State::Plain);
            }
        } else {
            stopped.release();
            threads.extend(running.iter().map(|thread| (thread.pid().as_raw(), State::Leaving)));
        }
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
            Next::Hold { came, since } => {
                let thread = stopped.pid().as_raw();
                drop(self.follower.threads.insert(thread, State::Held(HeldThread { stopped, came, since })));
            }
            Next::LeaveAlone(signal) => {
                self.follower.threads.remove(&stopped.pid().as_raw());
                self.follower.waits.forget(stopped.pid());
                let _ = stopped.detach(signal);
            }
            Next::RunToEntry => {
                self.follower.pace = Pace::new(self.follower.descendants);
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
        let ends = !self.follower.descendants && !self.handler.stays();
        if ends && reap_stub::is_needed(stopped.pid()) {
            // Without the stub the program runs all the same, and keeps a zombie.
            let _ = reap_helper_first(&stopped);
        }
        let pid = stopped.pid();
        self.forget_threads(pid);
        if stopped.detach(0) == Err(Errno::ESRCH) && wait::is_to_be_reported(pid) {
            // It does not return from a call that it was made to make, or has been killed.
            self.follower.threads.insert(pid.as_raw(), State::Leaving);
        }
        if ends {
            // This process ends now, for which the program need not wait: 2 ms on one CPU.
            urgency::be_last();
        }
        let _ = nix::sched::sched_yield();
        self.handler.released(pid.as_raw());
    }

    fn end(&mut self, stopped: Stopped, status: i32) {
        let pid = stopped.pid();
        let ended = injector_of(&stopped).and_then(|injector| injector.exit_group(status));
        if let Err(error) = ended {
            // The process cannot be made to end by itself, and must not run on unlifted.
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
            self.handler.killed(pid.as_raw(), &error);
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
            // One that has not stopped yet is still traced.
            if !matches!(self.follower.threads.get(&thread), Some(State::Leaving)) {
                self.follower.threads.remove(&thread);
            }
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

#[cfg(test)]
mod tests;
