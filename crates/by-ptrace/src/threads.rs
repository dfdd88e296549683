//! Stops every other thread of a process.

use crate::live::restart;
use crate::requests;
use crate::status::is_ending;
use crate::thread_list::user_threads;
use crate::wait::{self, Report};
use nix::errno::Errno;
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::io;

/// How often the list of threads is read until no new one shows up.
const ROUNDS: usize = 1000;

/// The other threads of a process, all in a ptrace stop. They go on when this is released.
#[derive(Debug, Default)]
pub struct StoppedThreads {
    /// Thread and the signal that it stopped for (0: none), which is delivered when it goes on.
    threads: BTreeMap<i32, i32>,
}

impl StoppedThreads {
    /// Stops every thread but `leader`, which is stopped already. `traced` tells which are traced by us already.
    ///
    /// # Errors
    /// Where a thread cannot be traced; those stopped so far go on again.
    pub fn stop(leader: Pid, options: i32, traced: impl Fn(i32) -> bool) -> io::Result<Self> {
        let mut stopped = Self::default();
        for _ in 0..ROUNDS {
            let new = user_threads(leader, |t| t != leader.as_raw() && !stopped.threads.contains_key(&t))?;
            if new.threads.is_empty() && new.is_complete {
                return Ok(stopped);
            }
            for thread in new.threads {
                if let Err(errno) = stopped.stop_one(Pid::from_raw(thread), options, traced(thread)) {
                    // A thread that is on its way out cannot be traced any more, and needs no stopping.
                    if errno == Errno::EPERM && is_ending(leader, thread) {
                        continue;
                    }
                    stopped.release();
                    return Err(errno.into());
                }
            }
        }
        stopped.release();
        Err(io::Error::other("the process starts threads faster than they can be stopped"))
    }

    fn stop_one(&mut self, thread: Pid, options: i32, traced: bool) -> Result<(), Errno> {
        let started = if traced {
            requests::interrupt(thread)
        } else {
            requests::seize(thread, options).and_then(|()| requests::interrupt(thread))
        };
        match started {
            // A thread that ends meanwhile needs no stopping.
            Err(Errno::ESRCH) => return Ok(()),
            other => other?,
        }
        let report = match wait::wait_for(thread) {
            Ok(Report::Ended) | Err(Errno::ECHILD) => return Ok(()),
            report => report?,
        };
        let signal = report.delivered_signal();
        let _ = restart::mend(thread, thread, signal, None);
        self.threads.insert(thread.as_raw(), signal);
        Ok(())
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.threads.len()
    }

    /// Lets them go, no longer traced, each with the signal it had stopped for.
    pub fn release(&mut self) {
        for (thread, signal) in std::mem::take(&mut self.threads) {
            // A thread that was killed meanwhile is gone, and that is all that can be wrong.
            let _ = requests::detach(Pid::from_raw(thread), signal);
        }
    }

    /// Lets them go on but keeps them traced.
    pub fn resume(&mut self) -> Vec<i32> {
        let threads = std::mem::take(&mut self.threads);
        for (thread, signal) in &threads {
            let _ = requests::resume(Pid::from_raw(*thread), requests::Resume::Continue, *signal);
        }
        threads.into_keys().collect()
    }
}
