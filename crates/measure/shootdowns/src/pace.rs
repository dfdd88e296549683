//! Number of events for each stack sample, chosen anew in each cycle from the events of the last one.
//!
//! The kernel can choose it, by a frequency, but lowers it again by only an eighth in each tick: after a short burst of
//! any process the stacks of all others are lost for a long time.

/// Stacks in a cycle and CPU for the watched process; each takes about 30 µs to unwind.
pub(crate) const WANTED: u64 = 20;
/// Stacks in a cycle and CPU of all processes, for which a ring has room.
pub(crate) const MOST: u64 = 40;

/// The counts at the last choice of the periods.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Events of each CPU.
    counted: Vec<u64>,
    /// Events of all processes whose record was read, and the watched process's.
    sampled: u64,
    own: u64,
}

impl Pace {
    /// The period of each CPU's stacks for the next cycle, from all events since the start: the events of each CPU and
    /// the records of all processes and of the watched one, if there is one.
    pub fn periods(&mut self, counted: Vec<u64>, sampled: u64, own: Option<u64>) -> Vec<u64> {
        let (all, of_it) = (sampled.saturating_sub(self.sampled), own.map(|own| own.saturating_sub(self.own)));
        let share = of_it.map_or(1.0, |of_it| if all > 0 { (of_it as f64 / all as f64).min(1.0) } else { 0.0 });
        let before = |cpu: usize| self.counted.get(cpu).copied().unwrap_or(0);
        let periods = counted.iter().enumerate().map(|(cpu, &now)| period(now.saturating_sub(before(cpu)), share));
        let periods = periods.collect();
        (self.counted, self.sampled, self.own) = (counted, sampled, own.unwrap_or(0));
        periods
    }
}

/// A power of two, so that small changes of the load change no period: each change interrupts its CPU.
fn period(events: u64, share: f64) -> u64 {
    let wanted = (events as f64 * share) as u64 / WANTED;
    wanted.max(events.div_ceil(MOST)).max(1).next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_calm_cycle_takes_every_stack_and_a_burst_one_in_so_many() {
        let mut pace = Pace::default();
        assert_eq!(pace.periods(vec![10, 0], 10, None), [1, 1]);
        assert_eq!(pace.periods(vec![10 + 2000, 5], 2015, None), [128, 1]);
        assert_eq!(pace.periods(vec![2010 + 7, 5], 2022, None), [1, 1], "the burst is over");
    }

    #[test]
    fn a_process_beside_a_storm_keeps_as_many_stacks_as_the_ring_has_room_for() {
        let mut pace = Pace::default();
        // One in a hundred belongs to the process: the limit for all stacks applies.
        assert_eq!(pace.periods(vec![4000], 4000, Some(40)), [128]);
        // All belong to the process.
        assert_eq!(pace.periods(vec![8000], 8000, Some(4040)), [256]);
        assert_eq!(pace.periods(vec![8030], 8030, Some(4040)), [1]);
    }
}
