//! Reads processes of which some may never answer.
//!
//! A read of a process waits until the locks of its memory are released, and a user's program can hold those for any time. No such
//! read has a time limit, so other threads make it, and a thread that waits too long is left behind. The process is remembered with
//! the time of its start, as long as that thread waits: no second thread is left behind for it, and no more than
//! [`Limits::most`] in all.

use crate::{ObservationError, ProcessFiles};
use address_space::ProcessStat;
use linux::watch;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::fs;
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// A process that was not read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unanswered {
    /// Its number.
    pub pid: i32,
    /// The name the kernel knows it by, fit to be printed; empty if it has ended.
    pub name: String,
    /// Why it was not read.
    pub reason: Silence,
}

/// Why a process was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Silence {
    /// It did not answer within [`watch::LIMIT`], now or at an earlier look that still waits.
    NoAnswer,
    /// It was not asked, because so many others do not answer that no more are waited for.
    NotAsked,
}

impl fmt::Display for Unanswered {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "process {} ({}) ", self.pid, self.name)?;
        match self.reason {
            Silence::NoAnswer => write!(
                formatter,
                "did not answer within {} s and is left out; needed: the locks of its memory, which it or a file system that it \
                 waits for holds; fix: end it",
                watch::LIMIT.as_secs()
            ),
            Silence::NotAsked => {
                write!(formatter, "was not read, because {} others do not answer; fix: end those", LIMITS.most)
            }
        }
    }
}

impl Unanswered {
    fn new(pid: i32, reason: Silence) -> Self {
        Self { pid, name: ProcessFiles::of(pid).name().unwrap_or_default(), reason }
    }
}

/// How long is waited, in ticks, and for how many. A tick counts once, also if this program was stopped meanwhile.
#[derive(Clone, Copy, Debug)]
struct Limits {
    tick: Duration,
    /// After this time without an answer, another thread reads the next processes.
    patience: u32,
    /// After this time a process is given up.
    limit: u32,
    /// Number of threads, those that were left behind earlier included.
    most: usize,
}

const TICK: Duration = Duration::from_millis(500);
/// Most processes are read in less than a millisecond, and the largest in some seconds.
const LIMITS: Limits =
    Limits { tick: TICK, patience: 4, limit: (watch::LIMIT.as_millis() / TICK.as_millis()) as u32, most: 8 };

/// Calls `look` with every process in other threads, and `found` in this one with what it returned, in any order. `found` must
/// not ask processes itself.
///
/// # Errors
/// [`ObservationError`] where `/proc` cannot be listed.
pub fn each_process<T: Send + 'static>(
    look: impl Fn(&ProcessFiles) -> T + Clone + Send + 'static,
    found: impl FnMut(i32, Result<T, Unanswered>),
) -> Result<(), ObservationError> {
    let pids = process_numbers()?;
    pids.first().map_or(Ok(()), |pid| ProcessFiles::of(*pid).check_number())?;
    each_of(pids, look, found);
    Ok(())
}

/// Like [`each_process`], for these processes.
pub fn each_of<T: Send + 'static>(
    pids: impl IntoIterator<Item = i32>,
    look: impl Fn(&ProcessFiles) -> T + Clone + Send + 'static,
    found: impl FnMut(i32, Result<T, Unanswered>),
) {
    ask(pids.into_iter().collect(), LIMITS, move |pid| look(&ProcessFiles::of(pid)), found);
}

/// Calls `look` with one process in another thread.
///
/// # Errors
/// [`Unanswered`].
pub fn ask_one<T: Send + 'static>(
    pid: i32,
    look: impl Fn(&ProcessFiles) -> T + Clone + Send + 'static,
) -> Result<T, Unanswered> {
    let mut answer = None;
    each_of([pid], look, |_, looked| answer = Some(looked));
    answer.unwrap_or_else(|| Err(Unanswered::new(pid, Silence::NotAsked)))
}

fn process_numbers() -> Result<Vec<i32>, ObservationError> {
    let failed = |source: io::Error| match source {
        _ if !std::path::Path::new("/proc/self/stat").exists() => ObservationError::ProcNotMounted,
        source => ObservationError::Io { path: "/proc".into(), source },
    };
    let mut numbers = Vec::new();
    for entry in fs::read_dir("/proc").map_err(failed)? {
        numbers.extend(entry.map_err(failed)?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    if numbers.is_empty() {
        return Err(ObservationError::ProcNotMounted);
    }
    Ok(numbers)
}

/// A process for which a thread waits that was left behind.
struct LeftBehind {
    pid: i32,
    /// Time of its start (proc_pid_stat(5)): a later process of the number has another one.
    start: Option<u64>,
    /// Gone once the thread has ended.
    thread: Weak<()>,
}

/// The threads that were left behind. Locked while processes are asked, so that all callers together start no more threads than
/// one.
static LEFT_BEHIND: Mutex<Vec<LeftBehind>> = Mutex::new(Vec::new());

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Time of a process's start. Reading it takes none of the locks that a program can hold.
fn start_of(pid: i32) -> Option<u64> {
    ProcessStat::parse(&ProcessFiles::of(pid).text("stat").ok()?)?.start_time()
}

/// The present work of the threads.
#[derive(Default)]
struct Work {
    queue: VecDeque<i32>,
    under_way: BTreeMap<i32, UnderWay>,
}

struct UnderWay {
    /// Number of ticks since it began.
    age: u32,
    /// Time of the process's start, read before it was asked: it may end meanwhile, and another get its number.
    start: Option<u64>,
    thread: Weak<()>,
}

impl Work {
    fn older_than(&self, age: u32) -> usize {
        self.under_way.values().filter(|read| read.age >= age).count()
    }
}

fn ask<T: Send + 'static>(
    pids: Vec<i32>,
    limits: Limits,
    look: impl Fn(i32) -> T + Clone + Send + 'static,
    mut found: impl FnMut(i32, Result<T, Unanswered>),
) {
    let mut left_behind = locked(&LEFT_BEHIND);
    left_behind.retain(|silent| silent.thread.strong_count() > 0);
    let is_known = |pid: &i32| left_behind.iter().any(|silent| silent.pid == *pid && silent.start == start_of(*pid));
    let (known, others): (Vec<i32>, Vec<i32>) = pids.into_iter().partition(is_known);
    let work = Arc::new(Mutex::new(Work { queue: others.into(), ..Work::default() }));
    let most = limits.most.saturating_sub(left_behind.len());
    run(&work, Limits { most, ..limits }, look, &mut found);
    let Work { queue, under_way } = std::mem::take(&mut *locked(&work));
    for (pid, read) in under_way {
        left_behind.push(LeftBehind { pid, start: read.start, thread: read.thread });
        found(pid, Err(Unanswered::new(pid, Silence::NoAnswer)));
    }
    known.into_iter().for_each(|pid| found(pid, Err(Unanswered::new(pid, Silence::NoAnswer))));
    queue.into_iter().for_each(|pid| found(pid, Err(Unanswered::new(pid, Silence::NotAsked))));
}

/// Reads until nothing is left but what does not answer and what may not be asked any more.
fn run<T: Send + 'static>(
    work: &Arc<Mutex<Work>>,
    mut limits: Limits,
    look: impl Fn(i32) -> T + Clone + Send + 'static,
    found: &mut impl FnMut(i32, Result<T, Unanswered>),
) {
    // One result is kept at most, so that none gather.
    let (say, heard) = mpsc::sync_channel(1);
    let (mut threads, mut last_tick) = (0, Instant::now());
    loop {
        {
            let now = locked(work);
            let (has_more, silent) = (!now.queue.is_empty(), now.older_than(limits.limit));
            let is_over = match has_more {
                true => threads >= limits.most && silent == threads,
                false => silent == now.under_way.len(),
            };
            if is_over {
                return;
            }
            let all_wait = now.older_than(limits.patience) == threads;
            drop(now);
            if has_more && all_wait && threads < limits.most {
                match start(work, look.clone(), say.clone()) {
                    Ok(()) => threads += 1,
                    Err(_) if threads == 0 => return read_here(work, look, found),
                    Err(_) => limits.most = threads,
                }
            }
        }
        match heard.recv_timeout(limits.tick.saturating_sub(last_tick.elapsed())) {
            Ok((pid, result)) => {
                locked(work).under_way.remove(&pid);
                found(pid, Ok(result));
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
        if last_tick.elapsed() >= limits.tick {
            last_tick = Instant::now();
            locked(work).under_way.values_mut().for_each(|read| read.age += 1);
        }
    }
}

fn start<T: Send + 'static>(
    work: &Arc<Mutex<Work>>,
    look: impl Fn(i32) -> T + Send + 'static,
    say: SyncSender<(i32, T)>,
) -> io::Result<()> {
    let work = work.clone();
    let thread = thread::Builder::new().name("ask".to_owned());
    thread.spawn(move || {
        watch::leave_to_caller();
        let alive = Arc::new(());
        let next = || {
            let mut work = locked(&work);
            let pid = work.queue.pop_front()?;
            let read = UnderWay { age: 0, start: start_of(pid), thread: Arc::downgrade(&alive) };
            work.under_way.insert(pid, read);
            Some(pid)
        };
        while let Some(pid) = next() {
            // Nobody listens any more once this thread has been left behind.
            if say.send((pid, look(pid))).is_err() {
                return;
            }
        }
    })?;
    Ok(())
}

/// Without another thread this one reads, as for a single process.
fn read_here<T>(work: &Mutex<Work>, look: impl Fn(i32) -> T, found: &mut impl FnMut(i32, Result<T, Unanswered>)) {
    let queue = std::mem::take(&mut locked(work).queue);
    queue.into_iter().for_each(|pid| found(pid, Ok(look(pid))));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::RwLock;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const LIMITS: Limits = Limits { tick: Duration::from_millis(100), patience: 2, limit: 10, most: 3 };
    /// The threads that are left behind count for all tests of this process.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    /// Processes of which some do not answer before they are released.
    struct Processes {
        closed: Arc<RwLock<()>>,
        asked: Arc<AtomicUsize>,
    }

    impl Processes {
        fn new() -> Self {
            Self { closed: Arc::default(), asked: Arc::default() }
        }

        fn look(&self, pids: std::ops::Range<i32>, silent: fn(i32) -> bool) -> BTreeMap<i32, Result<i32, Silence>> {
            let (at, asked) = (self.closed.clone(), self.asked.clone());
            let look = move |pid| {
                asked.fetch_add(1, Ordering::Relaxed);
                let _answers = silent(pid).then(|| drop(at.read()));
                10 * pid
            };
            let mut all = BTreeMap::new();
            let found = |pid, looked: Result<i32, Unanswered>| {
                assert!(all.insert(pid, looked.map_err(|unanswered| unanswered.reason)).is_none());
            };
            ask(pids.collect(), LIMITS, look, found);
            all
        }

        /// Number of reads since the last call.
        fn asked(&self) -> usize {
            self.asked.swap(0, Ordering::Relaxed)
        }
    }

    /// Waits until the threads that were left behind have ended.
    fn wait_for_the_end() {
        let begun = Instant::now();
        while locked(&LEFT_BEHIND).iter().any(|silent| silent.thread.strong_count() > 0) {
            assert!(begun.elapsed().as_secs() < 60, "threads wait for nothing");
            thread::yield_now();
        }
    }

    // Numbers above the kernel's largest possible one (PID_MAX_LIMIT is 4 million): no process has them.
    const FIRST: i32 = 5_000_000;

    #[test]
    fn a_process_that_does_not_answer_hides_no_other_and_is_asked_once() {
        let _alone = locked(&ONE_AT_A_TIME);
        let processes = Processes::new();
        let held = processes.closed.write().unwrap();
        let silent = |pid| pid == FIRST + 1 || pid == FIRST + 3;
        let expected = |pid| if silent(pid) { Err(Silence::NoAnswer) } else { Ok(10 * pid) };
        let all = (FIRST..FIRST + 6).map(|pid| (pid, expected(pid))).collect();
        assert_eq!(processes.look(FIRST..FIRST + 6, silent), all);
        assert_eq!(processes.asked(), 6);
        // The other four are asked again.
        assert_eq!(processes.look(FIRST..FIRST + 6, silent), all);
        assert_eq!(processes.asked(), 4);
        drop(held);
        wait_for_the_end();
        assert_eq!(processes.look(FIRST..FIRST + 6, silent)[&(FIRST + 1)], Ok(10 * (FIRST + 1)));
    }

    #[test]
    fn only_so_many_are_waited_for_in_all() {
        let _alone = locked(&ONE_AT_A_TIME);
        let processes = Processes::new();
        let held = processes.closed.write().unwrap();
        let is = |pid| match pid - FIRST {
            0 => Ok(10 * pid),
            1..=3 => Err(Silence::NoAnswer),
            _ => Err(Silence::NotAsked),
        };
        let all = |pids: std::ops::Range<i32>| pids.map(|pid| (pid, is(pid))).collect();
        assert_eq!(processes.look(FIRST..FIRST + 8, |pid| pid > FIRST), all(FIRST..FIRST + 8));
        assert_eq!(processes.asked(), 4);
        assert_eq!(processes.look(FIRST + 2..FIRST + 6, |_| true), all(FIRST + 2..FIRST + 6));
        assert_eq!(processes.asked(), 0, "no thread is left to ask");
        drop(held);
        wait_for_the_end();
    }

    #[test]
    fn processes_that_are_slow_hide_no_other() {
        let _alone = locked(&ONE_AT_A_TIME);
        let look = |pid: i32| {
            thread::sleep(LIMITS.tick * if pid < FIRST + 5 { 4 } else { 0 });
            pid
        };
        let mut answers = 0;
        ask((FIRST..FIRST + 20).collect(), LIMITS, look, |pid, looked| answers += i32::from(looked == Ok(pid)));
        assert_eq!(answers, 20);
    }

    #[test]
    fn a_later_process_of_the_number_is_asked() {
        let _alone = locked(&ONE_AT_A_TIME);
        let own = std::process::id() as i32;
        let (alive, start) = (Arc::new(()), start_of(own));
        let is_asked = |start| {
            locked(&LEFT_BEHIND).push(LeftBehind { pid: own, start, thread: Arc::downgrade(&alive) });
            let mut answer = None;
            ask(vec![own], LIMITS, |pid| pid, |_, looked| answer = Some(looked));
            locked(&LEFT_BEHIND).clear();
            answer.unwrap()
        };
        assert_eq!(is_asked(start).unwrap_err().reason, Silence::NoAnswer);
        assert_eq!(is_asked(start.map(|start| start - 1)), Ok(own));
    }

    #[test]
    fn every_process_is_looked_at() {
        let _alone = locked(&ONE_AT_A_TIME);
        let mut own = None;
        let is_own = std::process::id() as i32;
        each_process(ProcessFiles::pid, |pid, looked| own = own.take().or((pid == is_own).then_some(looked))).unwrap();
        assert_eq!(own, Some(Ok(is_own)));
        assert_eq!(ask_one(is_own, ProcessFiles::pid), Ok(is_own));
    }
}
