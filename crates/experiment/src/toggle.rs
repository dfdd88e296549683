//! One live program, switched in place under its own load.

use crate::ExperimentError;
use crate::conduct::{Conduct, INTERRUPTION, Limits, Progress};
use crate::observation::{between, counters_of, look_at};
use crate::record::{Counters, Ended, Event, Header, Lift, Observation, Record, Recorder, Switch, TimedBlock};
use crate::tree::{targets, tree_of, used_by};
use crate::walks::{self, Meter, WalkTally};
use crate::work::Counter;
use measure::latency::Latency;
use measure::toggle::{Block, Blocks, Measured, Treatment, WINDOWS, Window};
use nix::sys::time::TimeValLike;
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use std::fs::File;
use std::time::{Duration, Instant};

/// What changes the program from plain to an arm and back.
pub trait Switcher {
    /// Switches into an arm.
    ///
    /// # Errors
    /// The reason, with the fix. What was done of it is taken back by [`Switcher::back`].
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
    /// Bytes on huge pages afterwards, where that is known. An arm that has none is left out.
    pub covered: Option<u64>,
    /// What the lift did, if it was one.
    pub lift: Option<Lift>,
    /// It took several tries, between which the program was plain: neither its time nor its CPU time is that of a switch.
    pub is_retried: bool,
}

/// How long windows are.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// One window.
    pub window: Duration,
    /// What is dropped after each switch.
    pub settle: Duration,
}

/// The program, its work, and what is done with it.
pub struct Subject<'a> {
    /// Its process. What descends from it counts, too, if anything does at the beginning.
    pub pid: i32,
    /// What counts its work.
    pub work: &'a mut dyn Counter,
    /// What switches it.
    pub switcher: &'a mut dyn Switcher,
    /// How long windows are.
    pub timing: Timing,
    /// Says what has ended without which nothing can be measured: the server, or its load.
    pub check: &'a mut dyn FnMut() -> Result<(), String>,
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
    };
    toggle.used()?;
    let ended = toggle.look_at_all().and_then(|()| toggle.all_blocks(tell));
    let back = toggle.plain();
    if back.is_ok() {
        toggle.look(None, None).ok();
    }
    let ended = match (ended, back) {
        (Err(Stop::Record(error)), _) => return Err(ExperimentError::Record(error)),
        (Err(Stop::Interrupted), Ok(())) => Ended::Interrupted,
        (Err(Stop::Failed(why)), Ok(())) => Ended::Failed(why),
        (Err(Stop::Nothing), Ok(())) => Ended::Failed(toggle.nothing_in_any_arm()),
        (Ok(ended), Ok(())) => ended,
        // Of one that has ended nothing is switched.
        (Err(Stop::Failed(first)), Err(Stop::Failed(second))) if toggle.used().is_ok() => {
            let what = match toggle.is_half_way {
                true => "what was done of the switch could not be taken back",
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
    /// The process had no descendants at the beginning: its own clock is read, not that of all.
    is_alone: bool,
    blocks: Blocks,
    /// The arm through which the control of this block goes.
    through: Option<usize>,
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

/// The windows of a block, and what went on beside them.
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
            let done = self.switch(Some(arm))?;
            let nothing = done.covered == Some(0);
            self.look(Some(arm), done.lift)?;
            self.plain()?;
            if nothing {
                is_any_left = self.blocks.leave_out(arm);
            }
        }
        if is_any_left { Ok(()) } else { Err(Stop::Nothing) }
    }

    fn nothing_in_any_arm(&self) -> String {
        let record = self.recorder.record();
        let names = record.header.arms.iter().enumerate();
        let of_arm = |(arm, name)| Some(format!("{name}: {}", record.lifted_nothing(arm)?));
        format!("nothing was lifted: {}", names.filter_map(of_arm).collect::<Vec<_>>().join("; "))
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

    fn all_blocks(&mut self, tell: &mut dyn FnMut(&Progress<'_>)) -> Result<Ended, Stop> {
        while let Some(block) = self.blocks.next() {
            match (self.windows(block), block.treatment) {
                (Ok(windows), _) => self.add(block, &windows)?,
                (Err(Stop::Nothing), Treatment::Arm(arm)) if self.blocks.leave_out(arm) => continue,
                (Err(stop), _) => return Err(stop),
            }
            if let Some(ended) = self.conduct.after_block(&self.recorder, tell) {
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
        self.through = (block.treatment == Treatment::Control).then(|| self.blocks.next_arm_of_control()).flatten();
        let mut treated_before = None;
        for (number, treated) in block.treated().into_iter().enumerate() {
            let arm = block.treatment.arm().filter(|_| treated);
            if treated_before != Some(treated) {
                let before = self.reading()?;
                let is_retried = self.enter(block.treatment, treated)?;
                if arm.is_some() && !is_retried {
                    all.switches[number] = before.window_to(&self.reading()?);
                }
                self.wait(self.subject.timing.settle)?;
            }
            treated_before = Some(treated);
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

    /// Switches to what a window needs; true where it took several tries. The control goes there and back, through the arm of
    /// its block.
    fn enter(&mut self, treatment: Treatment, treated: bool) -> Result<bool, Stop> {
        match (treatment, treated) {
            (Treatment::Arm(arm), true) if self.switched == Some(arm) => Ok(false),
            (Treatment::Arm(arm), true) => {
                self.plain()?;
                let done = self.switch(Some(arm))?;
                if done.covered == Some(0) {
                    self.look(Some(arm), done.lift)?;
                    return Err(Stop::Nothing);
                }
                Ok(done.is_retried)
            }
            (Treatment::Control, true) => {
                self.plain()?;
                self.switch(self.through)?;
                self.plain().map(|()| false)
            }
            (_, false) => self.plain().map(|()| false),
        }
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

/// The latencies of a block, where all of its windows have them.
pub(crate) fn latencies_of_all(windows: [Option<Latency>; WINDOWS]) -> Option<[Latency; WINDOWS]> {
    let all: Vec<Latency> = windows.into_iter().flatten().collect();
    all.try_into().ok()
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
        /// A switch into an arm does its work and says that it has failed; the way back fails, too.
        fails_half_way: bool,
        cannot_go_back: bool,
        counts_nothing: bool,
        /// Lifts of these arms find no pages: from the start, or from the switch of this number on.
        nothing: Vec<(usize, u32)>,
        /// Why what it needs has ended.
        check: Option<String>,
        switches: u32,
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
            if program.counts_nothing && program.reads > 20 {
                return Ok(f64::NAN);
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
            program.switches += 1;
            if program.fails_half_way {
                return Err("one of its processes refuses".to_owned());
            }
            if program.nothing.iter().any(|&(of, from)| of == arm && program.switches >= from) {
                let lift =
                    Lift { unlifted: Some("the pool is empty; fix: reserve pages".to_owned()), ..Lift::default() };
                return Ok(Done { covered: Some(0), lift: Some(lift), ..Done::default() });
            }
            Ok(Done::default())
        }

        fn back(&mut self) -> Result<Done, String> {
            let mut program = self.0.borrow_mut();
            if program.cannot_go_back {
                return Err("it cannot be put back".to_owned());
            }
            program.state = None;
            Ok(Done::default())
        }
    }

    fn run_with(program: Program, time: Duration, interrupted: bool) -> (Rc<RefCell<Program>>, Record) {
        let program = Rc::new(RefCell::new(program));
        let (mut work, mut switcher) = (Half(program.clone()), Half(program.clone()));
        let arms = vec!["a".to_owned(), "b".to_owned()];
        let header = Header::new(Design::Toggle, "this".to_owned(), arms, "units".to_owned(), Per::Second, 1);
        let window = Duration::from_millis(2);
        let timing = Timing { window, settle: Duration::from_millis(1) };
        let of_check = program.clone();
        let mut check = || of_check.borrow().check.clone().map_or(Ok(()), Err);
        let (work, switcher) = (&mut work, &mut switcher);
        let subject = Subject { pid: std::process::id() as i32, work, switcher, timing, check: &mut check };
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
    fn a_switch_that_fails_half_way_is_taken_back_or_said() {
        let half = || Program { fails_half_way: true, ..Program::default() };
        let (program, record) = run_with(half(), Duration::from_secs(100), false);
        assert_eq!(program.borrow().state, None);
        assert_eq!(record.ended(), Some(&Ended::Failed("one of its processes refuses".to_owned())));
        let (_, record) = run_with(Program { cannot_go_back: true, ..half() }, Duration::from_secs(100), false);
        let why =
            "one of its processes refuses; what was done of the switch could not be taken back: it cannot be put back";
        assert_eq!(record.ended(), Some(&Ended::Failed(why.to_owned())));
    }

    /// A record with it could not be read again.
    #[test]
    fn what_is_no_number_ends_it() {
        let program = Program { counts_nothing: true, ..Program::default() };
        let (program, record) = run_with(program, Duration::from_secs(100), false);
        let why = "units: found NaN; needed: a number that grows with the work";
        assert_eq!((program.borrow().state, record.ended()), (None, Some(&Ended::Failed(why.to_owned()))));
    }

    #[test]
    fn an_arm_that_lifts_nothing_is_left_out_and_the_others_go_on() {
        for from in [0, 9] {
            let program = Program { nothing: vec![(1, from)], ..Program::default() };
            let (program, record) = run_with(program, Duration::from_millis(400), false);
            assert_eq!((program.borrow().state, record.ended()), (None, Some(&Ended::TimeIsUp)));
            let answer = record.answer();
            assert!(answer.arms[0].blocks > 3 && answer.arms[1].blocks <= from as usize, "{answer:?}");
            assert_eq!(record.lifted_nothing(1).as_deref(), Some("the pool is empty; fix: reserve pages"));
            assert!(record.lifted_nothing(0).is_none());
        }
    }

    #[test]
    fn no_arm_that_lifts_anything_ends_it() {
        let program = Program { nothing: vec![(0, 0), (1, 0)], ..Program::default() };
        let (_, record) = run_with(program, Duration::from_secs(100), false);
        let Some(Ended::Failed(why)) = record.ended() else { panic!("{:?}", record.ended()) };
        let reason = "the pool is empty; fix: reserve pages";
        assert_eq!(why, &format!("nothing was lifted: a: {reason}; b: {reason}"));
    }

    #[test]
    fn what_is_needed_beside_it_ends_it_with_its_own_reason() {
        let program = Program { check: Some("the server has ended".to_owned()), ..Program::default() };
        let (program, record) = run_with(program, Duration::from_secs(100), false);
        assert_eq!(record.ended(), Some(&Ended::Failed("the server has ended".to_owned())));
        assert_eq!(program.borrow().state, None);
    }

    /// A control that mostly goes through one arm says nothing of what the switches of the other do.
    #[test]
    fn controls_go_through_the_arms_in_turn_block_by_block() {
        let (_, record) = run_with(Program::default(), Duration::from_millis(900), false);
        let (mut through, mut of_block) = (Vec::new(), Vec::new());
        for event in &record.events {
            match event {
                Event::Switch(Switch { arm: Some(arm), .. }) => of_block.push(*arm),
                Event::Block(block) => {
                    let arms = std::mem::take(&mut of_block);
                    if block.measured.block.treatment == Treatment::Control {
                        through.push(arms);
                    }
                }
                Event::Observed(_) => of_block.clear(),
                _ => {}
            }
        }
        assert!(through.len() > 3, "{through:?}");
        for (number, arms) in through.iter().enumerate() {
            assert!(!arms.is_empty() && arms.iter().all(|&arm| arm == number % 2), "{number}: {through:?}");
        }
    }

    #[test]
    fn switches_are_kept_apart_from_the_windows() {
        let (_, record) = run_with(Program::default(), Duration::from_millis(400), false);
        let is_arm = |block: &&TimedBlock| block.measured.block.treatment != Treatment::Control;
        let (arms, controls): (Vec<_>, Vec<_>) = record.timed_blocks().partition(is_arm);
        assert!(controls.iter().all(|block| block.switches.is_none()) && !arms.is_empty());
        for block in arms {
            let switches = block.switches.unwrap();
            let entered = if block.measured.block.plain_outside { vec![1] } else { vec![0, 3] };
            let made = (0..WINDOWS).filter(|&number| switches[number].wall > 0.0).collect::<Vec<_>>();
            assert_eq!(made, entered);
        }
    }

    #[test]
    fn blocks_with_a_counter_that_goes_backwards_do_not_count() {
        let program = Program { goes_backwards: true, ..Program::default() };
        let (_, record) = run_with(program, Duration::from_millis(400), false);
        let answer = record.answer();
        assert!(answer.arms.iter().map(|arm| arm.unusable).sum::<usize>() > 0);
    }
}
