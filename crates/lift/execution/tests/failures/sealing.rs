//! Sealed copies: which copies are sealed, which calls sealed memory withstands, and the outcome if the kernel refuses.

use crate::scenario::{Run, Scenario, scenarios_of};
use crate::support::programs;
use address_space::{AddressRange, Protection};
use lift_execution::{Executor, Sealing, seal};
use lift_plan::Source;
use lift_simulation::simulated::{Call, Failure, Mode, Script};

fn lift_and_seal<'a>(scenario: &'a Scenario, script: &Script) -> (Run<'a>, Sealing) {
    let mut run = scenario.run(script);
    seal(&mut run.outcome, &mut run.kernel);
    let sealing = run.outcome.sealing.clone().expect("sealing was asked for");
    (run, sealing)
}

/// The lifted ranges, and whether each is a copy that is never written.
fn lifted<'a>(run: &'a Run<'_>) -> impl Iterator<Item = (AddressRange, bool)> + 'a {
    run.outcome.ranges.iter().flat_map(|range| {
        let is_copy = matches!(range.source, Some(Source::Hugetlb | Source::Thp));
        range.lifted.iter().map(move |lifted| (lifted, is_copy && !range.protection.write))
    })
}

#[test]
fn copies_that_are_never_written_are_sealed_and_nothing_else() {
    let mut bytes = 0;
    for scenario in programs::all().iter().flat_map(scenarios_of) {
        let (mut run, sealing) = lift_and_seal(&scenario, &Script::new());
        let all: Vec<_> = lifted(&run).collect();
        let copied: u64 = all.iter().filter(|(_, is_sealed)| *is_sealed).map(|(range, _)| range.len()).sum();
        assert_eq!(sealing, Sealing { sealed: copied, not_sealed: 0, reason: None }, "{}", scenario.name);
        for (range, is_sealed) in all {
            let refused = run.kernel.protect(range, Protection::READ).is_err();
            assert_eq!(refused, is_sealed, "{}: {range}", scenario.name);
        }
        bytes += copied;
    }
    assert!(bytes > 0, "no scenario has a copy that could be sealed");
}

#[test]
fn what_the_kernel_refuses_to_seal_is_told() {
    for scenario in programs::all().iter().flat_map(scenarios_of) {
        let plain = lift_and_seal(&scenario, &Script::new()).1;
        for &errno in Call::Seal.errors() {
            let failure = Failure { errno, mode: Mode::Clean };
            let script = Script::new().failing_from(0, Some(Call::Seal), failure);
            let (run, sealing) = lift_and_seal(&scenario, &script);
            assert_eq!((sealing.sealed, sealing.not_sealed), (0, plain.sealed), "{}", scenario.name);
            assert_eq!(sealing.reason.is_some(), plain.sealed > 0, "{}", scenario.name);
            assert!(run.outcome.ranges.iter().any(|range| range.source.is_some()) || plain.sealed == 0);
        }
    }
}
