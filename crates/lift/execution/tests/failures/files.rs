//! Lifts from the page cache of the files themselves.

use crate::judge::{Leniency, judge};
use crate::scenario::{Scenario, machine};
use crate::single::each_call_fails;
use crate::support::{Program, Segment, Shape, page_size, programs, range};
use address_space::{ObjectRole, Protection};
use lift_execution::RangeOutcome;
use lift_plan::{Method, Pages, Policy, Reason, Source};
use lift_simulation::simulated::{Call, Failure, Mode, Script, SimulatedKernel, SimulatedMachine, errno};
use programs::HUGE;

const PROGRAM: &str = "/opt/prog";
const OTHER: &str = "/opt/other";

/// A program of three huge pages of code, linked so that its addresses agree with its offsets, and completely cached,
/// beside another file.
fn scenario(pages: Pages) -> Scenario {
    of_program(program().all_cached(), pages)
}

fn program() -> Program {
    let segments = vec![Segment::new(Protection::READ_EXECUTE, 3 * HUGE)];
    let mut program = Program::new("code");
    program.load(&Shape::new(PROGRAM, ObjectRole::Executable, 16 * HUGE, segments), true);
    program.file(range(HUGE, 2 * HUGE), Protection::READ, OTHER, 0, 77);
    program
}

fn of_program(program: Program, pages: Pages) -> Scenario {
    let (facts, machine) = machine(page_size(HUGE), true, true);
    Scenario::new(&program.finish(), &Policy { pages, ..Policy::default() }, &facts, machine)
}

/// Lifts the one range on `kernel`, checks the program afterwards, and returns the outcome and the calls.
fn lift(scenario: &Scenario, kernel: &SimulatedKernel, script: &Script) -> (RangeOutcome, Vec<Call>) {
    let on = scenario.on(kernel.clone());
    let run = on.run(script);
    judge(&on, &run, Leniency::default()).unwrap();
    let [told] = &run.outcome.ranges[..] else { panic!("{:?}", run.outcome) };
    (told.clone(), run.kernel.log().iter().map(|(call, _)| *call).collect())
}

fn methods(scenario: &Scenario) -> Vec<(Source, Method)> {
    let attempts = scenario.plan.lifts.iter().flat_map(|lift| &lift.attempts);
    attempts.map(|attempt| (attempt.source, attempt.parts[0].method.clone())).collect()
}

#[test]
fn a_file_in_huge_folios_is_refaulted_where_it_lies() {
    let planned = scenario(Pages::File);
    let again = Method::MapAgain { path: format!("/root{PROGRAM}"), offset: 0 };
    assert_eq!(methods(&planned), [(Source::File, Method::Refault), (Source::File, again)]);
    let (told, calls) = lift(&planned, &planned.kernel, &Script::new());
    assert_eq!((told.source, told.covered.bytes(), told.made_resident), (Some(Source::File), 3 * HUGE, 0));
    assert!(calls.contains(&Call::Refault) && !calls.contains(&Call::MapOwnFile), "{calls:?}");
    // Memory that is huge already is not changed.
    let mut lifted = planned.run(&Script::new()).kernel;
    lifted.follow(Script::new());
    let (told, calls) = lift(&planned, &lifted, &Script::new());
    assert_eq!((told.source, told.covered.bytes()), (Some(Source::File), 3 * HUGE));
    assert!(!calls.contains(&Call::Refault), "{calls:?}");
}

#[test]
fn where_page_tables_stay_the_file_is_mapped_again() {
    let planned = scenario(Pages::File);
    let kernel = planned.short_of(|machine: &mut SimulatedMachine| machine.refaults_huge = false);
    let (told, calls) = lift(&planned, &kernel, &Script::new());
    assert_eq!((told.source, told.covered.bytes(), told.made_resident), (Some(Source::File), 3 * HUGE, 0));
    assert!(calls.contains(&Call::MapOwnFile) && calls.contains(&Call::MoveTo), "{calls:?}");
    assert_eq!(told.failed[0].reason, Reason::SmallFolios(None));
}

#[test]
fn a_file_that_has_become_small_leaves_the_program_as_it_is() {
    let planned = scenario(Pages::File);
    let kernel = planned.short_of(|machine: &mut SimulatedMachine| machine.files[0].huge.clear());
    let (told, _) = lift(&planned, &kernel, &Script::new());
    assert_eq!(told.covered.bytes(), 0);
    assert!(told.uncovered.iter().all(|uncovered| uncovered.reason == Reason::SmallFolios(None)), "{told:?}");
    // One folio of three is shown if no other source is available.
    let (told, _) = lift(&planned, &with_folios(&planned, 1, true), &Script::new());
    assert_eq!((told.source, told.covered.bytes()), (Some(Source::File), HUGE));
}

/// The state in which the file has only its first folios left.
fn with_folios(planned: &Scenario, number: u64, refaults_huge: bool) -> SimulatedKernel {
    planned.short_of(|machine: &mut SimulatedMachine| {
        machine.files[0].huge = std::iter::once(0..number * HUGE).collect();
        machine.refaults_huge = refaults_huge;
    })
}

#[test]
fn the_next_source_serves_where_the_file_shows_no_more_than_half() {
    let planned = scenario(Pages::Auto);
    let served = |folios, refaults_huge, script: &Script| {
        let (told, _) = lift(&planned, &with_folios(&planned, folios, refaults_huge), script);
        (told.source, told.covered.bytes(), told.failed.len())
    };
    let plain = &Script::new();
    assert_eq!(served(2, true, plain), (Some(Source::File), 2 * HUGE, 0));
    assert_eq!(served(1, true, plain), (Some(Source::Hugetlb), 3 * HUGE, 2));
    assert_eq!(served(2, false, plain), (Some(Source::File), 2 * HUGE, 1));
    assert_eq!(served(1, false, plain), (Some(Source::Hugetlb), 3 * HUGE, 2));
    // If that fails, the range keeps the parts that the file shows.
    let failure = Failure { errno: errno::ENOMEM, mode: Mode::Clean };
    let no_memory = Script::new().failing_from(0, Some(Call::Map), failure);
    let (source, covered, _) = served(1, true, &no_memory);
    assert_eq!((source, covered), (Some(Source::File), HUGE));
}

/// After any failure between the file and the next source, the program keeps its contents.
#[test]
fn each_call_fails_where_the_file_shows_little() {
    let planned = scenario(Pages::Auto);
    for refaults_huge in [true, false] {
        let on = planned.on(with_folios(&planned, 1, refaults_huge));
        each_call_fails(&on, &on.calls(), usize::MAX);
    }
}

/// The path of the file leads to another one by now.
#[test]
fn a_file_that_has_been_replaced_is_never_shown() {
    let planned = scenario(Pages::File);
    let kernel = planned.short_of(|machine: &mut SimulatedMachine| {
        machine.refaults_huge = false;
        machine.files[0].path = OTHER.to_owned();
    });
    let (told, _) = lift(&planned, &kernel, &Script::new());
    assert_eq!((told.source, told.covered.bytes()), (None, 0));
    assert!(told.failed.iter().any(|failed| failed.reason == Reason::FileReplaced), "{told:?}");
}

/// A breakpoint was set after the plan was made.
#[test]
fn what_was_written_since_the_plan_is_never_lost() {
    for refaults_huge in [true, false] {
        let planned = scenario(Pages::File);
        let mut kernel = planned.short_of(|machine: &mut SimulatedMachine| machine.refaults_huge = refaults_huge);
        let at = planned.plan.lifts[0].range.start() + HUGE + 0x123;
        kernel.poke(at, b"breakpoint");
        let (told, _) = lift(&planned, &kernel, &Script::new());
        assert_eq!(told.source, None);
        let busy = |reason: &Reason| matches!(reason, Reason::Kernel { errno: errno::EBUSY, .. });
        assert!(told.failed.iter().all(|failed| busy(&failed.reason)), "{told:?}");
    }
}

#[test]
fn the_next_source_serves_where_the_file_fails() {
    let planned = scenario(Pages::Auto);
    let sources: Vec<_> = methods(&planned).into_iter().map(|(source, _)| source).collect();
    assert_eq!(sources, [Source::File, Source::File, Source::Hugetlb, Source::Thp]);
    let failure = Failure { errno: errno::EPERM, mode: Mode::Clean };
    let script = [Call::Refault, Call::MapOwnFile]
        .into_iter()
        .fold(Script::new(), |script, call| script.failing_from(0, Some(call), failure));
    let (told, _) = lift(&planned, &planned.kernel, &script);
    assert_eq!((told.source, told.covered.bytes(), told.failed.len()), (Some(Source::Hugetlb), 3 * HUGE, 2));
}

/// The second of three blocks is not cached: an image shows it, if there is one.
#[test]
fn an_image_shows_what_the_file_leaves_over() {
    let partly = || program().all_partly_cached(HUGE);
    let planned = of_program(partly().imaged(HUGE), Pages::FileThenImage);
    let run = planned.run(&Script::new());
    judge(&planned, &run, Leniency::default()).unwrap();
    let mut told: Vec<_> = run.outcome.ranges.iter().map(|range| (range.covered.bytes(), range.source)).collect();
    told.sort();
    assert_eq!(told, [(HUGE, Some(Source::Image)), (HUGE, Some(Source::File)), (HUGE, Some(Source::File))]);
    // No copy is made if there is no other source.
    let planned = of_program(partly(), Pages::FileThenImage);
    assert!(planned.plan.lifts.iter().all(|lift| lift.attempts.iter().all(|attempt| attempt.source == Source::File)));
    assert_eq!((planned.plan.planned(), planned.plan.refusals.len()), (2 * HUGE, 1));
}
