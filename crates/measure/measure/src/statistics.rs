//! A robust centre and a confidence interval for block values.
//!
//! A *block* is two mirrored rounds (see [`crate::schedule`]); its value is the mean of the two rounds' log ratios, or
//! of their differences. A *generation* is one set of processes; two processes of the same program differ for their
//! whole lives, by the positions of their pages, and no number of bursts averages that out.
//!
//! - **Centre**: the 20 % trimmed mean of the block values (a fifth is cut off at each end). Bursts that were
//!   interrupted are in the tails and have no weight, while quiet values are used better than by a median.
//! - **Interval, four generations or more**: the centre is the mean of the generations' trimmed means, and the interval
//!   is Student's t interval over them. It includes the differences from process to process.
//! - **Interval, fewer generations**: the wider, at each end, of two. A circular block bootstrap (Politis and Romano, 1992)
//!   of the trimmed mean over all blocks in time order, 2,000 resamples of runs of ⌈n^⅓⌉ neighbours, percentile interval:
//!   neighbours are drawn together because slow drift makes them alike. And Student's t interval of the trimmed mean from
//!   the winsorised variance (Tukey and McLaughlin, 1963): of few blocks the percentile interval alone is too narrow (it
//!   held the truth in 83 of 100 simulated runs of six blocks, 88 of twelve, 94 of sixty; the wider of both in 95 to 97).
//!   Neither includes the differences from process to process.
//! - **Beside it**: the median with the interval that the sign test gives (order statistics of the binomial with one
//!   half), which assumes nothing about the shape of the distribution.
//!
//! All intervals are at 95 %.

use crate::random::Random;
use serde::{Deserialize, Serialize};

/// The confidence of every interval here.
pub const CONFIDENCE: f64 = 0.95;
/// Fewer blocks give no interval: the sign test cannot reach 95 % with fewer than six values.
pub const FEWEST_BLOCKS: usize = 6;
/// With at least this many generations the interval is computed over generations.
pub const GENERATIONS_FOR_T: usize = 4;
const RESAMPLES: usize = 2_000;
const TRIMMED_SHARE: f64 = 0.2;

/// The value of one block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockValue {
    /// The set of processes that gave it.
    pub generation: u32,
    /// Log ratio or difference.
    pub value: f64,
}

/// The method of an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Student's t over the generations' trimmed means.
    GenerationsT,
    /// Circular block bootstrap of the trimmed mean, or Student's t with the winsorised variance if that is wider.
    BlockBootstrap,
}

/// A centre with its interval, and the median with the sign test's interval beside it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Robust centre.
    pub centre: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Confidence of the interval, 0.95.
    pub confidence: f64,
    /// The method of the interval.
    pub method: Method,
    /// Median of all blocks.
    pub median: f64,
    /// Lower end of the sign test's interval for the median.
    pub median_low: f64,
    /// Upper end of the sign test's interval for the median.
    pub median_high: f64,
    /// Blocks used.
    pub blocks: usize,
    /// Generations used.
    pub generations: usize,
}

impl Estimate {
    /// The estimate with every value passed through `transform`, which must be increasing.
    pub fn map(self, transform: impl Fn(f64) -> f64) -> Self {
        Self {
            centre: transform(self.centre),
            low: transform(self.low),
            high: transform(self.high),
            median: transform(self.median),
            median_low: transform(self.median_low),
            median_high: transform(self.median_high),
            ..self
        }
    }
}

/// Centre and interval of block values in time order. `None` below [`FEWEST_BLOCKS`] finite values: nothing can be said.
pub fn estimate(blocks: &[BlockValue], seed: u64) -> Option<Estimate> {
    let blocks: Vec<BlockValue> = blocks.iter().copied().filter(|b| b.value.is_finite()).collect();
    if blocks.len() < FEWEST_BLOCKS {
        return None;
    }
    let values: Vec<f64> = blocks.iter().map(|b| b.value).collect();
    let sorted = sorted(&values);
    let (median_low, median_high) = sign_test_interval(&sorted);
    let centres = generation_centres(&blocks);
    let (centre, low, high, method) = if centres.len() >= GENERATIONS_FOR_T {
        let (centre, half_width) = t_interval(&centres);
        (centre, centre - half_width, centre + half_width, Method::GenerationsT)
    } else {
        let (low, high) = bootstrap_interval(&values, seed);
        let centre = trimmed_mean(&sorted);
        let half_width = trimmed_half_width(&sorted);
        (centre, low.min(centre - half_width), high.max(centre + half_width), Method::BlockBootstrap)
    };
    Some(Estimate {
        centre,
        low,
        high,
        confidence: CONFIDENCE,
        method,
        median: quantile(&sorted, 0.5),
        median_low,
        median_high,
        blocks: blocks.len(),
        generations: centres.len(),
    })
}

/// The weight of each block in the centre of [`estimate`], in the order of the blocks: the weighted sum of their values is the
/// centre. Values that are not finite, and those that the trimmed mean cuts off, have the weight 0. Below [`FEWEST_BLOCKS`]
/// finite values, all finite values have the same weight.
pub fn weights(blocks: &[BlockValue]) -> Vec<f64> {
    let finite: Vec<usize> = (0..blocks.len()).filter(|&at| blocks[at].value.is_finite()).collect();
    let mut weights = vec![0.0; blocks.len()];
    if finite.len() < FEWEST_BLOCKS {
        finite.iter().for_each(|&at| weights[at] = 1.0 / finite.len() as f64);
        return weights;
    }
    let groups: Vec<&[usize]> = finite.chunk_by(|&a, &b| blocks[a].generation == blocks[b].generation).collect();
    let groups = if groups.len() >= GENERATIONS_FOR_T { groups } else { vec![&finite[..]] };
    for group in &groups {
        let mut order = group.to_vec();
        order.sort_by(|&a, &b| blocks[a].value.total_cmp(&blocks[b].value));
        let kept = kept(&order);
        kept.iter().for_each(|&at| weights[at] = 1.0 / (kept.len() * groups.len()) as f64);
    }
    weights
}

/// The median of `values` in any order; `None` for none.
pub fn median(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| quantile(&sorted(values), 0.5))
}

/// The quantile of `sorted` values, which must not be empty, interpolated between neighbours.
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share.clamp(0.0, 1.0) * (sorted.len() - 1) as f64;
    let (below, above) = (place.floor() as usize, place.ceil() as usize);
    sorted[below] + (sorted[above] - sorted[below]) * (place - below as f64)
}

/// The values in increasing order.
pub fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

/// Mean of the rest of `sorted` values, which must not be empty, without a fifth at each end.
fn trimmed_mean(sorted: &[f64]) -> f64 {
    let kept = kept(sorted);
    kept.iter().sum::<f64>() / kept.len() as f64
}

/// `sorted` elements without a fifth at each end.
fn kept<T>(sorted: &[T]) -> &[T] {
    let cut = (sorted.len() as f64 * TRIMMED_SHARE).floor() as usize;
    &sorted[cut..sorted.len() - cut]
}

/// Half of Tukey and McLaughlin's interval at 95 % of the trimmed mean of `sorted` values, at least two of which must be kept.
fn trimmed_half_width(sorted: &[f64]) -> f64 {
    let count = sorted.len();
    let cut = (count as f64 * TRIMMED_SHARE).floor() as usize;
    let kept = count - 2 * cut;
    let winsorised: Vec<f64> = sorted.iter().map(|value| value.clamp(sorted[cut], sorted[count - 1 - cut])).collect();
    let mean = winsorised.iter().sum::<f64>() / count as f64;
    let squares: f64 = winsorised.iter().map(|value| (value - mean).powi(2)).sum();
    let deviation = (squares / (count as f64 - 1.0)).sqrt();
    t_quantile(kept - 1) * deviation * (count as f64).sqrt() / kept as f64
}

fn generation_centres(blocks: &[BlockValue]) -> Vec<f64> {
    let centre_of = |group: &[BlockValue]| trimmed_mean(&sorted(&group.iter().map(|b| b.value).collect::<Vec<_>>()));
    blocks.chunk_by(|a, b| a.generation == b.generation).map(centre_of).collect()
}

/// Mean and half width of Student's t interval at 95 %; needs two values at least.
fn t_interval(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, t_quantile(values.len() - 1) * (variance / count).sqrt())
}

/// The two-sided 95 % quantile of Student's t, from the usual table; beyond it an expansion good to three digits, which
/// is infinite for no degree of freedom.
fn t_quantile(degrees: usize) -> f64 {
    const TABLE: [f64; 20] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
        2.120, 2.110, 2.101, 2.093, 2.086,
    ];
    match degrees {
        1..=20 => TABLE[degrees - 1],
        _ => 1.960 + 2.372 / degrees as f64 + 2.823 / (degrees as f64).powi(2),
    }
}

fn bootstrap_interval(values: &[f64], seed: u64) -> (f64, f64) {
    let mut random = Random::new(seed);
    let count = values.len();
    let run = (count as f64).cbrt().ceil() as usize;
    let mut resample = vec![0.0; count];
    let mut centres: Vec<f64> = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        for part in resample.chunks_mut(run) {
            let start = random.below(count);
            for (offset, slot) in part.iter_mut().enumerate() {
                *slot = values[(start + offset) % count];
            }
        }
        resample.sort_unstable_by(f64::total_cmp);
        centres.push(trimmed_mean(&resample));
    }
    centres.sort_unstable_by(f64::total_cmp);
    let tail = (1.0 - CONFIDENCE) / 2.0;
    (quantile(&centres, tail), quantile(&centres, 1.0 - tail))
}

/// The narrowest pair of order statistics, symmetric in rank, that holds the median with at least 95 %.
fn sign_test_interval(sorted: &[f64]) -> (f64, f64) {
    let count = sorted.len();
    // The chance that at most `k` values out of `count` are below the median, summed until it passes the tail.
    let tail = (1.0 - CONFIDENCE) / 2.0;
    let mut log_term = -(count as f64) * std::f64::consts::LN_2;
    let mut below = log_term.exp();
    let mut rank = 0;
    while below <= tail {
        rank += 1;
        log_term += ((count - rank + 1) as f64 / rank as f64).ln();
        below += log_term.exp();
    }
    let cut = rank.saturating_sub(1);
    (sorted[cut], sorted[count - 1 - cut])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn blocks(values: &[f64], generations: usize) -> Vec<BlockValue> {
        let size = values.len().div_ceil(generations);
        let generation = |i: usize| (i / size) as u32;
        values.iter().enumerate().map(|(i, &value)| BlockValue { generation: generation(i), value }).collect()
    }

    /// Uniform in -1..1.
    fn noise(random: &mut Random) -> f64 {
        (random.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    proptest! {
        #[test]
        fn the_centre_lies_in_its_interval(
            values in prop::collection::vec(-1.0f64..1.0, FEWEST_BLOCKS..80), generations in 1usize..8, seed: u64,
        ) {
            let e = estimate(&blocks(&values, generations), seed).unwrap();
            prop_assert!(e.low <= e.centre && e.centre <= e.high, "{e:?}");
            prop_assert!(e.median_low <= e.median && e.median <= e.median_high, "{e:?}");
            let sorted = sorted(&values);
            prop_assert!(sorted[0] - 1e-9 <= e.centre && e.centre <= sorted[values.len() - 1] + 1e-9);
        }

        #[test]
        fn the_weighted_sum_of_the_values_is_the_centre(
            values in prop::collection::vec(-1.0f64..1.0, FEWEST_BLOCKS..80), generations in 1usize..8, broken in 0usize..100,
        ) {
            let mut blocks = blocks(&values, generations);
            if let Some(block) = blocks.get_mut(broken) {
                block.value = f64::NAN;
            }
            let weights = weights(&blocks);
            prop_assert!((weights.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{weights:?}");
            let counted = blocks.iter().zip(&weights).filter(|(_, weight)| **weight > 0.0);
            let sum: f64 = counted.map(|(block, weight)| block.value * weight).sum();
            if let Some(e) = estimate(&blocks, 1) {
                prop_assert!((sum - e.centre).abs() < 1e-9, "{sum} is not {}", e.centre);
            }
        }

        #[test]
        fn shifting_all_values_shifts_everything(
            values in prop::collection::vec(-1.0f64..1.0, FEWEST_BLOCKS..40), by in -5.0f64..5.0, generations in 1usize..6,
        ) {
            let shifted: Vec<f64> = values.iter().map(|v| v + by).collect();
            let (a, b) = (estimate(&blocks(&values, generations), 1).unwrap(), estimate(&blocks(&shifted, generations), 1).unwrap());
            for (a, b) in [(a.centre, b.centre), (a.low, b.low), (a.high, b.high), (a.median, b.median)] {
                prop_assert!((a + by - b).abs() < 1e-6, "{a} + {by} is not {b}");
            }
        }

        #[test]
        fn a_tenth_of_wild_values_moves_the_centre_no_further_than_the_quiet_ones_spread(
            quiet in prop::collection::vec(-0.01f64..0.01, 45..60), wild in prop::collection::vec(-1e6f64..1e6, 5),
        ) {
            let all: Vec<f64> = quiet.iter().chain(&wild).copied().collect();
            let e = estimate(&blocks(&all, 1), 3).unwrap();
            prop_assert!(e.centre.abs() <= 0.01 && e.median.abs() <= 0.01, "{e:?}");
        }
    }

    #[test]
    fn too_few_or_broken_values_give_no_estimate() {
        assert_eq!(estimate(&blocks(&[0.0; FEWEST_BLOCKS - 1], 1), 0), None);
        assert_eq!(estimate(&blocks(&[f64::NAN; 30], 1), 0), None);
        assert!(estimate(&blocks(&[0.0; FEWEST_BLOCKS], 1), 0).is_some());
    }

    /// The share of 200 simulated null runs in which the interval holds the true value.
    fn coverage(make: impl Fn(&mut Random) -> Vec<BlockValue>) -> f64 {
        let mut random = Random::new(11);
        let holds = (0..200).filter(|&run| {
            let e = estimate(&make(&mut random), run).unwrap();
            e.low <= 0.0 && 0.0 <= e.high
        });
        holds.count() as f64 / 200.0
    }

    #[test]
    fn the_bootstrap_interval_holds_the_truth_about_as_often_as_it_says() {
        let share = coverage(|random| {
            let heavy = |r: &mut Random| noise(r) * if r.below(20) == 0 { 50.0 } else { 1.0 };
            blocks(&(0..60).map(|_| heavy(random)).collect::<Vec<_>>(), 1)
        });
        assert!((0.89..=1.0).contains(&share), "{share}");
    }

    #[test]
    fn few_blocks_give_an_interval_that_holds_the_truth_as_often() {
        for count in [6, 8, 12, 20] {
            let share = coverage(|random| {
                let heavy = |r: &mut Random| noise(r) * if r.below(20) == 0 { 10.0 } else { 1.0 };
                blocks(&(0..count).map(|_| heavy(random)).collect::<Vec<_>>(), 1)
            });
            assert!((0.92..=1.0).contains(&share), "{count} blocks: {share}");
        }
    }

    /// Two of 1 to 10 are cut off at each end. The winsorised values 3, 3, 3, 4, 5, 6, 7, 8, 8, 8 have the mean 5.5 and the
    /// squares' sum 42.5; t of five degrees is 2.571.
    #[test]
    fn the_trimmed_interval_is_that_of_tukey_and_mclaughlin() {
        let values: Vec<f64> = (1..=10).map(f64::from).collect();
        let expected = 2.571 * (42.5f64 / 9.0).sqrt() / (0.6 * 10f64.sqrt());
        assert!((trimmed_half_width(&values) - expected).abs() < 1e-9, "{}", trimmed_half_width(&values));
    }

    #[test]
    fn the_interval_over_generations_holds_the_truth_though_processes_differ() {
        let share = coverage(|random| {
            let mut values = Vec::new();
            for _ in 0..6 {
                let luck = noise(random);
                values.extend((0..20).map(|_| luck + 0.1 * noise(random)));
            }
            blocks(&values, 6)
        });
        assert!((0.89..=1.0).contains(&share), "{share}");
    }

    #[test]
    fn quantiles_lie_between_neighbours() {
        let values = [1.0, 2.0, 4.0, 8.0, 10.0];
        let expected =
            [(0.0, 1.0), (0.25, 2.0), (0.3, 2.4), (0.5, 4.0), (0.9, 9.2), (1.0, 10.0), (-1.0, 1.0), (2.0, 10.0)];
        for (share, value) in expected {
            assert!((quantile(&values, share) - value).abs() < 1e-9, "{share}: {}", quantile(&values, share));
        }
        assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[])), (Some(2.0), None));
    }

    #[test]
    fn students_t_is_that_of_the_table() {
        // The usual table of Student's t, two-sided at 95 %.
        for (degrees, t) in [(1, 12.706), (2, 4.303), (20, 2.086), (21, 2.080), (30, 2.042), (60, 2.000), (120, 1.980)]
        {
            assert!((t_quantile(degrees) - t).abs() < 1.1e-3, "{degrees}: {}", t_quantile(degrees));
        }
        assert_eq!(t_quantile(0), f64::INFINITY);
        // Mean 2.5, variance 5/3 over four values, t of three degrees 3.182.
        let (mean, half_width) = t_interval(&[1.0, 2.0, 3.0, 4.0]);
        assert!(mean == 2.5 && (half_width - 2.053_97).abs() < 1e-4, "{mean} {half_width}");
    }

    /// The interval of symmetric values is symmetric, too.
    #[test]
    fn the_bootstrap_leaves_as_much_out_above_as_below() {
        let mut random = Random::new(3);
        let above: Vec<f64> = (0..40).map(|_| noise(&mut random)).collect();
        let values: Vec<f64> = above.iter().flat_map(|value| [*value, -value]).collect();
        let (low, high) = bootstrap_interval(&values, 5);
        assert!(low < 0.0 && high > 0.0 && (low + high).abs() < 0.1 * (high - low), "{low} to {high}");
    }

    #[test]
    fn every_value_of_an_estimate_is_passed_through() {
        let before = estimate(&blocks(&(0..40).map(f64::from).collect::<Vec<_>>(), 1), 1).unwrap();
        let after = before.map(|value| 2.0 * value + 1.0);
        let values = |e: Estimate| [e.centre, e.low, e.high, e.median, e.median_low, e.median_high];
        assert_eq!(values(after), values(before).map(|value| 2.0 * value + 1.0));
        assert_eq!((after.blocks, after.generations, after.method), (40, 1, Method::BlockBootstrap));
    }

    #[test]
    fn the_sign_interval_takes_the_ranks_of_the_table() {
        // Ranks of the usual table of the sign test's 95 % interval: (n, first rank from 1).
        for (count, rank) in [(6, 1), (9, 2), (10, 2), (20, 6), (50, 18), (100, 40)] {
            let values: Vec<f64> = (1..=count).map(f64::from).collect();
            assert_eq!(sign_test_interval(&values), (f64::from(rank), f64::from(count + 1 - rank)), "{count}");
        }
    }
}
