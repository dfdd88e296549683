//! Servers side by side: a plain one, one of each arm, and a second plain one as the control. The load goes to one at a time,
//! in mirrored random blocks of bursts, as windows of a live program do.
//!
//! Two processes of the same program differ for as long as they live, by the places of their pages. Therefore all servers are
//! started several times, in another order each time, and the interval is taken over the starts. Servers of the same command
//! exchange their folders at each start: files differ by their places on the disk and in the page cache.

pub mod live;
mod load;
mod place;
mod port;
mod server;

pub use load::{Bursts, ClientLoad, LoadSource, Metric, RunningLoad};
pub use place::{ServerPlace, words_of};

use crate::ExperimentError;
use crate::conduct::{Conduct, Limits, Progress};
use crate::observation::{between, look_at};
use crate::record::Recorder;
use crate::retry::pauses;
use crate::toggle::latencies_of_all;
use crate::tree;
use crate::walks::{Meter, WalkTally};
use crate::whole_runs::lift_in;
use address_space::counted;
use descendants::Earlier;
use load::{Broken, Burst, OpenLoad, end_of, last_words, run as run_shell};
use measure::latency::Latency;
use measure::record::{Counters, Ended, Event, Header, Lift, Observation, Record, TimedBlock};
use measure::schedule::Schedule;
use measure::toggle::{Block, Blocks, Measured, Treatment, WINDOWS, Window};
use port::port_is_of;
use server::Server;
use std::fs::{self, File, Permissions};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use translation::walk_counters::Target;

/// Makes the command of a server: of an arm, or a plain one for `None`. A lifted server may write its report to the
/// path.
pub type MakeServer<'a> = dyn FnMut(Option<usize>, &Path, &ServerPlace) -> Command + 'a;

/// The subject and the method of the comparison.
pub struct Servers<'a> {
    /// Makes their commands.
    pub command: &'a mut MakeServer<'a>,
    /// Their load.
    pub load: &'a LoadSource,
    /// Connections of a load of this process.
    pub clients: u32,
    /// Lengths of bursts.
    pub bursts: Bursts,
    /// Number of starts of all servers.
    pub starts: u32,
    /// For each arm: its server runs the plain command, so that it may use the folder of another such server.
    pub runs_plain_command: &'a [bool],
    /// A shell command before the first start of each.
    pub prepare: Option<&'a str>,
    /// A shell command after each start, once the server is ready.
    pub fill: Option<&'a str>,
    /// A shell command that succeeds once the server is ready.
    pub ready: Option<&'a str>,
}

/// Runs blocks until an end is reached, and ends all servers. A failure also ends it: the measurements so far are kept.
/// Children of this process that exist before live on; no others may run at the end.
///
/// # Errors
/// [`ExperimentError`] if nothing can be prepared, or the record cannot be written.
pub fn run(
    servers: Servers<'_>,
    header: Header,
    limits: Limits<'_>,
    file: Option<File>,
    tell: &mut dyn FnMut(&Progress<'_>),
) -> Result<Record, ExperimentError> {
    let _reaper = Reaper::begin()?;
    let folder = tempfile::tempdir().map_err(ExperimentError::Record)?;
    // Servers of other users get to their folders, and see nothing else.
    fs::set_permissions(folder.path(), Permissions::from_mode(0o711)).map_err(ExperimentError::Record)?;
    let blocks = Blocks::of_servers(header.arms.len(), header.seed);
    let order = Schedule::new(header.arms.len() + 2, header.seed);
    let exchangeable = exchangeable(servers.runs_plain_command);
    let places = Schedule::new(exchangeable.len(), header.seed.wrapping_add(1));
    let recorder = Recorder::new(header, file).map_err(ExperimentError::Record)?;
    let conduct = Conduct::start(limits);
    let tally = WalkTally::of(&recorder.record().header);
    let mut experiment = Experiment {
        tally,
        servers,
        conduct,
        limits,
        recorder,
        folder: folder.path().to_owned(),
        blocks,
        order,
        exchangeable,
        places,
        failure: None,
    };
    let ended = match experiment.all_starts(tell) {
        Ok(ended) => ended,
        Err(Broken::Interrupted) => Ended::Interrupted,
        Err(Broken::Failed(why)) => Ended::Failed(why),
        Err(Broken::Record(error)) => return Err(ExperimentError::Record(error)),
    };
    for walks in experiment.tally.events() {
        experiment.recorder.add(walks).map_err(ExperimentError::Record)?;
    }
    experiment.recorder.add(Event::End(ended)).map_err(ExperimentError::Record)?;
    Ok(experiment.recorder.finish())
}

/// Makes this process the parent of its descendants' orphans, so that no process is left running.
struct Reaper {
    /// The processes that it does not end.
    earlier: Earlier,
}

impl Reaper {
    /// Time that killed processes may take to end.
    const TO_END: Duration = Duration::from_secs(20);

    fn begin() -> Result<Self, ExperimentError> {
        let set = nix::sys::prctl::set_child_subreaper(true);
        set.map_err(|error| ExperimentError::Switch(format!("this process cannot become a subreaper: {error}")))?;
        Ok(Self { earlier: Earlier::now() })
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        if let Err(left) = self.earlier.end_later(Self::TO_END) {
            let left = counted(left as u64, "process");
            eprintln!("pagelift: note: {left} that the servers or the load have started cannot be ended");
        }
        let _ = nix::sys::prctl::set_child_subreaper(false);
    }
}

/// The windows of a block, and the other measurements of each window.
struct Windows {
    windows: [Window; WINDOWS],
    counters: [Counters; WINDOWS],
    latencies: [Option<Latency>; WINDOWS],
}

/// The servers of one start. In order: plain, the arms, plain again.
type Started<'a> = Vec<Loaded<'a>>;

/// A server that is ready, and its load. Fields are dropped in their order: many servers wait for their clients to go.
struct Loaded<'a> {
    load: OpenLoad<'a>,
    server: Server,
    lift: Option<Lift>,
    /// Meters of the processes that exist once it is ready, and of their descendants.
    meters: Vec<Meter>,
}

struct Experiment<'s, 'l> {
    servers: Servers<'s>,
    conduct: Conduct<'l>,
    limits: Limits<'l>,
    recorder: Recorder,
    folder: PathBuf,
    blocks: Blocks,
    /// The order in which servers are started, and the reverse, in which they are warmed up.
    order: Schedule,
    /// The servers that exchange their folders, and in which order they get them at a start.
    exchangeable: Vec<usize>,
    places: Schedule,
    tally: WalkTally,
    /// Why the first try of a lift since the last block failed, if a later one did not.
    failure: Option<String>,
}

impl Experiment<'_, '_> {
    fn all_starts(&mut self, tell: &mut dyn FnMut(&Progress<'_>)) -> Result<Ended, Broken> {
        let names = self.names();
        let folders = self.prepared(&names)?;
        for start in 0..self.servers.starts {
            // Time that the last starts took more is taken from this one's, not from the end.
            let until = self.limits.time.mul_f64(f64::from(start + 1) / f64::from(self.servers.starts));
            let load = self.servers.load;
            let folders = exchanged(&folders, &self.exchangeable, &self.places.next_round());
            let mut started = self.start(&names, &folders, load)?;
            self.look(&started, start == 0)?;
            self.warm_up(&mut started)?;
            if let Some(ended) = self.blocks_of(start, until, &mut started, tell)? {
                return Ok(ended);
            }
        }
        Ok(Ended::TimeIsUp)
    }

    fn names(&self) -> Vec<String> {
        let arms = &self.recorder.record().header.arms;
        ["plain".to_owned()].into_iter().chain(arms.iter().cloned()).chain(["plain, second".to_owned()]).collect()
    }

    fn arm_of(&self, server: usize) -> Option<usize> {
        (1..=self.recorder.record().header.arms.len()).contains(&server).then(|| server - 1)
    }

    /// A folder for each server, in which the user's command has been.
    fn prepared(&self, names: &[String]) -> Result<Vec<PathBuf>, Broken> {
        let mut folders = Vec::new();
        for (number, name) in names.iter().enumerate() {
            let folder = self.folder.join(number.to_string());
            fs::create_dir(&folder).map_err(|error| Broken::Failed(format!("{}: {error}", folder.display())))?;
            if let Some(command) = self.servers.prepare {
                let place = ServerPlace { port: free_ports(1)?[0], folder: folder.clone() };
                shell(&format!("--prepare for the server {name}"), &place.fill_in(command), &self.conduct)?;
            }
            folders.push(folder);
        }
        Ok(folders)
    }

    /// Starts all, in a random order, and connects the load to each once it is ready.
    fn start<'a>(
        &mut self,
        names: &[String],
        folders: &[PathBuf],
        source: &'a LoadSource,
    ) -> Result<Started<'a>, Broken> {
        let ports = free_ports(names.len() * (1 + pauses().count()))?;
        let mut started: Vec<Option<Loaded<'a>>> = names.iter().map(|_| None).collect();
        for number in self.order.next_round() {
            let ports = ports.iter().skip(number).step_by(names.len());
            let places = ports.map(|&port| ServerPlace { port, folder: folders[number].clone() });
            let (server, lift) = self.start_lifted(number, &names[number], places, source)?;
            started[number] = Some(self.loaded(server, lift, source)?);
        }
        Ok(started.into_iter().flatten().collect())
    }

    /// Starts a server. If its lift failed in all ranges, it is started again at the next place: huge pages can become free.
    fn start_lifted(
        &mut self,
        number: usize,
        name: &str,
        places: impl Iterator<Item = ServerPlace>,
        source: &LoadSource,
    ) -> Result<(Server, Option<Lift>), Broken> {
        let (arm, report) = (self.arm_of(number), self.report_of(number));
        let (mut pauses, mut first) = (pauses(), None);
        for place in places {
            fs::remove_file(&report).ok();
            let command = (self.servers.command)(arm, &report, &place);
            let server = self.start_one(name, command, place, source)?;
            let lift = lift_in(&report);
            let why = lift.as_ref().and_then(Lift::failed_for_now).filter(|_| arm.is_some());
            let Some(why) = why else {
                self.failure = self.failure.take().or(first);
                return Ok((server, lift));
            };
            let Some(pause) = pauses.next() else { return Ok((server, lift)) };
            first = first.or(Some(why));
            drop(server);
            if !self.conduct.wait(pause) {
                return Err(Broken::Interrupted);
            }
        }
        Err(Broken::Failed(format!("the server {name}: no port is left")))
    }

    /// Starts a command and waits until the server is ready.
    fn start_one(
        &self,
        name: &str,
        command: Command,
        place: ServerPlace,
        source: &LoadSource,
    ) -> Result<Server, Broken> {
        let mut server = Server::start(name, command, place)?;
        let (ready, conduct) = (self.servers.ready, &self.conduct);
        server.wait_for(conduct, &mut |place, until| {
            is_ready(ready, Some(source), place, &|| conduct.is_interrupted() || Instant::now() > until)
        })?;
        // Between the search for a free port and the start of the server another user may have taken it.
        port_is_of(server.place.port, server.pid()).map_err(|why| Broken::Failed(format!("{}: {why}", server.name)))?;
        Ok(server)
    }

    /// Fills a server that is ready, and connects its load.
    fn loaded<'a>(
        &mut self,
        mut server: Server,
        lift: Option<Lift>,
        source: &'a LoadSource,
    ) -> Result<Loaded<'a>, Broken> {
        if let Some(command) = self.servers.fill {
            let what = format!("--fill for the server {}", server.name);
            let filled = shell(&what, &server.place.fill_in(command), &self.conduct);
            filled.map_err(|broken| server.explained(broken, &self.conduct))?;
        }
        let open = source.open(self.servers.clients, self.servers.bursts, &server.place);
        let load = open.map_err(|broken| server.explained(broken, &self.conduct))?;
        Ok(Loaded { load, meters: self.meters(server.pid()), lift, server })
    }

    fn meters(&mut self, pid: i32) -> Vec<Meter> {
        if !self.recorder.record().header.counters {
            return Vec::new();
        }
        let tree = tree::tree_of(pid).into_iter();
        tree.map(|pid| self.tally.meter(Target::ProcessWithChildren(pid))).collect()
    }

    fn report_of(&self, server: usize) -> PathBuf {
        self.folder.join(format!("report-{server}"))
    }

    /// Looks at the plain server and at each arm's; after the first start only at those that lifted nothing, unlike before. An
    /// arm that lifted nothing is left out.
    fn look(&mut self, started: &Started<'_>, is_first: bool) -> Result<(), Broken> {
        let mut nothing = Vec::new();
        for (number, Loaded { server, lift, .. }) in started.iter().enumerate().take(started.len() - 1) {
            let (arm, lift) = (self.arm_of(number), lift.clone());
            let why = lift.as_ref().and_then(Lift::nothing);
            let is_news =
                || why.is_some() && arm.is_some_and(|arm| self.recorder.record().lifted_nothing(arm).is_none());
            if !is_first && !is_news() {
                continue;
            }
            let seen = look_at(server.pid());
            if seen.is_some() || why.is_some() {
                let at = self.conduct.elapsed().as_secs_f64();
                let seen = Observation { arm, at, lift, ..seen.unwrap_or_default() };
                self.recorder.add(Event::Observed(Box::new(seen))).map_err(Broken::Record)?;
            }
            let Some((arm, why)) = arm.zip(why) else { continue };
            // The report of a lift does not contain the heap.
            if self.recorder.record().has_heap(arm) {
                continue;
            }
            nothing.push(format!("no memory of the server {} was lifted: {why}", server.name));
            if !self.blocks.leave_out(arm) {
                return Err(Broken::Failed(nothing.join("; ")));
            }
        }
        Ok(())
    }

    /// A burst for each server that does not count.
    fn warm_up(&mut self, started: &mut Started<'_>) -> Result<(), Broken> {
        let order = self.order.next_round();
        order.into_iter().try_for_each(|number| burst(&mut started[number], &self.conduct).map(drop))
    }

    /// Blocks of one start, at least one of each kind.
    fn blocks_of(
        &mut self,
        start: u32,
        until: Duration,
        started: &mut Started<'_>,
        tell: &mut dyn FnMut(&Progress<'_>),
    ) -> Result<Option<Ended>, Broken> {
        let least = self.blocks.round();
        let is_last = start + 1 == self.servers.starts;
        for number in 1.. {
            let Some(block) = self.blocks.next() else { break };
            let done = self.windows(block, started)?;
            let measured = Measured { block, start, windows: done.windows };
            let at = Some(self.conduct.elapsed().as_secs_f64());
            let block = TimedBlock {
                measured,
                at,
                counters: Some(done.counters),
                switches: None,
                latency: latencies_of_all(done.latencies),
                retried: self.failure.take(),
                unlifted: None,
                unchecked: false,
            };
            self.recorder.add(Event::Block(Box::new(block))).map_err(Broken::Record)?;
            let ended = self.conduct.after_block(&self.recorder, tell);
            match ended {
                Some(Ended::Interrupted | Ended::Resolved) => return Ok(ended),
                Some(Ended::TimeIsUp) if self.recorder.is_full() || is_last && number >= least => return Ok(ended),
                _ => {}
            }
            if !is_last && number >= least && self.conduct.elapsed() >= until {
                break;
            }
        }
        Ok(None)
    }

    fn windows(&mut self, block: Block, started: &mut Started<'_>) -> Result<Windows, Broken> {
        let mut windows = [Window { work: 0.0, cpu: 0.0, wall: 0.0, cycles: 0.0 }; WINDOWS];
        let (mut counters, mut latencies) = ([Counters::default(); WINDOWS], [None; WINDOWS]);
        let last = started.len() - 1;
        for (number, treated) in block.treated().into_iter().enumerate() {
            let loaded = &mut started[server_of(block, treated, last)];
            let before: Vec<_> = loaded.meters.iter_mut().map(Meter::read).collect();
            let burst = burst(loaded, &self.conduct)?;
            let arm = block.treatment.arm().filter(|_| treated);
            for (meter, before) in loaded.meters.iter_mut().zip(before) {
                self.tally.add(arm, &before, &meter.read());
            }
            let wall = (burst.to.at - burst.from.at).as_secs_f64();
            windows[number] = Window { work: burst.work, cpu: burst.to.cpu - burst.from.cpu, wall, cycles: 0.0 };
            counters[number] = between(burst.from.counters, burst.to.counters);
            latencies[number] = burst.latency;
        }
        Ok(Windows { windows, counters, latencies })
    }
}

fn burst(Loaded { load, server, .. }: &mut Loaded<'_>, conduct: &Conduct<'_>) -> Result<Burst, Broken> {
    server.check()?;
    let burst = load.burst(&server.place, conduct, &mut || server.reading());
    burst.map_err(|broken| server.explained(broken, conduct))
}

/// The server for a burst, among those from 0, plain, to `last`, plain too.
fn server_of(block: Block, treated: bool, last: usize) -> usize {
    match (block.treatment, treated) {
        (_, false) => {
            if block.second_plain {
                last
            } else {
                0
            }
        }
        (Treatment::Arm(arm), true) => arm + 1,
        (Treatment::Control, true) => last,
    }
}

/// The servers that run the plain command.
fn exchangeable(arms: &[bool]) -> Vec<usize> {
    let lifted = arms.iter().zip(1..).filter_map(|(is, server)| is.then_some(server));
    [0].into_iter().chain(lifted).chain([arms.len() + 1]).collect()
}

/// The folder of each server. The exchangeable servers get each other's folders in this order.
fn exchanged(folders: &[PathBuf], exchangeable: &[usize], order: &[usize]) -> Vec<PathBuf> {
    let mut exchanged = folders.to_vec();
    for (&server, &other) in exchangeable.iter().zip(order) {
        exchanged[server] = folders[exchangeable[other]].clone();
    }
    exchanged
}

/// Runs a shell command of the user.
fn shell(what: &str, command: &str, conduct: &Conduct<'_>) -> Result<(), Broken> {
    let failed = |why: String| Broken::Failed(format!("{what} failed: {why}"));
    let output = tempfile::tempfile().map_err(|error| failed(error.to_string()))?;
    let status = run_shell(command, &output, &|| conduct.is_interrupted())?;
    if status.success() {
        return Ok(());
    }
    let said = end_of(&output).map_err(|error| failed(error.to_string()))?;
    Err(failed(format!("{status}; it printed last: {}", last_words(&said))))
}

fn is_ready(
    ready: Option<&str>,
    load: Option<&LoadSource>,
    place: &ServerPlace,
    is_over: &dyn Fn() -> bool,
) -> Result<(), String> {
    if let Some(command) = ready {
        let command = place.fill_in(command);
        // Its output on the way is relevant only if it never succeeds.
        let output = tempfile::tempfile().map_err(|error| error.to_string())?;
        let status = match run_shell(&command, &output, is_over) {
            Ok(status) if status.success() => return Ok(()),
            Ok(status) => status.to_string(),
            Err(Broken::Interrupted) => "it does not end".to_owned(),
            Err(Broken::Failed(why)) => why,
            Err(Broken::Record(error)) => error.to_string(),
        };
        let said = end_of(&output).map_or_else(|error| error.to_string(), |text| last_words(&text));
        return Err(format!("{command}: {status}; it printed last: {said}"));
    }
    load.and_then(|load| load.is_ready(place)).unwrap_or_else(|| {
        let address = (Ipv4Addr::LOCALHOST, place.port);
        TcpStream::connect(address).map(drop).map_err(|error| format!("127.0.0.1:{}: {error}", place.port))
    })
}

/// Ports that are free now, all different.
fn free_ports(count: usize) -> Result<Vec<u16>, Broken> {
    let failed = |error: std::io::Error| Broken::Failed(format!("no port is free: {error}"));
    let bind = |_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let held = (0..count).map(bind).collect::<Result<Vec<_>, _>>().map_err(failed)?;
    held.iter().map(|listener| Ok(listener.local_addr().map_err(failed)?.port())).collect()
}

#[cfg(test)]
mod tests;
