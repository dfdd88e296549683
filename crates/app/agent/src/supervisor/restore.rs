//! Undoes lifts.

use super::action::{Action, Named};
use super::ledger::{Entry, Ledger};
use super::pass::{FORK_TURN, Means, answer_of, restore_in_turns, restored_with};
use super::spawn::{Patience, Worker};
use super::{Agent, unix_time};
use crate::decision::{Event, Identity, Reason, Refusal, State};
use crate::discovery::{Sampler, own_identity};
use crate::rules::Keep;
use crate::worker::{Answer, LONGEST_WAIT, Request, Share, Task, has_no_worker};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::time::Duration;

impl Entry {
    /// The entry's names for messages.
    pub(super) fn named(&self) -> Named {
        let (program, rule, build) = (self.program.clone(), self.rule.clone(), self.build.clone());
        Named { program, identity: self.identity, rule, build }
    }

    /// The request to undo its lift, or to find out whether there is one.
    pub(super) fn request(&self, task: Task, state: &Path, supervisor: Identity) -> Request {
        Request {
            task,
            identity: self.identity,
            file: task.restores().then_some(self.file),
            kinds: self.kinds.clone(),
            pages: "auto".to_owned(),
            max_memory: None,
            state: state.to_owned(),
            supervisor,
            beside: false,
            fork_seconds: LONGEST_FORKS.as_secs(),
            tried: Vec::new(),
        }
    }
}

/// Time for all forks of a process whose entry does not last until a later turn.
const LONGEST_FORKS: Duration = Duration::from_secs(120);
/// After a restore that failed, 2, 4, 8 … scans pass before the next try, this often doubled at most.
const LONGEST_DOUBLING: u32 = 6;

/// Processes whose lift could not be undone: the number of tries, and of scans until the next one.
#[derive(Debug, Default)]
pub(super) struct Retries(BTreeMap<Identity, (u32, u32)>);

impl Retries {
    /// A scan has begun.
    pub(super) fn tick(&mut self) {
        for (_, wait) in self.0.values_mut() {
            *wait = wait.saturating_sub(1);
        }
    }

    pub(super) fn failed(&mut self, identity: Identity) {
        let (tries, wait) = self.0.entry(identity).or_default();
        *tries = tries.saturating_add(1).min(LONGEST_DOUBLING);
        *wait = 1 << *tries;
    }

    pub(super) fn waits(&self, identity: Identity) -> bool {
        self.0.get(&identity).is_some_and(|(_, wait)| *wait > 0)
    }

    fn has_failed(&self, identity: Identity) -> bool {
        self.0.contains_key(&identity)
    }

    pub(super) fn waiting(&self) -> BTreeSet<Identity> {
        self.0.keys().copied().filter(|identity| self.waits(*identity)).collect()
    }

    pub(super) fn keep(&mut self, is_kept: impl Fn(Identity) -> bool) {
        self.0.retain(|identity, _| is_kept(*identity));
    }
}

impl Entry {
    /// True if its lift is to be undone: an earlier try has failed, or a measurement of another process has shown a loss.
    fn is_to_be_undone(&self) -> bool {
        let reasons = [Reason::Blocked, Reason::NotMeasured, Reason::DoesNotPay];
        let refused = self.refusal.as_ref().is_some_and(|refusal| reasons.contains(&refusal.reason));
        self.progress.state == State::Kept && refused
    }
}

impl Means for Agent<'_> {
    fn ledger(&mut self) -> &mut Ledger {
        &mut self.ledger
    }

    fn save(&mut self) -> io::Result<()> {
        self.ledger.save(&self.paths.state)
    }

    fn request(&self, entry: &Entry, task: Task) -> Request {
        entry.request(task, &self.paths.state, self.own)
    }

    fn perform(&mut self, request: &Request) -> Result<Answer, String> {
        let answer = Agent::perform(self, request)?;
        self.account(&answer);
        Ok(answer)
    }

    fn has_failed(&self, process: Identity) -> bool {
        self.not_restored.has_failed(process)
    }

    fn report(&mut self, action: &Action) {
        (self.report)(action);
    }
}

impl Agent<'_> {
    /// Undoes one lift that is to be undone. A worker would wait for the lock of the measurement that runs.
    pub(super) fn undo_due(&mut self) -> io::Result<()> {
        self.not_restored.tick();
        if self.measuring.is_some() && !self.has_stuck_measurement() {
            return Ok(());
        }
        let is_due =
            |entry: &&Entry| (entry.is_to_be_undone() || entry.forks > 0) && !self.not_restored.waits(entry.identity);
        let Some(entry) = self.ledger.lifts.iter().find(is_due).cloned() else { return Ok(()) };
        if entry.forks > 0 {
            return self.undo_forks(&entry);
        }
        let why = entry.refusal.as_ref().map_or(String::new(), |refusal| refusal.text.clone());
        self.undo_now(entry, why)
    }

    /// Restores forks that an earlier restore has left lifted, or notes that they are to be tried again.
    fn undo_forks(&mut self, entry: &Entry) -> io::Result<()> {
        let identity = entry.identity;
        let request = self.request_for_turn(entry, Task::RestoreForks);
        let left = match answer_of(self.perform(&request)) {
            Ok(answer) => {
                self.note_restored(identity, &answer.forks);
                answer.lifted_forks()
            }
            Err(_) => entry.forks,
        };
        self.note_lifted_forks(identity, left);
        if let Some(entry) = self.ledger.entry(identity) {
            entry.forks = left;
        }
        self.ledger.save(&self.paths.state)
    }

    fn request_for_turn(&self, entry: &Entry, task: Task) -> Request {
        Request { fork_seconds: FORK_TURN.as_secs(), ..entry.request(task, &self.paths.state, self.own) }
    }

    /// Notes that forks of a process are plain.
    fn note_restored(&mut self, process: Identity, forks: &[Identity]) {
        for fork in restored_with(&mut self.ledger, process, forks) {
            self.set(fork.identity, fork.progress);
        }
    }

    /// Forks that are lifted are tried again later, and not at the next scan.
    fn note_lifted_forks(&mut self, process: Identity, number: u64) {
        if number > 0 {
            self.not_restored.failed(process);
        }
    }

    /// Undoes a lift, or notes that it is to be tried again.
    pub(super) fn undo_now(&mut self, entry: Entry, why: String) -> io::Result<()> {
        let named = entry.named();
        let request = self.request_for_turn(&entry, Task::Restore);
        match answer_of(self.perform(&request)) {
            Ok(answer) if answer.gone => self.forget(entry.identity),
            Ok(answer) => {
                self.account(&answer);
                let progress = entry.progress.after(Event::Undone);
                self.set(entry.identity, progress);
                self.ledger.counts.restored += 1;
                self.note_restored(entry.identity, &answer.forks);
                self.note_lifted_forks(entry.identity, answer.lifted_forks());
                self.ledger.put(Entry { forks: answer.lifted_forks(), ..entry.restored(progress, unix_time()) });
                (self.report)(&Action::Restored { named: named.clone(), bytes: answer.covered, why });
                warn(self.report, &answer, &named);
            }
            Err(error) => {
                self.not_restored.failed(entry.identity);
                let reason = entry
                    .refusal
                    .as_ref()
                    .filter(|_| entry.is_to_be_undone())
                    .map_or(Reason::Blocked, |refusal| refusal.reason);
                self.ledger.put(Entry { refusal: Some(Refusal::new(reason, why)), ..entry });
                (self.report)(&Action::NotRestored { named, why: error });
            }
        }
        self.ledger.save(&self.paths.state)
    }

    /// Undoes all lifts. Those that cannot be undone are tried again.
    pub(super) fn undo_all(&mut self, why: &str) -> io::Result<()> {
        let waiting = self.not_restored.waiting();
        let failed = restore_in_turns(self, &waiting, why)?;
        failed.into_iter().for_each(|process| self.not_restored.failed(process));
        for entry in &self.ledger.lifts {
            if let Some(tracked) = self.tracked.get_mut(&entry.identity) {
                tracked.progress = entry.progress;
            }
        }
        Ok(())
    }

    /// Marks the lifts of a build, by the same options, that a measurement has shown to lose by it: each is undone by a later scan.
    pub(super) fn undo_all_of(&mut self, measured: &Entry, why: &str) {
        let rules = &self.configuration.rules;
        let must_pay = |name: &str| rules.iter().any(|rule| rule.name == name && rule.keep == Keep::IfItPays);
        let is_same = |entry: &&mut Entry| {
            let is_user = measured.user == entry.user || measured.user == 0;
            let is_build = (&entry.build, entry.owner) == (&measured.build, measured.owner);
            is_user && is_build && entry.options == measured.options
        };
        for entry in self.ledger.lifts.iter_mut().filter(is_same) {
            if entry.progress.state == State::Kept && must_pay(&entry.rule) {
                entry.refusal = Some(Refusal::new(Reason::DoesNotPay, why));
            }
        }
    }
}

/// The means of a command without an agent.
struct WithoutAgent<'a> {
    ledger: &'a mut Ledger,
    worker: &'a mut dyn Worker,
    state: &'a Path,
    report: &'a mut dyn FnMut(&Action),
    supervisor: Identity,
    beside: bool,
}

impl Means for WithoutAgent<'_> {
    fn ledger(&mut self) -> &mut Ledger {
        self.ledger
    }

    fn save(&mut self) -> io::Result<()> {
        self.ledger.save(self.state)
    }

    fn request(&self, entry: &Entry, task: Task) -> Request {
        Request { beside: self.beside, ..entry.request(task, self.state, self.supervisor) }
    }

    fn perform(&mut self, request: &Request) -> Result<Answer, String> {
        self.worker.perform(request, &mut || Patience::Wait)
    }

    fn has_failed(&self, _: Identity) -> bool {
        false
    }

    fn report(&mut self, action: &Action) {
        (self.report)(action);
    }
}

/// Undoes all lifts of the ledger. Returns the processes that stay lifted, themselves or their forks.
///
/// # Errors
/// The ledger cannot be written.
pub fn restore_all(
    ledger: &mut Ledger,
    worker: &mut dyn Worker,
    state: &Path,
    report: &mut dyn FnMut(&Action),
    why: &str,
) -> io::Result<BTreeSet<Identity>> {
    let supervisor = own_identity()?;
    // The worker of the agent before may never end.
    let beside = !has_no_worker(state, LONGEST_WAIT).map_err(io::Error::other)?;
    let mut means = WithoutAgent { ledger, worker, state, report, supervisor, beside };
    restore_in_turns(&mut means, &BTreeSet::new(), why)
}

/// Notes that the measurement of process `of` has left processes plain that were forked from it, so that they get their turn
/// again. Only memory that no restore gives back stays in the ledger. Returns their entries.
pub(super) fn postponed_with(ledger: &mut Ledger, of: Identity, forks: &[Identity]) -> Vec<Entry> {
    let mut changed = Vec::new();
    ledger.lifts.retain_mut(|entry| {
        if entry.identity == of || !forks.contains(&entry.identity) || entry.progress.state != State::Kept {
            return true;
        }
        let plain = entry.clone().restored(entry.progress.after(Event::UndoneByMeasurement), unix_time());
        *entry = Entry { refusal: None, ..plain };
        changed.push(entry.clone());
        entry.lasting != Share::default()
    });
    changed
}

/// Reports the warning in an answer.
pub(super) fn warn(report: &mut dyn FnMut(&Action), answer: &Answer, named: &Named) {
    if let Some(what) = &answer.warning {
        report(&Action::Failed { what: format!("{named}: {what}") });
    }
}

/// Removes the entries of processes that have ended, but for those with lifted forks.
pub fn forget_ended(ledger: &mut Ledger) {
    let Ok(sampler) = Sampler::now() else { return };
    ledger.lifts.retain(|entry| entry.forks > 0 || sampler.lives(entry.identity));
}
