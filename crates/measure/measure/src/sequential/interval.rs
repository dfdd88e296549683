//! The interval of the median.

use super::Signs;

/// E-value at which a median is excluded on one side. Two sides at 1/40 each leave 95 %.
const EXCLUDED_AT: f64 = 40.0;

/// The median of the blocks, with the interval that holds the true one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MedianInterval {
    /// Lower end.
    pub low: f64,
    /// Median of the blocks.
    pub middle: f64,
    /// Upper end.
    pub high: f64,
}

/// The 95 % interval of the median, from the signs alone: all medians that the evidence of neither side excludes. It holds
/// for any choice of the number of blocks, including an end that depends on the blocks.
///
/// `None` if there are too few blocks to exclude any median on both sides.
pub fn median_interval(values: &[f64]) -> Option<MedianInterval> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let blocks = u32::try_from(sorted.len()).ok()?;
    // A median just below the value with index `index` has this many values above it.
    let excludes = |index: u32| Signs { blocks, on_side: blocks - index }.reaches(EXCLUDED_AT);
    let excluded = (0..blocks).take_while(|&index| excludes(index)).count();
    let index = excluded.checked_sub(1)?;
    let half = sorted.len() / 2;
    let middle = if sorted.len() % 2 == 1 { sorted[half] } else { f64::midpoint(sorted[half - 1], sorted[half]) };
    Some(MedianInterval { low: sorted[index], middle, high: sorted[sorted.len() - 1 - index] })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn few_blocks_have_no_interval() {
        assert_eq!(median_interval(&[]), None);
        assert_eq!(median_interval(&[1.0; 7]), None, "7 of 7 is evidence of 32");
        let interval = median_interval(&[3.0, 1.0, 2.0, 4.0, 5.0, 8.0, 7.0, 6.0]).unwrap();
        assert_eq!(interval, MedianInterval { low: 1.0, middle: 4.5, high: 8.0 });
        assert!(median_interval(&[f64::NAN; 20]).is_none());
    }

    /// The measurement is ended at the moment that is worst for the interval.
    #[test]
    fn the_interval_holds_the_truth_at_any_end() {
        let (mut missed, runs) = (0, 1000);
        for seed in 0..runs {
            let mut random = Random::new(seed);
            let mut values = Vec::new();
            missed += i32::from((0..100).any(|_| {
                values.push(random.below(2_000_001) as f64 - 1e6);
                median_interval(&values).is_some_and(|interval| interval.low > 0.0 || interval.high < 0.0)
            }));
        }
        assert!((1..=50).contains(&missed), "{missed} of {runs}");
    }
}
