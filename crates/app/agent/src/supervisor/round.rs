//! One scan: reads every process, and lifts at most one.

use super::action::{Action, Named};
use super::{Agent, Candidate, Tracked};
use crate::decision::{
    Course, Event, Identity, Judgement, Pending, Reason, Refusal, State, Subject, Surroundings, course, is_early, judge,
};
use crate::discovery::{Sample, Sampler, executed_file, processes, program_of, standing_of};
use crate::rules::WeekTime;
use linux::exec_events::ExecEvents;
use linux::local_time::local_time;
use std::collections::BTreeSet;
use std::io;
use std::time::Instant;

impl Agent<'_> {
    /// Scans, if the budget permits. Returns true if a worker was started, so that another process may be waiting for its turn.
    pub(super) fn round(&mut self) -> io::Result<bool> {
        self.advance_budget();
        self.follow_earlier_worker()?;
        self.follow_stuck()?;
        self.follow_switch()?;
        self.watch_recent()?;
        self.undo_due()?;
        let Some(candidates) = self.scan()? else { return Ok(false) };
        for candidate in candidates {
            if self.turn_of(&candidate)? {
                return Ok(true);
            }
        }
        self.look_for_lost_pages()
    }

    /// Reads every process. Returns those that may be lifted, the one with the most CPU time first: it gains most. `None` if the
    /// budget does not permit a scan.
    pub(super) fn scan(&mut self) -> io::Result<Option<Vec<Candidate>>> {
        let begin = Instant::now();
        if !self.budget.permits_scan(self.last_scan.cost, begin.duration_since(self.last_scan.begun)) {
            self.ledger.counts.dropped_scans += 1;
            return Ok(None);
        }
        (self.last_scan.begun, self.last_scan.is_beside) = (begin, false);
        self.follow_verdicts();
        let sampler = Sampler::now()?;
        let (mut seen, mut executed, mut candidates) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        let processes = self.recent_first(processes()?);
        for sample in processes.into_iter().filter_map(|pid| sampler.sample(pid)) {
            seen.insert(sample.identity);
            if self.busy_with == Some(sample.identity) {
                continue;
            }
            candidates.extend(self.look(&sample, &mut executed));
        }
        let busy_with = self.busy_with;
        let lives =
            |identity: Identity| seen.contains(&identity) || busy_with == Some(identity) || sampler.lives(identity);
        self.tracked.retain(|identity, _| lives(*identity));
        self.not_restored.keep(lives);
        // One call for all these entries, because it reads every process to find their forks.
        if self.leave(|entry| !lives(entry.identity) || executed.contains(&entry.identity)) {
            self.ledger.save(&self.paths.state)?;
        }
        self.ledger.counts.scans += 1;
        self.last_scan.time = begin.elapsed();
        candidates.sort_by_key(|candidate: &Candidate| std::cmp::Reverse(candidate.sample.usage.cpu));
        Ok(Some(candidates))
    }

    /// The processes to read, those first that have executed a program since the last scan. Every scan reads all, so that no
    /// event is needed.
    fn recent_first(&mut self, mut processes: Vec<i32>) -> Vec<i32> {
        let Some(executed) = self.exec_events.as_ref().map(ExecEvents::read) else { return processes };
        self.heard.executed += executed.processes.len() as u64;
        self.heard.lost += u64::from(executed.were_lost);
        let executed = BTreeSet::from_iter(executed.processes);
        processes.sort_by_key(|pid| !executed.contains(pid));
        processes
    }

    /// Reads changed verdicts, and judges again processes that were left alone by them.
    fn follow_verdicts(&mut self) {
        match self.known.follow() {
            Ok(false) => {}
            Ok(true) => {
                for tracked in self.tracked.values_mut().filter(|tracked| tracked.left.is_some()) {
                    tracked.progress = tracked.progress.after(Event::Reconfigured);
                }
                self.verdicts_failed = false;
            }
            Err(error) => {
                if !std::mem::replace(&mut self.verdicts_failed, true) {
                    let what = format!("the verdicts are not read again: {error}");
                    (self.report)(&Action::Failed { what });
                }
            }
        }
    }

    /// Examines one process, and adds it to `executed` if it has executed another program. Returns it if no fact about the process
    /// itself forbids a lift.
    fn look(&mut self, sample: &Sample, executed: &mut BTreeSet<Identity>) -> Option<Candidate> {
        let (identity, pid) = (sample.identity, sample.identity.pid);
        let tracked = self.tracked.entry(identity).or_default();
        if pid == 1 || sample.is_kernel_thread || self.own_line.contains(&pid) {
            tracked.progress = tracked.progress.after(Event::Excluded);
            return None;
        }
        if tracked.is_another(executed_file(pid)) {
            *tracked = Tracked { progress: tracked.progress.after(Event::Executed), ..Tracked::default() };
            executed.insert(identity);
        }
        tracked.used = sample.usage.cpu;
        let is_due = tracked.again_at.is_some_and(|at| sample.usage.cpu >= at);
        if tracked.progress.state == State::Ignored && is_due {
            tracked.progress = tracked.progress.after(Event::Reconfigured);
        }
        if tracked.progress.is_final() || tracked.is_observed {
            return None;
        }
        let settings = &self.configuration.settings;
        if is_early(sample.usage, settings) || self.configuration.rules.is_empty() {
            return None;
        }
        if tracked.program.is_none() {
            let before = executed_file(pid);
            let program = program_of(pid, &self.variables).ok()?;
            let file = executed_file(pid);
            if before != file {
                // It has executed another program meanwhile.
                return None;
            }
            (tracked.file, tracked.program) = (file, Some(program));
        }
        self.judge(sample)
    }

    /// Decides about a process whose program is known.
    fn judge(&mut self, sample: &Sample) -> Option<Candidate> {
        let identity = sample.identity;
        let tracked = self.tracked.get_mut(&identity)?;
        let program = tracked.program.as_ref()?;
        let standing = standing_of(identity.pid, &self.own_line, sample.scheduling, sample.is_kernel_thread);
        let subject = Subject {
            identity,
            file: tracked.file,
            program,
            usage: sample.usage,
            resident_before: tracked.resident.before(self.configuration.settings.scan),
            standing: &standing,
        };
        let around =
            Surroundings { machine: &self.machine.id, boot: &self.machine.boot, now: week_time(), conditions: None };
        let mut judgement = judge(&self.configuration, subject, around);
        if judgement.excluded.is_none()
            && let Some(order) = &judgement.order
        {
            let known = self.known.summary(program, order, &self.machine.boot, super::unix_time());
            let pending = Pending { identity, order, pays: tracked.pays };
            let by_verdict = match course(pending, &known, &self.machine.id, &self.machine.boot) {
                Course::Leave(refusal) => Some(refusal),
                Course::Lift | Course::Measure => None,
            };
            judgement.excluded = self.ledger.block_of(&program.build, program.owner, program.user).or(by_verdict);
        }
        tracked.left = judgement.excluded.clone().filter(|refusal| refusal.reason == Reason::DoesNotPay);
        tracked.resident.read(sample.usage.resident, self.configuration.settings.scan);
        tracked.progress = tracked.progress.after(judgement.event());
        tracked.again_at = judgement.selection.changes_at();
        let rule = judgement.selection.rule?;
        let (rule, build) = (rule.name.clone(), program.build.clone());
        let named = Named { program: program.shown_name().to_owned(), identity, rule, build };
        let refusal = obstacle(&judgement).cloned();
        if let Some(refusal) = refusal {
            self.refuse(&named, &refusal);
            return None;
        }
        let order = judgement.order.clone().filter(|_| judgement.permits())?;
        let cost = judgement.cost;
        (tracked.progress.state == State::Eligible).then_some(Candidate { sample: *sample, named, order, cost })
    }

    /// Reports a refusal once for each reason and process, and counts it.
    pub(super) fn refuse(&mut self, named: &Named, refusal: &Refusal) {
        let Some(tracked) = self.tracked.get_mut(&named.identity) else { return };
        if !tracked.told.insert(refusal.reason) {
            return;
        }
        self.ledger.count(refusal.reason);
        // Shares and exemptions are the user's own words, and too little CPU time is the usual state of a young process.
        let is_silent = matches!(
            refusal.reason,
            Reason::Holdout | Reason::NotRolledOut | Reason::Exempt | Reason::OptedOut | Reason::MeasurementUnpaid
        );
        if !is_silent {
            let last = refusal.reason.is_lasting();
            (self.report)(&Action::Refused { named: named.clone(), refusal: refusal.clone(), last });
        }
    }

    /// The processes by state.
    pub(super) fn states(&self) -> std::collections::BTreeMap<State, usize> {
        let mut states = std::collections::BTreeMap::new();
        self.tracked.values().for_each(|tracked| *states.entry(tracked.progress.state).or_default() += 1);
        states
    }

    /// Forgets the state of a process that has ended.
    pub(super) fn forget(&mut self, identity: Identity) {
        self.tracked.remove(&identity);
        self.leave(|entry| entry.identity == identity);
    }
}

/// Returns the reason against a lift of a process that meets a rule and is settled.
fn obstacle<'a>(judgement: &'a Judgement<'_>) -> Option<&'a Refusal> {
    let waits = judgement.waits.as_ref().filter(|_| judgement.unsettled.is_none());
    judgement.excluded.as_ref().or(waits)
}

/// The present time of the week; the beginning of Monday if the clock is wrong.
pub(super) fn week_time() -> WeekTime {
    local_time().map_or(WeekTime { day: 0, minute: 0 }, |now| WeekTime { day: now.day, minute: now.minute })
}
