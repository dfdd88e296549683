//! Work on the processes of a lift in place, in another thread: a process that stops answering is left out.

use crate::names::{name_of_silent, process_name};
use process_view::{OneByOne, Unanswered};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A process that was not read, or read in part only.
#[derive(Clone, Debug, Serialize)]
pub struct SkippedProcess {
    /// Its PID.
    pub pid: i32,
    /// The words by which messages name it.
    #[serde(skip)]
    pub name: String,
    /// Why.
    pub reason: String,
}

impl From<&Unanswered> for SkippedProcess {
    fn from(process: &Unanswered) -> Self {
        Self { pid: process.pid, name: name_of_silent(process), reason: process.to_string() }
    }
}

/// The other thread, and the processes that did not answer.
#[derive(Default)]
pub(super) struct Asking {
    thread: OneByOne,
    silent: BTreeMap<i32, Unanswered>,
    /// Time spent on waiting for processes that did not answer.
    waited: Duration,
}

/// A limit of time in which waits for processes that do not answer do not count.
#[derive(Clone, Copy)]
pub(super) struct Deadline {
    until: Instant,
    /// Time that had been spent on such waits before.
    waited: Duration,
}

impl Asking {
    /// Has the other thread do `work` with a process; `None` if the process does not answer, or did not answer before.
    pub fn with<T: Send + 'static>(&mut self, pid: i32, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        if self.is_silent(pid) { None } else { self.once_more(pid, work).ok() }
    }

    /// As [`Asking::with`], for a process that may answer again.
    ///
    /// # Errors
    /// [`Unanswered`].
    pub fn once_more<T: Send + 'static>(
        &mut self,
        pid: i32,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Unanswered> {
        let begin = Instant::now();
        self.thread.with(pid, work).inspect_err(|process| {
            self.waited += begin.elapsed();
            self.silent.insert(pid, process.clone());
        })
    }

    /// True if a process did not answer.
    pub fn is_silent(&self, pid: i32) -> bool {
        self.silent.contains_key(&pid)
    }

    /// A process that was not read for this reason.
    pub fn skipped(&mut self, pid: i32, reason: impl Into<String>) -> SkippedProcess {
        SkippedProcess { pid, name: self.name(pid), reason: reason.into() }
    }

    /// The words by which messages name a process.
    pub fn name(&mut self, pid: i32) -> String {
        let name = self.with(pid, move || process_name(pid));
        name.or_else(|| self.silent.get(&pid).map(name_of_silent)).unwrap_or_else(|| format!("process {pid}"))
    }

    /// Time spent on waiting for processes that did not answer.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// A limit that begins now.
    pub fn deadline(&self, time: Duration) -> Deadline {
        Deadline { until: Instant::now() + time, waited: self.waited }
    }

    /// The end of a limit, if no more processes stop answering.
    pub fn end_of(&self, deadline: Deadline) -> Instant {
        deadline.until + self.waited.saturating_sub(deadline.waited)
    }

    /// Makes a process one that did not answer.
    #[cfg(test)]
    pub fn silence(&mut self, pid: i32) {
        let reason = process_view::Silence::NoAnswer;
        self.silent.insert(pid, Unanswered { pid, name: "x".to_owned(), reason });
    }

    /// Adds the processes that did not answer to those that were left out.
    pub fn add_silent(&self, skipped: &mut Vec<SkippedProcess>) {
        for process in self.silent.values() {
            if skipped.iter().all(|known| known.pid != process.pid) {
                skipped.push(process.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_did_not_answer_is_not_asked_again_and_is_named_once() {
        let own = std::process::id() as i32;
        let mut asking = Asking::default();
        assert_eq!((asking.with(own, || 7), asking.is_silent(own)), (Some(7), false));
        assert_eq!(asking.name(own), process_name(own));
        asking.silence(own);
        let asked: Option<()> = asking.with(own, || unreachable!());
        assert_eq!(asked, None);
        assert_eq!((asking.name(own), asking.once_more(own, || 7)), (format!("x[{own}]"), Ok(7)));
        let mut skipped = Vec::new();
        asking.add_silent(&mut skipped);
        asking.add_silent(&mut skipped);
        assert_eq!((skipped.len(), skipped[0].pid, skipped[0].name.as_str()), (1, own, format!("x[{own}]").as_str()));
        assert!(skipped[0].reason.contains("did not answer within 30 s"), "{}", skipped[0].reason);
    }

    #[test]
    fn waits_for_processes_that_do_not_answer_use_up_no_time() {
        let mut asking = Asking::default();
        let deadline = asking.deadline(Duration::from_secs(5));
        let end = asking.end_of(deadline);
        asking.waited += Duration::from_secs(30);
        assert_eq!(asking.end_of(deadline), end + Duration::from_secs(30));
        assert!(asking.end_of(asking.deadline(Duration::ZERO)) <= Instant::now());
    }
}
