//! Stops threads of the program. One thread executes calls.

use super::comparing::CHANGED;
use super::{ALL_CALLS, LiveExecutor};
use crate::attach::calls_of_thread::Calls;
use crate::attach::remote_call::{Means, RemoteCaller};
use crate::attach::stop::{AT_ONCE, StopError};
use crate::remote::calls;
use crate::remote::injection::InjectError;
use crate::remote::seccomp;
use address_space::AddressRange;
use lift_execution::CallError;
use linux::urgency::Urgency;
use linux::watch::WithProgram;
use nix::errno::Errno;
use nix::unistd::Pid;
use std::time::Instant;

/// Time that the calls of a thread need.
#[derive(Clone, Copy)]
pub(super) enum Length {
    /// Little: others may wait for them.
    Short,
    /// Perhaps much: others do not wait for more than [`AT_ONCE`].
    Long,
    /// Much, or there are many stops: no other is stopped.
    Alone,
}

/// Why the work of a thread failed.
enum Failed {
    /// The kernel refused a call.
    Call(CallError),
    /// A seccomp filter refuses this call.
    Filtered(CallError),
    /// No call could be made.
    NotMade(InjectError),
    /// The time for all calls is used up; the thread is stopped.
    TimeUp,
}

impl LiveExecutor {
    /// Stops one thread and makes it execute short calls. If the threads compete for CPUs, all are stopped.
    ///
    /// # Errors
    /// The first error of a call.
    pub fn with_thread<T>(
        &mut self,
        work: impl FnOnce(&mut Calls<'_, '_>) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        self.with_thread_of(Length::Short, work)
    }

    /// Stops one thread and makes it execute calls of a length; where it is not [`Length::Alone`] and the threads compete for CPUs,
    /// all are stopped.
    ///
    /// # Errors
    /// The first error of a call.
    pub(super) fn with_thread_of<T>(
        &mut self,
        length: Length,
        work: impl FnOnce(&mut Calls<'_, '_>) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        let _urgency = Urgency::raise();
        let stopped = match length {
            Length::Short => self.process.stop_one(),
            Length::Long => self.process.stop_one_for_long(),
            Length::Alone => self.process.stop_one_alone(),
        };
        let thread = stopped.map_err(|error| self.refused(&error))?;
        let result = self.work_with(thread, None, length, work);
        self.process.release_all();
        result
    }

    /// Stops all threads and makes one execute calls, if `range` is unchanged since it was planned.
    ///
    /// # Errors
    /// The first error of a call; `EBUSY` where the range has changed.
    pub fn with_all_stopped<T>(
        &mut self,
        range: AddressRange,
        work: impl FnOnce(&mut Calls<'_, '_>) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        let _urgency = Urgency::raise();
        let thread = self.process.stop_all().map_err(|error| self.refused(&error))?;
        let result = self.work_with(thread, Some(range), Length::Short, work);
        self.process.release_all();
        result
    }

    /// Makes a stopped thread execute calls, if it still has the memory of the plan and `range` is unchanged.
    fn work_with<T>(
        &mut self,
        thread: Pid,
        range: Option<AddressRange>,
        length: Length,
        work: impl FnOnce(&mut Calls<'_, '_>) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        let _with_program = WithProgram::begin();
        match self.page.is_memory_of(thread, &self.memory) {
            Ok(true) => {}
            Ok(false) => {
                let error = self.process.note_exec();
                return Err(self.refused(&error));
            }
            Err(error) => {
                let error = if self.process.has_executed() {
                    StopError::Executed
                } else {
                    StopError::Refused(error.to_string())
                };
                return Err(self.refused(&error));
            }
        }
        if range.is_some_and(|range| !self.is_as_planned(range)) {
            return Err(CHANGED);
        }
        let started = Instant::now();
        let worked = self.make_calls(thread, started + ALL_CALLS.saturating_sub(self.held), length, work);
        self.held += started.elapsed();
        worked.map_err(|failed| match failed {
            Failed::Call(error) => error,
            Failed::Filtered(error) => {
                self.refuse(seccomp::refusal(error.call), false);
                error
            }
            Failed::TimeUp => {
                let limit = ALL_CALLS.as_secs();
                self.refuse(format!("all calls of its threads may take {limit} s, which are used up"), false);
                calls::not_made("ptrace", &InjectError::Ptrace(Errno::ETIMEDOUT))
            }
            Failed::NotMade(InjectError::Executed) => {
                let error = self.process.note_exec();
                self.refused(&error)
            }
            Failed::NotMade(InjectError::Ptrace(Errno::ETIMEDOUT)) => {
                let error = self.process.note_lost(thread);
                self.refused(&error)
            }
            Failed::NotMade(InjectError::Ptrace(Errno::ECHILD) | InjectError::Gone) if self.process.has_executed() => {
                self.refused(&StopError::Executed)
            }
            Failed::NotMade(error) => {
                self.refuse(error.to_string(), false);
                calls::not_made("ptrace", &error)
            }
        })
    }

    fn make_calls<T>(
        &mut self,
        thread: Pid,
        deadline: Instant,
        length: Length,
        work: impl FnOnce(&mut Calls<'_, '_>) -> Result<T, CallError>,
    ) -> Result<T, Failed> {
        let (means, memory) = (Means::Page(&self.page), &self.memory);
        let taken = self.process.take(thread).ok_or(Failed::NotMade(InjectError::Gone))?;
        let (waiter, filters) = (self.process.waiter(), self.process.filters().clone());
        let mut release_others = || self.process.release_others();
        let made = RemoteCaller::new(taken.thread(), means, memory, &waiter, &filters, deadline).map(|caller| {
            let caller = match length {
                Length::Short | Length::Alone => caller,
                Length::Long => caller.lending(AT_ONCE, &mut release_others),
            };
            let mut calls =
                Calls { caller, page: &self.page, memory, pagemap: &self.pagemap, failed: None, left_copy: false };
            let result = work(&mut calls);
            let Calls { caller, failed, left_copy, .. } = calls;
            (result, (failed, left_copy), caller.finish())
        });
        self.process.put_back(taken);
        let (result, (failed, left_copy), (finished, is_lost)) = made.map_err(Failed::NotMade)?;
        self.has_left_copy |= left_copy;
        let timed_out = |error: &InjectError| matches!(error, InjectError::Ptrace(Errno::ETIMEDOUT));
        let not_made = failed.as_ref().or(finished.as_ref().err().filter(|_| result.is_ok()));
        if !is_lost && not_made.is_some_and(timed_out) {
            return Err(Failed::TimeUp);
        }
        match (result, failed) {
            (Ok(value), _) => finished.map(|()| value).map_err(Failed::NotMade),
            (Err(error), Some(InjectError::Filtered)) => Err(Failed::Filtered(error)),
            (Err(_), Some(why)) => Err(Failed::NotMade(why)),
            (Err(error), None) => Err(Failed::Call(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::stop::COMPUTES;
    use crate::attach::target::Target;
    use crate::test_program;
    use address_space::{AddressSpace, PageSize};
    use std::io::{BufRead, BufReader};
    use std::time::Duration;

    const SLEEP: Duration = Duration::from_secs(1);

    fn sleeps(calls: &mut Calls<'_, '_>) -> Result<u64, CallError> {
        let at = calls.place(&[SLEEP.as_secs().to_ne_bytes(), [0; 8]].concat())?;
        calls.call("nanosleep", libc::SYS_nanosleep, [at.0, 0, 0, 0, 0, 0])
    }

    /// The longest stops of all threads and of one, where one thread sleeps in a call.
    fn stops(pid: i32, length: Length) -> (Duration, Duration) {
        let space = AddressSpace::parse(&std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap()).unwrap();
        let base_page = PageSize::new(linux::pages::base_page().bytes()).unwrap();
        let mut executor = LiveExecutor::new(Target::open(pid).unwrap(), &space, &[], base_page).unwrap();
        // Threads that have just been started may not have been given a CPU yet.
        let deadline = Instant::now() + Duration::from_secs(60);
        while !executor.process.threads_compete() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        executor.with_thread_of(length, sleeps).unwrap();
        let pause = executor.pause();
        drop(executor.finish());
        assert!(pause.threads > 1, "{pause:?}");
        (pause.longest, pause.longest_of_one)
    }

    #[test]
    fn others_go_on_where_a_call_takes_long() {
        let mut child = test_program::spawn("attach::stop::competing::tests::program_that_computes", COMPUTES);
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        lines.map(Result::unwrap).find(|line| line == "ready").unwrap();
        let [short, long] = [Length::Short, Length::Long].map(|length| stops(child.id() as i32, length));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(short.0 >= SLEEP, "{short:?}");
        assert!(long.0 < SLEEP && long.1 >= SLEEP, "{long:?}");
    }
}
