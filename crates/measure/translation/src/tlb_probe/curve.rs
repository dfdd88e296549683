//! Times over footprints, and the levels of the TLB that they show. Pure.

use serde::{Deserialize, Serialize};

/// Translation of one access if `slots` lines are visited in turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Lines, one in each stretch as long as a base page.
    pub slots: usize,
    /// Bytes that these stretches cover.
    pub footprint: u64,
    /// Median time of one access, in ns.
    pub access: f64,
    /// Median of the additional time compared with packed lines, in ns, pair by pair.
    pub translation: f64,
    /// The first and third quartile of the same.
    pub quartiles: (f64, f64),
}

impl Point {
    /// From the times of spread and packed accesses, taken in pairs, in ns. `None` without any.
    pub fn of_pairs(slots: usize, footprint: u64, pairs: &[(f64, f64)]) -> Option<Self> {
        let access = sorted(pairs.iter().map(|(spread, _)| *spread));
        let differences = sorted(pairs.iter().map(|(spread, packed)| spread - packed));
        let at = |values: &[f64], part: f64| values.get(((values.len() - 1) as f64 * part).round() as usize).copied();
        Some(Self {
            slots,
            footprint,
            access: at(access.first().map(|_| &access[..])?, 0.5)?,
            translation: at(&differences, 0.5)?,
            quartiles: (at(&differences, 0.25)?, at(&differences, 0.75)?),
        })
    }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// Points by rising footprint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Curve {
    /// The points.
    pub points: Vec<Point>,
}

/// The properties of the TLB according to a curve. A reach is the largest measured footprint at which the level still
/// suffices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Levels {
    /// Footprint without a measurable cost: the first level's reach. Absent if even the smallest costs.
    pub first_reach: Option<u64>,
    /// Cost of an access that misses the first level and hits the second, in ns. Absent if the curve never rises.
    pub second_hit: Option<f64>,
    /// The second level's reach. Absent if the curve never rises, or ends before it.
    pub second_reach: Option<u64>,
    /// Cost of a page walk, in ns: the rise well beyond the second level's reach. Absent if the curve ends before.
    pub walk: Option<f64>,
}

/// Times below this count as none, in ns: about a cycle.
const NOISE: f64 = 0.4;
/// A level ends if an access costs this many times its usual cost.
const RISE: f64 = 2.0;
/// A walk is seen from this many times the second level's reach on: below, some accesses still hit.
pub(crate) const BEYOND: u64 = 4;

impl Curve {
    /// The smallest difference of two times that this curve can show, in ns.
    pub fn resolution(&self) -> f64 {
        let spans = sorted(self.points.iter().map(|point| (point.quartiles.1 - point.quartiles.0).abs()));
        spans.get(spans.len() / 2).copied().unwrap_or(0.0).max(NOISE)
    }

    /// The times smoothed so that they never fall with the footprint: at each point the mean of the stretch that falls
    /// (pool adjacent violators).
    pub fn rising(&self) -> Vec<f64> {
        let mut pools: Vec<(f64, usize)> = Vec::new();
        for point in &self.points {
            pools.push((point.translation, 1));
            while let [.., (before, many), (last, few)] = pools[..]
                && before > last
            {
                let mean = (before * many as f64 + last * few as f64) / (many + few) as f64;
                pools.truncate(pools.len() - 2);
                pools.push((mean, many + few));
            }
        }
        pools.into_iter().flat_map(|(value, count)| std::iter::repeat_n(value, count)).collect()
    }

    /// The levels that the curve shows.
    pub fn levels(&self) -> Levels {
        let (times, resolution) = (self.rising(), self.resolution());
        let free = times.iter().take_while(|time| **time <= resolution).count();
        let first_reach = free.checked_sub(1).map(|last| self.points[last].footprint);
        let Some(start) = self.points.get(free).map(|point| point.footprint) else {
            return Levels { first_reach, ..Levels::default() };
        };
        // The plateau behind the first rise: the cost of two to eight times the first level's reach.
        let plateau = |point: &&(u64, f64)| point.0 >= start && point.0 <= start.saturating_mul(BEYOND);
        let all: Vec<(u64, f64)> = self.points.iter().map(|point| point.footprint).zip(times).collect();
        let costs = sorted(all.iter().filter(plateau).map(|(_, time)| *time));
        let second_hit = costs.get(costs.len() / 2).copied();
        let limit = second_hit.unwrap_or(0.0) * RISE + resolution;
        let second_reach = all.iter().take_while(|(_, time)| *time <= limit).last().map(|(footprint, _)| *footprint);
        let is_last = second_reach == all.last().map(|(footprint, _)| *footprint);
        let beyond = second_reach.map_or(u64::MAX, |reach| reach.saturating_mul(BEYOND));
        let walks = sorted(all.iter().filter(|(footprint, _)| *footprint >= beyond).map(|(_, time)| *time));
        Levels {
            first_reach,
            second_hit,
            second_reach: second_reach.filter(|_| !is_last),
            walk: walks.get(walks.len() / 2).copied().filter(|_| !is_last),
        }
    }

    /// The translation at this footprint or, if it was not measured, at the next smaller one.
    pub fn translation_at(&self, footprint: u64) -> Option<f64> {
        let below = |point: &&Point| point.footprint <= footprint;
        self.points.iter().filter(below).max_by_key(|point| point.footprint).map(|point| point.translation.max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: u64 = 4096;

    fn curve(of: impl Fn(usize) -> f64) -> Curve {
        let slots = (4..=16).flat_map(|bits| [1usize << bits, 3 << (bits - 1)]);
        let points = slots.map(|slots| {
            let time = of(slots);
            let near = (time - 0.1, time + 0.1);
            Point { slots, footprint: slots as u64 * PAGE, access: time + 2.0, translation: time, quartiles: near }
        });
        Curve { points: points.collect() }
    }

    /// A first level of 64 entries, a second of 2048, and walks.
    fn known(slots: usize) -> f64 {
        match slots {
            ..=64 => 0.0,
            65..=2048 => 2.5,
            2049..=3072 => 14.0,
            _ => 22.0,
        }
    }

    #[test]
    fn levels_of_a_known_curve() {
        let levels = curve(known).levels();
        assert_eq!(levels.first_reach, Some(64 * PAGE));
        assert_eq!(levels.second_hit, Some(2.5));
        assert_eq!(levels.second_reach, Some(2048 * PAGE));
        assert_eq!(levels.walk, Some(22.0));
    }

    #[test]
    fn a_flat_curve_has_no_second_level() {
        let levels = curve(|_| 0.1).levels();
        assert_eq!(levels, Levels { first_reach: Some(98304 * PAGE), ..Levels::default() });
    }

    #[test]
    fn a_curve_that_ends_on_the_second_level_shows_no_walk() {
        let levels = curve(|slots| if slots <= 1024 { 0.0 } else { 3.0 }).levels();
        assert_eq!((levels.second_hit, levels.second_reach, levels.walk), (Some(3.0), None, None));
    }

    #[test]
    fn pairs_cancel_what_both_have() {
        let pairs = [(10.0, 4.0), (30.0, 24.0), (12.0, 6.0)];
        let point = Point::of_pairs(16, 16 * PAGE, &pairs).unwrap();
        assert_eq!((point.access, point.translation, point.quartiles), (12.0, 6.0, (6.0, 6.0)));
        assert!(Point::of_pairs(16, 16 * PAGE, &[]).is_none());
    }

    proptest! {
        #[test]
        fn smoothed_times_never_fall_and_keep_their_sum(times in prop::collection::vec(0.0f64..50.0, 1..40)) {
            let points = times.iter().enumerate().map(|(at, &time)| Point {
                slots: at, footprint: at as u64, access: time, translation: time, quartiles: (time, time),
            });
            let rising = Curve { points: points.collect() }.rising();
            prop_assert!(rising.windows(2).all(|pair| pair[0] <= pair[1] + 1e-9));
            prop_assert!((rising.iter().sum::<f64>() - times.iter().sum::<f64>()).abs() < 1e-6);
        }

        #[test]
        fn noise_does_not_move_the_levels(seed: u64) {
            let random = std::cell::RefCell::new(fastrand::Rng::with_seed(seed));
            let levels = curve(|slots| known(slots) * (0.95 + 0.1 * random.borrow_mut().f64())).levels();
            prop_assert_eq!(levels.first_reach, Some(64 * PAGE));
            prop_assert_eq!(levels.second_reach, Some(2048 * PAGE));
            prop_assert!((levels.walk.unwrap() - 22.0).abs() < 2.0);
        }
    }
}
