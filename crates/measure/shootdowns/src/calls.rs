//! Time of threads in the calls that change mappings: munmap, madvise, mprotect and mremap.
//!
//! All calls are recorded, without a gap between the windows; if there are many, only in some windows, which are scaled
//! ([`crate::schedule`]). The time includes the waiting for other CPUs.

use crate::format::Field;
use crate::lives::Life;
use crate::rings::{Rings, Sampling, Selection, now};
use crate::schedule::{Part, Schedule};
use crate::tracepoints::{NoTracepoint, format_of};
use std::collections::HashMap;

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

/// Maximum number of processes with times. It exceeds the maximum number of processes with counts.
const MOST_PROCESSES: usize = 16_384;
/// The other processes that are left if there are more.
const MOST_OTHERS: usize = 4096;
/// Maximum number of threads whose last mark is kept.
const MOST_THREADS: usize = 65_536;

/// A time in which all calls are recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// Nanoseconds of CLOCK_MONOTONIC. A window that begins at the end of the last one continues it.
    pub begin: u64,
    pub end: u64,
    /// Times that the window counts, because the time around it is not recorded.
    pub weight: f64,
}

/// Seconds in calls by process.
#[derive(Debug, Default)]
pub(crate) struct CallTimes {
    seconds: HashMap<Life, f64>,
    /// Sums that were dropped to bound memory.
    pub left_out: u64,
    /// Seconds that all windows represent.
    represented: f64,
    /// Threads that were seen since `seen_since`, with the begin of the call that they are in.
    threads: HashMap<i32, Option<(i32, u64)>>,
    seen_since: u64,
    /// End of the last window.
    until: u64,
}

impl CallTimes {
    /// Adds the marks of one window, in any order. `life` finds a process at a time. A call that was in progress when the
    /// window began, or is when it ends, counts within the window and those that it continues.
    pub fn add(&mut self, marks: &mut [Mark], window: Window, life: impl Fn(i32, u64) -> Life) {
        if window.end <= window.begin {
            return;
        }
        if window.begin != self.until {
            self.threads.clear();
            self.seen_since = window.begin;
        }
        let factor = window.weight / 1e9;
        self.represented += (window.end - window.begin) as f64 * factor;
        self.until = window.end;
        marks.sort_by_key(|mark| mark.time);
        let mut add = |pid: i32, from: u64, to: u64| {
            let nanoseconds = to.min(window.end).saturating_sub(from);
            *self.seconds.entry(life(pid, from)).or_default() += nanoseconds as f64 * factor;
        };
        for mark in marks.iter() {
            let before = self.threads.insert(mark.tid, mark.is_begin.then_some((mark.pid, mark.time)));
            match (mark.is_begin, before) {
                (true, _) => {}
                (false, Some(Some((pid, since)))) => add(pid, since.max(window.begin), mark.time),
                // The call began before the first window. A later end without a begin is the rest of a lost pair.
                (false, None) => add(mark.pid, self.seen_since, mark.time),
                (false, Some(None)) => {}
            }
        }
        for &(pid, since) in self.threads.values().flatten() {
            add(pid, since.max(window.begin), window.end);
        }
    }

    /// Drops the times of all but these processes and the largest others if there are too many. A process may send its
    /// first shootdown after long calls.
    pub fn make_room(&mut self, is_kept: impl Fn(Life) -> bool) {
        if self.threads.len() > MOST_THREADS {
            self.threads.retain(|_, call| call.is_some());
            self.seen_since = self.until;
        }
        if self.threads.len() > MOST_THREADS {
            self.threads.clear();
        }
        let before = self.seconds.len();
        if before <= MOST_PROCESSES {
            return;
        }
        let others = self.seconds.iter().filter(|(life, _)| !is_kept(**life));
        let mut others: Vec<(Life, f64)> = others.map(|(&life, &seconds)| (life, seconds)).collect();
        others.sort_by(|a, b| b.1.total_cmp(&a.1));
        for (life, _) in others.into_iter().skip(MOST_OTHERS) {
            self.seconds.remove(&life);
        }
        self.left_out += (before - self.seconds.len()) as u64;
    }

    /// Seconds of one process in a watch of so many seconds.
    pub fn of(&self, life: Life, seconds: f64) -> f64 {
        let scale = if self.represented > 0.0 { seconds / self.represented } else { 0.0 };
        self.seconds.get(&life).map_or(0.0, |of_it| of_it * scale)
    }
}

/// The records of begins and ends.
pub(crate) struct CallRings {
    rings: [(bool, Field, Rings); 2],
    schedule: Schedule,
    /// Begin of the window; `None` if calls are not recorded.
    since: Option<u64>,
    /// Marks of the next window.
    early: Vec<Mark>,
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
        let rings = [(true, enter, enters), (false, exit, exits)];
        Ok(Self { rings, schedule: Schedule::default(), since: None, early: Vec::new() })
    }

    /// True if there are so many calls that only some of the time is recorded.
    pub fn are_many(&self) -> bool {
        self.schedule.are_many
    }

    /// Begins a cycle. Returns its part in which calls are recorded.
    pub fn begin_cycle(&mut self) -> Part {
        let part = self.schedule.next();
        if part != Part::None && self.since.is_none() {
            // Records from after the end of the last window.
            self.rings.iter_mut().for_each(|(_, _, rings)| rings.drain(drop));
            self.run(true);
            self.since = Some(now());
        }
        part
    }

    fn run(&mut self, on: bool) {
        self.rings.iter_mut().for_each(|(_, _, rings)| rings.run(on));
    }

    /// Ends that part of the cycle. `life` finds a process at a time.
    pub fn end_part(&mut self, times: &mut CallTimes, life: impl Fn(i32, u64) -> Life) {
        let Some(begin) = self.since.take() else { return };
        let asked = now();
        let weight = self.schedule.weight();
        let (mut marks, busiest, complete_until) = self.marks(asked);
        let end = complete_until.map_or(asked, |until| until.min(asked));
        marks.retain(|mark| mark.time <= end);
        times.add(&mut marks, Window { begin, end, weight }, life);
        let seconds = end.saturating_sub(begin).max(1) as f64 / 1e9;
        self.schedule.set(marks.len() as f64 / seconds, busiest);
        let is_complete = end == asked;
        if self.schedule.are_many {
            self.run(false);
        } else {
            self.since = Some(if is_complete { asked } else { now() });
        }
        if self.since != Some(asked) {
            self.early.clear();
        }
    }

    /// The marks up to `end`, the largest number in one ring, and the time until which there are all if one was full.
    fn marks(&mut self, end: u64) -> (Vec<Mark>, usize, Option<u64>) {
        let mut marks = std::mem::take(&mut self.early);
        let mut by_ring: HashMap<(bool, u32), usize> = HashMap::new();
        for (is_begin, number, rings) in &mut self.rings {
            rings.drain(|sample| {
                // The kernel's filter has chosen; a record of another call would be a fault in reading it.
                if number.number(&sample.raw).is_some_and(|number| CALLS.contains(&number)) {
                    *by_ring.entry((*is_begin, sample.cpu)).or_default() += 1;
                    marks.push(Mark { time: sample.time, pid: sample.pid, tid: sample.tid, is_begin: *is_begin });
                }
            });
        }
        self.early = marks.extract_if(.., |mark| mark.time > end).collect();
        let complete_until = self.rings.iter().filter_map(|(_, _, rings)| rings.complete_until).min();
        (marks, by_ring.into_values().max().unwrap_or(0), complete_until)
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

    fn window(begin: u64, end: u64, weight: f64) -> Window {
        Window { begin: begin * MILLISECOND, end: end * MILLISECOND, weight }
    }

    /// Milliseconds of processes 1 and 2, if all of the time is represented.
    fn milliseconds(times: &CallTimes) -> [f64; 2] {
        [1, 2].map(|pid| (times.of(old(pid, 0), times.represented) * 1e9).round() / 1e6)
    }

    /// Milliseconds of processes 1 and 2 in a window from 100 to 110 ms of this weight.
    fn times(mut marks: Vec<Mark>, weight: f64) -> [f64; 2] {
        let mut times = CallTimes::default();
        // In the order of their rings, not of time.
        marks.reverse();
        times.add(&mut marks, window(100, 110, weight), old);
        milliseconds(&times)
    }

    #[test]
    fn a_window_represents_its_cycle() {
        let marks = || vec![mark(101, 10, true), mark(102, 20, true), mark(103, 10, false), mark(105, 20, false)];
        assert_eq!(times(marks(), 1.0), [2.0, 3.0]);
        assert_eq!(times(marks(), 5.0), [10.0, 15.0]);
    }

    #[test]
    fn calls_that_the_window_cuts_count_within_it() {
        assert_eq!(times(vec![mark(103, 10, false), mark(108, 10, true)], 1.0), [5.0, 0.0]);
        assert_eq!(times(vec![mark(99, 10, true), mark(112, 10, false)], 1.0), [10.0, 0.0]);
    }

    #[test]
    fn threads_of_a_process_add_up_and_lost_records_do_not_count() {
        let two = vec![mark(100, 10, true), mark(100, 11, true), mark(104, 10, false), mark(106, 11, false)];
        assert_eq!(times(two, 1.0), [10.0, 0.0]);
        // The begin of the second call is lost.
        let lost = vec![mark(100, 10, true), mark(101, 10, false), mark(109, 10, false)];
        assert_eq!(times(lost, 1.0), [1.0, 0.0]);
        assert_eq!(times(Vec::new(), 1.0), [0.0, 0.0]);
    }

    /// Windows of 10 ms from 100 ms on, one after the other, with the marks of all.
    fn in_a_row(count: u64, marks: &[Mark]) -> CallTimes {
        let mut times = CallTimes::default();
        for begin in (0..count).map(|number| 100 + 10 * number) {
            let of = window(begin, begin + 10, 1.0);
            let mut inside: Vec<Mark> =
                marks.iter().filter(|mark| (of.begin..of.end).contains(&mark.time)).copied().collect();
            times.add(&mut inside, of, old);
        }
        times
    }

    #[test]
    fn a_call_counts_in_the_windows_that_it_spans() {
        let long = in_a_row(6, &[mark(105, 10, true), mark(145, 10, false)]);
        assert_eq!(milliseconds(&long), [40.0, 0.0]);
        assert_eq!(milliseconds(&in_a_row(6, &[mark(105, 10, true)])), [55.0, 0.0], "not ended");
    }

    #[test]
    fn a_call_that_began_before_all_windows_counts_from_the_first() {
        let marks = [mark(101, 20, true), mark(102, 20, false), mark(145, 10, false), mark(147, 20, false)];
        assert_eq!(milliseconds(&in_a_row(6, &marks)), [45.0, 1.0]);
    }

    #[test]
    fn a_call_is_not_carried_over_a_gap() {
        let mut times = CallTimes::default();
        times.add(&mut [mark(105, 10, true)], window(100, 110, 1.0), old);
        times.add(&mut [mark(155, 10, false)], window(150, 160, 1.0), old);
        times.add(&mut [], window(170, 180, 1.0), old);
        assert_eq!(milliseconds(&times), [10.0, 0.0]);
    }

    #[test]
    fn the_number_of_processes_and_threads_is_bounded() {
        let mut times = CallTimes::default();
        let count = 2 * MOST_THREADS as i32;
        let mut marks: Vec<Mark> = (0..count)
            .flat_map(|pid| [(101, true), (102, false)].map(|(time, begins)| mark(time, 10 * pid, begins)))
            .collect();
        marks.push(mark(103, 10 * count, true));
        times.add(&mut marks, window(100, 110, 1.0), old);
        times.make_room(|life| life.pid < 10);
        assert_eq!((times.threads.len(), times.seen_since), (1, 110 * MILLISECOND));
        assert!((MOST_OTHERS..MOST_OTHERS + 11).contains(&times.seconds.len()), "{}", times.seconds.len());
        assert_eq!(times.seconds.len() as u64 + times.left_out, count as u64 + 1);
        assert!(times.seconds.contains_key(&old(count, 0)), "the longest");
    }

    #[test]
    fn time_that_no_window_represents_is_extrapolated() {
        let mut times = CallTimes::default();
        times.add(&mut [mark(101, 10, true), mark(106, 10, false)], window(100, 110, 1.0), old);
        assert_eq!(times.of(old(1, 0), 1.0), 0.5);
        assert_eq!(CallTimes::default().of(old(1, 0), 1.0), 0.0);
    }
}
