//! The schedule of a run.
//!
//! In each round every variant runs once. Rounds come in pairs: a random order, then its reverse. Two variants give
//! ABBA or BAAB, drawn at random. A linear drift over the four bursts, and the effect of going first, cancel exactly in
//! the mean of the two log ratios; periodic disturbances meet a random order.

use crate::random::Random;

/// The endless sequence of rounds that a seed gives. Each item is the order of one round, as variant numbers.
#[derive(Clone, Debug)]
pub struct Schedule {
    variants: usize,
    random: Random,
    mirrored: Option<Vec<usize>>,
}

impl Schedule {
    /// Returns the schedule for this number of variants. Equal seeds give equal schedules.
    pub fn new(variants: usize, seed: u64) -> Self {
        Self { variants, random: Random::new(seed), mirrored: None }
    }

    /// The order of the next round.
    pub fn next_round(&mut self) -> Vec<usize> {
        if let Some(order) = self.mirrored.take() {
            return order;
        }
        let mut order: Vec<usize> = (0..self.variants).collect();
        self.random.shuffle(&mut order);
        self.mirrored = Some(order.iter().rev().copied().collect());
        order
    }
}

impl Iterator for Schedule {
    type Item = Vec<usize>;
    fn next(&mut self) -> Option<Self::Item> {
        Some(self.next_round())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_round_is_a_permutation_and_every_second_one_the_first_backwards(
            variants in 1usize..7, seed: u64, twos in 1usize..20,
        ) {
            let rounds: Vec<_> = Schedule::new(variants, seed).take(2 * twos).collect();
            for pair in rounds.chunks(2) {
                let mut sorted = pair[0].clone();
                sorted.sort_unstable();
                prop_assert_eq!(sorted, (0..variants).collect::<Vec<_>>());
                prop_assert!(pair[0].iter().eq(pair[1].iter().rev()));
            }
        }

        #[test]
        fn every_variant_goes_before_every_other_as_often_as_behind_it(
            variants in 2usize..6, seed: u64, twos in 1usize..20,
        ) {
            let mut lead = vec![vec![0i32; variants]; variants];
            for round in Schedule::new(variants, seed).take(2 * twos) {
                for (position, &first) in round.iter().enumerate() {
                    for &second in &round[position + 1..] {
                        lead[first][second] += 1;
                        lead[second][first] -= 1;
                    }
                }
            }
            prop_assert!(lead.iter().flatten().all(|&l| l == 0));
        }

        #[test]
        fn the_seed_alone_decides(variants in 1usize..6, seed: u64) {
            let take = || Schedule::new(variants, seed).take(10).collect::<Vec<_>>();
            prop_assert_eq!(take(), take());
        }
    }

    #[test]
    fn both_orders_of_a_pair_come_up_about_equally_often_in_front() {
        let first_a = Schedule::new(2, 7).step_by(2).take(1000).filter(|order| order[0] == 0).count();
        assert!((430..570).contains(&first_a), "{first_a}");
    }
}
