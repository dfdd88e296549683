//! One pass that undoes all lifts.
//!
//! Lifted processes are restored first and then their forks, in turns of the users. Processes that failed in an earlier pass, or
//! whose user has used much time, follow after all other processes. At the end, failed processes are tried once more. A later pass
//! tries the rest.

use super::action::Action;
use super::adoption::leave;
use super::ledger::{Entry, Ledger};
use super::turns::Turns;
use super::unix_time;
use crate::decision::{Event, Identity, State};
use crate::worker::{Answer, Request, Task};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

/// Time for the forks of one process in one turn.
pub(super) const FORK_TURN: Duration = Duration::from_secs(10);
/// Time for the processes of one user, and then for their forks, after which the processes of all other users are preferred.
const LONGEST_OF_USER: Duration = Duration::from_secs(120);
/// Time for all processes that are tried once more.
const LONGEST_AGAIN: Duration = Duration::from_secs(60);
/// Most forks of one process in one pass: the request names those that were tried.
const MOST_FORKS: usize = 10_000;

/// The means of a pass: of the agent, or of a command without an agent.
pub(super) trait Means {
    /// The ledger. It may change in [`Self::perform`].
    fn ledger(&mut self) -> &mut Ledger;

    /// Writes the ledger.
    fn save(&mut self) -> io::Result<()>;

    /// The request about an entry.
    fn request(&self, entry: &Entry, task: Task) -> Request;

    /// Performs a request by a worker.
    fn perform(&mut self, request: &Request) -> Result<Answer, String>;

    /// True if an earlier pass could not restore it.
    fn has_failed(&self, process: Identity) -> bool;

    /// Reports an action.
    fn report(&mut self, action: &Action);

    /// The present time.
    fn now(&self) -> Instant {
        Instant::now()
    }
}

/// The forks of one process in one pass.
#[derive(Debug, Default)]
struct Forks {
    restored: Vec<Identity>,
    refused: Vec<Identity>,
    why: Option<String>,
}

/// A pass.
struct Pass<'a> {
    means: &'a mut dyn Means,
    why: &'a str,
    /// Processes that could not be restored.
    failed: BTreeSet<Identity>,
    forks: BTreeMap<Identity, Forks>,
}

/// Undoes all lifts of the ledger, but for those in `without`. Returns the processes that stay lifted, themselves or their forks.
///
/// # Errors
/// The ledger cannot be written.
pub(super) fn restore_in_turns(
    means: &mut dyn Means,
    without: &BTreeSet<Identity>,
    why: &str,
) -> io::Result<BTreeSet<Identity>> {
    let entries = means.ledger().lifts.iter().filter(|entry| !without.contains(&entry.identity));
    let lifted: Vec<_> = entries.filter(|entry| entry.may_be_lifted()).map(of_user).collect();
    let (mut last, first): (Vec<_>, Vec<_>) = lifted.into_iter().partition(|(_, process)| means.has_failed(*process));
    let mut pass = Pass { means, why, failed: BTreeSet::new(), forks: BTreeMap::new() };
    last.extend(pass.processes(Turns::of(first), LONGEST_OF_USER)?);
    pass.forks_in_turns(without)?;
    pass.processes(Turns::of(last), Duration::MAX)?;
    pass.again(without)?;
    Ok(pass.end(without))
}

fn of_user(entry: &Entry) -> (u32, Identity) {
    (entry.user, entry.identity)
}

impl Pass<'_> {
    /// Restores processes, each once. Returns those whose users have used `most` before their turn.
    fn processes(&mut self, mut turns: Turns, most: Duration) -> io::Result<Vec<(u32, Identity)>> {
        let mut late = Vec::new();
        while let Some((user, process)) = turns.next() {
            if turns.used(user) >= most {
                late.push((user, process));
                continue;
            }
            let begun = self.means.now();
            for (user, fork) in self.process(process)? {
                turns.add(user, fork);
            }
            turns.spent(user, self.means.now().duration_since(begun));
        }
        Ok(late)
    }

    /// Restores a process without its forks. Returns those that have entries of their own from now on, since it has ended.
    fn process(&mut self, process: Identity) -> io::Result<Vec<(u32, Identity)>> {
        let mut adopted = Vec::<Entry>::new();
        let Some(entry) = self.means.ledger().entry(process).filter(|entry| entry.may_be_lifted()).cloned() else {
            self.failed.remove(&process);
            return Ok(Vec::new());
        };
        let request = Request { fork_seconds: 0, ..self.means.request(&entry, Task::Restore) };
        let named = entry.named();
        match answer_of(self.means.perform(&request)) {
            Ok(answer) if answer.gone => {
                adopted = leave(self.means.ledger(), |other| other.identity == process);
                self.failed.remove(&process);
            }
            Ok(answer) => {
                let plain = entry.clone().restored(entry.progress.after(Event::Undone), unix_time());
                let ledger = self.means.ledger();
                ledger.put(Entry { forks: answer.lifted_forks(), ..plain });
                ledger.counts.restored += 1;
                self.failed.remove(&process);
                self.means.report(&Action::Restored { named, bytes: answer.covered, why: self.why.to_owned() });
            }
            Err(why) => {
                if self.failed.insert(process) {
                    self.means.report(&Action::NotRestored { named, why });
                }
            }
        }
        self.means.save()?;
        Ok(adopted.iter().map(of_user).collect())
    }

    /// The processes with lifted forks, by user.
    fn with_forks(&mut self, without: &BTreeSet<Identity>) -> Vec<(u32, Identity)> {
        let entries = self.means.ledger().lifts.iter();
        entries.filter(|entry| entry.forks > 0 && !without.contains(&entry.identity)).map(of_user).collect()
    }

    /// Restores forks in short turns, until each was tried or the time of their user is over.
    fn forks_in_turns(&mut self, without: &BTreeSet<Identity>) -> io::Result<()> {
        let mut turns = Turns::of(self.with_forks(without));
        while let Some((user, process)) = turns.next() {
            if turns.used(user) >= LONGEST_OF_USER {
                continue;
            }
            let begun = self.means.now();
            if self.forks_of(process, FORK_TURN)? {
                turns.add(user, process);
            }
            turns.spent(user, self.means.now().duration_since(begun));
        }
        Ok(())
    }

    /// Restores forks of one process. Returns true if there are others that were not tried.
    fn forks_of(&mut self, process: Identity, most: Duration) -> io::Result<bool> {
        let Some(entry) = self.means.ledger().entry(process).filter(|entry| entry.forks > 0).cloned() else {
            return Ok(false);
        };
        let forks = self.forks.entry(process).or_default();
        let tried = [forks.restored.as_slice(), &forks.refused].concat();
        let number = tried.len();
        let fork_seconds = most.as_secs().max(1);
        let request = Request { fork_seconds, tried, ..self.means.request(&entry, Task::RestoreForks) };
        let answer = match answer_of(self.means.perform(&request)) {
            Ok(answer) => answer,
            Err(why) => {
                forks.why = Some(why);
                return Ok(false);
            }
        };
        forks.restored.extend(&answer.forks);
        forks.refused.extend(&answer.refused_forks);
        forks.why = answer.warning.clone().or(forks.why.take());
        let left = answer.late_forks.saturating_add(forks.refused.len() as u64);
        let now_tried = forks.restored.len() + forks.refused.len();
        self.note_forks(process, &answer.forks, left)?;
        Ok(answer.late_forks > 0 && (number + 1..MOST_FORKS).contains(&now_tried))
    }

    fn note_forks(&mut self, process: Identity, restored: &[Identity], left: u64) -> io::Result<()> {
        let ledger = self.means.ledger();
        restored_with(ledger, process, restored);
        if let Some(entry) = ledger.entry(process) {
            entry.forks = left;
        }
        self.means.save()
    }

    /// Tries failed processes and the rest of the forks once more.
    fn again(&mut self, without: &BTreeSet<Identity>) -> io::Result<()> {
        let begun = self.means.now();
        let left = |means: &dyn Means| LONGEST_AGAIN.saturating_sub(means.now().duration_since(begun));
        let failed = std::mem::take(&mut self.failed);
        self.failed.clone_from(&failed);
        let entries = self.means.ledger().lifts.iter().filter(|entry| failed.contains(&entry.identity));
        let mut turns = Turns::of(entries.map(of_user).collect::<Vec<_>>());
        while let Some((_, process)) = turns.next().filter(|_| !left(self.means).is_zero()) {
            for (user, fork) in self.process(process)? {
                turns.add(user, fork);
            }
        }
        let mut turns = Turns::of(self.with_forks(without));
        while let Some((user, process)) = turns.next() {
            let begun = self.means.now();
            let most = left(self.means).min(FORK_TURN);
            if most.is_zero() {
                break;
            }
            if let Some(forks) = self.forks.get_mut(&process) {
                forks.refused.clear();
                forks.why = None;
            }
            self.forks_of(process, most)?;
            turns.spent(user, self.means.now().duration_since(begun));
        }
        Ok(())
    }

    /// Reports forks that stay lifted. Returns the processes that stay lifted, themselves or their forks.
    fn end(mut self, without: &BTreeSet<Identity>) -> BTreeSet<Identity> {
        for (_, process) in self.with_forks(without) {
            let Some(entry) = self.means.ledger().entry(process) else { continue };
            let (named, number) = (entry.named(), entry.forks);
            let why = self.forks.get_mut(&process).and_then(|forks| forks.why.take());
            let why = why.unwrap_or_else(|| match number {
                1 => "1 process that was forked from it stays lifted".to_owned(),
                number => format!("{number} processes that were forked from it stay lifted"),
            });
            self.means.report(&Action::Failed { what: format!("{named}: {why}") });
            self.failed.insert(process);
        }
        self.failed
    }
}

/// The answer; an error if it is a refusal.
pub(super) fn answer_of(result: Result<Answer, String>) -> Result<Answer, String> {
    result.and_then(|answer| answer.refusal.clone().map_or(Ok(answer), Err))
}

/// Notes that processes that were forked from process `of` are plain, too. Returns their entries.
pub(super) fn restored_with(ledger: &mut Ledger, of: Identity, forks: &[Identity]) -> Vec<Entry> {
    let mut changed = Vec::new();
    for entry in ledger.lifts.iter_mut().filter(|entry| entry.identity != of && forks.contains(&entry.identity)) {
        if entry.progress.state == State::Kept {
            *entry = entry.clone().restored(entry.progress.after(Event::Undone), unix_time());
            changed.push(entry.clone());
        }
    }
    changed
}

#[cfg(test)]
#[path = "pass_tests.rs"]
mod tests;
