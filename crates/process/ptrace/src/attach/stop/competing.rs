//! Finds out whether the program's threads compete for CPUs.
//!
//! Each call of a stopped thread takes two returns from a stop. Where more threads compute than there are CPUs, each return waits until
//! the scheduler has let others run: with 16 threads on two CPUs about 25 ms, and a lift takes some forty returns. All threads
//! together stop within a millisecond or two, since each needs the CPU for no longer than it takes to stop; then the calls are
//! made at once.

use super::{LiveProcess, StopError};
use crate::remote::status::{is_runnable, sleeps_uninterruptibly};
use crate::remote::thread_list::user_threads;
use nix::unistd::Pid;

/// Maximum number of threads that are all stopped for the calls of one: each takes about 30 µs to stop and to release.
const MOST_THREADS: usize = 512;

impl LiveProcess {
    /// Finds one thread that can make calls. If the threads compete, all are stopped.
    pub(super) fn find_one(&mut self) -> Result<Pid, StopError> {
        if self.may_stop_all && self.threads_compete() {
            match self.stop_all_for_one() {
                Err(error) if !matches!(error, StopError::Gone | StopError::Executed | StopError::Lost(_)) => {
                    // Not tried again: a thread that does not stop now may not for long.
                    self.may_stop_all = false;
                    self.release_all();
                }
                found => return found,
            }
        }
        self.find_one_alone()
    }

    /// True if more threads compute than the program has CPUs, not too many threads would have to be stopped, and none is in
    /// uninterruptible sleep, which would delay the others.
    pub fn threads_compete(&self) -> bool {
        let Ok(listing) = user_threads(self.pid, |_| true) else { return false };
        let cpus = linux::cpus::allowed_to(self.pid.as_raw()).unwrap_or(1);
        if listing.threads.len() <= cpus || listing.threads.len() > MOST_THREADS {
            return false;
        }
        let sleeps = |&thread: &i32| sleeps_uninterruptibly(self.pid, thread);
        listing.threads.iter().filter(|&&thread| is_runnable(self.pid, thread)).count() > cpus
            && !listing.threads.iter().any(sleeps)
    }
}

/// Set in the environment of the tests' program whose threads compute.
#[cfg(test)]
pub const COMPUTES: &str = "PAGELIFT_TEST_COMPUTES";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::stop::exec::tracer_of;
    use crate::test_program;
    use std::io::{BufRead, BufReader, stdin};
    use std::thread;
    use std::time::{Duration, Instant};

    /// That program: the test's thread waits, and so does the first one.
    #[test]
    fn program_that_computes() {
        if std::env::var_os(COMPUTES).is_some() {
            let spawn = |_| thread::spawn(|| while !std::hint::black_box(false) {});
            drop((0..computing()).map(spawn).collect::<Vec<_>>());
            println!("\nready");
            stdin().lines().next();
        }
    }

    fn computing() -> usize {
        linux::cpus::allowed_to(0).unwrap() + 1
    }

    #[test]
    fn threads_that_compete_are_stopped_with_the_one_that_makes_calls_and_let_go_with_it() {
        let mut child = test_program::spawn("attach::stop::competing::tests::program_that_computes", COMPUTES);
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        lines.map(Result::unwrap).find(|line| line == "ready").unwrap();
        let mut process = LiveProcess::new(child.id() as i32);
        let all = process.threads(|_| true).unwrap().threads.len();
        // Threads that have just been started may not have been given a CPU yet.
        let deadline = Instant::now() + Duration::from_secs(60);
        while !process.threads_compete() && Instant::now() < deadline {
            thread::yield_now();
        }
        let chosen = process.stop_one().unwrap();
        let held: Vec<Pid> = process.threads_held().collect();
        process.release_all();
        let still_traced: Vec<Pid> = held.iter().copied().filter(|&thread| tracer_of(thread).is_some()).collect();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(held.len() == all && held.contains(&chosen), "{held:?} of {all}");
        assert_eq!(still_traced, []);
    }

    #[test]
    fn a_thread_that_nobody_competes_with_is_stopped_alone() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = LiveProcess::new(child.id() as i32);
        let compete = process.threads_compete();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!compete);
    }
}
