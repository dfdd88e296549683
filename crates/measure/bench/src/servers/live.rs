//! A server that is switched in place: its start, its load for the whole experiment, its end.

use super::load::{Broken, RunningLoad};
use super::server::Server;
use super::{LoadSource, Reaper, ServerPlace, free_ports, is_ready, shell};
use crate::ExperimentError;
use crate::conduct::{Conduct, INTERRUPTION, Limits};
use process_view::ProcessFiles;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// A server without any other sign is ready once its executable mappings have not changed for this long.
const AT_REST: Duration = Duration::from_millis(200);

/// The command of the server and its parameters.
pub struct LiveServer<'a> {
    /// Its name in messages.
    pub name: &'a str,
    /// Makes its command.
    pub command: &'a mut dyn FnMut(&ServerPlace) -> Command,
    /// A shell command before its start.
    pub prepare: Option<&'a str>,
    /// A shell command that succeeds once it is ready.
    pub ready: Option<&'a str>,
    /// A shell command once it is ready.
    pub fill: Option<&'a str>,
    /// It takes connections on its port once it is ready.
    pub has_port: bool,
}

/// A load for a server that runs.
pub struct LiveLoad<'a> {
    /// The clients or the command.
    pub source: &'a LoadSource,
    /// Number of clients.
    pub clients: u32,
}

/// The programs that run during an experiment. Dropping this ends them: the load first, because many servers wait for
/// their clients to leave.
#[derive(Default)]
pub struct Live {
    load: Option<RunningLoad>,
    server: Option<Started>,
}

/// Fields are dropped in their order.
struct Started {
    server: Server,
    _folder: tempfile::TempDir,
    _reaper: Reaper,
}

impl Live {
    /// Starts a server, waits until it is ready, and loads it. Children of this process that exist before live on; no
    /// others may run when this is dropped.
    ///
    /// # Errors
    /// [`ExperimentError`], which names the failed step.
    pub fn start(
        server: LiveServer<'_>,
        load: Option<LiveLoad<'_>>,
        limits: Limits<'_>,
    ) -> Result<Self, ExperimentError> {
        let conduct = Conduct::start(limits);
        let mut started = start(server, load.as_ref().map(|load| load.source), &conduct).map_err(explained)?;
        let place = started.server.place.clone();
        let load = load
            .map(|load| begin(&load, &place, limits))
            .transpose()
            .map_err(|why| explained(started.server.explained(Broken::Failed(why), &conduct)))?;
        Ok(Self { load, server: Some(started) })
    }

    /// Loads a server that runs already.
    ///
    /// # Errors
    /// [`ExperimentError`]: it does not answer.
    pub fn of_running(load: &LiveLoad<'_>, limits: Limits<'_>) -> Result<Self, ExperimentError> {
        let nowhere = ServerPlace { port: 0, folder: std::path::PathBuf::new() };
        let load = begin(load, &nowhere, limits).map_err(ExperimentError::Switch)?;
        Ok(Self { load: Some(load), server: None })
    }

    /// The process that was started.
    pub fn pid(&self) -> Option<i32> {
        self.server.as_ref().map(|started| started.server.pid())
    }

    /// The place of the started server.
    pub fn place(&self) -> Option<&ServerPlace> {
        self.server.as_ref().map(|started| &started.server.place)
    }

    /// The load, if there is one.
    pub fn load(&self) -> Option<&RunningLoad> {
        self.load.as_ref()
    }

    /// Checks that the server and the load still run.
    ///
    /// # Errors
    /// The one that has ended.
    pub fn check(&mut self) -> Result<(), String> {
        self.check_server()?;
        let Some(Err(why)) = self.load.as_ref().map(RunningLoad::check) else { return Ok(()) };
        // A connection breaks before the process is gone.
        std::thread::sleep(INTERRUPTION);
        self.check_server()?;
        Err(why)
    }

    fn check_server(&mut self) -> Result<(), String> {
        let Some(started) = &mut self.server else { return Ok(()) };
        started.server.check().map_err(|broken| explained(broken).to_string())
    }
}

fn begin(load: &LiveLoad<'_>, place: &ServerPlace, limits: Limits<'_>) -> Result<RunningLoad, String> {
    RunningLoad::start(load.source, load.clients, place, limits.time)
}

fn start(live: LiveServer<'_>, load: Option<&LoadSource>, conduct: &Conduct<'_>) -> Result<Started, Broken> {
    let reaper = Reaper::begin().map_err(|error| Broken::Failed(error.to_string()))?;
    let folder = tempfile::tempdir().map_err(Broken::Record)?;
    // Servers of other users get to their folders, and see nothing else.
    fs::set_permissions(folder.path(), Permissions::from_mode(0o711)).map_err(Broken::Record)?;
    let own = folder.path().join("0");
    fs::create_dir(&own).map_err(Broken::Record)?;
    let place = ServerPlace { port: free_ports(1)?[0], folder: own };
    if let Some(command) = live.prepare {
        shell("--prepare", &place.fill_in(command), conduct)?;
    }
    let mut server = Server::start(live.name, (live.command)(&place), place)?;
    let pid = server.pid();
    let is_seen = live.has_port || live.ready.is_some() || matches!(load, Some(LoadSource::Clients(_)));
    let mut rest = Rest::of(pid);
    server.wait_for(conduct, &mut |place, until| match is_seen {
        true => is_ready(live.ready, load, place, &|| conduct.is_interrupted() || Instant::now() > until),
        false => rest.look(),
    })?;
    if let Some(command) = live.fill {
        let filled = shell("--fill", &server.place.fill_in(command), conduct);
        filled.map_err(|broken| server.explained(broken, conduct))?;
    }
    Ok(Started { server, _folder: folder, _reaper: reaper })
}

fn explained(broken: Broken) -> ExperimentError {
    match broken {
        Broken::Failed(why) => ExperimentError::Switch(why),
        Broken::Interrupted => ExperimentError::Switch("interrupted before anything was measured".to_owned()),
        Broken::Record(error) => ExperimentError::Record(error),
    }
}

/// A check that a process has finished loading its objects.
struct Rest {
    pid: i32,
    seen: Vec<String>,
    since: Instant,
}

impl Rest {
    fn of(pid: i32) -> Self {
        Self { pid, seen: Vec::new(), since: Instant::now() }
    }

    fn look(&mut self) -> Result<(), String> {
        let maps = ProcessFiles::of(self.pid).text("maps").map_err(|error| error.to_string())?;
        let is_executable = |line: &&str| line.split(' ').nth(1).is_some_and(|protection| protection.contains('x'));
        let now: Vec<String> = maps.lines().filter(is_executable).map(str::to_owned).collect();
        if now.is_empty() || now != self.seen {
            (self.seen, self.since) = (now, Instant::now());
        }
        if self.since.elapsed() >= AT_REST { Ok(()) } else { Err("it still loads its objects".to_owned()) }
    }
}
