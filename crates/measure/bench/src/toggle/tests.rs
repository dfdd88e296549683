use super::*;
use crate::work::WorkError;
use measure::record::{Attempt, Design, LiftedRange};
use measure::toggle::Per;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;

/// Rounds of three blocks, enough for each order of each kind.
const MANY_BLOCKS: usize = 36;
/// Limit for a run that ends by itself.
const LONG: Duration = Duration::from_secs(100);

/// This process as the program: its state, and the actions on it.
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
    /// Lifts of the listed arms find no pages: from the start, or from the switch with this number on.
    nothing: Vec<(usize, u32)>,
    /// The switch with this number finds no pages, and the next one does.
    nothing_once: Option<u32>,
    /// The reason why a required process has ended.
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
        let is_nothing = program.nothing.iter().any(|&(of, from)| of == arm && program.switches >= from);
        if is_nothing || program.nothing_once == Some(program.switches) {
            let unlifted = Some("the pool is empty; fix: reserve pages".to_owned());
            let failed = Attempt { source: "hugetlb".to_owned(), reason: "the pool is empty".to_owned(), fix: None };
            let range = LiftedRange { failed: vec![failed], ..LiftedRange::default() };
            let lift = Lift { unlifted, ranges: vec![range], ..Lift::default() };
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
    run_until(program, time, interrupted, usize::MAX)
}

/// A run that ends after this number of blocks, however long they take on a busy machine.
fn run_blocks_of(program: Program, blocks: usize) -> (Rc<RefCell<Program>>, Record) {
    run_until(program, LONG, false, blocks)
}

fn run_until(
    program: Program,
    time: Duration,
    interrupted: bool,
    most_blocks: usize,
) -> (Rc<RefCell<Program>>, Record) {
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
    let (blocks, recorder) = (Blocks::new(header.arms.len(), header.seed), Recorder::new(header, None).unwrap());
    let record = run_blocks(subject, recorder, blocks, limits, &mut |after| {
        let is_last = after.recorder.record().timed_blocks().count() >= most_blocks;
        let ended = after.conduct.after_block(after.recorder, &mut |_| {});
        ended.or_else(|| is_last.then_some(Ended::Resolved))
    })
    .unwrap();
    (program, record)
}

#[test]
fn the_program_is_left_plain_when_time_is_up() {
    let (program, record) = run_with(Program::default(), Duration::from_millis(100), false);
    assert_eq!(program.borrow().state, None);
    assert_eq!(record.ended(), Some(&Ended::TimeIsUp));
    assert!(!record.blocks().is_empty() && record.switches().count() > 2);
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
    let (program, record) = run_with(Program::default(), LONG, true);
    assert_eq!((program.borrow().state, record.ended()), (None, Some(&Ended::Interrupted)));
}

#[test]
fn a_server_that_ends_is_said_and_the_samples_stay() {
    let program = Program { ends_after: Some(150), ..Program::default() };
    let (program, record) = run_with(program, LONG, false);
    assert_eq!(record.ended(), Some(&Ended::Failed("server: it has ended".to_owned())));
    assert!(record.blocks().len() > 6);
    assert_eq!(program.borrow().state, None);
}

#[test]
fn a_switch_that_fails_ends_it_with_the_reason() {
    let (_, record) = run_with(Program { refuses: true, ..Program::default() }, LONG, false);
    assert_eq!(record.ended(), Some(&Ended::Failed("no pages; fix: reserve some".to_owned())));
}

#[test]
fn a_switch_that_fails_half_way_is_taken_back_or_said() {
    let half = || Program { fails_half_way: true, ..Program::default() };
    let (program, record) = run_with(half(), LONG, false);
    assert_eq!(program.borrow().state, None);
    assert_eq!(record.ended(), Some(&Ended::Failed("one of its processes refuses".to_owned())));
    let (_, record) = run_with(Program { cannot_go_back: true, ..half() }, LONG, false);
    let why =
        "one of its processes refuses; the completed part of the switch could not be undone: it cannot be put back";
    assert_eq!(record.ended(), Some(&Ended::Failed(why.to_owned())));
}

/// A record with it could not be read again.
#[test]
fn what_is_no_number_ends_it() {
    let program = Program { counts_nothing: true, ..Program::default() };
    let (program, record) = run_with(program, LONG, false);
    let why = "units: found NaN; needed: a number that grows with the work";
    assert_eq!((program.borrow().state, record.ended()), (None, Some(&Ended::Failed(why.to_owned()))));
}

#[test]
fn an_arm_that_lifts_nothing_is_left_out_and_the_others_go_on() {
    for from in [0, 9] {
        let program = Program { nothing: vec![(1, from)], ..Program::default() };
        let (program, record) = run_blocks_of(program, MANY_BLOCKS);
        assert_eq!((program.borrow().state, record.ended()), (None, Some(&Ended::Resolved)));
        let answer = record.answer();
        assert!(answer.arms[0].blocks > 3 && answer.arms[1].blocks <= from as usize, "{answer:?}");
        assert_eq!(record.lifted_nothing(1).as_deref(), Some("the pool is empty; fix: reserve pages"));
        assert!(record.lifted_nothing(0).is_none());
    }
}

#[test]
fn a_lift_that_finds_no_pages_once_is_made_again() {
    let program = Program { nothing_once: Some(8), ..Program::default() };
    let (program, record) = run_blocks_of(program, MANY_BLOCKS);
    assert_eq!((program.borrow().state, record.ended()), (None, Some(&Ended::Resolved)));
    assert!(program.borrow().switches > 20);
    let answer = record.answer();
    assert!(answer.arms.iter().all(|arm| arm.blocks > 3), "{answer:?}");
    assert!(record.lifted_nothing(0).is_none() && record.lifted_nothing(1).is_none());
}

#[test]
fn a_lift_that_was_made_again_is_recorded_with_its_reason() {
    let retried = |once| {
        let (_, record) = run_blocks_of(Program { nothing_once: Some(once), ..Program::default() }, MANY_BLOCKS);
        record.timed_blocks().find_map(|block| block.retried.clone())
    };
    // A switch of a control, which is there and back at once, is not made again; a control has at most three.
    assert_eq!((8..12).find_map(retried).as_deref(), Some("the pool is empty; fix: reserve pages"));
}

#[test]
fn no_arm_that_lifts_anything_ends_it() {
    let program = Program { nothing: vec![(0, 0), (1, 0)], ..Program::default() };
    let (_, record) = run_with(program, LONG, false);
    let Some(Ended::Failed(why)) = record.ended() else { panic!("{:?}", record.ended()) };
    let reason = "the pool is empty; fix: reserve pages";
    assert_eq!(why, &format!("nothing was lifted: a: {reason}; b: {reason}"));
}

#[test]
fn what_is_needed_beside_it_ends_it_with_its_own_reason() {
    let program = Program { check: Some("the server has ended".to_owned()), ..Program::default() };
    let (program, record) = run_with(program, LONG, false);
    assert_eq!(record.ended(), Some(&Ended::Failed("the server has ended".to_owned())));
    assert_eq!(program.borrow().state, None);
}

/// A switch precedes each window but the third in every block, so that its effects are the same in all states.
#[test]
fn windows_of_all_blocks_stand_behind_switches_alike() {
    let (_, record) = run_blocks_of(Program::default(), MANY_BLOCKS);
    let (mut arms, mut controls) = (Vec::new(), Vec::new());
    let mut switches = 0;
    for event in &record.events {
        match event {
            Event::Switch(Switch { arm: Some(_), .. }) => switches += 1,
            Event::Observed(_) => switches = 0,
            Event::Block(block) => {
                let of_kind =
                    if block.measured.block.treatment == Treatment::Control { &mut controls } else { &mut arms };
                of_kind.push((block.measured.block.plain_outside, std::mem::take(&mut switches)));
            }
            _ => {}
        }
    }
    // A control goes there and back three times, unless it begins with the way back of the block before it.
    assert!(controls.len() > 3 && controls.iter().all(|(_, switches)| matches!(switches, 2 | 3)), "{controls:?}");
    // Plain outside: into the arm once, and there and back at the beginning if the program is plain already.
    let fits = |(outside, switches): &(bool, i32)| if *outside { matches!(switches, 1 | 2) } else { *switches == 2 };
    assert!(arms.len() > 3 && arms.iter().all(fits), "{arms:?}");
}

/// A control that mostly uses one arm does not measure the other arm's switches.
#[test]
fn controls_go_through_the_arms_in_turn_block_by_block() {
    let (_, record) = run_blocks_of(Program::default(), MANY_BLOCKS);
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
    let (_, record) = run_blocks_of(Program::default(), MANY_BLOCKS);
    let is_arm = |block: &&TimedBlock| block.measured.block.treatment != Treatment::Control;
    let (arms, controls): (Vec<_>, Vec<_>) = record.timed_blocks().partition(is_arm);
    assert!(controls.iter().all(|block| block.switches.is_none()) && !arms.is_empty());
    for block in arms {
        let switches = block.switches.unwrap();
        let treated = block.measured.block.treated();
        let entered = (0..WINDOWS).filter(|&number| treated[number] && BEHIND_A_SWITCH[number]).collect::<Vec<_>>();
        let made = (0..WINDOWS).filter(|&number| switches[number].wall > 0.0).collect::<Vec<_>>();
        assert_eq!(made, entered);
    }
}

#[test]
fn blocks_with_a_counter_that_goes_backwards_do_not_count() {
    let program = Program { goes_backwards: true, ..Program::default() };
    let (_, record) = run_blocks_of(program, MANY_BLOCKS);
    assert!(record.answer().arms.iter().map(|arm| arm.unusable).sum::<usize>() > 0);
}
