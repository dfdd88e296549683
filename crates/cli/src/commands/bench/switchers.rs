//! What switches a live program: a lift and its way back, or the user's own commands.

use crate::arguments::policy::words;
use anyhow::Context;
use experiment::record::Lift;
use experiment::toggle::{Done, Switcher};
use experiment::work::shell as shell_command;
use linux::process_handle::ProcessHandle;
use options::{Policy, Prepare};
use process_view::ObjectReader;
use serde::Serialize;
use session::running::{AttachOptions, Attached, Selected, attach, detach};

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

/// Lifts and puts back. What was lifted before is lifted again, by the first policy, when this is dropped.
pub(in crate::commands) struct LiftSwitcher {
    pid: i32,
    /// Of this process, so that no later one of its number is switched. `None` before Linux 5.3.
    handle: Option<ProcessHandle>,
    policies: Vec<Policy>,
    reader: ObjectReader,
    was_lifted: bool,
}

impl LiftSwitcher {
    /// Puts the process back to plain, where it is lifted.
    pub(in crate::commands) fn new(pid: i32, policies: Vec<Policy>) -> anyhow::Result<Self> {
        let handle = ProcessHandle::open(pid).ok();
        let process = Selected { handle: handle.as_ref(), ..Selected::by_number(pid) };
        let found = detach(&process).map_err(|error| anyhow::anyhow!(error.in_full()));
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

    /// Lifts by one of the policies.
    pub(in crate::commands) fn lift(&mut self, arm: usize) -> Result<Attached, String> {
        let policy = self.policies[arm].clone();
        let options = AttachOptions { policy, heap: false, prepare: Prepare::Auto };
        let process = Selected { handle: self.handle.as_ref(), ..Selected::by_number(self.pid) };
        let attached = attach(&process, &options, &mut self.reader);
        attached.map_err(|error| error.in_full())?.ok_or_else(|| format!("process {} has ended", self.pid))
    }

    /// Leaves the process lifted.
    pub(in crate::commands) fn keep(mut self) -> Left {
        self.was_lifted = false;
        Left::Lifted
    }

    /// Puts the process back, or lifts it again if it was lifted before; says where that fails.
    pub(in crate::commands) fn leave_as_found(mut self) -> Left {
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

impl Switcher for LiftSwitcher {
    fn to(&mut self, arm: usize) -> Result<Done, String> {
        let Attached { report, pause } = self.lift(arm)?;
        if report.covered_bytes == 0 {
            return Err(format!("nothing was lifted: {}", crate::text::message::line(&report)));
        }
        let lift = serde_json::to_string(&report).and_then(|json| Lift::from_report(&json)).ok();
        Ok(Done { pause: pause.longest, covered: Some(report.covered_bytes), lift })
    }

    fn back(&mut self) -> Result<Done, String> {
        let process = Selected { handle: self.handle.as_ref(), ..Selected::by_number(self.pid) };
        let detached = detach(&process).map_err(|error| error.in_full())?;
        let detached = detached.ok_or_else(|| format!("process {} has ended", self.pid))?;
        Ok(Done { pause: detached.pause.longest, covered: Some(0), lift: None })
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

/// Runs the user's commands.
pub(super) struct CommandSwitcher {
    on: String,
    off: String,
}

impl CommandSwitcher {
    pub(super) fn new(on: &str, off: &str) -> Self {
        Self { on: on.to_owned(), off: off.to_owned() }
    }
}

impl Switcher for CommandSwitcher {
    fn to(&mut self, _arm: usize) -> Result<Done, String> {
        shell(&self.on)
    }

    fn back(&mut self) -> Result<Done, String> {
        shell(&self.off)
    }
}

fn shell(command: &str) -> Result<Done, String> {
    match shell_command(command).map(|output| output.status) {
        Ok(status) if status.success() => Ok(Done::default()),
        Ok(status) => Err(format!("{command}: {status}")),
        Err(error) => Err(format!("sh cannot be executed: {error}")),
    }
}
