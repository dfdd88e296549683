//! Lifts a live process and restores it, as often as a measurement requires.

use crate::arguments::policy::words;
use crate::say;
use anyhow::Context;
use linux::process_handle::ProcessHandle;
use options::{Policy, Prepare};
use process_view::ObjectReader;
use serde::Serialize;
use session::SessionError;
use session::running::{AttachOptions, Attached, Detached, Selected, attach, detach};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The final state of a process that was lifted for a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Left {
    /// Plain, as it was found.
    Plain,
    /// Lifted: it was before, or this was requested.
    Lifted,
    /// It could not be restored, or has ended.
    Unknown,
}

/// Time for which a switch is tried again while threads of the program cannot be stopped, as in vfork or in uninterruptible
/// sleep; each try takes seconds. A database that writes to a slow disk sleeps so much of the time.
const SWITCH_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for which a way back is tried again once the user wants the end.
const BACK_TIMEOUT: Duration = Duration::from_secs(5);

/// The time at which retries of a switch end.
#[derive(Clone)]
pub struct RetryLimit {
    until: Instant,
    interrupted: Arc<AtomicBool>,
}

impl RetryLimit {
    /// A minute from now, shorter once the flag is set.
    pub fn from_now(interrupted: &Arc<AtomicBool>) -> Self {
        Self { until: Instant::now() + SWITCH_TIMEOUT, interrupted: interrupted.clone() }
    }

    /// A few seconds from now, for the last action.
    fn at_the_end() -> Self {
        Self { until: Instant::now() + BACK_TIMEOUT, interrupted: Arc::default() }
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    fn allows_lift(&self) -> bool {
        !self.is_interrupted() && Instant::now() < self.until
    }

    fn allows_way_back(&self, since: Instant) -> bool {
        Instant::now() < if self.is_interrupted() { self.until.min(since + BACK_TIMEOUT) } else { self.until }
    }
}

/// Makes a switch, again while it is refused for the moment; with the number of tries.
fn until_made<T>(
    mut switch: impl FnMut() -> Result<T, SessionError>,
    may_try_again: impl Fn() -> bool,
) -> (Result<T, SessionError>, u32) {
    let mut tries = 1;
    loop {
        match switch() {
            Err(SessionError::NotNow(_)) if may_try_again() => tries += 1,
            result => return (result, tries),
        }
    }
}

/// A lift that was made.
pub struct Switched {
    /// The result of the attach.
    pub attached: Attached,
    /// It took several tries, between which the program was plain.
    pub is_retried: bool,
}

/// Treatment, at the end, of a process that was lifted before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundLifted {
    /// It is lifted again, by the first policy.
    LiftAgain,
    /// It stays plain: a fork of a process that was lifted for the measurement, or a later decision lifts it.
    LeavePlain,
}

/// Lifts and restores a process.
pub struct LiftSwitcher {
    pid: i32,
    /// A handle on the process, so that no later one of its number is switched. `None` before Linux 5.3.
    handle: Option<ProcessHandle>,
    policies: Vec<Policy>,
    reader: ObjectReader,
    was_lifted: bool,
    /// The user wants the end.
    interrupted: Arc<AtomicBool>,
}

impl LiftSwitcher {
    /// Restores the process to plain, if it is lifted.
    pub fn new(
        pid: i32,
        policies: Vec<Policy>,
        interrupted: &Arc<AtomicBool>,
        found_lifted: FoundLifted,
    ) -> anyhow::Result<Self> {
        let handle = ProcessHandle::open(pid).ok();
        let process = Selected { handle: handle.as_ref(), ..Selected::by_number(pid) };
        let limit = RetryLimit::from_now(interrupted);
        let (found, _) = until_made(|| detach(&process), || limit.allows_lift());
        let found = found.map_err(|error| anyhow::anyhow!(error.in_full()));
        let found = found.with_context(|| format!("looking at process {pid}"))?;
        let is_lifted = found.with_context(|| format!("process {pid} has ended"))?.restored > 0;
        let was_lifted = is_lifted && found_lifted == FoundLifted::LiftAgain;
        let first = policies.first().context("there is nothing to compare")?;
        if was_lifted {
            say!(
                "pagelift: note: process {pid} is lifted already: it is restored for the measurement, and lifted again \
                 at the end with the options of the first arm: pagelift attach {} {pid}",
                foreign_text::words(words(first))
            );
        }
        let interrupted = interrupted.clone();
        Ok(Self { pid, handle, policies, reader: ObjectReader::new(), was_lifted, interrupted })
    }

    /// Lifts by one of the policies, whole if its threads can be stopped in time.
    pub fn lift(&mut self, arm: usize, limit: &RetryLimit) -> Result<Switched, String> {
        let policy = self.policies[arm].clone();
        let options = AttachOptions { policy, prepare: Prepare::Auto, ..AttachOptions::default() };
        let mut is_retried = false;
        let attached = loop {
            let process = Selected { handle: self.handle.as_ref(), ..Selected::by_number(self.pid) };
            let reader = &mut self.reader;
            let (made, tries) = until_made(|| attach(&process, &options, reader), || limit.allows_lift());
            is_retried |= tries > 1;
            match made {
                // Part of the lift would be measured as the whole.
                Ok(Some(attached)) if attached.is_cut_short && limit.allows_lift() => {
                    is_retried = true;
                    self.back(limit)?;
                }
                made => break made,
            }
        };
        let attached = attached.map_err(|error| error.in_full())?;
        let attached = attached.ok_or_else(|| format!("process {} has ended", self.pid))?;
        if attached.is_cut_short {
            let line = attached.report.line();
            say!("pagelift: note: {line}; partly lifted: some threads could not be stopped");
        }
        Ok(Switched { attached, is_retried })
    }

    /// Puts the process back.
    pub fn back(&self, limit: &RetryLimit) -> Result<Detached, String> {
        let process = Selected { handle: self.handle.as_ref(), ..Selected::by_number(self.pid) };
        let since = Instant::now();
        let (detached, _) = until_made(|| detach(&process), || limit.allows_way_back(since));
        detached.map_err(|error| error.in_full())?.ok_or_else(|| format!("process {} has ended", self.pid))
    }

    /// Leaves the process lifted.
    pub fn keep(mut self) -> Left {
        self.was_lifted = false;
        Left::Lifted
    }

    /// Restores the process, or lifts it again if it was lifted before; reports a failure.
    pub fn leave_as_found(mut self) -> Left {
        let was_lifted = std::mem::take(&mut self.was_lifted);
        let limit = RetryLimit::from_now(&self.interrupted);
        let (done, left) = match was_lifted {
            true => (self.lift(0, &RetryLimit::at_the_end()).map(drop), Left::Lifted),
            false => (self.back(&limit).map(drop), Left::Plain),
        };
        done.map_or_else(
            |why| {
                say!("pagelift: the first state of process {} could not be restored: {why}", self.pid);
                Left::Unknown
            },
            |()| left,
        )
    }
}

impl Drop for LiftSwitcher {
    fn drop(&mut self) {
        if self.was_lifted
            && let Err(why) = self.lift(0, &RetryLimit::at_the_end())
        {
            say!("pagelift: the process was lifted before and is plain now: {why}");
        }
    }
}
