//! Executes a plan: each range by its attempts, each attempt by its parts, each part by its steps.

use crate::executor::Executor;
use crate::executor::persist;
use crate::outcome::{FailedAttempt, LiftOutcome, RangeOutcome, Uncovered};
use crate::staging::PartState;
use crate::verify::compare;
use address_space::{AddressRange, AddressSpace, RangeSet};
use alloc::format;
use alloc::string::String;
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;
use lift_plan::{Attempt, Method, Part, Plan, RangeLift, Reason, Source, Step, steps_of};

/// Limit of the time that copies take.
pub struct CopyLimit<'a> {
    /// The time that they may take.
    pub time: Duration,
    /// Returns the present time, from any beginning.
    pub clock: &'a dyn Fn() -> Duration,
}

/// Executes `plan` on a process whose mappings are `before`, and reads back the outcome.
///
/// After any failure each range is either on huge pages (to the extent that its outcome reports) or unchanged.
pub fn execute(plan: &Plan, before: &AddressSpace, executor: &mut impl Executor) -> LiftOutcome {
    let mut outcome = LiftOutcome::default();
    for lift in &plan.lifts {
        outcome.ranges.push(lift_range(lift, before, executor));
    }
    note_unexpected(&mut outcome, plan, before, executor);
    outcome
}

/// Executes `plan` like [`execute`]. As soon as the copies have taken as long as the limit permits, those that can be made
/// while the program runs are left: they are removed from the plan and returned. A range that has been begun is completed.
pub fn execute_within(
    plan: &mut Plan,
    before: &AddressSpace,
    executor: &mut impl Executor,
    limit: &CopyLimit<'_>,
) -> (LiftOutcome, Vec<RangeLift>) {
    let (mut outcome, mut spent) = (LiftOutcome::default(), Duration::ZERO);
    let (mut made, mut left) = (Vec::new(), Vec::new());
    for lift in core::mem::take(&mut plan.lifts) {
        if lift.copies() && lift.may_wait() && spent >= limit.time {
            left.push(lift);
            continue;
        }
        let begun = (limit.clock)();
        outcome.ranges.push(lift_range(&lift, before, executor));
        if lift.copies() {
            spent += (limit.clock)().saturating_sub(begun);
        }
        made.push(lift);
    }
    plan.lifts = made;
    note_unexpected(&mut outcome, plan, before, executor);
    (outcome, left)
}

fn note_unexpected(outcome: &mut LiftOutcome, plan: &Plan, before: &AddressSpace, executor: &mut impl Executor) {
    if let Ok(after) = executor.space() {
        outcome.unexpected = compare(before, &after, plan);
    }
}

fn lift_range(lift: &RangeLift, before: &AddressSpace, executor: &mut impl Executor) -> RangeOutcome {
    let mut outcome = RangeOutcome {
        object: lift.object.clone(),
        kinds: lift.kinds.clone(),
        range: lift.range,
        protection: lift.protection,
        source: None,
        page_size: lift.attempts[0].page_size,
        lifted: RangeSet::new(),
        covered: RangeSet::new(),
        advised: 0,
        made_resident: 0,
        failed: Vec::new(),
        uncovered: Vec::new(),
    };
    let (served, mut done) = serve(lift, before, executor, &mut outcome.failed);
    if let Some(attempt) = served {
        outcome.source = Some(attempt.source);
        outcome.page_size = attempt.page_size;
        outcome.lifted = done.lifted.clone();
    } else {
        let reason = outcome.failed.first().map_or(Reason::NoHugePages, |failed| failed.reason.clone());
        done.failures = vec![Uncovered { range: lift.range, reason }];
    }
    read_back(&mut outcome, served, &done, executor);
    outcome
}

/// Makes the attempts in order until one succeeds, and returns that attempt and its result. An attempt that shows
/// little of the file's own huge folios counts only if no later one succeeds.
fn serve<'a>(
    lift: &'a RangeLift,
    before: &AddressSpace,
    executor: &mut impl Executor,
    failed: &mut Vec<FailedAttempt>,
) -> (Option<&'a Attempt>, Done) {
    let (mut served, mut kept): (Option<&Attempt>, _) = (None, Done::default());
    for (at, attempt) in lift.attempts.iter().enumerate() {
        // An earlier attempt may have replaced mappings.
        let now = if at > 0 { persist(|| executor.space()).ok() } else { None };
        let mut done = try_attempt(lift, attempt, now.as_ref().unwrap_or(before), executor);
        let (displaced, is_lifted) = (core::mem::take(&mut done.displaced), !done.lifted.is_empty());
        if is_lifted {
            if let Some(partly) = served.replace(attempt) {
                failed.push(FailedAttempt { source: partly.source, reason: Reason::SmallFolios(None) });
            }
            kept = done;
        } else {
            let reason = done.failures.first().map_or(Reason::NoHugePages, |failure| failure.reason.clone());
            failed.push(FailedAttempt { source: attempt.source, reason });
        }
        // Another attempt would copy, and then replace, memory of another thread.
        if !displaced.is_empty() {
            kept.displace(displaced);
            break;
        }
        if is_lifted && (at + 1 == lift.attempts.len() || !shows_little(lift.range, attempt, &kept, executor)) {
            break;
        }
    }
    (served, kept)
}

/// True if the kernel maps at most half of a range by huge pages after an attempt to show the file's huge folios. The
/// plan counted on all folios; Linux 6.12 maps one of two adjacent folios by ordinary pages on tmpfs.
fn shows_little(range: AddressRange, attempt: &Attempt, done: &Done, executor: &mut impl Executor) -> bool {
    if attempt.source != Source::File {
        return false;
    }
    let refaulted = attempt.parts.iter().all(|part| matches!(part.method, Method::Refault));
    let huge = match refaulted {
        true => done.lifted.bytes_in(range),
        // If the kernel does not report it, the range counts as huge.
        false => executor.query_huge(range, attempt.page_size).map_or(range.len(), |huge| huge.bytes_in(range)),
    };
    2 * huge <= range.len()
}

/// The result of one attempt.
#[derive(Default)]
struct Done {
    lifted: RangeSet,
    failures: Vec<Uncovered>,
    /// The parts whose contents are not in their place.
    displaced: Vec<Uncovered>,
}

impl Done {
    fn displace(&mut self, displaced: Vec<Uncovered>) {
        displaced.iter().for_each(|part| self.lifted.remove(part.range));
        self.displaced = displaced;
    }
}

fn try_attempt(lift: &RangeLift, attempt: &Attempt, before: &AddressSpace, executor: &mut impl Executor) -> Done {
    let mut done = Done::default();
    for part in &attempt.parts {
        let name = mark_of(lift);
        let mut state = PartState::new(part.range, before, &name);
        lift_part(&mut state, lift, attempt, part, executor, &mut done);
        state.swapped.iter().for_each(|range| done.lifted.insert(range));
        done.displaced.append(&mut state.displaced);
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
    let in_files = contents_in_files(lift, attempt, part, executor);
    for step in steps_of(lift, attempt, part) {
        let Err(reason) = state.step(executor, &step) else { continue };
        // A range that cannot be collapsed does not keep the next from being collapsed.
        if let Step::CollapseInPlace(range) = step {
            done.failures.push(Uncovered { range, reason });
            continue;
        }
        done.failures.push(Uncovered { range: part.range, reason });
        break;
    }
    state.clean_up(executor);
    for range in state.swapped.iter() {
        for range in in_files.within(range) {
            // A refusal only makes core dumps larger.
            let _ = executor.leave_out_of_dumps(range);
        }
    }
}

/// Returns the parts of a copy that core dumps can omit, because a debugger finds their contents in the file. The
/// kernel omits files that a process has mapped and not written to (core(5)), but dumps copies. The parts are whole
/// huge pages, since a border within one would split it. The first page of a file is kept: the kernel dumps it, for its
/// build-id.
///
/// Applies to pool pages only: these are mapped from a nameless file, and gdb reads the program's file for missing
/// parts of one. For missing anonymous memory gdb shows zeros (seen with gdb of Debian 12), so transparent copies are
/// dumped.
fn contents_in_files(lift: &RangeLift, attempt: &Attempt, part: &Part, executor: &mut impl Executor) -> RangeSet {
    if lift.protection.write || attempt.source != Source::Hugetlb {
        return RangeSet::new();
    }
    let mut found = RangeSet::new();
    for mapping in executor.unchanged_files(part.range) {
        let mut range = mapping.range.intersect(part.range);
        if mapping.offset == 0 && range.start() == mapping.range.start() && !range.is_empty() {
            range = AddressRange::new(range.start() + 1, range.end());
        }
        found.insert(range);
    }
    found.iter().map(|range| range.whole_pages(attempt.page_size)).filter(|range| !range.is_empty()).collect()
}

/// Returns the name under which maps shows lifted memory. The kernel allows 79 printable characters and no brackets.
fn mark_of(lift: &RangeLift) -> String {
    let kinds: Vec<_> = lift.kinds.iter().map(ToString::to_string).collect();
    let name = format!("pagelift {} {}", kinds.join("+"), lift.object);
    name.chars()
        .map(|c| if c.is_ascii_graphic() && !"[]\\$`".contains(c) || c == ' ' { c } else { '_' })
        .take(79)
        .collect()
}

/// Reads back the memory that the kernel backs by huge pages, and records a reason for every other byte.
fn read_back(outcome: &mut RangeOutcome, served: Option<&Attempt>, done: &Done, executor: &mut impl Executor) {
    let mut failures = done.failures.clone();
    match executor.query_huge(outcome.range, outcome.page_size) {
        Ok(covered) => outcome.covered = covered,
        Err(error) if served.is_some() => failures = vec![Uncovered { range: outcome.range, reason: error.into() }],
        Err(_) => {}
    }
    done.displaced.iter().for_each(|part| outcome.covered.remove(part.range));
    failures.splice(..0, done.displaced.iter().cloned());
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
    let of_file = outcome.source == Some(Source::File);
    let why = |bytes| if of_file { Reason::SmallFolios(None) } else { Reason::NotHuge { bytes } };
    let not_huge = missing.iter().map(|range| Uncovered { range, reason: why(range.len()) });
    outcome.uncovered.extend(not_huge);
    outcome.made_resident = served.map_or(0, |attempt| made_resident(attempt, &outcome.covered, done));
}

/// Returns the share of an attempt's planned memory that it used.
fn made_resident(attempt: &Attempt, covered: &RangeSet, done: &Done) -> u64 {
    let filled = |part: &Part| match &part.method {
        Method::InPlace { collapse } => collapse.iter().map(|range| covered.bytes_in(range)).sum(),
        _ => done.lifted.bytes_in(part.range),
    };
    let filled: u64 = attempt.parts.iter().map(filled).sum();
    let planned: u64 = attempt.parts.iter().map(Part::filled).sum();
    if planned == 0 { 0 } else { (u128::from(attempt.memory) * u128::from(filled) / u128::from(planned)) as u64 }
}

/// Returns the memory of a part that was only advised, because it is untouched.
fn advised_only(part: &Part, done: &Done) -> RangeSet {
    let Method::InPlace { collapse } = &part.method else { return RangeSet::new() };
    let mut advised: RangeSet = done.lifted.within(part.range).collect();
    collapse.iter().for_each(|range| advised.remove(range));
    advised
}
