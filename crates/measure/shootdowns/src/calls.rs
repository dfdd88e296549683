//! Time of threads in the calls that change mappings: munmap, madvise, mprotect and mremap.
//!
//! Measured in windows, and scaled to the time that each window represents. It includes the time of waiting for other CPUs.

use crate::format::Field;
use crate::lives::Life;
use crate::rings::{Rings, Sampling, Selection, now};
use crate::tracepoints::{NoTracepoint, format_of};
use std::collections::HashMap;
use std::time::Duration;

/// The calls.
pub(crate) const CALLS: [i64; 4] = [libc::SYS_munmap, libc::SYS_madvise, libc::SYS_mprotect, libc::SYS_mremap];

/// The kernel's filter for records of these calls.
pub(crate) fn filter() -> String {
    CALLS.map(|call| format!("id == {call}")).join(" || ")
}

/// The field with the number of a system call.
pub(crate) const NUMBER: &str = "id";

/// Begin or end of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Nanoseconds of CLOCK_MONOTONIC.
    time: u64,
    pid: i32,
    tid: i32,
    is_begin: bool,
}

/// Seconds in calls by process.
#[derive(Debug, Default)]
pub(crate) struct CallTimes {
    seconds: HashMap<Life, f64>,
}

impl CallTimes {
    /// Adds the marks of one window, in any order. The window from `begin` to `end` represents so much time.
    /// `life` finds a process at a time.
    pub fn add(
        &mut self,
        marks: &mut [Mark],
        (begin, end): (u64, u64),
        represented: Duration,
        life: impl Fn(i32, u64) -> Life,
    ) {
        let window = end.saturating_sub(begin);
        if window == 0 {
            return;
        }
        let scale = represented.as_secs_f64() / window as f64;
        marks.sort_by_key(|mark| mark.time);
        // Threads that were seen, with the begin of the call that they are in.
        let mut threads: HashMap<i32, (i32, Option<u64>)> = HashMap::new();
        let mut add = |pid: i32, from: u64, to: u64| {
            let nanoseconds = to.min(end).saturating_sub(from.max(begin));
            *self.seconds.entry(life(pid, from)).or_default() += nanoseconds as f64 * scale;
        };
        for mark in marks.iter() {
            let before = threads.insert(mark.tid, (mark.pid, mark.is_begin.then_some(mark.time)));
            match (mark.is_begin, before) {
                (true, _) => {}
                (false, Some((_, Some(since)))) => add(mark.pid, since, mark.time),
                // A call that began before the window. A later end without a begin is the rest of a lost pair.
                (false, None) => add(mark.pid, begin, mark.time),
                (false, Some((_, None))) => {}
            }
        }
        for (pid, since) in threads.into_values() {
            if let Some(since) = since {
                add(pid, since, end);
            }
        }
    }

    /// Seconds of one process.
    pub fn of(&self, life: Life) -> f64 {
        self.seconds.get(&life).copied().unwrap_or(0.0)
    }
}

/// The records of begins and ends.
pub(crate) struct CallRings {
    rings: [(bool, Field, Rings); 2],
    window: (u64, u64),
}

impl CallRings {
    /// Opens them on all CPUs.
    pub fn open(cpus: &[usize]) -> Result<Self, NoTracepoint> {
        let open = |path: &str, name: &'static str| {
            let format = format_of(path)?;
            let number = format.field(NUMBER).ok_or_else(|| NoTracepoint::NotUnderstood(name.to_owned()))?.clone();
            let selection = Selection { name, id: format.id, filter: Some(filter()) };
            Ok::<_, NoTracepoint>((number, Rings::open(&selection, cpus, Sampling::Everything)?))
        };
        let (enter, enters) = open("raw_syscalls/sys_enter", "raw_syscalls:sys_enter")?;
        let (exit, exits) = open("raw_syscalls/sys_exit", "raw_syscalls:sys_exit")?;
        Ok(Self { rings: [(true, enter, enters), (false, exit, exits)], window: (0, 0) })
    }

    /// Begins or ends a window.
    pub fn run(&mut self, on: bool) {
        if !on {
            self.window.1 = now();
        }
        self.rings.iter_mut().for_each(|(_, _, rings)| rings.run(on));
        if on {
            self.window.0 = now();
        }
    }

    /// Adds the last window, which represents so much time. Returns the rate of records, each second.
    /// `life` finds a process at a time.
    pub fn drain_into(&mut self, times: &mut CallTimes, represented: Duration, life: impl Fn(i32, u64) -> Life) -> f64 {
        let lost = self.lost();
        let mut marks = Vec::new();
        for (is_begin, number, rings) in &mut self.rings {
            rings.drain(|sample| {
                // The kernel's filter has chosen; a record of another call would be a fault in reading it.
                if number.number(&sample.raw).is_some_and(|number| CALLS.contains(&number)) {
                    marks.push(Mark { time: sample.time, pid: sample.pid, tid: sample.tid, is_begin: *is_begin });
                }
            });
        }
        times.add(&mut marks, self.window, represented, life);
        let records = marks.len() as u64 + self.lost() - lost;
        records as f64 * 1e9 / self.window.1.saturating_sub(self.window.0).max(1) as f64
    }

    /// Records that were lost.
    pub fn lost(&self) -> u64 {
        self.rings.iter().map(|(_, _, rings)| rings.lost).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: u64 = 1_000_000;

    fn mark(milliseconds: u64, tid: i32, is_begin: bool) -> Mark {
        Mark { time: milliseconds * MILLISECOND, pid: tid / 10, tid, is_begin }
    }

    /// Every process began before the watch.
    fn old(pid: i32, _time: u64) -> Life {
        Life { pid, since: 0 }
    }

    /// Milliseconds of processes 1 and 2 in a window from 100 to 110 ms that represents this number of milliseconds.
    fn times(mut marks: Vec<Mark>, cycle: u64) -> [f64; 2] {
        let mut times = CallTimes::default();
        // In the order of their rings, not of time.
        marks.reverse();
        times.add(&mut marks, (100 * MILLISECOND, 110 * MILLISECOND), Duration::from_millis(cycle), old);
        [1, 2].map(|pid| (times.of(old(pid, 0)) * 1e3 * 1e6).round() / 1e6)
    }

    #[test]
    fn a_window_represents_its_cycle() {
        let marks = || vec![mark(101, 10, true), mark(102, 20, true), mark(103, 10, false), mark(105, 20, false)];
        assert_eq!(times(marks(), 10), [2.0, 3.0]);
        assert_eq!(times(marks(), 50), [10.0, 15.0]);
    }

    #[test]
    fn calls_that_the_window_cuts_count_within_it() {
        assert_eq!(times(vec![mark(103, 10, false), mark(108, 10, true)], 10), [5.0, 0.0]);
        assert_eq!(times(vec![mark(99, 10, true), mark(112, 10, false)], 10), [10.0, 0.0]);
    }

    #[test]
    fn threads_of_a_process_add_up_and_lost_records_do_not_count() {
        let two = vec![mark(100, 10, true), mark(100, 11, true), mark(104, 10, false), mark(106, 11, false)];
        assert_eq!(times(two, 10), [10.0, 0.0]);
        // The begin of the second call is lost.
        let lost = vec![mark(100, 10, true), mark(101, 10, false), mark(109, 10, false)];
        assert_eq!(times(lost, 10), [1.0, 0.0]);
        assert_eq!(times(Vec::new(), 10), [0.0, 0.0]);
    }
}
