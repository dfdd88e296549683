//! Every single call fails in turn, with every error it can give and in every way; and any two in a row.

use crate::judge::{Leniency, demand};
use crate::scenario::{Scenario, scenarios_of};
use crate::support::{Program, programs};
use lift_execution::simulated::{Call, Failure, Mode, Script, errno};

fn leniency(calls: &[Call]) -> Leniency {
    Leniency { unread: calls.iter().any(|call| matches!(call, Call::Huge | Call::Space)), ..Leniency::default() }
}

/// Lets each call fail with so many of its errors.
pub fn each_call_fails(scenario: &Scenario, calls: &[Call], errors: usize) {
    for (number, call) in calls.iter().enumerate() {
        for mode in call.modes() {
            // Nothing here depends on the error's number; all of them are tried where the failure is clean.
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
    for (number, call) in calls.iter().enumerate() {
        for &first in call.modes() {
            for second in [Mode::Clean, Mode::Halfway, Mode::DestinationGone] {
                let failure = |mode| Failure { errno: errno::ENOMEM, mode };
                let script = Script::new().failing_at(number, failure(first)).failing_at(number + 1, failure(second));
                let run = scenario.run(&script);
                let next = run.kernel.log().get(number + 1).map(|(next, _)| *next);
                let failed: Vec<_> = next.into_iter().chain([*call]).collect();
                demand(scenario, &script, &run, leniency(&failed));
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
