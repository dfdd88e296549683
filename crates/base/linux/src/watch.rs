//! A limit for each single read of something foreign: a file of `/proc`, the memory of a process.
//!
//! Such a read waits for whoever holds the locks of the process, and for file systems that it has mapped, which may be a
//! program's. No call has a time limit, so a thread watches the others, and ends this program if one waits too long.
//! Nothing is watched until [`start`] is called.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The longest time that one read may take. The kernel needs about a second to walk the page tables of a terabyte.
pub const LIMIT: Duration = Duration::from_secs(30);

/// How often the watching thread looks.
const LOOK: Duration = Duration::from_millis(500);

static WATCHED: AtomicBool = AtomicBool::new(false);
static READS: Mutex<Reads> = Mutex::new(Reads { next: 0, under_way: BTreeMap::new() });

thread_local! {
    /// True if somebody else limits the reads of this thread.
    static LEFT: Cell<bool> = const { Cell::new(false) };
}

struct Reads {
    next: u64,
    under_way: BTreeMap<u64, (Instant, String)>,
}

/// Runs `read`, which `what` describes.
pub fn watched<T>(what: impl FnOnce() -> String, read: impl FnOnce() -> T) -> T {
    if !WATCHED.load(Ordering::Relaxed) || LEFT.get() {
        return read();
    }
    let _under_way = UnderWay::begin(what());
    read()
}

/// Ends the watch over this thread, whose reads the caller limits.
pub fn leave_to_caller() {
    LEFT.set(true);
}

/// A read in the list, until it is dropped.
struct UnderWay(u64);

impl UnderWay {
    fn begin(what: String) -> Self {
        let mut reads = READS.lock().unwrap_or_else(PoisonError::into_inner);
        reads.next += 1;
        let number = reads.next;
        reads.under_way.insert(number, (Instant::now(), what));
        Self(number)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        READS.lock().unwrap_or_else(PoisonError::into_inner).under_way.remove(&self.0);
    }
}

/// Starts to watch: this program prints a message and exits with `status` if a read takes longer than [`LIMIT`].
pub fn start(status: i32) {
    if WATCHED.swap(true, Ordering::Relaxed) {
        return;
    }
    let watcher = thread::Builder::new().name("watch".to_owned());
    // Without a thread nothing is watched, and all else works.
    let _ = watcher.spawn(move || {
        loop {
            thread::sleep(LOOK);
            if let Some(what) = overdue(Instant::now()) {
                let _ = std::io::stderr().write_all(message(&what).as_bytes());
                // SAFETY:
                // - _exit runs no code of this program; the waiting thread cannot continue.
                unsafe { libc::_exit(status) };
            }
        }
    });
}

/// The description of a read that takes too long.
fn overdue(now: Instant) -> Option<String> {
    let reads = READS.lock().unwrap_or_else(PoisonError::into_inner);
    let late = |(begun, _): &&(Instant, String)| now.saturating_duration_since(*begun) > LIMIT;
    reads.under_way.values().find(late).map(|(_, what)| what.clone())
}

fn message(what: &str) -> String {
    format!(
        "pagelift: {what} took more than {} s and was given up: the process, or a file system that it uses, does not \
         answer; fix: end that process, or leave it out\n",
        LIMIT.as_secs()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_overdue_after_the_limit_and_not_once_it_has_ended() {
        let read = UnderWay::begin("reading /proc/7/maps".to_owned());
        assert_eq!(overdue(Instant::now()), None);
        let later = Instant::now() + LIMIT + Duration::from_secs(1);
        let said = message(&overdue(later).unwrap());
        assert!(said.starts_with("pagelift: reading /proc/7/maps took more than 30 s"), "{said}");
        drop(read);
        assert_eq!(overdue(later), None);
    }

    #[test]
    fn nothing_is_described_where_nothing_is_watched() {
        assert_eq!(watched(|| unreachable!(), || 7), 7);
    }
}
