//! Which process or program had a number at a time: the kernel reuses the numbers of processes and threads, and execve(2)
//! replaces a process's program.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Samples that precede a begin are read at most this much later.
const KEPT: Duration = Duration::from_secs(5);
/// Maximum number of kept begins.
const MOST_BEGINS: usize = 16_384;

/// One program in one process. An execve(2) and a reuse of the PID begin another life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Life {
    /// The PID.
    pub pid: i32,
    /// Nanoseconds of CLOCK_MONOTONIC at its begin; 0 if it began before the watch.
    pub since: u64,
}

/// A number that from now on belongs to a new process, program or thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Begin {
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub time: u64,
    pub pid: i32,
    /// Equal to the PID for a process or a program.
    pub tid: i32,
    pub origin: Origin,
}

/// How a life begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// clone(2) by a thread of this process.
    Clone { parent: i32 },
    /// execve(2) of a program, whose name is as in `comm`.
    Exec { name: String },
}

/// The latest begins.
#[derive(Debug, Default)]
pub(crate) struct Begins {
    /// By number, in the order of time.
    of: HashMap<i32, Vec<Begin>>,
    arrived: VecDeque<Arrival>,
}

/// When a begin was read, and which one.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    read: u64,
    time: u64,
    number: i32,
}

/// The facts about the last known owner of a number: its begin, and its end if another one has begun since.
pub(crate) type Known = (u64, Option<u64>);

impl Begins {
    /// Adds a begin that was read now. Returns the begins that are forgotten by that: their numbers' earlier owners have
    /// ended.
    pub fn add(&mut self, begin: Begin, now: u64) -> Vec<Begin> {
        let oldest = now.saturating_sub(KEPT.as_nanos() as u64);
        self.arrived.push_back(Arrival { read: now, time: begin.time, number: begin.tid });
        let of = self.of.entry(begin.tid).or_default();
        of.insert(of.partition_point(|earlier| earlier.time <= begin.time), begin);
        let mut forgotten = Vec::new();
        while let Some(&Arrival { read, time, number }) = self.arrived.front()
            && (read < oldest || self.arrived.len() > MOST_BEGINS)
        {
            self.arrived.pop_front();
            forgotten.extend(self.forget(number, time));
        }
        forgotten
    }

    fn forget(&mut self, number: i32, time: u64) -> Option<Begin> {
        let of = self.of.get_mut(&number)?;
        let at = of.iter().position(|begin| begin.time == time)?;
        let begin = of.remove(at);
        if of.is_empty() {
            self.of.remove(&number);
        }
        Some(begin)
    }

    /// The begin of a number's owner at this time, if it is still kept.
    pub fn at(&self, number: i32, time: u64) -> Option<&Begin> {
        self.of.get(&number)?.iter().rev().find(|begin| begin.time <= time)
    }

    /// Begin of a number's owner at this time; `known` is the last owner that began before.
    pub fn since(&self, number: i32, time: u64, known: Option<Known>) -> u64 {
        let known = known.map(|(since, end)| end.filter(|&end| end <= time).unwrap_or(since));
        self.at(number, time).map(|begin| begin.time).max(known).unwrap_or(0)
    }

    /// True if nobody else has the number since.
    pub fn is_last(&self, number: i32, since: u64) -> bool {
        self.at(number, u64::MAX).is_none_or(|begin| begin.time <= since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn begin(time: u64, tid: i32) -> Begin {
        Begin { time, pid: tid, tid, origin: Origin::Clone { parent: 1 } }
    }

    #[test]
    fn a_number_belongs_to_the_last_begin_before() {
        let mut begins = Begins::default();
        // In the order of their rings, not of time.
        for time in [30, 10, 20] {
            assert_eq!(begins.add(begin(time, 7), 30), []);
        }
        assert_eq!([5, 10, 15, 29, 99].map(|time| begins.since(7, time, None)), [0, 10, 10, 20, 30]);
        assert_eq!(begins.since(8, 99, Some((4, None))), 4, "another number");
        assert!(begins.is_last(7, 30) && !begins.is_last(7, 20) && begins.is_last(8, 0));
    }

    #[test]
    fn a_begin_that_is_forgotten_ends_the_known_owner() {
        let mut begins = Begins::default();
        begins.add(begin(10, 7), 10);
        assert_eq!(begins.add(begin(20 * SECOND, 8), 20 * SECOND), [begin(10, 7)]);
        assert_eq!((begins.since(7, 99, None), begins.since(7, 99, Some((3, Some(10))))), (0, 10));
        assert_eq!(begins.since(7, 9, Some((3, Some(10)))), 3);
    }

    #[test]
    fn a_begin_that_is_read_late_is_kept_for_its_samples() {
        let mut begins = Begins::default();
        for time in [10, 30 * SECOND] {
            assert_eq!(begins.add(begin(time, 7), 30 * SECOND), []);
        }
        assert_eq!(begins.since(7, 20 * SECOND, None), 10);
    }

    #[test]
    fn the_number_of_begins_is_bounded() {
        let mut begins = Begins::default();
        let forgotten: usize = (0..3 * MOST_BEGINS as i32).map(|number| begins.add(begin(5, number), 5).len()).sum();
        assert_eq!((forgotten, begins.of.len(), begins.arrived.len()), (2 * MOST_BEGINS, MOST_BEGINS, MOST_BEGINS));
    }
}
