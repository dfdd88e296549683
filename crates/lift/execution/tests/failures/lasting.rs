//! Calls that fail for ever from some moment on, including calls that clean up and restore.

use crate::judge::{Leniency, contents_are_right, demand};
use crate::scenario::{Scenario, scenarios_of};
use crate::support::programs;
use lift_simulation::simulated::{Call, Failure, Mode, Script, errno};

fn failure(mode: Mode) -> Failure {
    Failure { errno: errno::ENOMEM, mode }
}

/// The accepted deviations if calls of this kind always fail.
fn leniency(scenario: &Scenario, call: Call, mode: Mode) -> Leniency {
    Leniency {
        leftovers: call == Call::Unmap,
        replaced: call == Call::MoveTo
            && (mode == Mode::DestinationGone && !scenario.machine.holds_threads || scenario.moves_aside()),
        unread: matches!(call, Call::Huge | Call::Space),
        crowded: false,
    }
}

fn each_kind_fails_for_ever(scenario: &Scenario, calls: &[Call]) {
    for (number, &call) in calls.iter().enumerate() {
        for &mode in call.modes() {
            let script = Script::new().failing_from(number, Some(call), failure(mode));
            demand(scenario, &script, &scenario.run(&script), leniency(scenario, call, mode));
        }
    }
}

/// One call fails, and the calls for cleaning up after it fail for ever.
fn cleaning_up_fails_for_ever(scenario: &Scenario, calls: &[Call]) {
    for (number, &call) in calls.iter().enumerate() {
        for later in [Call::Unmap, Call::MoveTo, Call::MapAt, Call::Copy, Call::Protect, Call::Space] {
            let (first, then) = (call.modes()[call.modes().len() - 1], later.modes()[later.modes().len() - 1]);
            let script = Script::new().failing_at(number, failure(first));
            let script = script.failing_from(number + 1, Some(later), failure(then));
            let (first, then) = (leniency(scenario, call, first), leniency(scenario, later, then));
            let leniency = Leniency {
                // A copy is kept if nobody knows whether its range still has its contents.
                leftovers: then.leftovers || call == Call::MoveTo && later == Call::Space,
                replaced: first.replaced || then.replaced,
                unread: first.unread || then.unread,
                crowded: false,
            };
            demand(scenario, &script, &scenario.run(&script), leniency);
        }
    }
}

/// The process is gone, or every call is refused from now on. Nobody can restore memory that was moved aside then, but
/// memory that is put in place by one call is never torn.
fn everything_fails_from_some_moment(scenario: &Scenario, calls: &[Call]) {
    for number in 0..calls.len() {
        let script = Script::new().failing_from(number, None, Failure { errno: errno::ESRCH, mode: Mode::Clean });
        let run = scenario.run(&script);
        if !scenario.moves_aside() {
            contents_are_right(scenario, &run.kernel).unwrap_or_else(|finding| panic!("{}: {finding}", scenario.name));
        }
    }
}

#[test]
fn one_kind_of_call_fails_for_ever() {
    for program in [programs::mariadbd(), programs::static_pie(), programs::neighbours_everywhere()] {
        for scenario in scenarios_of(&program) {
            each_kind_fails_for_ever(&scenario, &scenario.calls());
        }
    }
}

#[test]
fn cleaning_up_after_any_failure_fails_for_ever() {
    for program in [programs::mariadbd(), programs::static_pie(), programs::go()] {
        for scenario in scenarios_of(&program) {
            cleaning_up_fails_for_ever(&scenario, &scenario.calls());
        }
    }
}

#[test]
fn the_process_is_gone_at_any_moment() {
    for program in programs::all() {
        for scenario in scenarios_of(&program) {
            everything_fails_from_some_moment(&scenario, &scenario.calls());
        }
    }
}
