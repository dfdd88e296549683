//! Descendants of this process that an experiment did not start.

use crate::StartedProcess;
use crate::started::State;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use process_view::tree_of;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The interval for checks.
const LOOK: Duration = Duration::from_millis(10);

/// The descendants of this process at a moment. A script that becomes this program by exec(2) leaves its children to it.
#[derive(Debug)]
pub struct Earlier {
    processes: BTreeSet<StartedProcess>,
    /// Process groups of the earlier processes. A later orphan in such a group is a descendant of an earlier process.
    groups: BTreeSet<i32>,
}

impl Earlier {
    /// The descendants of this process now.
    pub fn now() -> Self {
        let states: Vec<State> = tree_of(own()).into_iter().skip(1).filter_map(State::of).collect();
        let groups = states.iter().map(|state| state.group).collect();
        Self { processes: states.iter().map(|state| state.process).collect(), groups }
    }

    /// Kills the later descendants of this process, but no descendant of an earlier process, and waits for each one that
    /// becomes its child. Only for a process that is its descendants' subreaper and no longer waits for a later child.
    ///
    /// # Errors
    /// The number of processes that still exist after `limit`.
    pub fn end_later(&mut self, limit: Duration) -> Result<(), usize> {
        let until = Instant::now() + limit;
        loop {
            let later = self.later();
            if later.is_empty() {
                return Ok(());
            }
            if Instant::now() >= until {
                return Err(later.len());
            }
            for process in later {
                process.signal(Signal::SIGKILL);
                // A grandchild becomes a child once its parent has ended.
                let _ = waitpid(Pid::from_raw(process.pid()), Some(WaitPidFlag::WNOHANG | WaitPidFlag::__WALL));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// The later descendants, zombies included. Later descendants of earlier processes are added to these.
    fn later(&mut self) -> Vec<StartedProcess> {
        let own = own();
        let (mut skipped, mut later) = (BTreeSet::new(), Vec::new());
        for State { process, parent, group, .. } in tree_of(own).into_iter().skip(1).filter_map(State::of) {
            let is_orphan_of_earlier = parent == own && self.groups.contains(&group);
            if skipped.contains(&parent) || is_orphan_of_earlier || self.processes.contains(&process) {
                skipped.insert(process.pid());
                self.processes.insert(process);
            } else {
                later.push(process);
            }
        }
        later
    }
}

fn own() -> i32 {
    std::process::id() as i32
}
