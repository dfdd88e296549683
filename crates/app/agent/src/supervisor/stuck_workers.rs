//! A list of workers that SIGKILL does not end.

use super::unix_time;
use crate::decision::Identity;
use crate::worker::{Request, Task};
use serde::{Deserialize, Serialize};
use std::process::Child;
use std::time::Duration;

/// Time within which a killed process ends, unless it is in an uninterruptible sleep.
pub(super) const LONGEST_DEATH: Duration = Duration::from_secs(5);
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
        let is_beside = request.task.may_be_beside()
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
