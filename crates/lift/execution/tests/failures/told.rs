//! The outcome of a successful lift, of a lift that needs its second source, and of a failed one.

use crate::scenario::{Run, Scenario, machine, scenarios_of};
use crate::support::{PAGE, Program, Segment, Shape, page_size, programs, range};
use address_space::{AddressRange, MappingName, ObjectRole, Protection, RangeSet};
use lift_execution::{RangeOutcome, Report, Uncovered};
use lift_plan::{Edges, Method, Pages, Part, Policy, RangeLift, Reason, Source};
use lift_simulation::simulated::{Call, Content, Failure, Mode, Script, SimulatedMachine, Stretch, errno};

const HUGE: u64 = programs::HUGE;

fn for_each_lift(mut check: impl FnMut(&Scenario, &Run, &RangeLift, &RangeOutcome)) {
    for scenario in programs::all().iter().flat_map(scenarios_of) {
        let run = scenario.run(&Script::new());
        assert_eq!(run.outcome.ranges.len(), scenario.plan.lifts.len());
        scenario.plan.lifts.iter().zip(&run.outcome.ranges).for_each(|(lift, told)| check(&scenario, &run, lift, told));
    }
}

/// The bytes of a part that are only advised.
fn advised(part: &Part) -> u64 {
    part.range.len() - part.filled()
}

#[test]
fn a_lift_that_goes_well_is_told_as_it_was_planned() {
    for_each_lift(|scenario, run, lift, told| {
        let (first, name) = (&lift.attempts[0], &scenario.name);
        let as_planned = (&lift.object, &lift.kinds, lift.range, lift.protection);
        assert_eq!((&told.object, &told.kinds, told.range, told.protection), as_planned, "{name}");
        assert_eq!((told.source, told.page_size), (Some(first.source), first.page_size), "{name}");
        assert_eq!((told.failed.len(), told.uncovered.len()), (0, 0), "{name}: {told:?}");
        assert_eq!(told.made_resident, first.memory, "{name}: {lift:?}");
        let advised = first.parts.iter().map(advised).sum::<u64>();
        assert_eq!((told.advised, told.covered.bytes()), (advised, lift.range.len() - advised), "{name}: {told:?}");
        assert!(run.outcome.is_complete());
    });
}

#[test]
fn sums_are_those_of_the_ranges() {
    for scenario in programs::all().iter().flat_map(scenarios_of) {
        let report = Report::new(scenario.plan.clone(), scenario.run(&Script::new()).outcome, 0);
        let sum = |of: &dyn Fn(&RangeOutcome) -> u64| report.ranges.iter().map(of).sum::<u64>();
        assert_eq!(report.covered_bytes, sum(&|range| range.covered.bytes()));
        assert_eq!(report.advised_bytes, sum(&|range| range.advised));
        assert_eq!(report.made_resident_bytes, sum(&|range| range.made_resident));
        assert_eq!(report.considered_bytes, scenario.plan.considered);
        for source in [Source::File, Source::Image, Source::Hugetlb, Source::Thp] {
            let of_source = |range: &RangeOutcome| if range.source == Some(source) { range.covered.bytes() } else { 0 };
            assert_eq!(report.covered_from(source), sum(&of_source));
        }
    }
}

/// Copies on transparent pages are named in maps; memory that stays in place keeps its name.
#[test]
fn only_copies_on_transparent_pages_are_named() {
    for_each_lift(|scenario, run, lift, told| {
        let kinds: Vec<_> = lift.kinds.iter().map(ToString::to_string).collect();
        let mark = MappingName::Named(format!("pagelift {} {}", kinds.join("+"), lift.object));
        let (before, after) = (&scenario.process.space, run.kernel.mappings());
        for part in &lift.attempts[0].parts {
            let found = &after.find(part.range.start()).unwrap().name;
            match part.method {
                Method::Swap { .. } if told.source == Some(Source::Thp) => {
                    assert_eq!(*found, mark, "{}", scenario.name)
                }
                Method::InPlace { .. } => assert_eq!(*found, before.find(part.range.start()).unwrap().name),
                _ => assert_ne!(*found, mark, "{}", scenario.name),
            }
        }
        // They are named elsewhere, before they are moved.
        let copies = scenario.plan.lifts.iter().flat_map(copies_on_transparent_pages);
        let named = run.kernel.log().iter().filter(|(call, _)| *call == Call::Name).map(|(_, range)| range.len());
        assert!(named.eq(copies.map(|range| range.len())), "{}", scenario.name);
    });
}

fn copies_on_transparent_pages(lift: &RangeLift) -> Vec<AddressRange> {
    let first = Some(&lift.attempts[0]).filter(|attempt| attempt.source == Source::Thp);
    let parts = first.into_iter().flat_map(|attempt| &attempt.parts);
    parts.filter(|part| matches!(part.method, Method::Swap { .. })).map(|part| part.range).collect()
}

/// A program of two huge pages of code.
fn code(path: &'static str) -> Program {
    let segments = vec![Segment::new(Protection::READ_EXECUTE, 2 * HUGE)];
    let mut program = Program::new("code");
    program.load(&Shape::new(path, ObjectRole::Executable, 16 * HUGE, segments), true);
    program.finish()
}

fn scenario(program: &Program, pages: Pages) -> Scenario {
    let (facts, machine) = machine(page_size(HUGE), true, true);
    Scenario::new(program, &Policy { pages, ..Policy::default() }, &facts, machine)
}

/// prctl(2) takes 79 printable characters, and none of ``[]\$` ``.
#[test]
fn names_hold_only_what_the_kernel_allows() {
    let name_of = |path| {
        let run = scenario(&code(path), Pages::Thp);
        let run = run.run(&Script::new());
        run.kernel.mappings().mappings()[0].name.clone()
    };
    let expected = MappingName::Named("pagelift text a_b_c_d_e_f g-h_i_".to_owned());
    assert_eq!(name_of("/opt/a[b]c\\d$e`f g-h\ti\u{e9}"), expected);
    let long = "/opt/a-name-of-more-characters-than-the-kernel-takes-for-a-mapping-of-anonymous-memory";
    let MappingName::Named(cut) = name_of(long) else { panic!("no name") };
    assert_eq!(cut, format!("pagelift text {}", &long[5..])[..79]);
}

#[test]
fn a_source_that_fails_is_named_and_the_next_one_serves() {
    let planned = scenario(&code("/opt/prog"), Pages::Auto);
    assert_eq!(planned.plan.lifts[0].attempts.len(), 2);
    let no_pool = |machine: &mut SimulatedMachine| machine.pools.values_mut().for_each(|free| *free = 0);
    let kernel = planned.short_of(no_pool);
    let told = &planned.run_on(&kernel, &Script::new()).outcome.ranges[0];
    assert_eq!(told.source, Some(Source::Thp));
    assert_eq!((told.covered.bytes(), told.made_resident), (2 * HUGE, 2 * HUGE));
    let [failed] = &told.failed[..] else { panic!("{told:?}") };
    let refused = matches!(&failed.reason, Reason::Kernel { call: "mmap", errno: errno::ENOMEM, .. });
    assert!(failed.source == Source::Hugetlb && refused, "{told:?}");
}

fn failing(call: Call, errno: i32) -> Script {
    Script::new().failing_from(0, Some(call), Failure { errno, mode: Mode::Clean })
}

#[test]
fn what_could_not_be_lifted_is_told_with_its_first_reason() {
    let planned = scenario(&code("/opt/prog"), Pages::Hugetlb);
    // The coverage cannot be read back either, but that is not the reason for the failed lift.
    let script = failing(Call::Map, errno::EACCES).failing_from(
        0,
        Some(Call::Huge),
        Failure { errno: errno::EIO, mode: Mode::Clean },
    );
    let outcome = planned.run(&script).outcome;
    let told = &outcome.ranges[0];
    assert_eq!((told.source, told.made_resident, outcome.is_complete()), (None, 0, false));
    let [Uncovered { range, reason: Reason::Kernel { errno, .. } }] = &told.uncovered[..] else { panic!("{told:?}") };
    assert_eq!((*range, *errno), (told.range, errno::EACCES));
}

#[test]
fn what_cannot_be_read_back_is_not_said_to_be_huge() {
    let planned = scenario(&code("/opt/prog"), Pages::Hugetlb);
    let outcome = planned.run(&failing(Call::Huge, errno::EIO)).outcome;
    let told = &outcome.ranges[0];
    assert_eq!((told.source, told.covered.bytes()), (Some(Source::Hugetlb), 0));
    let [Uncovered { range, reason: Reason::Kernel { errno, .. } }] = &told.uncovered[..] else { panic!("{told:?}") };
    assert_eq!((*range, *errno, outcome.is_complete()), (told.range, errno::EIO, false));
}

/// One of three huge pages of touched memory cannot be collapsed: the others are huge, and only they are counted.
#[test]
fn memory_made_resident_is_counted_for_what_was_done() {
    let mut program = Program::new("heap");
    program.heap(range(16 * HUGE, 19 * HUGE));
    program.facts.touched = RangeSet::from_iter((16..19).map(|page| range(page * HUGE, page * HUGE + PAGE)));
    let planned = scenario(&program.finish(), Pages::Thp);
    let all = planned.plan.lifts[0].attempts[0].memory;
    assert_eq!(all, 3 * (HUGE - PAGE));
    let two = planned.short_of(|machine| machine.thp.iter_mut().for_each(|thp| thp.left = 2));
    let told = &planned.run_on(&two, &Script::new()).outcome.ranges[0];
    assert_eq!((told.covered.bytes(), told.made_resident), (2 * HUGE, all / 3 * 2), "{told:?}");
    assert_eq!(told.uncovered.iter().map(|uncovered| uncovered.range.len()).sum::<u64>(), HUGE);
}

fn contents_of(stretches: &[Stretch]) -> Vec<Content> {
    stretches.iter().map(|stretch| stretch.content).collect()
}

/// The contents outside the plan's range that have its length.
fn kept_aside(planned: &Scenario, run: &Run) -> Option<Vec<Content>> {
    let range = planned.plan.lifts[0].range;
    let aside = run.kernel.mapped().iter().find(|aside| aside.len() >= range.len() && !aside.overlaps(range))?;
    Some(contents_of(&run.kernel.contents(AddressRange::sized(aside.start(), range.len()))))
}

/// Memory that was moved aside and cannot be moved back is at least not dropped.
#[test]
fn what_cannot_be_put_back_is_kept_aside() {
    let (facts, machine) = machine(page_size(HUGE), false, true);
    let policy = Policy { pages: Pages::Hugetlb, edges: Edges::Exact, ..Policy::default() };
    let planned = Scenario::new(&code("/opt/prog"), &policy, &facts, machine);
    assert!(planned.moves_aside());
    let calls = planned.calls();
    let moved = calls.iter().position(|call| *call == Call::MoveTo).unwrap();
    let clean = Failure { errno: errno::ENOMEM, mode: Mode::Clean };
    let later = [Call::MapAt, Call::MoveTo].into_iter();
    let script = later.fold(Script::new(), |script, call| script.failing_from(moved + 1, Some(call), clean));
    let run = planned.run(&script);
    let code = planned.plan.lifts[0].range;
    assert_eq!(kept_aside(&planned, &run), Some(contents_of(&planned.kernel.contents(code))), "{:?}", run.kernel.log());
    assert!(!run.outcome.unexpected.is_empty(), "the loss is told");
}

/// No call could move the memory back, because another mapping occupies its place.
#[test]
fn what_something_stands_in_the_way_of_is_kept_aside() {
    const TRIES: usize = 16;
    let (facts, machine) = machine(page_size(HUGE), false, true);
    let policy = Policy { pages: Pages::Hugetlb, ..Policy::default() };
    let planned = Scenario::new(&code("/opt/prog"), &policy, &facts, machine);
    let clean = Failure { errno: errno::ENOMEM, mode: Mode::Clean };
    let populated = planned.calls().iter().position(|call| *call == Call::Populate).unwrap();
    // Neither unmapping the new memory succeeds nor any move.
    let unmaps = populated + 1..=populated + TRIES;
    let script = unmaps.fold(Script::new().failing_at(populated, clean), |script, at| script.failing_at(at, clean));
    let run = planned.run(&script.failing_from(populated + 1, Some(Call::MoveTo), clean));
    assert_eq!(kept_aside(&planned, &run), Some(contents_of(&planned.kernel.contents(planned.plan.lifts[0].range))));
}

/// That the mappings cannot be read back either is not why nothing was swapped. The copy is kept: nobody knows whether
/// the range still has its contents.
#[test]
fn a_swap_that_fails_is_told_though_nobody_can_see_what_is_left() {
    let planned = scenario(&code("/opt/prog"), Pages::Hugetlb);
    let clean = |errno| Failure { errno, mode: Mode::Clean };
    let script = Script::new().failing_from(0, Some(Call::Space), clean(errno::EIO));
    let outcome = planned.run(&script.failing_from(0, Some(Call::MoveTo), clean(errno::EAGAIN))).outcome;
    let told = &outcome.ranges[0];
    let reason = &told.failed[0].reason;
    assert!(matches!(reason, Reason::Kernel { call: "mremap", errno: errno::EAGAIN, .. }), "{reason:?}");
    assert_eq!(told.displaced(), RangeSet::from_iter([told.range]));
}

/// If page faults give ordinary pages, collapsing makes them huge.
#[test]
fn what_faults_leave_on_ordinary_pages_is_collapsed() {
    let planned = scenario(&code("/opt/prog"), Pages::Thp);
    let kernel = planned.short_of(|machine| machine.thp.iter_mut().for_each(|thp| thp.at_fault = false));
    let outcome = planned.run_on(&kernel, &Script::new()).outcome;
    assert!(outcome.is_complete(), "{outcome:?}");
    assert_eq!(outcome.covered(), 2 * HUGE);
}

/// Nothing was taken from the program, so that there is nothing to try again.
#[test]
fn an_image_that_cannot_be_mapped_is_tried_once_and_told() {
    let planned = scenario(&code("/opt/prog").imaged(HUGE), Pages::Image);
    let run = planned.run(&failing(Call::MapFileAt, errno::ENOENT));
    let told = &run.outcome.ranges[0];
    let [failed] = &told.failed[..] else { panic!("{told:?}") };
    assert!(matches!(failed.reason, Reason::Kernel { errno: errno::ENOENT, .. }), "{told:?}");
    assert_eq!(run.kernel.log().iter().filter(|(call, _)| *call == Call::MapFileAt).count(), 1);
}
