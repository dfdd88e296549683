//! Restores of lifted memory in which each call fails in turn: every byte keeps its value and protection, and no
//! mapping is left behind.

use crate::judge::{contents_are_right, same_protection};
use crate::scenario::{Scenario, machine};
use crate::support::{Program, page_size, programs};
use address_space::{AddressRange, MappingName, Protection, RangeSet};
use lift_execution::{CallError, FileMapping, RangeOutcome, RestoredPart, RestoredRange, restore};
use lift_plan::{Pages, Policy, Source, WritablePages};
use lift_simulation::simulated::{Call, Failure, Mode, Script, SimulatedKernel, errno};
use programs::HUGE;

/// A program that is lifted, and the paths by which it opens its own files.
pub struct Lifted {
    pub scenario: Scenario,
    pub kernel: SimulatedKernel,
    pub ranges: Vec<(RangeOutcome, AddressRange)>,
    /// Number of bytes that are moved at a time.
    at_once: u64,
}

impl Lifted {
    /// Code, data and all else on pages of the pool or transparent ones; a debugger has written to the first page of each
    /// range, and to the last one of code and constants, which all were present when the lift was planned.
    fn new(program: &Program, pages: Pages, writable_pages: WritablePages) -> Self {
        let (facts, machine) = machine(page_size(HUGE), true, false);
        let policy = Policy { pages, writable_pages, ..Policy::default() };
        let scenario = Scenario::new(&program.clone().all_cached(), &policy, &facts, machine);
        let mut changed = scenario.kernel.clone();
        for lift in &scenario.plan.lifts {
            let last = (!lift.protection.write).then_some(lift.range.end() - 0x1234);
            let places = [Some(lift.range.start() + 0x1234), last].into_iter().flatten();
            places.for_each(|at| changed.poke(at, b"breakpoint"));
        }
        let scenario = scenario.on(changed);
        let run = scenario.run(&Script::new());
        assert!(run.outcome.is_complete(), "{}: {:#?}", scenario.name, run.outcome);
        let copied = |range: &&RangeOutcome| matches!(range.source, Some(Source::Hugetlb | Source::Thp));
        let each = |range: &RangeOutcome| range.lifted.iter().map(|part| (range.clone(), part)).collect::<Vec<_>>();
        let ranges = run.outcome.ranges.iter().filter(copied).flat_map(each).collect();
        let mut kernel = run.kernel;
        kernel.follow(Script::new());
        Self { scenario, kernel, ranges, at_once: u64::MAX }
    }

    /// The earlier contents of a range: files if the program can open them.
    fn parts(&self, range: AddressRange) -> Vec<RestoredPart<'_>> {
        let parts = self.scenario.process.space.overlapping(range).iter().map(|mapping| {
            let cut = mapping.range.intersect(range);
            let own = self.scenario.machine.files.iter().find(|file| Some(file.path.as_str()) == mapping.path());
            let file = own.and_then(|file| file.own_path.as_deref()).map(|path| FileMapping {
                path,
                offset: mapping.offset + (cut.start() - mapping.range.start()),
                protection: Protection::READ_WRITE,
            });
            RestoredPart { range: cut, protection: mapping.protection, file }
        });
        parts.collect()
    }

    /// Restores one range with failures.
    pub fn restored(
        &self,
        (lifted, range): &(RangeOutcome, AddressRange),
        script: &Script,
    ) -> (SimulatedKernel, Result<(), CallError>) {
        let mut kernel = self.kernel.clone();
        kernel.follow(script.clone());
        let parts = self.parts(*range);
        let is_pool = lifted.source == Some(Source::Hugetlb);
        let (protection, at_once) = (lifted.protection, self.at_once);
        let whole = RestoredRange { range: *range, protection, is_pool, at_once, parts: &parts };
        let result = restore(&mut kernel, &whole, |kernel, part, copy| Ok(changes_in(kernel, part.range, copy)));
        (kernel, result)
    }

    /// Restores one range with failures, and checks the program afterwards. Returns the result and the calls.
    pub fn restore(&self, range: &(RangeOutcome, AddressRange), script: &Script) -> (bool, Vec<Call>) {
        let (mut kernel, result) = self.restored(range, script);
        let range = &range.1;
        let parts = self.parts(*range);
        let calls = kernel.log().iter().map(|(call, _)| *call).collect();
        kernel.follow(Script::new());
        let what = || format!("{} {range}: {script:?}: {result:?}", self.scenario.name);
        assert!(kernel.violations().is_empty(), "{}: {:?}", what(), kernel.violations());
        contents_are_right(&self.scenario, &kernel).unwrap_or_else(|why| panic!("{}: {why}", what()));
        assert_eq!(kernel.mapped(), self.scenario.kernel.mapped(), "{}", what());
        let after = kernel.mappings();
        for part in &parts {
            same_protection(&after, part.range, part.protection).unwrap_or_else(|why| panic!("{}: {why}", what()));
        }
        if result.is_ok() {
            for part in &parts {
                let found = after.overlapping(part.range);
                let is_own = |path: &str| part.file.is_none_or(|file| file.path == format!("/root{path}"));
                let shows = |path: Option<&str>| path.map_or(part.file.is_none(), is_own);
                assert!(found.iter().all(|mapping| shows(mapping.path())), "{}: {found:?}", what());
                assert!(found.iter().all(|mapping| mapping.name != MappingName::HugetlbAnonymous), "{found:?}");
            }
        }
        (result.is_ok(), calls)
    }
}

/// The huge pages of a range whose contents differ from those at `copy`.
fn changes_in(kernel: &SimulatedKernel, range: AddressRange, copy: AddressRange) -> RangeSet {
    let contents = |range: AddressRange| -> Vec<_> {
        let stretches = kernel.contents(range).into_iter();
        stretches.map(|stretch| (stretch.range.start() - range.start(), stretch.content)).collect()
    };
    let differs = |page: &AddressRange| {
        let shown = AddressRange::sized(copy.start() + (page.start() - range.start()), page.len());
        contents(*page) != contents(shown)
    };
    range.pages(page_size(HUGE)).filter(differs).collect()
}

pub fn all() -> Vec<Lifted> {
    let policies = [
        (Pages::Hugetlb, WritablePages::Hugetlb),
        (Pages::Thp, WritablePages::Hugetlb),
        (Pages::Thp, WritablePages::Thp),
    ];
    let programs = [programs::mariadbd(), programs::static_pie(), programs::two_segments(), programs::aligned()];
    let each = |program: &Program| policies.map(|(pages, writable)| Lifted::new(program, pages, writable));
    let in_one_move: Vec<_> = programs.iter().flat_map(each).collect();
    let in_pieces = programs.iter().flat_map(each).map(|lifted| Lifted { at_once: 4 * HUGE, ..lifted });
    in_pieces.chain(in_one_move).collect()
}

#[test]
fn what_was_lifted_shows_its_files_again() {
    let (mut files, mut single, mut several, mut pieces) = (0, 0, 0, 0);
    for lifted in all() {
        for range in &lifted.ranges {
            let (is_restored, calls) = lifted.restore(range, &Script::new());
            assert!(is_restored, "{} {}", lifted.scenario.name, range.1);
            files += calls.iter().filter(|call| **call == Call::MapOwnFile).count();
            let parts = lifted.parts(range.1).len();
            let moves = calls.iter().filter(|call| **call == Call::MoveTo).count();
            if lifted.at_once == u64::MAX && parts == 1 {
                assert_eq!(moves, 1, "one part takes the place of the pages of one mapping");
                single += usize::from(range.0.source == Some(Source::Hugetlb));
            }
            several += usize::from(parts > 1);
            pieces += usize::from(moves > parts + 1);
        }
    }
    let counts =
        format!("{files} files, {single} and {several} ranges of one and several parts, {pieces} of several pieces");
    assert!(files > 0 && single > 0 && several > 0 && pieces > 0, "{counts}");
}

#[test]
fn a_restore_that_fails_anywhere_leaves_the_program_as_it_is() {
    let mut refused = 0;
    for lifted in all() {
        for range in &lifted.ranges {
            let (_, calls) = lifted.restore(range, &Script::new());
            for (number, call) in calls.iter().enumerate() {
                for &mode in call.modes() {
                    let script = Script::new().failing_at(number, Failure { errno: errno::ENOMEM, mode });
                    refused += usize::from(!lifted.restore(range, &script).0);
                }
            }
        }
    }
    assert!(refused > 0, "no failure was told");
}

/// The kernel has unmapped the lifted memory and never moves the copy there.
#[test]
fn what_can_never_be_moved_is_put_back_on_ordinary_pages() {
    for lifted in all() {
        for range in &lifted.ranges {
            let failure = Failure { errno: errno::ENOMEM, mode: Mode::DestinationGone };
            let script = Script::new().failing_from(0, Some(Call::MoveTo), failure);
            assert!(!lifted.restore(range, &script).0);
        }
    }
}
