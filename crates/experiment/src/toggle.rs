//! One live program, switched in place under its own load.

use crate::ExperimentError;
use crate::conduct::{Conduct, INTERRUPTION, Limits, Progress};
use crate::observation::{between, counters_of, look_at};
use crate::record::{Counters, Ended, Event, Header, Lift, Observation, Record, Recorder, Switch, TimedBlock};
use crate::walks::{Meter, WalkTally};
use crate::work::Counter;
use measure::toggle::{Block, Blocks, Measured, Treatment, WINDOWS, Window};
use nix::sys::time::TimeValLike;
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use std::fs::File;
use std::time::{Duration, Instant};
use walk_counters::Target;

/// What changes the program from plain to an arm and back.
pub trait Switcher {
    /// Switches into an arm.
    ///
    /// # Errors
    /// The reason, with the fix. The program is as it was.
    fn to(&mut self, arm: usize) -> Result<Done, String>;

    /// Switches back to plain.
    ///
    /// # Errors
    /// The reason, with the fix.
    fn back(&mut self) -> Result<Done, String>;
}

/// What a switch did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Done {
    /// The longest time for which all threads stood still.
    pub pause: Duration,
    /// Bytes on huge pages afterwards, where that is known.
    pub covered: Option<u64>,
    /// What the lift did, if it was one.
    pub lift: Option<Lift>,
}

/// How long windows are.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// One window.
    pub window: Duration,
    /// What is dropped after each switch.
    pub settle: Duration,
    /// Count switches into an arm in the window behind them.
    pub with_switches: bool,
}

/// The program, its work, and what is done with it.
pub struct Subject<'a> {
    /// Its process.
    pub pid: i32,
    /// What counts its work.
    pub work: &'a mut dyn Counter,
    /// What switches it.
    pub switcher: &'a mut dyn Switcher,
    /// How long windows are.
    pub timing: Timing,
}

/// Runs blocks until an end is reached, and leaves the program plain. A failure ends it, too: what was measured is kept.
///
/// # Errors
/// [`ExperimentError`] where nothing can be measured, or the record cannot be written.
pub fn run(
    subject: Subject<'_>,
    header: Header,
    limits: Limits<'_>,
    file: Option<File>,
    tell: &mut dyn FnMut(&Progress<'_>),
) -> Result<Record, ExperimentError> {
    let blocks = Blocks::new(header.arms.len(), header.seed);
    let recorder = Recorder::new(header, file).map_err(ExperimentError::Record)?;
    let mut tally = WalkTally::of(&recorder.record().header);
    let meter = tally.meter(Target::Process(subject.pid));
    let mut toggle = Toggle { subject, recorder, conduct: Conduct::start(limits), switched: None, tally, meter };
    toggle.cpu()?;
    let ended = toggle.look_at_all().and_then(|()| toggle.blocks(blocks, tell));
    let back = toggle.plain();
    if back.is_ok() {
        toggle.look(None, None).ok();
    }
    let ended = match (ended, back) {
        (Err(Stop::Record(error)), _) => return Err(ExperimentError::Record(error)),
        (Err(Stop::Interrupted), Ok(())) => Ended::Interrupted,
        (Err(Stop::Failed(why)), Ok(())) => Ended::Failed(why),
        (Ok(ended), Ok(())) => ended,
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
    tally: WalkTally,
    meter: Meter,
}

/// Counters at one moment.
#[derive(Clone, Copy)]
struct Reading {
    work: f64,
    cpu: f64,
    counters: Option<Counters>,
    at: Instant,
}

impl Reading {
    fn window_to(&self, end: &Self) -> (Window, Option<Counters>) {
        let wall = (end.at - self.at).as_secs_f64();
        let counters = self.counters.zip(end.counters).map(|(before, after)| between(before, after));
        (Window { work: end.work - self.work, cpu: end.cpu - self.cpu, wall }, counters)
    }
}

impl Toggle<'_, '_> {
    /// Looks at the program plain, and in each arm, once, before anything is measured: reading smaps takes time.
    fn look_at_all(&mut self) -> Result<(), Stop> {
        self.look(None, None)?;
        for arm in 0..self.recorder.record().header.arms.len() {
            let lift = self.switch(Some(arm))?;
            self.look(Some(arm), lift)?;
            self.plain()?;
        }
        Ok(())
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

    fn blocks(&mut self, blocks: Blocks, tell: &mut dyn FnMut(&Progress<'_>)) -> Result<Ended, Stop> {
        for block in blocks {
            let windows = self.windows(block)?;
            let measured = Measured { block, start: 0, windows: windows.map(|(window, _)| window) };
            let counters = counters_of_all(&windows.map(|(_, counters)| counters));
            let block = TimedBlock { measured, at: Some(self.conduct.elapsed().as_secs_f64()), counters };
            self.recorder.add(Event::Block(Box::new(block))).map_err(Stop::Record)?;
            if let Some(ended) = self.conduct.after_block(self.recorder.record(), tell) {
                return Ok(ended);
            }
        }
        Ok(Ended::TimeIsUp)
    }

    fn windows(&mut self, block: Block) -> Result<[(Window, Option<Counters>); WINDOWS], Stop> {
        let mut windows = [(Window { work: 0.0, cpu: 0.0, wall: 0.0 }, None); WINDOWS];
        let mut treated_before = None;
        for (window, treated) in windows.iter_mut().zip(block.treated()) {
            let (before, mut walks) = (self.reading()?, self.meter.read());
            if treated_before != Some(treated) {
                self.enter(block.treatment, treated)?;
            }
            let counts_switch = self.subject.timing.with_switches && treated && treated_before != Some(true);
            if treated_before != Some(treated) && !counts_switch {
                self.wait(self.subject.timing.settle)?;
            }
            treated_before = Some(treated);
            let mut start = before;
            if !counts_switch {
                (start, walks) = (self.reading()?, self.meter.read());
            }
            self.wait(self.subject.timing.window)?;
            *window = start.window_to(&self.reading()?);
            let arm = block.treatment.arm().filter(|_| treated);
            self.tally.add(arm, &walks, &self.meter.read());
        }
        Ok(windows)
    }

    /// Switches to what a window needs. The control goes there and back, through the arms in turn.
    fn enter(&mut self, treatment: Treatment, treated: bool) -> Result<(), Stop> {
        match (treatment, treated) {
            (Treatment::Arm(arm), true) if self.switched == Some(arm) => Ok(()),
            (Treatment::Arm(arm), true) => {
                self.plain()?;
                self.switch(Some(arm)).map(drop)
            }
            (Treatment::Control, true) => {
                self.plain()?;
                let blocks = self.recorder.record().events.len();
                self.switch(Some(blocks % self.recorder.record().header.arms.len()))?;
                self.plain()
            }
            (_, false) => self.plain(),
        }
    }

    fn plain(&mut self) -> Result<(), Stop> {
        if self.switched.is_some() { self.switch(None).map(drop) } else { Ok(()) }
    }

    /// Returns what a lift did.
    fn switch(&mut self, arm: Option<usize>) -> Result<Option<Lift>, Stop> {
        let before = self.cpu()?;
        let done = match arm {
            Some(arm) => self.subject.switcher.to(arm),
            None => self.subject.switcher.back(),
        };
        let done = done.map_err(Stop::Failed)?;
        self.switched = arm;
        let cpu = self.cpu()? - before;
        let switch = Switch { arm, pause: done.pause.as_secs_f64(), cpu, covered: done.covered };
        self.recorder.add(Event::Switch(switch)).map_err(Stop::Record)?;
        Ok(done.lift)
    }

    fn wait(&self, duration: Duration) -> Result<(), Stop> {
        if self.conduct.wait(duration) { Ok(()) } else { Err(Stop::Interrupted) }
    }

    fn reading(&mut self) -> Result<Reading, Stop> {
        let work = match self.subject.work.read() {
            Ok(work) => work,
            // A terminal interrupts a command that counts work as it is started, and this process at the same time.
            Err(error) if self.conduct.wait(INTERRUPTION) => return Err(Stop::Failed(error.to_string())),
            Err(_) => return Err(Stop::Interrupted),
        };
        let counters = counters_of(self.subject.pid);
        Ok(Reading { work, cpu: self.cpu()?, counters, at: Instant::now() })
    }

    /// Seconds of CPU time of all threads, those that have ended, too (clock_getcpuclockid(3)).
    fn cpu(&self) -> Result<f64, ExperimentError> {
        let pid = self.subject.pid;
        let clock = clock_getcpuclockid(Pid::from_raw(pid)).and_then(clock_gettime);
        let time = clock.map_err(|source| ExperimentError::NoCpuTime { pid, source })?;
        Ok(time.num_nanoseconds() as f64 / 1e9)
    }
}

/// The counters of a block, where all of its windows have them.
pub(crate) fn counters_of_all(windows: &[Option<Counters>; WINDOWS]) -> Option<[Counters; WINDOWS]> {
    let known: Vec<Counters> = windows.iter().copied().flatten().collect();
    known.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Design;
    use crate::work::WorkError;
    use measure::toggle::Per;
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::sync::atomic::AtomicBool;

    /// This process as the program: its state, and what was done to it.
    #[derive(Default)]
    struct Program {
        state: Option<usize>,
        reads: u32,
        ends_after: Option<u32>,
        goes_backwards: bool,
        refuses: bool,
        work: f64,
    }

    struct Half(Rc<RefCell<Program>>);

    impl Counter for Half {
        fn read(&mut self) -> Result<f64, WorkError> {
            let mut program = self.0.borrow_mut();
            program.reads += 1;
            if program.ends_after.is_some_and(|most| program.reads > most) {
                return Err(WorkError::no_number("server", "it has ended"));
            }
            program.work += if program.goes_backwards && program.reads.is_multiple_of(17) { -1e9 } else { 100.0 };
            Ok(program.work)
        }

        fn unit(&self) -> String {
            "units".to_owned()
        }
    }

    impl Switcher for Half {
        fn to(&mut self, arm: usize) -> Result<Done, String> {
            let mut program = self.0.borrow_mut();
            if program.refuses {
                return Err("no pages; fix: reserve some".to_owned());
            }
            assert_eq!(program.state, None, "each arm is entered from plain");
            program.state = Some(arm);
            Ok(Done::default())
        }

        fn back(&mut self) -> Result<Done, String> {
            self.0.borrow_mut().state = None;
            Ok(Done::default())
        }
    }

    fn run_with(program: Program, time: Duration, interrupted: bool) -> (Rc<RefCell<Program>>, Record) {
        let program = Rc::new(RefCell::new(program));
        let (mut work, mut switcher) = (Half(program.clone()), Half(program.clone()));
        let arms = vec!["a".to_owned(), "b".to_owned()];
        let header = Header::new(Design::Toggle, "this".to_owned(), arms, "units".to_owned(), Per::Second, 1);
        let window = Duration::from_millis(2);
        let timing = Timing { window, settle: Duration::from_millis(1), with_switches: false };
        let subject = Subject { pid: std::process::id() as i32, work: &mut work, switcher: &mut switcher, timing };
        let interrupted = AtomicBool::new(interrupted);
        let limits = Limits { time, resolution: None, interrupted: &interrupted };
        let record = run(subject, header, limits, None, &mut |_| {}).unwrap();
        (program, record)
    }

    #[test]
    fn the_program_is_left_plain_when_time_is_up() {
        let (program, record) = run_with(Program::default(), Duration::from_millis(400), false);
        assert_eq!(program.borrow().state, None);
        assert_eq!(record.ended(), Some(&Ended::TimeIsUp));
        assert!(record.blocks().len() > 6 && record.switches().count() > 6);
        assert!(record.timed_blocks().all(|block| block.at > Some(0.0) && block.counters.is_some()));
    }

    #[test]
    fn the_program_is_looked_at_plain_before_and_after_and_in_each_arm() {
        let (_, record) = run_with(Program::default(), Duration::from_millis(100), false);
        let seen: Vec<Option<usize>> = record.observations().map(|seen| seen.arm).collect();
        assert_eq!(seen, [None, Some(0), Some(1), None]);
        let resident = |seen: &Observation| seen.memory.as_ref().is_some_and(|memory| memory.resident > 0);
        assert!(record.observations().all(|seen| resident(seen) && seen.map.is_some()));
    }

    #[test]
    fn an_interruption_keeps_what_was_measured_and_leaves_it_plain() {
        let (program, record) = run_with(Program::default(), Duration::from_secs(100), true);
        assert_eq!((program.borrow().state, record.ended()), (None, Some(&Ended::Interrupted)));
    }

    #[test]
    fn a_server_that_ends_is_said_and_the_samples_stay() {
        let program = Program { ends_after: Some(150), ..Program::default() };
        let (program, record) = run_with(program, Duration::from_secs(100), false);
        assert_eq!(record.ended(), Some(&Ended::Failed("server: it has ended".to_owned())));
        assert!(record.blocks().len() > 6);
        assert_eq!(program.borrow().state, None);
    }

    #[test]
    fn a_switch_that_fails_ends_it_with_the_reason() {
        let (_, record) = run_with(Program { refuses: true, ..Program::default() }, Duration::from_secs(100), false);
        assert_eq!(record.ended(), Some(&Ended::Failed("no pages; fix: reserve some".to_owned())));
    }

    #[test]
    fn blocks_with_a_counter_that_goes_backwards_do_not_count() {
        let program = Program { goes_backwards: true, ..Program::default() };
        let (_, record) = run_with(program, Duration::from_millis(400), false);
        let answer = record.answer();
        assert!(answer.arms.iter().map(|arm| arm.unusable).sum::<usize>() > 0);
    }
}
