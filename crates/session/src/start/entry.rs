//! Lifts a program that stands at its entry.

use crate::facts::plan_for;
use crate::files::KnownFile;
use crate::images::{Known, MissingImages};
use crate::{LiftReport, SessionError};
use address_space::{LoadedObject, ObjectRole};
use lift_execution::{execute, seal};
use lift_plan::{ImageSpan, MachineFacts, Plan, Policy, ProcessFacts};
use process_view::ObjectReader;
use ptrace::{EntryStop, Injector, ProcessExecutor};
use std::time::Instant;

/// A plan, and the objects of the program.
pub type PlannedLift = (Plan, Vec<LoadedObject>);

/// Lifts a program at its entry, or only plans the lift.
pub fn lift(
    stop: &EntryStop,
    reader: &mut ObjectReader,
    (machine, known): (&MachineFacts, (Known, Option<&KnownFile>)),
    policy: &Policy,
    report: &mut LiftReport,
    dry_run: bool,
) -> Result<Option<PlannedLift>, SessionError> {
    let started = Instant::now();
    let missing = if dry_run { MissingImages::Leave } else { MissingImages::Make };
    let mut ahead = None;
    let open_ahead = |process: &ProcessFacts| {
        ahead =
            process.images.first().filter(|_| !dry_run).and_then(|span| begin_to_open(stop, process, span, machine));
    };
    let planned = plan_for(stop, reader, machine, policy, missing, known, open_ahead);
    // What has been begun in the process is undone whatever the outcome of the plan.
    if !planned.as_ref().is_ok_and(|(_, plan)| !dry_run && !plan.lifts.is_empty()) {
        ahead.take().map_or(Ok(()), Injector::finish)?;
    }
    let (seen, plan) = planned?;
    report.not_understood =
        seen.not_understood.iter().filter(|f| f.executable).map(|f| format!("{}: {}", f.path, f.reason)).collect();
    report.without_image = seen.without_image;
    report.other_threads = stop.other_threads;
    // A program that was started through its dynamic linker goes by its own name.
    if let Some(executable) = seen.process.objects.iter().find(|object| object.role == ObjectRole::Executable) {
        executable.name().clone_into(&mut report.program);
    }
    if dry_run {
        return Ok(Some((plan, seen.process.objects)));
    }
    let mut outcome = lift_execution::Outcome::default();
    if !plan.lifts.is_empty() {
        let mut injector = ahead.map_or_else(|| stop.injector(&seen.process.space), Ok)?;
        match refuse_own_ground(&injector, &plan) {
            Ok(()) => {
                let mut executor = ProcessExecutor::new(&mut injector, machine.base_page);
                outcome = execute(&plan, &seen.process.space, &mut executor);
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
    report.look_at_nodes(machine);
    Ok(None)
}

/// Takes control of the process and lets it open the image that is mapped first, while the remaining facts are read.
/// Where this fails, it is tried again when the image is needed.
fn begin_to_open(
    stop: &EntryStop,
    process: &ProcessFacts,
    span: &ImageSpan,
    machine: &MachineFacts,
) -> Option<Injector> {
    let mut injector = stop.injector(&process.space).ok()?;
    let _ = injector.begin_to_open(&span.path, machine.base_page);
    Some(injector)
}

/// The code that makes the injected system calls must not be replaced while in use. It lies behind the vDSO, which is
/// never lifted, or behind the code of a file where there is no vDSO.
fn refuse_own_ground(injector: &Injector, plan: &Plan) -> Result<(), SessionError> {
    match plan.lifts.iter().any(|lift| injector.stands_in(lift.range)) {
        true => Err(SessionError::Refused(
            "it has no vDSO with room for the code that makes its system calls, which stands in a range to be lifted; \
             needed: a kernel that was not started with vdso=0"
                .to_owned(),
        )),
        false => Ok(()),
    }
}
