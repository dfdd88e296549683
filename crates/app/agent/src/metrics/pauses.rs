//! The histogram of pauses.

use std::time::Duration;

/// Upper bounds of the buckets, in seconds.
pub(super) const BOUNDS: [f64; 11] = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0];

/// The numbers of lifts by the length of their longest pause.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pauses {
    /// Pauses by bucket, those above the last bound at the end.
    counts: [u64; BOUNDS.len() + 1],
    sum: f64,
}

impl Pauses {
    /// Adds a pause.
    pub fn add(&mut self, pause: Duration) {
        let seconds = pause.as_secs_f64();
        let bucket = BOUNDS.iter().position(|&bound| seconds <= bound).unwrap_or(BOUNDS.len());
        self.counts[bucket] += 1;
        self.sum += seconds;
    }

    pub(super) fn sum(&self) -> f64 {
        self.sum
    }

    pub(super) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Upper bound and number of each bucket, not cumulated.
    pub(super) fn buckets(&self) -> Vec<(f64, u64)> {
        BOUNDS.into_iter().chain([f64::INFINITY]).zip(self.counts).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_in_the_bucket_whose_bound_it_does_not_exceed() {
        let mut pauses = Pauses::default();
        for millis in [0, 1, 50, 51, 2000] {
            pauses.add(Duration::from_millis(millis));
        }
        let filled: Vec<f64> =
            pauses.buckets().into_iter().filter(|(_, count)| *count > 0).map(|(bound, _)| bound).collect();
        assert_eq!(filled, [0.0005, 0.001, 0.05, 0.1, f64::INFINITY]);
        assert_eq!((pauses.count(), pauses.sum()), (5, 2.102));
    }
}
