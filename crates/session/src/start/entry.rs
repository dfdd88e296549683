//! Lifts a program that is stopped at its entry.

use crate::facts::{Preparation, ReadAhead, plan_for};
use crate::files::FilePreparation;
use crate::images::MissingImages;
use crate::names::started_name;
use crate::{LiftReport, Postponed, SessionError};
use address_space::{AddressSpace, LoadedObject, ObjectRole};
use lift_execution::{CopyLimit, Executor, LiftOutcome, execute, execute_within, seal};
use lift_plan::{ImageSpan, Later, MachineFacts, Method, Plan, Policy, ProcessFacts, RangeLift, Terms, divide};
use options::Prepare;
use process_view::ObjectReader;
use ptrace::{EntryStop, Injector, OutsideExecutor, ProcessExecutor};
use std::time::Instant;

/// Options of a lift at a program's entry.
#[derive(Clone, Copy)]
pub struct How<'a> {
    /// Files that the program has loaded are collapsed in place, unless this is `Never`.
    pub prepare: Prepare,
    /// Only plan the lift.
    pub dry_run: bool,
    /// Limits of the cost; `None`: any price, at once.
    pub terms: Option<&'a Terms>,
}

/// The result of a program's entry.
pub enum Entered {
    /// The plan of a dry run, the ranges that would be lifted later, and the objects of the program.
    Planned(Plan, Later, Vec<LoadedObject>),
    /// The program is lifted according to the report, except for these ranges.
    Lifted(Later),
}

/// Lifts a program at its entry, or only plans the lift.
pub fn lift(
    stop: &EntryStop,
    reader: &mut ObjectReader,
    machine: &MachineFacts,
    read_ahead: ReadAhead<'_>,
    policy: &Policy,
    report: &mut LiftReport,
    How { prepare, dry_run, terms }: How<'_>,
) -> Result<Entered, SessionError> {
    let started = Instant::now();
    let preparation = match (dry_run, prepare) {
        (true, _) => Preparation::NONE,
        (false, Prepare::Never) => Preparation { missing: MissingImages::Make, files: FilePreparation::Nothing },
        // Objects that are loaded by now are mapped: their pages cannot be evicted any more.
        (false, _) => Preparation { missing: MissingImages::Make, files: FilePreparation::InPlace },
    };
    let mut ahead = None;
    let open_ahead = |process: &ProcessFacts| {
        ahead =
            process.images.first().filter(|_| !dry_run).and_then(|span| begin_to_open(stop, process, span, machine));
    };
    let planned = plan_for(stop, reader, machine, policy, preparation, read_ahead, open_ahead);
    let mut later = Later::default();
    let planned = planned.map(|(seen, mut plan)| {
        if let Some(terms) = terms {
            (plan, later) = divide(plan, terms);
        }
        (seen, plan)
    });
    // Changes that have been begun in the process are undone for any outcome of the plan.
    if !planned.as_ref().is_ok_and(|(_, plan)| !dry_run && !plan.lifts.is_empty()) {
        ahead.take().map_or(Ok(()), Injector::finish)?;
    }
    let (seen, mut plan) = planned?;
    report.not_understood =
        seen.not_understood.iter().filter(|f| f.executable).map(|f| format!("{}: {}", f.path, f.reason)).collect();
    (report.without_image, report.not_on_node) = (seen.without_image, seen.not_on_node);
    report.other_threads = stop.other_threads;
    if let Some(executable) = seen.process.objects.iter().find(|object| object.role == ObjectRole::Executable) {
        report.program = started_name(stop.pid(), executable.name());
    }
    if dry_run {
        return Ok(Entered::Planned(plan, later, seen.process.objects));
    }
    let mut outcome = LiftOutcome::default();
    let from_outside =
        (ahead.is_none() && !policy.seal).then(|| lift_from_outside(stop, &plan, &seen.process, machine));
    if let Some(done) = from_outside.flatten() {
        outcome = done;
    } else if !plan.lifts.is_empty() {
        let mut injector = ahead.map_or_else(|| stop.injector(&seen.process.space), Ok)?;
        match refuse_own_ground(&injector, &plan) {
            Ok(()) => {
                let mut executor = ProcessExecutor::new(&mut injector, machine.base_page, &seen.process.objects);
                outcome = execute_on_terms(&mut plan, &mut later, terms, &seen.process.space, &mut executor);
                if policy.seal {
                    seal(&mut outcome, &mut executor);
                }
            }
            Err(refused) => {
                injector.finish()?;
                return Err(refused);
            }
        }
        let loss = injector.loss();
        injector.finish()?;
        if let Some(loss) = loss {
            // The mappings that the kernel shows now belong to another program.
            return Err(loss.into());
        }
    }
    report.take(plan, outcome, started.elapsed());
    report.look_at_nodes(machine, policy.numa);
    report.postponed = Postponed::of(&later);
    Ok(Entered::Lifted(later))
}

/// Executes a plan. Prices are predicted for idle CPUs. Once the copies have used up the allowance, the other ranges are
/// lifted later.
fn execute_on_terms(
    plan: &mut Plan,
    later: &mut Later,
    terms: Option<&Terms>,
    space: &AddressSpace,
    executor: &mut impl Executor,
) -> LiftOutcome {
    let Some(terms) = terms.filter(|terms| terms.never_later.is_none()) else { return execute(plan, space, executor) };
    let started = Instant::now();
    let limit = CopyLimit { time: terms.allowance, clock: &|| started.elapsed() };
    let (outcome, left) = execute_within(plan, space, executor, &limit);
    later.add(plan, left, terms);
    outcome
}

/// Lifts by touching the process's memory from here, if only huge folios of files are to be mapped: most starts then
/// need no call of the process. `None` if that did not map all folios; a lift by calls continues from there.
fn lift_from_outside(
    stop: &EntryStop,
    plan: &Plan,
    process: &ProcessFacts,
    machine: &MachineFacts,
) -> Option<LiftOutcome> {
    let first = |lift: &RangeLift| lift.attempts.first().map_or(&[][..], |attempt| &attempt.parts).to_vec();
    let is_of_file = |lift: &RangeLift| first(lift).iter().all(|part| part.method == Method::Refault);
    if plan.lifts.is_empty() || !plan.lifts.iter().all(is_of_file) {
        return None;
    }
    let size = plan.lifts.first()?.attempts.first()?.page_size;
    let mut executor = OutsideExecutor::new(stop.pid(), machine.base_page, size).ok()?;
    let outcome = execute(plan, &process.space, &mut executor);
    let mut both = plan.lifts.iter().zip(&outcome.ranges);
    let is_done = both.all(|(lift, done)| first(lift).iter().all(|part| done.covered.covers(part.range)));
    is_done.then_some(outcome)
}

/// Takes control of the process and lets it open the image that is mapped first, while the remaining facts are read.
/// If this fails, it is tried again when the image is needed.
fn begin_to_open<'a>(
    stop: &'a EntryStop,
    process: &ProcessFacts,
    span: &ImageSpan,
    machine: &MachineFacts,
) -> Option<Injector<'a>> {
    let mut injector = stop.injector(&process.space).ok()?;
    let _ = injector.begin_to_open(&span.path, machine.base_page);
    Some(injector)
}

/// The code that makes the injected system calls must not be replaced while in use. It is after the vDSO, which is
/// never lifted, or after the code of a file if there is no vDSO.
fn refuse_own_ground(injector: &Injector<'_>, plan: &Plan) -> Result<(), SessionError> {
    match plan.lifts.iter().any(|lift| injector.stands_in(lift.range)) {
        true => Err(SessionError::Refused(
            "it has no vDSO with room for the code that makes its system calls, which stands in a range to be lifted; \
             needed: a kernel that was not started with vdso=0"
                .to_owned(),
        )),
        false => Ok(()),
    }
}
