//! Executes a plan: each range by its attempts, each attempt by its parts, each part by its steps.

use crate::executor::Executor;
use crate::outcome::{FailedAttempt, Outcome, RangeOutcome, Uncovered};
use crate::staging::PartState;
use crate::verify::compare;
use address_space::{AddressSpace, RangeSet};
use alloc::format;
use alloc::string::String;
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;
use lift_plan::{Attempt, Part, Plan, RangeLift, Reason, Source, Step, Way, steps_of};

/// Executes `plan` on a process whose mappings are `before`, and reads back what became of it.
///
/// Whatever fails, each range is afterwards either on huge pages (as far as its outcome says) or as it was.
pub fn execute(plan: &Plan, before: &AddressSpace, executor: &mut impl Executor) -> Outcome {
    let mut outcome = Outcome::default();
    for lift in &plan.lifts {
        outcome.ranges.push(lift_range(lift, before, executor));
    }
    if let Ok(after) = executor.space() {
        outcome.unexpected = compare(before, &after, plan);
    }
    outcome
}

fn lift_range(lift: &RangeLift, before: &AddressSpace, executor: &mut impl Executor) -> RangeOutcome {
    let mut outcome = RangeOutcome {
        object: lift.object.clone(),
        kinds: lift.kinds.clone(),
        range: lift.range,
        protection: lift.protection,
        source: None,
        page_size: lift.attempts[0].page_size,
        covered: RangeSet::new(),
        advised: 0,
        made_resident: 0,
        failed: Vec::new(),
        uncovered: Vec::new(),
    };
    let mut done = Done::default();
    for attempt in &lift.attempts {
        done = try_attempt(lift, attempt, before, executor);
        if !done.lifted.is_empty() {
            outcome.source = Some(attempt.source);
            outcome.page_size = attempt.page_size;
            break;
        }
        let reason = done.failures.first().map_or(Reason::NoHugePages, |failure| failure.reason.clone());
        outcome.failed.push(FailedAttempt { source: attempt.source, reason });
    }
    let served = lift.attempts.iter().find(|attempt| Some(attempt.source) == outcome.source);
    if served.is_none() {
        let reason = outcome.failed.first().map_or(Reason::NoHugePages, |failed| failed.reason.clone());
        done.failures = vec![Uncovered { range: lift.range, reason }];
    }
    read_back(&mut outcome, served, &done, executor);
    outcome
}

/// What one attempt did.
#[derive(Default)]
struct Done {
    lifted: RangeSet,
    failures: Vec<Uncovered>,
}

fn try_attempt(lift: &RangeLift, attempt: &Attempt, before: &AddressSpace, executor: &mut impl Executor) -> Done {
    let mut done = Done::default();
    for part in &attempt.parts {
        let mut state = PartState::new(part.range, before);
        lift_part(&mut state, lift, attempt, part, executor, &mut done);
        state.swapped.iter().for_each(|range| done.lifted.insert(range));
    }
    done
}

fn lift_part(
    state: &mut PartState,
    lift: &RangeLift,
    attempt: &Attempt,
    part: &Part,
    executor: &mut impl Executor,
    done: &mut Done,
) {
    for step in steps_of(lift, attempt, part) {
        let Err(reason) = state.step(executor, &step) else { continue };
        // One stretch that cannot be collapsed does not keep the next from it.
        if let Step::CollapseInPlace(range) = step {
            done.failures.push(Uncovered { range, reason });
            continue;
        }
        done.failures.push(Uncovered { range: part.range, reason });
        break;
    }
    state.clean_up(executor);
    if attempt.source == Source::Thp && !matches!(part.way, Way::InPlace { .. }) {
        let name = mark_of(lift);
        for range in state.swapped.iter() {
            // Kernels without names for anonymous memory simply show none.
            let _ = executor.name(range, &name);
        }
    }
}

/// The name by which maps shows lifted memory. The kernel allows 79 printable characters and no brackets.
fn mark_of(lift: &RangeLift) -> String {
    let kinds: Vec<_> = lift.kinds.iter().map(ToString::to_string).collect();
    let name = format!("pagelift {} {}", kinds.join("+"), lift.object);
    name.chars()
        .map(|c| if c.is_ascii_graphic() && !"[]\\$`".contains(c) || c == ' ' { c } else { '_' })
        .take(79)
        .collect()
}

/// Reads back what the kernel really backs by huge pages, and gives each byte that is not its reason.
fn read_back(outcome: &mut RangeOutcome, served: Option<&Attempt>, done: &Done, executor: &mut impl Executor) {
    let mut failures = done.failures.clone();
    match executor.huge(outcome.range, outcome.page_size) {
        Ok(covered) => outcome.covered = covered,
        Err(error) if served.is_some() => failures = vec![Uncovered { range: outcome.range, reason: error.into() }],
        Err(_) => {}
    }
    let mut missing = RangeSet::from_iter([outcome.range]);
    outcome.covered.iter().for_each(|range| missing.remove(range));
    for part in served.iter().flat_map(|attempt| &attempt.parts) {
        for advised in advised_only(part, done).iter() {
            outcome.advised += missing.bytes_in(advised);
            missing.remove(advised);
        }
    }
    for failure in &failures {
        for range in missing.within(failure.range).collect::<Vec<_>>() {
            outcome.uncovered.push(Uncovered { range, reason: failure.reason.clone() });
            missing.remove(range);
        }
    }
    let not_huge = missing.iter().map(|range| Uncovered { range, reason: Reason::NotHuge { bytes: range.len() } });
    outcome.uncovered.extend(not_huge);
    outcome.made_resident = served.map_or(0, |attempt| made_resident(attempt, &outcome.covered, done));
}

/// The share of the memory planned for an attempt that what it really did has taken.
fn made_resident(attempt: &Attempt, covered: &RangeSet, done: &Done) -> u64 {
    let filled = |part: &Part| match &part.way {
        Way::InPlace { collapse } => collapse.iter().map(|range| covered.bytes_in(range)).sum(),
        _ => done.lifted.bytes_in(part.range),
    };
    let filled: u64 = attempt.parts.iter().map(filled).sum();
    let planned: u64 = attempt.parts.iter().map(Part::filled).sum();
    if planned == 0 { 0 } else { (u128::from(attempt.memory) * u128::from(filled) / u128::from(planned)) as u64 }
}

/// What of a part was advised only, because nobody has touched it.
fn advised_only(part: &Part, done: &Done) -> RangeSet {
    let Way::InPlace { collapse } = &part.way else { return RangeSet::new() };
    let mut advised: RangeSet = done.lifted.within(part.range).collect();
    collapse.iter().for_each(|range| advised.remove(range));
    advised
}
