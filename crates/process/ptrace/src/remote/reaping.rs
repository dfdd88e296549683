//! Reaps threads that end while tracing of their process begins.
//!
//! A thread that executes a program waits in the kernel until all other threads of its process are gone, and until then
//! no thread of that process can be seized (`cred_guard_mutex`). A traced thread is gone only when its tracer has
//! waited for it: a tracer that seizes the next thread would deadlock. A second thread of this process therefore waits
//! for those that have ended.

use linux::ended::reap_if_ended;
use nix::unistd::Pid;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Interval between two polls for threads that have ended.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Runs `work`, which begins to trace these threads, while those that end are waited for. Their end is not reported
/// again.
pub fn while_tracing<T>(threads: &[i32], work: impl FnOnce() -> T) -> T {
    // A process with one thread waits for no other.
    if threads.len() < 2 {
        return work();
    }
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        // Without a thread only an exec at this moment is not waited for.
        let reaper = thread::Builder::new().spawn_scoped(scope, || {
            while !is_done.load(Ordering::Acquire) {
                thread::park_timeout(POLL_INTERVAL);
                threads.iter().for_each(|&thread| reap_if_ended(Pid::from_raw(thread)));
            }
        });
        let result = work();
        is_done.store(true, Ordering::Release);
        reaper.iter().for_each(|reaper| reaper.thread().unpark());
        result
    })
}
