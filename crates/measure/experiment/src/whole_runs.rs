//! Whole runs of a command: plain, in each arm, and plain again as the control, in mirrored blocks.
//!
//! A short run depends on what the run before it has left in the caches. Plain runs are the most frequent, so that they would
//! find more of their program there: among copies of one file that run for 2 ms, each an arm, the plain one was 1 to 4 % faster.
//! Where the kind changes, a short run is therefore made twice, and the second one is measured.

use crate::ExperimentError;
use crate::conduct::{Conduct, INTERRUPTION, Limits, Progress};
use crate::observation::{between, counters_in, look_at};
use crate::record::{Counters, Ended, Event, Header, Lift, Observation, Record, Recorder, TimedBlock};
use crate::toggle::counters_of_all;
use crate::walks::WalkTally;
use linux::bounded::LIFT_REPORT;
use measure::toggle::{Block, Blocks, Measured, WINDOWS, Window};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, kill};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use walk_counters::Target;

/// How often a run is looked at: it can be interrupted, and its end is seen this late at most. The time is read by the
/// kernel's wait, not by this.
const LOOK: Duration = Duration::from_millis(50);
/// A run that is shorter is made twice where the run before it was of another kind.
const SHORT: Duration = Duration::from_millis(100);
/// Runs of one kind that are looked at until one was seen.
const LOOKS: usize = 3;
/// The time that a run has to end once it was told to.
const TO_END: Duration = Duration::from_secs(3);

/// What makes a command: of an arm, or of a plain run for `None`. A lifted run writes its report to the path, where one is
/// given.
pub type MakeCommand<'a> = dyn FnMut(Option<usize>, Option<&Path>) -> Command + 'a;

/// Runs blocks of whole runs until an end is reached. A run that fails ends it: what was measured is kept. The first run of
/// each kind that lasts long enough is looked at.
///
/// # Errors
/// [`ExperimentError`] where the record cannot be written.
pub fn run(
    command: &mut MakeCommand<'_>,
    header: Header,
    limits: Limits<'_>,
    file: Option<File>,
    tell: &mut dyn FnMut(&Progress<'_>),
) -> Result<Record, ExperimentError> {
    run_with(SHORT, command, header, limits, file, tell)
}

fn run_with(
    short: Duration,
    command: &mut MakeCommand<'_>,
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
        conduct: Conduct::start(limits),
        recorder,
        report,
        looks: Vec::new(),
        tally,
        short,
        last: None,
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
    conduct: Conduct<'l>,
    recorder: Recorder,
    /// Where a lifted run writes its report.
    report: PathBuf,
    /// The kind of each run that was looked at; [`LOOKS`] times one that was seen.
    looks: Vec<Option<usize>>,
    tally: WalkTally,
    /// The time below which a run is short.
    short: Duration,
    /// The kind of the last run, and its time in seconds.
    last: Option<(Option<usize>, f64)>,
}

impl Runs<'_, '_, '_> {
    fn blocks(&mut self, blocks: Blocks, tell: &mut dyn FnMut(&Progress<'_>)) -> std::io::Result<Ended> {
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
            let looks = self.looks.iter().filter(|looked_at| **looked_at == arm).count();
            // Of what this thread starts: the run, from its exec on.
            let mut meter = self.tally.meter(Target::Children);
            let before = meter.read();
            let run = if looks < LOOKS {
                self.observed_run(arm, looks + 1 == LOOKS)?
            } else {
                one_run((self.command)(arm, None), &self.conduct, None)
            };
            self.tally.add(arm, &before, &meter.read());
            match run {
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
        }))
    }

    /// Makes a run that is not measured, where the last one was short and of another kind.
    fn warm_up(&mut self, arm: Option<usize>) -> Result<(), Ended> {
        if self.last.is_some_and(|(kind, time)| kind != arm && time < self.short.as_secs_f64()) {
            one_run((self.command)(arm, None), &self.conduct, None)?;
        }
        Ok(())
    }

    /// A run that is looked at while it goes on, and that leaves a report where it is lifted. On a busy machine it may end
    /// before it was seen: then the next of its kind is looked at, and the last one's report is kept alone.
    fn observed_run(&mut self, arm: Option<usize>, is_last: bool) -> std::io::Result<Result<Run, Ended>> {
        let report = arm.map(|_| self.report.as_path());
        let run = one_run((self.command)(arm, report), &self.conduct, Some(Looker::new()));
        let Ok(Run { seen, .. }) = &run else { return Ok(run) };
        let lift = report.and_then(lift_in);
        let looks = if seen.is_some() { LOOKS } else { 1 };
        self.looks.extend(std::iter::repeat_n(arm, looks));
        if seen.is_some() || (is_last && lift.is_some()) {
            let seen = Observation { arm, lift, ..seen.clone().unwrap_or_default() };
            self.recorder.add(Event::Observed(Box::new(seen)))?;
        }
        Ok(run)
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

/// Looks at a run while it goes on, after twice the time each time, and keeps the last that it saw.
struct Looker {
    started: Instant,
    next: Duration,
    own: Option<PathBuf>,
    seen: Option<(Observation, Instant)>,
}

impl Looker {
    /// Before that a program has hardly been loaded.
    const FIRST: Duration = Duration::from_millis(10);

    fn new() -> Self {
        Self { started: Instant::now(), next: Self::FIRST, own: std::env::current_exe().ok(), seen: None }
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
        // A lifted run is Pagelift itself until it executes the command.
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).ok();
        if program.is_some()
            && program != self.own
            && let Some(seen) = look_at(pid)
        {
            self.seen = Some((Observation { at: at.as_secs_f64(), ..seen }, Instant::now()));
        }
    }

    /// What was seen before the run ended: later its number may be another process's.
    fn seen_before(self, end: Instant) -> Option<Observation> {
        self.seen.filter(|(_, at)| *at <= end).map(|(seen, _)| seen)
    }
}

/// One run: a unit of work, the CPU time of the command and all that it waited for, and the time from start to end.
struct Run {
    window: Window,
    counters: Counters,
    seen: Option<Observation>,
}

fn one_run(mut command: Command, conduct: &Conduct<'_>, mut looker: Option<Looker>) -> Result<Run, Ended> {
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
    Ok(Run { window, counters, seen: looker.and_then(|looker| looker.seen_before(end.at)) })
}

/// How a run ended, and when.
struct End {
    is_success: bool,
    status: String,
    at: Instant,
}

/// Waits in a thread, so that the end is seen at once and an interruption, too.
fn wait(child: &mut Child, conduct: &Conduct<'_>, mut looker: Option<&mut Looker>) -> Result<End, Ended> {
    let number = child.id() as i32;
    let pid = nix::unistd::Pid::from_raw(number);
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
                    // The thread above reaps it, so that its number cannot be another process's yet.
                    let _ = kill(pid, Signal::SIGTERM);
                    if receiver.recv_timeout(TO_END).is_err() {
                        // It ignores that.
                        let _ = kill(pid, Signal::SIGKILL);
                        let _ = receiver.recv();
                    }
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
    use crate::record::Design;
    use measure::toggle::Per;
    use std::sync::atomic::{AtomicBool, Ordering};

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
        run(&mut command, header, limits, None, &mut tell).unwrap()
    }

    #[test]
    fn runs_are_counted_and_timed() {
        let record = run_of("exit 0", Duration::from_millis(300));
        assert_eq!(record.ended(), Some(&Ended::TimeIsUp));
        let blocks = record.blocks();
        assert!(!blocks.is_empty());
        assert!(blocks.iter().flat_map(|block| block.windows).all(|window| window.work == 1.0 && window.wall > 0.0));
    }

    /// The kinds of all runs, in order, where runs below this time are short; and the number of blocks.
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
        let record = run_with(short, &mut command, header, limits, None, &mut |_| ()).unwrap();
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

    #[test]
    fn a_run_that_fails_ends_it() {
        let record = run_of("exit 3", Duration::from_secs(100));
        assert!(matches!(record.ended(), Some(Ended::Failed(why)) if why.contains("exit status: 3")));
    }
}
