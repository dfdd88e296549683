//! Forks of a lifted process have its copies. If the process ends or executes another program, each fork gets an entry, so that
//! the lift can still be undone.

use super::ledger::{Entry, Ledger};
use super::{Agent, unix_time};
use crate::decision::{ExecutedFile, Identity, Progress, Reason, Refusal, State};
use crate::discovery::with_stacks;
use crate::worker::Share;

impl Entry {
    /// True for a process that may be lifted, also if it could not be examined.
    pub(super) fn may_be_lifted(&self) -> bool {
        matches!(self.progress.state, State::Kept | State::Lifting | State::Measuring)
    }

    /// The entry of a process that was forked from this one.
    fn of_fork(&self, fork: Identity) -> Self {
        let progress = Progress { state: State::Kept, ..self.progress };
        let must = match self.progress.state {
            State::Measuring => Some((Reason::NotMeasured, "the process that it was forked from was measured")),
            State::Restored => Some((Reason::KillSwitch, "the process that it was forked from was restored")),
            _ => None,
        };
        let refusal = self.refusal.clone().or(must.map(|(reason, why)| Refusal::new(reason, why.to_owned())));
        Self { identity: fork, progress, forks: 0, changed: unix_time(), refusal, ..self.clone() }
    }
}

/// Removes the entries of processes that have ended or execute another program. Returns the new entries of processes that were
/// forked from them.
pub(super) fn leave(ledger: &mut Ledger, has_left: impl Fn(&Entry) -> bool) -> Vec<Entry> {
    let (left, stay): (Vec<_>, Vec<_>) = std::mem::take(&mut ledger.lifts).into_iter().partition(has_left);
    ledger.lifts = stay;
    let is_lifted = |entry: &Entry| entry.file.stack != 0 && (entry.may_be_lifted() || entry.forks > 0);
    let lifted: Vec<Entry> = left.into_iter().filter(is_lifted).collect();
    if lifted.is_empty() {
        return Vec::new();
    }
    let stacks = lifted.iter().map(|entry| entry.file.stack).collect();
    adopt(ledger, &lifted, &with_stacks(&stacks))
}

/// Adds entries for the processes in `found` that were forked from one in `lifted`: their stack began at the same address, which
/// changes with each exec. The memory of the lift counts once.
fn adopt(ledger: &mut Ledger, lifted: &[Entry], found: &[(Identity, ExecutedFile)]) -> Vec<Entry> {
    let mut adopted = Vec::new();
    for entry in lifted {
        let mut memory = Some((entry.resident, entry.lasting));
        let is_fork = |other: Identity| other != entry.identity && other.start >= entry.identity.start;
        let forks = found.iter().filter(|(other, file)| *file == entry.file && is_fork(*other));
        for &(fork, _) in forks {
            if let Some(own) = ledger.entry(fork).filter(|own| own.may_be_lifted()) {
                // A fork that was adopted after another one: the memory counted for that one until now.
                if own.resident == 0 {
                    (own.resident, own.lasting) = memory.take().unwrap_or((0, own.lasting));
                }
                continue;
            }
            if ledger.is_full().is_some() {
                continue;
            }
            let (resident, lasting) = memory.take().unwrap_or((0, Share::default()));
            let fork = Entry { resident, lasting, ..entry.of_fork(fork) };
            ledger.put(fork.clone());
            adopted.push(fork);
        }
    }
    adopted
}

impl Agent<'_> {
    /// Removes entries as [`leave`] does, and knows the new ones. Returns true if there was one to remove.
    pub(super) fn leave(&mut self, has_left: impl Fn(&Entry) -> bool) -> bool {
        let before = self.ledger.lifts.len();
        let adopted = leave(&mut self.ledger, has_left);
        let is_changed = !adopted.is_empty() || self.ledger.lifts.len() != before;
        for fork in adopted {
            let tracked = self.tracked.entry(fork.identity).or_default();
            (tracked.progress, tracked.file) = (fork.progress, Some(fork.file));
        }
        is_changed
    }

    /// Notes why a lift is to be undone in the processes that were forked from a process, if it has ended.
    pub(super) fn must_be_undone(&mut self, process: Identity, reason: Reason, why: &str) {
        if let Some(entry) = self.ledger.entry(process) {
            entry.refusal = Some(Refusal::new(reason, why.to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervisor::ledger::tests::entry;

    fn process(pid: i32, stack: u64) -> (Identity, ExecutedFile) {
        (Identity { pid, start: pid as u64 }, ExecutedFile { stack, ..entry(1).file })
    }

    fn lifted(pid: i32, state: State) -> Entry {
        let (identity, file) = process(pid, 7);
        let progress = Progress { state, refusals: 0 };
        Entry { progress, resident: 10, covered: 20, ..Entry { identity, file, ..entry(1) } }
    }

    #[test]
    fn forks_of_a_process_that_has_ended_stay_known() {
        let mut ledger = Ledger::default();
        let other_program = (process(13, 7).0, ExecutedFile { inode: 99, stack: 7, ..entry(1).file });
        let found = [process(4, 7), process(11, 7), process(12, 8), other_program, process(14, 7), process(15, 7)];
        ledger.put(Entry { covered: 5, ..lifted(14, State::Kept) });
        ledger.put(lifted(15, State::Refused));
        let adopted = adopt(&mut ledger, &[lifted(10, State::Kept)], &found);
        let seen = adopted.iter().map(|fork| (fork.identity.pid, fork.progress.state, fork.resident, fork.covered));
        assert_eq!(seen.collect::<Vec<_>>(), [(11, State::Kept, 10, 20), (15, State::Kept, 0, 20)], "4 is older");
        assert_eq!(
            (ledger.lifts.len(), ledger.entry(process(14, 7).0).unwrap().covered),
            (3, 5),
            "it has its own lift"
        );
    }

    #[test]
    fn memory_of_a_lift_counts_as_long_as_a_fork_lives() {
        let mut ledger = Ledger::default();
        let found = [process(11, 7), process(12, 7)];
        assert_eq!(adopt(&mut ledger, &[lifted(10, State::Kept)], &found).len(), 2);
        let first = ledger.entry(process(11, 7).0).unwrap().clone();
        ledger.lifts.retain(|entry| entry.identity != first.identity);
        assert!(adopt(&mut ledger, &[first], &found[1..]).is_empty());
        assert_eq!(
            ledger.lifts.iter().map(|entry| (entry.identity.pid, entry.resident)).collect::<Vec<_>>(),
            [(12, 10)]
        );
    }

    #[test]
    fn a_reason_to_undo_a_lift_holds_for_its_forks() {
        for (state, refusal, expected) in [
            (State::Kept, None, None),
            (State::Restored, Some(Reason::DoesNotPay), Some(Reason::DoesNotPay)),
            (State::Restored, None, Some(Reason::KillSwitch)),
            (State::Measuring, None, Some(Reason::NotMeasured)),
        ] {
            let refusal = refusal.map(|reason| Refusal::new(reason, "why".to_owned()));
            let parent = Entry { refusal, forks: 1, ..lifted(10, state) };
            let fork = parent.of_fork(process(11, 7).0);
            assert_eq!((fork.forks, fork.refusal.map(|why| why.reason)), (0, expected));
        }
    }

    /// This process has a fork that lives on: a real one, found by the kernel's data.
    #[test]
    fn a_fork_is_found_by_its_stack() {
        let own = crate::discovery::own_identity().unwrap();
        let file = crate::discovery::executed_file(own.pid).unwrap();
        let before = Identity { pid: i32::MAX, start: 0 };
        for (state, forks, stack, expected) in [
            (State::Kept, 0, file.stack, true),
            (State::Restored, 1, file.stack, true),
            (State::Restored, 0, file.stack, false),
            (State::Kept, 0, file.stack + 16, false),
            (State::Kept, 0, 0, false),
        ] {
            let file = ExecutedFile { stack, ..file };
            let mut ledger = Ledger::default();
            ledger.put(Entry { identity: before, file, forks, ..lifted(10, state) });
            ledger.put(lifted(20, State::Kept));
            let adopted = leave(&mut ledger, |entry| entry.identity == before);
            assert_eq!(adopted.iter().any(|fork| fork.identity == own), expected, "{state:?} {forks} {stack}");
            assert!(ledger.entry(before).is_none() && ledger.lifts.iter().any(|entry| entry.identity.pid == 20));
        }
    }
}
