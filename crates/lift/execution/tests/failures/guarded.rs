//! Code that allows indirect branches to landing pads only (PROT_BTI of AArch64) does so on huge pages, too, and after calls
//! that have failed.

use crate::scenario::{Scenario, scenarios_of};
use crate::support::programs;
use address_space::{AddressRange, RangeSet};
use lift_simulation::simulated::{Call, Failure, Script, SimulatedKernel};

fn guarded(scenario: &Scenario) -> Scenario {
    let mut kernel = scenario.kernel.clone();
    kernel.guard_code();
    scenario.on(kernel)
}

/// The code of the program, without leftovers of copies elsewhere.
fn code(scenario: &Scenario, kernel: &SimulatedKernel) -> RangeSet {
    let space = &scenario.process.space;
    let of_program = |range: AddressRange| space.overlapping(range).iter().any(|before| before.range.overlaps(range));
    let now = kernel.mappings();
    now.mappings().iter().filter(|m| m.protection.execute && of_program(m.range)).map(|m| m.range).collect()
}

fn check(scenario: &Scenario, kernel: &SimulatedKernel, what: &str) {
    let guarded = kernel.guarded();
    for range in code(scenario, kernel).iter() {
        assert!(guarded.covers(range), "{}: {range} is not guarded {what}", scenario.name);
    }
}

#[test]
fn lifted_code_guards_its_branches() {
    let mut lifted = 0;
    for scenario in programs::all().iter().flat_map(scenarios_of) {
        let scenario = guarded(&scenario);
        let run = scenario.run(&Script::new());
        check(&scenario, &run.kernel, "after a lift");
        let code = run.outcome.ranges.iter().filter(|range| range.protection.execute);
        let code: u64 = code.map(|range| range.lifted.iter().map(AddressRange::len).sum::<u64>()).sum();
        lifted += code;
    }
    assert!(lifted > 0, "no scenario lifts code");
}

#[test]
fn a_call_that_fails_leaves_no_code_unguarded() {
    let mut failed = 0;
    for scenario in programs::all().iter().flat_map(scenarios_of) {
        let scenario = guarded(&scenario);
        for (number, call) in scenario.calls().into_iter().enumerate() {
            if !matches!(call, Call::MoveTo | Call::MapFileAt | Call::GuardBranches | Call::Protect) {
                continue;
            }
            for &mode in call.modes() {
                let failure = Failure { errno: call.errors()[0], mode };
                let run = scenario.run(&Script::new().failing_at(number, failure));
                check(&scenario, &run.kernel, &format!("after {call:?} has failed ({mode:?})"));
                failed += 1;
            }
        }
    }
    assert!(failed > 0, "no call of a lift of guarded code could fail");
}
