//! Stops threads of a running program.

mod competing;
mod error;
mod exec;
mod lending;
mod partial;
mod permission;
mod release;
mod settled;
mod standstill;

#[cfg(test)]
pub use competing::COMPUTES;
pub use error::{NotPrepared, StopError};
pub use lending::AT_ONCE;
pub use standstill::Standstill;

use super::choose_thread::{can_make_calls, is_in_call};
use super::signal_order::{SignalReceivers, has_children};
use super::waiting::StopWaiter;
use crate::remote::arch;
use crate::remote::inflight_syscall::InflightSyscall;
use crate::remote::reaping;
use crate::remote::refusal::{Tracer, refusal};
use crate::remote::requests;
use crate::remote::restart;
use crate::remote::seccomp::Filters;
use crate::remote::status::{ThreadStatus, is_ending, sleeps_uninterruptibly};
use crate::remote::thread_list::{Listing, user_threads};
use crate::remote::timed_wait::TimedWaits;
use crate::remote::tracee::{Running, Stopped};
use crate::remote::wait::{Stop, WaitReport};
use address_space::AddressRange;
use exec::{Over, is_traced_by_another, tracer_of};
use nix::errno::Errno;
use nix::unistd::{Pid, gettid};
use partial::WholeCalls;
use permission::NotPermitted;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{io, thread};

/// Maximum wait for a thread to stop. Threads in uninterruptible sleep, or in vfork, stop only when that ends.
const STOP_TIMEOUT: Duration = Duration::from_millis(1500);
/// Time for which all other threads stay stopped for a thread in uninterruptible sleep. Then they are released until it
/// wakes, and stopped once more. For one of the [`SignalReceivers`] they stay stopped nevertheless: it must not be
/// traced while others are not.
const GRACE: Duration = Duration::from_millis(5);
/// Number of tries with that time. From then on it is doubled each time, since some thread may always sleep.
const TRIES_WITH_FIRST_GRACE: u32 = 8;
/// Maximum wait for one of the [`SignalReceivers`] to wake before anything is stopped.
const WAKE_TIMEOUT: Duration = Duration::from_millis(100);
/// Interval between two polls of its state.
const WAKE_POLL_INTERVAL: Duration = Duration::from_micros(200);
/// Maximum time of the search for a thread that can make calls.
const SEARCH_TIMEOUT: Duration = Duration::from_millis(1000);
/// Maximum wait for awake threads to sleep, where only a sleeping thread shows its call.
const SLEEP_TIMEOUT: Duration = Duration::from_millis(2);
/// Interval between two polls of their state.
const SLEEP_POLL_INTERVAL: Duration = Duration::from_micros(50);
/// Number of times that the list of threads is read until it shows no new one.
const ROUNDS: usize = 1000;
/// Options with which every thread is seized.
const OPTIONS: i32 = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACEEXEC;

/// A stopped thread, and the signal for which it has stopped (0: none).
struct Held {
    thread: Stopped,
    signal: i32,
}

/// The stopped threads of one running program.
pub struct LiveProcess {
    pid: Pid,
    /// Threads that are traced and have not stopped yet.
    traced: BTreeMap<i32, Running>,
    /// Stopped threads. A `RemoteCaller` borrows one and leaves it stopped or lost.
    stopped: BTreeMap<i32, Held>,
    /// The calls in which threads were last seen to wait, if they may have to be restarted.
    inflight: BTreeMap<i32, InflightSyscall>,
    /// Waits of a relative time in which threads were seen to sleep before their last stop was requested.
    waits: TimedWaits,
    /// Waits for calls that a stop would end in part.
    whole: WholeCalls,
    /// Stopped threads whose call has failed and is made again when they are resumed.
    restarting: BTreeSet<i32>,
    /// Stopped threads that have been chosen to make calls.
    chosen: BTreeSet<i32>,
    receivers: SignalReceivers,
    /// Threads that had children when they were asked to make calls.
    parents: BTreeSet<i32>,
    /// Time of the first request to all threads to stop.
    since: Option<Instant>,
    /// Time of the last request to a thread to stop.
    told: Option<Instant>,
    /// Times for which threads were stopped or stopping, and their number.
    standstill: Standstill,
    /// All threads may be stopped for the calls of one: they have stopped together so far.
    may_stop_all: bool,
    /// The next thread that is chosen may have to stay traced while others run.
    may_take_long: bool,
    /// True if each search among all threads so far has found one that may stay traced while others run.
    one_may_stay: bool,
    /// Why the process is left alone from now on.
    over: Option<Over>,
    /// The seccomp filters of the thread that makes calls.
    filters: Filters,
    not_permitted: NotPermitted,
    waiter: Arc<StopWaiter>,
}

impl LiveProcess {
    /// Creates the state of a process none of whose threads is stopped yet.
    pub fn new(pid: i32) -> Self {
        Self {
            pid: Pid::from_raw(pid),
            traced: BTreeMap::new(),
            stopped: BTreeMap::new(),
            inflight: BTreeMap::new(),
            waits: TimedWaits::default(),
            whole: WholeCalls::default(),
            restarting: BTreeSet::new(),
            chosen: BTreeSet::new(),
            receivers: SignalReceivers::default(),
            parents: BTreeSet::new(),
            since: None,
            told: None,
            standstill: Standstill::default(),
            may_stop_all: true,
            may_take_long: false,
            one_may_stay: true,
            over: None,
            filters: Filters::None,
            not_permitted: NotPermitted::default(),
            waiter: Arc::new(StopWaiter::take()),
        }
    }

    /// The process.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// The waiter for its threads.
    pub fn waiter(&self) -> Arc<StopWaiter> {
        Arc::clone(&self.waiter)
    }

    /// The seccomp filters of the thread that was stopped to make calls.
    pub fn filters(&self) -> &Filters {
        &self.filters
    }

    /// Stops one thread that can make calls, preferably one in a system call. Where the threads compete for CPUs, all are stopped.
    ///
    /// # Errors
    /// [`StopError`]; no thread is held then.
    pub fn stop_one(&mut self) -> Result<Pid, StopError> {
        self.unless_executed(Self::find_one)
    }

    /// Stops one thread that can make calls, and no other, even if the threads compete for CPUs.
    ///
    /// # Errors
    /// [`StopError`]; no thread is held then.
    pub fn stop_one_alone(&mut self) -> Result<Pid, StopError> {
        self.unless_executed(Self::find_one_alone)
    }

    fn find_one_alone(&mut self) -> Result<Pid, StopError> {
        let deadline = Instant::now() + SEARCH_TIMEOUT;
        loop {
            let threads = self.by_suitability()?;
            // A thread with children only if there is no other, see `signal_order`.
            for may_have_children in [false, true] {
                for &thread in &threads {
                    // Those without children have been asked already.
                    let was_refused = may_have_children && self.not_permitted.contains(thread);
                    if !was_refused && self.stop_for_calls(thread, may_have_children)? {
                        return Ok(Pid::from_raw(thread));
                    }
                }
            }
            if let Some(refused) = self.not_permitted.covers(threads.iter().copied()) {
                return Err(refused);
            }
            if Instant::now() > deadline {
                // Each thread that fits was refused, and the others may never fit.
                return Err(self.not_permitted.of_any(threads.into_iter()).unwrap_or(StopError::NoneFit));
            }
            // Tries again when threads have moved on.
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn stop_for_calls(&mut self, thread: i32, may_have_children: bool) -> Result<bool, StopError> {
        self.not_permitted.forget(thread);
        if !(may_have_children || self.is_childless(thread)) || self.may_be_replaced(thread)? || !self.stop(thread)? {
            return Ok(false);
        }
        // Checked again: it may have started a child before it stopped.
        let fits = self.fits(thread) && (may_have_children || self.is_childless(thread));
        if fits && self.permit(thread) && self.settle(thread)? {
            self.chosen.insert(thread);
            return Ok(true);
        }
        self.release(thread);
        Ok(false)
    }

    /// True for a thread that has no child now. One with children is tried again only after all others.
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
        self.unless_executed(Self::stop_all_for_one)
    }

    fn stop_all_for_one(&mut self) -> Result<Pid, StopError> {
        let (deadline, awake_by) = (Instant::now() + SEARCH_TIMEOUT, Instant::now() + STOP_TIMEOUT);
        let mut tries = 0u32;
        loop {
            let grace = GRACE * (1 << tries.saturating_sub(TRIES_WITH_FIRST_GRACE).min(10));
            tries += 1;
            match self.stop_every_thread(grace) {
                Err(StopError::DoesNotStop(_)) if Instant::now() < awake_by => {
                    self.await_sleepers(awake_by)?;
                    continue;
                }
                stopped => stopped?,
            }
            let permitted = self.permitted_one().or_else(|| self.permitted_for_short_calls());
            if let Some(thread) = permitted
                && self.settle(thread)?
            {
                self.chosen.insert(thread);
                return Ok(Pid::from_raw(thread));
            }
            let refused = self.not_permitted.covers(self.stopped.keys().copied());
            let of_any = self.not_permitted.of_any(self.stopped.keys().copied());
            self.release_all();
            if let Some(refused) = refused {
                return Err(refused);
            }
            if Instant::now() > deadline {
                return Err(of_any.unwrap_or(StopError::NoneFit));
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// The threads that are traced and have not stopped yet.
    fn threads_traced(&self) -> Vec<i32> {
        self.traced.keys().copied().collect()
    }

    /// The threads that are held.
    pub fn threads_held(&self) -> impl Iterator<Item = Pid> {
        self.stopped.keys().map(|&thread| Pid::from_raw(thread))
    }

    /// The state of a thread, if it is held.
    pub(super) fn held(&self, thread: Pid) -> Option<&Stopped> {
        self.stopped.get(&thread.as_raw()).map(|held| &held.thread)
    }

    /// Returns a stopped thread that can make calls and may, see [`LiveProcess::most_fit`].
    fn permitted_one(&mut self) -> Option<i32> {
        loop {
            let thread = self.most_fit()?;
            if self.permit(thread) {
                return Some(thread);
            }
        }
    }

    /// Returns a stopped thread that can make calls, preferably one in a system call and without a signal to handle. Those
    /// that may not make them are left out.
    fn most_fit(&self) -> Option<i32> {
        let fits = |thread: i32| self.fits(thread) && (!self.may_take_long || !has_children(self.pid, thread));
        let in_call = |&&thread: &&i32| is_in_call(Pid::from_raw(thread)) && fits(thread);
        let asked = |thread: &&i32| !self.not_permitted.contains(**thread);
        let undisturbed =
            self.stopped.iter().filter(|(_, held)| held.signal == 0).map(|(thread, _)| thread).filter(asked);
        let all = || self.stopped.keys().filter(asked);
        let best = undisturbed.clone().find(in_call).or_else(|| all().find(in_call));
        best.or_else(|| all().find(|&&thread| fits(thread))).copied()
    }

    /// True if a held thread is in a range, or may be.
    pub fn stands_in(&self, range: AddressRange) -> bool {
        let stands = |&thread: &i32| {
            match requests::registers(Pid::from_raw(thread)) {
                Ok(registers) => range.contains(arch::instruction_pointer(&registers)),
                // A thread in 32-bit code is in no 64-bit code.
                Err(errno) => errno != Errno::EIO,
            }
        };
        self.stopped.keys().any(stands)
    }

    /// Waits for sleeping threads that are to stop, while all others run. Those that stop are held.
    fn await_sleepers(&mut self, deadline: Instant) -> Result<(), StopError> {
        for thread in self.threads_traced() {
            self.await_stop(thread, deadline).inspect_err(|_| self.release_all())?;
        }
        Ok(())
    }

    /// The times for which threads were stopped so far.
    pub fn standstill(&self) -> Standstill {
        self.standstill
    }

    /// Releases every traced thread, which has to stop first.
    fn give_up(&mut self) {
        let told = self.traced.values().filter(|thread| thread.interrupt().is_ok()).map(|thread| thread.pid().as_raw());
        let told: Vec<i32> = told.collect();
        let deadline = Instant::now() + STOP_TIMEOUT;
        for thread in told {
            // A thread that does not stop even now stays traced until this process ends.
            let _ = self.await_stop(thread, deadline);
        }
        self.release_all();
    }

    /// Returns the threads, beginning with those whose present system call the kernel itself restarts after a stop. A
    /// call that fails with EINTR is restarted by this process, which may be killed just then.
    fn by_suitability(&mut self) -> Result<Vec<i32>, StopError> {
        let mut threads = self.threads(|_| true)?.threads;
        threads.sort_by_cached_key(|&thread| {
            let call = InflightSyscall::of(self.pid, thread).ok().flatten();
            let number = call.as_ref().map(|call| call.number);
            let may_end_in_part =
                call.as_ref().is_some_and(|call| restart::may_end_in_part(call.number, &call.arguments));
            self.note_call(thread, call);
            match number {
                // It was refused before.
                _ if self.not_permitted.contains(thread) => 5,
                // It may not stop for long.
                _ if sleeps_uninterruptibly(self.pid, thread) => 4,
                _ if self.parents.contains(&thread) || may_end_in_part => 3,
                Some(number) if !restart::concerns_children(number) => u8::from(restart::gives_error(number)),
                // Running, or unknown.
                _ => 2,
            }
        });
        Ok(threads)
    }

    /// Stops all threads. `grace` is the time for which they stay stopped for one in uninterruptible sleep.
    fn stop_every_thread(&mut self, grace: Duration) -> Result<(), StopError> {
        for _ in 0..ROUNDS {
            let new = self.threads(|thread| !self.stopped.contains_key(&thread)).inspect_err(|_| self.give_up())?;
            if new.threads.is_empty() && new.is_complete {
                // Another thread may have taken over the number of a stopped one.
                return match self.stopped.is_empty() {
                    true => Err(StopError::Gone),
                    false if requests::is_at_exec(self.pid) == Ok(true) => Err(self.note_exec()),
                    false => Ok(()),
                };
            }
            self.stop_threads(new.threads, grace).inspect_err(|error| match error {
                // The thread that does not stop is not waited for again.
                StopError::DoesNotStop(_) => self.release_all(),
                _ => self.give_up(),
            })?;
        }
        self.give_up();
        Err(StopError::Listing(io::Error::other("it starts threads faster than they can be stopped")))
    }

    /// Stops threads in parallel: all are traced before the first is interrupted, see `signal_order`.
    fn stop_threads(&mut self, mut threads: Vec<i32>, grace: Duration) -> Result<(), StopError> {
        self.receivers.look(self.pid, threads.clone());
        threads.sort_by_key(|&thread| self.receivers.contains(thread));
        self.await_awake(&threads);
        self.await_whole_calls(&threads);
        threads.iter().for_each(|&thread| self.waits.look_at(self.pid, thread));
        let with_stopped: Vec<i32> = self.stopped.keys().chain(&threads).copied().collect();
        let seized = reaping::while_tracing(&with_stopped, || self.seize_all(&threads));
        let seized = seized.map_err(|error| StopError::Refused(error.to_string()))??;
        self.since.get_or_insert_with(Instant::now);
        let told = self.interrupt_all(seized);
        self.await_stops(told, grace)
    }

    /// Seizes threads, and returns those that have not ended.
    fn seize_all(&mut self, threads: &[i32]) -> Result<Vec<i32>, StopError> {
        let mut seized = Vec::new();
        for &thread in threads {
            if self.seize(thread)? {
                seized.push(thread);
            }
        }
        Ok(seized)
    }

    /// Waits a little for receivers in uninterruptible sleep to wake.
    fn await_awake(&self, threads: &[i32]) {
        let deadline = Instant::now() + WAKE_TIMEOUT;
        let sleeps = |&&thread: &&i32| self.receivers.contains(thread) && sleeps_uninterruptibly(self.pid, thread);
        while threads.len() > 1 && threads.iter().any(|thread| sleeps(&thread)) && Instant::now() < deadline {
            thread::sleep(WAKE_POLL_INTERVAL);
        }
    }

    /// Waits until all have stopped, even after an error of one.
    fn await_stops(&mut self, told: Vec<i32>, grace: Duration) -> Result<(), StopError> {
        let deadline = Instant::now() + STOP_TIMEOUT;
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
                // Late threads get the allowance of `StopWaiter::wait`.
                let ends = late.into_iter().map(|thread| self.await_stop(thread, deadline).map(drop));
                return ends.fold(result, Result::and);
            }
            waiting = late;
        }
    }

    fn stop(&mut self, thread: i32) -> Result<bool, StopError> {
        self.await_whole_calls(&[thread]);
        self.waits.look_at(self.pid, thread);
        let told = self.seize(thread)? && !self.interrupt_all(vec![thread]).is_empty();
        Ok(told && self.await_stop(thread, Instant::now() + STOP_TIMEOUT)?)
    }

    /// True for the first thread if it has ended before the others, which is not reported.
    fn is_ending_leader(&self, thread: i32) -> bool {
        thread == self.pid.as_raw() && is_ending(self.pid, thread)
    }

    /// Interrupts traced threads, and returns those that are to be waited for. If a stop does not show a thread's call,
    /// threads that sleep in a call are interrupted first, and the others get a little time to sleep: the call of a
    /// thread that is just entering it could not be restarted.
    fn interrupt_all(&mut self, threads: Vec<i32>) -> Vec<i32> {
        let (mut awake, mut told) = (threads, Vec::new());
        let deadline = Instant::now() + SLEEP_TIMEOUT;
        loop {
            let is_last = Instant::now() >= deadline;
            for thread in std::mem::take(&mut awake) {
                if !self.look_at_call(thread) && !is_last {
                    awake.push(thread);
                } else if self.is_told_to_stop(thread) || !self.is_ending_leader(thread) {
                    // A thread that has ended, or executed another program, reports it when it is waited for.
                    told.push(thread);
                }
            }
            if awake.is_empty() {
                return told;
            }
            thread::sleep(SLEEP_POLL_INTERVAL);
        }
    }

    fn is_told_to_stop(&mut self, thread: i32) -> bool {
        self.told = Some(Instant::now());
        self.traced.get(&thread).is_some_and(|thread| thread.interrupt().is_ok())
    }

    /// Records the call in which a traced thread sleeps. Returns false if it is awake: then it may have handled a
    /// signal since it was seen to sleep, perhaps before it was traced.
    fn look_at_call(&mut self, thread: i32) -> bool {
        if arch::SHOWS_CALLS {
            return true;
        }
        let Ok(call) = InflightSyscall::of(self.pid, thread) else {
            self.inflight.entry(thread).and_modify(|call| call.sleeps = None);
            return false;
        };
        self.note_call(thread, call);
        true
    }

    /// Records a call that may have to be restarted, in place of the previous one. It is kept while the thread does
    /// something else, since threads return to the calls in which they wait; whether a stop has interrupted this call
    /// is found out after the stop.
    fn note_call(&mut self, thread: i32, call: Option<InflightSyscall>) {
        self.inflight.extend(call.filter(|call| restart::can_be_repeated(call.number)).map(|call| (thread, call)));
    }

    /// True if a held thread can make calls. A thread that has a signal to handle must receive it first if the kernel
    /// decides only then whether its call is restarted: the call may unblock the signal for its own duration only.
    fn fits(&self, thread: i32) -> bool {
        let has_signal = || ThreadStatus::read(Pid::from_raw(thread)).has_signal_to_handle();
        let free = || self.stopped.get(&thread).is_some_and(|held| held.signal == 0) && !has_signal();
        (arch::SHOWS_CALLS || free()) && can_make_calls(Pid::from_raw(thread))
    }

    /// Begins to trace a thread. Returns false if it has ended.
    fn seize(&mut self, thread: i32) -> Result<bool, StopError> {
        if self.traced.contains_key(&thread) {
            return Ok(true);
        }
        match Running::seize(Pid::from_raw(thread), OPTIONS) {
            Ok(running) => Ok(self.traced.insert(thread, running).is_none()),
            Err(Errno::ESRCH) => Ok(false),
            // A thread that is ending cannot be traced any more.
            Err(Errno::EPERM) if is_ending(self.pid, thread) => Ok(false),
            Err(Errno::EPERM) if !is_traced_by_another(Pid::from_raw(thread)) && self.has_executed() => {
                Err(StopError::Executed)
            }
            // An earlier executor of this thread has interrupted it, and it has not stopped yet.
            Err(Errno::EPERM) if tracer_of(Pid::from_raw(thread)) == Some(gettid()) => {
                Err(StopError::DoesNotStop(thread))
            }
            Err(Errno::EPERM) if self.took_over(thread) => Err(self.note_exec()),
            Err(errno) => Err(StopError::Refused(refusal(Pid::from_raw(thread), &errno.desc(), Tracer::Other))),
        }
    }

    fn await_stop(&mut self, thread: i32, deadline: Instant) -> Result<bool, StopError> {
        let status = self.waiter.wait(Pid::from_raw(thread), deadline);
        self.note_stop(thread, status)
    }

    /// Records the report of a thread. Returns false if it has ended.
    fn note_stop(&mut self, thread: i32, status: Result<Option<WaitReport>, Errno>) -> Result<bool, StopError> {
        let stop = match status {
            Ok(Some(WaitReport::Stopped(stop))) => stop,
            Ok(Some(WaitReport::Ended)) => {
                self.traced.remove(&thread);
                return Ok(false);
            }
            Ok(None) => return Err(StopError::DoesNotStop(thread)),
            Err(Errno::ECHILD) => {
                self.traced.remove(&thread);
                return if self.has_executed() { Err(StopError::Executed) } else { Ok(false) };
            }
            // It may be stopped nevertheless: it stays among those that are released when a lift is given up.
            Err(errno) => return Err(StopError::Refused(format!("waiting for thread {thread}: {}", errno.desc()))),
        };
        let running = self.traced.remove(&thread).unwrap_or(Running::already_traced(Pid::from_raw(thread)));
        let stopped = running.has_stopped();
        if matches!(stop, Stop::Event { event: libc::PTRACE_EVENT_EXEC, .. }) {
            self.stopped.insert(thread, Held { thread: stopped, signal: 0 });
            return Err(self.note_exec());
        }
        let signal = stop.delivered_signal();
        // The program must not see an error that only this stop has caused.
        let (before, waits) = (self.inflight.get(&thread), Some(&mut self.waits));
        if restart::restart_interrupted(self.pid, Pid::from_raw(thread), signal, before, waits) == Ok(true) {
            self.restarting.insert(thread);
        }
        self.stopped.insert(thread, Held { thread: stopped, signal });
        Ok(true)
    }

    fn threads(&self, wanted: impl FnMut(i32) -> bool) -> Result<Listing, StopError> {
        let mut listing = match user_threads(self.pid, wanted) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(StopError::Gone),
            other => other?,
        };
        let first = self.pid.as_raw();
        if listing.threads.contains(&first) && self.is_ending_leader(first) {
            // It stays listed until the others have ended too and its parent has waited for it.
            listing.threads.retain(|&thread| thread != first);
            if listing.threads.is_empty() && self.stopped.is_empty() {
                return Err(StopError::Gone);
            }
        }
        Ok(listing)
    }
}

#[cfg(test)]
mod tests;
