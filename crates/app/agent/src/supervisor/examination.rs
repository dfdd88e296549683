//! Examines processes on which a worker was started that gave no answer.

use super::ledger::Entry;
use super::unix_time;
use crate::decision::{Event, Identity, MOST_REFUSALS, Progress, Reason, Refusal, State};
use crate::worker::{Answer, Request, Task};
use std::path::Path;

/// Performs a request by a worker.
pub(super) type Perform<'a> = dyn FnMut(&Request) -> Result<Answer, String> + 'a;

/// Result of an examination.
pub(super) enum Examined {
    /// The process has ended.
    Gone,
    /// Its entry. The state is `lifting` if the process could not be examined, so that it is examined again, and undone by
    /// each restore.
    Entry(Box<Entry>),
}

/// Examines a process that is perhaps lifted. It is not lifted again.
pub(super) fn examine(entry: Entry, perform: &mut Perform<'_>, state: &Path, own: Identity) -> Examined {
    let answer = perform(&entry.request(Task::Look, state, own));
    let (progress, covered) = match answer {
        Ok(answer) if answer.gone => return Examined::Gone,
        Ok(answer) if answer.refusal.is_none() => match answer.covered {
            0 => (Progress { state: State::Refused, refusals: MOST_REFUSALS }, entry.lasting.covered),
            covered => (entry.progress.after(Event::Lifted), covered),
        },
        Ok(Answer { refusal: why, .. }) => return Examined::Entry(Box::new(in_doubt(entry, why.unwrap_or_default()))),
        Err(why) => return Examined::Entry(Box::new(in_doubt(entry, why))),
    };
    let resident = if progress.state == State::Refused { entry.lasting.resident } else { entry.resident };
    let resident = if progress.state == State::Kept { resident.max(covered) } else { resident };
    Examined::Entry(Box::new(Entry { progress, covered, resident, changed: unix_time(), ..entry }))
}

fn in_doubt(entry: Entry, why: String) -> Entry {
    let why = format!("the effect of its lift is unknown, since it cannot be examined: {why}");
    Entry { refusal: Some(Refusal::new(Reason::WorkerFailed, why)), ..entry }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervisor::ledger::tests::entry;
    use crate::worker::Share;

    fn found(entry: Entry, answer: Result<Answer, String>) -> Option<Entry> {
        let own = Identity { pid: 1, start: 1 };
        let mut perform = |request: &Request| {
            assert_eq!(request.task, Task::Look);
            answer.clone()
        };
        match examine(entry, &mut perform, Path::new("/"), own) {
            Examined::Gone => None,
            Examined::Entry(entry) => Some(*entry),
        }
    }

    #[test]
    fn a_process_that_cannot_be_examined_stays_in_doubt() {
        let begun = entry(1).begun(100);
        let covered = |covered| Ok(Answer { covered, ..Answer::default() });
        let lifted = found(begun.clone(), covered(120)).unwrap();
        assert_eq!((lifted.progress.state, lifted.covered, lifted.resident), (State::Kept, 120, 120));
        let plain = found(begun.clone(), covered(0)).unwrap();
        assert!(plain.progress.state == State::Refused && plain.progress.is_final());
        assert_eq!((plain.covered, plain.resident), (0, 0));
        let refused = Ok(Answer { refusal: Some("silent".to_owned()), ..Answer::default() });
        for answer in [refused, Err("killed".to_owned())] {
            let doubtful = found(begun.clone(), answer).unwrap();
            assert_eq!((doubtful.progress.state, doubtful.resident), (State::Lifting, 100));
            assert!(doubtful.refusal.is_some());
        }
        assert_eq!(found(begun, Ok(Answer { gone: true, ..Answer::default() })), None);
    }

    /// The look does not see memory that was lifted in place, and no restore undoes it.
    #[test]
    fn memory_in_place_counts_whatever_the_examination_finds() {
        let begun = Entry { kinds: vec!["text".to_owned(), "anon".to_owned()], ..entry(1) }.begun(100);
        let plain = found(begun, Ok(Answer::default())).unwrap();
        assert_eq!((plain.progress.state, plain.resident), (State::Refused, 100));
        assert_eq!(plain.lasting, Share { covered: 0, resident: 100 });
    }
}
