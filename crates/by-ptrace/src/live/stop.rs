//! Stops threads of a program that runs.

use super::borrowing::{is_borrowable, is_in_call};
use super::call_before::CallBefore;
use super::receivers::{Receivers, has_children};
use super::restart;
use super::timed::{Settled, settle};
use super::waiting::StopWaiter;
use crate::arch;
use crate::requests::{self, Resume};
use crate::seccomp;
use crate::status::{ThreadStatus, sleeps_uninterruptibly};
use crate::thread_list::{Listing, user_threads};
use crate::wait::Report;
use address_space::AddressRange;
use kernel_calls::text::text_of;
use nix::errno::Errno;
use nix::unistd::Pid;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use std::{io, thread};

/// How long a thread is given to stop. Threads in uninterruptible sleep, or in vfork, stop only when that ends.
const PATIENCE: Duration = Duration::from_millis(1500);
/// How long all others are kept waiting for a thread that sleeps uninterruptibly. Then they are let go until it wakes, and
/// stopped once more. For one of the [`Receivers`] they are kept waiting all the same: it must not be traced while others
/// are not.
const GRACE: Duration = Duration::from_millis(5);
/// So often that is tried. From then on they are kept twice as long each time, since there may always be one that sleeps.
const TRIES_WITH_GRACE: u32 = 8;
/// How long one of those is waited for to wake before anything is stopped.
const AWAKE: Duration = Duration::from_millis(100);
/// How often it is looked at meanwhile.
const LOOK_FOR_WAKING: Duration = Duration::from_micros(200);
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

/// For how long all threads of a program stood still, from when the first was told to stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standstill {
    /// At the longest in one piece.
    pub longest: Duration,
    /// In all.
    pub total: Duration,
    /// Threads stopped at the most.
    pub threads: usize,
}

/// The threads of one running program, as far as we hold them.
pub struct LiveProcess {
    pid: Pid,
    /// Threads that are traced and have not stopped yet.
    traced: BTreeSet<i32>,
    /// Stopped threads, and the signal each stopped for.
    stopped: BTreeMap<i32, i32>,
    /// The calls that threads were last seen to wait in, of those that may have to be made again.
    before: BTreeMap<i32, CallBefore>,
    /// Stopped threads that make a call again when they go on.
    make_again: BTreeSet<i32>,
    receivers: Receivers,
    /// Threads that had children when they were to make calls.
    parents: BTreeSet<i32>,
    /// Since when threads are told to stop.
    since: Option<Instant>,
    /// For how long all threads were told to stop or stood still, and how many did.
    standstill: Standstill,
    /// A thread that is stopped by job control, which it stays.
    stopped_by_shell: bool,
    waiter: StopWaiter,
}

impl LiveProcess {
    /// A process none of whose threads is held yet.
    pub fn new(pid: i32) -> Self {
        Self {
            pid: Pid::from_raw(pid),
            traced: BTreeSet::new(),
            stopped: BTreeMap::new(),
            before: BTreeMap::new(),
            make_again: BTreeSet::new(),
            receivers: Receivers::default(),
            parents: BTreeSet::new(),
            since: None,
            standstill: Standstill::default(),
            stopped_by_shell: false,
            waiter: StopWaiter::take(),
        }
    }

    /// The process.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Who waits for its threads.
    pub fn waiter(&self) -> &StopWaiter {
        &self.waiter
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
            let threads = self.by_suitability()?;
            // One with children only where there is no other, see `receivers`.
            for may_have_children in [false, true] {
                for &thread in &threads {
                    if self.stop_for_calls(thread, may_have_children)? {
                        return Ok(Pid::from_raw(thread));
                    }
                }
            }
            if Instant::now() > deadline {
                return Err(StopError::NoneFit);
            }
            // Another look, when other threads are where this one was.
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn stop_for_calls(&mut self, thread: i32, may_have_children: bool) -> Result<bool, StopError> {
        if !(may_have_children || self.is_childless(thread)) || !self.stop(thread)? {
            return Ok(false);
        }
        // Looked at once more: it may have started a child before it stopped.
        let fits = self.fits(thread) && (may_have_children || self.is_childless(thread));
        if fits && self.permit(thread)? && self.settle(thread)? {
            return Ok(true);
        }
        self.release(thread);
        Ok(false)
    }

    /// True for a thread that has no child now; one that had is asked again only after all others.
    fn is_childless(&mut self, thread: i32) -> bool {
        let has_children = has_children(self.pid, thread);
        if has_children {
            self.parents.insert(thread);
        }
        !has_children
    }

    /// Stops every thread, and returns one that can make calls.
    ///
    /// # Errors
    /// [`StopError`]; no thread is held then.
    pub fn stop_all(&mut self) -> Result<Pid, StopError> {
        let (deadline, awake_by) = (Instant::now() + SEARCH, Instant::now() + PATIENCE);
        let mut tries = 0u32;
        loop {
            let grace = GRACE * (1 << tries.saturating_sub(TRIES_WITH_GRACE).min(10));
            tries += 1;
            match self.stop_every_thread(grace) {
                Err(StopError::DoesNotStop(_)) if Instant::now() < awake_by => {
                    self.await_sleepers(awake_by)?;
                    continue;
                }
                stopped => stopped?,
            }
            if let Some(thread) = self.most_fit()
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

    /// Of the stopped threads, one that can make calls: if possible in a system call, and without a signal to handle.
    fn most_fit(&self) -> Option<i32> {
        let in_call = |&&thread: &&i32| is_in_call(Pid::from_raw(thread)) && self.fits(thread);
        let undisturbed = self.stopped.iter().filter(|(_, signal)| **signal == 0).map(|(thread, _)| thread);
        let all = || self.stopped.keys();
        let best = undisturbed.clone().find(in_call).or_else(|| all().find(in_call));
        best.or_else(|| all().find(|&&thread| self.fits(thread))).copied()
    }

    /// True where a held thread stands in a range, or may.
    pub fn stands_in(&self, range: AddressRange) -> bool {
        let stands = |&thread: &i32| {
            let registers = requests::registers(Pid::from_raw(thread));
            registers.map_or(true, |registers| range.contains(arch::instruction_pointer(&registers)))
        };
        self.stopped.keys().any(stands)
    }

    /// Waits for threads that have been told to stop and sleep, while all others run. Those that stop are held.
    fn await_sleepers(&mut self, deadline: Instant) -> Result<(), StopError> {
        for thread in self.traced.clone() {
            self.await_stop(thread, deadline).inspect_err(|_| self.release_all())?;
        }
        Ok(())
    }

    /// For how long all threads stood still so far.
    pub fn standstill(&self) -> Standstill {
        self.standstill
    }

    /// Lets every held thread go; those first that may be sent a signal which the process ignores.
    pub fn release_all(&mut self) {
        let held: Vec<i32> = self.stopped.keys().copied().collect();
        let count = held.len();
        if count > 1 {
            self.receivers.look(self.pid, held.clone());
        }
        let (first, then): (Vec<i32>, Vec<i32>) = held.into_iter().partition(|&thread| self.receivers.contains(thread));
        for thread in first.into_iter().chain(then) {
            self.release(thread);
        }
        if let Some(elapsed) = self.since.take().map(|since| since.elapsed()) {
            let Standstill { longest, total, threads } = self.standstill;
            self.standstill =
                Standstill { longest: longest.max(elapsed), total: total + elapsed, threads: threads.max(count) };
        }
    }

    /// Lets every traced thread go, for which it has to stop.
    fn give_up(&mut self) {
        let told: Vec<i32> =
            self.traced.iter().copied().filter(|&t| requests::interrupt(Pid::from_raw(t)).is_ok()).collect();
        let deadline = Instant::now() + PATIENCE;
        for thread in told {
            // What does not stop even now stays ours until it does, or until we end.
            let _ = self.await_stop(thread, deadline);
        }
        self.release_all();
    }

    /// The threads, those first whose present system call the kernel itself makes again after a stop. A call that gives
    /// EINTR is made again by us; but we may be killed just then.
    fn by_suitability(&mut self) -> Result<Vec<i32>, StopError> {
        let mut threads = self.threads(|_| true)?.threads;
        threads.sort_by_cached_key(|&thread| {
            let call = CallBefore::of(self.pid, thread).ok().flatten();
            let number = call.as_ref().map(|call| call.number);
            self.note_call(thread, call);
            match number {
                // It would keep us waiting.
                _ if sleeps_uninterruptibly(self.pid, thread) => 4,
                _ if self.parents.contains(&thread) => 3,
                Some(number) if !restart::concerns_children(number) => u8::from(restart::gives_error(number)),
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

    /// `grace` is how long all are kept waiting for one that sleeps uninterruptibly.
    fn stop_every_thread(&mut self, grace: Duration) -> Result<(), StopError> {
        for _ in 0..ROUNDS {
            let new = self.threads(|thread| !self.stopped.contains_key(&thread)).inspect_err(|_| self.give_up())?;
            if new.threads.is_empty() && new.is_complete {
                return if self.stopped.is_empty() { Err(StopError::Gone) } else { Ok(()) };
            }
            self.stop_threads(new.threads, grace).inspect_err(|error| match error {
                // It has been waited for long enough.
                StopError::DoesNotStop(_) => self.release_all(),
                _ => self.give_up(),
            })?;
        }
        self.give_up();
        Err(StopError::Listing(io::Error::other("it starts threads faster than they can be stopped")))
    }

    /// Stops threads side by side: all are traced before the first is told to stop, see `receivers`.
    fn stop_threads(&mut self, mut threads: Vec<i32>, grace: Duration) -> Result<(), StopError> {
        self.receivers.look(self.pid, threads.clone());
        threads.sort_by_key(|&thread| self.receivers.contains(thread));
        self.await_awake(&threads);
        let mut seized = Vec::new();
        for thread in threads {
            if self.seize(thread)? {
                seized.push(thread);
            }
        }
        self.since.get_or_insert_with(Instant::now);
        let told = self.interrupt_all(seized);
        self.await_stops(told, grace)
    }

    /// Gives those of the receivers that sleep where no stop reaches them a little time to wake.
    fn await_awake(&self, threads: &[i32]) {
        let deadline = Instant::now() + AWAKE;
        let sleeps = |&&thread: &&i32| self.receivers.contains(thread) && sleeps_uninterruptibly(self.pid, thread);
        while threads.len() > 1 && threads.iter().any(|thread| sleeps(&thread)) && Instant::now() < deadline {
            thread::sleep(LOOK_FOR_WAKING);
        }
    }

    /// Waits until all have stopped. All are waited for, even where there is an error of one.
    fn await_stops(&mut self, told: Vec<i32>, grace: Duration) -> Result<(), StopError> {
        let deadline = Instant::now() + PATIENCE;
        let (mut waiting, mut result) = (told, Ok(()));
        loop {
            let until = Instant::now() + grace;
            let mut late = Vec::new();
            for thread in waiting {
                match self.waiter.wait_shortly(Pid::from_raw(thread), until) {
                    Ok(None) => late.push(thread),
                    status => result = result.and(self.note_stop(thread, status).map(drop)),
                }
            }
            if late.is_empty() {
                return result;
            }
            let sleeps = |&&thread: &&i32| sleeps_uninterruptibly(self.pid, thread);
            if let Some(&sleeper) = late.iter().find(sleeps)
                && !late.iter().any(|&thread| self.receivers.contains(thread))
            {
                return result.and(Err(StopError::DoesNotStop(sleeper)));
            }
            if Instant::now() >= deadline {
                // The last one has the allowance that `StopWaiter` gives.
                let ends = late.into_iter().map(|thread| self.await_stop(thread, deadline).map(drop));
                return ends.fold(result, Result::and);
            }
            waiting = late;
        }
    }

    fn stop(&mut self, thread: i32) -> Result<bool, StopError> {
        let told = self.seize(thread)? && !self.interrupt_all(vec![thread]).is_empty();
        Ok(told && self.await_stop(thread, Instant::now() + PATIENCE)?)
    }

    /// Tells traced threads to stop, and returns those that have not ended meanwhile. Where a stop does not show the call
    /// that a thread was in, those that sleep in one are told first, and the others are given a little time to do so: the
    /// call of one that is just entering it could not be made again.
    fn interrupt_all(&mut self, threads: Vec<i32>) -> Vec<i32> {
        let (mut awake, mut told) = (threads, Vec::new());
        let deadline = Instant::now() + REST;
        loop {
            let is_last = Instant::now() >= deadline;
            for thread in std::mem::take(&mut awake) {
                if !self.look_at_call(thread) && !is_last {
                    awake.push(thread);
                } else if requests::interrupt(Pid::from_raw(thread)).is_ok() {
                    told.push(thread);
                }
            }
            if awake.is_empty() {
                return told;
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Notes the call that a thread sleeps in; false where it is awake.
    fn look_at_call(&mut self, thread: i32) -> bool {
        if arch::SHOWS_CALLS {
            return true;
        }
        let Ok(call) = CallBefore::of(self.pid, thread) else { return false };
        self.note_call(thread, call);
        true
    }

    /// Notes a call that may have to be made again. It stays noted until there is another such, for threads come back to
    /// where they have waited; whether it is the one that a stop has ended, is found out then.
    fn note_call(&mut self, thread: i32, call: Option<CallBefore>) {
        self.before.extend(call.filter(|call| restart::can_be_repeated(call.number)).map(|call| (thread, call)));
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
        if !self.deliver_signal(thread)? {
            return Ok(false);
        }
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

    /// Delivers the signal that a held thread has stopped for, and stops the thread again: at the first instruction of its
    /// handler, or where it was. Only a thread that goes on from its signal's own stop gets that signal with its payload
    /// and in its turn; from any other stop the kernel sends a new one (`ptrace_report_syscall`). False where the thread
    /// can make no calls any more.
    fn deliver_signal(&mut self, thread: i32) -> Result<bool, StopError> {
        let Some(&signal) = self.stopped.get(&thread).filter(|&&signal| signal != 0) else { return Ok(true) };
        let pid = Pid::from_raw(thread);
        // In this order: the thread stops for us before it takes the next signal (`get_signal`).
        let told = requests::interrupt(pid).and_then(|()| requests::resume(pid, Resume::Continue, signal));
        self.stopped.remove(&thread);
        if told.is_err() {
            return Ok(false);
        }
        self.traced.insert(thread);
        Ok(self.await_stop(thread, Instant::now() + PATIENCE)? && self.fits(thread))
    }

    /// False where the thread has ended meanwhile.
    fn seize(&mut self, thread: i32) -> Result<bool, StopError> {
        if self.traced.contains(&thread) {
            return Ok(true);
        }
        match requests::seize(Pid::from_raw(thread), OPTIONS) {
            Ok(()) => Ok(self.traced.insert(thread)),
            Err(Errno::ESRCH) => Ok(false),
            // A thread that is on its way out cannot be traced any more.
            Err(Errno::EPERM) if crate::status::is_ending(self.pid, thread) => Ok(false),
            Err(errno) => Err(StopError::Refused(refusal(self.pid, errno))),
        }
    }

    fn await_stop(&mut self, thread: i32, deadline: Instant) -> Result<bool, StopError> {
        let status = self.waiter.wait(Pid::from_raw(thread), deadline);
        self.note_stop(thread, status)
    }

    /// Takes in what a thread has come to; false where it has ended.
    fn note_stop(&mut self, thread: i32, status: Result<Option<Report>, Errno>) -> Result<bool, StopError> {
        let report = match status {
            Ok(None) => return Err(StopError::DoesNotStop(thread)),
            Ok(Some(Report::Ended)) | Err(Errno::ECHILD) => {
                self.traced.remove(&thread);
                return Ok(false);
            }
            Ok(Some(report)) => report,
            // It may be stopped all the same: it stays among those that are let go where a lift is given up.
            Err(errno) => return Err(StopError::Refused(format!("waiting for thread {thread}: {}", errno.desc()))),
        };
        self.traced.remove(&thread);
        self.stopped_by_shell |= report.is_group_stop();
        let signal = report.delivered_signal();
        // An error that only our stop has caused is none for the program.
        if matches!(restart::mend(self.pid, Pid::from_raw(thread), signal, self.before.get(&thread)), Ok(true)) {
            self.make_again.insert(thread);
        }
        self.stopped.insert(thread, signal);
        Ok(true)
    }

    fn release(&mut self, thread: i32) {
        if let Some(signal) = self.stopped.remove(&thread) {
            if self.make_again.remove(&thread) {
                let _ = restart::give_way_to_signals(Pid::from_raw(thread));
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
