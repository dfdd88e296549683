//! Every single call fails in turn, with every error it can give and in every way; and any two in a row.

use crate::judge::{Leniency, demand};
use crate::scenario::{Scenario, scenarios_of};
use crate::support::{Program, programs};
use lift_simulation::simulated::{Call, Failure, Mode, Script, errno};

fn leniency(calls: &[Call]) -> Leniency {
    Leniency { unread: calls.iter().any(|call| matches!(call, Call::Huge | Call::Space)), ..Leniency::default() }
}

/// Makes each call fail, with the first `errors` of its possible errors.
pub fn each_call_fails(scenario: &Scenario, calls: &[Call], errors: usize) {
    for (number, call) in calls.iter().enumerate() {
        for mode in call.modes() {
            // Nothing here depends on the error's number; all numbers are tried if the failure is clean.
            let errors = if *mode == Mode::Clean { errors } else { 1 };
            for &errno in call.errors().iter().take(errors) {
                let script = Script::new().failing_at(number, Failure { errno, mode: *mode });
                let run = scenario.run(&script);
                demand(scenario, &script, &run, leniency(&[*call]));
            }
        }
    }
}

fn each_pair_fails(scenario: &Scenario, calls: &[Call]) {
    let failure = |&mode| Failure { errno: errno::ENOMEM, mode };
    for (number, call) in calls.iter().enumerate() {
        for first in call.modes() {
            let script = Script::new().failing_at(number, failure(first));
            let Some(next) = scenario.run(&script).kernel.log().get(number + 1).map(|(next, _)| *next) else {
                continue;
            };
            for second in next.modes() {
                let script = script.clone().failing_at(number + 1, failure(second));
                demand(scenario, &script, &scenario.run(&script), leniency(&[*call, next]));
            }
        }
    }
}

fn check(program: &Program) {
    for scenario in scenarios_of(program) {
        let plain = scenario.run(&Script::new());
        demand(&scenario, &Script::new(), &plain, Leniency::default());
        assert!(plain.outcome.is_complete(), "{}: {:#?}", scenario.name, plain.outcome);
        let calls = scenario.calls();
        each_call_fails(&scenario, &calls, usize::MAX);
        each_pair_fails(&scenario, &calls);
    }
}

macro_rules! programs {
    ($($name:ident),*) => { $(#[test] fn $name() { check(&programs::$name()); })* };
}

programs!(mariadbd, node, go, rustc, aligned, big_data, static_pie, two_segments, neighbours_everywhere);
