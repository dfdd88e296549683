//! Duties of the supervisor while a worker is busy: scans, metrics, the status and the kill switch.

use super::action::Action;
use super::spawn::{Ongoing, Patience, Worker};
use super::switch::Switch;
use super::{Agent, used_by};
use crate::decision::{Identity, State};
use crate::worker::{Answer, Request, Task, has_no_worker};
use nix::sys::resource::UsageWho;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// Placeholder for the workers while one is busy: there is never a second one.
struct Busy;

impl Worker for Busy {
    fn perform(&mut self, _: &Request, _: &mut dyn FnMut() -> Patience) -> Result<Answer, String> {
        let refusal = Some("another worker is busy".to_owned());
        Ok(Answer { not_started: true, refusal, ..Answer::default() })
    }

    fn measure(&mut self, _: i32, _: &[String], _: Duration, _: &Path) -> Result<Box<dyn Ongoing>, String> {
        Err("another worker is busy".to_owned())
    }
}

impl Agent<'_> {
    /// Performs a request by a worker.
    pub(super) fn perform(&mut self, request: &Request) -> Result<Answer, String> {
        let request = Request { beside: self.has_stuck_measurement() || self.has_earlier_worker, ..request.clone() };
        let mut worker = std::mem::replace(&mut self.worker, Box::new(Busy));
        self.busy_with = Some(request.identity);
        let answer = worker.perform(&request, &mut || self.meanwhile(request.task));
        self.busy_with = None;
        self.worker = worker;
        answer
    }

    /// Scans, if a scan is due, and reads the kill switch. Nothing is lifted or restored here.
    pub(super) fn meanwhile(&mut self, task: Task) -> Patience {
        let is_ended = self.read_switch() == Switch::Restore && !task.restores();
        let is_due = |at: Instant| at.elapsed() >= self.configuration.settings.scan;
        if is_due(self.last_scan.begun) && is_due(self.last_scan.tried_beside) {
            self.scan_beside();
        }
        if is_ended { Patience::End } else { Patience::Wait }
    }

    /// Scans, if the budget permits, and publishes.
    fn scan_beside(&mut self) {
        let before = used_by(UsageWho::RUSAGE_SELF);
        self.last_scan.tried_beside = Instant::now();
        self.advance_budget();
        // A crash that is noticed only after a long lift would not count as one of the lift before.
        let watched = self.watch_recent();
        let scanned = self.scan();
        let is_scanned = matches!(scanned, Ok(Some(_)));
        if let Err(error) = watched.and(scanned).and_then(|_| self.write_status()) {
            (self.report)(&Action::Failed { what: format!("a scan beside a worker: {error}") });
        }
        self.publish();
        let cost = used_by(UsageWho::RUSAGE_SELF).saturating_sub(before);
        self.last_scan.cost_beside += cost;
        if is_scanned {
            (self.last_scan.cost, self.last_scan.is_beside) = (cost, true);
        }
    }

    /// Looks for the end of a worker of an agent before. Processes in doubt are then examined.
    pub(super) fn follow_earlier_worker(&mut self) -> io::Result<()> {
        if !self.has_earlier_worker || !has_no_worker(&self.paths.state, Duration::ZERO).map_err(io::Error::other)? {
            return Ok(());
        }
        self.has_earlier_worker = false;
        let doubtful = self.ledger.lifts.iter().filter(|entry| entry.progress.state == State::Lifting);
        let doubtful: Vec<Identity> = doubtful.map(|entry| entry.identity).collect();
        doubtful.into_iter().try_for_each(|process| self.examine_again(process))
    }
}
