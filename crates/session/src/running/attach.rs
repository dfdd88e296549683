//! Lifts a running program.

use super::{Selected, Suspended, executor_for, refused};
use crate::facts::{Preparation, huge_before, plan_for_running, without_thp_disable};
use crate::files::FilePreparation;
use crate::heap::{Anonymous, anonymous, collapse_in_place};
use crate::images::MissingImages;
use crate::names::program_name;
use crate::{LiftReport, SessionError};
use address_space::AddressSpace;
use lift_execution::{Difference, Executor, RangeOutcome, compare, exchanges_mappings, execute, seal};
use lift_plan::{MachineFacts, Paid, Plan, Policy, Price, within};
use machine_facts::machine_facts;
use options::Prepare;
use process_view::ObjectReader;
use ptrace::attach::{LiveExecutor, Pause, Target};
use std::thread;
use std::time::{Duration, Instant};

/// Number of comparisons after which a difference counts as lasting.
const LOOKS: u32 = 20;
/// Time between two comparisons.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Options of a lift of a running program.
#[derive(Clone, Default)]
pub struct AttachOptions {
    /// The memory to lift.
    pub policy: Policy,
    /// Whether files are brought into huge folios of the page cache first.
    pub prepare: Prepare,
    /// Also collapse the program's allocated memory onto transparent huge pages.
    pub heap: bool,
    /// Limit of the cost of all copies; `None`: any price.
    pub paid: Option<Paid>,
}

impl AttachOptions {
    /// The part of a plan that may be made, and the price of its copies if there is a limit.
    fn affordable(&self, plan: Plan) -> (Plan, Price) {
        match &self.paid {
            Some(paid) => within(plan, paid),
            None => (plan, Price::default()),
        }
    }
}

/// The outcome of a lift of a running program.
pub struct Attached {
    /// The outcome.
    pub report: LiftReport,
    /// Time for which its threads were stopped.
    pub pause: Pause,
    /// Ranges were not lifted because threads could not be stopped at that moment. Another lift may succeed.
    pub is_cut_short: bool,
    /// The predicted price of the copies, if their cost has a limit.
    pub price: Price,
    /// The reason why the heap, which was to be collapsed, is not. The rest of the report was done nevertheless.
    pub heap_refused: Option<SessionError>,
}

/// Returns the plan for a running program without executing it.
///
/// # Errors
/// The program cannot be inspected.
pub fn plan_attach(pid: i32, policy: &Policy, reader: &mut ObjectReader) -> Result<Plan, SessionError> {
    let (machine, _) = without_thp_disable(&machine_facts(pid));
    plan_for_running(pid, reader, &machine, policy, Preparation::NONE).map(|(_, plan)| plan)
}

/// Lifts the memory of a program that can be lifted while it runs.
///
/// Returns `None` where the process is no longer the one that was selected.
///
/// # Errors
/// The program cannot be stopped or changed; it runs on unchanged.
pub fn attach(
    process: &Selected<'_>,
    options: &AttachOptions,
    reader: &mut ObjectReader,
) -> Result<Option<Attached>, SessionError> {
    let lifted = super::in_own_thread(|| {
        // Taken before anything of the process is read.
        process.open()?.map(|target| lift_opened(target, options, reader)).transpose()
    })?;
    Ok(lifted.map(|lifted| with_heap(lifted, options, reader)))
}

/// Lifts the memory of a program that was opened before, as [`attach`] does.
///
/// # Errors
/// As for [`attach`].
pub(crate) fn attach_opened(
    target: Target,
    options: &AttachOptions,
    reader: &mut ObjectReader,
) -> Result<Attached, SessionError> {
    let lifted = super::in_own_thread(|| lift_opened(target, options, reader))?;
    Ok(with_heap(lifted, options, reader))
}

/// A process after a lift, before its heap is collapsed.
struct LiftedAlone {
    lifted: Lifted,
    report: LiftReport,
    machine: MachineFacts,
    /// Anonymous memory before the lift, if the heap is to be collapsed.
    before: Anonymous,
}

fn lift_opened(
    target: Target,
    options: &AttachOptions,
    reader: &mut ObjectReader,
) -> Result<LiftedAlone, SessionError> {
    let pid = target.pid();
    let machine = machine_facts(pid);
    let mut report = LiftReport::new(pid, program_name(pid));
    // The lift includes the program's break.
    let before = if options.heap { anonymous(pid).unwrap_or_default() } else { Anonymous::default() };
    let lifted = lift(target, reader, &machine, options, &mut report)?;
    Ok(LiftedAlone { lifted, report, machine, before })
}

/// Collapses the heap too, where that is wanted.
fn with_heap(
    LiftedAlone { lifted, mut report, machine, before }: LiftedAlone,
    options: &AttachOptions,
    reader: &mut ObjectReader,
) -> Attached {
    let Lifted { pause, is_cut_short, price, target } = lifted;
    // Takes seconds, in another thread: a thread of the program that could not be stopped in time is not kept stopped.
    let collapse = || super::in_own_thread(|| collapse_heap(target, reader, (&machine, before), &mut report));
    let heap_refused = options.heap.then(collapse).and_then(Result::err);
    Attached { report, pause, is_cut_short, price, heap_refused }
}

/// Collapses the heap, with the program's own PR_SET_THP_DISABLE suspended for as long as that takes, and adds to the report.
fn collapse_heap(
    target: Target,
    reader: &mut ObjectReader,
    (machine, before): (&MachineFacts, Anonymous),
    report: &mut LiftReport,
) -> Result<(), SessionError> {
    let pid = target.pid();
    let (machine, thp_is_disabled) = without_thp_disable(machine);
    if !thp_is_disabled {
        report.heap = Some(collapse_in_place(pid, &machine, before)?);
        return Ok(());
    }
    let suspended = Suspended::begin(target, reader)?;
    let collapsed = collapse_in_place(pid, &machine, before);
    report.still_suspended = suspended.end();
    report.heap = Some(collapsed?);
    Ok(())
}

/// A lift that was made, besides what the report has.
struct Lifted {
    /// Time for which the program's threads were stopped.
    pause: Pause,
    is_cut_short: bool,
    /// The price of the copies, if their cost has a limit.
    price: Price,
    /// The program; it can be worked on again.
    target: Target,
}

/// Lifts, and adds to the report.
fn lift(
    target: Target,
    reader: &mut ObjectReader,
    machine: &MachineFacts,
    options: &AttachOptions,
    report: &mut LiftReport,
) -> Result<Lifted, SessionError> {
    let policy = &options.policy;
    let files = match options.prepare {
        Prepare::Never => FilePreparation::Nothing,
        how => FilePreparation::Evicting(how),
    };
    let preparation = Preparation { missing: MissingImages::Make, files };
    let (started, pid) = (Instant::now(), target.pid());
    let facts = without_thp_disable(machine);
    let (mut machine, mut thp_is_suspended) = (&facts.0, facts.1);
    let (mut seen, plan) = plan_for_running(pid, reader, machine, policy, preparation)?;
    let (mut plan, mut price) = options.affordable(plan);
    if plan.lifts.is_empty() {
        let huge_before = huge_before(pid, &seen, &plan, policy);
        report.take(plan, lift_execution::LiftOutcome::default(), started.elapsed());
        report.lift.huge_before_bytes = huge_before;
        (report.without_image, report.not_on_node) = (seen.without_image, seen.not_on_node);
        return Ok(Lifted { pause: Pause::default(), is_cut_short: false, price, target });
    }
    let mut executor = executor_for(target, &seen.process.space, &seen.process.objects)?;
    // Leftovers of an ended lift may have occupied memory and suspended the program's PR_SET_THP_DISABLE.
    let renewed;
    if executor.has_cleaned_up() {
        let target = executor.finish().target;
        renewed = without_thp_disable(&machine_facts(pid));
        (machine, thp_is_suspended) = (&renewed.0, renewed.1);
        let (seen_now, planned) = plan_for_running(pid, reader, machine, policy, preparation)?;
        seen = seen_now;
        (plan, price) = options.affordable(planned);
        executor = executor_for(target, &seen.process.space, &seen.process.objects)?;
    }
    // Not while the setting is suspended: children that the program starts then lack it.
    let huge_before = huge_before(pid, &seen, &plan, policy);
    if thp_is_suspended && let Err(error) = executor.suspend_thp_disable() {
        return Err(refused(executor, &error));
    }
    let space = &seen.process.space;
    let mut outcome = execute(&plan, space, &mut executor);
    // The program keeps mapping and unmapping memory while it is lifted, so only ranges with other mappings are compared.
    let is_ours = |difference: &Difference| {
        plan.lifts.iter().any(|lift| exchanges_mappings(lift) && lift.range.covers(difference.range))
    };
    outcome.unexpected.retain(is_ours);
    retain_lasting(&mut outcome.unexpected, &plan, space, &mut executor);
    if !outcome.unexpected.is_empty() {
        // A difference is a fault only if the mappings still belong to the same program.
        if let Err(error) = executor.with_thread(|_| Ok(())) {
            return Err(refused(executor, &error));
        }
    }
    if policy.seal {
        seal(&mut outcome, &mut executor);
    }
    let pause = executor.pause();
    let refusal = executor.refusal().map(str::to_owned);
    let (has_executed, may_work_later) = (executor.has_executed(), executor.may_work_later());
    let finished = executor.finish();
    if let Some(why) = refusal.as_ref().filter(|_| has_executed) {
        return Err(SessionError::Refused(why.clone()));
    }
    let is_cut_short = may_work_later && !outcome.ranges.iter().all(RangeOutcome::is_complete);
    report.take(plan, outcome, started.elapsed());
    report.lift.huge_before_bytes = huge_before;
    report.look_at_nodes(machine, policy.numa);
    (report.without_image, report.not_on_node) = (seen.without_image, seen.not_on_node);
    report.other_threads = pause.threads.saturating_sub(1);
    if let Some(why) = refusal.filter(|_| report.lift.covered_bytes == 0) {
        return Err(SessionError::refused(finished.with_reason(why), may_work_later));
    }
    report.still_suspended = finished.still_suspended;
    Ok(Lifted { pause, is_cut_short, price, target: finished.target })
}

/// Keeps the differences that last. A program that generates code changes protections within its own code for short
/// times.
fn retain_lasting(differences: &mut Vec<Difference>, plan: &Plan, before: &AddressSpace, executor: &mut LiveExecutor) {
    for _ in 0..LOOKS {
        if differences.is_empty() {
            return;
        }
        thread::sleep(LOOK_EVERY);
        if let Ok(now) = executor.space() {
            let now = compare(before, &now, plan);
            let is_same = |a: &Difference, b: &Difference| {
                a.range.overlaps(b.range) && (a.expected, a.found) == (b.expected, b.found)
            };
            differences.retain(|difference| now.iter().any(|other| is_same(other, difference)));
        }
    }
}
