//! Adds samples up by process, thread and call path.

use crate::cause::Cause;
use crate::identity::{ENDED, Identity, name_of, thread_name};
use crate::lives::{Begin, Begins, Life, Origin};
use crate::reason::Flushed;
use crate::stacks::Frame;
use crate::usage::{MOST_USAGES, Usage, Used};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// Maximum number of kept processes: a hostile machine can have any number of short processes and threads.
const MOST_PROCESSES: usize = 4096;
/// Processes that are removed at once if there is no room: whether each has ended is only checked from time to time.
const AT_ONCE: usize = MOST_PROCESSES / 4;
/// The processes that sent most, which stay, ended or not.
const HEAVIEST: usize = 64;
const MOST_THREADS: usize = 1024;
const MOST_PATHS: usize = 512;
/// Maximum memory of the threads and call paths of all processes, in bytes.
const MOST_MEMORY: usize = 64 << 20;
/// Memory that is left to them if there is no room.
const LEFT_MEMORY: usize = MOST_MEMORY / 4 * 3;
/// Memory of a thread or call path beside its texts, numbers and frames.
const EACH: usize = 128;

/// The sums of all samples.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub processes: BTreeMap<Life, ProcessTally>,
    /// Weights of all samples.
    pub sent: u64,
    pub received: u64,
    /// Weights of processes that were left out to make room.
    pub others: Others,
    /// Their number; a process that was left out twice counts twice.
    pub evicted: u64,
    /// Weights of all stacks.
    on_stacks: u64,
    /// Memory of all threads and call paths.
    memory: usize,
    /// The process that alone is watched, which stays.
    only: Option<i32>,
    begins: Begins,
    /// The usage of all processes at the start of the watch.
    usage_before: HashMap<i32, Usage>,
}

/// A thread at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub pid: i32,
    pub tid: i32,
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub time: u64,
}

/// Weights of several processes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Others {
    pub sent: u64,
    pub received: u64,
}

/// One process.
#[derive(Debug, Default)]
pub(crate) struct ProcessTally {
    pub name: String,
    /// Time of its start after the boot, in clock ticks; `None` if it ended before its first sample was read.
    pub start: Option<u64>,
    /// When another life with its PID began, in nanoseconds of CLOCK_MONOTONIC.
    end: Option<u64>,
    pub used: Used,
    pub is_kernel_thread: bool,
    pub sent: u64,
    pub received: u64,
    /// By number and begin.
    pub threads: BTreeMap<(i32, u64), ThreadTally>,
    pub flushes: Flushes,
    pub paths: HashMap<(Cause, Vec<u64>), PathTally>,
    /// Weights of the stack samples together, including samples without room for their path.
    pub on_stacks: u64,
    /// Memory of its threads and call paths.
    memory: usize,
    /// The number of stacks, and the sum of their weights' squares.
    pub stacks: u64,
    pub squares: f64,
}

/// One thread.
#[derive(Debug, Default)]
pub(crate) struct ThreadTally {
    pub name: String,
    end: Option<u64>,
    pub sent: u64,
    pub received: u64,
}

/// The memory that flushes cover.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flushes {
    pub pages: u64,
    /// Flushes that name their pages.
    pub by_page: u64,
    /// Flushes of everything.
    pub whole: u64,
}

/// One call path; its frames are named when it is met first, since the process may end.
#[derive(Clone, Debug, Default)]
pub(crate) struct PathTally {
    pub weight: u64,
    pub frames: Vec<Frame>,
}

impl Flushes {
    pub fn add(&mut self, flushed: Flushed, weight: u64) {
        match flushed {
            Flushed::Everything => self.whole += weight,
            Flushed::Pages(pages) => {
                self.pages += pages.saturating_mul(weight);
                self.by_page += weight;
            }
        }
    }
}

impl Tally {
    /// An empty tally in which this process stays; with the usage of all processes at the start of the watch.
    pub fn of(only: Option<i32>, usage_before: HashMap<i32, Usage>) -> Self {
        Self { only, usage_before, ..Self::default() }
    }

    /// Adds a sample of a sender.
    pub fn add_sent(&mut self, seen: Seen, flushed: Option<Flushed>, weight: u64) {
        self.sent += weight;
        self.add(seen.pid, seen.time, |process, begins| {
            process.sent += weight;
            if let Some(flushed) = flushed {
                process.flushes.add(flushed, weight);
            }
            if let Some(thread) = process.thread(seen, begins) {
                thread.sent += weight;
            }
        });
    }

    /// Adds a sample of a receiver.
    pub fn add_received(&mut self, seen: Seen, weight: u64) {
        self.received += weight;
        self.add(seen.pid, seen.time, |process, begins| {
            process.received += weight;
            if let Some(thread) = process.thread(seen, begins) {
                thread.received += weight;
            }
        });
    }

    /// Adds a stack; `frames` names a path that is new.
    pub fn add_stack(
        &mut self,
        seen: Seen,
        (cause, addresses): (Cause, Vec<u64>),
        weight: u64,
        frames: impl FnOnce(&[u64]) -> Vec<Frame>,
    ) {
        self.on_stacks += weight;
        self.add(seen.pid, seen.time, |process, _| process.add_path(cause, addresses, weight, frames));
    }

    /// Adds to a process at a time.
    fn add(&mut self, pid: i32, time: u64, to: impl FnOnce(&mut ProcessTally, &Begins)) {
        let (process, begins) = self.process(pid, time);
        let before = process.memory;
        to(process, begins);
        let more = process.memory - before;
        self.memory += more;
        if self.memory > MOST_MEMORY {
            self.shed();
        }
    }

    /// Drops threads and call paths, of the least active senders first and of the process that alone is watched last.
    fn shed(&mut self) {
        let only = self.only;
        let mut lightest: Vec<&mut ProcessTally> = Vec::new();
        let mut last = Vec::new();
        for (life, process) in &mut self.processes {
            if only == Some(life.pid) { last.push(process) } else { lightest.push(process) }
        }
        lightest.sort_by_key(|process| (process.sent, process.received));
        for process in lightest.into_iter().chain(last) {
            if self.memory <= LEFT_MEMORY {
                break;
            }
            self.memory -= process.shed();
        }
    }

    /// The weights for whose threads, and for whose call paths, there was no room.
    pub fn left_out(&self) -> [u64; 2] {
        let (mut threads, mut paths) = (0, 0);
        for process in self.processes.values() {
            threads += process.threads.values().map(|thread| thread.sent + thread.received).sum::<u64>();
            paths += process.paths.values().map(|path| path.weight).sum::<u64>();
        }
        [(self.sent + self.received).saturating_sub(threads), self.on_stacks.saturating_sub(paths)]
    }

    /// Adds a new owner of a number, which was read now. Samples of its predecessor may follow.
    pub fn begin(&mut self, begin: Begin, now: u64) {
        for begin in self.begins.add(begin, now) {
            self.end_owner(&begin);
        }
    }

    /// Ends the owner of a number before this begin.
    fn end_owner(&mut self, begin: &Begin) {
        let process = self.processes.range_mut(..Life { pid: begin.pid, since: begin.time });
        let Some((_, process)) = process.last().filter(|(life, _)| life.pid == begin.pid) else { return };
        let end = if begin.tid == begin.pid {
            &mut process.end
        } else {
            let thread = process.threads.range_mut(..(begin.tid, begin.time));
            let Some((_, thread)) = thread.last().filter(|((tid, _), _)| *tid == begin.tid) else { return };
            &mut thread.end
        };
        *end = (*end).max(Some(begin.time));
    }

    /// The life of a process at a time.
    pub fn life(&self, pid: i32, time: u64) -> Life {
        let known = self.processes.range(..=Life { pid, since: time }).next_back();
        let known = known.filter(|(life, _)| life.pid == pid).map(|(life, process)| (life.since, process.end));
        Life { pid, since: self.begins.since(pid, time, known) }
    }

    /// True if a process still runs the program of this life, by the begins that were added.
    pub fn is_current(&self, life: Life) -> bool {
        let has_end = self.processes.get(&life).is_some_and(|process| process.end.is_some());
        !has_end && self.begins.is_last(life.pid, life.since)
    }

    /// The tally of a process at a time, which is named when it is met first.
    fn process(&mut self, pid: i32, time: u64) -> (&mut ProcessTally, &Begins) {
        let life = self.life(pid, time);
        if !self.processes.contains_key(&life) {
            if self.processes.len() >= MOST_PROCESSES {
                self.make_room();
            }
            let process = self.new_process(life);
            self.processes.insert(life, process);
        }
        (self.processes.entry(life).or_default(), &self.begins)
    }

    /// A process without counts.
    fn new_process(&self, life: Life) -> ProcessTally {
        let is_current = self.is_current(life);
        let identity = if is_current { Identity::read(life.pid) } else { Identity::default() };
        let begin = self.begins.at(life.pid, life.since).filter(|begin| begin.time == life.since);
        let name = identity.name.or_else(|| self.name_by(&begin?.origin, life.since));
        let before = match begin.map(|begin| &begin.origin) {
            // The kernel counts on from one program of a process to the next.
            Some(Origin::Exec { .. }) if is_current => Usage::of(life.pid),
            None if life.since == 0 => self.usage_before.get(&life.pid).copied(),
            _ => None,
        };
        let is_unknown = life.since == 0 && before.is_none() && self.usage_before.len() >= MOST_USAGES;
        ProcessTally {
            name: name.unwrap_or_else(|| ENDED.to_owned()),
            start: identity.start,
            is_kernel_thread: identity.is_kernel_thread,
            used: Used { before, last: None, is_unknown },
            ..ProcessTally::default()
        }
    }

    /// The name of an ended process by its begin at this time: the program's name, or the parent's after a clone(2).
    fn name_by(&self, origin: &Origin, time: u64) -> Option<String> {
        let parent = match origin {
            Origin::Exec { name } => return Some(name.clone()),
            Origin::Clone { parent } => self.life(*parent, time),
        };
        let known = self.processes.get(&parent).map(|parent| parent.name.clone());
        known.or_else(|| name_of(parent.pid).filter(|_| self.is_current(parent)))
    }

    /// Weights sent by all processes and programs with this number.
    pub fn sent_by(&self, pid: i32) -> u64 {
        let lives = Life { pid, since: 0 }..=Life { pid, since: u64::MAX };
        self.processes.range(lives).map(|(_, process)| process.sent).sum()
    }

    /// Reads the usage of a process. An ended process keeps its last usage.
    pub fn read_usage(&mut self, life: Life) {
        if !self.is_current(life) {
            return;
        }
        if let Some(process) = self.processes.get_mut(&life) {
            process.used.last = Usage::of(life.pid).or(process.used.last);
        }
    }

    /// Moves the counts of some processes to the others: first of ended processes, then of the least active senders.
    fn make_room(&mut self) {
        let weight = |process: &ProcessTally| (process.sent, process.received);
        let only = self.only;
        let evictable = self.processes.iter().filter(|(life, _)| only != Some(life.pid));
        let mut lightest: Vec<(Life, (u64, u64))> = evictable.map(|(&life, process)| (life, weight(process))).collect();
        lightest.sort_by_key(|&(_, weight)| weight);
        lightest.truncate(lightest.len().saturating_sub(HEAVIEST));
        // The order by weight is kept among both.
        let (ended, living): (Vec<_>, Vec<_>) = lightest.into_iter().partition(|&(life, _)| self.has_ended(life));
        for (life, (sent, received)) in ended.into_iter().chain(living).take(AT_ONCE) {
            self.memory -= self.processes.remove(&life).map_or(0, |process| process.memory);
            self.evicted += 1;
            self.others.sent += sent;
            self.others.received += received;
        }
    }

    fn has_ended(&self, life: Life) -> bool {
        !self.is_current(life) || !Path::new("/proc").join(life.pid.to_string()).exists()
    }
}

impl ProcessTally {
    /// Number of stacks of equal weight with the same information as the sampled ones (Kish's effective sample size).
    pub fn effective_stacks(&self) -> f64 {
        if self.squares > 0.0 { (self.on_stacks as f64).powi(2) / self.squares } else { 0.0 }
    }

    /// Share of the stacks whose path there was no room for.
    pub fn dropped(&self) -> f64 {
        let kept: u64 = self.paths.values().map(|path| path.weight).sum();
        self.on_stacks.saturating_sub(kept) as f64 / self.on_stacks.max(1) as f64
    }

    /// The tally of one of its threads; `None` if there is no room.
    fn thread(&mut self, seen: Seen, begins: &Begins) -> Option<&mut ThreadTally> {
        let Seen { pid, tid, time } = seen;
        let known = self.threads.range((tid, 0)..=(tid, time)).next_back();
        let since = begins.since(tid, time, known.map(|(&(_, since), thread)| (since, thread.end)));
        if !self.threads.contains_key(&(tid, since)) {
            if self.threads.len() >= MOST_THREADS {
                return None;
            }
            let is_current = begins.is_last(tid, since) && begins.is_last(pid, time);
            let name = thread_name(pid, tid).filter(|_| is_current).unwrap_or_else(|| ENDED.to_owned());
            self.memory += EACH + name.len();
            self.threads.insert((tid, since), ThreadTally { name, ..ThreadTally::default() });
        }
        self.threads.get_mut(&(tid, since))
    }

    /// Drops threads and call paths. Returns their memory.
    fn shed(&mut self) -> usize {
        self.threads.clear();
        self.paths.clear();
        std::mem::take(&mut self.memory)
    }

    /// Adds a stack; `frames` names a path that is new.
    fn add_path(&mut self, cause: Cause, addresses: Vec<u64>, weight: u64, frames: impl FnOnce(&[u64]) -> Vec<Frame>) {
        self.on_stacks += weight;
        self.stacks += 1;
        self.squares += (weight as f64).powi(2);
        let is_full = self.paths.len() >= MOST_PATHS;
        let key = (cause, addresses);
        if let Some(path) = self.paths.get_mut(&key) {
            path.weight += weight;
        } else if !is_full {
            let frames = frames(&key.1);
            self.memory += EACH + size_of_val(&*key.1) + frames.iter().map(Frame::memory).sum::<usize>();
            self.paths.insert(key, PathTally { weight, frames });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that no process has: the kernel's limit is 2^22 (proc_sys_kernel(5), pid_max).
    const NOBODY: i32 = 1 << 22;

    fn seen(pid: i32, time: u64) -> Seen {
        Seen { pid, tid: pid, time }
    }

    /// A process that began before the watch.
    fn old(pid: i32) -> Life {
        Life { pid, since: 0 }
    }

    fn check_sums(tally: &Tally) {
        let sum = |of: fn(&ProcessTally) -> u64| tally.processes.values().map(of).sum::<u64>();
        let (sent, received) = (sum(|process| process.sent), sum(|process| process.received));
        assert_eq!((sent + tally.others.sent, received + tally.others.received), (tally.sent, tally.received));
        assert!(tally.processes.len() <= MOST_PROCESSES);
    }

    #[test]
    fn a_process_that_comes_late_is_seen() {
        let mut tally = Tally::default();
        for pid in NOBODY..NOBODY + 5_000 {
            tally.add_sent(seen(pid, 1), None, 1);
            tally.add_received(seen(pid, 1), 2);
        }
        let late = NOBODY + 5_000;
        (0..1_000).for_each(|_| tally.add_sent(seen(late, 1), None, 1));
        assert_eq!(tally.processes.get(&old(late)).map(|process| process.sent), Some(1_000));
        assert_eq!((tally.sent, tally.received), (6_000, 10_000));
        assert!(tally.others.sent > 0);
        check_sums(&tally);
    }

    #[test]
    fn what_has_ended_makes_room_for_what_lives_but_not_what_sent_most() {
        let own = std::process::id() as i32;
        let mut tally = Tally::of(Some(NOBODY), HashMap::new());
        tally.process(NOBODY, 1);
        tally.add_sent(seen(NOBODY + 1, 1), None, 1_000);
        tally.add_sent(seen(own, 1), None, 1);
        for pid in NOBODY + 2..NOBODY + 20_000 {
            tally.add_sent(seen(pid, 1), None, 5);
        }
        assert!(tally.processes.contains_key(&old(NOBODY)), "it alone is watched");
        assert_eq!(tally.processes.get(&old(NOBODY + 1)).map(|process| process.sent), Some(1_000));
        assert_eq!(tally.processes.get(&old(own)).map(|process| process.sent), Some(1));
        check_sums(&tally);
    }

    fn exec(pid: i32, time: u64, name: &str) -> Begin {
        Begin { time, pid, tid: pid, origin: Origin::Exec { name: name.to_owned() } }
    }

    fn clone(pid: i32, tid: i32, time: u64, parent: i32) -> Begin {
        Begin { time, pid, tid, origin: Origin::Clone { parent } }
    }

    /// Adds a begin that is read at its time.
    fn begin(tally: &mut Tally, begin: Begin) {
        let now = begin.time;
        tally.begin(begin, now);
    }

    /// Begin, name and sent shootdowns of each life.
    fn sums(tally: &Tally) -> Vec<(u64, &str, u64)> {
        tally.processes.iter().map(|(life, process)| (life.since, &*process.name, process.sent)).collect()
    }

    #[test]
    fn a_program_that_is_executed_counts_apart() {
        let mut tally = Tally::default();
        tally.add_sent(seen(NOBODY, 5), None, 1);
        begin(&mut tally, exec(NOBODY, 10, "first"));
        begin(&mut tally, exec(NOBODY, 20, "second"));
        // In the order of the rings, not of time.
        for time in [25, 15, 12, 8] {
            tally.add_sent(seen(NOBODY, time), None, 10);
        }
        assert_eq!(sums(&tally), [(0, ENDED, 11), (10, "first", 20), (20, "second", 10)]);
        check_sums(&tally);
    }

    #[test]
    fn a_reused_number_is_another_process_and_has_its_parent_s_name() {
        let (mut tally, shell) = (Tally::default(), NOBODY + 1);
        begin(&mut tally, exec(shell, 1, "shell"));
        tally.add_sent(seen(shell, 2), None, 1);
        begin(&mut tally, exec(NOBODY, 5, "before"));
        tally.add_sent(seen(NOBODY, 8), None, 3);
        begin(&mut tally, clone(NOBODY, NOBODY, 10, shell));
        tally.add_sent(seen(NOBODY, 12), None, 4);
        assert_eq!(sums(&tally), [(5, "before", 3), (10, "shell", 4), (1, "shell", 1)]);
    }

    #[test]
    fn a_begin_separates_samples_after_it_is_forgotten() {
        let mut tally = Tally::default();
        tally.add_sent(seen(NOBODY, 5), None, 1);
        begin(&mut tally, clone(NOBODY, NOBODY, 10, 1));
        begin(&mut tally, clone(NOBODY + 1, NOBODY + 1, 1 << 50, 1));
        tally.add_sent(seen(NOBODY, 1 << 50), None, 2);
        tally.add_sent(seen(NOBODY, (1 << 50) + 1), None, 2);
        assert_eq!(sums(&tally), [(0, ENDED, 1), (10, ENDED, 4)]);
    }

    #[test]
    fn a_reused_number_is_another_thread() {
        let mut tally = Tally::default();
        let at = |time| Seen { pid: NOBODY, tid: NOBODY + 7, time };
        tally.add_sent(at(5), None, 1);
        begin(&mut tally, clone(NOBODY, NOBODY + 7, 10, NOBODY));
        tally.add_sent(at(12), None, 2);
        let threads: Vec<_> = tally.processes[&old(NOBODY)].threads.iter().map(|(key, of)| (*key, of.sent)).collect();
        assert_eq!(threads, [((NOBODY + 7, 0), 1), ((NOBODY + 7, 10), 2)]);
    }

    #[test]
    fn a_heavy_stack_among_light_ones_counts_as_one() {
        let mut process = ProcessTally::default();
        for weight in [1, 1, 1000] {
            process.add_path(Cause::Munmap, vec![weight], weight, |_| Vec::new());
        }
        assert_eq!(process.stacks, 3);
        assert!(process.effective_stacks() < 1.1, "{}", process.effective_stacks());
    }

    #[test]
    fn the_memory_of_all_processes_is_bounded_and_the_largest_senders_keep_their_details() {
        let (mut tally, largest) = (Tally::default(), NOBODY + 2_000);
        tally.add_sent(seen(largest, 1), None, 1_000_000);
        let frame = Frame { object: "o".repeat(1000), function: None, address: 1, index: None };
        for pid in (NOBODY..NOBODY + 2_000).chain([largest]) {
            for path in 0..64 {
                tally.add_stack(seen(pid, 1), (Cause::Munmap, vec![path]), 1, |_| vec![frame.clone()]);
            }
            tally.add_sent(seen(pid, 1), None, 1);
        }
        let sum: usize = tally.processes.values().map(|process| process.memory).sum();
        assert_eq!(sum, tally.memory);
        assert!(sum <= MOST_MEMORY, "{sum}");
        assert_eq!(tally.processes[&old(largest)].paths.len(), 64);
        let kept: usize = tally.processes.values().map(|process| process.paths.len()).sum();
        let threads: usize = tally.processes.values().map(|process| process.threads.len()).sum();
        // The first sample of the largest sender has another weight.
        let [of_threads, of_paths] = tally.left_out();
        assert_eq!((of_threads, of_paths), (2_001 - threads as u64, 64 * 2_001 - kept as u64));
        assert!(kept > 64 && kept < 64 * 2_001);
    }

    #[test]
    fn processes_that_make_room_are_counted() {
        let mut tally = Tally::default();
        for pid in NOBODY..NOBODY + 5_000 {
            tally.add_sent(seen(pid, 1), None, 1);
        }
        assert_eq!(tally.evicted, 5_000 - tally.processes.len() as u64);
        assert_eq!(tally.left_out(), [tally.evicted, 0]);
    }

    #[test]
    fn paths_for_which_there_is_no_room_are_counted() {
        let mut process = ProcessTally::default();
        for path in 0..4 * MOST_PATHS as u64 {
            process.add_path(Cause::Munmap, vec![path], 1, |_| Vec::new());
        }
        assert_eq!((process.paths.len(), process.dropped()), (MOST_PATHS, 0.75));
    }
}
