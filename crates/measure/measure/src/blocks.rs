//! The order of an experiment's blocks.
//!
//! A fair coin decides the order of the four windows of each block. A control block does the same in either order, so its value
//! has either sign with the same probability, under drift and if a window's place in the block matters. Its distribution is
//! symmetric around no difference; the signed-rank test assumes nothing else.
//!
//! Two rules make both orders of a control block alike. A switch precedes the windows of [`BEHIND_A_SWITCH`] in every block. And
//! of servers side by side, each arm is compared with both plain servers in turn, so that with one arm all are loaded equally
//! often. When the first plain server had half of all bursts and the second a quarter, the control was off by up to 9 %.

use crate::random::Random;
use serde::{Deserialize, Serialize};

/// Windows of a block.
pub const WINDOWS: usize = 4;

/// The windows that a switch precedes, in every block of a program that is switched in place. If the program is plain and stays
/// plain, as in a control block, the switch goes to an arm and back.
pub const BEHIND_A_SWITCH: [bool; WINDOWS] = [true, true, false, true];

/// The state that a block compares with plain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Treatment {
    /// Plain, behind a switch there and back, or a second plain server.
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
    /// The state that is compared with plain.
    pub treatment: Treatment,
    /// The outer windows are plain; otherwise the inner ones are.
    pub plain_outside: bool,
    /// The plain windows are measured on the second plain server.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub second_plain: bool,
}

impl Block {
    /// A block whose plain windows are measured on the first plain server, or on the only program.
    pub fn new(treatment: Treatment, plain_outside: bool) -> Self {
        Self { treatment, plain_outside, second_plain: false }
    }

    /// True for each window in which the treatment is in force.
    pub fn treated(self) -> [bool; WINDOWS] {
        let inner = [false, true, true, false];
        if self.plain_outside { inner } else { inner.map(|treated| !treated) }
    }
}

/// Blocks without end: rounds with the same number of blocks for each treatment, in a random order.
#[derive(Clone, Debug)]
pub struct Blocks {
    random: Random,
    treatments: Vec<Treatment>,
    /// There are two plain servers.
    two_plain: bool,
    waiting: Vec<Block>,
    /// Control blocks that have been given an arm.
    controls: usize,
}

impl Blocks {
    /// Blocks for `arms` arms and the control, of one program or of runs. The seed belongs into the record.
    pub fn new(arms: usize, seed: u64) -> Self {
        let treatments = (0..arms).map(Treatment::Arm).chain([Treatment::Control]).collect();
        Self { random: Random::new(seed), treatments, two_plain: false, waiting: Vec::new(), controls: 0 }
    }

    /// Blocks for servers side by side: `arms` lifted servers, each compared with both plain servers, which are
    /// compared with each other. With one arm all three servers are loaded equally often.
    pub fn of_servers(arms: usize, seed: u64) -> Self {
        Self { two_plain: true, ..Self::new(arms, seed) }
    }

    /// Blocks for a decision about one lift: three with it for each control, which only has to show that the machine favours no
    /// side. Nobody who chooses the load may know the seed.
    pub fn of_decision(seed: u64) -> Self {
        let lifted = [Treatment::Arm(0); 3].into_iter();
        Self { treatments: lifted.chain([Treatment::Control]).collect(), ..Self::new(1, seed) }
    }

    /// The arm that the next control block switches to and back: each arm in turn, by control blocks. `None` if no arm is
    /// left.
    pub fn next_arm_of_control(&mut self) -> Option<usize> {
        let arms: Vec<usize> = self.treatments.iter().filter_map(|treatment| treatment.arm()).collect();
        let arm = arms.get(self.controls.checked_rem(arms.len())?).copied();
        self.controls += 1;
        arm
    }

    /// Ends the blocks of an arm. Returns false if no arm is left.
    pub fn leave_out(&mut self, arm: usize) -> bool {
        self.treatments.retain(|treatment| *treatment != Treatment::Arm(arm));
        self.waiting.retain(|block| block.treatment != Treatment::Arm(arm));
        self.treatments.len() > 1
    }

    /// Blocks of a round: the fewest that hold each kind.
    pub fn round(&self) -> usize {
        let of_arms = if self.two_plain { 2 } else { 1 };
        self.treatments.iter().map(|treatment| treatment.arm().map_or(1, |_| of_arms)).sum()
    }

    fn refill(&mut self) {
        for &treatment in &self.treatments {
            // The control compares the two plain servers with each other.
            let plain = if self.two_plain && treatment.arm().is_some() { &[false, true][..] } else { &[false] };
            for &second_plain in plain {
                let plain_outside = self.random.coin();
                self.waiting.push(Block { treatment, plain_outside, second_plain });
            }
        }
        self.random.shuffle(&mut self.waiting);
    }
}

impl Iterator for Blocks {
    type Item = Block;

    fn next(&mut self) -> Option<Block> {
        if self.waiting.is_empty() {
            self.refill();
        }
        self.waiting.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_block_of_four_is_a_control_in_a_decision() {
        let mut blocks = Blocks::of_decision(3);
        assert_eq!((blocks.round(), blocks.next_arm_of_control()), (4, Some(0)));
        let dealt: Vec<Block> = blocks.by_ref().take(4000).collect();
        for round in dealt.chunks(4) {
            assert_eq!(round.iter().filter(|block| block.treatment == Treatment::Control).count(), 1);
        }
        let both = |first, second| {
            dealt.windows(2).filter(|pair| pair[0].plain_outside == first && pair[1].plain_outside == second).count()
        };
        for (first, second) in [(true, true), (true, false), (false, true), (false, false)] {
            let count = both(first, second);
            assert!((900..=1100).contains(&count), "{first} then {second}: {count} of 3999");
        }
        assert!(!blocks.leave_out(0), "only the control is left");
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
    fn each_treatment_comes_once_a_round() {
        let mut blocks = Blocks::new(2, 5);
        let wanted = [Treatment::Arm(0), Treatment::Arm(1), Treatment::Control];
        for _ in 0..50 {
            let mut round: Vec<Treatment> = blocks.by_ref().take(3).map(|block| block.treatment).collect();
            round.sort();
            let mut wanted = wanted.to_vec();
            wanted.sort();
            assert_eq!(round, wanted);
        }
    }

    // Of 4,000 tosses of a fair coin 1,850 to 2,150 are heads, except in one of 500,000 series; neighbours agree as often.
    #[test]
    fn the_order_of_each_block_is_tossed_by_a_fair_coin() {
        for mut blocks in [Blocks::new(1, 9), Blocks::of_servers(1, 9)] {
            let orders: Vec<bool> = blocks.by_ref().take(4_001).map(|block| block.plain_outside).collect();
            let heads = orders[1..].iter().filter(|outside| **outside).count();
            let alike = orders.windows(2).filter(|pair| pair[0] == pair[1]).count();
            assert!((1_850..2_150).contains(&heads) && (1_850..2_150).contains(&alike), "{heads} {alike}");
        }
    }

    #[test]
    fn three_servers_are_loaded_equally_often() {
        let mut blocks = Blocks::of_servers(1, 3);
        assert_eq!(blocks.round(), 3);
        let mut loads = [0; 3];
        for block in blocks.by_ref().take(30) {
            let plain = usize::from(block.second_plain) * 2;
            let treated = block.treatment.arm().map_or(2, |arm| arm + 1);
            assert_ne!(plain, treated, "{block:?}");
            loads[plain] += 1;
            loads[treated] += 1;
        }
        assert_eq!(loads, [20; 3]);
    }
}
