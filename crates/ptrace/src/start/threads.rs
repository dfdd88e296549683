//! Stops every other thread of a process.

use crate::remote::reaping;
use crate::remote::requests::Resume;
use crate::remote::restart;
use crate::remote::status::is_ending;
use crate::remote::thread_list::user_threads;
use crate::remote::tracee::{Running, Stopped, Waited};
use nix::errno::Errno;
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::io;

/// Number of times that the list of threads is read until it shows no new one.
const ROUNDS: usize = 1000;

/// The other threads of a process, all in a ptrace stop.
#[derive(Debug, Default)]
pub struct StoppedThreads {
    /// Each with the signal that it stopped for (0: none), which it gets when it is resumed.
    threads: BTreeMap<i32, (Stopped, i32)>,
}

impl StoppedThreads {
    /// Stops every thread but `leader`, which is stopped already. `traced` tells which ones this process traces already.
    ///
    /// # Errors
    /// Where a thread cannot be traced; those stopped so far are released.
    pub fn stop(leader: Pid, options: i32, traced: impl Fn(i32) -> bool) -> io::Result<Self> {
        let mut stopped = Self::default();
        for _ in 0..ROUNDS {
            let new = user_threads(leader, |t| t != leader.as_raw() && !stopped.threads.contains_key(&t))?;
            if new.threads.is_empty() && new.is_complete {
                return Ok(stopped);
            }
            let with_stopped: Vec<i32> = stopped.threads.keys().chain(&new.threads).copied().collect();
            let result = reaping::while_tracing(&with_stopped, || {
                new.threads.iter().try_for_each(|&thread| {
                    match stopped.stop_one(Pid::from_raw(thread), options, traced(thread)) {
                        // A thread that is ending cannot be traced any more, and need not be stopped.
                        Err(Errno::EPERM) if is_ending(leader, thread) => Ok(()),
                        result => result,
                    }
                })
            });
            if let Err(errno) = result {
                stopped.release();
                return Err(errno.into());
            }
        }
        stopped.release();
        Err(io::Error::other("the process starts threads faster than they can be stopped"))
    }

    fn stop_one(&mut self, thread: Pid, options: i32, traced: bool) -> Result<(), Errno> {
        let running = if traced { Ok(Running::already_traced(thread)) } else { Running::seize(thread, options) };
        let running = match running.and_then(|running| running.interrupt().map(|()| running)) {
            // A thread that has ended need not be stopped.
            Err(Errno::ESRCH) => return Ok(()),
            other => other?,
        };
        let (stopped, stop) = match running.wait() {
            Ok(Waited::Stopped(stopped, stop)) => (stopped, stop),
            Ok(Waited::Ended(_)) | Err(Errno::ECHILD) => return Ok(()),
            Err(errno) => return Err(errno),
        };
        let signal = stop.delivered_signal();
        let _ = restart::restart_interrupted(thread, thread, signal, None, None);
        self.threads.insert(thread.as_raw(), (stopped, signal));
        Ok(())
    }

    /// Number of threads.
    pub fn count(&self) -> usize {
        self.threads.len()
    }

    /// Resumes the threads, no longer traced, each with the signal that it had stopped for.
    pub fn release(self) {
        for (stopped, signal) in self.threads.into_values() {
            // The only possible error is that the thread has been killed.
            let _ = stopped.detach(signal);
        }
    }

    /// Resumes the threads and keeps them traced.
    pub fn resume(self) -> Vec<Running> {
        self.threads.into_values().map(|(stopped, signal)| stopped.resume(Resume::Continue, signal)).collect()
    }
}
