//! When calls are recorded: always, or a tenth of the time if there are many.
//!
//! A window counts a call that it cuts, but not one that spans it. If there are many calls, windows are therefore as long as
//! the rings have room, with the same share of the time.

use std::time::Duration;

/// Records of calls each second from which on only some of the time is recorded.
const MANY: f64 = 40_000.0;
/// The shortest window if there are many calls.
const SHORTEST: Duration = Duration::from_millis(5);
/// Cycles of the longest window.
const MOST_CYCLES: u32 = 8;
/// The share of the time that is recorded.
const WEIGHT: f64 = 10.0;
/// Records in a ring from which on windows are not made longer; a ring has room for four times as many.
const FULL: usize = 300;

/// The part of a cycle in which calls are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    All,
    /// The first part.
    Begin(Duration),
    None,
}

/// The times at which calls are recorded.
#[derive(Debug)]
pub(crate) struct Schedule {
    /// Only some of the time is recorded.
    pub are_many: bool,
    /// Cycles for each window.
    cycles: u32,
    /// Cycles until the next window.
    wait: u32,
}

impl Default for Schedule {
    fn default() -> Self {
        Self { are_many: false, cycles: 1, wait: 0 }
    }
}

impl Schedule {
    /// The part of the next cycle. A window of n times the shortest length is recorded in each n-th cycle.
    pub fn next(&mut self) -> Part {
        if !self.are_many {
            return Part::All;
        }
        if self.wait > 0 {
            self.wait -= 1;
            return Part::None;
        }
        self.wait = self.cycles - 1;
        Part::Begin(SHORTEST * self.cycles)
    }

    /// How often the present window counts.
    pub fn weight(&self) -> f64 {
        if self.are_many { WEIGHT } else { 1.0 }
    }

    /// Chooses the next windows by the last one: records each second on all CPUs, and the most records in a ring.
    pub fn set(&mut self, rate: f64, busiest: usize) {
        let were_many = self.are_many;
        self.are_many = rate > MANY;
        self.cycles = match busiest {
            _ if !self.are_many || !were_many => 1,
            ..FULL => (2 * self.cycles).min(MOST_CYCLES),
            _ if busiest > 3 * FULL => (self.cycles / 2).max(1),
            _ => self.cycles,
        };
        if !self.are_many || !were_many {
            self.wait = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_calls_are_recorded_all_the_time() {
        let mut schedule = Schedule::default();
        assert_eq!((schedule.next(), schedule.weight()), (Part::All, 1.0));
        schedule.set(MANY, 10_000);
        assert_eq!((schedule.next(), schedule.weight()), (Part::All, 1.0));
    }

    #[test]
    fn many_calls_are_recorded_in_windows_as_long_as_there_is_room() {
        let mut schedule = Schedule::default();
        schedule.set(2.0 * MANY, 10);
        let mut windows = Vec::new();
        for _ in 0..16 {
            match schedule.next() {
                Part::None => continue,
                Part::Begin(length) => windows.push(length.as_millis()),
                Part::All => unreachable!("there are many calls"),
            }
            schedule.set(2.0 * MANY, if schedule.cycles >= 4 { FULL } else { 10 });
        }
        assert_eq!(windows, [5, 10, 20, 20, 20, 20]);
        schedule.set(2.0 * MANY, usize::MAX);
        assert_eq!((schedule.cycles, schedule.weight()), (2, WEIGHT));
        schedule.set(1.0, 1);
        assert_eq!(schedule.next(), Part::All);
    }
}
