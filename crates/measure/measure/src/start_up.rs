//! Measures work that cannot be repeated in a living process, mainly whole-process runs, in interleaved rounds.

use crate::MeasureError;
use crate::burst_run::{Observer, Stop, stop_if_interrupted};
use crate::pinning::born_on;
use crate::sample::Sample;
use crate::schedule::Schedule;
use nix::sched::sched_yield;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Number of times that the CPU is yielded after each timed variant.
const GIVEN_WAY: usize = 16;

/// A variant that is measured by running it anew. It may measure itself (a lift's time from its report).
pub struct TimedVariant<'a> {
    /// Name for messages and the report.
    pub name: String,
    /// Runs it once and gives its time.
    pub run: Box<dyn FnMut() -> Result<Duration, MeasureError> + 'a>,
}

impl<'a> TimedVariant<'a> {
    /// A timed variant; `run` returns each time.
    pub fn new(name: impl Into<String>, run: impl FnMut() -> Result<Duration, MeasureError> + 'a) -> Self {
        Self { name: name.into(), run: Box::new(run) }
    }

    /// A timed variant that starts a process and takes the time from the start to its end, which must be a success.
    pub fn process(name: impl Into<String>, mut command: impl FnMut() -> Command + 'a) -> Self {
        let name = name.into();
        let variant = name.clone();
        Self::new(name, move || time_to_exit(&variant, command()))
    }
}

/// Runs a command, without input and with its output discarded, and returns the time from its start to its end.
///
/// # Errors
/// [`MeasureError::Start`], or [`MeasureError::Died`] if it ends without success.
pub fn time_to_exit(variant: &str, mut command: Command) -> Result<Duration, MeasureError> {
    let failed = |source| MeasureError::Start { variant: variant.to_owned(), source };
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let started = Instant::now();
    let status = command.spawn().and_then(|mut child| child.wait()).map_err(failed)?;
    let taken = started.elapsed();
    if status.success() {
        Ok(taken)
    } else {
        Err(MeasureError::Died { variant: variant.to_owned(), status: status.to_string() })
    }
}

/// Yields to processes that a timed variant has left behind on this CPU, such as a helper that has yet to end, so that
/// their time is not charged to the next timed variant.
fn give_way() {
    for _ in 0..GIVEN_WAY {
        // It cannot fail (sched_yield(2)).
        let _ = sched_yield();
    }
}

/// Runs the timed variants in interleaved, mirrored rounds.
pub struct TimedRun<'a> {
    /// The variants.
    pub variants: Vec<TimedVariant<'a>>,
    /// Seed of the schedule.
    pub seed: u64,
    /// Rounds that are run and dropped; rounded up to whole blocks of two.
    pub warm_up_rounds: u32,
    /// When to stop.
    pub stop: Stop,
    /// The CPU on which everything that the timed variants start is born; `None` leaves it free.
    pub cpu: Option<usize>,
}

impl TimedRun<'_> {
    /// Measures; the observer is informed about the progress between rounds. All samples have generation 0 and workload
    /// 0: every sample is a new process already.
    ///
    /// # Errors
    /// The first error of a timed variant, or [`MeasureError::Interrupted`].
    pub fn run(mut self, observer: &mut dyn Observer) -> Result<Vec<Sample>, MeasureError> {
        if self.variants.is_empty() {
            return Err(MeasureError::Nothing("a run needs a variant at least".into()));
        }
        let mut schedule = Schedule::new(self.variants.len(), self.seed);
        let warm_up = self.warm_up_rounds.next_multiple_of(2);
        let mut samples = Vec::new();
        let mut round = 0;
        let mut started = Instant::now();
        loop {
            if round == warm_up {
                started = Instant::now();
            }
            stop_if_interrupted(observer)?;
            for (position, variant) in (0u32..).zip(schedule.next_round()) {
                let timed = &mut self.variants[variant];
                let taken = born_on(self.cpu, || {
                    let taken = (timed.run)()?;
                    give_way();
                    Ok(taken)
                })?;
                samples.push(Sample {
                    generation: 0,
                    round,
                    position,
                    variant,
                    workload: 0,
                    wall_nanoseconds: u64::try_from(taken.as_nanos()).unwrap_or(u64::MAX),
                    cpu_nanoseconds: None,
                    checksum: None,
                    warm_up: round < warm_up,
                });
            }
            round += 1;
            let counted = round.saturating_sub(warm_up);
            let done = match self.stop {
                Stop::Time(budget) => started.elapsed().as_secs_f64() / budget.as_secs_f64().max(1e-9),
                Stop::Rounds(rounds) => f64::from(counted) / f64::from(rounds.max(1)),
            };
            if round > warm_up {
                observer.progress(done.min(1.0));
                if done >= 1.0 && counted.is_multiple_of(2) {
                    return Ok(samples);
                }
            }
        }
    }
}
