//! Adds samples up by process, thread and call path.

use crate::cause::Cause;
use crate::reason::Flushed;
use crate::stacks::Frame;
use address_space::ProcessStat;
use process_view::{ProcessFiles, ask_one, printable, program_name};
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

/// The sums of all samples.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub processes: BTreeMap<i32, ProcessTally>,
    /// Weights of all samples.
    pub sent: u64,
    pub received: u64,
    /// Weights of processes that were left out to make room.
    pub others: Others,
    /// The process that alone is watched, which stays.
    only: Option<i32>,
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
    pub is_kernel_thread: bool,
    pub sent: u64,
    pub received: u64,
    pub threads: BTreeMap<i32, ThreadTally>,
    pub flushes: Flushes,
    pub paths: HashMap<(Cause, Vec<u64>), PathTally>,
    /// Weights of the stack samples together, including samples without room for their path.
    pub on_stacks: u64,
    /// Their number, and the sum of their weights' squares.
    pub stacks: u64,
    pub squares: f64,
}

/// One thread.
#[derive(Debug, Default)]
pub(crate) struct ThreadTally {
    pub name: String,
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
    /// An empty tally in which this process stays.
    pub fn of(only: Option<i32>) -> Self {
        Self { only, ..Self::default() }
    }

    /// Adds a sample of a sender.
    pub fn add_sent(&mut self, pid: i32, tid: i32, flushed: Option<Flushed>, weight: u64) {
        self.sent += weight;
        let process = self.process(pid);
        process.sent += weight;
        if let Some(flushed) = flushed {
            process.flushes.add(flushed, weight);
        }
        if let Some(thread) = process.thread(pid, tid) {
            thread.sent += weight;
        }
    }

    /// Adds a sample of a receiver.
    pub fn add_received(&mut self, pid: i32, tid: i32, weight: u64) {
        self.received += weight;
        let process = self.process(pid);
        process.received += weight;
        if let Some(thread) = process.thread(pid, tid) {
            thread.received += weight;
        }
    }

    /// The tally of a process, which is named when it is met first.
    pub fn process(&mut self, pid: i32) -> &mut ProcessTally {
        if self.processes.len() >= MOST_PROCESSES && !self.processes.contains_key(&pid) {
            self.make_room();
        }
        self.processes.entry(pid).or_insert_with(|| {
            let files = ProcessFiles::of(pid);
            let name = name_of(pid);
            let stat = files.text("stat").unwrap_or_default();
            let is_kernel_thread = is_kernel_thread(&stat);
            let start = ProcessStat::parse(stat.as_bytes()).and_then(|stat| stat.start_time());
            ProcessTally { name, start, is_kernel_thread, ..ProcessTally::default() }
        })
    }

    /// Moves the counts of some processes to the others: first of ended processes, then of the least active senders.
    fn make_room(&mut self) {
        let weight = |process: &ProcessTally| (process.sent, process.received);
        let only = self.only;
        let evictable = self.processes.iter().filter(|(pid, _)| only != Some(**pid));
        let mut lightest: Vec<(i32, (u64, u64))> = evictable.map(|(&pid, process)| (pid, weight(process))).collect();
        lightest.sort_by_key(|&(_, weight)| weight);
        lightest.truncate(lightest.len().saturating_sub(HEAVIEST));
        // The order by weight is kept among both.
        let (ended, living): (Vec<_>, Vec<_>) = lightest.into_iter().partition(|&(pid, _)| has_ended(pid));
        for (pid, (sent, received)) in ended.into_iter().chain(living).take(AT_ONCE) {
            self.processes.remove(&pid);
            self.others.sent += sent;
            self.others.received += received;
        }
    }
}

/// The name of the program, fit to be printed; the name in `comm` if the process does not answer.
fn name_of(pid: i32) -> String {
    let name = ask_one(pid, program_name).unwrap_or_else(|silent| Some(silent.name));
    name.filter(|name| !name.is_empty()).map_or_else(|| "(ended)".to_owned(), |name| printable(&name))
}

fn has_ended(pid: i32) -> bool {
    !Path::new("/proc").join(pid.to_string()).exists()
}

/// True for the threads of the kernel, by the flags in `/proc/PID/stat` (proc_pid_stat(5); linux/sched.h: PF_KTHREAD).
fn is_kernel_thread(stat: &str) -> bool {
    const PF_KTHREAD: u64 = 0x0020_0000;
    // The name may hold anything but ends with the last parenthesis; the flags are the seventh field behind it.
    let flags = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(6)?.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & PF_KTHREAD != 0)
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
    pub fn thread(&mut self, pid: i32, tid: i32) -> Option<&mut ThreadTally> {
        if !self.threads.contains_key(&tid) {
            if self.threads.len() >= MOST_THREADS {
                return None;
            }
            let name = ProcessFiles::of(pid).text(&format!("task/{tid}/comm"));
            let name = name.map_or_else(|_| "(ended)".to_owned(), |name| printable(name.trim_end()));
            self.threads.insert(tid, ThreadTally { name, ..ThreadTally::default() });
        }
        self.threads.get_mut(&tid)
    }

    /// Adds a stack; `frames` names a path that is new.
    pub fn add_path(
        &mut self,
        cause: Cause,
        addresses: Vec<u64>,
        weight: u64,
        frames: impl FnOnce(&[u64]) -> Vec<Frame>,
    ) {
        self.on_stacks += weight;
        self.stacks += 1;
        self.squares += (weight as f64).powi(2);
        let is_full = self.paths.len() >= MOST_PATHS;
        let key = (cause, addresses);
        if let Some(path) = self.paths.get_mut(&key) {
            path.weight += weight;
        } else if !is_full {
            let frames = frames(&key.1);
            self.paths.insert(key, PathTally { weight, frames });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_the_kernel_are_known_by_their_flags() {
        // Linux 6.18.
        assert!(is_kernel_thread("31 (ksmd) S 2 0 0 0 -1 2097216 0 0 0 0 0 0"));
        assert!(!is_kernel_thread("31 (a) S 2 0 0 0 -1 2097216 0) S 1 31 31 0 -1 4194560 100 0"));
        let own = ProcessFiles::of(std::process::id() as i32).text("stat").unwrap();
        assert!(!is_kernel_thread(&own) && !is_kernel_thread(""));
    }

    /// Numbers that no process has: the kernel's limit is 2^22 (proc_sys_kernel(5), pid_max).
    const NOBODY: i32 = 1 << 22;

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
            tally.add_sent(pid, pid, None, 1);
            tally.add_received(pid, pid, 2);
        }
        let late = NOBODY + 5_000;
        (0..1_000).for_each(|_| tally.add_sent(late, late, None, 1));
        assert_eq!(tally.processes.get(&late).map(|process| process.sent), Some(1_000));
        assert_eq!((tally.sent, tally.received), (6_000, 10_000));
        assert!(tally.others.sent > 0);
        check_sums(&tally);
    }

    #[test]
    fn what_has_ended_makes_room_for_what_lives_but_not_what_sent_most() {
        let own = std::process::id() as i32;
        let mut tally = Tally::of(Some(NOBODY));
        tally.process(NOBODY);
        tally.add_sent(NOBODY + 1, NOBODY + 1, None, 1_000);
        tally.add_sent(own, own, None, 1);
        for pid in NOBODY + 2..NOBODY + 20_000 {
            tally.add_sent(pid, pid, None, 5);
        }
        assert!(tally.processes.contains_key(&NOBODY), "it alone is watched");
        assert_eq!(tally.processes.get(&(NOBODY + 1)).map(|process| process.sent), Some(1_000));
        assert_eq!(tally.processes.get(&own).map(|process| process.sent), Some(1));
        check_sums(&tally);
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
    fn paths_for_which_there_is_no_room_are_counted() {
        let mut process = ProcessTally::default();
        for path in 0..4 * MOST_PATHS as u64 {
            process.add_path(Cause::Munmap, vec![path], 1, |_| Vec::new());
        }
        assert_eq!((process.paths.len(), process.dropped()), (MOST_PATHS, 0.75));
    }
}
