//! One server: its start, its readiness, its resources, its end.

use super::ServerPlace;
use super::load::{Broken, Reading, end_of, last_words};
use crate::conduct::{Conduct, INTERRUPTION};
use crate::tree::{tree_of, used_by};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time that a server may take until it is ready.
const TO_BE_READY: Duration = Duration::from_secs(120);
/// The time that a server has to end after the request; a database writes its memory to disk.
const TO_END: Duration = Duration::from_secs(20);
/// The interval for checks of a condition.
const LOOK: Duration = Duration::from_millis(20);

/// A server that was started. Dropping this ends it and all its descendants.
pub(super) struct Server {
    /// `plain`, the name of the arm, or `plain, second`.
    pub(super) name: String,
    pub(super) place: ServerPlace,
    child: Child,
    /// Its output.
    log: File,
    has_ended: bool,
}

impl Server {
    /// Starts a command, in a separate process group, with no input.
    pub(super) fn start(name: &str, mut command: Command, place: ServerPlace) -> Result<Self, Broken> {
        let words = format!("{command:?}");
        let failed =
            |error: io::Error| Broken::Failed(format!("the server {name} cannot be started: {words}: {error}"));
        let log = tempfile::tempfile().map_err(failed)?;
        let (out, error) = (log.try_clone().map_err(failed)?, log.try_clone().map_err(failed)?);
        command.stdin(Stdio::null()).stdout(out).stderr(error).process_group(0);
        let child = command.spawn().map_err(failed)?;
        Ok(Self { name: name.to_owned(), place, child, log, has_ended: false })
    }

    pub(super) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Waits until the condition holds. The condition returns why it does not hold yet, and may take until the given
    /// moment.
    pub(super) fn wait_for(
        &mut self,
        conduct: &Conduct<'_>,
        is_ready: &mut dyn FnMut(&ServerPlace, Instant) -> Result<(), String>,
    ) -> Result<(), Broken> {
        let until = Instant::now() + TO_BE_READY;
        loop {
            self.check()?;
            let Err(why) = is_ready(&self.place, until) else { return Ok(()) };
            if !conduct.wait(LOOK) {
                return Err(Broken::Interrupted);
            }
            if Instant::now() > until {
                let (words, name) = (self.last_words(), &self.name);
                return Err(Broken::Failed(format!(
                    "the server {name} was not ready within {} s: {why}; it printed last: {words}",
                    TO_BE_READY.as_secs()
                )));
            }
        }
    }

    /// Says that it has ended, if so.
    pub(super) fn check(&mut self) -> Result<(), Broken> {
        if self.has_ended {
            return Err(Broken::Failed(format!("the server {} has ended", self.name)));
        }
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => {
                self.has_ended = true;
                let (words, name) = (self.last_words(), &self.name);
                Err(Broken::Failed(format!(
                    "the server {name} has ended ({status}); it printed last: {words}; needed: a server that stays in the \
                     foreground"
                )))
            }
            Err(error) => Err(Broken::Failed(format!("the server {}: {error}", self.name))),
        }
    }

    /// A failure of its load, or its own end, which is why: a connection breaks before the process is gone.
    pub(super) fn explained(&mut self, broken: Broken, conduct: &Conduct<'_>) -> Broken {
        let Broken::Failed(why) = broken else { return broken };
        if !conduct.wait(INTERRUPTION) {
            return Broken::Interrupted;
        }
        match self.check() {
            Err(ended) => ended,
            Ok(()) => Broken::Failed(format!("the server {}: {why}", self.name)),
        }
    }

    pub(super) fn reading(&self) -> Result<Reading, Broken> {
        let (at, used) = (Instant::now(), used_by(self.pid()));
        let (cpu, counters) =
            used.ok_or_else(|| Broken::Failed(format!("the CPU time of the server {} cannot be read", self.name)))?;
        Ok(Reading { cpu, counters, at })
    }

    fn last_words(&self) -> String {
        end_of(&self.log).map_or_else(|error| error.to_string(), |text| last_words(&text))
    }

    /// Ends it as a service manager does: SIGTERM, and SIGKILL for the remaining processes.
    pub(super) fn end(&mut self) {
        let tree = tree_of(self.pid());
        if !self.has_ended {
            let _ = kill(Pid::from_raw(self.pid()), Signal::SIGTERM);
            let until = Instant::now() + TO_END;
            while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
                std::thread::sleep(LOOK);
            }
            if matches!(self.child.try_wait(), Ok(None)) {
                for pid in tree {
                    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
                }
                let _ = self.child.wait();
            }
            self.has_ended = true;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}
