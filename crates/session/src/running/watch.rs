//! Detects objects that running programs load.

use linux::process_handle::ProcessHandle;
use process_view::{ProcessFiles, Unanswered, each_of};
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

/// Processes whose mapped files are watched. Reading their lists does not stop the programs.
pub struct Watches(Vec<Watch>);

struct Watch {
    pid: i32,
    /// `None` where it had ended before.
    handle: Option<Arc<ProcessHandle>>,
    /// Files whose objects have been reported or were mapped at the beginning.
    known: HashSet<PathBuf>,
    /// Files mapped at the previous look.
    last: HashSet<PathBuf>,
    /// It does not answer.
    is_silent: bool,
}

impl Watches {
    /// Starts to watch these processes.
    pub fn of(pids: &[i32]) -> Self {
        let watch = |&pid: &i32| Watch {
            pid,
            handle: ProcessHandle::open(pid).ok().map(Arc::new),
            known: HashSet::new(),
            last: HashSet::new(),
            is_silent: false,
        };
        let mut watches = Self(pids.iter().map(watch).collect());
        watches.each(|watch, files| (watch.known, watch.last) = (files.clone(), files));
        watches
    }

    /// Reads the lists again, and forgets processes that have ended. Returns those that have loaded objects which were mapped at
    /// the previous look already, and those that do not answer any more. A process that answers late is watched again.
    pub fn look(&mut self) -> (Vec<(i32, Arc<ProcessHandle>)>, Vec<Unanswered>) {
        let mut loaded = Vec::new();
        let silent = self.each(|watch, files| {
            if watch.note(files) {
                loaded.extend(watch.handle.clone().map(|handle| (watch.pid, handle)));
            }
        });
        self.0.retain(|watch| !watch.has_ended());
        (loaded, silent)
    }

    /// True if all have ended.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads the list of each process. Returns those that have stopped to answer.
    fn each(&mut self, mut found: impl FnMut(&mut Watch, HashSet<PathBuf>)) -> Vec<Unanswered> {
        let mut silent = Vec::new();
        let pids: Vec<i32> = self.0.iter().map(|watch| watch.pid).collect();
        each_of(pids, mapped_files, |pid, files| {
            let Some(watch) = self.0.iter_mut().find(|watch| watch.pid == pid) else { return };
            let was_silent = std::mem::replace(&mut watch.is_silent, files.is_err());
            match files {
                Ok(files) => found(watch, files),
                Err(process) => silent.extend((!was_silent).then_some(process)),
            }
        });
        silent
    }
}

impl Watch {
    /// Notes the files that are mapped now. Returns true where objects have been loaded that were mapped at the previous look already.
    fn note(&mut self, files: HashSet<PathBuf>) -> bool {
        // A file seen for the first time may still be half loaded.
        let settled = files.intersection(&self.last).cloned().collect::<HashSet<_>>();
        let has_loaded = !settled.is_subset(&self.known);
        if has_loaded {
            self.known = settled;
        }
        self.last = files;
        has_loaded
    }

    /// True if the process has ended, or the last check found no program in it any more.
    fn has_ended(&self) -> bool {
        let is_alive = self.handle.as_ref().is_some_and(|handle| handle.is_alive());
        !is_alive || !self.is_silent && self.last.is_empty()
    }
}

fn mapped_files(process: &ProcessFiles) -> HashSet<PathBuf> {
    let Ok(space) = process.maps() else { return HashSet::new() };
    space.mappings().iter().filter(|m| m.protection.execute).filter_map(|m| m.path().map(PathBuf::from)).collect()
}
