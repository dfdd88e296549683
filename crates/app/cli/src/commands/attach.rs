//! `pagelift attach` and `pagelift detach`: lift a program that runs, and put it back.

use super::reading::{keeps_rights, limit_reads};
use super::service::control_group;
use crate::arguments::heap::AttachHeapArg;
use crate::definition::{AttachArgs, DetachArgs};
use crate::output::{Failures, Output};
use crate::say;
use crate::text::{heap, pause::pause, shared, table};
use address_space::format_bytes;
use anyhow::{Context, bail};
use lift_plan::Plan;
use options::{Kind, Policy};
use process_view::{ObjectReader, ObservationError};
use session::inspect::Inspection;
use session::running::{
    AttachOptions, Attached, Chosen, Detached, Selected, Watch, answering, attach as lift, detach as put_back,
    plan_attach,
};
use session::shared::{SharedOptions, SharedReport, lift_shared, plan_shared};
use session::{LiftReport, SessionError, process_name, program_name};
use std::thread;
use std::time::Duration;

/// Interval at which `--watch` looks for newly loaded objects.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// Lifts.
pub fn attach(args: &AttachArgs) -> anyhow::Result<()> {
    limit_reads();
    let group = args.unit.as_deref().map(control_group).transpose()?;
    let chosen = match &group {
        Some(group) => Chosen::ByCgroup(group),
        None => by_program(args.all.as_deref()),
    };
    let pids = targets(args.pid, chosen)?;
    let kinds = args.policy.policy().kinds;
    if args.fill && !kinds.contains(Kind::Shared) {
        bail!("--fill concerns shared memory only; needed: --lift shared");
    }
    let mut failed = Vec::new();
    let mut told = match kinds.contains(Kind::Shared) {
        true => shared_memory(args, &pids, chosen)?,
        false => None,
    };
    // No thread is stopped if only shared memory is lifted.
    if !kinds.without(Kind::Shared).is_empty() || args.heap != AttachHeapArg::Off {
        failed = attach_each(args, &pids, chosen, &mut told);
    }
    if let Some(shared) = told {
        write_alone(args, pids[0], shared)?;
    }
    if failed.is_empty() { Ok(()) } else { Err(Failures(failed).into()) }
}

/// Lifts everything but shared memory, process by process. Returns what failed.
fn attach_each(args: &AttachArgs, pids: &[i32], chosen: Chosen<'_>, told: &mut Option<SharedReport>) -> Vec<String> {
    let mut reader = ObjectReader::new();
    let (pids, silent) = answering(pids);
    // Watched from before the first lift, so that objects loaded during it are noticed.
    let watched = if args.watch { pids.iter().map(|&pid| Watch::new(pid)).collect() } else { Vec::new() };
    let mut failed: Vec<String> = silent.iter().map(ToString::to_string).collect();
    for &pid in &pids {
        let process = Selected { chosen, ..Selected::by_number(pid) };
        if let Err(error) = attach_one(args, &process, &mut reader, told)
            && !process.has_gone()
        {
            failed.push(refusal(pid, &error));
        }
    }
    if args.watch {
        // Refusals at the beginning of a watch are printed at once, not at its end.
        failed.iter().for_each(|line| say!("pagelift: {line}"));
        watch(args, watched, &mut reader);
        failed.iter_mut().for_each(|line| line.insert_str(0, "at the beginning: "));
    }
    failed
}

/// Lifts the shared memory of all processes together, or shows the plan. Returns the outcome if a report is to have it.
fn shared_memory(args: &AttachArgs, pids: &[i32], chosen: Chosen<'_>) -> anyhow::Result<Option<SharedReport>> {
    if args.watch {
        bail!(
            "--watch does not look at shared memory; needed: `pagelift attach --lift shared` alone, and again once the program \
             has filled more of it"
        );
    }
    let options = SharedOptions { chosen, fill: args.fill, most: args.policy.max_memory };
    let name = shared::family(&process_name(pids[0]), pids.len());
    if args.dry_run {
        let planned = plan_shared(pids, options)?;
        Output::Standard.print(&shared::plan(&name, &planned))?;
        return Ok(args.outcome.report.is_some().then_some(planned));
    }
    let lifted = lift_shared(pids, options)?;
    if !args.outcome.quiet {
        say!("{}", shared::line(&name, &lifted));
        shared::left_alone(&lifted).iter().for_each(|line| say!("{line}"));
    }
    if args.outcome.verbose {
        Output::Error.print(&shared::table(&lifted))?;
    }
    let is_complete = lifted.is_complete();
    let told = args.outcome.report.is_some().then_some(lifted);
    if args.require && !is_complete {
        told.map_or(Ok(()), |shared| write_alone(args, pids[0], shared))?;
        bail!("not all shared memory could be lifted, and --require was given");
    }
    Ok(told)
}

/// Writes the report of shared memory if no other report has included it.
fn write_alone(args: &AttachArgs, pid: i32, shared: SharedReport) -> anyhow::Result<()> {
    let Some(path) = &args.outcome.report else { return Ok(()) };
    let as_line = args.pid.is_none();
    let written = match args.dry_run {
        true => Inspection { shared: Some(shared), ..Inspection::of_plan(process_name(pid), Plan::default()) }
            .write(path, as_line),
        false => LiftReport { shared: Some(shared), ..LiftReport::new(pid, program_name(pid)) }.write(path, as_line),
    };
    written.with_context(|| format!("writing {}", path.display()))
}

fn attach_one(
    args: &AttachArgs,
    process: &Selected<'_>,
    reader: &mut ObjectReader,
    told: &mut Option<SharedReport>,
) -> anyhow::Result<()> {
    let pid = process.pid;
    let policy = args.policy.policy();
    let policy = Policy { kinds: policy.kinds.without(Kind::Shared), ..policy };
    if args.dry_run {
        let plan = plan_attach(pid, &policy, reader)?;
        Output::Standard.print(&table::plan(&process_name(pid), &plan))?;
        if let Some(path) = &args.outcome.report {
            let document = Inspection { shared: told.take(), ..Inspection::of_plan(process_name(pid), plan) };
            document.write(path, args.pid.is_none()).with_context(|| format!("writing {}", path.display()))?;
        }
        return Ok(());
    }
    let options = AttachOptions { policy, prepare: args.prepare, heap: args.heap == AttachHeapArg::Thp };
    let Some(attached) = lift(process, &options, reader)? else { return Ok(()) };
    let Attached { mut report, pause: paused, heap_refused, .. } = attached;
    report.shared = told.take();
    if args.outcome.perf_map && report.lift.covered_bytes > 0 {
        let written = session::perf_map::write(pid).context("writing the perf map")?;
        written.not_confined.iter().for_each(keeps_rights);
    }
    if let Some(path) = &args.outcome.report {
        report.write(path, args.pid.is_none()).with_context(|| format!("writing {}", path.display()))?;
    }
    if !args.outcome.quiet {
        let heap = report.heap.as_ref().map(|in_place| format!("; {}", heap::in_place(in_place))).unwrap_or_default();
        say!("{}; {}{heap}", report.line(), pause(paused));
    }
    if args.outcome.verbose {
        Output::Error.print(&table::outcome(&report))?;
    }
    let refused: Vec<String> =
        heap_refused.map(|error| error.in_full()).into_iter().chain(report.still_suspended).collect();
    if !refused.is_empty() {
        bail!(refused.join("; "));
    }
    if args.require && !report.lift.is_complete() {
        bail!("not everything could be lifted, and --require was given");
    }
    Ok(())
}

/// Looks once a second whether objects were loaded, and lifts again where they were.
fn watch(args: &AttachArgs, mut watched: Vec<Watch>, reader: &mut ObjectReader) {
    while !watched.is_empty() {
        thread::sleep(WATCH_EVERY);
        watched.retain_mut(|watched| {
            if watched.has_loaded()
                && let Err(error) = attach_one(args, &watched.process(), reader, &mut None)
            {
                say!("pagelift: {error:#}");
            }
            !watched.has_ended()
        });
    }
}

/// Puts back.
pub fn detach(args: &DetachArgs) -> anyhow::Result<()> {
    limit_reads();
    let chosen = by_program(args.all.as_deref());
    let (pids, silent) = answering(&targets(args.pid, chosen)?);
    let mut failed: Vec<String> = silent.iter().map(ToString::to_string).collect();
    for pid in pids {
        let process = Selected { chosen, ..Selected::by_number(pid) };
        match put_back(&process) {
            Ok(Some(detached)) if !args.quiet => {
                say!("pagelift: {}: {}", process_name(pid), text(&detached))
            }
            Ok(_) => {}
            Err(_) if process.has_gone() => {}
            Err(error) => failed.push(refusal(pid, &error.into())),
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(Failures(failed).into()) }
}

/// Names the process and why nothing was done to it. That there is no such process is said with its number already.
fn refusal(pid: i32, error: &anyhow::Error) -> String {
    match error.downcast_ref() {
        Some(SessionError::Process(ObservationError::NoSuchProcess { .. })) => error.to_string(),
        _ => format!("{}: {error:#}", process_name(pid)),
    }
}

fn text(detached: &Detached) -> String {
    match detached.restored {
        0 => "nothing of it is lifted".to_owned(),
        bytes => format!("{} back on the pages of their files; {}", format_bytes(bytes), pause(detached.pause)),
    }
}

fn by_program(name: Option<&str>) -> Chosen<'_> {
    name.map_or(Chosen::ByNumber, Chosen::ByProgram)
}

fn targets(pid: Option<i32>, chosen: Chosen<'_>) -> anyhow::Result<Vec<i32>> {
    pid.map_or_else(|| Ok(chosen.processes()?), |pid| Ok(vec![pid]))
}
