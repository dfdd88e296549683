//! Whole runs of a command: plain, in each arm, and plain again as the control, in mirrored blocks.
//!
//! A short run depends on what the run before it has left in the caches. Plain runs are the most frequent, so that they would
//! find more of their program there: among copies of one file that run for 2 ms, each an arm, the plain one was 1 to 4 % faster.
//! If the kind changes, a short run is therefore made twice, and the second one is measured.
//!
//! A lift leaves the program's files in huge folios of the page cache, from which plain runs are huge, too. A cold plain run
//! is made after its files were dropped from the page cache, and after a run that reads them again and does not count.

use crate::ExperimentError;
use crate::conduct::{Conduct, INTERRUPTION, Limits, Progress};
use crate::observation::{between, counters_in, look_at};
use crate::record::Recorder;
use crate::retry::pauses;
use crate::toggle::counters_of_all;
use crate::walks::WalkTally;
use descendants::{StartedProcess, with_descendants};
use linux::bounded::LIFT_REPORT;
use measure::record::{Counters, Ended, Event, Header, Lift, Observation, Record, TimedBlock};
use measure::statistics::FEWEST_BLOCKS;
use measure::toggle::{Block, Blocks, Measured, WINDOWS, Window};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::resource::{UsageWho, getrusage};
use process_view::ProcessFiles;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use translation::walk_counters::Target;

/// The interval for checks of a run: it can be interrupted, and its end is noticed at most this late. The time is read
/// by the kernel's wait, not by this.
const LOOK: Duration = Duration::from_millis(50);
/// A shorter run is made twice if the run before was of another kind.
const SHORT: Duration = Duration::from_millis(100);
/// The report of a lift takes 0.3 ms: no difference to a run as long as this.
const LONG: Duration = Duration::from_secs(1);
/// The time for which an experiment can outlast its limit, so that a block or a run ends: a quarter of the limit, or this.
const OVERTIME: Duration = Duration::from_secs(10);
/// Runs of one kind that are observed until one observation succeeds.
const LOOKS: usize = 3;
/// The time that the processes of a run have to end after the request.
const TO_END: Duration = Duration::from_secs(3);

/// Makes a command: of an arm, or of a plain run for `None`. A lifted run writes its report to the path, if there is
/// one.
pub type MakeCommand<'a> = dyn FnMut(Option<usize>, Option<&Path>) -> Command + 'a;

/// Which of a run's processes is observed, and from which page cache plain runs start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Observed<'a> {
    /// Names of the programs that are lifted; none for the program that is started.
    pub only: &'a [String],
    /// Drop the observed program's files from the page cache before plain runs.
    pub cold_plain: bool,
}

/// Runs blocks of whole runs until an end is reached. A run that fails ends the experiment: the measurements are kept.
/// The first run of each kind that lasts long enough is observed. If all ranges of a lift failed, the run is made again. Lifts are
/// checked in all runs if runs take about [`LONG`] or longer. Below [`SHORT`] the runs that are not measured are checked,
/// otherwise only observed ones.
/// A run that takes longer than the whole experiment is ended and counts as failed: the command may be a server.
///
/// # Errors
/// [`ExperimentError`] if the record cannot be written.
pub fn run(
    command: &mut MakeCommand<'_>,
    observed: Observed<'_>,
    header: Header,
    limits: Limits<'_>,
    file: Option<File>,
    tell: &mut dyn FnMut(&Progress<'_>),
) -> Result<Record, ExperimentError> {
    // A cold run is always made twice: the first one reads the files.
    let short = if observed.cold_plain { Duration::MAX } else { SHORT };
    let pace = Pace { short, long: LONG, overtime: OVERTIME.max(limits.time / 4) };
    run_with(pace, command, observed, header, limits, file, tell)
}

/// Bounds that depend on the times of runs.
#[derive(Clone, Copy)]
struct Pace {
    /// A shorter run is made twice if the run before was of another kind.
    short: Duration,
    /// Each lifted run is checked after a run has taken as long as this, until a run takes less than half this time.
    long: Duration,
    /// The time for which the experiment can outlast its limit.
    overtime: Duration,
}

impl Pace {
    /// True if lifted runs are checked after a run of so many seconds. Times near the bound change it only once. After a slow
    /// first run it ends: the report would take a visible part of short runs.
    fn is_long(self, was_long: bool, seconds: f64) -> bool {
        let long = self.long.as_secs_f64();
        seconds >= if was_long { long / 2.0 } else { long }
    }
}

fn run_with(
    pace: Pace,
    command: &mut MakeCommand<'_>,
    observed: Observed<'_>,
    header: Header,
    limits: Limits<'_>,
    file: Option<File>,
    tell: &mut dyn FnMut(&Progress<'_>),
) -> Result<Record, ExperimentError> {
    let blocks = Blocks::new(header.arms.len(), header.seed);
    let recorder = Recorder::new(header, file).map_err(ExperimentError::Record)?;
    let reports = tempfile::tempdir().map_err(ExperimentError::Record)?;
    let report = reports.path().join("report");
    let tally = WalkTally::of(&recorder.record().header);
    let longest = limits.time.saturating_add(pace.overtime);
    let mut runs = Runs {
        command,
        longest,
        observed,
        files: Vec::new(),
        conduct: Conduct::start(limits),
        recorder,
        report,
        looks: Vec::new(),
        tally,
        pace,
        last: None,
        failure: None,
        unlifted: None,
        unlifted_warm_up: None,
        is_long: false,
        given_up: BTreeSet::new(),
        is_checked: false,
    };
    let ended = runs.blocks(blocks, tell).map_err(ExperimentError::Record)?;
    for walks in runs.tally.events() {
        runs.recorder.add(walks).map_err(ExperimentError::Record)?;
    }
    runs.recorder.add(Event::End(ended)).map_err(ExperimentError::Record)?;
    Ok(runs.recorder.finish())
}

struct Runs<'c, 'f, 'l> {
    command: &'c mut MakeCommand<'f>,
    observed: Observed<'c>,
    /// Files that the observed program maps, if plain runs are cold.
    files: Vec<PathBuf>,
    conduct: Conduct<'l>,
    recorder: Recorder,
    /// The file for the report of a lifted run.
    report: PathBuf,
    /// The kind of each run that was observed; [`LOOKS`] times after a success.
    looks: Vec<Option<usize>>,
    tally: WalkTally,
    pace: Pace,
    /// The limit for a run, and for the start of another one in an unfinished block.
    longest: Duration,
    /// The kind of the last run, and its time in seconds.
    last: Option<(Option<usize>, f64)>,
    /// Why the first try of a lift since the last block failed, if a later one did not.
    failure: Option<String>,
    /// Why a lifted run since the last block lifted nothing, in its last try, too.
    unlifted: Option<String>,
    /// That of the run before the next measured one, which does not count itself.
    unlifted_warm_up: Option<String>,
    /// Runs are so long that each lifted one is checked.
    is_long: bool,
    /// Arms whose last lift failed in each try. The next one has no more tries, until one succeeds.
    given_up: BTreeSet<usize>,
    /// The report of a lift was read since the last block.
    is_checked: bool,
}

impl Runs<'_, '_, '_> {
    fn blocks(&mut self, blocks: Blocks, tell: &mut dyn FnMut(&Progress<'_>)) -> std::io::Result<Ended> {
        if self.observed.cold_plain
            && let Err(ended) = self.find_files()
        {
            return Ok(ended);
        }
        for block in blocks {
            match self.windows(block)? {
                Ok(measured) => self.recorder.add(Event::Block(Box::new(measured)))?,
                Err(ended) => return Ok(ended),
            }
            if let Some(ended) = self.conduct.after_block(&self.recorder, tell) {
                return Ok(ended);
            }
        }
        Ok(Ended::TimeIsUp)
    }

    fn windows(&mut self, block: Block) -> std::io::Result<Result<TimedBlock, Ended>> {
        let mut windows = [Window { work: 0.0, cpu: 0.0, wall: 0.0, cycles: 0.0 }; WINDOWS];
        let mut counters = [None; WINDOWS];
        for ((window, counters), treated) in windows.iter_mut().zip(&mut counters).zip(block.treated()) {
            let arm = block.treatment.arm().filter(|_| treated);
            if let Some(ended) = self.is_over() {
                return Ok(Err(ended));
            }
            if let Err(ended) = self.warm_up(arm) {
                return Ok(Err(ended));
            }
            match self.measured_run(arm)? {
                Ok(run) => {
                    (*window, *counters) = (run.window, Some(run.counters));
                    self.last = Some((arm, run.window.wall));
                    self.is_long = self.pace.is_long(self.is_long, run.window.wall);
                }
                Err(ended) => return Ok(Err(ended)),
            }
        }
        let at = Some(self.conduct.elapsed().as_secs_f64());
        let counters = counters_of_all(&counters);
        Ok(Ok(TimedBlock {
            measured: Measured { block, start: 0, windows },
            at,
            counters,
            switches: None,
            latency: None,
            retried: self.failure.take(),
            unlifted: self.unlifted.take(),
            unchecked: !std::mem::take(&mut self.is_checked) && block.treatment.arm().is_some(),
        }))
    }

    /// The end of an experiment in the middle of a block: its time and more are over, since its runs are long.
    fn is_over(&self) -> Option<Ended> {
        let (_, seconds) = self.last.filter(|_| self.conduct.elapsed() >= self.longest)?;
        if self.recorder.record().timed_blocks().next().is_some() {
            return Some(Ended::TimeIsUp);
        }
        Some(Ended::Failed(too_long(seconds, self.recorder.record().header.arms.len() + 1)))
    }

    /// Makes a run.
    fn one_run(&mut self, arm: Option<usize>, report: Option<&Path>, looker: Option<Looker<'_>>) -> Result<Run, Ended> {
        // The user's command, not that of an arm, which the user has not written.
        let make = RefCell::new(&mut *self.command);
        let words = || format!("{:?}", (make.borrow_mut())(None, None));
        let command = (make.borrow_mut())(arm, report);
        let mut ended = one_run(command, &words, &self.conduct, self.longest, looker);
        if let (Err(Ended::Failed(why)), Some(arm)) = (&mut ended, arm) {
            *why += &format!(" (in a run of {})", self.recorder.record().header.arms[arm]);
        }
        ended
    }

    /// Finds the files that the program maps by a plain run.
    fn find_files(&mut self) -> Result<(), Ended> {
        let looker = Looker { keeps_files: true, ..Looker::new(self.observed.only) };
        self.files = self.one_run(None, None, Some(looker))?.files;
        match self.files[..] {
            [] => Err(Ended::Failed(
                "--cold-plain: the program ended before its files were seen; fix: a command that takes longer, or leave it out"
                    .to_owned(),
            )),
            _ => Ok(()),
        }
    }

    /// Makes a run that is not measured, if the last one was short and of another kind, or there was none before a cold one.
    fn warm_up(&mut self, arm: Option<usize>) -> Result<(), Ended> {
        if self.observed.cold_plain && self.last.is_none_or(|(kind, _)| kind != arm) {
            if arm.is_none() {
                self.files.iter().for_each(|file| drop_from_cache(file));
            }
            self.unmeasured_run(arm)?;
        } else if self.last.is_some_and(|(kind, time)| kind != arm && time < self.pace.short.as_secs_f64()) {
            self.unmeasured_run(arm)?;
        }
        Ok(())
    }

    /// A run that does not count. The report of its lift costs no measured time.
    fn unmeasured_run(&mut self, arm: Option<usize>) -> Result<(), Ended> {
        let report = arm.map(|_| self.report.clone());
        let mut tries = Tries::new(pauses());
        loop {
            self.one_run(arm, report.as_deref(), None)?;
            let lift = report.as_deref().and_then(lift_in);
            if !self.is_tried_again(arm, lift.as_ref(), &mut tries)? {
                self.failure = self.failure.take().or(tries.failure);
                self.unlifted_warm_up = tries.given_up;
                return Ok(());
            }
        }
    }

    /// True, after a pause, if a run is to be repeated because its lift failed in all ranges: huge pages can become free.
    fn is_tried_again(
        &mut self,
        arm: Option<usize>,
        lift: Option<&Lift>,
        tries: &mut Tries<impl Iterator<Item = Duration>>,
    ) -> Result<bool, Ended> {
        let Some((arm, lift)) = arm.zip(lift) else { return Ok(false) };
        self.is_checked = true;
        let Some(why) = lift.failed_for_now() else {
            self.given_up.remove(&arm);
            return Ok(false);
        };
        let Some(pause) = tries.pauses.next().filter(|_| !self.given_up.contains(&arm)) else {
            self.given_up.insert(arm);
            (tries.failure, tries.given_up) = (None, Some(why));
            return Ok(false);
        };
        tries.failure.get_or_insert(why);
        if self.conduct.wait(pause) { Ok(true) } else { Err(Ended::Interrupted) }
    }

    /// Stores the reason why a measured run lifted nothing, or the reason of the warm-up if the run's own lift was not observed.
    fn keep_unlifted(&mut self, is_observed: bool, own: Option<String>) {
        let warm_up = self.unlifted_warm_up.take();
        self.unlifted = self.unlifted.take().or(if is_observed { own } else { warm_up });
    }

    /// A run that counts. A run whose lift failed in all ranges is repeated.
    fn measured_run(&mut self, arm: Option<usize>) -> std::io::Result<Result<Run, Ended>> {
        let looks = self.looks.iter().filter(|looked_at| **looked_at == arm).count();
        let mut tries = Tries::new(pauses());
        loop {
            // For this thread's children: the run, from its exec on.
            let mut meter = self.tally.meter(Target::Children);
            let before = meter.read();
            let (run, lift) = match self.run_of(arm, looks < LOOKS) {
                Ok(run) => run,
                Err(ended) => return Ok(Err(ended)),
            };
            let counted = meter.read();
            match self.is_tried_again(arm, lift.as_ref(), &mut tries) {
                Ok(true) => {}
                Ok(false) => {
                    self.failure = self.failure.take().or(tries.failure);
                    self.keep_unlifted(lift.is_some(), tries.given_up);
                    self.tally.add(arm, &before, &counted);
                    if looks < LOOKS {
                        self.observe(arm, looks + 1 == LOOKS, &run, lift)?;
                    }
                    return Ok(Ok(run));
                }
                Err(ended) => return Ok(Err(ended)),
            }
        }
    }

    /// A run. A lifted one writes a report if it is observed, or if runs are long. With `--only` each process writes one,
    /// and many are short.
    fn run_of(&mut self, arm: Option<usize>, is_observed: bool) -> Result<(Run, Option<Lift>), Ended> {
        let is_long = self.observed.only.is_empty() && self.is_long;
        let report = arm.map(|_| self.report.clone()).filter(|_| is_observed || is_long);
        let looker = is_observed.then(|| Looker::new(self.observed.only));
        let run = self.one_run(arm, report.as_deref(), looker)?;
        Ok((run, report.as_deref().and_then(lift_in)))
    }

    /// Records the observation of a run. On a busy machine it may end before the observation: then the next run of its
    /// kind is observed, and only the last report is kept.
    fn observe(&mut self, arm: Option<usize>, is_last: bool, run: &Run, lift: Option<Lift>) -> std::io::Result<()> {
        let looks = if run.seen.is_some() { LOOKS } else { 1 };
        self.looks.extend(std::iter::repeat_n(arm, looks));
        if run.seen.is_some() || (is_last && lift.is_some()) {
            let seen = Observation { arm, lift, ..run.seen.clone().unwrap_or_default() };
            self.recorder.add(Event::Observed(Box::new(seen)))?;
        }
        Ok(())
    }
}

/// The tries of one run.
struct Tries<P> {
    /// The pauses before further ones.
    pauses: P,
    /// Why the first one lifted nothing, if they were not given up.
    failure: Option<String>,
    /// Why the last one lifted nothing, after which there is no other.
    given_up: Option<String>,
}

impl<P> Tries<P> {
    fn new(pauses: P) -> Self {
        Self { pauses, failure: None, given_up: None }
    }
}

/// The lift that a run reports; with `--only` one a line, of which the largest is kept. The file is removed, also if it is too
/// long: the next run would append to it.
pub(crate) fn lift_in(report: &Path) -> Option<Lift> {
    let bytes = LIFT_REPORT.read_rest(File::open(report).ok()?);
    std::fs::remove_file(report).ok();
    let text = String::from_utf8(bytes.ok()?).ok()?;
    let of_lines = || text.lines().filter_map(|line| Lift::from_report(line).ok()).max_by_key(|lift| lift.covered);
    Lift::from_report(&text).ok().or_else(of_lines)
}

/// Observes a run while it continues, after twice the time each time, and keeps the last observation.
struct Looker<'a> {
    /// Names of the observed program; none for the process that was started.
    only: &'a [String],
    /// The files that it maps are kept.
    keeps_files: bool,
    files: Vec<PathBuf>,
    started: Instant,
    next: Duration,
    own: Option<PathBuf>,
    seen: Option<(Observation, Instant)>,
}

impl<'a> Looker<'a> {
    /// Before that a program has hardly been loaded.
    const FIRST: Duration = Duration::from_millis(10);

    fn new(only: &'a [String]) -> Self {
        let own = std::env::current_exe().ok();
        let (keeps_files, files) = (false, Vec::new());
        Self { only, keeps_files, files, started: Instant::now(), next: Self::FIRST, own, seen: None }
    }

    fn wait(&self) -> Duration {
        self.next.saturating_sub(self.started.elapsed()).min(LOOK)
    }

    fn look(&mut self, pid: i32) {
        let at = self.started.elapsed();
        if at < self.next {
            return;
        }
        self.next = 2 * at;
        let Some(pid) = self.process(pid) else { return };
        if let Some(seen) = look_at(pid) {
            self.seen = Some((Observation { at: at.as_secs_f64(), ..seen }, Instant::now()));
            if self.keeps_files {
                self.files = files_of(pid);
            }
        }
    }

    /// The observed process: a lifted run is Pagelift itself until it executes the command.
    fn process(&self, root: i32) -> Option<i32> {
        if self.only.is_empty() {
            let program = std::fs::read_link(format!("/proc/{root}/exe")).ok();
            return program.filter(|is| Some(is) != self.own.as_ref()).map(|_| root);
        }
        session::named_below(root, self.only)
    }

    /// The observations before the run ended: later its number may be another process's.
    fn seen_before(self, end: Instant) -> (Option<Observation>, Vec<PathBuf>) {
        let Some((seen, _)) = self.seen.filter(|(_, at)| *at <= end) else { return (None, Vec::new()) };
        (Some(seen), self.files)
    }
}

/// Files that a process maps.
fn files_of(pid: i32) -> Vec<PathBuf> {
    let maps = ProcessFiles::of(pid).text("maps").unwrap_or_default();
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| PathBuf::from(&line[at..])));
    let paths: std::collections::BTreeSet<PathBuf> = paths.collect();
    paths.into_iter().filter(|path| path.is_file()).collect()
}

/// Drops the pages of a file that no process maps from the page cache. The observations show whether that worked.
fn drop_from_cache(path: &Path) {
    if let Ok(Some(file)) = process_view::open_regular_file(path) {
        let _ = posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
    }
}

/// One run: a unit of work, the CPU time of the command and of all processes that it waited for, and the time from
/// start to end.
struct Run {
    window: Window,
    counters: Counters,
    seen: Option<Observation>,
    /// Files that it mapped, if requested.
    files: Vec<PathBuf>,
}

fn one_run(
    mut command: Command,
    words: &dyn Fn() -> String,
    conduct: &Conduct<'_>,
    longest: Duration,
    mut looker: Option<Looker<'_>>,
) -> Result<Run, Ended> {
    let before = counters_of_children()?;
    let started = Instant::now();
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Err(Ended::Failed(format!("{} cannot be executed: {error}", words()))),
    };
    let is_over = || {
        if conduct.is_interrupted() {
            return Some(Ended::Interrupted);
        }
        (started.elapsed() >= longest).then(|| Ended::Failed(endless(&words(), longest)))
    };
    let end = wait(&mut child, &is_over, looker.as_mut())?;
    if !end.is_success {
        if !conduct.wait(INTERRUPTION) {
            return Err(Ended::Interrupted);
        }
        return Err(Ended::Failed(failed_run(&words(), &end.status)));
    }
    let counters = between(before, counters_of_children()?);
    let window =
        Window { work: 1.0, cpu: counters.user + counters.system, wall: (end.at - started).as_secs_f64(), cycles: 0.0 };
    let (seen, files) = looker.map(|looker| looker.seen_before(end.at)).unwrap_or_default();
    Ok(Run { window, counters, seen, files })
}

/// The reason to end an experiment whose runs of so many kinds are too long for its time.
fn too_long(seconds: f64, kinds: usize) -> String {
    let minutes = (seconds * (WINDOWS * FEWEST_BLOCKS * kinds) as f64 / 60.0).ceil();
    format!(
        "the time was over before the first block of {WINDOWS} runs, and a run takes {seconds:.0} s; needed: {FEWEST_BLOCKS} \
         blocks of each kind; fix: --for {minutes}m, or less work in a run"
    )
}

/// The reason to end an experiment whose command fails: its runs may differ in their work.
fn failed_run(words: &str, status: &str) -> String {
    format!(
        "{words} failed ({status}); needed: a command that succeeds; fix: run it alone, since bench discards its messages; if it may \
         fail: -- sh -c 'CMD || true'"
    )
}

/// The reason to end a run that takes longer than the whole experiment.
fn endless(words: &str, longest: Duration) -> String {
    format!(
        "{words} did not end by itself within {:.0} s; needed: a command that ends; fix: of a server, pagelift bench --toggle \
         PID, --toggle -- CMD, or --server CMD; of a command that takes longer, a longer --for",
        longest.as_secs_f64()
    )
}

/// The result of a run, and the time of its end.
struct End {
    is_success: bool,
    status: String,
    at: Instant,
}

/// Waits in a thread, so that the end is seen at once. The run is ended if it is over: that returns the reason.
fn wait(
    child: &mut Child,
    is_over: &dyn Fn() -> Option<Ended>,
    mut looker: Option<&mut Looker<'_>>,
) -> Result<End, Ended> {
    let number = child.id() as i32;
    // The thread below reaps it, so that its number can become another process's.
    let root = StartedProcess::of(number);
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let status = child.wait();
            let _ = sender.send((status, Instant::now()));
        });
        loop {
            match receiver.recv_timeout(looker.as_ref().map_or(LOOK, |looker| looker.wait())) {
                Ok((Ok(status), at)) => {
                    return Ok(End { is_success: status.success(), status: status.to_string(), at });
                }
                Ok((Err(error), _)) => return Err(Ended::Failed(error.to_string())),
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return Err(Ended::Interrupted),
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                    if let Some(ended) = is_over() {
                        descendants::end(&with_descendants(root.as_slice()), TO_END);
                        let _ = receiver.recv();
                        return Err(ended);
                    }
                    if let Some(looker) = &mut looker {
                        looker.look(number);
                    }
                }
            }
        }
    })
}

/// Counters of all children that were waited for, and of theirs.
fn counters_of_children() -> Result<Counters, Ended> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).map_err(|error| Ended::Failed(error.to_string()))?;
    Ok(counters_in(&usage))
}

#[cfg(test)]
mod tests;
