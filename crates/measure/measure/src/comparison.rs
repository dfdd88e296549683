//! Compares two variants by their samples.

use crate::sample::{Clock, Sample};
use crate::statistics::{BlockValue, Estimate, estimate, median};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One variant beside the baseline, on one workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Number of the workload.
    pub workload: usize,
    /// Number of the baseline variant.
    pub baseline: usize,
    /// Number of the variant compared with it.
    #[serde(rename = "contestant")]
    pub variant: usize,
    /// The clock used.
    pub clock: Clock,
    /// Time of the variant over time of the baseline: below 1 is faster.
    pub ratio: Estimate,
    /// Time of the variant less time of the baseline, in nanoseconds a burst.
    pub difference: Estimate,
    /// Median time of a burst of the baseline, in nanoseconds. It drifts with the machine; only the ratio is a result.
    pub baseline_nanoseconds: f64,
    /// Median time of a burst of the variant, in nanoseconds.
    #[serde(rename = "contestant_nanoseconds")]
    pub variant_nanoseconds: f64,
    /// The effect of running before the baseline, as a factor on the ratio. It cancels in the ratio; if it is far from
    /// 1, the bursts are too short.
    pub order_effect: f64,
    /// Rounds used: warm-ups and a round without its mirror are not.
    pub rounds: usize,
}

/// The verdict that a comparison supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The variant takes less time than the baseline.
    Faster,
    /// The variant takes more time than the baseline.
    Slower,
    /// The interval holds 1, or the baseline differs from itself by as much.
    NoDifferenceSeen,
}

impl Comparison {
    /// The verdict. `null` is the comparison of the baseline with another process of the same kind, if there is one: a
    /// difference not greater than the far end of its interval is not called a difference.
    pub fn verdict(&self, null: Option<&Comparison>) -> Verdict {
        let floor = null.map_or(0.0, |n| n.ratio.low.ln().abs().max(n.ratio.high.ln().abs()));
        let centre = self.ratio.centre.ln();
        if self.ratio.high < 1.0 && -centre > floor {
            Verdict::Faster
        } else if self.ratio.low > 1.0 && centre > floor {
            Verdict::Slower
        } else {
            Verdict::NoDifferenceSeen
        }
    }

    /// The verdict for people, in percent of the baseline's speed: `19.0 % faster`.
    pub fn in_words(&self, null: Option<&Comparison>) -> String {
        let percent = (1.0 / self.ratio.centre - 1.0) * 100.0;
        match self.verdict(null) {
            Verdict::Faster => format!("{percent:.1} % faster"),
            Verdict::Slower => format!("{:.1} % slower", -percent),
            Verdict::NoDifferenceSeen => "no difference seen".to_owned(),
        }
    }
}

/// One round of the two: times in nanoseconds, and whether the variant went first.
#[derive(Clone, Copy)]
struct Pair {
    generation: u32,
    baseline: f64,
    variant: f64,
    variant_first: bool,
}

/// Compares `variant` with `baseline` on `workload`; `None` if there are too few whole blocks for an interval
/// or the clock was not read. The seed steers only the resampling.
pub fn compare(
    samples: &[Sample],
    workload: usize,
    baseline: usize,
    variant: usize,
    clock: Clock,
    seed: u64,
) -> Option<Comparison> {
    let blocks = mirrored_pairs(samples, workload, baseline, variant, clock);
    let values = |of: fn(&Pair) -> f64| -> Vec<BlockValue> {
        let value = |[a, b]: &[Pair; 2]| BlockValue { generation: a.generation, value: (of(a) + of(b)) / 2.0 };
        blocks.iter().map(value).collect()
    };
    let ratio = estimate(&values(|p| (p.variant / p.baseline).ln()), seed)?.map(f64::exp);
    let difference = estimate(&values(|p| p.variant - p.baseline), seed)?;
    let all = || blocks.iter().flatten();
    Some(Comparison {
        workload,
        baseline,
        variant,
        clock,
        ratio,
        difference,
        baseline_nanoseconds: median(&all().map(|p| p.baseline).collect::<Vec<_>>())?,
        variant_nanoseconds: median(&all().map(|p| p.variant).collect::<Vec<_>>())?,
        order_effect: order_effect(&blocks)?,
        rounds: 2 * blocks.len(),
    })
}

/// The rounds in which both ran, as blocks of two mirrored ones, in time order.
fn mirrored_pairs(
    samples: &[Sample],
    workload: usize,
    baseline: usize,
    variant: usize,
    clock: Clock,
) -> Vec<[Pair; 2]> {
    let mut rounds: BTreeMap<(u32, u32), [Option<&Sample>; 2]> = BTreeMap::new();
    for sample in samples.iter().filter(|s| s.workload == workload && !s.warm_up) {
        let round = rounds.entry((sample.generation, sample.round)).or_default();
        if sample.variant == baseline {
            round[0] = Some(sample);
        }
        if sample.variant == variant {
            round[1] = Some(sample);
        }
    }
    let pair = |(generation, round): (u32, u32)| {
        let [baseline, variant] = *rounds.get(&(generation, round))?;
        let (baseline, variant) = (baseline?, variant?);
        Some(Pair {
            generation,
            baseline: baseline.nanoseconds(clock).filter(|&n| n > 0)? as f64,
            variant: variant.nanoseconds(clock).filter(|&n| n > 0)? as f64,
            variant_first: variant.position < baseline.position,
        })
    };
    let firsts = rounds.keys().filter(|(_, round)| round % 2 == 0);
    firsts
        .filter_map(|&(generation, round)| Some([pair((generation, round))?, pair((generation, round + 1))?]))
        .collect()
}

fn order_effect(blocks: &[[Pair; 2]]) -> Option<f64> {
    let signed = |p: &Pair| (p.variant / p.baseline).ln() * if p.variant_first { 0.5 } else { -0.5 };
    let effects: Vec<f64> = blocks.iter().map(|block| block.iter().map(signed).sum::<f64>()).collect();
    median(&effects).map(f64::exp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::schedule::Schedule;
    use proptest::prelude::*;

    /// Samples of a machine whose speed drifts: `cost[c]` is variant c's true time, `drift` the growth per burst.
    fn simulate(cost: &[f64], rounds: u32, generations: u32, drift: f64, first: f64, seed: u64) -> Vec<Sample> {
        let mut random = Random::new(seed);
        let mut samples = Vec::new();
        let mut now = 0.0f64;
        for generation in 0..generations {
            for (round, order) in (0..rounds).zip(Schedule::new(cost.len(), random.next())) {
                for (position, &variant) in order.iter().enumerate() {
                    now += 1.0;
                    let jitter = 1.0 + 0.002 * (random.below(1001) as f64 / 500.0 - 1.0);
                    let place = if position == 0 { first } else { 1.0 };
                    let time = 1e7 * cost[variant] * (drift * now).exp() * jitter * place;
                    let wall_nanoseconds = time as u64;
                    let position = position as u32;
                    samples.push(Sample {
                        generation,
                        round,
                        position,
                        variant,
                        workload: 0,
                        wall_nanoseconds,
                        cpu_nanoseconds: None,
                        checksum: None,
                        warm_up: false,
                    });
                }
            }
        }
        samples
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn drift_and_order_do_not_move_the_ratio(
            cost in 0.5f64..2.0, drift in -0.005f64..0.005, first in 0.9f64..1.2, generations in 1u32..6, seed: u64,
        ) {
            let samples = simulate(&[1.0, cost], 40, generations, drift, first, seed);
            let c = compare(&samples, 0, 0, 1, Clock::Wall, seed).unwrap();
            prop_assert!((c.ratio.centre / cost - 1.0).abs() < 0.002, "{} for {cost}", c.ratio.centre);
            prop_assert!((c.order_effect / first - 1.0).abs() < 0.02, "{} for {first}", c.order_effect);
            prop_assert_eq!(c.rounds, 40 * generations as usize);
        }

        #[test]
        fn exchanging_the_two_inverts_the_ratio(cost in 0.5f64..2.0, seed: u64) {
            let samples = simulate(&[1.0, cost], 30, 1, 0.001, 1.0, seed);
            let there = compare(&samples, 0, 0, 1, Clock::Wall, 1).unwrap();
            let back = compare(&samples, 0, 1, 0, Clock::Wall, 1).unwrap();
            prop_assert!((there.ratio.centre * back.ratio.centre - 1.0).abs() < 1e-9);
            prop_assert!((there.ratio.median * back.ratio.median - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn a_program_against_itself_shows_no_difference() {
        let samples = simulate(&[1.0, 1.0, 0.9, 1.1], 60, 1, 0.004, 1.1, 5);
        let against = |variant| compare(&samples, 0, 0, variant, Clock::Wall, 1).unwrap();
        let null = against(1);
        assert_eq!(null.verdict(None), Verdict::NoDifferenceSeen, "{null:?}");
        assert_eq!(against(2).verdict(Some(&null)), Verdict::Faster);
        assert_eq!(against(3).verdict(Some(&null)), Verdict::Slower);
        assert_eq!(null.in_words(None), "no difference seen");
        assert!(against(2).in_words(None).ends_with("% faster"), "{}", against(2).in_words(None));
        assert!(against(3).in_words(None).ends_with("% slower"), "{}", against(3).in_words(None));
    }

    /// A comparison with this ratio and interval.
    fn of_ratio(centre: f64, low: f64, high: f64) -> Comparison {
        let comparison = compare(&simulate(&[1.0, 1.0], 40, 1, 0.0, 1.0, 5), 0, 0, 1, Clock::Wall, 1).unwrap();
        Comparison { ratio: Estimate { centre, low, high, ..comparison.ratio }, ..comparison }
    }

    #[test]
    fn an_interval_that_reaches_one_shows_no_difference() {
        for (low, high, verdict) in [
            (0.7, 0.9, Verdict::Faster),
            (0.7, 1.0, Verdict::NoDifferenceSeen),
            (1.0, 1.3, Verdict::NoDifferenceSeen),
            (1.1, 1.3, Verdict::Slower),
        ] {
            assert_eq!(of_ratio((low + high) / 2.0, low, high).verdict(None), verdict, "{low} to {high}");
        }
        // As far from 1 as the baseline from itself is not farther.
        let (faster, slower) = (of_ratio(0.5, 0.4, 0.6), of_ratio(2.0, 1.9, 2.1));
        for null in [of_ratio(1.0, 0.5, 1.0), of_ratio(1.0, 1.0, 2.0)] {
            assert_eq!(faster.verdict(Some(&null)), Verdict::NoDifferenceSeen);
            assert_eq!(slower.verdict(Some(&null)), Verdict::NoDifferenceSeen);
        }
        let null = of_ratio(1.0, 0.51, 1.9);
        assert_eq!((faster.verdict(Some(&null)), slower.verdict(Some(&null))), (Verdict::Faster, Verdict::Slower));
    }

    #[test]
    fn words_are_percent_of_the_baselines_speed() {
        assert_eq!(of_ratio(0.8, 0.79, 0.81).in_words(None), "25.0 % faster");
        assert_eq!(of_ratio(1.25, 1.24, 1.26).in_words(None), "20.0 % slower");
    }

    #[test]
    fn the_difference_is_in_nanoseconds_and_bursts_without_time_do_not_count() {
        let mut samples = simulate(&[1.0, 1.5], 40, 1, 0.0, 1.0, 5);
        let whole = compare(&samples, 0, 0, 1, Clock::Wall, 1).unwrap();
        assert!((whole.difference.centre / 5e6 - 1.0).abs() < 0.01, "{:?}", whole.difference);
        for (round, variant) in [(2, 0), (7, 1)] {
            let burst = samples.iter_mut().find(|sample| sample.round == round && sample.variant == variant);
            burst.unwrap().wall_nanoseconds = 0;
        }
        assert_eq!(compare(&samples, 0, 0, 1, Clock::Wall, 1).unwrap().rounds, 36);
    }

    #[test]
    fn a_difference_within_the_noise_of_the_null_is_none() {
        let samples = simulate(&[1.0, 0.99, 0.995], 60, 1, 0.0, 1.0, 5);
        let against = |variant| compare(&samples, 0, 0, variant, Clock::Wall, 1).unwrap();
        assert_eq!(against(2).verdict(None), Verdict::Faster);
        assert_eq!(against(2).verdict(Some(&against(1))), Verdict::NoDifferenceSeen);
    }

    #[test]
    fn warm_ups_and_rounds_without_a_mirror_do_not_count() {
        let mut samples = simulate(&[1.0, 1.0], 21, 1, 0.0, 1.0, 5);
        for sample in samples.iter_mut().filter(|s| s.round < 4) {
            sample.warm_up = true;
            sample.wall_nanoseconds *= 1 + sample.variant as u64 * 100;
        }
        let c = compare(&samples, 0, 0, 1, Clock::Wall, 1).unwrap();
        assert_eq!(c.rounds, 16);
        assert!((c.ratio.centre - 1.0).abs() < 0.01);
    }

    #[test]
    fn a_clock_that_was_not_read_gives_nothing() {
        assert!(compare(&simulate(&[1.0, 1.0], 40, 1, 0.0, 1.0, 5), 0, 0, 1, Clock::Cpu, 1).is_none());
    }
}
