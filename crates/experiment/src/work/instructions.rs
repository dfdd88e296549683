//! Instructions of a process, and the cycles that they took, counted by the CPU's PMU.

use super::{Counter, WorkError};
use crate::tree::targets;
use walk_counters::Counting;

/// What counts; a PMU, or a test.
pub(super) trait Events {
    /// Instructions and cycles until now.
    fn read(&mut self) -> Result<(f64, f64), String>;
}

/// For each process one for each kind of core.
impl Events for Vec<Counting> {
    fn read(&mut self) -> Result<(f64, f64), String> {
        let mut sums = (0.0, 0.0);
        for counting in self {
            let counts = counting.read();
            for (event, sum) in [(&counts.instructions, &mut sums.0), (&counts.cycles, &mut sums.1)] {
                let counted = event.counted.and_then(|counted| counted.scaled());
                // Of a kind of core on which it never ran there is nothing.
                let nothing = event.not_counted.clone().map_or(Ok(0.0), Err);
                *sum += counted.map_or(nothing, Ok)?;
            }
        }
        Ok(sums)
    }
}

/// Instructions as work.
pub(super) struct Instructions<E> {
    events: E,
    cycles: f64,
}

impl Instructions<Vec<Counting>> {
    /// Counts what a process and those that descended from it do from now on, in user mode where only that is permitted.
    pub(super) fn of(processes: &[i32]) -> Result<Self, WorkError> {
        let mut events = Vec::new();
        for (number, target) in targets(processes).enumerate() {
            match Counting::start(target) {
                Ok(counting) => events.extend(counting),
                // A descendant may have ended since it was listed.
                Err(_) if number > 0 => {}
                Err(why) => return Err(WorkError::no_number("instructions", why)),
            }
        }
        Ok(Self { events, cycles: 0.0 })
    }
}

impl<E: Events> Counter for Instructions<E> {
    fn read(&mut self) -> Result<f64, WorkError> {
        let (instructions, cycles) = self.events.read().map_err(|why| WorkError::no_number("instructions", why))?;
        self.cycles = cycles;
        Ok(instructions)
    }

    fn cycles(&self) -> f64 {
        self.cycles
    }

    fn unit(&self) -> String {
        "instructions".to_owned()
    }

    fn counts_switches(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fake(Vec<Result<(f64, f64), String>>);

    impl Events for Fake {
        fn read(&mut self) -> Result<(f64, f64), String> {
            self.0.remove(0)
        }
    }

    #[test]
    fn each_reading_has_the_cycles_of_its_own_moment() {
        let events = Fake(vec![Ok((100.0, 50.0)), Ok((400.0, 250.0)), Err("no counter was free".to_owned())]);
        let mut counter = Instructions { events, cycles: 0.0 };
        assert_eq!((counter.read().unwrap(), counter.cycles()), (100.0, 50.0));
        assert_eq!((counter.read().unwrap(), counter.cycles()), (400.0, 250.0));
        assert_eq!(counter.read().unwrap_err().to_string(), "instructions: no counter was free");
    }

    /// With a PMU this process is counted, without one the reason is said with its fix.
    #[test]
    fn a_process_is_counted_or_the_reason_is_said() {
        match Instructions::of(&[std::process::id() as i32]) {
            Ok(mut counter) => assert!(counter.read().unwrap() >= 0.0),
            Err(error) => assert!(error.to_string().contains("fix: "), "{error}"),
        }
    }
}
