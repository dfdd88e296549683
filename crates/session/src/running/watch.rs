//! Detects objects that running programs load.

use super::{Chosen, Selected};
use linux::process_handle::ProcessHandle;
use process_view::ProcessFiles;
use std::collections::HashSet;
use std::path::PathBuf;

/// A process whose mapped files are watched. Reading their list does not stop the program.
pub struct Watch {
    pid: i32,
    /// `None` where it had ended before.
    handle: Option<ProcessHandle>,
    /// Files whose objects have been reported or were mapped at the beginning.
    known: HashSet<PathBuf>,
    /// Files mapped at the previous look.
    last: HashSet<PathBuf>,
}

impl Watch {
    /// Starts to watch a process.
    pub fn new(pid: i32) -> Self {
        let known = mapped_files(pid);
        Self { pid, handle: ProcessHandle::open(pid).ok(), last: known.clone(), known }
    }

    /// Selects this process, and no later one with the same PID.
    pub fn process(&self) -> Selected<'_> {
        Selected { pid: self.pid, chosen: Chosen::ByNumber, handle: self.handle.as_ref() }
    }

    /// Reads the list again. Returns true where objects have been loaded that were mapped at the previous look already.
    pub fn has_loaded(&mut self) -> bool {
        let files = mapped_files(self.pid);
        // A file seen for the first time may still be half loaded.
        let settled = files.intersection(&self.last).cloned().collect::<HashSet<_>>();
        let has_loaded = !settled.is_subset(&self.known);
        if has_loaded {
            self.known = settled;
        }
        self.last = files;
        has_loaded
    }

    /// True where the process has ended, or the last look found no program in it any more.
    pub fn has_ended(&self) -> bool {
        self.last.is_empty() || !self.handle.as_ref().is_some_and(ProcessHandle::is_alive)
    }
}

fn mapped_files(pid: i32) -> HashSet<PathBuf> {
    let Ok(space) = ProcessFiles::of(pid).maps() else { return HashSet::new() };
    space.mappings().iter().filter(|m| m.protection.execute).filter_map(|m| m.path().map(PathBuf::from)).collect()
}
