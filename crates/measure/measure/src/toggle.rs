//! One program, switched between two states in place, or servers side by side: who is next, and what the windows say.
//!
//! A *window* is a stretch of time in one state. A *block* is four windows, plain, switched, switched, plain or the other way
//! round, so that whatever drifts steadily cancels. In a *control* block the two inner windows are plain, too, but behind a
//! switch there and back, or of a second plain server: what it shows is what this machine cannot tell from a difference.
//!
//! - **Value of a block**: the logarithm of the ratio of work per cost, switched over plain, each the sum of two windows.
//! - **Interval**: [`crate::statistics`], over blocks. Where all blocks are of one process the interval holds for this process
//!   as long as it lives, with its pages where they lie; where processes are started again, four times or more, it is taken
//!   over the starts.
//! - **Resolution**: the far end of the control's interval. No difference below it is claimed.

use crate::random::Random;
use crate::signed_rank::signed_rank;
use crate::statistics::{BlockValue, Estimate, GENERATIONS_FOR_T, estimate};
use serde::{Deserialize, Serialize};

/// Windows of a block.
pub const WINDOWS: usize = 4;

/// What the inner windows of a block are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Treatment {
    /// Plain, behind a switch there and back.
    Control,
    /// The arm of this number.
    Arm(usize),
}

impl Treatment {
    /// The number of the arm; absent for the control.
    pub fn arm(self) -> Option<usize> {
        match self {
            Self::Control => None,
            Self::Arm(arm) => Some(arm),
        }
    }
}

/// One block's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// What is compared with plain.
    pub treatment: Treatment,
    /// The outer windows are plain; else the inner ones are.
    pub plain_outside: bool,
}

impl Block {
    /// True for each window in which the treatment is in force.
    pub fn treated(self) -> [bool; WINDOWS] {
        let inner = [false, true, true, false];
        if self.plain_outside { inner } else { inner.map(|treated| !treated) }
    }
}

/// Blocks without end: each treatment in turn in a random order, each in both orders alike.
#[derive(Clone, Debug)]
pub struct Blocks {
    random: Random,
    treatments: Vec<Treatment>,
    waiting: Vec<Block>,
    /// Control blocks that have been given an arm.
    controls: usize,
}

impl Blocks {
    /// Blocks for `arms` arms and the control. The seed belongs into the record.
    pub fn new(arms: usize, seed: u64) -> Self {
        let treatments = (0..arms).map(Treatment::Arm).chain([Treatment::Control]).collect();
        Self { random: Random::new(seed), treatments, waiting: Vec::new(), controls: 0 }
    }

    /// The arm that the next control block switches to and back: each arm in turn, by control blocks. `None` if no arm is
    /// left.
    pub fn next_arm_of_control(&mut self) -> Option<usize> {
        let arms: Vec<usize> = self.treatments.iter().filter_map(|treatment| treatment.arm()).collect();
        let arm = arms.get(self.controls.checked_rem(arms.len())?).copied();
        self.controls += 1;
        arm
    }

    /// No blocks of this arm any more. False where no arm is left.
    pub fn leave_out(&mut self, arm: usize) -> bool {
        self.treatments.retain(|treatment| *treatment != Treatment::Arm(arm));
        self.waiting.retain(|block| block.treatment != Treatment::Arm(arm));
        self.treatments.len() > 1
    }
}

impl Iterator for Blocks {
    type Item = Block;

    fn next(&mut self) -> Option<Block> {
        if self.waiting.is_empty() {
            let both = |&treatment| [true, false].map(|plain_outside| Block { treatment, plain_outside });
            self.waiting = self.treatments.iter().flat_map(both).collect();
            self.random.shuffle(&mut self.waiting);
        }
        self.waiting.pop()
    }
}

/// What was done and what it cost in one window, as differences of counters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// Units of work.
    pub work: f64,
    /// Seconds of CPU time of the process, all of its threads.
    pub cpu: f64,
    /// Seconds that went by.
    pub wall: f64,
    /// CPU cycles, where work is divided by them; else 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cycles: f64,
}

fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

/// What work is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Per {
    /// CPU time of the process: what a unit costs, at whatever load.
    CpuSecond,
    /// Time: throughput, of a program that is always busy.
    Second,
    /// CPU cycles that a PMU counts: what is hardly changed by how fast a CPU is clocked.
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
    /// Number of the start of the processes, where they are started again in an experiment; else 0.
    #[serde(default, skip_serializing_if = "is_first")]
    pub start: u32,
    /// The windows.
    pub windows: [Window; WINDOWS],
}

fn is_first(start: &u32) -> bool {
    *start == 0
}

impl Measured {
    /// The logarithm of the ratio of work per cost, treated over plain. `None` where nothing was done or a counter went
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

/// What the blocks say of one arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArmAnswer {
    /// Work per cost, treated over plain: above 1 is better. Absent below six blocks.
    pub ratio: Option<Estimate>,
    /// The probability of blocks as one-sided as these where there is no difference (exact signed-rank test).
    pub signed_rank: Option<f64>,
    /// Blocks that count.
    pub blocks: usize,
    /// Blocks in which nothing was done, or a counter went backwards.
    pub unusable: usize,
}

/// What can be said of an arm.
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
}

/// What all blocks say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The arms, by number.
    pub arms: Vec<ArmAnswer>,
    /// The control.
    pub control: ArmAnswer,
    /// The smallest difference that may be claimed, as a share: 0.008 is 0.8 %.
    pub resolution: Option<f64>,
    /// What is compared are processes, which differ for as long as they live: an interval that is not over starts
    /// ([`GENERATIONS_FOR_T`]) claims nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub needs_starts: bool,
}

impl Answer {
    /// From all blocks, in the order of their measurement. The seed steers only the resampling.
    pub fn of(blocks: &[Measured], arms: usize, per: Per, seed: u64) -> Self {
        let control = answer(blocks, Treatment::Control, per, seed);
        let resolution = control.ratio.map(|ratio| far_end(&ratio));
        let arms = (0..arms).map(|arm| answer(blocks, Treatment::Arm(arm), per, seed)).collect();
        Self { arms, control, resolution, needs_starts: false }
    }

    /// The answer where the arms are processes of their own.
    #[must_use]
    pub fn over_starts(self) -> Self {
        Self { needs_starts: true, ..self }
    }

    /// The starts that an arm and its control have, where they are too few to claim anything.
    pub fn starts_if_too_few(&self, arm: usize) -> Option<usize> {
        let both = [self.arms.get(arm)?.ratio?, self.control.ratio?];
        let starts = both.map(|ratio| ratio.generations).into_iter().min();
        starts.filter(|&starts| self.needs_starts && starts < GENERATIONS_FOR_T)
    }

    /// What can be said of an arm: its interval must not hold 1, its centre must lie beyond the resolution, and the
    /// signed-rank test must agree.
    pub fn finding(&self, arm: usize) -> Finding {
        let (Some(ratio), Some(resolution)) = (self.arms.get(arm).and_then(|arm| arm.ratio), self.resolution) else {
            return Finding::TooFew;
        };
        if self.starts_if_too_few(arm).is_some() {
            return Finding::TooFew;
        }
        let agrees = self.arms[arm].signed_rank.is_some_and(|probability| probability < 0.05);
        let beyond = ratio.centre.ln().abs() > resolution.ln_1p();
        match (agrees && beyond, ratio.low > 1.0, ratio.high < 1.0) {
            (true, true, _) => Finding::Better,
            (true, _, true) => Finding::Worse,
            _ => Finding::NoDifference,
        }
    }

    /// What may still be claimed or missed, as a share: how far the widest arm's interval reaches to a side, or the resolution
    /// where that is coarser. Absent while an arm that has blocks, or the control, has no interval, or one of too few starts.
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

/// How far an interval reaches from 1, as a share.
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
mod tests {
    use super::*;

    /// A server of which nothing is known but what servers are like: its rate wanders, some windows are hit hard, and the
    /// treatment changes it by `factor`.
    struct Server {
        random: Random,
        level: f64,
        factor: f64,
        noise: f64,
    }

    impl Server {
        fn uniform(&mut self) -> f64 {
            self.random.below(1 << 30) as f64 / f64::from(1 << 30)
        }

        /// Near to normal: the sum of twelve.
        fn normal(&mut self) -> f64 {
            (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
        }

        fn window(&mut self, treated: bool) -> Window {
            self.level += 0.003 * self.normal();
            let hit = if self.uniform() < 0.05 { 1.0 - 0.3 * self.uniform() } else { 1.0 };
            let noise = (self.level + self.noise * self.normal()).exp() * hit;
            let factor = if treated { self.factor } else { 1.0 };
            Window { work: 10_000.0 * noise * factor, cpu: 0.3, wall: 0.5, cycles: 0.0 }
        }

        fn measure(&mut self, blocks: impl Iterator<Item = Block>, measured: &mut Vec<Measured>) {
            measured.extend(blocks.map(|block| {
                let in_force = |treated| treated && block.treatment != Treatment::Control;
                Measured { block, start: 0, windows: block.treated().map(|treated| self.window(in_force(treated))) }
            }));
        }

        fn run(&mut self, blocks: usize, seed: u64) -> Answer {
            let mut measured = Vec::new();
            self.measure(Blocks::new(1, seed).take(blocks), &mut measured);
            Answer::of(&measured, 1, Per::CpuSecond, seed)
        }
    }

    fn answers(runs: u64, factor: f64, noise: f64, blocks: usize) -> impl Iterator<Item = Answer> {
        (0..runs)
            .map(move |seed| Server { random: Random::new(seed * 7 + 1), level: 0.0, factor, noise }.run(blocks, seed))
    }

    #[test]
    fn controls_take_the_arms_in_turn() {
        let mut blocks = Blocks::new(3, 1);
        let take = |number: usize, blocks: &mut Blocks| -> Vec<_> {
            (0..number).filter_map(|_| blocks.next_arm_of_control()).collect()
        };
        assert_eq!(take(4, &mut blocks), [0, 1, 2, 0]);
        assert!(blocks.leave_out(1));
        assert_eq!(take(4, &mut blocks), [0, 2, 0, 2]);
        assert!(blocks.leave_out(0) && !blocks.leave_out(2));
        assert!(take(1, &mut blocks).is_empty());
    }

    #[test]
    fn the_interval_holds_the_truth_in_nine_of_ten_runs() {
        for factor in [0.99, 0.97, 0.90, 1.0, 1.03] {
            let holds = |answer: &Answer| answer.arms[0].ratio.is_some_and(|r| r.low <= factor && factor <= r.high);
            let held = answers(100, factor, 0.02, 60).filter(holds).count();
            assert!(held >= 90, "{factor}: {held} of 100");
        }
    }

    /// Half a minute gives as few.
    #[test]
    fn of_few_blocks_too_the_interval_holds_the_truth() {
        for (factor, blocks) in [(0.99, 12), (1.0, 16), (0.97, 24), (0.9, 30)] {
            let holds = |answer: &Answer| answer.arms[0].ratio.is_some_and(|r| r.low <= factor && factor <= r.high);
            let held = answers(200, factor, 0.02, blocks).filter(holds).count();
            assert!(held >= 180, "{factor}, {blocks} blocks: {held} of 200");
        }
    }

    #[test]
    fn nothing_is_claimed_of_what_is_equal() {
        for (noise, blocks) in [(0.002, 60), (0.02, 60), (0.08, 60), (0.02, 12), (0.02, 24)] {
            let claims = |answer: &Answer| !matches!(answer.finding(0), Finding::NoDifference | Finding::TooFew);
            let claimed = answers(100, 1.0, noise, blocks).filter(claims).count();
            assert!(claimed <= 5, "noise {noise}, {blocks} blocks: {claimed} of 100");
        }
    }

    /// As `--resolution` ends a measurement: looked at again and again, and ended once the interval is narrow enough.
    #[test]
    fn an_early_end_neither_moves_the_interval_nor_claims_what_is_equal() {
        for (factor, resolution) in [(1.0, 0.008), (0.97, 0.006)] {
            let (mut held, mut claimed) = (0, 0);
            for seed in 0..50 {
                let mut server = Server { random: Random::new(seed * 7 + 1), level: 0.0, factor, noise: 0.02 };
                let mut measured = Vec::new();
                let mut blocks = Blocks::new(1, seed);
                let answer = loop {
                    server.measure(blocks.by_ref().take(12), &mut measured);
                    let answer = Answer::of(&measured, 1, Per::CpuSecond, seed);
                    let enough = answer.arms[0].blocks >= 12 && answer.control.blocks >= 12;
                    if measured.len() >= 96 || enough && answer.half_width().is_some_and(|width| width <= resolution) {
                        break answer;
                    }
                };
                held += i32::from(answer.arms[0].ratio.is_some_and(|r| r.low <= factor && factor <= r.high));
                claimed += i32::from(matches!(answer.finding(0), Finding::Better | Finding::Worse));
            }
            assert!(held >= 45, "{factor}, {resolution}: {held} of 50");
            assert!(factor < 1.0 || claimed <= 2, "{resolution}: {claimed} of 50 claimed");
        }
    }

    /// Each process has a speed of its own, which no number of blocks of one start tells from a difference.
    #[test]
    fn processes_of_few_starts_claim_nothing() {
        let answer = |starts: u32| {
            let mut blocks = Blocks::new(1, 3);
            let measured: Vec<Measured> = (0..40 * starts)
                .filter_map(|number| {
                    let block = blocks.next()?;
                    let factor = if block.treatment == Treatment::Control { 1.0 } else { 1.015 };
                    let wave = 1.0 + 0.002 * f64::from(number % 5);
                    let work = |treated| if treated { factor * wave } else { 1.0 };
                    let window = |treated| Window { work: work(treated), cpu: 1.0, wall: 1.0, cycles: 0.0 };
                    Some(Measured { block, start: number / 40, windows: block.treated().map(window) })
                })
                .collect();
            Answer::of(&measured, 1, Per::CpuSecond, 3)
        };
        assert_eq!(answer(3).finding(0), Finding::Better, "of one process it is a difference");
        let few = answer(3).over_starts();
        assert_eq!((few.finding(0), few.half_width(), few.starts_if_too_few(0)), (Finding::TooFew, None, Some(3)));
        let enough = answer(4).over_starts();
        assert_eq!((enough.finding(0), enough.starts_if_too_few(0)), (Finding::Better, None));
        assert!(enough.half_width().is_some());
    }

    #[test]
    fn known_differences_are_found() {
        for (factor, noise, finding) in [
            (0.99, 0.005, Finding::Worse),
            (0.97, 0.01, Finding::Worse),
            (0.9, 0.03, Finding::Worse),
            (1.03, 0.01, Finding::Better),
        ] {
            let found = answers(40, factor, noise, 80).filter(|answer| answer.finding(0) == finding).count();
            assert!(found >= 38, "{factor}: {found} of 40");
        }
    }

    #[test]
    fn each_treatment_comes_in_both_orders_alike() {
        let blocks: Vec<Block> = Blocks::new(2, 5).take(6 * 50).collect();
        for treatment in [Treatment::Arm(0), Treatment::Arm(1), Treatment::Control] {
            for plain_outside in [true, false] {
                let wanted = Block { treatment, plain_outside };
                assert_eq!(blocks.iter().filter(|block| **block == wanted).count(), 50);
                assert!(blocks.chunks(6).all(|round| round.contains(&wanted)));
            }
        }
    }

    #[test]
    fn an_arm_that_is_left_out_has_no_blocks_and_no_say() {
        let mut blocks = Blocks::new(2, 5);
        blocks.next();
        assert!(blocks.leave_out(1));
        assert_eq!([blocks.next_arm_of_control(), blocks.next_arm_of_control()], [Some(0); 2]);
        let rest: Vec<Block> = blocks.by_ref().take(80).collect();
        assert!(rest.iter().all(|block| block.treatment != Treatment::Arm(1)));
        assert!(rest.iter().any(|block| block.treatment == Treatment::Arm(0)));
        let window = Window { work: 1.0, cpu: 1.0, wall: 1.0, cycles: 0.0 };
        let measured: Vec<Measured> =
            rest.into_iter().map(|block| Measured { block, start: 0, windows: [window; WINDOWS] }).collect();
        let answer = Answer::of(&measured, 2, Per::CpuSecond, 5);
        assert!(answer.half_width().is_some() && answer.finding(1) == Finding::TooFew, "{answer:?}");
        assert!(!blocks.leave_out(0), "only the control is left");
    }

    /// An arm whose interval is narrow while plain differs from itself is not resolved.
    #[test]
    fn the_control_s_spread_counts_for_the_resolution() {
        let blocks: Vec<Measured> = Blocks::new(1, 5)
            .take(80)
            .enumerate()
            .map(|(number, block)| {
                let noise = if block.treatment == Treatment::Control { 0.05 * (number % 7) as f64 } else { 0.0 };
                let window = |treated| Window {
                    work: if treated { 1.0 + noise } else { 1.0 },
                    cpu: 1.0,
                    wall: 1.0,
                    cycles: 0.0,
                };
                Measured { block, start: 0, windows: block.treated().map(window) }
            })
            .collect();
        let answer = Answer::of(&blocks, 1, Per::CpuSecond, 5);
        let arm = answer.arms[0].ratio.unwrap();
        assert!(arm.high - arm.low < 1e-9 && answer.half_width() == answer.resolution, "{answer:?}");
        assert!(answer.half_width() > Some(0.05), "{answer:?}");
    }

    #[test]
    fn steady_drift_cancels() {
        let block = Block { treatment: Treatment::Arm(0), plain_outside: true };
        let windows = [100.0, 110.0, 120.0, 130.0].map(|work| Window { work, cpu: 1.0, wall: 1.0, cycles: 0.0 });
        assert_eq!(Measured { block, start: 0, windows }.value(Per::CpuSecond), Some(0.0));
    }

    #[test]
    fn a_counter_that_goes_backwards_makes_its_block_unusable() {
        let block = Block { treatment: Treatment::Arm(0), plain_outside: false };
        let mut windows = [Window { work: 100.0, cpu: 1.0, wall: 1.0, cycles: 0.0 }; WINDOWS];
        windows[2].work = -5.0;
        let answer = Answer::of(&[Measured { block, start: 0, windows }], 1, Per::Second, 0);
        assert_eq!((answer.arms[0].blocks, answer.arms[0].unusable), (0, 1));
        assert_eq!(answer.finding(0), Finding::TooFew);
    }
}
