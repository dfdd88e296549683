//! Tries of a lift that finds no huge pages: pages can become free.

use std::time::Duration;

/// Number of tries until an arm counts as one that lifts nothing.
const TRIES: usize = 3;
/// Pause before the second try; the next one is four times as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The pauses before the second and each later try.
pub(crate) fn pauses() -> impl Iterator<Item = Duration> {
    std::iter::successors(Some(FIRST_PAUSE), |pause| Some(*pause * 4)).take(TRIES - 1)
}
