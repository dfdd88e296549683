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
use measure::toggle::{Block, Blocks, Measured, WINDOWS, Window};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::resource::{UsageWho, getrusage};
use options::program_names;
use process_view::{ProcessFiles, tree_of};
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
/// The first run of each kind that lasts long enough is observed. If all ranges of its lift failed, it is made again.
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
    run_with(short, command, observed, header, limits, file, tell)
}

fn run_with(
    short: Duration,
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
    let mut runs = Runs {
        command,
        observed,
        files: Vec::new(),
        conduct: Conduct::start(limits),
        recorder,
        report,
        looks: Vec::new(),
        tally,
        short,
        last: None,
        failure: None,
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
    /// The time below which a run is short.
    short: Duration,
    /// The kind of the last run, and its time in seconds.
    last: Option<(Option<usize>, f64)>,
    /// Why the first try of a lift since the last block failed, if a later one did not.
    failure: Option<String>,
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
            if let Err(ended) = self.warm_up(arm) {
                return Ok(Err(ended));
            }
            match self.measured_run(arm)? {
                Ok(run) => {
                    (*window, *counters) = (run.window, Some(run.counters));
                    self.last = Some((arm, run.window.wall));
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
        }))
    }

    /// Finds the files that the program maps by a plain run.
    fn find_files(&mut self) -> Result<(), Ended> {
        let looker = Looker { keeps_files: true, ..Looker::new(self.observed.only) };
        self.files = one_run((self.command)(None, None), &self.conduct, Some(looker))?.files;
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
            one_run((self.command)(arm, None), &self.conduct, None)?;
        } else if self.last.is_some_and(|(kind, time)| kind != arm && time < self.short.as_secs_f64()) {
            one_run((self.command)(arm, None), &self.conduct, None)?;
        }
        Ok(())
    }

    /// A run that counts. An observed run whose lift failed in all ranges is repeated: huge pages can become free.
    fn measured_run(&mut self, arm: Option<usize>) -> std::io::Result<Result<Run, Ended>> {
        let looks = self.looks.iter().filter(|looked_at| **looked_at == arm).count();
        let mut pauses = pauses();
        loop {
            // For this thread's children: the run, from its exec on.
            let mut meter = self.tally.meter(Target::Children);
            let before = meter.read();
            let (run, lift) = match self.run_of(arm, looks < LOOKS) {
                Ok(run) => run,
                Err(ended) => return Ok(Err(ended)),
            };
            // The report of a lift does not contain the heap.
            let is_all = arm.is_some_and(|arm| !self.recorder.record().has_heap(arm));
            let why = lift.as_ref().and_then(Lift::failed_for_now).filter(|_| is_all);
            match why.zip(pauses.next()) {
                Some((why, pause)) => {
                    self.failure.get_or_insert(why);
                    if !self.conduct.wait(pause) {
                        return Ok(Err(Ended::Interrupted));
                    }
                }
                None => {
                    self.tally.add(arm, &before, &meter.read());
                    if looks < LOOKS {
                        self.observe(arm, looks + 1 == LOOKS, &run, lift)?;
                    }
                    return Ok(Ok(run));
                }
            }
        }
    }

    /// A run. An observed one writes a report if it is lifted.
    fn run_of(&mut self, arm: Option<usize>, is_observed: bool) -> Result<(Run, Option<Lift>), Ended> {
        let report = arm.map(|_| self.report.as_path()).filter(|_| is_observed);
        let looker = is_observed.then(|| Looker::new(self.observed.only));
        let run = one_run((self.command)(arm, report), &self.conduct, looker)?;
        Ok((run, report.and_then(lift_in)))
    }

    /// Records the observation of a run. On a busy machine it may end before the observation: then the next run of its
    /// kind is observed, and only the last report is kept.
    fn observe(&mut self, arm: Option<usize>, is_last: bool, run: &Run, lift: Option<Lift>) -> std::io::Result<()> {
        let looks = if run.seen.is_some() { LOOKS } else { 1 };
        self.looks.extend(std::iter::repeat_n(arm, looks));
        if lift.as_ref().is_some_and(|lift| lift.failed_for_now().is_some()) {
            self.failure = None;
        }
        if run.seen.is_some() || (is_last && lift.is_some()) {
            let seen = Observation { arm, lift, ..run.seen.clone().unwrap_or_default() };
            self.recorder.add(Event::Observed(Box::new(seen)))?;
        }
        Ok(())
    }
}

/// The lift that a run reports; with `--only` one a line, of which the largest is kept.
pub(crate) fn lift_in(report: &Path) -> Option<Lift> {
    let bytes = LIFT_REPORT.read_rest(File::open(report).ok()?).ok()?;
    std::fs::remove_file(report).ok();
    let text = String::from_utf8(bytes).ok()?;
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
        let program =
            |pid: i32| std::fs::read_link(format!("/proc/{pid}/exe")).ok().filter(|is| Some(is) != self.own.as_ref());
        if self.only.is_empty() {
            return program(root).map(|_| root);
        }
        let is_named = |pid: &i32| {
            let path = program(*pid).map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
            let called = ProcessFiles::of(*pid).name().unwrap_or_default();
            !path.is_empty()
                && options::is_named(self.only.iter().map(String::as_str), &program_names(&path, &called, None))
        };
        tree_of(root).into_iter().find(is_named)
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

fn one_run(mut command: Command, conduct: &Conduct<'_>, mut looker: Option<Looker<'_>>) -> Result<Run, Ended> {
    let words = format!("{command:?}");
    let before = counters_of_children()?;
    let started = Instant::now();
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Err(Ended::Failed(format!("{words} cannot be executed: {error}"))),
    };
    let end = wait(&mut child, conduct, looker.as_mut())?;
    if !end.is_success {
        if !conduct.wait(INTERRUPTION) {
            return Err(Ended::Interrupted);
        }
        return Err(Ended::Failed(format!("{words}: {}", end.status)));
    }
    let counters = between(before, counters_of_children()?);
    let window =
        Window { work: 1.0, cpu: counters.user + counters.system, wall: (end.at - started).as_secs_f64(), cycles: 0.0 };
    let (seen, files) = looker.map(|looker| looker.seen_before(end.at)).unwrap_or_default();
    Ok(Run { window, counters, seen, files })
}

/// The result of a run, and the time of its end.
struct End {
    is_success: bool,
    status: String,
    at: Instant,
}

/// Waits in a thread, so that the end is seen at once and an interruption, too.
fn wait(child: &mut Child, conduct: &Conduct<'_>, mut looker: Option<&mut Looker<'_>>) -> Result<End, Ended> {
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
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) if conduct.is_interrupted() => {
                    descendants::end(&with_descendants(root.as_slice()), TO_END);
                    let _ = receiver.recv();
                    return Err(Ended::Interrupted);
                }
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
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
mod tests {
    use super::*;
    use measure::record::Design;
    use measure::toggle::Per;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Report of a lift that found no huge page.
    const FAILED: &str = r#"{"program":"p","unlifted":null,"considered_bytes":8,"covered_bytes":0,
        "advised_bytes":0,"made_resident_bytes":0,"refusals":[],"edges":[],"ranges":[{"object":"p","kinds":["text"],
        "range":{"start":"0x0","end":"0x8"},"source":null,"page_size":8,"covered":[],"advised":0,"uncovered":[],
        "failed":[{"source":"collapse","reason":"no free huge page"}]}]}"#;
    /// Report of a lift of all memory.
    const LIFTED: &str = r#"{"program":"p","unlifted":null,"considered_bytes":8,"covered_bytes":8,
        "advised_bytes":0,"made_resident_bytes":8,"refusals":[],"edges":[],"ranges":[]}"#;
    const REASON: &str = "collapse: no free huge page";

    fn run_of(shell: &str, time: Duration) -> Record {
        run_blocks(shell, time, usize::MAX)
    }

    fn run_blocks(shell: &str, time: Duration, blocks: usize) -> Record {
        let arms = vec!["arm".to_owned()];
        let header = Header::new(Design::Runs, shell.to_owned(), arms, "runs".to_owned(), Per::Second, 1);
        let interrupted = AtomicBool::new(false);
        let limits = Limits { time, resolution: None, interrupted: &interrupted };
        let mut command = |_: Option<usize>, _: Option<&Path>| {
            let mut command = Command::new("sh");
            command.args(["-c", shell]);
            command
        };
        let mut tell = |progress: &Progress<'_>| interrupted.store(progress.blocks >= blocks, Ordering::Relaxed);
        run(&mut command, Observed::default(), header, limits, None, &mut tell).unwrap()
    }

    #[test]
    fn runs_are_counted_and_timed() {
        let record = run_of("exit 0", Duration::from_millis(300));
        assert_eq!(record.ended(), Some(&Ended::TimeIsUp));
        let blocks = record.blocks();
        assert!(!blocks.is_empty());
        assert!(blocks.iter().flat_map(|block| block.windows).all(|window| window.work == 1.0 && window.wall > 0.0));
    }

    /// The kinds of all runs, in order, if runs below this time are short; and the number of blocks.
    fn kinds_of_runs(short: Duration) -> (Vec<Option<usize>>, usize) {
        let header =
            Header::new(Design::Runs, "true".to_owned(), vec!["arm".to_owned()], "runs".to_owned(), Per::Second, 1);
        let interrupted = AtomicBool::new(false);
        let limits = Limits { time: Duration::from_millis(400), resolution: None, interrupted: &interrupted };
        let mut kinds = Vec::new();
        let mut command = |arm: Option<usize>, _: Option<&Path>| {
            kinds.push(arm);
            Command::new("true")
        };
        let record = run_with(short, &mut command, Observed::default(), header, limits, None, &mut |_| ()).unwrap();
        (kinds, record.blocks().len())
    }

    #[test]
    fn short_runs_of_another_kind_are_made_twice() {
        let (kinds, blocks) = kinds_of_runs(Duration::MAX);
        let changes = kinds.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert!(changes >= blocks - 1 && kinds.len() == blocks * WINDOWS + changes, "{blocks} blocks: {kinds:?}");
        // No run is the only one of its kind between two others.
        let alone = kinds.windows(3).filter(|three| three[0] != three[1] && three[1] != three[2]).count();
        assert_eq!(alone, 0, "{kinds:?}");
    }

    #[test]
    fn long_runs_are_made_once() {
        let (kinds, blocks) = kinds_of_runs(Duration::ZERO);
        assert_eq!(kinds.len(), blocks * WINDOWS);
    }

    #[test]
    fn a_run_of_each_kind_is_looked_at() {
        let record = run_blocks("sleep 0.1", Duration::from_secs(100), 8);
        let seen: Vec<&Observation> = record.observations().collect();
        let mut arms: Vec<Option<usize>> = seen.iter().map(|seen| seen.arm).collect();
        arms.sort_unstable();
        assert_eq!(arms, [None, Some(0)]);
        let resident = |seen: &&Observation| seen.memory.as_ref().is_some_and(|memory| memory.resident > 0);
        assert!(seen.iter().all(resident), "{seen:?}");
        assert!(seen.iter().all(|seen| seen.process == "sh" || seen.process == "sleep"));
        assert!(record.timed_blocks().all(|block| block.counters.is_some_and(|of| of[0].minor_faults > 0)));
    }

    /// A record of runs of which the first `failures` lifted ones find no pages; and the number of lifted runs with a report.
    fn run_with_failures(failures: usize) -> (Record, usize) {
        let arms = vec!["arm".to_owned()];
        let header = Header::new(Design::Runs, "true".to_owned(), arms, "runs".to_owned(), Per::Second, 1);
        let interrupted = AtomicBool::new(false);
        let limits = Limits { time: Duration::from_secs(100), resolution: None, interrupted: &interrupted };
        let mut lifts = 0;
        let mut command = |_: Option<usize>, report: Option<&Path>| {
            if let Some(report) = report {
                lifts += 1;
                std::fs::write(report, if lifts <= failures { FAILED } else { LIFTED }).unwrap();
            }
            Command::new("true")
        };
        let mut tell = |progress: &Progress<'_>| interrupted.store(progress.blocks >= 8, Ordering::Relaxed);
        let record = run(&mut command, Observed::default(), header, limits, None, &mut tell).unwrap();
        (record, lifts)
    }

    #[test]
    fn a_run_whose_lift_finds_no_pages_is_made_again() {
        let (record, lifts) = run_with_failures(2);
        // One more lifted run has a report if it is seen, up to all looks if it ends before.
        assert!(record.lifted_nothing(0).is_none() && (3..=2 + LOOKS).contains(&lifts), "{lifts}: {record:?}");
        let retried: Vec<_> = record.timed_blocks().filter_map(|block| block.retried.as_deref()).collect();
        assert_eq!(retried, [REASON]);
    }

    #[test]
    fn a_lift_that_never_finds_pages_is_no_retry() {
        let (record, _) = run_with_failures(usize::MAX);
        assert_eq!(record.lifted_nothing(0).as_deref(), Some(REASON));
        assert!(record.timed_blocks().all(|block| block.retried.is_none()));
    }

    #[test]
    fn an_interruption_ends_the_descendants_of_a_run() {
        let header =
            Header::new(Design::Runs, "sh".to_owned(), vec!["arm".to_owned()], "runs".to_owned(), Per::Second, 1);
        let interrupted = AtomicBool::new(false);
        let limits = Limits { time: Duration::from_secs(100), resolution: None, interrupted: &interrupted };
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let mut command = |_: Option<usize>, _: Option<&Path>| {
            let mut command = Command::new("sh");
            command.args(["-c", "sh -c 'echo $$ > $0; exec sleep 1000' $0; true"]).arg(&file);
            command
        };
        let (record, sleep) = std::thread::scope(|scope| {
            let sleep = scope.spawn(|| {
                let until = Instant::now() + Duration::from_secs(60);
                let mut text = String::new();
                while !text.ends_with('\n') && Instant::now() < until {
                    std::thread::sleep(LOOK);
                    text = std::fs::read_to_string(&file).unwrap_or_default();
                }
                let sleep = text.trim().parse().ok().and_then(StartedProcess::of);
                interrupted.store(true, Ordering::Relaxed);
                sleep
            });
            let record = run(&mut command, Observed::default(), header, limits, None, &mut |_| ()).unwrap();
            (record, sleep.join().unwrap().expect("the run has not started its child within 60 s"))
        });
        assert_eq!(record.ended(), Some(&Ended::Interrupted));
        assert!(!sleep.runs());
    }

    #[test]
    fn a_run_that_fails_ends_it() {
        let record = run_of("exit 3", Duration::from_secs(100));
        assert!(matches!(record.ended(), Some(Ended::Failed(why)) if why.contains("exit status: 3")));
    }
}
