//! Another thread maps memory in the gap that a refused replacement leaves: its memory stays, the contents of the
//! program's are in their place or kept, and the outcome reports which.

use crate::restore::{Lifted, all as lifted_programs};
use crate::scenario::{Run, Scenario, scenarios_of};
use crate::support::{base_page, programs};
use address_space::{AddressRange, Protection, RangeSet};
use lift_execution::RangeOutcome;
use lift_plan::Reason;
use lift_simulation::simulated::{Call, Content, Failure, Mode, Script, SimulatedKernel, TakenPart, Taking, errno};

/// No step of a restoration makes more calls before the next one than this.
const LATEST: usize = 8;

const TAKEN: Failure = Failure { errno: errno::ENOMEM, mode: Mode::DestinationTaken };

fn takings() -> impl Iterator<Item = Taking> {
    let parts = [TakenPart::Whole, TakenPart::FirstPage, TakenPart::LastPage];
    parts.into_iter().flat_map(|part| (0..LATEST).map(move |after| Taking { after, part }))
}

/// The calls that can leave a gap.
fn replacements(calls: &[Call]) -> impl Iterator<Item = (usize, Call)> + '_ {
    calls.iter().copied().enumerate().filter(|(_, call)| matches!(call, Call::MoveTo | Call::MapFileAt))
}

/// The contents of a range by the distance from its start.
fn contents(kernel: &SimulatedKernel, range: AddressRange) -> Vec<(u64, Content)> {
    kernel.contents(range).iter().map(|stretch| (stretch.range.start() - range.start(), stretch.content)).collect()
}

/// The memory of the other thread is mapped, writable, and holds what the thread has written.
fn other_thread_keeps_its_memory(kernel: &SimulatedKernel, what: &str) {
    for range in kernel.taken().iter() {
        assert_eq!(contents(kernel, range), [(0, Content::OtherThread(range.start()))], "{range}: {what}");
        let space = kernel.mappings();
        let is_writable = space.overlapping(range).iter().all(|found| found.protection == Protection::READ_WRITE);
        assert!(space.is_fully_mapped(range) && is_writable, "{range}: {what}");
    }
}

fn all_but_these_keep_their_contents(these: &RangeSet, before: &SimulatedKernel, now: &SimulatedKernel, what: &str) {
    let mut rest = before.mapped();
    these.iter().for_each(|range| rest.remove(range));
    for range in rest.iter() {
        assert!(now.mapped().covers(range), "{range} is not mapped: {what}");
        assert_eq!(contents(now, range), contents(before, range), "{range}: {what}");
    }
}

/// Memory that is not displaced has its earlier protection or the planned one.
fn protections_are_right(scenario: &Scenario, kernel: &SimulatedKernel, displaced: &RangeSet, what: &str) {
    let (before, now) = (&scenario.process.space, kernel.mappings());
    for (lift, old) in
        scenario.plan.lifts.iter().flat_map(|lift| before.overlapping(lift.range).iter().map(move |old| (lift, old)))
    {
        let mut rest = RangeSet::from_iter([old.range.intersect(lift.range)]);
        displaced.iter().for_each(|range| rest.remove(range));
        for found in rest.iter().flat_map(|range| now.overlapping(range)) {
            assert!([old.protection, lift.protection].contains(&found.protection), "{found:?}: {what}");
        }
    }
}

/// The displaced parts of a range. The outcome has the correct address of their contents.
fn displaced(scenario: &Scenario, kernel: &SimulatedKernel, told: &RangeOutcome, what: &str) -> RangeSet {
    for uncovered in &told.uncovered {
        let Reason::Displaced { kept } = uncovered.reason else { continue };
        let at = kept.unwrap_or_else(|| panic!("{} is not kept: {what}", uncovered.range));
        let copy = AddressRange::sized(at, uncovered.range.len());
        assert!(kernel.mapped().covers(copy), "{copy} is not mapped: {what}");
        assert_eq!(contents(kernel, copy), contents(&scenario.kernel, uncovered.range), "{what}");
    }
    let displaced = told.displaced();
    assert!(displaced.iter().all(|range| !told.covered.overlaps(range)), "{what}");
    displaced
}

fn judge(scenario: &Scenario, run: &Run, script: &Script, displaced_parts: &RangeSet) {
    let log: Vec<_> = run.kernel.log().iter().map(|(call, range)| format!("{call:?} {range}")).collect();
    let what = format!("{}\n{script:?}\n{log:#?}\n{:#?}", scenario.name, run.outcome);
    let mut kernel = run.kernel.clone();
    kernel.follow(Script::new());
    assert!(kernel.violations().is_empty(), "{:?}: {what}", kernel.violations());
    other_thread_keeps_its_memory(&kernel, &what);
    let told = run
        .outcome
        .ranges
        .iter()
        .flat_map(|range| displaced(scenario, &kernel, range, &what).iter().collect::<Vec<_>>());
    let told: RangeSet = told.collect();
    assert_eq!(told, *displaced_parts, "the outcome reports other displaced parts: {what}");
    all_but_these_keep_their_contents(&told, &scenario.kernel, &kernel, &what);
    protections_are_right(scenario, &kernel, &told, &what);
    let mut left = kernel.mapped();
    scenario.kernel.mapped().iter().for_each(|range| left.remove(range));
    assert!(left.is_empty() || !told.is_empty(), "left behind: {left:?}: {what}");
    let unexpected: RangeSet = run.outcome.unexpected.iter().map(|difference| difference.range).collect();
    assert!(left.iter().all(|range| unexpected.covers(range)), "not reported: {left:?}: {what}");
}

/// Scenarios in which other threads run: memory is moved aside, and writable memory is replaced, only while no other
/// thread runs.
fn scenarios() -> impl Iterator<Item = Scenario> {
    let programs = [programs::mariadbd(), programs::static_pie(), programs::go()];
    let scenarios = programs.into_iter().flat_map(|program| scenarios_of(&program));
    let read_only = scenarios.map(|mut scenario| {
        scenario.plan.lifts.retain(|lift| !lift.protection.write);
        scenario
    });
    // No other thread runs while the destination of a move is empty.
    read_only.filter(|scenario| !scenario.moves_aside() && !scenario.machine.holds_threads)
}

#[test]
fn a_gap_of_any_replacement_is_taken_at_any_step() {
    let (mut taken, mut free) = (0, 0);
    for scenario in scenarios() {
        for (number, _) in replacements(&scenario.calls()) {
            for taking in takings() {
                let script = Script::new().failing_at(number, TAKEN).taking(taking);
                let run = scenario.run(&script);
                judge(&scenario, &run, &script, run.kernel.taken());
                if run.kernel.taken().is_empty() { free += 1 } else { taken += 1 }
            }
        }
    }
    assert!(taken > 0 && free > 0, "{taken} gaps taken, {free} reserved before");
}

/// Each further try over the reservation leaves a gap that is taken, too.
#[test]
fn each_gap_of_all_tries_is_taken_at_any_step() {
    for scenario in scenarios() {
        for (number, call) in replacements(&scenario.calls()) {
            for taking in takings() {
                let script = Script::new().failing_from(number, Some(call), TAKEN).taking(taking);
                let run = scenario.run(&script);
                judge(&scenario, &run, &script, run.kernel.taken());
            }
        }
    }
}

/// No other thread is there, but the reserved gap cannot be filled: the copy is the only place of the contents.
#[test]
fn a_copy_is_kept_if_its_contents_can_be_put_nowhere() {
    let gone = Failure { mode: Mode::DestinationGone, ..TAKEN };
    let clean = Failure { mode: Mode::Clean, ..TAKEN };
    for scenario in scenarios() {
        for (number, _) in replacements(&scenario.calls()).filter(|(_, call)| *call == Call::MoveTo) {
            let script = Script::new().failing_from(number, Some(Call::MoveTo), gone);
            let script = script.failing_from(number, Some(Call::Copy), clean);
            let run = scenario.run(&script);
            let moves = run.kernel.log()[number..].iter().filter(|(call, _)| *call == Call::MoveTo);
            let gaps = moves.map(|(_, range)| *range).collect();
            judge(&scenario, &run, &script, &gaps);
        }
    }
}

/// A page that holds what the program's page held.
fn is_kept(lifted: &Lifted, kernel: &SimulatedKernel, page: AddressRange) -> bool {
    let mut left = kernel.mapped();
    lifted.kernel.mapped().iter().for_each(|range| left.remove(range));
    let before = contents(&lifted.kernel, page);
    left.iter().any(|range| range.pages(base_page()).any(|copy| contents(kernel, copy) == before))
}

fn judge_restore(lifted: &Lifted, range: &(RangeOutcome, AddressRange), script: &Script) {
    let (mut kernel, result) = lifted.restored(range, script);
    let what = format!("{} {}: {script:?}: {result:?}: {:#?}", lifted.scenario.name, range.1, kernel.log());
    kernel.follow(Script::new());
    assert!(kernel.violations().is_empty(), "{:?}: {what}", kernel.violations());
    other_thread_keeps_its_memory(&kernel, &what);
    let taken = kernel.taken().clone();
    assert!(taken.is_empty() || result.is_err(), "{what}");
    for taken in taken.iter() {
        let first = AddressRange::sized(taken.start(), base_page().bytes());
        assert!(is_kept(lifted, &kernel, first), "{taken} is not kept: {what}");
    }
    all_but_these_keep_their_contents(&taken, &lifted.kernel, &kernel, &what);
}

#[test]
fn a_restore_replaces_no_memory_of_another_thread() {
    for lifted in lifted_programs() {
        for range in lifted.ranges.iter().filter(|(lifted, _)| !lifted.protection.write) {
            let calls = lifted.restore(range, &Script::new()).1;
            for (number, call) in replacements(&calls) {
                for taking in takings() {
                    let once = Script::new().failing_at(number, TAKEN).taking(taking);
                    judge_restore(&lifted, range, &once);
                    let always = Script::new().failing_from(number, Some(call), TAKEN).taking(taking);
                    judge_restore(&lifted, range, &always);
                }
            }
        }
    }
}
