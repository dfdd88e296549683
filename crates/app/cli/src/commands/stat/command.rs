//! A command, from its start to its end or for a time, once or several times.

use super::counters::Counters;
use super::process::coverage;
use super::rounds::{Rounds, Watch};
use super::{Outcome, Report, StatArgs, VERSION};
use crate::commands::probe::known_reach;
use crate::say;
use crate::signals::not_ignored;
use confinement::{Reads, confine};
use linux::ended::wait_until_ended;
use linux::process_handle::ProcessHandle;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, kill};
use nix::sys::time::TimeValLike;
use nix::unistd::{Pid, getpgrp, tcgetpgrp};
use process_view::coverage::Usage;
use process_view::{Activity, printable};
use session::{named_below, process_name_in_time};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{self, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use translation::walk_counters::Target;

const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;
/// As in shells: a higher status means a signal.
const BY_SIGNAL: i32 = 128;
/// The time of the first observation of a command's memory: it has loaded its libraries then. Each later one is twice
/// as late. If the total time is shorter than twice this, the first is in its middle.
const FIRST_LOOK: Duration = Duration::from_millis(200);

/// The interval between searches for a process by its name.
const SEARCH: Duration = Duration::from_millis(20);

/// The signals that are forwarded to the command.
const FORWARDED: [i32; 6] = [SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2];

/// The outcome of one run.
pub struct Ran {
    /// The measurement; `None` if the command could not be started, which has been reported.
    pub report: Option<Report>,
    /// Its end.
    pub end: End,
}

/// The end of a run.
pub enum End {
    /// It has ended, with this status.
    Status(u8),
    /// The time to measure was up before.
    Running(Started),
}

impl End {
    /// Waits for it. Returns the status.
    pub fn wait(self) -> io::Result<u8> {
        match self {
            Self::Status(status) => Ok(status),
            Self::Running(command) => command.wait(),
        }
    }
}

/// A command that was started.
pub struct Started {
    child: Child,
    receiver: Arc<Mutex<Receiver>>,
}

impl Started {
    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Waits for the command's end, for this time at most. Returns true if it still runs.
    fn outlasts(&self, time: Duration) -> bool {
        ProcessHandle::open(self.pid()).is_ok_and(|handle| !handle.ends_within(time))
    }

    fn wait(mut self) -> io::Result<u8> {
        // Its number is its own until it is waited for.
        let _ = wait_until_ended(Pid::from_raw(self.pid()));
        locked(&self.receiver).pid = None;
        self.child.wait().map(status_of)
    }
}

fn locked(receiver: &Mutex<Receiver>) -> MutexGuard<'_, Receiver> {
    receiver.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs of a command, one after the other. Signals to this process are forwarded to the running command.
pub struct Runs {
    signals: Option<Signals>,
    receiver: Arc<Mutex<Receiver>>,
}

/// The receiver of a signal.
#[derive(Default)]
struct Receiver {
    /// The command that runs.
    pid: Option<Pid>,
    /// A signal that came while none ran.
    waiting: Option<Signal>,
    /// True once a signal has come that ends programs.
    told_to_end: bool,
}

impl Runs {
    /// Takes over the signals, before a command starts: one that comes at once is the command's, too.
    pub fn prepare() -> io::Result<Self> {
        Ok(Self { signals: Some(Signals::new(not_ignored(&FORWARDED))?), receiver: Arc::default() })
    }

    /// True once a signal has come that ends programs: nothing more should be started.
    pub fn is_told_to_end(&self) -> bool {
        locked(&self.receiver).told_to_end
    }

    /// Runs a command and measures it until it ends, or for the time in `args`. `words` start the command of `args`.
    pub fn measure(&mut self, words: &[OsString], args: &StatArgs) -> io::Result<Ran> {
        // Without these options the report is text on standard error.
        let reach = known_reach(args.output.is_none() && !args.json);
        let before = activity();
        // This thread starts the command, which inherits the counters.
        let counters = Counters::start(Target::Children);
        let start = Instant::now();
        let command = match self.start(words) {
            Ok(command) => command,
            Err(status) => return Ok(Ran { report: None, end: End::Status(status) }),
        };
        let pid = command.pid();
        let (ended, end) = channel();
        let (limit, stall) = (args.time, args.stall);
        let subject = Subject { root: pid, only: args.only.clone() };
        let looking = thread::spawn(move || look(&subject, stall, limit, &end));
        let end = match limit {
            Some(limit) if command.outlasts(limit.saturating_sub(start.elapsed())) => End::Running(command),
            _ => End::Status(command.wait()?),
        };
        let seconds = start.elapsed().as_secs_f64();
        let page_walks = counters.finish();
        let activity = match end {
            End::Running(_) => Activity::of_tree(pid).map_err(|error| error.to_string()),
            End::Status(_) => {
                before.and_then(|before| Ok(activity()?.since(&before))).map_err(|error| error.to_string())
            }
        };
        let at_limit = (matches!(end, End::Running(_)) && args.only.is_empty()).then(|| coverage(pid));
        drop(ended);
        let Seen { watch, usage, named } = looking.join().unwrap_or_else(|_| Seen::nothing(&args.only));
        let coverage = at_limit.filter(|usage| matches!(usage, Outcome::Measured(_))).unwrap_or(usage);
        let is_early = limit.is_some() && matches!(end, End::Status(_));
        let report = Report {
            version: VERSION,
            what: shortened(&args.command),
            pid: Some(pid),
            memory_of: named,
            seconds,
            ended_early: is_early.then(|| "the command ended".to_owned()),
            activity: activity.map_or_else(Outcome::NotMeasured, Outcome::Measured),
            coverage: Some(coverage),
            page_walks,
            estimated: None,
            marks: Some(watch.map_or_else(|| too_soon(&args.only), |watch| watch.finish(&reach))),
            tlb: reach,
        };
        Ok(Ran { report: Some(report), end })
    }

    /// Starts a command, or prints why it cannot be started and returns the corresponding status.
    fn start(&mut self, words: &[OsString]) -> Result<Started, u8> {
        match Command::new(&words[0]).args(&words[1..]).spawn() {
            Ok(child) => {
                let command = Started { child, receiver: self.receiver.clone() };
                self.forward_to(Pid::from_raw(command.pid()));
                Ok(command)
            }
            Err(error) => {
                let what = printable(&words[0].to_string_lossy());
                say!("pagelift: {what} cannot be executed: {error}");
                Err(if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE })
            }
        }
    }

    fn forward_to(&mut self, pid: Pid) {
        let mut receiver = locked(&self.receiver);
        receiver.pid = Some(pid);
        if let Some(signal) = receiver.waiting.take() {
            let _ = kill(pid, signal);
        }
        drop(receiver);
        if let Some(signals) = self.signals.take() {
            let receiver = self.receiver.clone();
            thread::spawn(move || forward(signals, &receiver));
        }
    }
}

/// The command, shortened for a heading.
fn shortened(words: &[OsString]) -> String {
    const LONGEST: usize = 60;
    let all = words.iter().map(|word| printable(&word.to_string_lossy())).collect::<Vec<_>>().join(" ");
    if all.chars().count() <= LONGEST {
        return all;
    }
    all.chars().take(LONGEST - 1).chain(['…']).collect()
}

fn too_soon<T>(only: &[String]) -> Outcome<T> {
    let milliseconds = FIRST_LOOK.as_millis();
    Outcome::NotMeasured(match only {
        [] => format!("the command ended within {milliseconds} ms"),
        only => format!("no program named {} was seen for {milliseconds} ms", only.join(" or ")),
    })
}

/// The process to examine: the command, or its first descendant whose name is listed.
struct Subject {
    root: i32,
    only: Vec<String>,
}

impl Subject {
    fn find(&self) -> Option<i32> {
        if self.only.is_empty() { Some(self.root) } else { named_below(self.root, &self.only) }
    }
}

/// The observations of a command's memory.
struct Seen {
    watch: Option<Watch>,
    usage: Outcome<Usage>,
    /// The process that was found by its name.
    named: Option<String>,
}

impl Seen {
    fn nothing(only: &[String]) -> Self {
        Self { watch: None, usage: too_soon(only), named: None }
    }
}

/// Looks at the command's memory until it ends, in a thread that can only read. A named process that ends before its first
/// look is replaced by the next one.
fn look(subject: &Subject, stall: Duration, limit: Option<Duration>, end: &mpsc::Receiver<()>) -> Seen {
    let start = Instant::now();
    let first = limit.map_or(FIRST_LOOK, |limit| FIRST_LOOK.min(limit / 2));
    let mut seen = Seen::nothing(&subject.only);
    let mut found = subject.only.is_empty().then_some((subject.root, start));
    let mut wait = if found.is_some() { first } else { SEARCH };
    while end.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
        let is_over = limit.is_some_and(|limit| start.elapsed() >= limit);
        match found {
            None => {
                found = subject.find().map(|pid| (pid, Instant::now()));
                wait = if found.is_some() { first } else { SEARCH };
            }
            Some((pid, since)) => {
                let looked = coverage(pid);
                let is_there = matches!(looked, Outcome::Measured(_)) || subject.only.is_empty();
                if seen.watch.is_none() && is_there {
                    seen.watch = Some(Watch::start(Rounds::open_command(pid, since, limit, stall)));
                    // A right that cannot be dropped is kept: the command still runs.
                    let _ = confine(Reads::Processes);
                    seen.named = (!subject.only.is_empty()).then(|| process_name_in_time(pid));
                }
                if matches!(looked, Outcome::Measured(_)) {
                    seen.usage = looked;
                } else if seen.watch.is_none() {
                    found = None;
                }
                wait = if found.is_some() { (2 * wait).min(Duration::from_secs(2)) } else { SEARCH };
            }
        }
        if is_over {
            break;
        }
    }
    seen
}

/// Forwards this process's signals to the command. The terminal sends the signals of its keys to both, so these are not
/// forwarded.
fn forward(mut signals: Signals, receiver: &Mutex<Receiver>) {
    for signal in signals.forever() {
        let Ok(known) = Signal::try_from(signal) else { continue };
        let mut receiver = locked(receiver);
        receiver.told_to_end |= !matches!(signal, SIGUSR1 | SIGUSR2);
        if matches!(signal, SIGINT | SIGQUIT) && has_the_terminal() {
            continue;
        }
        match receiver.pid {
            Some(pid) => drop(kill(pid, known)),
            None => receiver.waiting = Some(known),
        }
    }
}

/// True if the terminal's keys signal this process and the command, which is in its group.
fn has_the_terminal() -> bool {
    let terminal = std::fs::File::open("/dev/tty");
    terminal.is_ok_and(|terminal| tcgetpgrp(&terminal) == Ok(getpgrp()))
}

/// Reads the activity of the command and all its descendants that were waited for (getrusage(2)).
fn activity() -> nix::Result<Activity> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    Ok(Activity {
        minor_faults: count(usage.minor_page_faults()),
        major_faults: count(usage.major_page_faults()),
        user_seconds: usage.user_time().num_microseconds() as f64 / 1e6,
        system_seconds: usage.system_time().num_microseconds() as f64 / 1e6,
        voluntary_switches: count(usage.voluntary_context_switches()),
        involuntary_switches: count(usage.involuntary_context_switches()),
    })
}

/// A count of the kernel, which is never negative.
fn count(number: impl TryInto<u64>) -> u64 {
    number.try_into().unwrap_or(0)
}

fn status_of(status: ExitStatus) -> u8 {
    let status = status.code().unwrap_or_else(|| BY_SIGNAL + status.signal().unwrap_or(0));
    u8::try_from(status).unwrap_or(u8::MAX)
}
