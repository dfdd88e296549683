//! The supervisor: scans, decides, starts one worker at a time, and keeps the state that survives it.
//!
//! It never changes a process itself. If it is killed, every program stays alive, and the next supervisor finds in the
//! ledger the processes that were lifted or about to be lifted.

mod action;
mod adoption;
mod budget;
mod checks;
mod ending;
mod examination;
mod exported;
mod exporter;
mod known;
mod ledger;
mod lift;
mod lost;
mod measuring;
mod pass;
mod restore;
mod round;
mod spawn;
mod status;
mod stuck;
mod stuck_workers;
mod switch;
#[cfg(test)]
mod tests;
mod turns;
mod waiting;

pub use action::{Action, Named};
pub use budget::CpuBudget;
pub use checks::LastChecks;
pub use exporter::MetricsPlaces;
pub use ledger::{Block, Counts, Entry, Ledger};
use restore::Retries;
pub use restore::{forget_ended, restore_all};
pub use spawn::{Ongoing, Patience, Worker, WorkerProcess};
pub use status::{LeftAlone, MeasuringNow, Status};
pub use stuck_workers::StuckWorker;
pub use switch::Switch;

use crate::decision::{Event, ExecutedFile, Identity, Order, Program, Progress, Reason, Refusal, State, VARIABLE};
use crate::discovery::{Machine, Sample, own_identity, own_line};
use crate::installation;
use crate::metrics::kernel::ShootdownCounter;
use crate::metrics::{Heard, Pauses};
use crate::rules::{Configuration, Stamp, read_folder};
use crate::worker::{LONGEST_WAIT, Request, has_no_worker};
use adoption::leave;
use examination::{Examined, Perform, examine};
use exporter::Exporter;
use known::Known;
use linux::exec_events::ExecEvents;
use linux::lock_file::{LockError, LockFile};
use machine_facts::System;
use measuring::{Measuring, settle_measured};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Name of the lock that a running agent holds.
const LOCK: &str = "agent.lock";
/// Interval at which a running measurement is checked.
const TICK: Duration = Duration::from_millis(500);
/// Jitter of the time between scans, so that a fleet does not scan at once.
const JITTER: f64 = 0.2;

/// Files of the agent.
#[derive(Clone, Debug)]
pub struct Paths {
    /// Folder of the configuration.
    pub config: PathBuf,
    /// Folder of the state.
    pub state: PathBuf,
    /// The kill switch.
    pub switch: PathBuf,
    /// Folder of the verdicts.
    pub verdicts: PathBuf,
    /// Places of metrics from the command line, which replace the settings.
    pub metrics: MetricsPlaces,
}

/// A message to a running agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Read the configuration again.
    Reload,
    /// End, and leave all lifts.
    Stop,
}

/// A process in the agent's memory.
#[derive(Debug, Default)]
struct Tracked {
    progress: Progress,
    file: Option<ExecutedFile>,
    program: Option<Program>,
    resident: Resident,
    /// CPU time at which other rules may be met.
    again_at: Option<Duration>,
    /// Reasons that were reported: each is reported once, however often reasons alternate.
    told: BTreeSet<Reason>,
    /// Its lift was planned in observe mode.
    is_observed: bool,
    /// CPU time at the last scan.
    used: Duration,
    /// Time of the last search for lost pages.
    looked: Option<Instant>,
    /// Its own measurement has shown that a lift pays.
    pays: bool,
    /// Why it is left alone, if that is by the verdict on its build.
    left: Option<Refusal>,
}

impl Tracked {
    /// True if the process executes another program now than the one that was judged. If that one could not be read, the judgement
    /// was about no program.
    fn is_another(&self, now: Option<ExecutedFile>) -> bool {
        match self.file {
            Some(known) => known.was_left_for(now),
            None => self.program.is_some() && self.progress.state == State::Ignored && now.is_some(),
        }
    }
}

/// The last resident size of a process, with the time of its reading. Scans that follow a lift at once do not count.
#[derive(Clone, Copy, Debug, Default)]
struct Resident(Option<(u64, Instant)>);

impl Resident {
    fn before(self, scan: Duration) -> Option<u64> {
        self.0.filter(|(_, at)| at.elapsed() >= scan / 2).map(|(bytes, _)| bytes)
    }

    fn read(&mut self, bytes: u64, scan: Duration) {
        if self.0.is_none_or(|(_, at)| at.elapsed() >= scan / 2) {
            self.0 = Some((bytes, Instant::now()));
        }
    }
}

/// The last scan.
#[derive(Clone, Copy, Debug)]
struct LastScan {
    begun: Instant,
    /// Time for reading all processes.
    time: Duration,
    /// CPU time of the agent itself, including the writes after the scan.
    cost: Duration,
    /// It was made while a worker was waited for.
    is_beside: bool,
    /// Time of the last attempt while a worker was waited for.
    tried_beside: Instant,
    /// CPU time of all attempts while workers were waited for.
    cost_beside: Duration,
}

impl LastScan {
    /// No scan so far.
    fn none() -> Self {
        let (now, zero) = (Instant::now(), Duration::ZERO);
        Self { begun: now, time: zero, cost: zero, is_beside: false, tried_beside: now, cost_beside: zero }
    }
}

/// A process that may be lifted.
struct Candidate {
    sample: Sample,
    named: Named,
    order: Order,
    cost: Duration,
}

/// A running agent.
pub struct Agent<'a> {
    paths: Paths,
    machine: Machine,
    configuration: Configuration,
    is_configuration_read: bool,
    /// The files that were read last.
    read: Stamp,
    /// The files at the last look.
    found: Stamp,
    /// Seconds since 1970 of the last reading that succeeded.
    configuration_read_at: f64,
    /// Variables of environments that rules name.
    variables: BTreeSet<String>,
    own: Identity,
    own_line: BTreeSet<i32>,
    ledger: Ledger,
    /// Metrics count from here on.
    counts_at_start: Counts,
    budget: CpuBudget,
    tracked: BTreeMap<Identity, Tracked>,
    recent: Vec<ending::Recent>,
    worker: Box<dyn Worker>,
    report: &'a mut dyn FnMut(&Action),
    switch: Switch,
    not_restored: Retries,
    /// Pauses of programs.
    pauses: Duration,
    pause_histogram: Pauses,
    exporter: Exporter,
    shootdowns: ShootdownCounter,
    known: Known,
    /// The last reading of the verdicts has failed, which is reported once.
    verdicts_failed: bool,
    measuring: Option<Measuring>,
    /// Workers that were killed and have not ended, as they were reported.
    stuck: Vec<StuckWorker>,
    /// A worker of an agent before has not ended.
    has_earlier_worker: bool,
    /// The process that a worker changes or reads at this moment: scans leave it alone.
    busy_with: Option<Identity>,
    /// Events of processes that execute a program, where the kernel reports them.
    exec_events: Option<ExecEvents>,
    heard: Heard,
    /// Time at which the budget was advanced last, and the CPU time spent until then.
    accounted: (Instant, Duration),
    last_scan: LastScan,
    _lock: LockFile,
}

/// Takes the lock of running agents.
///
/// # Errors
/// An agent runs, or the folder cannot be made.
pub fn lock_agent(state: &Path, most: Duration) -> io::Result<LockFile> {
    DirBuilder::new().recursive(true).mode(0o755).create(state)?;
    LockFile::take(File::open(state)?, LOCK, most).map_err(|error| match error {
        LockError::Held(_) => io::Error::new(
            io::ErrorKind::WouldBlock,
            format!("another agent runs with the state in {}", state.display()),
        ),
        LockError::OfAnotherUser(user) => {
            io::Error::other(format!("{LOCK} in {} belongs to user {user}", state.display()))
        }
        LockError::Refused(error) => error.into(),
    })
}

impl<'a> Agent<'a> {
    /// Reads the configuration and the state of an earlier agent.
    ///
    /// # Errors
    /// Another agent runs, or a file cannot be read or written.
    pub fn start(
        paths: Paths,
        configuration: Configuration,
        mut worker: Box<dyn Worker>,
        report: &'a mut dyn FnMut(&Action),
    ) -> io::Result<Self> {
        // The state is read before the slow part of the start, so that rules that change during it are read again.
        let read = Stamp::of(&paths.config);
        let lock = lock_agent(&paths.state, Duration::ZERO)?;
        let in_state =
            |error: io::Error| io::Error::new(error.kind(), format!("the state in {}: {error}", paths.state.display()));
        installation::mark(&paths.state, &[ledger::NAME, ledger::ASIDE, status::NAME]).map_err(in_state)?;
        let exporter = Exporter::start(&paths.metrics, &configuration.settings, &paths.verdicts)?;
        let machine = Machine::read(&System);
        let (mut ledger, aside) = Ledger::load_or_move_aside(&paths.state, &machine.boot).map_err(in_state)?;
        if let Some(what) = aside {
            report(&Action::Failed { what });
        }
        // The worker of a killed agent ends by itself, unless it is in an uninterruptible sleep.
        let beside = !has_no_worker(&paths.state, LONGEST_WAIT).map_err(io::Error::other)?;
        forget_ended(&mut ledger);
        let own = own_identity()?;
        let mut perform =
            |request: &Request| worker.perform(&Request { beside, ..request.clone() }, &mut || Patience::Wait);
        settle_interrupted(&mut ledger, &mut perform, &paths.state, own, report);
        settle_measured(&mut ledger, &mut perform, &paths.state, own, report);
        ledger.save(&paths.state)?;
        let (known, error) = Known::start(&paths.verdicts);
        if let Some(error) = &error {
            report(&Action::Failed { what: format!("the verdicts are not read: {error}") });
        }
        let tracked = ledger.lifts.iter().map(|entry| {
            let tracked = Tracked { progress: entry.progress, file: Some(entry.file), ..Tracked::default() };
            (entry.identity, tracked)
        });
        let mut agent = Self {
            machine,
            budget: CpuBudget::new(configuration.settings.cpu),
            variables: variables_of(&configuration),
            is_configuration_read: true,
            read,
            found: Stamp::default(),
            configuration_read_at: exported::seconds(),
            configuration,
            own,
            own_line: own_line(),
            tracked: tracked.collect(),
            counts_at_start: ledger.counts.clone(),
            ledger,
            recent: Vec::new(),
            worker,
            report,
            switch: Switch::Off,
            not_restored: Retries::default(),
            pauses: Duration::ZERO,
            pause_histogram: Pauses::default(),
            exporter,
            shootdowns: ShootdownCounter::default(),
            known,
            verdicts_failed: error.is_some(),
            measuring: None,
            stuck: Vec::new(),
            has_earlier_worker: beside,
            busy_with: None,
            exec_events: ExecEvents::subscribe().ok(),
            heard: Heard::default(),
            accounted: (Instant::now(), Duration::ZERO),
            last_scan: LastScan::none(),
            paths,
            _lock: lock,
        };
        agent.accounted.1 = agent.cpu_time();
        let started = Action::Started {
            mode: agent.configuration.settings.mode.to_string(),
            rules: agent.configuration.rules.len(),
            lifted: agent.number_lifted(),
        };
        // `agent stop` finds the agent from here on: the first scan may take minutes.
        agent.write_status()?;
        (agent.report)(&started);
        if beside {
            let what = "a worker of an agent before does not end; nothing is lifted until it ends".to_owned();
            (agent.report)(&Action::Failed { what });
        }
        Ok(agent)
    }

    /// Runs until [`Message::Stop`]. Lifts stay.
    ///
    /// # Errors
    /// The state cannot be written, so that nothing more may be lifted.
    pub fn run(&mut self, messages: &Receiver<Message>) -> io::Result<()> {
        loop {
            let (begin, before) = (Instant::now(), used_by(UsageWho::RUSAGE_SELF));
            let has_worked = self.round()?;
            self.write_status()?;
            self.publish();
            if self.last_scan.begun >= begin && !self.last_scan.is_beside {
                self.last_scan.cost = used_by(UsageWho::RUSAGE_SELF).saturating_sub(before);
            }
            let wait = if has_worked { Duration::ZERO } else { self.interval().saturating_sub(begin.elapsed()) };
            match self.wait(messages, wait)? {
                Ok(Message::Reload) => self.reload(),
                Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) if has_worked => {}
                Err(RecvTimeoutError::Timeout) => self.follow_files(),
            }
        }
        self.end_measuring()?;
        self.ledger.save(&self.paths.state)?;
        let stopped = Action::Stopped { lifted: self.number_lifted() };
        (self.report)(&stopped);
        Ok(())
    }

    /// Waits for a message, and looks after the measurement meanwhile. The time is over when the measurement has ended.
    fn wait(&mut self, messages: &Receiver<Message>, time: Duration) -> io::Result<Result<Message, RecvTimeoutError>> {
        let begin = Instant::now();
        loop {
            let left = time.saturating_sub(begin.elapsed());
            let is_measuring = self.measuring.is_some();
            let heard = messages.recv_timeout(if is_measuring { left.min(TICK) } else { left });
            if heard != Err(RecvTimeoutError::Timeout) || left.is_zero() || self.follow_measuring()? {
                return Ok(heard);
            }
            if !is_measuring {
                return Ok(heard);
            }
        }
    }

    fn number_lifted(&self) -> usize {
        self.ledger.lifts.iter().filter(|entry| entry.progress.state == State::Kept).count()
    }

    fn interval(&self) -> Duration {
        self.configuration.settings.scan.mul_f64(1.0 + JITTER * (2.0 * fastrand::f64() - 1.0))
    }

    /// Reads the configuration again if its files have changed, and have been the same for a scan: an editor may still be writing.
    fn follow_files(&mut self) {
        let now = Stamp::of(&self.paths.config);
        if now != self.read && now == self.found {
            self.reload();
        }
        self.found = now;
    }

    fn reload(&mut self) {
        self.read = Stamp::of(&self.paths.config);
        self.stop_measuring();
        match read_folder(&self.paths.config) {
            Ok(configuration) => {
                self.variables = variables_of(&configuration);
                self.budget.set(configuration.settings.cpu);
                self.configuration = configuration;
                (self.is_configuration_read, self.configuration_read_at) = (true, exported::seconds());
                if let Err(error) = self.exporter.change(&self.configuration.settings) {
                    (self.report)(&Action::Failed { what: error.to_string() });
                }
                for tracked in self.tracked.values_mut() {
                    tracked.progress = tracked.progress.after(Event::Reconfigured);
                    (tracked.program, tracked.again_at) = (None, None);
                    tracked.told.clear();
                    // The store has the measurement under the options of its rule.
                    (tracked.is_observed, tracked.pays) = (false, false);
                }
                (self.report)(&Action::Reloaded { rules: self.configuration.rules.len() });
            }
            Err(errors) => {
                self.is_configuration_read = false;
                let first_line = |error: String| error.lines().next().unwrap_or_default().to_owned();
                let errors = errors.iter().map(|error| first_line(error.to_string())).collect();
                (self.report)(&Action::NotReloaded { errors });
            }
        }
    }

    /// Reads the kill switch, and undoes all lifts on [`Switch::Restore`].
    fn follow_switch(&mut self) -> io::Result<()> {
        if self.read_switch() != Switch::Restore {
            return Ok(());
        }
        self.end_measuring()?;
        self.undo_all("the kill switch")
    }

    /// Reads the kill switch, and reports a change.
    fn read_switch(&mut self) -> Switch {
        let switch = Switch::read(&self.paths.switch);
        if switch != self.switch {
            self.switch = switch;
            self.not_restored.keep(|_| false);
            (self.report)(&Action::Switch { state: switch.words() });
        }
        switch
    }

    /// CPU time of the agent and its workers, with the pauses of programs.
    fn cpu_time(&self) -> Duration {
        let measuring = self.measuring.as_ref().map_or(Duration::ZERO, Measuring::cpu);
        self.pauses + used_by(UsageWho::RUSAGE_SELF) + used_by(UsageWho::RUSAGE_CHILDREN) + measuring
    }

    fn advance_budget(&mut self) {
        let (at, spent) = self.accounted;
        let (now, cpu) = (Instant::now(), self.cpu_time());
        self.budget.advance(now.duration_since(at), cpu.saturating_sub(spent));
        // A measurement that has ended shows no CPU time until it was waited for, and then its whole time again.
        self.accounted = (now, cpu.max(spent));
    }

    /// The state at this moment.
    pub fn status(&self) -> Status {
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Status {
            version: status::VERSION,
            agent: self.own,
            mode: self.configuration.settings.mode.to_string(),
            rules: self.configuration.rules.len(),
            configuration_is_read: self.is_configuration_read,
            switch: self.switch.words().to_owned(),
            scanned: unix_time(),
            scan_microseconds: u64::try_from(self.last_scan.time.as_micros()).unwrap_or(u64::MAX),
            processes: self.states(),
            cpu_milliseconds: milliseconds(self.cpu_time()),
            budget_milliseconds: milliseconds(self.budget.left()),
            counts: self.ledger.counts.clone(),
            measuring: self.measuring.as_ref().map(|measuring| {
                let (named, blocks) = measuring.progress();
                MeasuringNow { program: named.program.clone(), process: named.identity, blocks }
            }),
            left_alone: self.left_alone(),
            stuck: self.stuck.clone(),
        }
    }

    /// Processes that verdicts leave plain.
    fn left_alone(&self) -> Vec<LeftAlone> {
        let left = self.tracked.iter().filter_map(|(&process, tracked)| {
            let program = tracked.program.as_ref()?.shown_name().to_owned();
            Some(LeftAlone { program, process, why: tracked.left.as_ref()?.text.clone() })
        });
        left.take(status::MOST_LEFT_ALONE).collect()
    }

    fn write_status(&self) -> io::Result<()> {
        ledger::replace(&self.paths.state, status::NAME, &self.status())
    }
}

/// Examines processes that a killed agent was lifting. They are not lifted again.
fn settle_interrupted(
    ledger: &mut Ledger,
    perform: &mut Perform<'_>,
    state: &Path,
    own: Identity,
    report: &mut dyn FnMut(&Action),
) {
    let is_begun = |entry: &&Entry| entry.progress.state == State::Lifting;
    let interrupted: Vec<Entry> = ledger.lifts.iter().filter(is_begun).cloned().collect();
    for entry in interrupted {
        let (named, identity) = (entry.named(), entry.identity);
        match examine(entry, perform, state, own) {
            Examined::Gone => {
                leave(ledger, |entry| entry.identity == identity);
            }
            Examined::Entry(entry) => {
                report(&match &entry.refusal {
                    Some(why) if entry.progress.state == State::Lifting => {
                        Action::Failed { what: format!("{named} was being lifted when the agent ended: {why}") }
                    }
                    _ => Action::Interrupted { named, bytes: entry.covered },
                });
                ledger.put(*entry);
            }
        }
    }
}

fn variables_of(configuration: &Configuration) -> BTreeSet<String> {
    let named = configuration.rules.iter().filter_map(|rule| Some(rule.conditions.env.as_ref()?.name.clone()));
    named.chain([VARIABLE.to_owned()]).collect()
}

/// CPU time of the agent itself, or of the workers that have ended.
fn used_by(who: UsageWho) -> Duration {
    let of = |time: TimeVal| {
        Duration::from_secs(time.tv_sec().max(0) as u64) + Duration::from_micros(time.tv_usec().max(0) as u64)
    };
    getrusage(who).map_or(Duration::ZERO, |usage| of(usage.user_time()) + of(usage.system_time()))
}

/// Seconds since 1970.
fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
