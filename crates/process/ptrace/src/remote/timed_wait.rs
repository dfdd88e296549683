//! Waits of a relative time, which continue with the remaining time.
//!
//! The kernel keeps the remaining time of most interrupted waits. epoll_wait, semtimedop, rt_sigtimedwait and io_getevents
//! fail with EINTR instead, and so do ppoll and pselect6 if they cannot store the remaining time. If they were made again
//! with the same arguments, they would wait for their whole time once more. Such a wait is therefore read before its thread
//! is stopped, and the argument for its time is changed afterwards:
//! - The thread has slept in the call since it last ran, a time which the kernel shows (`linux::sleep_clock`). It has not
//!   slept anywhere else until it stopped, which the number of its sleeps shows.
//! - The program does not see the argument, as the code behind the call shows (`unused`).
//! - If the argument is the address of a time, the remaining time is stored in padding that no program uses (`time_places`).
//!
//! If any of these facts is unknown, the wait is repeated with its whole time.

use super::RemoteMemory;
use super::arch::{self, Registers};
use super::inflight_syscall::{InflightSyscall, slept_only_in};
use super::requests;
use super::time_places::{TimePlaces, space_of};
use super::unused::is_unused;
use address_space::{Address, AddressSpace};
use linux::interrupted::{Limit, limit_after_stop};
use linux::sleep_clock::{Sleep, SleepClock};
use nix::unistd::Pid;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The waits in which threads were last seen, by the numbers of the threads.
#[derive(Default)]
pub struct TimedWaits {
    waits: HashMap<i32, TimedWait>,
    clock: SleepClock,
    places: TimePlaces,
}

impl TimedWaits {
    /// Notes the wait of a relative time in which a thread sleeps, if any. It replaces the note of an earlier stop.
    pub fn look_at(&mut self, process: Pid, thread: i32) {
        let earlier = self.waits.remove(&thread);
        let wait = TimedWait::of(process, thread, &mut self.clock, earlier.as_ref());
        self.waits.extend(wait.map(|wait| (thread, wait)));
    }

    /// Changes the registers of a stopped thread, which makes its call again, so that it waits for the remaining time.
    /// `stopped` is the call as the stop shows it. Nothing is changed if the thread may have been elsewhere since, or if
    /// the program could see the change.
    pub fn shorten(&mut self, thread: Pid, stopped: &InflightSyscall, registers: &mut Registers) {
        if let Some(wait) = self.waits.get_mut(&thread.as_raw()) {
            wait.shorten(thread, stopped, registers, &mut self.places);
        }
    }

    /// Changes the registers once more before a thread is released: it may have been stopped for long.
    pub fn refresh(&mut self, thread: Pid) {
        if let Some(wait) = self.waits.get_mut(&thread.as_raw()) {
            wait.refresh(thread, &mut self.places);
        }
    }

    /// Forgets a thread that has ended or is traced no more.
    pub fn forget(&mut self, thread: Pid) {
        self.waits.remove(&thread.as_raw());
    }

    /// Forgets all threads but these.
    pub fn retain(&mut self, is_kept: impl Fn(i32) -> bool) {
        self.waits.retain(|&thread, _| is_kept(thread));
        self.places.forget_ended();
    }
}

/// A wait in which a thread was seen to sleep.
#[derive(Clone, Debug)]
struct TimedWait {
    process: Pid,
    call: InflightSyscall,
    /// How often the thread had gone to sleep, this wait included.
    sleeps: u64,
    /// The argument for the time.
    index: usize,
    limit: Limit,
    /// When its time is over.
    ends: Instant,
    /// The call as it is made again.
    again: Option<InflightSyscall>,
}

impl TimedWait {
    /// Returns the wait of a relative time in which a thread sleeps. `earlier` is what an earlier stop has left of one.
    fn of(process: Pid, thread: i32, clock: &mut SleepClock, earlier: Option<&Self>) -> Option<Self> {
        let call = InflightSyscall::of(process, thread).ok().flatten()?;
        let (index, limit) = limit_after_stop(call.number)?;
        let length = length(process, limit, call.arguments[index])?;
        let sleep = clock.sleep_of(process.as_raw(), thread)?;
        let ends = sleep.since.checked_add(length)?;
        let ends = earlier
            .filter(|earlier| earlier.is_continued_by(&call, sleep))
            .map_or(ends, |earlier| earlier.ends.min(ends));
        Some(Self { process, call, sleeps: sleep.count, index, limit, ends, again: None })
    }

    /// True if a thread sleeps in this wait again after a stop, and has slept nowhere else.
    fn is_continued_by(&self, call: &InflightSyscall, sleep: Sleep) -> bool {
        // A wait that is made again with the same number of milliseconds cannot be distinguished from a new wait. No wait of
        // the program's own has an address of `time_places`.
        let is_marked =
            |again: &InflightSyscall| self.limit == Limit::Timespec || again.arguments != self.call.arguments;
        let is_same = self.again.as_ref().is_some_and(|again| is_marked(again) && again.is(call));
        is_same && sleep.count == self.sleeps + 2
    }

    fn shorten(&mut self, thread: Pid, stopped: &InflightSyscall, registers: &mut Registers, places: &mut TimePlaces) {
        self.again = None;
        if !self.call.is(stopped) || !slept_only_in(self.process, thread, self.sleeps) {
            return;
        }
        let Some(space) = space_of(self.process) else { return };
        if is_unseen(self.process, &space, stopped, self.index) == Some(true) {
            self.set_time_left(thread, Some(&space), registers, places);
        }
    }

    fn refresh(&mut self, thread: Pid, places: &mut TimePlaces) {
        let Some(again) = &self.again else { return };
        let Ok(mut registers) = requests::registers(thread) else { return };
        let (number, arguments) = arch::call_registers(&registers);
        let is_there = arch::is_made_again(&registers, Address(again.behind))
            && (number, arguments) == (again.number, again.arguments)
            && arch::stack_pointer(&registers) == Address(again.stack);
        if is_there && self.set_time_left(thread, None, &mut registers, places) {
            // Otherwise it waits for a little longer.
            let _ = requests::set_registers_of_same_program(thread, &registers);
        }
    }

    /// The time is stored before the registers are set: if this process is killed in between, the call is made as it was.
    fn set_time_left(
        &mut self,
        thread: Pid,
        space: Option<&AddressSpace>,
        registers: &mut Registers,
        places: &mut TimePlaces,
    ) -> bool {
        let left = self.ends.saturating_duration_since(Instant::now());
        let value = match self.limit {
            Limit::Milliseconds => Some(left.as_nanos().div_ceil(1_000_000) as u64),
            Limit::Timespec => {
                let argument = Address(self.call.arguments[self.index]);
                places.store(self.process, thread, space, argument, left).map(|place| place.0)
            }
        };
        let Some(value) = value else { return false };
        arch::set_argument(registers, self.index, value);
        let mut again = self.call.clone();
        again.arguments[self.index] = value;
        self.again = Some(again);
        true
    }
}

/// True if nobody sees that this argument of a call has changed afterwards; `None` if that is unknown.
fn is_unseen(process: Pid, space: &AddressSpace, call: &InflightSyscall, index: usize) -> Option<bool> {
    let memory = RemoteMemory::open(process.as_raw()).ok()?;
    Some(is_unused(&memory, space, Address(call.behind), index))
}

/// Returns the length of a wait; `None` where it has no limit, or none that the kernel accepts.
fn length(process: Pid, limit: Limit, argument: u64) -> Option<Duration> {
    match limit {
        Limit::Milliseconds => Some(Duration::from_millis(u64::try_from(argument as i32).ok()?)),
        Limit::Timespec if argument == 0 => None,
        Limit::Timespec => {
            let memory = RemoteMemory::open(process.as_raw()).ok()?;
            let [seconds, nanoseconds] = [0, 8].map(|offset| memory.read_word(Address(argument.wrapping_add(offset))));
            let nanoseconds = u32::try_from(nanoseconds.ok()?).ok().filter(|&part| part < 1_000_000_000)?;
            Some(Duration::new(i64::try_from(seconds.ok()?).ok()?.try_into().ok()?, nanoseconds))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::{Signal, kill};
    use nix::sys::wait::waitpid;
    use nix::unistd::{ForkResult, fork};
    use std::thread;

    /// A child that sleeps in epoll_wait for a minute.
    fn waiting() -> Pid {
        // SAFETY:
        // - the child makes system calls only.
        let child = match unsafe { fork() }.unwrap() {
            ForkResult::Parent { child } => child,
            ForkResult::Child => {
                let mut event = libc::epoll_event { events: 0, u64: 0 };
                // SAFETY:
                // - `event` has room for one event.
                unsafe {
                    libc::epoll_wait(libc::epoll_create1(0), &raw mut event, 1, 60_000);
                    libc::_exit(0)
                }
            }
        };
        let number = || InflightSyscall::of(child, child.as_raw()).ok().flatten().map(|call| call.number);
        while number().is_none_or(|number| limit_after_stop(number).is_none()) {
            thread::sleep(Duration::from_millis(1));
        }
        child
    }

    #[test]
    fn threads_that_are_no_longer_followed_are_forgotten() {
        let child = waiting();
        let mut waits = TimedWaits::default();
        let look = |waits: &mut TimedWaits| {
            waits.look_at(child, child.as_raw());
            waits.waits.len()
        };
        // The reading of a clock takes too long on a busy machine; some kernels show none.
        let shows_sleep = std::fs::exists(format!("/proc/{child}/sched")).unwrap();
        let mut seen = (0..100).map(|_| look(&mut waits));
        assert!(seen.any(|count| count == 1) || !shows_sleep, "no wait is seen");
        waits.retain(|thread| thread == child.as_raw());
        let kept = waits.waits.len();
        waits.retain(|_| false);
        let left = waits.waits.len();
        kill(child, Signal::SIGKILL).unwrap();
        waitpid(child, None).unwrap();
        assert_eq!((kept, left), (usize::from(shows_sleep), 0));
    }
}
