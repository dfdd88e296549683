//! Measures for how long a program was stopped.

use std::time::Duration;

/// Times for which threads of a program were stopped, from the first request to stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standstill {
    /// All threads: longest single stop.
    pub longest: Duration,
    /// All threads: sum of all stops.
    pub total: Duration,
    /// Maximum number of threads stopped at once.
    pub threads: usize,
    /// One thread: longest single stop.
    pub longest_of_one: Duration,
}

impl Standstill {
    /// Adds a stop of so many threads.
    pub(super) fn add(&mut self, duration: Duration, threads: usize) {
        self.longest = self.longest.max(duration);
        self.total += duration;
        self.threads = self.threads.max(threads);
    }

    /// Adds a stop of one thread.
    pub(super) fn add_one(&mut self, duration: Duration) {
        self.longest_of_one = self.longest_of_one.max(duration);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::stop::LiveProcess;
    use std::process::Command;
    use std::thread;
    use std::time::Instant;

    #[test]
    fn only_the_time_from_the_request_to_the_release_counts_as_a_stop_of_one() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let status = format!("/proc/{}/status", child.id());
        let sleeps = |status: String| status.starts_with("Name:\tsleep") && status.contains("State:\tS");
        let limit = Instant::now() + Duration::from_secs(60);
        while !std::fs::read_to_string(&status).is_ok_and(sleeps) && Instant::now() < limit {
            thread::sleep(Duration::from_millis(1));
        }
        let mut process = LiveProcess::new(child.id() as i32);
        let started = Instant::now();
        process.stop_one().unwrap();
        thread::sleep(Duration::from_millis(2));
        process.release_all();
        let (one, took) = (process.standstill(), started.elapsed());
        process.stop_all().unwrap();
        process.release_all();
        let all = process.standstill();
        // A search that stops nothing.
        drop((child.kill(), child.wait()));
        process.stop_one().unwrap_err();
        assert_eq!(process.standstill(), all);
        assert!((Duration::from_millis(2)..took).contains(&one.longest_of_one), "{one:?} in {took:?}");
        assert_eq!((one.longest, one.threads, all.longest_of_one), (Duration::ZERO, 0, one.longest_of_one));
        assert!(all.total > Duration::ZERO && all.threads == 1, "{all:?}");
    }

    #[test]
    fn the_longest_stops_of_one_and_of_all_are_kept_apart() {
        let mut standstill = Standstill::default();
        let milliseconds = Duration::from_millis;
        [3, 5, 4].into_iter().for_each(|time| standstill.add_one(milliseconds(time)));
        [(2, 7), (1, 9)].into_iter().for_each(|(time, threads)| standstill.add(milliseconds(time), threads));
        let (longest, total, longest_of_one) = (milliseconds(2), milliseconds(3), milliseconds(5));
        assert_eq!(standstill, Standstill { longest, total, threads: 9, longest_of_one });
    }
}
