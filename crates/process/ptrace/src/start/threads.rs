//! Stops every other thread of a process.

use crate::remote::reaping;
use crate::remote::requests::Resume;
use crate::remote::restart;
use crate::remote::status::{is_ending, sleeps_uninterruptibly};
use crate::remote::thread_list::user_threads;
use crate::remote::tracee::{Running, Stopped, Waited};
use nix::errno::Errno;
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

/// Number of times that the list of threads is read until it shows no new one.
const ROUNDS: usize = 1000;

/// Maximum wait for a thread that sleeps uninterruptibly. The program's other threads and all other followed processes
/// stay stopped during that wait.
const GRACE: Duration = Duration::from_millis(5);

/// The other threads of a process, all in a ptrace stop.
#[derive(Debug, Default)]
pub struct StoppedThreads {
    /// Each with the signal that it stopped for (0: none), which it gets when it is resumed.
    threads: BTreeMap<i32, (Stopped, i32)>,
}

/// Not all other threads of a process have stopped.
#[derive(Debug)]
pub struct NotAllStopped {
    /// Those that have.
    pub stopped: StoppedThreads,
    /// Those that are traced and have not stopped yet: they will, and must be resumed then.
    pub running: Vec<Running>,
    /// Why; of the kind `TimedOut` for a thread that does not stop.
    pub why: io::Error,
}

impl StoppedThreads {
    /// Stops every thread except `leader`, which is stopped already. `traced` returns whether this process traces a
    /// thread already.
    ///
    /// # Errors
    /// Where a thread cannot be traced, has not stopped by the deadline, or sleeps uninterruptibly.
    pub fn stop(
        leader: Pid,
        options: i32,
        deadline: Instant,
        traced: impl Fn(i32) -> bool,
    ) -> Result<Self, NotAllStopped> {
        let (mut stopped, mut running) = (Self::default(), Vec::new());
        let seize = |thread: Pid| match traced(thread.as_raw()) {
            true => Ok(Running::already_traced(thread)),
            false => Running::seize(thread, options),
        };
        match stopped.stop_all(leader, deadline, &seize, &mut running) {
            Ok(()) => Ok(stopped),
            Err(why) => Err(NotAllStopped { stopped, running, why }),
        }
    }

    fn stop_all(
        &mut self,
        leader: Pid,
        deadline: Instant,
        seize: &impl Fn(Pid) -> Result<Running, Errno>,
        running: &mut Vec<Running>,
    ) -> io::Result<()> {
        for _ in 0..ROUNDS {
            let new = user_threads(leader, |t| t != leader.as_raw() && !self.threads.contains_key(&t))?;
            if new.threads.is_empty() && new.is_complete {
                return Ok(());
            }
            let with_stopped: Vec<i32> = self.threads.keys().chain(&new.threads).copied().collect();
            reaping::while_tracing(&with_stopped, || {
                new.threads.iter().try_for_each(|&thread| {
                    match self.stop_one(leader, deadline, seize(Pid::from_raw(thread)), running) {
                        // A thread that is ending cannot be traced any more, and need not be stopped.
                        Err(Errno::EPERM) if is_ending(leader, thread) => Ok(()),
                        result => result.map_err(io::Error::from),
                    }
                })?;
                match running.first() {
                    None => Ok(()),
                    Some(thread) => Err(does_not_stop(leader, thread.pid())),
                }
            })??;
        }
        Err(io::Error::other("the process starts threads faster than they can be stopped"))
    }

    fn stop_one(
        &mut self,
        leader: Pid,
        deadline: Instant,
        seized: Result<Running, Errno>,
        running: &mut Vec<Running>,
    ) -> Result<(), Errno> {
        let mut told = match seized.and_then(|told| told.interrupt().map(|()| told)) {
            // A thread that has ended need not be stopped.
            Err(Errno::ESRCH) => return Ok(()),
            other => other?,
        };
        let (stopped, stop) = loop {
            match told.wait_until(Instant::now() + GRACE) {
                Ok(Ok(Waited::Stopped(stopped, stop))) => break (stopped, stop),
                Ok(Ok(Waited::Ended(_))) | Err(Errno::ECHILD) => return Ok(()),
                Err(errno) => return Err(errno),
                // One that waits for a CPU stops when it gets one.
                Ok(Err(still)) => told = still,
            }
            if sleeps_uninterruptibly(leader, told.pid().as_raw()) || Instant::now() > deadline {
                running.push(told);
                return Ok(());
            }
        };
        let thread = stopped.pid();
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

/// Says why a thread does not stop.
fn does_not_stop(process: Pid, thread: Pid) -> io::Error {
    let why = match sleeps_uninterruptibly(process, thread.as_raw()) {
        true => "it sleeps uninterruptibly, as for a disk, or in vfork",
        false => "it is not scheduled",
    };
    io::Error::new(io::ErrorKind::TimedOut, format!("its thread {thread} does not stop: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counted_signals::{Program, SIGNAL, Task, Tracer, send};
    use crate::remote::requests;

    /// Set in the environment of a helper that holds a thread at a signal.
    const HOLDS: &str = "PAGELIFT_TEST_HELPER_HOLDS_A_SIGNAL";

    /// A helper that is killed while it holds a thread at a signal: the first thread is stopped before, so that the other one
    /// receives the signal.
    #[test]
    fn helper_that_holds_a_signal() {
        let Some(Task { pid, other }) = Task::read(HOLDS) else { return };
        let (leader, _running) = [pid, other].map(|thread| Running::seize(thread, 0).unwrap()).into();
        leader.interrupt().unwrap();
        let Waited::Stopped(_leader, _) = leader.wait().unwrap() else { panic!("it has ended") };
        send(pid, 7);
        while requests::signal_information(other).is_err() {
            std::thread::yield_now();
        }
        let deadline = Instant::now() + Duration::from_secs(30);
        let held = StoppedThreads::stop(pid, 0, deadline, |thread| thread == other.as_raw()).unwrap();
        assert_eq!(held.threads.values().map(|(_, signal)| *signal).collect::<Vec<_>>(), [SIGNAL]);
        Task { pid, other }.wait();
    }

    #[test]
    fn a_signal_at_which_a_killed_helper_holds_a_thread_is_delivered() {
        let mut program = Program::start();
        Tracer::start("start::threads::tests::helper_that_holds_a_signal", HOLDS, &program).kill();
        assert_eq!(program.received(1), [7]);
    }
}
