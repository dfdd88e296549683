//! Adds samples up by process, thread and call path.

use crate::cause::Cause;
use crate::reason::Flushed;
use crate::stacks::Frame;
use process_view::ProcessFiles;
use std::collections::{BTreeMap, HashMap};

/// Bounds on what is kept: a hostile machine can have any number of short processes and threads.
const MOST_PROCESSES: usize = 4096;
const MOST_THREADS: usize = 1024;
const MOST_PATHS: usize = 512;

/// Everything that samples have told.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub processes: BTreeMap<i32, ProcessTally>,
    /// Weights of all samples, those of processes too that there was no room for.
    pub sent: u64,
    pub received: u64,
}

/// One process.
#[derive(Debug, Default)]
pub(crate) struct ProcessTally {
    pub name: String,
    pub is_kernel_thread: bool,
    pub sent: u64,
    pub received: u64,
    pub threads: BTreeMap<i32, ThreadTally>,
    pub flushes: Flushes,
    pub paths: HashMap<(Cause, Vec<u64>), PathTally>,
    /// Weights of the stack samples together, of those whose path there was no room for too.
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

/// How much flushes cover.
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
    /// The tally of a process, which is named when it is met first; `None` where there is no room.
    pub fn process(&mut self, pid: i32) -> Option<&mut ProcessTally> {
        if !self.processes.contains_key(&pid) {
            if self.processes.len() >= MOST_PROCESSES {
                return None;
            }
            let files = ProcessFiles::of(pid);
            let name = files.name().unwrap_or_else(|_| "(ended)".to_owned());
            let is_kernel_thread = files.text("stat").is_ok_and(|stat| is_kernel_thread(&stat));
            self.processes.insert(pid, ProcessTally { name, is_kernel_thread, ..ProcessTally::default() });
        }
        self.processes.get_mut(&pid)
    }
}

/// True for the threads of the kernel, by the flags in `/proc/PID/stat` (proc_pid_stat(5); linux/sched.h: PF_KTHREAD).
fn is_kernel_thread(stat: &str) -> bool {
    const PF_KTHREAD: u64 = 0x0020_0000;
    // The name may hold anything but ends with the last parenthesis; the flags are the seventh field behind it.
    let flags = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(6)?.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & PF_KTHREAD != 0)
}

impl ProcessTally {
    /// Number of stacks of equal weight that tell as much as the sampled ones (Kish's effective sample size).
    pub fn effective_stacks(&self) -> f64 {
        if self.squares > 0.0 { (self.on_stacks as f64).powi(2) / self.squares } else { 0.0 }
    }

    /// Share of the stacks whose path there was no room for.
    pub fn dropped(&self) -> f64 {
        let kept: u64 = self.paths.values().map(|path| path.weight).sum();
        self.on_stacks.saturating_sub(kept) as f64 / self.on_stacks.max(1) as f64
    }

    /// The tally of one of its threads; `None` where there is no room.
    pub fn thread(&mut self, pid: i32, tid: i32) -> Option<&mut ThreadTally> {
        if !self.threads.contains_key(&tid) {
            if self.threads.len() >= MOST_THREADS {
                return None;
            }
            let name = ProcessFiles::of(pid).text(&format!("task/{tid}/comm"));
            let name = name.map_or_else(|_| "(ended)".to_owned(), |name| process_view::printable(name.trim_end()));
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
