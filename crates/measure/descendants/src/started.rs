//! Processes that are identified across reuses of their PIDs.

use address_space::ProcessStat;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use process_view::{ProcessFiles, tree_of};

/// Number of the field for the process group in proc_pid_stat(5).
const GROUP: usize = 5;

/// A process, identified by its PID and the time of its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StartedProcess {
    pid: i32,
    /// Clock ticks since boot.
    start: u64,
}

/// The state of a process at one moment.
pub(crate) struct State {
    pub(crate) process: StartedProcess,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    has_ended: bool,
}

impl State {
    pub(crate) fn of(pid: i32) -> Option<Self> {
        let text = ProcessFiles::of(pid).bytes("stat").ok()?;
        let stat = ProcessStat::parse(&text)?;
        // The first thread can end before the others.
        let has_ended = stat.has_ended() && stat.threads().is_none_or(|threads| threads <= 1);
        let process = StartedProcess { pid, start: stat.start_time()? };
        Some(Self { process, parent: stat.parent()?, group: stat.number(GROUP)?, has_ended })
    }
}

impl StartedProcess {
    /// The process that has this PID now. `None` if there is none.
    pub fn of(pid: i32) -> Option<Self> {
        Some(State::of(pid)?.process)
    }

    /// Its PID.
    pub fn pid(self) -> i32 {
        self.pid
    }

    /// True if the process has not ended. A zombie has ended.
    pub fn runs(self) -> bool {
        State::of(self.pid).is_some_and(|state| state.process == self && !state.has_ended)
    }

    /// A process that had the same PID before.
    #[cfg(test)]
    pub(crate) fn earlier_owner(self) -> Self {
        Self { start: self.start - 1, ..self }
    }

    /// Sends a signal if the process has not ended. A failure shows later: the process still runs.
    pub(crate) fn signal(self, signal: Signal) {
        if self.runs() {
            let _ = kill(Pid::from_raw(self.pid), signal);
        }
    }
}

/// The processes that still exist, and their descendants: each once, parents first.
pub fn with_descendants(processes: &[StartedProcess]) -> Vec<StartedProcess> {
    let mut all = Vec::new();
    for process in processes {
        if all.contains(process) {
            continue;
        }
        let tree: Vec<_> = tree_of(process.pid).into_iter().filter_map(StartedProcess::of).collect();
        // Otherwise the PID is another process's.
        if tree.first() == Some(process) {
            let new: Vec<_> = tree.into_iter().filter(|found| !all.contains(found)).collect();
            all.extend(new);
        }
    }
    all
}

/// Descendants of this process that belong to a process group.
pub fn of_group(group: i32) -> Vec<StartedProcess> {
    let descendants = tree_of(std::process::id() as i32).into_iter().skip(1).filter_map(State::of);
    descendants.filter(|state| state.group == group).map(|state| state.process).collect()
}
