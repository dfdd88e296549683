//! Runs workers one after the other, each alone on the machine, repeatedly: for programs that would compete for memory
//! or caches, and whose placement in memory differs from start to start. Pages that one worker frees are those that the
//! next one gets.
//!
//! The bursts of a start are matched one by one with the bursts of the other variants' starts in the same turn, by the
//! same seeds. Drift within a turn is not cancelled in the turn: turns run forwards and backwards in mirrored pairs,
//! and an interval needs several turns.

use crate::MeasureError;
use crate::burst_run::{BurstRun, BurstSeries, Observer, stop_if_interrupted};
use crate::protocol::Burst;
use crate::random::Random;
use crate::sample::Sample;
use crate::schedule::Schedule;
use crate::variant::BurstResult;

impl BurstRun<'_> {
    /// Runs as many turns as there are generations, in each of which every variant is started once, alone, for `rounds`
    /// bursts that count. [`BurstRun::stop`] is not used.
    ///
    /// # Errors
    /// As [`BurstRun::run`].
    pub fn run_alone(mut self, rounds: u32, observer: &mut dyn Observer) -> Result<BurstSeries, MeasureError> {
        self.check()?;
        let mut series = BurstSeries { samples: Vec::new(), steps: Vec::new() };
        let mut random = Random::new(self.seed);
        let mut schedule = Schedule::new(self.variants.len(), random.next());
        let warm_up = self.warm_up_rounds.next_multiple_of(2);
        let all = f64::from(self.generations) * self.variants.len() as f64;
        for generation in 0..self.generations {
            let seed = random.next();
            let mut checksums: Vec<Option<(usize, u64)>> =
                vec![None; (warm_up + rounds) as usize * self.workloads.len()];
            for (position, number) in (0u32..).zip(schedule.next_round()) {
                stop_if_interrupted(observer)?;
                observer.starts_alone(number).map_err(|problem| {
                    let variant = self.variants[number].name.clone();
                    MeasureError::NotReady { variant, problem }
                })?;
                let mut variant = self.start_one(number, generation)?;
                if series.steps.is_empty() {
                    series.steps = self.calibrate(&mut variant)?;
                }
                let mut seeds = Random::new(seed);
                for (at, expected) in checksums.iter_mut().enumerate() {
                    let (round, workload) = ((at / self.workloads.len()) as u32, at % self.workloads.len());
                    let steps = series.steps[workload];
                    let lead_in = steps.saturating_mul(self.lead_in_percent) / 100;
                    let burst =
                        Burst { workload: self.workloads[workload].clone(), steps, lead_in, seed: seeds.next() };
                    let BurstResult { wall_nanoseconds, cpu_nanoseconds, checksum } = variant.run(&burst)?;
                    let (first, expected) = *expected.get_or_insert((number, checksum));
                    if checksum != expected {
                        return Err(MeasureError::ChecksumsDiffer {
                            workload: burst.workload,
                            variant: variant.name.clone(),
                            baseline: self.variants[first].name.clone(),
                            expected,
                            found: checksum,
                        });
                    }
                    series.samples.push(Sample {
                        generation,
                        round,
                        position,
                        variant: number,
                        workload,
                        wall_nanoseconds,
                        cpu_nanoseconds,
                        checksum: Some(checksum),
                        warm_up: round < warm_up,
                    });
                }
                observer.measured_alone(number, variant.process_id());
                observer
                    .progress((f64::from(generation) * self.variants.len() as f64 + f64::from(position) + 1.0) / all);
            }
        }
        Ok(series)
    }
}
