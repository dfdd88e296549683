//! Reads processes of which some may never answer.
//!
//! A read of a process waits until the locks of its memory are released, and a user's program can hold those for any time. No such
//! read has a time limit, so other threads make it, and a thread that waits too long is left behind. The process is remembered with
//! the time of its start, as long as that thread waits: no second thread is left behind for it.
//!
//! One user's processes cannot hide another user's. Each user has a limit of threads that are left behind, and a limit of time
//! ([`Limits`]). Once a scan is slow, the next process is one of the user whose processes took the least time.

mod work;

use crate::{ObservationError, ProcessFiles};
use linux::owner::accountable_user_of;
use linux::watch::{self, GivenUp, Worker};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs;
use std::io;
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};
use work::{User, Work};

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
    /// It was not asked, because too many processes, mostly its own user's, do not answer or answer slowly.
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
            Silence::NotAsked => formatter.write_str(
                "was not read, because too many processes of its user do not answer or answer slowly; fix: end those",
            ),
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
    /// After this time a scan asks no further process.
    scan: u32,
    /// Number of threads, those that were left behind earlier included.
    most: usize,
    /// Number of threads that a scan may start, however many were left behind. While so few are left, no further process of a
    /// user is asked who has one that does not answer.
    reserve: usize,
    /// Number of threads that wait for processes of one user.
    most_of_a_user: usize,
    /// Time that answers of one user's processes may take, over all scans. [`RESTORED`] describes how it comes back.
    of_a_user: Duration,
    /// Shorter answers do not count as a user's time.
    short: Duration,
    /// The user to whom a process counts.
    user_of: fn(i32) -> User,
}

impl Limits {
    /// The limits of a scan while `left_behind` threads wait for processes of earlier ones.
    fn beside(self, left_behind: usize) -> Self {
        let most = self.most.saturating_sub(left_behind);
        match most < self.reserve {
            true => Self { most: self.reserve, most_of_a_user: 1, ..self },
            false => Self { most, ..self },
        }
    }
}

const TICK: Duration = Duration::from_millis(500);
/// Most processes are read in less than a millisecond, and the largest in some seconds.
const LIMITS: Limits = Limits {
    tick: TICK,
    patience: 4,
    limit: (watch::LIMIT.as_millis() / TICK.as_millis()) as u32,
    scan: 2 * (watch::LIMIT.as_millis() / TICK.as_millis()) as u32,
    most: 32,
    reserve: 4,
    most_of_a_user: 8,
    of_a_user: Duration::from_secs(60),
    short: Duration::from_millis(50),
    user_of: accountable_user_of,
};
/// A user gets back this part of the time that passes.
const RESTORED: u32 = 10;

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

/// Works on processes, one after another, in another thread: each may take any time, if it answers.
#[derive(Default)]
pub struct OneByOne(Worker);

impl OneByOne {
    /// Has the thread do `work` with a process. If a read takes longer than [`watch::LIMIT`], the thread is left behind and ends
    /// once the process answers. `work` may ask processes.
    ///
    /// # Errors
    /// [`Unanswered`].
    pub fn with<T: Send + 'static>(
        &mut self,
        pid: i32,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Unanswered> {
        if let Some(reason) = locked(&KNOWN).refuses(pid, &LIMITS) {
            return Err(Unanswered::new(pid, reason));
        }
        let alive = Arc::new(());
        let thread = Arc::downgrade(&alive);
        let done = self.0.run(move || {
            let _alive = alive;
            work()
        });
        done.map_err(|GivenUp| {
            let (start, user) = (ProcessFiles::of(pid).start_time(), (LIMITS.user_of)(pid));
            locked(&KNOWN).left_behind.push(LeftBehind { pid, start, user, thread });
            Unanswered::new(pid, Silence::NoAnswer)
        })
    }
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
    user: User,
    /// Gone once the thread has ended.
    thread: Weak<()>,
}

/// Time that a user's processes took to answer.
struct Spent {
    time: Duration,
    /// Time of the last change.
    at: Instant,
}

impl Spent {
    fn now(&self) -> Duration {
        self.time.saturating_sub(self.at.elapsed() / RESTORED)
    }
}

/// Results of earlier scans.
struct Known {
    left_behind: Vec<LeftBehind>,
    spent: BTreeMap<User, Spent>,
}

/// Locked while processes are asked, so that all callers together start no more threads than one.
static KNOWN: Mutex<Known> = Mutex::new(Known { left_behind: Vec::new(), spent: BTreeMap::new() });

impl Known {
    fn spend(&mut self, user: User, time: Duration) {
        let time = time + self.spent_by(user);
        self.spent.insert(user, Spent { time, at: Instant::now() });
    }

    fn spent_by(&self, user: User) -> Duration {
        self.spent.get(&user).map_or(Duration::ZERO, Spent::now)
    }

    /// Removes threads that have ended. Their time counts only now: while they wait, no other thread waits for the same process.
    fn refresh(&mut self, limits: &Limits) {
        let (waiting, ended): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.left_behind).into_iter().partition(|silent| silent.thread.strong_count() > 0);
        self.left_behind = waiting;
        ended.iter().for_each(|silent| self.spend(silent.user, limits.tick * limits.limit));
        self.spent.retain(|_, spent| !spent.now().is_zero());
    }

    fn is_silent(&self, pid: i32) -> bool {
        self.left_behind.iter().any(|silent| silent.pid == pid && silent.start == ProcessFiles::of(pid).start_time())
    }

    /// Why no work with a process begins, if so.
    fn refuses(&mut self, pid: i32, limits: &Limits) -> Option<Silence> {
        self.refresh(limits);
        if self.left_behind.is_empty() && self.spent.is_empty() {
            return None;
        }
        let user = (limits.user_of)(pid);
        let is_over = self.left_behind_for(user) >= limits.most_of_a_user || self.spent_by(user) >= limits.of_a_user;
        match self.is_silent(pid) {
            true => Some(Silence::NoAnswer),
            false => is_over.then_some(Silence::NotAsked),
        }
    }

    fn left_behind_for(&self, user: User) -> usize {
        self.left_behind.iter().filter(|silent| silent.user == user).count()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ask<T: Send + 'static>(
    pids: Vec<i32>,
    limits: Limits,
    look: impl Fn(i32) -> T + Clone + Send + 'static,
    mut found: impl FnMut(i32, Result<T, Unanswered>),
) {
    let mut known = locked(&KNOWN);
    known.refresh(&limits);
    let (silent, others): (Vec<i32>, Vec<i32>) = pids.into_iter().partition(|pid| known.is_silent(*pid));
    let mut scan = Scan {
        work: Arc::new(Mutex::new(Work::of(others))),
        limits: limits.beside(known.left_behind.len()),
        known: &mut known,
        age: 0,
    };
    scan.run(look, &mut found);
    let Scan { work, .. } = scan;
    let (under_way, not_asked) = locked(&work).take();
    for (pid, read) in under_way {
        let user = read.user.unwrap_or_else(|| (limits.user_of)(pid));
        known.left_behind.push(LeftBehind { pid, start: read.start, user, thread: read.thread });
        found(pid, Err(Unanswered::new(pid, Silence::NoAnswer)));
    }
    silent.into_iter().for_each(|pid| found(pid, Err(Unanswered::new(pid, Silence::NoAnswer))));
    not_asked.into_iter().for_each(|pid| found(pid, Err(Unanswered::new(pid, Silence::NotAsked))));
}

/// A process's answer, and the time that it took.
struct Answer<T> {
    pid: i32,
    result: T,
    took: Duration,
}

/// One call of [`ask`].
struct Scan<'a> {
    work: Arc<Mutex<Work>>,
    limits: Limits,
    known: &'a mut Known,
    /// Number of ticks since it began.
    age: u32,
}

impl Scan<'_> {
    /// Reads until nothing is left but what does not answer and what may not be asked any more.
    fn run<T: Send + 'static>(
        &mut self,
        look: impl Fn(i32) -> T + Clone + Send + 'static,
        found: &mut impl FnMut(i32, Result<T, Unanswered>),
    ) {
        // One result is kept at most, so that none gather.
        let (say, heard) = mpsc::sync_channel(1);
        let mut last_tick = Instant::now();
        if !self.known.left_behind.is_empty() || !self.known.spent.is_empty() {
            self.sort_by_users();
        }
        loop {
            match self.next_step() {
                Step::End => return,
                Step::Wait => {}
                Step::StartThread => match start(&self.work, look.clone(), say.clone()) {
                    Ok(()) => {}
                    Err(_) if locked(&self.work).threads == 0 => return self.read_here(look, found),
                    Err(_) => self.limits.most = locked(&self.work).threads,
                },
            }
            if let Ok(answer) = heard.recv_timeout(self.limits.tick.saturating_sub(last_tick.elapsed())) {
                self.take(answer, found);
            }
            if last_tick.elapsed() >= self.limits.tick {
                last_tick = Instant::now();
                self.tick();
            }
        }
    }

    fn next_step(&self) -> Step {
        let work = locked(&self.work);
        let (has_more, silent) = (work.has_more(), work.older_than(self.limits.limit));
        let all_wait = work.older_than(self.limits.patience) == work.threads;
        let is_over = match has_more {
            true => work.threads >= self.limits.most && silent == work.threads,
            false => silent == work.under_way(),
        };
        match (is_over, has_more && all_wait && work.threads < self.limits.most) {
            (true, _) => Step::End,
            (false, true) => Step::StartThread,
            (false, false) => Step::Wait,
        }
    }

    fn take<T>(&mut self, answer: Answer<T>, found: &mut impl FnMut(i32, Result<T, Unanswered>)) {
        let Answer { pid, result, took } = answer;
        let read = locked(&self.work).answered(pid);
        // This program may have been stopped meanwhile.
        let took = took.min(self.limits.tick * (read.as_ref().map_or(0, |read| read.age) + 1));
        if took >= self.limits.short {
            let user = read.and_then(|read| read.user).unwrap_or_else(|| (self.limits.user_of)(pid));
            self.known.spend(user, took);
            self.limit_users();
        }
        found(pid, Ok(result));
    }

    fn tick(&mut self) {
        self.age += 1;
        let without_user = locked(&self.work).tick();
        for pid in without_user {
            let user = (self.limits.user_of)(pid);
            locked(&self.work).set_user(pid, user);
        }
        if self.age == self.limits.patience && !locked(&self.work).is_sorted() {
            self.sort_by_users();
        }
        if self.age == self.limits.scan {
            locked(&self.work).ask_no_more();
        }
        self.limit_users();
    }

    /// From now on the users take turns.
    fn sort_by_users(&mut self) {
        let waiting = locked(&self.work).waiting();
        let users: HashMap<i32, User> = waiting.into_iter().map(|pid| (pid, (self.limits.user_of)(pid))).collect();
        locked(&self.work).sort_by(&users);
        self.limit_users();
    }

    /// Sets for each user the time spent, and whether further processes of the user are asked.
    fn limit_users(&mut self) {
        let (known, limits) = (&*self.known, &self.limits);
        locked(&self.work).limit_users(|user, under_way| {
            let threads = known.left_behind_for(user) + under_way.older_than(limits.patience);
            let spent = known.spent_by(user);
            let may_be_asked = threads < limits.most_of_a_user && spent < limits.of_a_user;
            may_be_asked.then(|| spent + limits.tick * under_way.ticks())
        });
    }

    /// Without another thread this one reads, as for a single process.
    fn read_here<T>(&self, look: impl Fn(i32) -> T, found: &mut impl FnMut(i32, Result<T, Unanswered>)) {
        let (_, waiting) = locked(&self.work).take();
        waiting.into_iter().for_each(|pid| found(pid, Ok(look(pid))));
    }
}

enum Step {
    End,
    Wait,
    StartThread,
}

fn start<T: Send + 'static>(
    work: &Arc<Mutex<Work>>,
    look: impl Fn(i32) -> T + Send + 'static,
    say: SyncSender<Answer<T>>,
) -> io::Result<()> {
    let shared = work.clone();
    locked(work).threads += 1;
    let thread = thread::Builder::new().name("ask".to_owned());
    let started = thread.spawn(move || {
        watch::leave_to_caller();
        watch::block_signals();
        let alive = Arc::new(());
        let next = || locked(&shared).next(&alive);
        while let Some(pid) = next() {
            let begun = Instant::now();
            // It may end meanwhile, and another process get its number.
            let start = ProcessFiles::of(pid).start_time();
            locked(&shared).set_start(pid, start);
            let result = look(pid);
            // Nobody listens any more once this thread has been left behind.
            if say.send(Answer { pid, result, took: begun.elapsed() }).is_err() {
                return;
            }
        }
    });
    started.map(drop).inspect_err(|_| locked(work).threads -= 1)
}

#[cfg(test)]
mod tests;
