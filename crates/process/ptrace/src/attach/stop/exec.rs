//! Handles programs that a process executes while it is being worked on.
//!
//! A thread that executes a program takes over the number of its process's first thread, and stays traced if it was
//! (ptrace(2), "execve(2) under ptrace"). It stays at the stop after the exec until it is resumed.

use super::{Held, LiveProcess, OPTIONS, STOP_TIMEOUT, StopError, WAKE_POLL_INTERVAL};
use crate::remote::refusal::tracer_in;
use crate::remote::requests;
use crate::remote::status::is_ending;
use crate::remote::tracee::Running;
use crate::remote::wait::{self, WaitReport};
use linux::text::text_of;
use linux::watch::is_given_up;
use nix::unistd::{Pid, gettid};
use std::thread;
use std::time::{Duration, Instant};

/// Time for which a first thread that has ended is observed: another one that executes a program takes its number at
/// once.
const ENDING: Duration = Duration::from_millis(10);

/// Why no thread of a process is stopped any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    Executed,
    Lost(i32),
}

/// The thread that traces a thread: `TracerPid` is no number of a process (`task_state`).
pub(super) fn tracer_of(thread: Pid) -> Option<Pid> {
    let status = text_of(format!("/proc/{thread}/status")).unwrap_or_default();
    tracer_in(&status)?.parse().ok().map(Pid::from_raw)
}

/// True where another thread or process than this thread traces a thread.
pub(super) fn is_traced_by_another(thread: Pid) -> bool {
    tracer_of(thread).is_some_and(|tracer| tracer != gettid())
}

impl LiveProcess {
    /// Records that the process has executed another program; none of its threads is stopped from now on.
    pub fn note_exec(&mut self) -> StopError {
        self.over = Some(Over::Executed);
        let first = self.pid.as_raw();
        // The facts about the thread belong to the previous program.
        self.restarting.remove(&first);
        self.chosen.remove(&first);
        self.stopped.entry(first).and_modify(|held| held.signal = 0);
        StopError::Executed
    }

    /// True if the process is known to have executed another program.
    pub fn is_replaced(&self) -> bool {
        self.over == Some(Over::Executed)
    }

    /// Records that a thread has not returned from a call; none is stopped from now on.
    pub fn note_lost(&mut self, thread: Pid) -> StopError {
        self.over = Some(Over::Lost(thread.as_raw()));
        self.stopped.remove(&thread.as_raw());
        StopError::Lost(thread.as_raw())
    }

    /// Releases the thread that had not returned from a call, once it stops after that: it completes the code by itself.
    pub fn release_late(&self) {
        if let Some(Over::Lost(thread)) = self.over
            && let Ok(Some(WaitReport::Stopped(stop))) = wait::poll_keeping_signals(Pid::from_raw(thread))
        {
            let _ = Running::already_traced(Pid::from_raw(thread)).has_stopped().detach(stop.delivered_signal());
        }
    }

    /// True if a thread has vanished because it has executed another program: then it has the number of the process and
    /// is still traced. It is released. No pending report except that of the exec is consumed.
    pub fn has_executed(&mut self) -> bool {
        let started = Instant::now();
        while self.over.is_none() {
            match requests::is_at_exec(self.pid) {
                Ok(true) => drop(self.note_exec()),
                // It is stopped, and has executed nothing.
                Ok(false) => break,
                // Asked again once it has been waited for.
                Err(_) if wait::exec_is_pending(self.pid) => drop(wait::poll(self.pid)),
                // On its way to that stop or another one, if this thread traces it.
                Err(_) if self.is_ours() => {
                    let limit = if is_ending(self.pid, self.pid.as_raw()) { ENDING } else { STOP_TIMEOUT };
                    if started.elapsed() > limit {
                        break;
                    }
                    thread::sleep(WAKE_POLL_INTERVAL);
                }
                Err(_) => break,
            }
        }
        let executed = self.over == Some(Over::Executed);
        if executed {
            // Known from the kernel: its report is not consumed.
            let thread = Running::already_traced(self.pid).has_stopped();
            self.stopped.insert(self.pid.as_raw(), Held { thread, signal: 0 });
            self.release(self.pid.as_raw());
        }
        executed
    }

    /// True if a thread that has executed another program has taken over the number of the first thread, which was refused
    /// with `EPERM`: the request waits for the exec, and then finds that the first thread has ended. A second request finds
    /// the new thread, which is traced then.
    pub(super) fn took_over(&mut self, refused: i32) -> bool {
        if refused != self.pid.as_raw() || is_traced_by_another(self.pid) {
            return false;
        }
        let again = Running::seize(self.pid, OPTIONS);
        again.is_ok_and(|running| self.traced.insert(refused, running).is_none())
    }

    /// True if this thread traces the first thread of the process.
    fn is_ours(&self) -> bool {
        tracer_of(self.pid) == Some(gettid())
    }

    /// Stops threads, unless the process is to be left alone. Where it has executed another program, none is held
    /// afterwards.
    pub(super) fn unless_executed(
        &mut self,
        stop: impl FnOnce(&mut Self) -> Result<Pid, StopError>,
    ) -> Result<Pid, StopError> {
        match self.over {
            Some(Over::Executed) => return Err(StopError::Executed),
            Some(Over::Lost(thread)) => {
                self.release_late();
                return Err(StopError::Lost(thread));
            }
            None if is_given_up() => return Err(StopError::GivenUp),
            None => {}
        }
        stop(self).inspect_err(|error| match error {
            StopError::Executed => self.give_up(),
            _ => self.release_all(),
        })
    }

    /// True for the first thread while another one is traced and has not stopped: if that one is executing another
    /// program, it takes over the first one's number.
    pub(super) fn may_be_replaced(&mut self, thread: i32) -> Result<bool, StopError> {
        if thread == self.pid.as_raw() {
            for other in self.threads_traced() {
                match self.waiter.wait_shortly(Pid::from_raw(other), Instant::now()) {
                    Ok(None) => {}
                    status => drop(self.note_stop(other, status)?),
                }
            }
        }
        Ok(thread == self.pid.as_raw() && !self.traced.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_program;
    use std::io::{BufRead, BufReader, Write, copy, sink, stdin};
    use std::os::unix::process::CommandExt;
    use std::process::{Command, id};

    /// Set in the environment of the program whose second thread executes another one.
    const EXECUTES: &str = "PAGELIFT_TEST_EXECUTES";

    /// That program: each test has a separate thread.
    #[test]
    fn program_that_executes_another() {
        if std::env::var_os(EXECUTES).is_some() {
            println!("\nready");
            stdin().lines().next();
            panic!("{}", Command::new("sleep").arg("60").exec());
        }
    }

    #[test]
    fn a_program_that_another_than_the_first_thread_has_executed_is_found_and_released() {
        let name = "attach::stop::exec::tests::program_that_executes_another";
        let mut child = test_program::spawn(name, EXECUTES);
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        lines.map(Result::unwrap).find(|line| line == "ready").unwrap();
        let mut process = LiveProcess::new(child.id() as i32);
        for thread in process.threads(|_| true).unwrap().threads {
            assert!(process.seize(thread).unwrap());
        }
        child.stdin.take().unwrap().write_all(b"now\n").unwrap();
        let has_executed = process.has_executed();
        let tracer = tracer_of(process.pid);
        child.kill().unwrap();
        // One that is still traced would not end before this thread.
        assert_eq!((has_executed, process.is_replaced(), tracer), (true, true, None));
        child.wait().unwrap();
    }

    /// Set in the environment of the program that executes itself.
    const REPEATS: &str = "PAGELIFT_TEST_EXECUTES_ITSELF";
    /// Number of reported execs; about one of ten meets a request to trace the first thread.
    const EXECS: u32 = 8;

    /// That program.
    #[test]
    fn program_that_executes_itself() {
        if std::env::var_os(REPEATS).is_some() {
            panic!("{}", Command::new("/proc/self/exe").args(std::env::args_os().skip(1)).exec());
        }
    }

    #[test]
    fn a_first_thread_that_ends_in_an_exec_is_no_refusal() {
        let mut child = test_program::spawn("attach::stop::exec::tests::program_that_executes_itself", REPEATS);
        let mut output = child.stdout.take().unwrap();
        thread::spawn(move || copy(&mut output, &mut sink()));
        let mut executed = 0;
        let refusal = loop {
            let mut process = LiveProcess::new(child.id() as i32);
            match process.stop_all() {
                Ok(_) => process.release_all(),
                Err(StopError::Executed) => executed += 1,
                Err(StopError::Refused(why)) => break Some(why),
                Err(StopError::Gone) => break Some("it has ended".to_owned()),
                Err(_) => {}
            }
            if executed == EXECS {
                break None;
            }
        };
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(refusal, None);
    }

    #[test]
    fn a_thread_that_took_over_the_number_of_a_refused_one_is_released() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let mut process = LiveProcess::new(child.id() as i32);
        let stopped = process.unless_executed(|process| {
            assert!(process.took_over(process.pid.as_raw()) && process.is_ours());
            Err(process.note_exec())
        });
        let found = (matches!(stopped, Err(StopError::Executed)), process.is_replaced(), tracer_of(process.pid));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, (true, true, None));
    }

    #[test]
    fn a_process_is_ours_for_the_thread_that_traces_it() {
        let traces = || {
            let mut child = Command::new("sleep").arg("60").spawn().unwrap();
            let process = LiveProcess::new(child.id() as i32);
            let look = || (process.is_ours(), is_traced_by_another(process.pid));
            let before = look();
            let running = Running::seize(process.pid, OPTIONS).unwrap();
            let (here, elsewhere) = (look(), thread::scope(|scope| scope.spawn(look).join()));
            child.kill().unwrap();
            drop((running, child.wait()));
            [before, here, elsewhere.unwrap()]
        };
        // The first thread of a process has the number of the process.
        let (tid, found) = thread::spawn(move || (gettid().as_raw() as u32, traces())).join().unwrap();
        assert_ne!(tid, id());
        assert_eq!(found, [(false, false), (true, false), (false, true)]);
    }
}
