//! Looks at every process, of which some may never answer.
//!
//! A read of a process waits until the locks of its memory are released, and a user's program can hold those for any time.
//! A thread that waits too long is left behind, and another thread continues with the other processes.

use crate::{ObservationError, ProcessFiles};
use linux::watch;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The outcome of reading one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looked<T> {
    /// The result.
    At(T),
    /// It has not answered within this time.
    NoAnswer(Duration),
    /// It was not read, because too many other processes did not answer.
    Skipped,
}

/// How long is waited, and for how many.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// After this time without an answer, another thread reads the next processes.
    patience: Duration,
    /// After this time a process is given up.
    limit: Duration,
    /// Number of processes that may be waited for at a time. If so many do not answer, the rest is skipped.
    most: usize,
}

/// Most processes are read in less than a millisecond, and the largest in some seconds.
const LIMITS: Limits = Limits { patience: Duration::from_secs(2), limit: watch::LIMIT, most: 8 };

/// Calls `look` with every process, and `found` with what it returned, in any order. Where reads are limited
/// ([`watch::start`]), `look` runs in other threads, and a process that takes too long is left out.
///
/// # Errors
/// [`ObservationError`] where `/proc` cannot be listed, or no thread can be started.
pub fn each_process<T: Send + 'static>(
    look: impl Fn(&ProcessFiles) -> T + Clone + Send + 'static,
    mut found: impl FnMut(i32, Looked<T>),
) -> Result<(), ObservationError> {
    let look = move |pid| look(&ProcessFiles::of(pid));
    let pids = process_numbers()?;
    pids.first().map_or(Ok(()), |pid| ProcessFiles::of(*pid).check_number())?;
    if watch::is_started() {
        return each_within(pids, LIMITS, look, found).map_err(failed);
    }
    pids.into_iter().for_each(|pid| found(pid, Looked::At(look(pid))));
    Ok(())
}

fn failed(source: io::Error) -> ObservationError {
    match source {
        _ if !std::path::Path::new("/proc/self/stat").exists() => ObservationError::ProcNotMounted,
        source => ObservationError::Io { path: "/proc".into(), source },
    }
}

fn process_numbers() -> Result<Vec<i32>, ObservationError> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir("/proc").map_err(failed)? {
        numbers.extend(entry.map_err(failed)?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    if numbers.is_empty() {
        return Err(ObservationError::ProcNotMounted);
    }
    Ok(numbers)
}

impl<T> Looked<T> {
    /// Why there is no result, if there is none.
    pub fn unanswered(&self) -> Option<String> {
        match self {
            Self::At(_) => None,
            Self::NoAnswer(time) => Some(format!(
                "it gave no answer within {} s, and is left out: something holds the locks of its memory, or a file system \
                 that it uses does not answer; fix: end it",
                time.as_secs()
            )),
            Self::Skipped => Some(format!("{} other processes gave no answer; fix: end those", LIMITS.most)),
        }
    }
}

/// Message of a thread: the process that it is about to read, a result, or the end: no process is left.
enum Said<T> {
    Begun(i32),
    Found(i32, T),
    Ended,
}

type Queue = Arc<Mutex<std::vec::IntoIter<i32>>>;

fn each_within<T: Send + 'static>(
    pids: Vec<i32>,
    limits: Limits,
    look: impl Fn(i32) -> T + Clone + Send + 'static,
    found: impl FnMut(i32, Looked<T>),
) -> io::Result<()> {
    let queue: Queue = Arc::new(Mutex::new(pids.into_iter()));
    // A thread waits until its result is taken, so that no results gather.
    let (say, heard) = mpsc::sync_channel(0);
    let mut results = Results { heard, waiting: BTreeMap::new(), found };
    for _ in 0..limits.most {
        let (queue, look, say) = (queue.clone(), look.clone(), say.clone());
        thread::Builder::new().name("look".to_owned()).spawn(move || work(&queue, &look, &say))?;
        if results.take_until_end(|_| limits.patience) {
            break;
        }
    }
    let left: Vec<i32> = queue.lock().unwrap_or_else(PoisonError::into_inner).by_ref().collect();
    drop(say);
    let newest = |waiting: &BTreeMap<_, Instant>| waiting.values().max().map_or(Duration::ZERO, Instant::elapsed);
    while results.take_until_end(|waiting| limits.limit.saturating_sub(newest(waiting))) {}
    let Results { waiting, mut found, .. } = results;
    waiting.into_keys().for_each(|pid| found(pid, Looked::NoAnswer(limits.limit)));
    left.into_iter().for_each(|pid| found(pid, Looked::Skipped));
    Ok(())
}

fn work<T>(queue: &Queue, look: &impl Fn(i32) -> T, say: &SyncSender<Said<T>>) {
    watch::leave_to_caller();
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    while let Some(pid) = next() {
        // Nobody listens any more once this thread has been left behind.
        if say.send(Said::Begun(pid)).is_err() || say.send(Said::Found(pid, look(pid))).is_err() {
            return;
        }
    }
    let _ = say.send(Said::Ended);
}

/// The messages of the threads, and the processes that have not answered.
struct Results<T, F> {
    heard: Receiver<Said<T>>,
    waiting: BTreeMap<i32, Instant>,
    found: F,
}

impl<T, F: FnMut(i32, Looked<T>)> Results<T, F> {
    /// Takes messages until a thread reports that no process is left. Returns false if no message came within `patience`, or
    /// if no thread is left to send one.
    fn take_until_end(&mut self, patience: impl Fn(&BTreeMap<i32, Instant>) -> Duration) -> bool {
        loop {
            match self.heard.recv_timeout(patience(&self.waiting)) {
                Ok(Said::Begun(pid)) => drop(self.waiting.insert(pid, Instant::now())),
                Ok(Said::Found(pid, result)) => {
                    self.waiting.remove(&pid);
                    (self.found)(pid, Looked::At(result));
                }
                Ok(Said::Ended) => return true,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::RwLock;

    const LIMITS: Limits = Limits { patience: Duration::from_millis(500), limit: Duration::from_secs(1), most: 3 };

    /// Looks at processes of which some do not answer before all is over.
    fn looked(pids: std::ops::Range<i32>, silent: fn(i32) -> bool) -> BTreeMap<i32, Looked<i32>> {
        let closed = Arc::new(RwLock::new(()));
        let held = closed.write().unwrap();
        let at = closed.clone();
        let look = move |pid| {
            let _answers = silent(pid).then(|| drop(at.read()));
            10 * pid
        };
        let mut all = BTreeMap::new();
        each_within(pids.collect(), LIMITS, look, |pid, looked| assert!(all.insert(pid, looked).is_none())).unwrap();
        drop(held);
        all
    }

    #[test]
    fn a_process_that_does_not_answer_hides_no_other() {
        let all = looked(1..7, |pid| pid == 2 || pid == 4);
        for (pid, looked) in &all {
            let expected = if [2, 4].contains(pid) { Looked::NoAnswer(LIMITS.limit) } else { Looked::At(10 * pid) };
            assert_eq!(*looked, expected, "{pid}");
        }
        assert_eq!(all.len(), 6);
        let said = all[&2].unanswered().unwrap();
        assert!(said.starts_with("it gave no answer within 1 s, and is left out") && all[&1].unanswered().is_none());
    }

    #[test]
    fn only_so_many_are_waited_for() {
        let all = looked(1..9, |pid| pid > 1);
        let is = |pid: i32| match pid {
            1 => Looked::At(10),
            2..=4 => Looked::NoAnswer(LIMITS.limit),
            _ => Looked::Skipped,
        };
        assert_eq!(all, (1..9).map(|pid| (pid, is(pid))).collect());
    }

    #[test]
    fn every_process_is_looked_at() {
        let mut own = None;
        let is_own = std::process::id() as i32;
        each_process(|process| process.pid(), |pid, looked| own = own.or((pid == is_own).then_some(looked))).unwrap();
        assert_eq!(own, Some(Looked::At(is_own)));
    }
}
