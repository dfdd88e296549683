//! The times at which memory that fills is examined again. A glance reads a few numbers; a look reads all mappings.

use address_space::PageSize;
use core::time::Duration;

/// Shortest time between two looks.
const SHORTEST: Duration = Duration::from_secs(5);
/// Longest time between two looks: a block that could not be lifted is tried again after it.
const LONGEST: Duration = Duration::from_secs(300);
/// A look is followed by a rest of at least this number of times its own duration, so that looks take 2 % of a CPU at
/// most.
const REST: u32 = 50;

/// Returns the shortest rest after work that took this long.
pub const fn rest_after(took: Duration) -> Duration {
    took.saturating_mul(REST)
}

/// Bytes that may be on small pages, found by a glance. Only the growth of each number counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Glance {
    /// Bytes of the whole machine.
    pub machine: u64,
    /// Bytes of the processes that are watched.
    pub processes: u64,
}

impl Glance {
    /// True if one of the numbers has grown by `bytes` since an earlier glance.
    fn has_grown(self, earlier: Self, bytes: u64) -> bool {
        let pairs = [(self.machine, earlier.machine), (self.processes, earlier.processes)];
        pairs.into_iter().any(|(now, before)| now >= before.saturating_add(bytes))
    }
}

/// The times of the looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rhythm {
    rest: Duration,
    /// The glance after the last look.
    left: Glance,
}

impl Rhythm {
    /// The rhythm before the first look; `left` is the glance at the beginning.
    pub const fn at_start(left: Glance) -> Self {
        Self { rest: SHORTEST, left }
    }

    /// The rhythm after a first look, which took this long and put `lifted` bytes on huge pages. `left` is the glance after it.
    pub fn new(took: Duration, lifted: u64, left: Glance) -> Self {
        let mut rhythm = Self::at_start(left);
        rhythm.looked(took, lifted, left);
        rhythm
    }

    /// True if a look is due: if memory on small pages has grown by a block since the last look, or after five minutes. `since`
    /// is the time since that look.
    pub fn is_due(&self, since: Duration, on_small_pages: Glance, huge: PageSize) -> bool {
        let grew = on_small_pages.has_grown(self.left, huge.bytes());
        since >= LONGEST.max(self.rest) || (grew && since >= self.rest)
    }

    /// Records a look. The rest after one that lifted nothing is twice as long as the one before it.
    pub fn looked(&mut self, took: Duration, lifted: u64, left: Glance) {
        let rest = if lifted > 0 { SHORTEST } else { (self.rest * 2).min(LONGEST) };
        self.rest = rest.max(rest_after(took));
        self.left = left;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn seconds(number: u64) -> Duration {
        Duration::from_secs(number)
    }

    fn machine(bytes: u64) -> Glance {
        Glance { machine: bytes, processes: 0 }
    }

    fn huge() -> PageSize {
        PageSize::new(2 * MIB).unwrap()
    }

    #[test]
    fn memory_that_grows_is_looked_at_soon() {
        let rhythm = Rhythm::new(seconds(0), 10 * MIB, machine(100 * MIB));
        let due = |since, small| rhythm.is_due(seconds(since), machine(small * MIB), huge());
        assert!(due(5, 102) && !due(4, 102), "after the shortest rest");
        assert!(!due(299, 101), "less than a block more");
        assert!(due(300, 0), "blocks that were refused are tried again");
    }

    #[test]
    fn looks_that_lift_nothing_become_rare() {
        let mut rhythm = Rhythm::new(seconds(0), MIB, machine(0));
        let mut rests = Vec::new();
        for _ in 0..8 {
            rhythm.looked(seconds(0), 0, machine(0));
            rests.extend((0..=400).find(|&since| rhythm.is_due(seconds(since), machine(100 * MIB), huge())));
        }
        assert_eq!(rests, [10, 20, 40, 80, 160, 300, 300, 300]);
        rhythm.looked(seconds(0), MIB, machine(0));
        assert!(rhythm.is_due(seconds(5), machine(100 * MIB), huge()), "one that lifts makes them frequent again");
    }

    #[test]
    fn a_look_that_takes_long_is_followed_by_a_long_rest() {
        let rhythm = Rhythm::new(seconds(20), MIB, machine(0));
        assert!(
            !rhythm.is_due(seconds(999), machine(u64::MAX), huge()) && rhythm.is_due(seconds(1000), machine(0), huge())
        );
        // Nothing overflows.
        assert!(!Rhythm::new(Duration::MAX, 0, machine(u64::MAX)).is_due(LONGEST, machine(u64::MAX), huge()));
    }

    #[test]
    fn growth_of_the_processes_is_seen_if_the_machine_frees_as_much() {
        let rhythm = Rhythm::at_start(Glance { machine: 100 * MIB, processes: 0 });
        let due = |since, processes| {
            rhythm.is_due(seconds(since), Glance { machine: 98 * MIB, processes: processes * MIB }, huge())
        };
        assert!(due(5, 2) && !due(5, 1) && !due(4, 2), "after the shortest rest, before any look");
    }
}
