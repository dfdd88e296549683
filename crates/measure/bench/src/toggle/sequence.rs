//! Blocks for a decision that may be made after each block.

use super::{After, Disturbance, Stops, Subject, run_blocks};
use crate::ExperimentError;
use crate::conduct::Limits;
use crate::record::Recorder;
use measure::record::{Ended, Header, Record};
use measure::toggle::{Block, Blocks, Measured, Per};

/// Least units of work of a window: a rate of fewer is mostly chance.
const LEAST_WORK: f64 = 200.0;

/// A block, and whether it counts. That is decided without its value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SeenBlock {
    /// Its treatment and its order.
    pub block: Block,
    /// The logarithm of the ratio of the rates, treated over plain; or why the block is dropped.
    pub value: Result<f64, Disturbance>,
    /// Stops of the program by switches so far.
    pub stops: Stops,
}

impl SeenBlock {
    fn of(measured: &Measured, per: Per, disturbance: Option<Disturbance>) -> Self {
        let has_work = measured.windows.iter().all(|window| window.work >= LEAST_WORK);
        let value = match disturbance {
            Some(disturbance) => Err(disturbance),
            None => measured.value(per).filter(|_| has_work).ok_or(Disturbance::LittleWork),
        };
        Self { block: measured.block, value, stops: Stops::default() }
    }
}

/// Runs blocks whose order a coin decides, and shows each to `is_decided`, until that returns true, the time is up, or
/// something fails. The program is plain afterwards.
///
/// # Errors
/// [`ExperimentError`] if nothing can be measured.
pub fn run_sequence(
    subject: Subject<'_>,
    header: Header,
    limits: Limits<'_>,
    is_decided: &mut dyn FnMut(SeenBlock) -> bool,
) -> Result<Record, ExperimentError> {
    let (blocks, per) = (Blocks::of_decision(header.seed), header.per);
    let recorder = Recorder::new(header, None).map_err(ExperimentError::Record)?;
    run_blocks(subject, recorder, blocks, limits, &mut |after: After<'_, '_>| {
        let record = after.recorder.record();
        let last = record.timed_blocks().last()?;
        let seen = SeenBlock { stops: after.stops, ..SeenBlock::of(&last.measured, per, after.disturbance) };
        if is_decided(seen) {
            return Some(Ended::Resolved);
        }
        let is_over = after.conduct.elapsed() >= limits.time || after.recorder.is_full();
        match after.conduct.is_interrupted() {
            true => Some(Ended::Interrupted),
            false => is_over.then_some(Ended::TimeIsUp),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use measure::toggle::{Treatment, WINDOWS, Window};

    #[test]
    fn what_is_disturbed_has_no_value() {
        let block = Block::new(Treatment::Arm(0), true);
        let measured = |work: [f64; WINDOWS]| Measured {
            block,
            start: 0,
            windows: work.map(|work| Window { work, cpu: 1.0, wall: 1.0, cycles: 0.0 }),
        };
        let value = |work, disturbance| SeenBlock::of(&measured(work), Per::CpuSecond, disturbance).value;
        let sound = [1000.0, 1100.0, 1100.0, 1000.0];
        assert!(value(sound, None).is_ok_and(|value| (value - 1.1_f64.ln()).abs() < 1e-12));
        assert_eq!(value(sound, Some(Disturbance::Steal)), Err(Disturbance::Steal));
        assert_eq!(value([1000.0, 1100.0, 1100.0, 199.0], None), Err(Disturbance::LittleWork));
        assert_eq!(value([-1000.0, 1100.0, 1100.0, 1000.0], None), Err(Disturbance::LittleWork));
    }
}
