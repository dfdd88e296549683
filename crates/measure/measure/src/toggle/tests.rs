use super::*;
use crate::random::Random;

mod controls;

/// A typical server: its rate wanders, some windows are disturbed strongly, and the treatment changes it by `factor`.
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
    (0..runs).map(move |seed| Server { random: Random::new(seed * 7 + 1), level: 0.0, factor, noise }.run(blocks, seed))
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
        let claims = |answer: &Answer| matches!(answer.finding(0), Finding::Better | Finding::Worse);
        let claimed = answers(100, 1.0, noise, blocks).filter(claims).count();
        assert!(claimed <= 5, "noise {noise}, {blocks} blocks: {claimed} of 100");
    }
}

/// Ends a measurement as `--resolution` does: checks the interval repeatedly, and ends once it is narrow enough.
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

/// Processes differ in speed. Blocks of one start, however many, cannot separate this from an effect of the arm.
#[test]
fn processes_of_few_starts_claim_nothing() {
    let answer = |starts: u32| {
        let mut blocks = Blocks::new(1, 3);
        let measured: Vec<Measured> = (0..40 * starts)
            .filter_map(|number| {
                let block = blocks.next()?;
                let factor = if block.treatment == Treatment::Control { 1.0 } else { 1.015 };
                let wave = 1.0 + 0.002 * (f64::from(number % 5) - 2.0);
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

/// By chance, two of 40 are called disturbed.
#[test]
fn known_differences_are_found() {
    for (factor, noise, finding) in [
        (0.99, 0.005, Finding::Worse),
        (0.97, 0.01, Finding::Worse),
        (0.9, 0.03, Finding::Worse),
        (1.03, 0.01, Finding::Better),
    ] {
        let found = answers(40, factor, noise, 80).filter(|answer| answer.finding(0) == finding).count();
        assert!(found >= 36, "{factor}: {found} of 40");
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
            let window =
                |treated| Window { work: if treated { 1.0 + noise } else { 1.0 }, cpu: 1.0, wall: 1.0, cycles: 0.0 };
            Measured { block, start: 0, windows: block.treated().map(window) }
        })
        .collect();
    let answer = Answer::of(&blocks, 1, Per::CpuSecond, 5);
    let arm = answer.arms[0].ratio.unwrap();
    assert!(arm.high - arm.low < 1e-9 && answer.half_width() == answer.resolution, "{answer:?}");
    assert!(answer.half_width() > Some(0.05), "{answer:?}");
}

/// An interval from -25 to -0.3 % beside a control of up to 17 %: no smaller difference than 25 % is excluded.
#[test]
fn no_resolution_finer_than_the_interval_is_promised() {
    let control = answer(&[], Treatment::Control, Per::CpuSecond, 1);
    let with = |low: f64, high: f64| {
        let blocks: Vec<BlockValue> = (0..40).map(|_| BlockValue { generation: 0, value: 0.0 }).collect();
        let ratio = estimate(&blocks, 1).map(|ratio| Estimate { low, centre: (low * high).sqrt(), high, ..ratio });
        ArmAnswer { ratio, signed_rank: Some(0.01), blocks: 40, ..control.clone() }
    };
    let answer = Answer::from_parts(vec![with(0.75, 0.997)], with(0.95, 1.17));
    assert_eq!(answer.finding(0), Finding::NoDifference);
    assert!(answer.hidden(0).is_some_and(|hidden| (hidden - 1.0 / 3.0).abs() < 1e-9), "{answer:?}");
    assert!(Answer::from_parts(vec![with(0.99, 1.01)], with(0.95, 1.17)).hidden(0).is_some_and(|is| is > 0.169));
}

#[test]
fn a_control_that_excludes_no_difference_claims_nothing() {
    let blocks = |seed| {
        let mut server = Server { random: Random::new(seed), level: 0.0, factor: 0.9, noise: 0.005 };
        let mut measured = Vec::new();
        server.measure(Blocks::new(1, seed).take(80), &mut measured);
        measured
    };
    let mut measured = blocks(3);
    assert_eq!(Answer::of(&measured, 1, Per::CpuSecond, 3).finding(0), Finding::Worse);
    for block in measured.iter_mut().filter(|block| block.block.treatment == Treatment::Control) {
        let treated = block.block.treated();
        block
            .windows
            .iter_mut()
            .zip(treated)
            .for_each(|(window, treated)| window.work *= if treated { 1.03 } else { 1.0 });
    }
    let disturbed = Answer::of(&measured, 1, Per::CpuSecond, 3);
    assert!(disturbed.is_disturbed() && disturbed.finding(0) == Finding::Disturbed, "{disturbed:?}");
}

#[test]
fn steady_drift_cancels() {
    let block = Block::new(Treatment::Arm(0), true);
    let windows = [100.0, 110.0, 120.0, 130.0].map(|work| Window { work, cpu: 1.0, wall: 1.0, cycles: 0.0 });
    assert_eq!(Measured { block, start: 0, windows }.value(Per::CpuSecond), Some(0.0));
}

#[test]
fn a_counter_that_goes_backwards_makes_its_block_unusable() {
    let block = Block::new(Treatment::Arm(0), false);
    let mut windows = [Window { work: 100.0, cpu: 1.0, wall: 1.0, cycles: 0.0 }; WINDOWS];
    windows[2].work = -5.0;
    let answer = Answer::of(&[Measured { block, start: 0, windows }], 1, Per::Second, 0);
    assert_eq!((answer.arms[0].blocks, answer.arms[0].unusable), (0, 1));
    assert_eq!(answer.finding(0), Finding::TooFew);
}
