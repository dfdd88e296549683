//! Copies that take longer than their price: the rest is left for later, and what was made is complete.

use crate::judge::{Leniency, demand};
use crate::scenario::{Run, Scenario, scenarios_of};
use crate::support::programs;
use lift_execution::{CopyLimit, execute_within};
use lift_plan::RangeLift;
use lift_simulation::simulated::Script;
use std::cell::Cell;
use std::time::Duration;

/// Lifts on a machine where each copy takes one unit, within `units`. Returns the scenario of the copies made, the run and the
/// rest.
fn lift_for(scenario: &Scenario, units: u64) -> (Scenario, Run<'_>, Vec<RangeLift>) {
    let (mut made, mut kernel) = (scenario.clone(), scenario.kernel.clone());
    // It is read before and after each range.
    let reads = Cell::new(0);
    let clock = || Duration::from_secs(reads.replace(reads.get() + 1));
    let limit = CopyLimit { time: Duration::from_secs(units), clock: &clock };
    let (outcome, left) = execute_within(&mut made.plan, &scenario.process.space, &mut kernel, &limit);
    (made, Run { before: &scenario.kernel, kernel, outcome }, left)
}

/// The copies that are left if as many have been made as the limit has units.
fn expected(scenario: &Scenario, units: u64) -> Vec<RangeLift> {
    let (mut copied, mut left) = (0, Vec::new());
    for lift in &scenario.plan.lifts {
        if lift.copies() && lift.may_wait() && copied >= units {
            left.push(lift.clone());
        } else {
            copied += u64::from(lift.copies());
        }
    }
    left
}

#[test]
fn copies_that_can_wait_are_left_once_the_time_is_up_and_nothing_else() {
    let mut most = 0;
    for scenario in programs::all().iter().flat_map(scenarios_of) {
        for units in 0..=scenario.plan.lifts.len() as u64 {
            let (made, run, left) = lift_for(&scenario, units);
            assert_eq!(left, expected(&scenario, units), "{} for {units}", scenario.name);
            assert_eq!(made.plan.lifts.len() + left.len(), scenario.plan.lifts.len());
            demand(&made, &Script::new(), &run, Leniency::default());
            most = most.max(left.len());
        }
    }
    assert!(most > 1, "no scenario has copies that can wait");
}

#[test]
fn a_limit_that_is_not_reached_changes_no_call() {
    for scenario in programs::all().iter().flat_map(scenarios_of) {
        let (_, run, left) = lift_for(&scenario, u64::MAX);
        let without = scenario.run(&Script::new());
        assert_eq!((left, run.kernel.log()), (Vec::new(), without.kernel.log()), "{}", scenario.name);
    }
}
