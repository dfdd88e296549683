//! When to go on, and when to stop.

use crate::record::{Ended, Record};
use measure::toggle::Answer;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Fewer blocks of each kind than this are not taken for an answer, however narrow its interval looks.
const FEWEST: usize = 12;
/// How long a command that failed is not yet taken for failed: a terminal interrupts it and this process at the same time.
pub(crate) const INTERRUPTION: Duration = Duration::from_millis(100);
/// How often a wait looks whether it was interrupted.
const SLICE: Duration = Duration::from_millis(20);

/// Bounds of an experiment.
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    /// Time for all of it.
    pub time: Duration,
    /// Half of the interval, as a share, at which it may end earlier.
    pub resolution: Option<f64>,
    /// Set by a signal handler: the answer so far is wanted.
    pub interrupted: &'a AtomicBool,
}

/// What is told while it runs.
#[derive(Debug)]
pub struct Progress<'a> {
    /// Share of the time that is over, 0 to 1.
    pub elapsed: f64,
    /// Blocks so far.
    pub blocks: usize,
    /// The answer so far.
    pub answer: &'a Answer,
}

/// The clock of one experiment.
pub(crate) struct Conduct<'a> {
    limits: Limits<'a>,
    started: Instant,
}

impl<'a> Conduct<'a> {
    pub(crate) fn start(limits: Limits<'a>) -> Self {
        Self { limits, started: Instant::now() }
    }

    /// Time since the experiment began.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        self.limits.interrupted.load(Ordering::Relaxed)
    }

    /// Sleeps. False where it was interrupted.
    pub(crate) fn wait(&self, duration: Duration) -> bool {
        let until = Instant::now() + duration;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if self.is_interrupted() {
                return false;
            }
            if left.is_zero() {
                return true;
            }
            std::thread::sleep(left.min(SLICE));
        }
    }

    /// Tells how far it is, and returns why it should end now, if so.
    pub(crate) fn after_block(&self, record: &Record, tell: &mut dyn FnMut(&Progress<'_>)) -> Option<Ended> {
        let answer = record.answer();
        let elapsed = self.started.elapsed().as_secs_f64() / self.limits.time.as_secs_f64();
        tell(&Progress { elapsed: elapsed.min(1.0), blocks: record.blocks().len(), answer: &answer });
        let is_measured = |arm: &usize| record.lifted_nothing(*arm).is_none();
        let arms = (0..answer.arms.len()).filter(is_measured).map(|arm| &answer.arms[arm]);
        let enough = arms.chain([&answer.control]).all(|arm| arm.blocks >= FEWEST);
        let narrow = self.limits.resolution.zip(answer.half_width()).is_some_and(|(wanted, is)| is <= wanted);
        match (self.is_interrupted(), enough && narrow, elapsed >= 1.0) {
            (true, ..) => Some(Ended::Interrupted),
            (_, true, _) => Some(Ended::Resolved),
            (.., true) => Some(Ended::TimeIsUp),
            _ => None,
        }
    }
}
