//! Waits of a relative time, which continue with the remaining time.
//!
//! The kernel keeps the remaining time of most interrupted waits. epoll_wait, semtimedop, rt_sigtimedwait and io_getevents
//! fail with EINTR instead, and so do ppoll and pselect6 if they cannot store the remaining time. If they were made again
//! with the same arguments, they would wait for their whole time once more. Such a wait is therefore read before its thread
//! is stopped, and the argument for its time is changed afterwards:
//! - The thread has slept in the call since it last ran, a time which the kernel shows (`linux::sleep_clock`). It has not
//!   slept anywhere else until it stopped, which the number of its sleeps shows.
//! - The program does not see the argument, as the code behind the call shows (`unused`).
//! - If the argument is the address of a time, the remaining time is stored below the stack, where the kernel stores the
//!   frame of a signal handler: the program has no data there while its thread is in a call.
//!
//! If any of these facts is unknown, the wait is made again with its whole time.

use super::RemoteMemory;
use super::arch::{self, Registers};
use super::inflight_syscall::{InflightSyscall, slept_only_in};
use super::requests;
use super::unused::is_unused;
use address_space::{Address, AddressSpace};
use linux::interrupted::{Limit, limit_after_stop};
use linux::sleep_clock::{Sleep, SleepClock};
use linux::text::text_of;
use nix::sys::uio::{RemoteIoVec, process_vm_writev};
use nix::unistd::Pid;
use std::io::IoSlice;
use std::time::{Duration, Instant};

/// Number of bytes of a `struct timespec`, and of its alignment.
const TIMESPEC_BYTES: u64 = 16;
const ALIGNMENT: u64 = 16;

/// A wait in which a thread was seen to sleep.
#[derive(Clone, Debug)]
pub struct TimedWait {
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
    pub fn of(process: Pid, thread: i32, clock: &mut SleepClock, earlier: Option<&Self>) -> Option<Self> {
        let call = InflightSyscall::of(process, thread).ok().flatten()?;
        let (index, limit) = limit_after_stop(call.number)?;
        let length = length(process, limit, call.arguments[index])?;
        let sleep = clock.sleep_of(process.as_raw(), thread)?;
        let ends = sleep.since.checked_add(length)?;
        let ends = earlier
            .filter(|earlier| earlier.is_continued_by(&call, sleep))
            .map_or(ends, |earlier| earlier.ends.min(ends));
        Some(Self { call, sleeps: sleep.count, index, limit, ends, again: None })
    }

    /// True if a thread sleeps in this wait again after a stop, and has slept nowhere else.
    fn is_continued_by(&self, call: &InflightSyscall, sleep: Sleep) -> bool {
        // A wait that is made again with its whole time cannot be distinguished from a new wait.
        let is_same = self.again.as_ref().is_some_and(|again| again.arguments != self.call.arguments && again.is(call));
        is_same && sleep.count == self.sleeps + 2
    }

    /// Changes the registers of a stopped thread, which makes this call again, so that it waits for the remaining time.
    /// `stopped` is the call as the stop shows it. Nothing is changed if the thread may have been elsewhere since, or if
    /// the program could see the change.
    pub fn shorten(&mut self, process: Pid, thread: Pid, stopped: &InflightSyscall, registers: &mut Registers) {
        self.again = None;
        let is_the_same = self.call.is(stopped) && slept_only_in(process, thread, self.sleeps);
        if is_the_same && is_unseen(process, stopped, self.index) == Some(true) {
            self.set_time_left(process, registers);
        }
    }

    /// Changes the registers once more before the thread is released: it may have been stopped for long.
    pub fn refresh(&mut self, process: Pid, thread: Pid) {
        let Some(again) = &self.again else { return };
        let Ok(mut registers) = requests::registers(thread) else { return };
        let (number, arguments) = arch::call_registers(&registers);
        let is_there = arch::is_made_again(&registers, Address(again.behind))
            && (number, arguments) == (again.number, again.arguments)
            && arch::stack_pointer(&registers) == Address(again.stack);
        if is_there && self.set_time_left(process, &mut registers) {
            // Otherwise it waits for a little longer.
            let _ = requests::set_registers_of_same_program(thread, &registers);
        }
    }

    fn set_time_left(&mut self, process: Pid, registers: &mut Registers) -> bool {
        let left = self.ends.saturating_duration_since(Instant::now());
        let value = match self.limit {
            Limit::Milliseconds => Some(left.as_nanos().div_ceil(1_000_000) as u64),
            // The thread is rewound already: a handler that runs first would overwrite the time.
            Limit::Timespec if !arch::SHOWS_CALLS => None,
            Limit::Timespec => {
                let below = self.call.stack.checked_sub(arch::RED_ZONE + TIMESPEC_BYTES);
                below.map(|below| below & !(ALIGNMENT - 1)).filter(|&place| store(process, place, left))
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
fn is_unseen(process: Pid, call: &InflightSyscall, index: usize) -> Option<bool> {
    let memory = RemoteMemory::open(process.as_raw()).ok()?;
    let space = AddressSpace::parse(&text_of(format!("/proc/{process}/maps")).ok()?).ok()?;
    Some(is_unused(&memory, &space, Address(call.behind), index))
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

/// Stores a time. Returns false if the process itself could not write there.
fn store(process: Pid, place: u64, time: Duration) -> bool {
    let words = [time.as_secs().to_ne_bytes(), u64::from(time.subsec_nanos()).to_ne_bytes()].concat();
    let remote = RemoteIoVec { base: place as usize, len: words.len() };
    process_vm_writev(process, &[IoSlice::new(&words)], &[remote]) == Ok(words.len())
}
