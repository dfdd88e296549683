//! Stops threads of a program that runs.

use super::borrowing::{is_borrowable, is_in_call};
use super::call_before::{CallBefore, switches};
use super::restart;
use super::timed::{Settled, settle};
use super::waiting::StopWaiter;
use crate::arch;
use crate::requests;
use crate::seccomp;
use crate::status::ThreadStatus;
use crate::thread_list::{Listing, user_threads};
use address_space::AddressRange;
use kernel_calls::text::text_of;
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::wait::WaitStatus;
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use std::{io, thread};

/// How long a thread is given to stop. Threads in uninterruptible sleep, or in vfork, stop only when that ends.
const PATIENCE: Duration = Duration::from_millis(1500);
/// How long a thread that can make calls is looked for.
const SEARCH: Duration = Duration::from_millis(1000);
/// How long threads that are awake are waited for to sleep, where only a sleeping one tells of its call.
const REST: Duration = Duration::from_millis(2);
/// How often they are looked at meanwhile.
const LOOK_EVERY: Duration = Duration::from_micros(50);
/// How often the list of threads is read until no new one shows up.
const ROUNDS: usize = 1000;
/// Options of every thread that we seize.
const OPTIONS: i32 = libc::PTRACE_O_TRACESYSGOOD;

/// Why a program cannot be stopped for a lift.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// It has ended.
    #[error("the process has ended")]
    Gone,
    /// ptrace is refused.
    #[error("{0}")]
    Refused(String),
    /// A thread does not stop.
    #[error("thread {0} does not stop: it is in vfork or in uninterruptible sleep; try again when that has ended")]
    DoesNotStop(i32),
    /// No thread is fit to make calls.
    #[error("every thread of it {}, so that none can be borrowed safely; try again", arch::UNFIT)]
    NoneFit,
    /// Its threads cannot be listed.
    #[error("its threads cannot be listed: {0}")]
    Listing(#[from] io::Error),
}

/// The threads of one running program, as far as we hold them.
pub struct LiveProcess {
    pid: Pid,
    /// Stopped threads, and the signal each stopped for.
    stopped: BTreeMap<i32, i32>,
    /// The calls that threads slept in before they were told to stop, and make again, where a stop does not show them.
    before: BTreeMap<i32, CallBefore>,
    /// A thread that is stopped by job control, which it stays.
    stopped_by_shell: bool,
    waiter: StopWaiter,
}

impl LiveProcess {
    /// A process none of whose threads is held yet.
    pub fn new(pid: i32) -> Self {
        let (stopped, before) = (BTreeMap::new(), BTreeMap::new());
        Self { pid: Pid::from_raw(pid), stopped, before, stopped_by_shell: false, waiter: StopWaiter::take() }
    }

    /// The process.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Who waits for its threads.
    pub fn waiter(&self) -> &StopWaiter {
        &self.waiter
    }

    /// How many threads are held.
    pub fn held(&self) -> usize {
        self.stopped.len()
    }

    /// True where the process is stopped by job control.
    pub fn is_stopped_by_shell(&self) -> bool {
        self.stopped_by_shell
    }

    /// Stops one thread that can make calls, if possible one that is in a system call anyway.
    ///
    /// # Errors
    /// [`StopError`]; no thread is held then.
    pub fn stop_one(&mut self) -> Result<Pid, StopError> {
        let deadline = Instant::now() + SEARCH;
        loop {
            for thread in self.by_suitability()? {
                if self.stop(thread)? {
                    if self.fits(thread) && self.permit(thread)? && self.settle(thread)? {
                        return Ok(Pid::from_raw(thread));
                    }
                    self.release(thread);
                }
            }
            if Instant::now() > deadline {
                return Err(StopError::NoneFit);
            }
            // Another look, when other threads are where this one was.
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Stops every thread, and returns one that can make calls.
    ///
    /// # Errors
    /// [`StopError`]; no thread is held then.
    pub fn stop_all(&mut self) -> Result<Pid, StopError> {
        let deadline = Instant::now() + SEARCH;
        loop {
            if let Err(error) = self.stop_every_thread() {
                self.release_all();
                return Err(error);
            }
            let stopped = || self.stopped.keys().copied();
            let in_call = stopped().find(|&thread| is_in_call(Pid::from_raw(thread)) && self.fits(thread));
            if let Some(thread) = in_call.or_else(|| stopped().find(|&thread| self.fits(thread)))
                && self.permit(thread)?
                && self.settle(thread)?
            {
                return Ok(Pid::from_raw(thread));
            }
            self.release_all();
            if Instant::now() > deadline {
                return Err(StopError::NoneFit);
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// The threads that are held.
    pub fn threads_held(&self) -> impl Iterator<Item = Pid> {
        self.stopped.keys().map(|&thread| Pid::from_raw(thread))
    }

    /// True where a held thread stands in a range, or may.
    pub fn stands_in(&self, range: AddressRange) -> bool {
        let stands = |&thread: &i32| {
            let registers = requests::registers(Pid::from_raw(thread));
            registers.map_or(true, |registers| range.contains(arch::instruction_pointer(&registers)))
        };
        self.stopped.keys().any(stands)
    }

    /// Lets every held thread go, but the one.
    pub fn release_others(&mut self, kept: Pid) {
        for thread in self.stopped.keys().copied().filter(|&t| t != kept.as_raw()).collect::<Vec<_>>() {
            self.release(thread);
        }
    }

    /// Lets every held thread go.
    pub fn release_all(&mut self) {
        for thread in self.stopped.keys().copied().collect::<Vec<_>>() {
            self.release(thread);
        }
    }

    /// The threads, those first whose present system call the kernel itself makes again after a stop. A call that gives
    /// EINTR is made again by us; but we may be killed just then.
    fn by_suitability(&self) -> Result<Vec<i32>, StopError> {
        let mut threads = self.threads(|_| true)?.threads;
        threads.sort_by_cached_key(|thread| {
            let text = text_of(format!("/proc/{}/task/{thread}/syscall", self.pid)).unwrap_or_default();
            match text.split(' ').next().and_then(|number| number.parse::<i64>().ok()) {
                Some(number) if number >= 0 => u8::from(restart::gives_error(number)),
                // Running, or not to be seen.
                _ => 2,
            }
        });
        Ok(threads)
    }

    fn permit(&mut self, thread: i32) -> Result<bool, StopError> {
        let thread = Pid::from_raw(thread);
        seccomp::permit(thread, &ThreadStatus::read(thread), OPTIONS).map(|()| true).map_err(|why| {
            self.release_all();
            StopError::Refused(why)
        })
    }

    fn stop_every_thread(&mut self) -> Result<(), StopError> {
        for _ in 0..ROUNDS {
            let new = self.threads(|thread| !self.stopped.contains_key(&thread))?;
            if new.threads.is_empty() && new.is_complete {
                return if self.stopped.is_empty() { Err(StopError::Gone) } else { Ok(()) };
            }
            // All are told first, so that they come to a stop side by side.
            let told = self.interrupt_all(new.threads)?;
            let deadline = Instant::now() + PATIENCE;
            for thread in told {
                self.await_stop(thread, deadline)?;
            }
        }
        Err(StopError::Listing(io::Error::other("it starts threads faster than they can be stopped")))
    }

    fn stop(&mut self, thread: i32) -> Result<bool, StopError> {
        let told = self.interrupt_all(vec![thread])?;
        Ok(!told.is_empty() && self.await_stop(thread, Instant::now() + PATIENCE)?)
    }

    /// Tells threads to stop, and returns those that have not ended meanwhile. Where a stop does not show the call that a
    /// thread was in, those that sleep in one are told first, and the others are given a little time to do so: the call
    /// of one that is just entering it could not be made again.
    fn interrupt_all(&mut self, threads: Vec<i32>) -> Result<Vec<i32>, StopError> {
        let (mut awake, mut told) = (threads, Vec::new());
        let deadline = Instant::now() + REST;
        loop {
            let is_last = Instant::now() >= deadline;
            for thread in std::mem::take(&mut awake) {
                if !self.look_at_call(thread) && !is_last {
                    awake.push(thread);
                } else if self.interrupt(thread)? {
                    told.push(thread);
                }
            }
            if awake.is_empty() {
                return Ok(told);
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Notes the call that a thread sleeps in; false where it is awake. What was noted stays then: a thread that we have
    /// let make its call again may not have come to sleep in it yet.
    fn look_at_call(&mut self, thread: i32) -> bool {
        if arch::SHOWS_CALLS {
            return true;
        }
        let Ok(call) = CallBefore::of(self.pid, thread) else { return false };
        self.before.remove(&thread);
        self.before.extend(call.map(|call| (thread, call)));
        true
    }

    /// True where a held thread can make calls. One that has stopped for a signal is to have it first where the kernel
    /// decides only then whether its call is made again.
    fn fits(&self, thread: i32) -> bool {
        let free = arch::SHOWS_CALLS || self.stopped.get(&thread) == Some(&0);
        free && is_borrowable(Pid::from_raw(thread))
    }

    /// Makes sure that the registers of the thread that is to make calls tell how it goes on; false where it has to go on
    /// at once.
    fn settle(&mut self, thread: i32) -> Result<bool, StopError> {
        match settle(Pid::from_raw(thread), &self.waiter, Instant::now() + PATIENCE) {
            Ok(Settled::Stopped) => return Ok(true),
            Ok(Settled::BySignal(signal)) => drop(self.stopped.insert(thread, signal)),
            Ok(Settled::Ended) | Err(Errno::ESRCH) => drop(self.stopped.remove(&thread)),
            Err(error) => {
                self.release_all();
                return Err(if error == Errno::ETIMEDOUT {
                    StopError::DoesNotStop(thread)
                } else {
                    StopError::Refused(error.to_string())
                });
            }
        }
        Ok(false)
    }

    /// False where the thread has ended meanwhile.
    fn interrupt(&mut self, thread: i32) -> Result<bool, StopError> {
        let id = Pid::from_raw(thread);
        match requests::seize(id, OPTIONS).and_then(|()| requests::interrupt(id)) {
            Ok(()) => Ok(true),
            Err(Errno::ESRCH) => Ok(false),
            // A thread that is on its way out cannot be traced any more.
            Err(Errno::EPERM) if crate::status::is_ending(self.pid, thread) => Ok(false),
            Err(errno) => {
                self.release_all();
                Err(StopError::Refused(refusal(self.pid, errno)))
            }
        }
    }

    fn await_stop(&mut self, thread: i32, deadline: Instant) -> Result<bool, StopError> {
        let signal = match self.waiter.wait(Pid::from_raw(thread), deadline) {
            Ok(WaitStatus::StillAlive) => {
                self.release_all();
                return Err(StopError::DoesNotStop(thread));
            }
            Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) | Err(Errno::ECHILD) => return Ok(false),
            Ok(WaitStatus::Stopped(_, signal)) => signal as i32,
            Ok(WaitStatus::PtraceEvent(id, signal, _)) => {
                self.stopped_by_shell |= signal != Signal::SIGTRAP;
                // An error that only our stop has caused is none for the program.
                if !matches!(restart::mend(self.pid, id, self.before.get(&thread)), Ok(true)) {
                    self.before.remove(&thread);
                }
                0
            }
            Ok(_) => 0,
            Err(errno) => return Err(StopError::Refused(errno.to_string())),
        };
        self.stopped.insert(thread, signal);
        Ok(true)
    }

    fn release(&mut self, thread: i32) {
        if let Some(signal) = self.stopped.remove(&thread) {
            // Until it sleeps again, it is at the call that it makes again; unless it has a signal to handle first.
            if let Some(call) = self.before.get_mut(&thread) {
                call.switches = switches(self.pid, thread).filter(|_| signal == 0);
            }
            // A thread that was killed meanwhile is gone, and that is all that can be wrong.
            let _ = requests::detach(Pid::from_raw(thread), signal);
        }
    }

    fn threads(&self, wanted: impl FnMut(i32) -> bool) -> Result<Listing, StopError> {
        match user_threads(self.pid, wanted) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(StopError::Gone),
            other => Ok(other?),
        }
    }
}

fn refusal(pid: Pid, errno: Errno) -> String {
    let status = text_of(format!("/proc/{pid}/status")).unwrap_or_default();
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:")).map_or("0", str::trim);
    if tracer != "0" {
        return format!("process {tracer} traces it already, and a process has one tracer at most");
    }
    format!(
        "ptrace is refused ({}); needed: root, or CAP_SYS_PTRACE, or the same user and kernel.yama.ptrace_scope = 0",
        errno.desc()
    )
}
