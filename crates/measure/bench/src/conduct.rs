//! Decides when to continue and when to stop.

use crate::record::Recorder;
use measure::record::{Ended, Record};
use measure::toggle::Answer;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Fewer blocks of each kind than this are not taken for an answer, however narrow its interval looks.
const FEWEST: usize = 12;
/// Time to wait before a failed command counts as failed: a terminal interrupts it and this process at the same time.
pub(crate) const INTERRUPTION: Duration = Duration::from_millis(100);
/// Minimum time between two computations of the answer, and the minimum factor between that time and the duration of a
/// computation: a computation takes longer with each block, and no measurement takes place meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const LOOKS_APART: u32 = 20;
/// Interval between checks of a wait for an interruption.
const SLICE: Duration = Duration::from_millis(20);

/// Bounds of an experiment.
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    /// The total time.
    pub time: Duration,
    /// Half of the interval, as a share, at which it may end earlier.
    pub resolution: Option<f64>,
    /// Set by a signal handler: the answer so far is wanted.
    pub interrupted: &'a AtomicBool,
}

/// The progress that is reported during a run.
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
    /// The time of the next computation of the answer.
    next_look: Cell<Instant>,
}

impl<'a> Conduct<'a> {
    pub(crate) fn start(limits: Limits<'a>) -> Self {
        let now = Instant::now();
        Self { limits, started: now, next_look: Cell::new(now) }
    }

    /// Time since the experiment began.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        self.limits.interrupted.load(Ordering::Relaxed)
    }

    /// Sleeps. False if it was interrupted.
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

    /// Reports the progress from time to time, and returns the reason to end now, if there is one.
    pub(crate) fn after_block(&self, recorder: &Recorder, tell: &mut dyn FnMut(&Progress<'_>)) -> Option<Ended> {
        let elapsed = self.started.elapsed().as_secs_f64() / self.limits.time.as_secs_f64();
        if self.is_interrupted() {
            return Some(Ended::Interrupted);
        }
        let begun = Instant::now();
        if begun >= self.next_look.get() {
            let is_resolved = self.look(recorder.record(), elapsed, tell);
            self.next_look.set(Instant::now() + LOOK_EVERY.max(begun.elapsed() * LOOKS_APART));
            if is_resolved {
                return Some(Ended::Resolved);
            }
        }
        (elapsed >= 1.0 || recorder.is_full()).then_some(Ended::TimeIsUp)
    }

    /// Reports the answer so far; true if it is narrow enough.
    fn look(&self, record: &Record, elapsed: f64, tell: &mut dyn FnMut(&Progress<'_>)) -> bool {
        let answer = record.answer();
        tell(&Progress { elapsed: elapsed.min(1.0), blocks: record.timed_blocks().count(), answer: &answer });
        let is_measured = |arm: &usize| record.lifted_nothing(*arm).is_none();
        let arms = (0..answer.arms.len()).filter(is_measured).map(|arm| &answer.arms[arm]);
        let enough = arms.chain([&answer.control]).all(|arm| arm.blocks >= FEWEST);
        enough && self.limits.resolution.zip(answer.half_width()).is_some_and(|(wanted, is)| is <= wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use measure::record::{Design, Header};
    use measure::toggle::Per;

    fn recorder() -> Recorder {
        let header = Header::new(Design::Runs, "p".to_owned(), vec!["a".to_owned()], "runs".to_owned(), Per::Second, 1);
        Recorder::new(header, None).unwrap()
    }

    #[test]
    fn the_answer_is_looked_at_from_time_to_time() {
        let interrupted = AtomicBool::new(false);
        let limits = Limits { time: Duration::from_secs(1000), resolution: None, interrupted: &interrupted };
        let (conduct, recorder, mut looks) = (Conduct::start(limits), recorder(), 0);
        let began = Instant::now();
        for _ in 0..1000 {
            assert_eq!(conduct.after_block(&recorder, &mut |_| looks += 1), None);
        }
        let most = 1 + began.elapsed().as_millis() / LOOK_EVERY.as_millis();
        assert!(looks >= 1 && looks <= most, "{looks} looks, {most} at most");
        interrupted.store(true, Ordering::Relaxed);
        assert_eq!(conduct.after_block(&recorder, &mut |_| ()), Some(Ended::Interrupted));
    }
}
