//! Instructions of a process, and the cycles that they took, counted by the CPU's PMU.

use super::{Counter, WorkError};
use crate::tree::targets;
use translation::walk_counters::{Counting, Counts, Measured};

/// The source of counts: a PMU, or a test.
pub(super) trait Events {
    /// The counts until now, of each process one for each kind of core, always in the same order.
    fn read(&mut self) -> Vec<Counts>;
}

impl Events for Vec<Counting> {
    fn read(&mut self) -> Vec<Counts> {
        self.iter_mut().map(Counting::read).collect()
    }
}

/// Instructions as work. The growth since the last reading is added, scaled by the counter's own time: the sum never
/// decreases, and the time on cores of another kind is not extrapolated.
pub(super) struct Instructions<E> {
    events: E,
    /// The last readings that were added.
    last: Vec<Counts>,
    instructions: f64,
    cycles: f64,
}

impl<E: Events> Instructions<E> {
    fn counted_by(events: E) -> Self {
        Self { events, last: Vec::new(), instructions: 0.0, cycles: 0.0 }
    }

    fn add(&mut self) -> Result<(), String> {
        for (number, counts) in self.events.read().into_iter().enumerate() {
            if number == self.last.len() {
                self.last.push(counts.since(&counts));
            }
            if let Some((instructions, cycles)) = both(&counts.since(&self.last[number]))? {
                self.instructions += instructions;
                self.cycles += cycles;
                self.last[number] = counts;
            }
        }
        Ok(())
    }
}

/// Instructions and cycles; `None` if nothing was counted yet: it did not run on cores of this kind, or no counter was
/// free. The next reading is scaled for that time.
fn both(new: &Counts) -> Result<Option<(f64, f64)>, String> {
    for event in [&new.instructions, &new.cycles] {
        match event.counted {
            Some(counted) if counted.running == 0 => return Ok(None),
            Some(_) => {}
            None => return Err(event.not_counted.clone().unwrap_or_default()),
        }
    }
    match (new.all_instructions(), new.all_cycles()) {
        (Measured::Value(instructions), Measured::Value(cycles)) => Ok(Some((instructions, cycles))),
        (Measured::NotCounted(why), _) | (_, Measured::NotCounted(why)) => Err(why),
    }
}

impl Instructions<Vec<Counting>> {
    /// Counts the instructions of a process and its descendants from now on, in user mode if only that is permitted.
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
        Ok(Self::counted_by(events))
    }
}

impl<E: Events> Counter for Instructions<E> {
    fn read(&mut self) -> Result<f64, WorkError> {
        self.add().map_err(|why| WorkError::no_number("instructions", why))?;
        Ok(self.instructions)
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
    use translation::walk_counters::{Counted, EventCount, Side, What};

    const SECOND: u64 = 1_000_000_000;

    struct Fake(Vec<Vec<Counts>>);

    impl Events for Fake {
        fn read(&mut self) -> Vec<Counts> {
            self.0.remove(0)
        }
    }

    /// Half as many cycles as instructions; without a number these cannot be read.
    fn counts(on_some_cores: bool, instructions: Option<Counted>) -> Counts {
        let event = |counted: Option<Counted>| EventCount {
            side: Side::Both,
            counts: What::Cycles,
            name: "event".to_owned(),
            counted,
            not_counted: counted.is_none().then(|| "it cannot be read".to_owned()),
        };
        Counts {
            family: "test".to_owned(),
            source: String::new(),
            walkers: None,
            with_kernel: true,
            with_children: false,
            on_some_cores,
            cycles: event(instructions.map(|counted| Counted { raw: counted.raw / 2, ..counted })),
            instructions: event(instructions),
            events: Vec::new(),
        }
    }

    fn counted(raw: u64, enabled: u64, running: u64) -> Option<Counted> {
        Some(Counted { raw, enabled, running })
    }

    #[test]
    fn each_reading_has_the_cycles_of_its_own_moment() {
        let of = |raw, time| vec![counts(false, counted(raw, time, time))];
        let events = Fake(vec![of(100, 1), of(100, 1), of(400, 2), vec![counts(false, None)]]);
        let mut counter = Instructions::counted_by(events);
        assert_eq!((counter.read().unwrap(), counter.cycles()), (100.0, 50.0));
        assert_eq!((counter.read().unwrap(), counter.cycles()), (100.0, 50.0), "it slept");
        assert_eq!((counter.read().unwrap(), counter.cycles()), (400.0, 200.0));
        assert_eq!(counter.read().unwrap_err().to_string(), "instructions: it cannot be read");
    }

    /// A thread that moves from a performance core to an efficient one after a second.
    #[test]
    fn time_on_the_other_kind_of_cores_is_not_extrapolated() {
        let cores = |fast, slow| vec![counts(true, fast), counts(true, slow)];
        let events = Fake(vec![
            cores(counted(1_000_000_000, SECOND, SECOND), counted(0, SECOND, 0)),
            cores(counted(1_000_000_000, 2 * SECOND, SECOND), counted(400_000_000, 2 * SECOND, SECOND)),
        ]);
        let mut counter = Instructions::counted_by(events);
        let (before, cycles) = (counter.read().unwrap(), counter.cycles());
        assert_eq!((before, cycles), (1e9, 5e8));
        assert_eq!((counter.read().unwrap() - before, counter.cycles() - cycles), (4e8, 2e8));
    }

    #[test]
    fn a_time_without_a_counter_is_made_up_for_by_the_next_reading() {
        let of = |raw, enabled, running| vec![counts(false, counted(raw, enabled, running))];
        let events = Fake(vec![of(100, 10, 10), of(100, 20, 10), of(150, 30, 15)]);
        let mut counter = Instructions::counted_by(events);
        let read: Vec<f64> = (0..3).map(|_| counter.read().unwrap()).collect();
        assert_eq!(read, [100.0, 100.0, 300.0], "50 in a quarter of the time");
    }

    /// The process is counted if there is a PMU; otherwise the reason is reported with its fix.
    #[test]
    fn a_process_is_counted_or_the_reason_is_said() {
        match Instructions::of(&[std::process::id() as i32]) {
            Ok(mut counter) => assert!(counter.read().unwrap() >= 0.0),
            Err(error) => assert!(error.to_string().contains("fix: "), "{error}"),
        }
    }
}
