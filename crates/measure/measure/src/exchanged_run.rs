//! Runs workers side by side, and has them exchange their places in memory.
//!
//! The positions of a program's pages can change its speed by a fifth for its whole life, and no number of bursts
//! averages that out. If all programs take their pages from one pool, the first to start gets the pages that were freed
//! last. So each generation has two halves: in the second all start again in the opposite order, and each gets another
//! program's pages. A block is a round of the first half and its mirror, with the same work, of the second: the effect
//! of the pages cancels in its mean, for two variants exactly.

use crate::MeasureError;
use crate::burst_run::{BurstRun, BurstSeries, Observer, State, stop_if_interrupted};
use crate::random::Random;
use crate::schedule::Schedule;
use crate::variant::Variant;

const HALVES: u32 = 2;

/// The common facts of a generation's two halves.
struct Generation {
    number: u32,
    /// The order in which the first half starts its variants.
    order: Vec<usize>,
    /// Seeds of the orders of its rounds, and of their work.
    seeds: [u64; 2],
}

impl BurstRun<'_> {
    /// Measures `rounds` rounds in each half of each generation. [`BurstRun::stop`] is not used.
    ///
    /// # Errors
    /// As [`BurstRun::run`].
    pub fn run_exchanged(mut self, rounds: u32, observer: &mut dyn Observer) -> Result<BurstSeries, MeasureError> {
        self.check()?;
        let mut lots = Random::new(self.seed);
        let mut state = State::new(self.seed);
        for number in 0..self.generations {
            let mut order: Vec<usize> = (0..self.variants.len()).collect();
            lots.shuffle(&mut order);
            let generation = Generation { number, order, seeds: [lots.next(), lots.next()] };
            for half in 0..HALVES {
                self.run_half(&generation, half, rounds, &mut state, observer)?;
                let done = f64::from(HALVES * number + half + 1);
                observer.progress(done / f64::from(HALVES * self.generations));
            }
        }
        Ok(state.series)
    }

    fn run_half(
        &mut self,
        generation: &Generation,
        half: u32,
        rounds: u32,
        state: &mut State,
        observer: &mut dyn Observer,
    ) -> Result<(), MeasureError> {
        let mut order = generation.order.clone();
        if half == 1 {
            order.reverse();
        }
        let mut variants = self.start_in(&order, generation.number)?;
        if state.series.steps.is_empty() {
            state.series.steps = self.calibrate(&mut variants[0])?;
        }
        let warm_up = self.warm_up_rounds;
        // Two rounds of a schedule are one and its mirror: each half runs one round.
        let mut schedule = Schedule::new(variants.len(), generation.seeds[0]);
        state.random = Random::new(generation.seeds[1]);
        for round in 0..warm_up + rounds {
            stop_if_interrupted(observer)?;
            if round == warm_up {
                observer.warmed_up(generation.number, &variants.iter().map(Variant::running).collect::<Vec<_>>());
            }
            let orders = [schedule.next_round(), schedule.next_round()];
            let order = &orders[half as usize];
            let number = HALVES * round + half;
            self.run_round(&mut variants, order, generation.number, number, round < warm_up, state)?;
        }
        end_in_turn(variants, order.iter().rev());
        Ok(())
    }
}

/// The first to start ends last: the next to start first then gets its pages.
fn end_in_turn<'a>(variants: Vec<Variant>, order: impl Iterator<Item = &'a usize>) {
    let mut variants: Vec<Option<Variant>> = variants.into_iter().map(Some).collect();
    for &number in order {
        variants[number] = None;
    }
}
