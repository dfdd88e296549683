//! One server: its start, its readiness, its resources, its end.

use super::ServerPlace;
use super::load::{Broken, Reading, end_of, last_words};
use crate::conduct::{Conduct, INTERRUPTION};
use crate::tree::used_by;
use descendants::{StartedProcess, of_group, with_descendants};
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
    /// The processes that are known to belong to it.
    processes: Vec<StartedProcess>,
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
        let processes = StartedProcess::of(child.id() as i32).into_iter().collect();
        Ok(Self { name: name.to_owned(), place, child, log, has_ended: false, processes })
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
            let Err(why) = is_ready(&self.place, until) else {
                self.processes = with_descendants(&self.processes);
                return Ok(());
            };
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

    /// Ends it as a service manager does: SIGTERM to all its processes, and SIGKILL to those that remain. Its first
    /// process may be a wrapper that has ended before the others.
    pub(super) fn end(&mut self) {
        let known = [std::mem::take(&mut self.processes), of_group(self.pid())].concat();
        descendants::end(&with_descendants(&known), TO_END);
        let _ = self.child.wait();
        self.has_ended = true;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Time limit of a wait that usually takes milliseconds.
    const LONG: Duration = Duration::from_secs(60);

    fn until(mut condition: impl FnMut() -> bool) {
        let limit = Instant::now() + LONG;
        while !condition() {
            assert!(Instant::now() < limit);
            std::thread::sleep(LOOK);
        }
    }

    /// A server of a shell script that writes the PID of a process to the file `$0`, and this process.
    fn server(script: &str) -> (Server, StartedProcess) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(&file);
        let place = ServerPlace { port: 0, folder: folder.path().to_owned() };
        let server = Server::start("plain", command, place).unwrap();
        let mut text = String::new();
        until(|| {
            text = fs::read_to_string(&file).unwrap_or_default();
            text.ends_with('\n')
        });
        (server, StartedProcess::of(text.trim().parse().unwrap()).unwrap())
    }

    #[test]
    fn a_server_under_a_wrapper_ends() {
        let (mut server, real) = server("sh -c 'echo $$ > $0; exec sleep 1000' $0; true");
        assert!(real.runs() && real.pid() != server.pid());
        server.end();
        assert!(!real.runs());
    }

    #[test]
    fn a_server_whose_wrapper_has_ended_ends() {
        // Orphans become children of this process, as during an experiment.
        nix::sys::prctl::set_child_subreaper(true).unwrap();
        let (mut server, real) = server("sh -c 'echo $$ > $0; exec sleep 1000' $0 &");
        until(|| server.check().is_err());
        assert!(real.runs());
        drop(server);
        assert!(!real.runs());
    }
}
