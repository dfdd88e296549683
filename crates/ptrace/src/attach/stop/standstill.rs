//! Measures for how long a program was stopped.

use std::time::Duration;

/// Times for which all threads of a program were stopped, from the first request to stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standstill {
    /// Longest single stop.
    pub longest: Duration,
    /// Sum of all stops.
    pub total: Duration,
    /// Maximum number of threads stopped at once.
    pub threads: usize,
}

impl Standstill {
    /// Adds a stop of so many threads.
    pub(super) fn add(&mut self, duration: Duration, threads: usize) {
        self.longest = self.longest.max(duration);
        self.total += duration;
        self.threads = self.threads.max(threads);
    }
}
