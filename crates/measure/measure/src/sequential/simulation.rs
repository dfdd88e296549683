//! Simulated servers, each measured by the rule: the rate at which a false gain is kept.

use super::*;
use crate::random::Random;
use crate::toggle::{Block, Blocks, Measured, Per, Treatment, Window};

/// The variation of a server's rate between windows.
#[derive(Clone, Copy, Debug)]
struct Noise {
    /// Scale of a window's own variation.
    scale: f64,
    /// Degrees of freedom of Student's t: few make heavy tails.
    freedom: u32,
    /// Share of a window's variation that the next window inherits.
    correlation: f64,
    /// Share of windows in which something else interrupts the server.
    interrupted: f64,
    /// Gain of the two inner windows, as under a periodic load.
    inner_gain: f64,
}

const QUIET: Noise = Noise { scale: 0.007, freedom: 30, correlation: 0.0, interrupted: 0.0, inner_gain: 0.0 };
const USUAL: Noise = Noise { scale: 0.012, freedom: 3, correlation: 0.0, interrupted: 0.05, inner_gain: 0.0 };
const HEAVY: Noise = Noise { scale: 0.015, freedom: 2, correlation: 0.4, interrupted: 0.1, inner_gain: 0.0 };
const PERIODIC: Noise = Noise { inner_gain: 0.02, ..QUIET };

struct Server {
    random: Random,
    noise: Noise,
    gain: f64,
    drift: f64,
    inherited: f64,
}

impl Server {
    fn uniform(&mut self) -> f64 {
        (self.random.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Box and Muller's method.
    fn normal(&mut self) -> f64 {
        let (radius, angle) = (self.uniform().max(1e-300), self.uniform());
        (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
    }

    /// A value of Student's t; for many degrees of freedom a normal one.
    fn student(&mut self) -> f64 {
        let normal = self.normal();
        let freedom = self.noise.freedom;
        if freedom >= 30 {
            return normal;
        }
        let squares: f64 = (0..freedom).map(|_| self.normal().powi(2)).sum();
        normal / (squares / f64::from(freedom)).sqrt()
    }

    fn window(&mut self, is_lifted: bool, is_inner: bool) -> Window {
        let noise = self.noise;
        self.drift += 0.002 * self.normal();
        self.inherited = noise.correlation * self.inherited + noise.scale * self.student();
        let interrupted = if self.uniform() < noise.interrupted { 0.3 * self.uniform() } else { 0.0 };
        let gain = if is_lifted { self.gain.ln_1p() } else { 0.0 };
        let inner = if is_inner { noise.inner_gain.ln_1p() } else { 0.0 };
        // A window with a wild value still does some work.
        let log_rate = (self.drift + self.inherited + gain + inner).clamp(-5.0, 5.0);
        Window { work: 1e4 * log_rate.exp() * (1.0 - interrupted), cpu: 0.3, wall: 0.5, cycles: 0.0 }
    }

    fn measure(&mut self, block: Block) -> f64 {
        let treated = block.treated();
        let is_arm = block.treatment != Treatment::Control;
        let windows = std::array::from_fn(|number| self.window(treated[number] && is_arm, number == 1 || number == 2));
        Measured { block, start: 0, windows }.value(Per::CpuSecond).unwrap()
    }

    fn decide(&mut self, blocks: impl Iterator<Item = Block>) -> Decision {
        let mut test = Test::new(Rule::default());
        let decide = |block: Block| match block.treatment {
            Treatment::Control => test.add_control(self.measure(block)),
            Treatment::Arm(_) => test.add(self.measure(block)),
        };
        blocks.into_iter().find_map(decide).unwrap()
    }
}

/// Choice of the order of the windows.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Design {
    Coin,
    PlainOutside,
    ShuffledPairs,
}

/// Blocks of which each second one of a treatment has the order that the one before it had not.
fn shuffled_pairs(seed: u64) -> impl Iterator<Item = Block> {
    let mut first: [Option<bool>; 2] = [None, None];
    Blocks::of_decision(seed).map(move |block| {
        let of_treatment = &mut first[usize::from(block.treatment == Treatment::Control)];
        match of_treatment.take() {
            Some(plain_outside) => Block { plain_outside: !plain_outside, ..block },
            None => {
                *of_treatment = Some(block.plain_outside);
                block
            }
        }
    })
}

fn decisions(noise: Noise, design: Design, gain: f64, runs: u64) -> Vec<Decision> {
    let of_run = |seed: u64| {
        let mut server = Server { random: Random::new(seed * 7 + 1), noise, gain, drift: 0.0, inherited: 0.0 };
        match design {
            Design::Coin => server.decide(Blocks::of_decision(seed)),
            Design::PlainOutside => {
                server.decide(Blocks::of_decision(seed).map(|block| Block { plain_outside: true, ..block }))
            }
            Design::ShuffledPairs => server.decide(shuffled_pairs(seed)),
        }
    };
    (0..runs).map(of_run).collect()
}

fn count(decisions: &[Decision], wanted: impl Fn(Decision) -> bool) -> usize {
    decisions.iter().filter(|&&decision| wanted(decision)).count()
}

/// 1/400 of the runs, and three standard errors more.
fn most_false_keeps(runs: u64) -> usize {
    let (alpha, runs) = (1.0 / Rule::default().keep_at, runs as f64);
    (runs * alpha + 3.0 * (runs * alpha * (1.0 - alpha)).sqrt()) as usize
}

#[test]
fn what_gains_too_little_is_not_kept() {
    const RUNS: u64 = 600;
    for noise in [QUIET, USUAL, HEAVY, PERIODIC] {
        for design in [Design::Coin, Design::PlainOutside, Design::ShuffledPairs] {
            for gain in [0.0, 0.005] {
                let kept = count(&decisions(noise, design, gain, RUNS), Decision::keeps);
                let is_deceived = design == Design::PlainOutside && noise.inner_gain > 0.0;
                if !is_deceived {
                    assert!(kept <= most_false_keeps(RUNS), "{noise:?}, {design:?}, {gain}: {kept} of {RUNS}");
                }
            }
        }
    }
}

/// Without the coin, a load that is faster in the inner windows is taken for a gain, unless the control sees it first.
#[test]
fn the_coin_is_needed() {
    let runs = 200;
    let deceived = decisions(PERIODIC, Design::PlainOutside, 0.0, runs);
    let wrong = count(&deceived, |decision| matches!(decision, Decision::Keep | Decision::ControlDiffers));
    assert!(wrong >= 190 && count(&deceived, Decision::keeps) > 100, "{deceived:?}");
    let with_coin = decisions(PERIODIC, Design::Coin, 0.0, runs);
    assert!(count(&with_coin, |decision| decision == Decision::ControlDiffers) <= 20, "{with_coin:?}");
}

#[test]
fn a_gain_of_five_percent_is_kept_and_a_loss_is_put_back() {
    for noise in [QUIET, USUAL] {
        let kept = count(&decisions(noise, Design::Coin, 0.05, 200), Decision::keeps);
        assert!(kept >= 190, "{noise:?}: {kept} of 200 kept");
        let lost = decisions(noise, Design::Coin, -0.03, 200);
        let put_back = count(&lost, |decision| matches!(decision, Decision::PutBack | Decision::Harm));
        assert!(put_back >= 190, "{noise:?}: {put_back} of 200 restored");
    }
}
