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
    pub sent: u64,
    pub received: u64,
    pub threads: BTreeMap<i32, ThreadTally>,
    pub flushes: Flushes,
    pub causes: BTreeMap<Cause, u64>,
    pub paths: HashMap<(Cause, Vec<u64>), PathTally>,
    /// Weights of the stack samples together.
    pub on_stacks: u64,
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
            let name = ProcessFiles::of(pid).name().unwrap_or_else(|_| "(ended)".to_owned());
            self.processes.insert(pid, ProcessTally { name, ..ProcessTally::default() });
        }
        self.processes.get_mut(&pid)
    }
}

impl ProcessTally {
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
        *self.causes.entry(cause).or_default() += weight;
        self.on_stacks += weight;
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
