//! Gives calls a little time that a stop would end in part: the program would see a short write, which it does not see as long
//! as no signal is handled.

use super::LiveProcess;
use crate::remote::inflight_syscall::{Awake, InflightSyscall, sleeps_of};
use crate::remote::restart::may_end_in_part;
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

/// Maximum time for which one stop is put off.
const ONCE: Duration = Duration::from_millis(200);
/// Maximum time for which all stops of a lift are put off.
const IN_ALL: Duration = Duration::from_millis(400);
/// Interval between two polls.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// Facts about calls for which stops have been delayed.
#[derive(Default)]
pub(super) struct WholeCalls {
    /// Total delay.
    waited: Duration,
    /// Threads that slept in such a call all the time, with the number of their sleeps: they wait for somebody else, who may
    /// never come.
    idle: BTreeMap<i32, Option<u64>>,
}

impl WholeCalls {
    /// Waits until none of the threads is in such a call. A thread that has not moved since the last time is left out.
    /// Returns true if there was such a call.
    fn wait(&mut self, process: Pid, threads: &[i32]) -> bool {
        let started = Instant::now();
        let limit = ONCE.min(IN_ALL.saturating_sub(self.waited));
        let sleeps = |thread: &i32| (*thread, sleeps_of(process, *thread));
        let mut waiting: Vec<(i32, Option<u64>)> = threads.iter().map(sleeps).collect();
        waiting.retain(|(thread, sleeps)| {
            place_of(process, *thread) == Place::InPart && self.idle.get(thread) != Some(sleeps)
        });
        let has_waited = !waiting.is_empty();
        while !waiting.is_empty() && started.elapsed() < limit {
            thread::sleep(POLL_INTERVAL);
            // One that is awake may be in the middle of the same call.
            waiting.retain(|&(thread, _)| place_of(process, thread) != Place::Elsewhere);
        }
        self.idle.extend(waiting.into_iter().filter(|&(thread, sleeps)| sleeps_of(process, thread) == sleeps));
        self.waited += started.elapsed();
        has_waited
    }
}

#[derive(PartialEq, Eq)]
enum Place {
    /// It sleeps in a call that a stop would end in part.
    InPart,
    Awake,
    Elsewhere,
}

fn place_of(process: Pid, thread: i32) -> Place {
    match InflightSyscall::of(process, thread) {
        Ok(Some(call)) if may_end_in_part(call.number, &call.arguments) => Place::InPart,
        Ok(_) => Place::Elsewhere,
        Err(Awake) => Place::Awake,
    }
}

impl LiveProcess {
    /// Waits a little for threads whose call a stop would end in part.
    pub(super) fn await_whole_calls(&mut self, threads: &[i32]) {
        self.whole.wait(self.pid, threads);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::wait::waitpid;
    use nix::unistd::{ForkResult, fork, pipe};
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::{AsRawFd, OwnedFd};

    const LENGTH: usize = 1 << 20;

    /// A child that writes a mebibyte at once, says how much that has written, and waits.
    fn writing(bytes: &[u8]) -> (Pid, OwnedFd, OwnedFd) {
        let ((from, to), (says, report)) = (pipe().unwrap(), pipe().unwrap());
        let (fd, report_fd) = (to.as_raw_fd(), report.as_raw_fd());
        // SAFETY:
        // - the child makes system calls only, with memory of this function.
        match unsafe { fork() }.unwrap() {
            ForkResult::Parent { child } => (child, from, says),
            ForkResult::Child => {
                // SAFETY:
                // - `bytes` has this length, and a word its eight bytes.
                unsafe {
                    let written = libc::write(fd, bytes.as_ptr().cast(), LENGTH) as u64;
                    libc::write(report_fd, (&raw const written).cast(), 8);
                    libc::pause();
                    libc::_exit(0);
                }
            }
        }
    }

    #[test]
    fn a_write_is_not_cut_short_where_its_reader_is_at_work() {
        let bytes = vec![7; LENGTH];
        let (child, from, says) = writing(&bytes);
        while place_of(child, child.as_raw()) != Place::InPart {
            thread::sleep(Duration::from_millis(1));
        }
        let mut process = LiveProcess::new(child.as_raw());
        let reader = thread::spawn(move || {
            // The stop has then begun, and has found the writer asleep.
            thread::sleep(ONCE / 10);
            File::from(from).read_exact(&mut vec![0; LENGTH])
        });
        process.stop_all().unwrap();
        process.release_all();
        let mut written = [0; 8];
        File::from(says).read_exact(&mut written).unwrap();
        nix::sys::signal::kill(child, nix::sys::signal::Signal::SIGKILL).unwrap();
        waitpid(child, None).unwrap();
        assert_eq!(u64::from_ne_bytes(written), LENGTH as u64);
        reader.join().unwrap().unwrap();
    }

    #[test]
    fn nobody_is_waited_for_twice_who_does_not_move() {
        let bytes = vec![7; LENGTH];
        let (child, _from, _says) = writing(&bytes);
        while place_of(child, child.as_raw()) != Place::InPart {
            thread::sleep(Duration::from_millis(1));
        }
        let mut calls = WholeCalls::default();
        let first = calls.wait(child, &[child.as_raw()]);
        let second = calls.wait(child, &[child.as_raw()]);
        nix::sys::signal::kill(child, nix::sys::signal::Signal::SIGKILL).unwrap();
        waitpid(child, None).unwrap();
        assert!(first && !second);
    }
}
