//! Random programs on random machines with random failures, for cases that no list of layouts contains.

use crate::judge::{Leniency, judge};
use crate::scenario::Scenario;
use crate::support::{PAGE, Program, random};
use address_space::Address;
use lift_plan::{MachineFacts, ThpMode};
use lift_simulation::simulated::{Call, Failure, Mode, Script, SimulatedMachine, SimulatedThp};
use proptest::collection::vec;
use proptest::prelude::*;

/// The difference between the machine and the facts of the planner.
#[derive(Clone, Debug)]
struct Shortage {
    pool: u64,
    charge: u64,
    huge_pages: u64,
    at_fault: bool,
    splits_every: Option<usize>,
    /// Pages between the program's end and the place below which new mappings are made.
    room: u64,
    maps_in_place: bool,
    holds_threads: bool,
}

fn shortage() -> impl Strategy<Value = Shortage> {
    let pages = || prop_oneof![2 => Just(1 << 30), 1 => 0..20u64];
    let splits = proptest::option::of(1..6usize);
    (pages(), pages(), pages(), any::<bool>(), splits, 1..400u64, any::<[bool; 2]>()).prop_map(
        |(pool, charge, huge_pages, at_fault, splits_every, room, [maps_in_place, holds_threads])| Shortage {
            pool,
            charge,
            huge_pages,
            at_fault,
            splits_every,
            room,
            maps_in_place,
            holds_threads,
        },
    )
}

fn machine_of(program: &Program, facts: &MachineFacts, short: &Shortage) -> SimulatedMachine {
    let end = program.mappings.iter().map(|mapping| mapping.range.end().0).max().unwrap_or(0);
    let (at_fault, splits_every) = (short.at_fault, short.splits_every);
    let usable = |mode| if mode == ThpMode::Never { 0 } else { short.huge_pages };
    SimulatedMachine {
        base_page: facts.base_page,
        pools: facts.pools.iter().map(|pool| (pool.size, pool.available.min(short.pool))).collect(),
        pool_charge: short.charge,
        pool_on_bound_nodes: u64::MAX,
        images: Vec::new(),
        files: Vec::new(),
        refaults_huge: facts.refaults_huge,
        maps_in_place: short.maps_in_place,
        holds_threads: short.holds_threads,
        thp: facts.thp.map(|thp| SimulatedThp { size: thp.size, left: usable(thp.mode), at_fault, splits_every }),
        movable_hugetlb: facts.movable_hugetlb,
        collapse: facts.collapse,
        max_mappings: facts.max_mappings as usize,
        top: Address(end + short.room * PAGE),
    }
}

fn failures() -> impl Strategy<Value = Vec<(usize, usize, Mode)>> {
    let mode = prop_oneof![Just(Mode::Clean), Just(Mode::Halfway), Just(Mode::DestinationGone)];
    vec((0..80usize, 0..6usize, mode), 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn no_failure_tears_any_program(
        program in random::program(),
        facts in random::machine(),
        policy in random::policy(),
        short in shortage(),
        failures in failures(),
    ) {
        let machine = machine_of(&program, &facts, &short);
        let scenario = Scenario::new(&program, &policy, &facts, machine);
        let script = failures.iter().fold(Script::new(), |script, &(number, error, mode)| {
            let errors = Call::MoveTo.errors();
            script.failing_at(number, Failure { errno: errors[error % errors.len()], mode })
        });
        let run = scenario.run(&script);
        let failed = failures.iter().filter_map(|(number, ..)| run.kernel.log().get(*number));
        let unread = failed.into_iter().any(|(call, _)| matches!(call, Call::Huge | Call::Space));
        let verdict = judge(&scenario, &run, Leniency { unread, ..Leniency::default() });
        prop_assert!(verdict.is_ok(), "{:?}\n{:#?}\n{:#?}", verdict, run.kernel.log(), run.outcome);
    }
}
