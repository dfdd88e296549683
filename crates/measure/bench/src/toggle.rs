//! One live program, switched in place under its own load.

mod disturbance;
mod sequence;

pub use disturbance::Disturbance;
pub use sequence::{SeenBlock, run_sequence};

use crate::ExperimentError;
use crate::conduct::{Conduct, INTERRUPTION, Limits, Progress};
use crate::observation::{between, counters_of, look_at};
use crate::record::Recorder;
use crate::retry::pauses;
use crate::tree::{targets, tree_of, used_by};
use crate::walks::{self, Meter, WalkTally};
use crate::work::Counter;
use disturbance::Quiet;
use measure::latency::Latency;
use measure::record::{Counters, Ended, Event, Header, Lift, Observation, Record, Switch, TimedBlock};
use measure::toggle::{BEHIND_A_SWITCH, Block, Blocks, Measured, Treatment, WINDOWS, Window};
use nix::sys::time::TimeValLike;
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use session::running::Pause;
use std::fs::File;
use std::time::{Duration, Instant};

/// Switches the program from plain to an arm and back.
pub trait Switcher {
    /// Switches into an arm.
    ///
    /// # Errors
    /// The reason, with the fix. [`Switcher::back`] undoes a partial switch.
    fn to(&mut self, arm: usize) -> Result<Done, String>;

    /// Switches back to plain.
    ///
    /// # Errors
    /// The reason, with the fix.
    fn back(&mut self) -> Result<Done, String>;
}

/// The effect of a switch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Done {
    /// The longest time for which all threads were stopped.
    pub pause: Duration,
    /// Stops of the program.
    pub stops: Stops,
    /// Bytes on huge pages afterwards, if known. An arm that has none is left out.
    pub covered: Option<u64>,
    /// The effect of the lift, if it was one.
    pub lift: Option<Lift>,
    /// It took several tries, between which the program was plain: its time and its CPU time do not measure a switch.
    pub is_retried: bool,
}

/// Times for which lifts and ways back stopped a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stops {
    /// Longest stop of all threads, or of one.
    pub longest: Duration,
    /// Sum of the stops of all threads.
    pub total: Duration,
}

impl Stops {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { longest: self.longest.max(other.longest), total: self.total.saturating_add(other.total) }
    }
}

impl Done {
    /// Adds the stops of one process.
    pub fn add_pause(&mut self, pause: Pause) {
        self.pause = self.pause.max(pause.longest);
        let longest = pause.longest.max(pause.longest_of_one);
        self.stops = self.stops.and(Stops { longest, total: pause.total });
    }

    /// True if ranges were to be lifted, and none was: another try may succeed.
    fn has_failed_for_now(&self) -> bool {
        let is_planned =
            self.lift.as_ref().is_some_and(|lift| lift.ranges.iter().any(|range| !range.failed.is_empty()));
        self.covered == Some(0) && is_planned
    }
}

/// Lengths of windows.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// One window.
    pub window: Duration,
    /// The time that is discarded after each switch.
    pub settle: Duration,
}

/// The program, its work, and the tools of the experiment.
pub struct Subject<'a> {
    /// Its process. Its descendants count, too, if there are any at the beginning.
    pub pid: i32,
    /// The counter of its work.
    pub work: &'a mut dyn Counter,
    /// The switcher.
    pub switcher: &'a mut dyn Switcher,
    /// Lengths of windows.
    pub timing: Timing,
    /// Fails if the server or its load, without which nothing can be measured, has ended; the error names it.
    pub check: &'a mut dyn FnMut() -> Result<(), String>,
}

/// Runs blocks until an end is reached, and leaves the program plain. A failure also ends it: the measurements so far
/// are kept.
///
/// # Errors
/// [`ExperimentError`] if nothing can be measured, or the record cannot be written.
pub fn run(
    subject: Subject<'_>,
    header: Header,
    limits: Limits<'_>,
    file: Option<File>,
    tell: &mut dyn FnMut(&Progress<'_>),
) -> Result<Record, ExperimentError> {
    let blocks = Blocks::new(header.arms.len(), header.seed);
    let recorder = Recorder::new(header, file).map_err(ExperimentError::Record)?;
    run_blocks(subject, recorder, blocks, limits, &mut |after| after.conduct.after_block(after.recorder, tell))
}

/// The state after a block.
struct After<'a, 'l> {
    conduct: &'a Conduct<'l>,
    recorder: &'a Recorder,
    /// Stops by all switches so far.
    stops: Stops,
    disturbance: Option<Disturbance>,
}

/// Returns the reason if the experiment ends with this block.
type Ends<'e> = &'e mut dyn FnMut(After<'_, '_>) -> Option<Ended>;

/// Runs blocks until `ends` returns a reason.
fn run_blocks(
    subject: Subject<'_>,
    recorder: Recorder,
    blocks: Blocks,
    limits: Limits<'_>,
    ends: Ends<'_>,
) -> Result<Record, ExperimentError> {
    let mut tally = WalkTally::of(&recorder.record().header);
    let tree = tree_of(subject.pid);
    let meters = targets(&tree).map(|target| tally.meter(target)).collect();
    let conduct = Conduct::start(limits);
    let is_alone = tree.len() == 1;
    let mut toggle = Toggle {
        subject,
        recorder,
        conduct,
        switched: None,
        is_half_way: false,
        tally,
        meters,
        is_alone,
        blocks,
        through: None,
        stops: Stops::default(),
        was_refused: false,
        failure: None,
    };
    toggle.used()?;
    let ended = toggle.look_at_all().and_then(|()| toggle.all_blocks(ends));
    let back = toggle.plain();
    if back.is_ok() {
        toggle.look(None, None).ok();
    }
    let ended = match (ended, back) {
        (Err(Stop::Record(error)), _) => return Err(ExperimentError::Record(error)),
        (Err(Stop::Interrupted), Ok(())) => Ended::Interrupted,
        (Err(Stop::Failed(why)), Ok(())) => Ended::Failed(why),
        (Err(Stop::Nothing), Ok(())) => Ended::Failed(toggle.recorder.record().nothing_in_any_arm()),
        (Ok(ended), Ok(())) => ended,
        // A process that has ended needs no switch back.
        (Err(Stop::Failed(first)), Err(Stop::Failed(second))) if toggle.used().is_ok() => {
            let what = match toggle.is_half_way {
                true => "the completed part of the switch could not be undone",
                false => "the program is still switched",
            };
            Ended::Failed(format!("{first}; {what}: {second}"))
        }
        (Err(Stop::Failed(first)), Err(_)) => Ended::Failed(first),
        (_, Err(Stop::Failed(why))) => Ended::Failed(format!("the program is still switched: {why}")),
        (_, Err(_)) => Ended::Interrupted,
    };
    for walks in toggle.tally.events() {
        toggle.recorder.add(walks).map_err(ExperimentError::Record)?;
    }
    toggle.recorder.add(Event::End(ended)).map_err(ExperimentError::Record)?;
    Ok(toggle.recorder.finish())
}

/// Why a block was not finished.
enum Stop {
    Interrupted,
    Failed(String),
    /// The arm of the block has lifted nothing, and is left out from now on; of [`Toggle::look_at_all`]: each arm has.
    Nothing,
    Record(std::io::Error),
}

impl From<ExperimentError> for Stop {
    fn from(error: ExperimentError) -> Self {
        Self::Failed(error.to_string())
    }
}

struct Toggle<'s, 'l> {
    subject: Subject<'s>,
    recorder: Recorder,
    conduct: Conduct<'l>,
    /// The arm in force.
    switched: Option<usize>,
    /// The switch into it has failed, or is being made.
    is_half_way: bool,
    tally: WalkTally,
    meters: Vec<Meter>,
    /// The process had no descendants at the beginning: its own clock is read, not the sum.
    is_alone: bool,
    blocks: Blocks,
    /// A switch of this block was refused at first.
    was_refused: bool,
    /// Why the first try of a lift since the last block failed, if a later one did not.
    failure: Option<String>,
    /// The arm that the control of this block switches to and back.
    through: Option<usize>,
    /// Stops of the program by all switches, repeated ones included.
    stops: Stops,
}

/// Counters at one moment.
#[derive(Clone, Copy)]
struct Reading {
    work: f64,
    cycles: f64,
    cpu: f64,
    counters: Option<Counters>,
    at: Instant,
}

impl Reading {
    fn window_to(&self, end: &Self) -> Window {
        let wall = (end.at - self.at).as_secs_f64();
        Window { work: end.work - self.work, cpu: end.cpu - self.cpu, wall, cycles: end.cycles - self.cycles }
    }

    fn counters_to(&self, end: &Self) -> Option<Counters> {
        self.counters.zip(end.counters).map(|(before, after)| between(before, after))
    }
}

/// The windows of a block, and the events during them.
struct Windows {
    windows: [Window; WINDOWS],
    counters: [Option<Counters>; WINDOWS],
    switches: [Window; WINDOWS],
    latencies: [Option<Latency>; WINDOWS],
}

const NOTHING: Window = Window { work: 0.0, cpu: 0.0, wall: 0.0, cycles: 0.0 };

impl Toggle<'_, '_> {
    /// Looks at the program plain, and in each arm, once, before anything is measured: reading smaps takes time. An arm that
    /// lifts nothing is left out.
    fn look_at_all(&mut self) -> Result<(), Stop> {
        self.look(None, None)?;
        let mut is_any_left = true;
        for arm in 0..self.recorder.record().header.arms.len() {
            let done = self.lift(arm)?;
            let nothing = done.covered == Some(0);
            self.look(Some(arm), done.lift)?;
            self.plain()?;
            if nothing {
                is_any_left = self.blocks.leave_out(arm);
            }
        }
        if is_any_left { Ok(()) } else { Err(Stop::Nothing) }
    }

    fn look(&mut self, arm: Option<usize>, lift: Option<Lift>) -> Result<(), Stop> {
        let seen = look_at(self.subject.pid);
        if seen.is_none() && lift.is_none() {
            return Ok(());
        }
        let at = self.conduct.elapsed().as_secs_f64();
        let seen = Observation { arm, at, lift, ..seen.unwrap_or_default() };
        self.recorder.add(Event::Observed(Box::new(seen))).map_err(Stop::Record)
    }

    fn all_blocks(&mut self, ends: Ends<'_>) -> Result<Ended, Stop> {
        while let Some(block) = self.blocks.next() {
            self.was_refused = false;
            let quiet = Quiet::now(self.subject.pid);
            match (self.windows(block), block.treatment) {
                (Ok(windows), _) => self.add(block, &windows)?,
                (Err(Stop::Nothing), Treatment::Arm(arm)) if self.blocks.leave_out(arm) => continue,
                (Err(stop), _) => return Err(stop),
            }
            let refused = self.was_refused.then_some(Disturbance::RefusedSwitch);
            let disturbance = refused.or_else(|| quiet.disturbance_until(&Quiet::now(self.subject.pid)));
            let after = After { conduct: &self.conduct, recorder: &self.recorder, stops: self.stops, disturbance };
            if let Some(ended) = ends(after) {
                return Ok(ended);
            }
        }
        Ok(Ended::TimeIsUp)
    }

    fn add(&mut self, block: Block, windows: &Windows) -> Result<(), Stop> {
        let block = TimedBlock {
            measured: Measured { block, start: 0, windows: windows.windows },
            at: Some(self.conduct.elapsed().as_secs_f64()),
            counters: counters_of_all(&windows.counters),
            switches: Some(windows.switches).filter(|switches| switches.iter().any(|switch| *switch != NOTHING)),
            latency: latencies_of_all(windows.latencies),
            retried: self.failure.take(),
            unlifted: None,
            unchecked: false,
        };
        self.recorder.add(Event::Block(Box::new(block))).map_err(Stop::Record)
    }

    fn windows(&mut self, block: Block) -> Result<Windows, Stop> {
        let mut all = Windows {
            windows: [NOTHING; WINDOWS],
            counters: [None; WINDOWS],
            switches: [NOTHING; WINDOWS],
            latencies: [None; WINDOWS],
        };
        // If the program is plain already, a block switches to its own arm and back, and a control block to each arm in turn.
        self.through = block.treatment.arm().or_else(|| self.blocks.next_arm_of_control());
        for (number, treated) in block.treated().into_iter().enumerate() {
            let arm = block.treatment.arm().filter(|_| treated);
            if BEHIND_A_SWITCH[number] {
                if arm.is_some() {
                    self.plain()?;
                }
                let before = self.reading()?;
                let is_retried = self.enter(arm)?;
                if arm.is_some() && !is_retried {
                    all.switches[number] = before.window_to(&self.reading()?);
                }
                self.wait(self.subject.timing.settle)?;
            }
            let (start, walks) = (self.reading()?, self.walks());
            self.subject.work.take_times();
            self.wait(self.subject.timing.window)?;
            all.latencies[number] = Latency::of(self.subject.work.take_times());
            let end = self.reading()?;
            (all.windows[number], all.counters[number]) = (start.window_to(&end), start.counters_to(&end));
            for (meter, before) in self.meters.iter_mut().zip(walks) {
                self.tally.add(arm, &before, &meter.read());
            }
        }
        Ok(all)
    }

    fn walks(&mut self) -> Vec<walks::Reading> {
        self.meters.iter_mut().map(Meter::read).collect()
    }

    /// Switches to the state that a window needs; true if it took several tries. A plain program is switched to the arm and
    /// back, so that the effects of a switch are the same in all windows.
    fn enter(&mut self, arm: Option<usize>) -> Result<bool, Stop> {
        match (arm, self.switched) {
            (Some(arm), _) => {
                let done = self.lift(arm)?;
                if done.covered == Some(0) {
                    self.look(Some(arm), done.lift)?;
                    return Err(Stop::Nothing);
                }
                Ok(done.is_retried)
            }
            (None, Some(_)) => self.plain().map(|()| false),
            (None, None) => {
                self.switch(self.through)?;
                self.plain().map(|()| false)
            }
        }
    }

    /// Switches to an arm. If a lift was tried and failed in all ranges, it is repeated: huge pages can become free.
    fn lift(&mut self, arm: usize) -> Result<Done, Stop> {
        let mut done = self.switch(Some(arm))?;
        for pause in pauses() {
            if !done.has_failed_for_now() {
                break;
            }
            let why = done.lift.as_ref().and_then(Lift::nothing);
            self.failure = self.failure.take().or(why);
            self.plain()?;
            self.wait(pause)?;
            done = Done { is_retried: true, ..self.switch(Some(arm))? };
        }
        if done.covered == Some(0) {
            self.failure = None;
        }
        Ok(done)
    }

    fn plain(&mut self) -> Result<(), Stop> {
        if self.switched.is_some() { self.switch(None).map(drop) } else { Ok(()) }
    }

    fn switch(&mut self, arm: Option<usize>) -> Result<Done, Stop> {
        let before = self.used()?.0;
        let done = match arm {
            Some(arm) => {
                // One that fails half-way is taken back, too.
                (self.switched, self.is_half_way) = (Some(arm), true);
                self.subject.switcher.to(arm)
            }
            None => self.subject.switcher.back(),
        };
        let done = match done {
            Ok(done) => done,
            Err(_) if arm.is_some() && self.conduct.is_interrupted() => return Err(Stop::Interrupted),
            Err(why) => return Err(Stop::Failed((self.subject.check)().err().unwrap_or(why))),
        };
        (self.switched, self.is_half_way) = (arm, false);
        self.stops = self.stops.and(done.stops);
        self.was_refused |= done.is_retried;
        let cpu = self.used()?.0 - before;
        if !done.is_retried {
            let switch = Switch { arm, pause: done.pause.as_secs_f64(), cpu, covered: done.covered };
            self.recorder.add(Event::Switch(switch)).map_err(Stop::Record)?;
        }
        Ok(done)
    }

    fn wait(&self, duration: Duration) -> Result<(), Stop> {
        if self.conduct.wait(duration) { Ok(()) } else { Err(Stop::Interrupted) }
    }

    fn reading(&mut self) -> Result<Reading, Stop> {
        (self.subject.check)().map_err(Stop::Failed)?;
        let work = match self.subject.work.read() {
            Ok(work) if work.is_finite() => work,
            Ok(work) => {
                let unit = self.subject.work.unit();
                return Err(Stop::Failed(format!("{unit}: found {work}; needed: a number that grows with the work")));
            }
            // A terminal interrupts a command that counts work as it is started, and this process at the same time. A
            // connection breaks before the process that has ended is gone.
            Err(error) if self.conduct.wait(INTERRUPTION) => {
                return Err(Stop::Failed((self.subject.check)().err().unwrap_or_else(|| error.to_string())));
            }
            Err(_) => return Err(Stop::Interrupted),
        };
        let (cpu, counters) = self.used()?;
        Ok(Reading { work, cycles: self.subject.work.cycles(), cpu, counters, at: Instant::now() })
    }

    /// Seconds of CPU time, and the counters, of all threads and descendants, those that have ended, too.
    fn used(&self) -> Result<(f64, Option<Counters>), ExperimentError> {
        let pid = self.subject.pid;
        if !self.is_alone {
            let used = used_by(pid).map(|(cpu, counters)| (cpu, Some(counters)));
            return used.ok_or(ExperimentError::NoCpuTime { pid, source: nix::errno::Errno::ESRCH });
        }
        let clock = clock_getcpuclockid(Pid::from_raw(pid)).and_then(clock_gettime);
        let time = clock.map_err(|source| ExperimentError::NoCpuTime { pid, source })?;
        Ok((time.num_nanoseconds() as f64 / 1e9, counters_of(pid)))
    }
}

/// The latencies of a block, if all of its windows have them.
pub(crate) fn latencies_of_all(windows: [Option<Latency>; WINDOWS]) -> Option<[Latency; WINDOWS]> {
    let all: Vec<Latency> = windows.into_iter().flatten().collect();
    all.try_into().ok()
}

/// The counters of a block, if all of its windows have them.
pub(crate) fn counters_of_all(windows: &[Option<Counters>; WINDOWS]) -> Option<[Counters; WINDOWS]> {
    let known: Vec<Counters> = windows.iter().copied().flatten().collect();
    known.try_into().ok()
}

#[cfg(test)]
mod tests;
