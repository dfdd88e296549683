//! Executes a plan: each range by its attempts, each attempt by its parts, each part by its steps.

use crate::executor::Executor;
use crate::outcome::{FailedAttempt, Outcome, RangeOutcome, Uncovered};
use crate::staging::PartState;
use crate::verify::compare;
use address_space::{AddressRange, AddressSpace, RangeSet};
use lift_plan::{Attempt, Part, Plan, RangeLift, Reason, Source, Step, Way, steps_of};

/// Executes `plan` on a process whose mappings are `before`, and reads back what became of it.
///
/// Whatever fails, each range is afterwards either on huge pages (as far as its outcome says) or as it was.
pub fn execute(plan: &Plan, before: &AddressSpace, executor: &mut impl Executor) -> Outcome {
    let mut outcome = Outcome::default();
    for lift in &plan.lifts {
        outcome.ranges.push(lift_range(lift, executor));
    }
    if let Ok(after) = executor.space() {
        outcome.unexpected = compare(before, &after, plan);
    }
    outcome
}

fn lift_range(lift: &RangeLift, executor: &mut impl Executor) -> RangeOutcome {
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
    for attempt in &lift.attempts {
        let done = try_attempt(lift, attempt, executor);
        if done.lifted.is_empty() {
            let reason = done.failures.into_iter().next().map_or(Reason::NoHugePages, |failure| failure.reason);
            outcome.failed.push(FailedAttempt { source: attempt.source, reason });
            continue;
        }
        outcome.source = Some(attempt.source);
        outcome.page_size = attempt.page_size;
        read_back(&mut outcome, attempt, done, executor);
        return outcome;
    }
    let reason = outcome.failed.first().map_or(Reason::NoHugePages, |failed| failed.reason.clone());
    outcome.uncovered.push(Uncovered { range: lift.range, reason });
    outcome
}

/// What one attempt did.
#[derive(Default)]
struct Done {
    lifted: RangeSet,
    failures: Vec<Uncovered>,
}

fn try_attempt(lift: &RangeLift, attempt: &Attempt, executor: &mut impl Executor) -> Done {
    let mut done = Done::default();
    for part in &attempt.parts {
        lift_part(lift, attempt, part, executor, &mut done);
    }
    done
}

fn lift_part(lift: &RangeLift, attempt: &Attempt, part: &Part, executor: &mut impl Executor, done: &mut Done) {
    let mut state = PartState::new(part.range);
    for step in steps_of(lift, attempt, part) {
        match state.step(executor, &step) {
            Ok(()) => {}
            Err(reason) => {
                let range = step.ranges().first().copied().unwrap_or(part.range);
                done.failures.push(Uncovered { range, reason });
                // One stretch that cannot be collapsed does not keep the next from it.
                if !matches!(step, Step::CollapseInPlace(_)) {
                    break;
                }
            }
        }
    }
    for error in state.clean_up(executor) {
        done.failures.push(Uncovered { range: part.range, reason: error.into() });
    }
    if attempt.source == Source::Thp && !matches!(part.way, Way::InPlace { .. }) {
        let name = mark_of(lift);
        for range in state.swapped.iter() {
            // Kernels without names for anonymous memory simply show none.
            let _ = executor.name(range, &name);
        }
    }
    state.swapped.iter().for_each(|range| done.lifted.insert(range));
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
fn read_back(outcome: &mut RangeOutcome, attempt: &Attempt, done: Done, executor: &mut impl Executor) {
    let huge = executor.huge(outcome.range, attempt.page_size);
    let (covered, unread) = match huge {
        Ok(covered) => (covered, None),
        Err(error) => (RangeSet::new(), Some(Reason::from(error))),
    };
    for part in &attempt.parts {
        let advised = advised_only(part, &done);
        for range in missing(part.range, &covered) {
            let untouched = advised.bytes_in(range);
            outcome.advised += untouched;
            if untouched == range.len() {
                continue;
            }
            let failure = done.failures.iter().find(|failure| failure.range.overlaps(range));
            let reason = unread.clone().or_else(|| failure.map(|failure| failure.reason.clone()));
            let reason = reason.unwrap_or(Reason::NotHuge { bytes: range.len() - untouched });
            outcome.uncovered.push(Uncovered { range, reason });
        }
    }
    let swapped_in = |part: &Part| match &part.way {
        Way::InPlace { .. } => part.filled(),
        _ => done.lifted.bytes_in(part.range),
    };
    let (filled, planned) = attempt
        .parts
        .iter()
        .fold((0, 0), |(filled, planned), part| (filled + swapped_in(part), planned + part.filled()));
    outcome.made_resident =
        if planned == 0 { 0 } else { (attempt.memory as u128 * filled as u128 / planned as u128) as u64 };
    outcome.covered = covered;
}

/// What of a part was advised only, because nobody has touched it.
fn advised_only(part: &Part, done: &Done) -> RangeSet {
    let Way::InPlace { collapse } = &part.way else { return RangeSet::new() };
    let mut advised: RangeSet = done.lifted.within(part.range).collect();
    collapse.iter().for_each(|range| advised.remove(range));
    advised
}

fn missing(range: AddressRange, covered: &RangeSet) -> Vec<AddressRange> {
    let mut missing = RangeSet::from_iter([range]);
    covered.iter().for_each(|range| missing.remove(range));
    missing.iter().collect()
}
