//! Runs long-living workers side by side and lets them take turns in short bursts.

use crate::MeasureError;
use crate::pinning::born_on;
use crate::protocol::Burst;
use crate::random::Random;
use crate::sample::Sample;
use crate::schedule::Schedule;
pub use crate::variant::Running;
use crate::variant::{BurstResult, Variant};
use std::process::Command;
use std::time::{Duration, Instant};

/// A variant: its name and how to start it.
pub struct VariantSpec<'a> {
    /// Name for messages and the report.
    pub name: String,
    /// Gives the command for a generation (numbered from 0). Its input and output are taken by the protocol.
    pub command: Box<dyn FnMut(u32) -> Command + 'a>,
}

impl<'a> VariantSpec<'a> {
    /// A variant; `command` makes its command for each generation.
    pub fn new(name: impl Into<String>, command: impl FnMut(u32) -> Command + 'a) -> Self {
        Self { name: name.into(), command: Box::new(command) }
    }
}

/// When to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// After this time, starting and warming up included.
    Time(Duration),
    /// After this number of counted rounds, over all generations.
    Rounds(u32),
}

/// Options of a run. Variant 0 sets the length of bursts.
pub struct BurstRun<'a> {
    /// The variants.
    pub variants: Vec<VariantSpec<'a>>,
    /// Workloads that every variant must know. A round runs each workload.
    pub workloads: Vec<String>,
    /// Seed of the schedule and of the work.
    pub seed: u64,
    /// Wanted length of a burst.
    pub burst: Duration,
    /// Steps run before the clock of a burst starts, in percent of the steps timed.
    pub lead_in_percent: u64,
    /// Rounds of each generation that are run and dropped; rounded up to whole blocks of two.
    pub warm_up_rounds: u32,
    /// Number of times that all variants are started afresh; four or more give an interval over processes.
    pub generations: u32,
    /// When to stop.
    pub stop: Stop,
    /// The CPU on which the variants and all they start are born; `None` leaves them free.
    pub cpu: Option<usize>,
    /// Time limit for a variant's greeting and for each answer.
    pub time_limit: Duration,
}

/// Observes a run. Called between bursts, never during one.
pub trait Observer {
    /// All variants of a generation have started and warmed up, in the order of the list.
    fn warmed_up(&mut self, generation: u32, variants: &[Running]) {
        let _ = (generation, variants);
    }
    /// A variant that runs alone is about to start: the last one has ended. The reason why it cannot ends the run with
    /// [`MeasureError::NotReady`].
    ///
    /// # Errors
    /// Its needs are not met.
    fn starts_alone(&mut self, variant: usize) -> Result<(), String> {
        let _ = variant;
        Ok(())
    }
    /// A variant that runs alone has been measured, and still lives.
    fn measured_alone(&mut self, variant: usize, process_id: u32) {
        let _ = (variant, process_id);
    }
    /// The share of the run that is done, 0 to 1.
    fn progress(&mut self, done: f64) {
        let _ = done;
    }
    /// True ends the run before its next round with [`MeasureError::Interrupted`].
    fn is_interrupted(&self) -> bool {
        false
    }
}

/// An observer that does nothing.
pub struct Unobserved;
impl Observer for Unobserved {}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BurstSeries {
    /// Every sample, warm-ups too, in the order taken.
    pub samples: Vec<Sample>,
    /// Timed steps of a burst, for each workload.
    pub steps: Vec<u64>,
}

impl BurstRun<'_> {
    /// Starts the variants and measures.
    ///
    /// # Errors
    /// [`MeasureError`]: a variant that cannot start, dies, is silent or computes something else than the first.
    pub fn run(mut self, observer: &mut dyn Observer) -> Result<BurstSeries, MeasureError> {
        self.check()?;
        let mut state = State::new(self.seed);
        for generation in 0..self.generations {
            self.run_generation(generation, &mut state, observer)?;
        }
        observer.progress(1.0);
        Ok(state.series)
    }

    pub(crate) fn check(&self) -> Result<(), MeasureError> {
        if self.variants.is_empty() || self.workloads.is_empty() || self.generations == 0 {
            return Err(MeasureError::Nothing("a run needs a variant, a workload and a generation at least".into()));
        }
        Ok(())
    }

    fn run_generation(
        &mut self,
        generation: u32,
        state: &mut State,
        observer: &mut dyn Observer,
    ) -> Result<(), MeasureError> {
        let mut variants = self.start_all(generation, &mut state.random)?;
        if state.series.steps.is_empty() {
            state.series.steps = self.calibrate(&mut variants[0])?;
        }
        let mut schedule = Schedule::new(variants.len(), state.random.next());
        let warm_up = self.warm_up_rounds.next_multiple_of(2);
        for round in 0..warm_up {
            stop_if_interrupted(observer)?;
            self.run_round(&mut variants, &schedule.next_round(), generation, round, true, state)?;
        }
        observer.warmed_up(generation, &variants.iter().map(Variant::running).collect::<Vec<_>>());
        let goal = self.goal_of(generation, state);
        let mut round = warm_up;
        loop {
            for _ in 0..2 {
                stop_if_interrupted(observer)?;
                self.run_round(&mut variants, &schedule.next_round(), generation, round, false, state)?;
                round += 1;
                state.rounds += 1;
            }
            observer.progress(self.share_done(state));
            let over = match goal {
                Goal::Until(deadline) => Instant::now() >= deadline,
                Goal::Rounds(rounds) => round - warm_up >= rounds,
            };
            if over {
                return Ok(());
            }
        }
    }

    /// Every generation gets the same share of the remaining time.
    fn goal_of(&self, generation: u32, state: &State) -> Goal {
        match self.stop {
            Stop::Rounds(rounds) => Goal::Rounds(rounds.div_ceil(self.generations).next_multiple_of(2)),
            Stop::Time(budget) => {
                let share = f64::from(generation + 1) / f64::from(self.generations);
                Goal::Until(state.started + budget.mul_f64(share))
            }
        }
    }

    fn share_done(&self, state: &State) -> f64 {
        let share = match self.stop {
            Stop::Rounds(rounds) => f64::from(state.rounds) / f64::from(rounds.max(1)),
            Stop::Time(budget) => state.started.elapsed().as_secs_f64() / budget.as_secs_f64().max(1e-9),
        };
        share.min(1.0)
    }

    /// Starts all, in a random order, since who starts first may get the better memory; gives them in list order.
    fn start_all(&mut self, generation: u32, random: &mut Random) -> Result<Vec<Variant>, MeasureError> {
        let mut order: Vec<usize> = (0..self.variants.len()).collect();
        random.shuffle(&mut order);
        self.start_in(&order, generation)
    }

    /// Starts all in this order; gives them in list order.
    pub(crate) fn start_in(&mut self, order: &[usize], generation: u32) -> Result<Vec<Variant>, MeasureError> {
        let mut started: Vec<(usize, Variant)> = Vec::new();
        for &index in order {
            started.push((index, self.start_one(index, generation)?));
        }
        started.sort_by_key(|(index, _)| *index);
        Ok(started.into_iter().map(|(_, variant)| variant).collect())
    }

    pub(crate) fn start_one(&mut self, index: usize, generation: u32) -> Result<Variant, MeasureError> {
        let spec = &mut self.variants[index];
        let command = (spec.command)(generation);
        let (variant, known) = born_on(self.cpu, || Variant::start(&spec.name, command, self.time_limit))?;
        if let Some(missing) = self.workloads.iter().find(|w| !known.contains(w)) {
            let problem = format!("it has no workload `{missing}`, it has {}", known.join(", "));
            return Err(MeasureError::Protocol { variant: spec.name.clone(), problem });
        }
        Ok(variant)
    }

    /// Finds for each workload the number of steps that takes about as long as a burst shall.
    pub(crate) fn calibrate(&self, variant: &mut Variant) -> Result<Vec<u64>, MeasureError> {
        let wanted = self.burst.as_nanos() as f64;
        let mut all_steps = Vec::new();
        for workload in &self.workloads {
            let mut steps = 1u64;
            loop {
                let burst = Burst { workload: workload.clone(), steps, lead_in: 0, seed: self.seed };
                // The first one finds caches cold and pages unmapped, and would make the bursts too short.
                variant.run(&burst)?;
                let BurstResult { wall_nanoseconds: wall, cpu_nanoseconds: cpu, .. } = variant.run(&burst)?;
                let taken = cpu.unwrap_or(wall).max(1) as f64;
                if taken >= wanted / 2.0 || steps >= 1 << 48 {
                    all_steps.push(((steps as f64 * wanted / taken) as u64).max(1));
                    break;
                }
                steps = (steps as f64 * (wanted / taken).clamp(1.5, 8.0)).ceil() as u64;
            }
        }
        Ok(all_steps)
    }

    pub(crate) fn run_round(
        &self,
        variants: &mut [Variant],
        order: &[usize],
        generation: u32,
        round: u32,
        warm_up: bool,
        state: &mut State,
    ) -> Result<(), MeasureError> {
        for (workload, name) in self.workloads.iter().enumerate() {
            let steps = state.series.steps[workload];
            let lead_in = steps.saturating_mul(self.lead_in_percent) / 100;
            let burst = Burst { workload: name.clone(), steps, lead_in, seed: state.random.next() };
            let mut expected: Option<(usize, u64)> = None;
            for (position, &variant) in (0u32..).zip(order) {
                let BurstResult { wall_nanoseconds, cpu_nanoseconds, checksum } = variants[variant].run(&burst)?;
                let (first, expected) = *expected.get_or_insert((variant, checksum));
                if checksum != expected {
                    return Err(MeasureError::ChecksumsDiffer {
                        workload: name.clone(),
                        variant: variants[variant].name.clone(),
                        baseline: variants[first].name.clone(),
                        expected,
                        found: checksum,
                    });
                }
                state.series.samples.push(Sample {
                    generation,
                    round,
                    position,
                    variant,
                    workload,
                    wall_nanoseconds,
                    cpu_nanoseconds,
                    checksum: Some(checksum),
                    warm_up,
                });
            }
        }
        Ok(())
    }
}

/// The error that ends a run on request.
pub(crate) fn stop_if_interrupted(observer: &dyn Observer) -> Result<(), MeasureError> {
    if observer.is_interrupted() { Err(MeasureError::Interrupted) } else { Ok(()) }
}

/// The progress of a run.
pub(crate) struct State {
    pub(crate) series: BurstSeries,
    /// Gives each burst its work.
    pub(crate) random: Random,
    started: Instant,
    rounds: u32,
}

impl State {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            series: BurstSeries { samples: Vec::new(), steps: Vec::new() },
            random: Random::new(seed),
            started: Instant::now(),
            rounds: 0,
        }
    }
}

enum Goal {
    Until(Instant),
    Rounds(u32),
}
