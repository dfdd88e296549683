//! Machines that have less than the plan was made for: pools, huge pages, mappings, or abilities of the kernel.

use crate::judge::{Leniency, demand};
use crate::scenario::{Scenario, scenarios_of};
use crate::single::each_call_fails;
use crate::support::{Program, programs};
use lift_plan::Source;
use lift_simulation::simulated::{Script, SimulatedKernel, SimulatedMachine};

/// Up to this many pages, each number is tried; beyond, only some.
const EACH: u64 = 24;

/// The numbers of pages at which a source may run out: from none to one more than all the ranges need from it.
fn numbers_of_pages(scenario: &Scenario, source: Source) -> Vec<u64> {
    let attempts = scenario.plan.lifts.iter().flat_map(|lift| &lift.attempts);
    let parts = attempts.filter(|attempt| attempt.source == source).flat_map(|attempt| &attempt.parts);
    let needed = parts.map(|part| part.filled()).sum::<u64>() / programs::HUGE;
    let each = 0..=EACH.min(needed + 1);
    each.chain((EACH..=needed + 1).step_by(needed as usize / 8 + 1)).collect()
}

fn lift_on(scenario: &Scenario, kernel: &SimulatedKernel, leniency: Leniency) {
    let run = scenario.run_on(kernel, &Script::new());
    demand(scenario, &Script::new(), &run, leniency);
}

fn for_each_scenario(programs: &[Program], check: impl Fn(&Scenario)) {
    programs.iter().flat_map(scenarios_of).for_each(|scenario| check(&scenario));
}

#[test]
fn the_pool_runs_out_after_so_many_pages() {
    for_each_scenario(&programs::all(), |scenario| {
        for pages in numbers_of_pages(scenario, Source::Hugetlb) {
            let empty = |machine: &mut SimulatedMachine| machine.pools.values_mut().for_each(|free| *free = pages);
            lift_on(scenario, &scenario.short_of(empty), Leniency::default());
            // A cgroup without reservations refuses pages only when they are touched.
            lift_on(scenario, &scenario.short_of(|machine| machine.pool_charge = pages), Leniency::default());
            // Pages are free, but on nodes that may not be used; the plan did not know it yet.
            let elsewhere = |machine: &mut SimulatedMachine| machine.pool_on_bound_nodes = pages;
            lift_on(scenario, &scenario.short_of(elsewhere), Leniency::default());
        }
    });
}

#[test]
fn memory_is_fragmented_after_so_many_huge_pages() {
    for_each_scenario(&programs::all(), |scenario| {
        for pages in numbers_of_pages(scenario, Source::Thp) {
            for at_fault in [true, false] {
                let fragmented = |machine: &mut SimulatedMachine| {
                    machine.pools.values_mut().for_each(|free| *free = 0);
                    if let Some(thp) = &mut machine.thp {
                        (thp.left, thp.at_fault) = (pages, at_fault);
                    }
                };
                lift_on(scenario, &scenario.short_of(fragmented), Leniency::default());
            }
        }
    });
}

#[test]
fn the_process_has_nearly_all_mappings_it_may_have() {
    for_each_scenario(&programs::all(), |scenario| {
        let now = scenario.process.space.mappings().len();
        for more in 0..30 {
            let kernel = scenario.short_of(|machine| machine.max_mappings = now + more);
            // Memory aside that mremap refuses to move back is copied back. The program may lack the mappings that we
            // use.
            let replaced = scenario.moves_aside();
            lift_on(scenario, &kernel, Leniency { replaced, crowded: true, ..Leniency::default() });
        }
    });
}

/// The planner leaves mremap the room it needs, so that nothing has to be copied back.
#[test]
fn a_plan_knows_how_many_mappings_there_may_be() {
    for program in programs::all() {
        for scenario in scenarios_of(&program) {
            let now = scenario.process.space.mappings().len();
            for more in 0..60 {
                let scenario = scenario.planned_for(&program, |machine| machine.max_mappings = now + more);
                lift_on(&scenario, &scenario.kernel, Leniency::default());
            }
        }
    }
}

/// A kernel that turns out not to move pool memory removes the destination before it returns the error.
#[test]
fn pool_memory_cannot_be_moved_after_all() {
    for_each_scenario(&programs::all(), |scenario| {
        let kernel = scenario.short_of(|machine| machine.movable_hugetlb = false);
        lift_on(scenario, &kernel, Leniency { replaced: true, ..Leniency::default() });
    });
}

#[test]
fn nothing_can_be_collapsed() {
    for_each_scenario(&programs::all(), |scenario| {
        for at_fault in [true, false] {
            let old = |machine: &mut SimulatedMachine| {
                machine.collapse = false;
                machine.thp.iter_mut().for_each(|thp| thp.at_fault = at_fault);
            };
            lift_on(scenario, &scenario.short_of(old), Leniency::default());
        }
    });
}

#[test]
fn huge_pages_of_zeros_are_split_again_meanwhile() {
    for_each_scenario(&programs::all(), |scenario| {
        for every in 1..8 {
            let short = |machine: &mut SimulatedMachine| {
                machine.pools.values_mut().for_each(|free| *free = 0);
                machine.thp.iter_mut().for_each(|thp| thp.splits_every = Some(every));
            };
            lift_on(scenario, &scenario.short_of(short), Leniency::default());
        }
    });
}

#[test]
fn calls_fail_while_huge_pages_are_short() {
    for_each_scenario(&[programs::mariadbd(), programs::aligned()], |scenario| {
        let short = scenario.on(scenario.short_of(|machine| {
            machine.pool_charge = 3;
            machine.thp.iter_mut().for_each(|thp| (thp.left, thp.at_fault) = (4, false));
        }));
        each_call_fails(&short, &short.calls(), 1);
    });
}
