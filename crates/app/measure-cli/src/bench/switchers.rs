//! The switchers of a live program for `bench --toggle`: a lift and its restore, or the user's own commands.

use super::recorded_lift::recorded_lift;
use bench::toggle::{Done, Switcher};
use bench::work::shell as shell_command;
use cli::commands::lift_switcher::{FoundLifted, LiftSwitcher, RetryLimit, Switched};
use options::Policy;
use session::running::Attached;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Lifts of a process and of its descendants with the same program, and their restore.
pub(super) struct Lifts {
    pid: i32,
    /// Returns the process and these descendants.
    processes: fn(i32) -> Vec<i32>,
    policies: Vec<Policy>,
    switchers: BTreeMap<i32, LiftSwitcher>,
    interrupted: Arc<AtomicBool>,
}

impl Lifts {
    /// Restores the processes to plain, if they are lifted.
    pub(super) fn new(
        pid: i32,
        processes: fn(i32) -> Vec<i32>,
        policies: Vec<Policy>,
        interrupted: &Arc<AtomicBool>,
        found_lifted: FoundLifted,
    ) -> anyhow::Result<Self> {
        let first = LiftSwitcher::new(pid, policies.clone(), interrupted, found_lifted)?;
        let switchers = BTreeMap::from([(pid, first)]);
        let mut lifts = Self { pid, processes, policies, switchers, interrupted: interrupted.clone() };
        lifts.find(found_lifted).map_err(anyhow::Error::msg)?;
        Ok(lifts)
    }

    /// Adds processes that were started, and removes those that have ended. A process that was started during the measurement has
    /// inherited the memory of its parent, lifted or not.
    fn find(&mut self, found_lifted: FoundLifted) -> Result<(), String> {
        let processes = (self.processes)(self.pid);
        self.switchers.retain(|pid, _| processes.contains(pid));
        for pid in processes {
            if self.switchers.contains_key(&pid) {
                continue;
            }
            match LiftSwitcher::new(pid, self.policies.clone(), &self.interrupted, found_lifted) {
                Ok(switcher) => drop(self.switchers.insert(pid, switcher)),
                Err(error) if self.is_needed(pid) => return Err(format!("{error:#}")),
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// A descendant may end at any time.
    fn is_needed(&self, pid: i32) -> bool {
        pid == self.pid || (self.processes)(self.pid).contains(&pid)
    }
}

impl Switcher for Lifts {
    /// Some of the processes may have nothing to lift, but not all.
    fn to(&mut self, arm: usize) -> Result<Done, String> {
        self.find(FoundLifted::LeavePlain)?;
        let limit = RetryLimit::from_now(&self.interrupted);
        let (mut all, mut covered) = (Done::default(), 0);
        for pid in self.switchers.keys().copied().collect::<Vec<_>>() {
            let Some(lifted) = self.switchers.get_mut(&pid).map(|switcher| switcher.lift(arm, &limit)) else {
                continue;
            };
            let Switched { attached: Attached { report, pause, .. }, is_retried } = match lifted {
                Ok(lifted) => lifted,
                Err(why) if self.is_needed(pid) => return Err(why),
                Err(_) => continue,
            };
            all.add_pause(pause);
            all.is_retried |= is_retried;
            covered += report.lift.covered_bytes;
            if pid == self.pid {
                all.lift = Some(recorded_lift(&report));
            }
        }
        Ok(Done { covered: Some(covered), ..all })
    }

    /// Restores every process that can be restored, also after an error. The last search finds processes that lifted ones have
    /// forked meanwhile.
    fn back(&mut self) -> Result<Done, String> {
        let mut refused: Vec<String> = self.find(FoundLifted::LeavePlain).err().into_iter().collect();
        let limit = RetryLimit::from_now(&self.interrupted);
        let mut all = Done { covered: Some(0), ..Done::default() };
        for (pid, switcher) in &self.switchers {
            match switcher.back(&limit) {
                Ok(detached) => all.add_pause(detached.pause),
                Err(why) if self.is_needed(*pid) => refused.push(why),
                Err(_) => {}
            }
        }
        refused.extend(self.find(FoundLifted::LeavePlain).err());
        if refused.is_empty() { Ok(all) } else { Err(refused.join("; ")) }
    }
}

/// Runs the user's commands.
pub(super) struct CommandSwitcher {
    on: String,
    off: String,
}

impl CommandSwitcher {
    pub(super) fn new(on: &str, off: &str) -> Self {
        Self { on: on.to_owned(), off: off.to_owned() }
    }
}

impl Switcher for CommandSwitcher {
    fn to(&mut self, _arm: usize) -> Result<Done, String> {
        shell(&self.on)
    }

    fn back(&mut self) -> Result<Done, String> {
        shell(&self.off)
    }
}

fn shell(command: &str) -> Result<Done, String> {
    match shell_command(command).map(|output| output.status) {
        Ok(status) if status.success() => Ok(Done::default()),
        Ok(status) => Err(format!("{command}: {status}")),
        Err(error) => Err(format!("sh cannot be executed: {error}")),
    }
}
