//! Undoes lifts.

use super::action::{Action, Named};
use super::adoption::leave;
use super::ledger::{Entry, Ledger};
use super::pass::{FORK_TURN, Means, answer_of, restore_in_turns, restored_with};
use super::spawn::{Patience, Worker};
use super::{Agent, unix_time};
use crate::decision::{Event, Identity, Reason, Refusal, State};
use crate::discovery::{Sampler, executed_file, own_identity};
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

/// A process whose lift could not be undone.
#[derive(Debug, Default)]
struct Failed {
    tries: u32,
    /// Scans until the next try.
    wait: u32,
    /// Scan of the last try.
    last: u64,
}

/// Processes whose lift could not be undone.
#[derive(Debug, Default)]
pub(super) struct Retries {
    failed: BTreeMap<Identity, Failed>,
    /// Number of scans.
    scan: u64,
    /// The last scan at which a process of a user had a turn.
    turns: BTreeMap<u32, u64>,
}

impl Retries {
    /// A scan has begun.
    pub(super) fn tick(&mut self) {
        self.scan += 1;
        self.failed.values_mut().for_each(|failed| failed.wait = failed.wait.saturating_sub(1));
    }

    pub(super) fn failed(&mut self, identity: Identity) {
        let failed = self.failed.entry(identity).or_default();
        let tries = failed.tries.saturating_add(1).min(LONGEST_DOUBLING);
        *failed = Failed { tries, wait: 1 << tries, last: self.scan };
    }

    pub(super) fn waits(&self, identity: Identity) -> bool {
        self.failed.get(&identity).is_some_and(|failed| failed.wait > 0)
    }

    fn has_failed(&self, identity: Identity) -> bool {
        self.failed.contains_key(&identity)
    }

    pub(super) fn waiting(&self) -> BTreeSet<Identity> {
        self.failed.keys().copied().filter(|identity| self.waits(*identity)).collect()
    }

    pub(super) fn keep(&mut self, is_kept: impl Fn(Identity) -> bool) {
        self.failed.retain(|identity, _| is_kept(*identity));
    }

    /// The entry whose turn it is, of the user and of the process that were tried the longest time ago. Processes that always fail
    /// do not keep others from their turn.
    fn next<'a>(&mut self, due: impl Iterator<Item = &'a Entry>) -> Option<&'a Entry> {
        let last = |entry: &Entry| self.failed.get(&entry.identity).map(|failed| failed.last);
        let due = due.filter(|entry| !self.waits(entry.identity));
        let next = due.min_by_key(|entry| (self.turns.get(&entry.user).copied(), last(entry)))?;
        self.turns.insert(next.user, self.scan);
        Some(next)
    }
}

impl Entry {
    /// True if its lift is to be undone: an earlier try has failed, or a measurement of another process has shown a loss.
    fn is_to_be_undone(&self) -> bool {
        let reasons = [Reason::Blocked, Reason::NotMeasured, Reason::DoesNotPay, Reason::KillSwitch];
        let refused = self.refusal.as_ref().is_some_and(|refusal| reasons.contains(&refusal.reason));
        self.progress.state == State::Kept && refused
    }

    fn reason_to_undo(&self) -> Reason {
        let known = self.refusal.as_ref().filter(|_| self.is_to_be_undone());
        known.map_or(Reason::Blocked, |refusal| refusal.reason)
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
        let due = self.ledger.lifts.iter().filter(|entry| entry.is_to_be_undone() || entry.forks > 0);
        let Some(entry) = self.not_restored.next(due).cloned() else { return Ok(()) };
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
            Ok(answer) if answer.gone => {
                self.must_be_undone(entry.identity, entry.reason_to_undo(), &why);
                self.forget(entry.identity);
            }
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
                let refusal = Some(Refusal::new(entry.reason_to_undo(), why));
                self.ledger.put(Entry { refusal, ..entry });
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

/// Removes the entries of processes that have ended or execute another program. Their forks get entries of their own.
pub fn forget_ended(ledger: &mut Ledger) {
    let Ok(sampler) = Sampler::now() else { return };
    let is_other = |entry: &Entry| entry.file.was_left_for(executed_file(entry.identity.pid));
    leave(ledger, |entry| !sampler.lives(entry.identity) || is_other(entry));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervisor::ledger::tests::entry;

    /// 64 entries that always failed delayed all others for good.
    #[test]
    fn processes_that_always_fail_do_not_delay_others() {
        let of = |user: u32, pid: i32| Entry { user, ..entry(pid) };
        let all: Vec<Entry> = (1..=200).map(|pid| of(1000, pid)).chain([of(0, 201), of(1001, 202)]).collect();
        let (mut retries, mut turns) = (Retries::default(), BTreeMap::<i32, Vec<u64>>::new());
        for scan in 0..1300 {
            retries.tick();
            let next = retries.next(all.iter()).map(|entry| entry.identity);
            if let Some(next) = next {
                turns.entry(next.pid).or_default().push(scan);
                retries.failed(next);
            }
        }
        assert!(turns[&201][0] <= 2 && turns[&202][0] <= 2, "{turns:?}");
        assert!((1..=200).all(|pid| turns[&pid].len() >= 4), "each of a user in turn: {turns:?}");
        assert!(turns[&201].len() > 10, "a user with one process: {:?}", turns[&201]);
    }
}
