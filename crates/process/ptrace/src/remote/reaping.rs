//! Reaps threads that end while tracing of their process begins.
//!
//! A thread that executes a program waits in the kernel until all other threads of its process are gone, and until then
//! no thread of that process can be seized (`cred_guard_mutex`). A traced thread is gone only when its tracer has
//! waited for it: a tracer that seizes the next thread would deadlock. A second thread of this process therefore waits
//! for those that have ended.

use linux::ended::reap_if_ended;
use nix::unistd::Pid;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Interval between two polls for threads that have ended.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Runs `work`, which begins to trace these threads, while those that end are waited for. Their end is not reported
/// again.
///
/// # Errors
/// The second thread cannot be started. `work` is not run: it could wait without end for a thread that executes a program.
pub fn while_tracing<T>(threads: &[i32], work: impl FnOnce() -> T) -> io::Result<T> {
    // A process with one thread waits for no other.
    if threads.len() < 2 { Ok(work()) } else { with_reaper(thread::Builder::new(), threads, work) }
}

fn with_reaper<T>(reaper: thread::Builder, threads: &[i32], work: impl FnOnce() -> T) -> io::Result<T> {
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let reaper = reaper.spawn_scoped(scope, || {
            while !is_done.load(Ordering::Acquire) {
                thread::park_timeout(POLL_INTERVAL);
                threads.iter().for_each(|&thread| reap_if_ended(Pid::from_raw(thread)));
            }
        });
        let reaper = reaper.map_err(|error| {
            io::Error::other(format!(
                "no thread could be started ({error}); fix: a higher limit of tasks (ulimit -u, TasksMax= of the unit, pids.max)"
            ))
        })?;
        let result = work();
        is_done.store(true, Ordering::Release);
        reaper.thread().unpark();
        Ok(result)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_traced_without_a_thread_that_reaps() {
        assert_eq!(while_tracing(&[1], || 7).unwrap(), 7);
        assert_eq!(with_reaper(thread::Builder::new(), &[], || 7).unwrap(), 7);
        // No address space has room for such a stack.
        let too_large = thread::Builder::new().stack_size(1 << 50);
        let refused = with_reaper(too_large, &[], || unreachable!()).map(|()| 7).unwrap_err().to_string();
        assert!(refused.starts_with("no thread could be started (") && refused.contains("; fix: "), "{refused}");
    }
}
