//! One program, switched between two states in place, or servers side by side: the order of states, and the result of
//! the windows.
//!
//! A *window* is a stretch of time in one state. A *block* is four windows, plain, switched, switched, plain or the
//! other way round, so that steady drift cancels. In a *control* block the two inner windows are plain, too, but after
//! a switch there and back, or of a second plain server: its result is a difference that this machine cannot resolve.
//!
//! - **Value of a block**: the logarithm of the ratio of work per cost, switched over plain, each the sum of two windows.
//! - **Interval**: [`crate::statistics`], over blocks. If all blocks are of one process the interval is valid for this
//!   process during its life, with its present pages; if processes are started again, four times or more, it is
//!   computed over the starts.
//! - **Resolution**: the far end of the control's interval. No difference below it is claimed.
//! - **Disturbed**: the control's interval excludes no difference. Then nothing is claimed. That happens by chance in one of 20
//!   undisturbed experiments.

pub use crate::blocks::{BEHIND_A_SWITCH, Block, Blocks, Treatment, WINDOWS};
use crate::signed_rank::signed_rank;
use crate::statistics::{BlockValue, Estimate, GENERATIONS_FOR_T, estimate};
use serde::{Deserialize, Serialize};

/// The work and its cost in one window, as differences of counters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// Units of work.
    pub work: f64,
    /// Seconds of CPU time of the process, all of its threads.
    pub cpu: f64,
    /// Seconds that went by.
    pub wall: f64,
    /// CPU cycles, if work is divided by them; otherwise 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cycles: f64,
}

fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

/// The divisor of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Per {
    /// CPU time of the process: the cost of a unit, at whatever load.
    CpuSecond,
    /// Time: throughput, of a program that is always busy.
    Second,
    /// CPU cycles that a PMU counts: hardly changed by the clock rate of a CPU.
    Cycle,
}

impl Per {
    fn of(self, window: &Window) -> f64 {
        match self {
            Self::CpuSecond => window.cpu,
            Self::Second => window.wall,
            Self::Cycle => window.cycles,
        }
    }
}

/// The windows of a block, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The order.
    #[serde(flatten)]
    pub block: Block,
    /// Number of the start of the processes, if an experiment starts them again; otherwise 0.
    #[serde(default, skip_serializing_if = "is_first")]
    pub start: u32,
    /// The windows.
    pub windows: [Window; WINDOWS],
}

fn is_first(start: &u32) -> bool {
    *start == 0
}

impl Measured {
    /// The logarithm of the ratio of work per cost, treated over plain. `None` if nothing was done or a counter went
    /// backwards.
    pub fn value(&self, per: Per) -> Option<f64> {
        let sum = |treated: bool, of: &dyn Fn(&Window) -> f64| -> Option<f64> {
            let of_state = self.windows.iter().zip(self.block.treated()).filter(|(_, is)| *is == treated);
            let sum: f64 = of_state.map(|(window, _)| of(window)).sum();
            (sum.is_finite() && sum > 0.0).then_some(sum)
        };
        if self.windows.iter().any(|window| window.work < 0.0 || window.cpu < 0.0 || window.cycles < 0.0) {
            return None;
        }
        let rate = |treated| Some(sum(treated, &|w| w.work)? / sum(treated, &|w| per.of(w))?);
        Some((rate(true)? / rate(false)?).ln())
    }
}

/// The result of the blocks for one arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArmAnswer {
    /// Work per cost, treated over plain: above 1 is better. Absent below six blocks.
    pub ratio: Option<Estimate>,
    /// The probability of blocks as one-sided as these if there is no difference (exact signed-rank test).
    pub signed_rank: Option<f64>,
    /// Blocks that count.
    pub blocks: usize,
    /// Blocks in which nothing was done, or a counter went backwards.
    pub unusable: usize,
}

/// The conclusion about an arm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finding {
    /// More work for the same cost.
    Better,
    /// Less work for the same cost.
    Worse,
    /// None that this machine can show.
    NoDifference,
    /// Too few blocks.
    TooFew,
    /// Plain differs from itself.
    Disturbed,
}

/// The result of all blocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The arms, by number.
    pub arms: Vec<ArmAnswer>,
    /// The control.
    pub control: ArmAnswer,
    /// The smallest difference that may be claimed, as a share: 0.008 is 0.8 %.
    pub resolution: Option<f64>,
    /// The compared arms are processes, which differ for their whole lives: an interval that is not over starts
    /// ([`GENERATIONS_FOR_T`]) supports no claim.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub needs_starts: bool,
}

impl Answer {
    /// From all blocks, in the order of their measurement. The seed steers only the resampling.
    pub fn of(blocks: &[Measured], arms: usize, per: Per, seed: u64) -> Self {
        let control = answer(blocks, Treatment::Control, per, seed);
        let arms = (0..arms).map(|arm| answer(blocks, Treatment::Arm(arm), per, seed)).collect();
        Self::from_parts(arms, control)
    }

    /// From the arms and the control of one program.
    pub(crate) fn from_parts(arms: Vec<ArmAnswer>, control: ArmAnswer) -> Self {
        let resolution = control.ratio.map(|ratio| far_end(&ratio));
        Self { arms, control, resolution, needs_starts: false }
    }

    /// The answer if the arms are separate processes.
    #[must_use]
    pub fn over_starts(self) -> Self {
        Self { needs_starts: true, ..self }
    }

    /// The number of starts of an arm and its control, if they are too few to claim anything.
    pub fn starts_if_too_few(&self, arm: usize) -> Option<usize> {
        let both = [self.arms.get(arm)?.ratio?, self.control.ratio?];
        let starts = both.map(|ratio| ratio.generations).into_iter().min();
        starts.filter(|&starts| self.needs_starts && starts < GENERATIONS_FOR_T)
    }

    /// True if the control's interval excludes no difference.
    pub fn is_disturbed(&self) -> bool {
        self.control.ratio.is_some_and(|ratio| ratio.low > 1.0 || ratio.high < 1.0)
    }

    /// The largest difference that may be there unseen, as a share: the far end of the arm's interval, or of the control's.
    pub fn hidden(&self, arm: usize) -> Option<f64> {
        Some(far_end(&self.arms.get(arm)?.ratio?).max(self.resolution?))
    }

    /// The conclusion about an arm: its interval must not contain 1, its centre must be beyond the resolution, and the
    /// signed-rank test must agree.
    pub fn finding(&self, arm: usize) -> Finding {
        let (Some(ratio), Some(resolution)) = (self.arms.get(arm).and_then(|arm| arm.ratio), self.resolution) else {
            return Finding::TooFew;
        };
        if self.starts_if_too_few(arm).is_some() {
            return Finding::TooFew;
        }
        if self.is_disturbed() {
            return Finding::Disturbed;
        }
        let agrees = self.arms[arm].signed_rank.is_some_and(|probability| probability < 0.05);
        let beyond = ratio.centre.ln().abs() > resolution.ln_1p();
        match (agrees && beyond, ratio.low > 1.0, ratio.high < 1.0) {
            (true, true, _) => Finding::Better,
            (true, _, true) => Finding::Worse,
            _ => Finding::NoDifference,
        }
    }

    /// The size of an effect that may be claimed or missed, as a share: the reach of the widest arm's interval to a
    /// side, or the resolution if that is coarser. Absent while an arm that has blocks, or the control, has no
    /// interval, or one from too few starts.
    pub fn half_width(&self) -> Option<f64> {
        let resolution = self.resolution?;
        let arms = (0..self.arms.len()).filter(|&arm| self.arms[arm].blocks + self.arms[arm].unusable > 0);
        let widths = arms.map(|arm| {
            let ratio = self.arms[arm].ratio.filter(|_| self.starts_if_too_few(arm).is_none())?;
            Some((ratio.high - ratio.centre).max(ratio.centre - ratio.low))
        });
        widths.collect::<Option<Vec<f64>>>()?.into_iter().reduce(f64::max).map(|width| width.max(resolution))
    }
}

/// The distance of an interval's far end from 1, as a share.
fn far_end(ratio: &Estimate) -> f64 {
    ratio.low.ln().abs().max(ratio.high.ln().abs()).exp_m1()
}

fn answer(blocks: &[Measured], treatment: Treatment, per: Per, seed: u64) -> ArmAnswer {
    let of_arm = || blocks.iter().filter(|block| block.block.treatment == treatment);
    let block_value = |block: &Measured| Some(BlockValue { generation: block.start, value: block.value(per)? });
    let block_values: Vec<BlockValue> = of_arm().filter_map(block_value).collect();
    let values: Vec<f64> = block_values.iter().map(|block| block.value).collect();
    ArmAnswer {
        ratio: estimate(&block_values, seed).map(|estimate| estimate.map(f64::exp)),
        signed_rank: signed_rank(&values),
        blocks: values.len(),
        unusable: of_arm().count() - values.len(),
    }
}

#[cfg(test)]
mod tests;
