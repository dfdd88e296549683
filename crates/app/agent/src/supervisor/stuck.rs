//! Workers that SIGKILL does not end: a task in an uninterruptible sleep ends when its disk or file server answers.
//!
//! The supervisor scans, publishes metrics and follows the kill switch meanwhile. Nothing is lifted or planned until the
//! worker has ended. Other processes can be restored beside it.

use super::Agent;
use super::action::Action;
use super::examination::{Examined, examine};
use super::stuck_workers::StuckWorker;
use crate::decision::{Identity, State};
use std::io;

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
