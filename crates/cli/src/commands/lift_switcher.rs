//! Lifts a live process and puts it back, as often as a measurement asks for.

use crate::arguments::policy::words;
use anyhow::Context;
use linux::process_handle::ProcessHandle;
use options::{Policy, Prepare};
use process_view::ObjectReader;
use serde::Serialize;
use session::SessionError;
use session::running::{AttachOptions, Attached, Detached, Selected, attach, detach};
use std::time::{Duration, Instant};

/// How a process is left that was lifted for a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Left {
    /// Plain, as it was found.
    Plain,
    /// Lifted: it was before, or that was asked for.
    Lifted,
    /// It could not be put back, or has ended.
    Unknown,
}

/// Time for which a switch is tried again while threads of the program cannot be stopped, as in vfork or in uninterruptible
/// sleep; each try takes seconds. A database that writes to a slow disk sleeps so much of the time.
const SWITCH_TIMEOUT: Duration = Duration::from_secs(60);

/// Makes a switch, again while it is refused for the moment.
fn until_made<T>(mut switch: impl FnMut() -> Result<T, SessionError>) -> Result<T, SessionError> {
    let deadline = Instant::now() + SWITCH_TIMEOUT;
    loop {
        match switch() {
            Err(SessionError::NotNow(_)) if Instant::now() < deadline => {}
            result => return result,
        }
    }
}

/// Lifts and puts back. What was lifted before is lifted again, by the first policy, when this is dropped.
pub struct LiftSwitcher {
    pid: i32,
    /// A handle on the process, so that no later one of its number is switched. `None` before Linux 5.3.
    handle: Option<ProcessHandle>,
    policies: Vec<Policy>,
    reader: ObjectReader,
    was_lifted: bool,
}

impl LiftSwitcher {
    /// Puts the process back to plain, where it is lifted.
    pub fn new(pid: i32, policies: Vec<Policy>) -> anyhow::Result<Self> {
        let handle = ProcessHandle::open(pid).ok();
        let process = Selected { handle: handle.as_ref(), ..Selected::by_number(pid) };
        let found = until_made(|| detach(&process)).map_err(|error| anyhow::anyhow!(error.in_full()));
        let found = found.with_context(|| format!("looking at process {pid}"))?;
        let was_lifted = found.with_context(|| format!("process {pid} has ended"))?.restored > 0;
        let first = policies.first().context("there is nothing to compare")?;
        if was_lifted {
            eprintln!(
                "pagelift: note: process {pid} is lifted already: it is put back for the time, and lifted anew at the end by \
                 the options of the first arm: pagelift attach {} {pid}",
                words(first).join(" ")
            );
        }
        Ok(Self { pid, handle, policies, reader: ObjectReader::new(), was_lifted })
    }

    /// Lifts by one of the policies, whole, as far as its threads let themselves be stopped within a minute.
    pub fn lift(&mut self, arm: usize) -> Result<Attached, String> {
        let policy = self.policies[arm].clone();
        let options = AttachOptions { policy, heap: false, prepare: Prepare::Auto };
        let process = Selected { handle: self.handle.as_ref(), ..Selected::by_number(self.pid) };
        let deadline = Instant::now() + SWITCH_TIMEOUT;
        let attached = loop {
            match until_made(|| attach(&process, &options, &mut self.reader)) {
                // A part of it would be measured as the whole.
                Ok(Some(attached)) if attached.is_cut_short && Instant::now() < deadline => drop(self.back()?),
                attached => break attached,
            }
        };
        attached.map_err(|error| error.in_full())?.ok_or_else(|| format!("process {} has ended", self.pid))
    }

    /// Puts the process back.
    pub fn back(&self) -> Result<Detached, String> {
        let process = Selected { handle: self.handle.as_ref(), ..Selected::by_number(self.pid) };
        let detached = until_made(|| detach(&process)).map_err(|error| error.in_full())?;
        detached.ok_or_else(|| format!("process {} has ended", self.pid))
    }

    /// Leaves the process lifted.
    pub fn keep(mut self) -> Left {
        self.was_lifted = false;
        Left::Lifted
    }

    /// Puts the process back, or lifts it again if it was lifted before; says where that fails.
    pub fn leave_as_found(mut self) -> Left {
        let was_lifted = std::mem::take(&mut self.was_lifted);
        let (done, left) = match was_lifted {
            true => (self.lift(0).map(drop), Left::Lifted),
            false => (self.back().map(drop), Left::Plain),
        };
        done.map_or_else(
            |why| {
                eprintln!("pagelift: process {} is not left as it was found: {why}", self.pid);
                Left::Unknown
            },
            |()| left,
        )
    }
}

impl Drop for LiftSwitcher {
    fn drop(&mut self) {
        if self.was_lifted
            && let Err(why) = self.lift(0)
        {
            eprintln!("pagelift: the process was lifted before and is plain now: {why}");
        }
    }
}
