//! Finds lifted code and constants that the kernel has taken off huge pages.

use super::action::Action;
use super::ledger::Entry;
use super::{Agent, unix_time};
use crate::decision::{Identity, State, cost_of};
use crate::worker::Task;
use std::io;
use std::time::Duration;

/// Time between two checks of a process. A check costs about as much as a small lift.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1800);
/// Time after a lift before the first look, in seconds.
const FIRST_LOOK: u64 = 60;

impl Agent<'_> {
    /// Looks at one lifted process, if a look is due and the budget permits it. Returns true if a worker was started.
    pub(super) fn look_for_lost_pages(&mut self) -> io::Result<bool> {
        if self.has_worker() || !self.budget.permits(cost_of(0)) {
            return Ok(false);
        }
        let now = unix_time();
        let is_due = |entry: &&Entry| {
            let looked = self.tracked.get(&entry.identity).and_then(|tracked| tracked.looked);
            copied(entry) > 0
                && now.saturating_sub(entry.changed) >= FIRST_LOOK
                && looked.is_none_or(|at| at.elapsed() >= BETWEEN_LOOKS)
        };
        let Some(entry) = self.ledger.lifts.iter().find(is_due).cloned() else { return Ok(false) };
        if let Some(tracked) = self.tracked.get_mut(&entry.identity) {
            tracked.looked = Some(std::time::Instant::now());
        }
        let answer = self.perform(&entry.request(Task::Look, &self.paths.state, self.own));
        self.advance_budget();
        let Ok(answer) = answer else { return Ok(true) };
        if answer.gone || answer.refusal.is_some() {
            return Ok(true);
        }
        self.note_lost(entry.identity, copied(&entry).saturating_sub(answer.covered))?;
        Ok(true)
    }

    fn note_lost(&mut self, identity: Identity, lost: u64) -> io::Result<()> {
        let Some(entry) = self.ledger.entry(identity).filter(|entry| entry.lost != lost) else { return Ok(()) };
        let is_more = lost > entry.lost;
        entry.lost = lost;
        let (named, of) = (entry.named(), copied(entry));
        if is_more {
            (self.report)(&Action::Lost { named, lost, of });
        }
        self.ledger.save(&self.paths.state)
    }
}

/// Bytes of code and constants that a lift has put on huge pages. 0 if other memory was lifted, too, because a check cannot distinguish it.
fn copied(entry: &Entry) -> u64 {
    let is_read_only = |kind: &String| ["text", "rodata"].contains(&kind.as_str());
    if entry.progress.state != State::Kept || !entry.kinds.iter().all(is_read_only) {
        return 0;
    }
    entry.sources.iter().map(|source| source.bytes).fold(0, u64::saturating_add)
}
