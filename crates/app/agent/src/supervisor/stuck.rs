//! Workers that SIGKILL does not end: a task in an uninterruptible sleep ends when its disk or file server answers.
//!
//! The supervisor scans, publishes metrics and follows the kill switch meanwhile. Nothing is lifted or planned until the
//! worker has ended. Other processes can be restored beside it.

use super::action::Action;
use super::examination::{Examined, examine};
use super::spawn::LONGEST_DEATH;
use super::{Agent, unix_time};
use crate::decision::{Identity, State};
use crate::worker::{Request, Task};
use serde::{Deserialize, Serialize};
use std::io;
use std::process::Child;

/// Most workers that are waited for. With so many, no other one is started.
const MOST: usize = 2;

/// A worker that was killed and has not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StuckWorker {
    /// Number of the worker.
    pub worker: i32,
    /// Its task.
    pub task: Task,
    /// The process on which it was started.
    pub process: Identity,
    /// Seconds since 1970 of its SIGKILL.
    pub since: u64,
    /// It holds the lock of workers beside another one.
    #[serde(default)]
    pub beside: bool,
}

/// All stuck workers.
#[derive(Debug, Default)]
pub(super) struct Stuck(Vec<(Child, StuckWorker)>);

impl Stuck {
    /// Those that have not ended at this moment.
    pub(super) fn now(&mut self) -> Vec<StuckWorker> {
        self.0.retain_mut(|(child, _)| matches!(child.try_wait(), Ok(None)));
        self.0.iter().map(|(_, stuck)| stuck.clone()).collect()
    }

    /// Why no worker is started with this request.
    pub(super) fn forbid(&mut self, request: &Request) -> Option<String> {
        let stuck = self.now();
        let first = stuck.first()?;
        let is_beside = matches!(request.task, Task::Restore | Task::Look)
            && stuck.len() < MOST
            && stuck.iter().all(|stuck| stuck.process != request.identity);
        (!is_beside).then(|| {
            format!(
                "worker {} for process {} was killed and has not ended: it is in an uninterruptible sleep",
                first.worker, first.process.pid
            )
        })
    }

    /// Adds a worker. Returns the reason for the missing answer.
    pub(super) fn add(&mut self, child: Child, request: &Request) -> String {
        let worker = child.id() as i32;
        let Request { task, identity: process, beside, .. } = *request;
        let stuck = StuckWorker { worker, task, process, since: unix_time(), beside };
        self.0.push((child, stuck));
        format!(
            "worker {worker} has not ended {} s after SIGKILL: it is in an uninterruptible sleep",
            LONGEST_DEATH.as_secs()
        )
    }
}

impl Agent<'_> {
    /// True while another worker may still change a process, so that nothing is lifted.
    pub(super) fn has_worker(&self) -> bool {
        self.measuring.is_some() || self.has_earlier_worker || !self.stuck.is_empty()
    }

    pub(super) fn has_stuck_measurement(&self) -> bool {
        self.measuring.as_ref().is_some_and(|measuring| measuring.is_stuck())
    }

    /// Reports workers that do not end, and those that have ended at last, whose processes are then examined.
    pub(super) fn follow_stuck(&mut self) -> io::Result<()> {
        let now = self.worker.stuck();
        let before = std::mem::replace(&mut self.stuck, now);
        for stuck in self.stuck.iter().filter(|stuck| !before.contains(stuck)) {
            (self.report)(&Action::Stuck { stuck: stuck.clone() });
        }
        let ended: Vec<StuckWorker> = before.into_iter().filter(|stuck| !self.stuck.contains(stuck)).collect();
        for stuck in ended {
            (self.report)(&Action::Freed { stuck: stuck.clone() });
            self.examine_again(stuck.process)?;
        }
        Ok(())
    }

    /// Examines a process whose lift is in doubt.
    pub(super) fn examine_again(&mut self, process: Identity) -> io::Result<()> {
        let doubtful = self.ledger.lifts.iter().find(|entry| entry.identity == process);
        let Some(entry) = doubtful.filter(|entry| entry.progress.state == State::Lifting).cloned() else {
            return Ok(());
        };
        let (state, own) = (self.paths.state.clone(), self.own);
        match examine(entry, &mut |request| self.perform(request), &state, own) {
            Examined::Gone => self.forget(process),
            Examined::Entry(entry) => {
                self.set(process, entry.progress);
                self.ledger.put(*entry);
            }
        }
        self.ledger.save(&self.paths.state)
    }
}
