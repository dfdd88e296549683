//! `pagelift attach` and `pagelift detach`: lift a program that runs, and put it back.

use super::reading::{keeps_rights, limit_reads};
use super::service::control_group;
use crate::arguments::heap::AttachHeapArg;
use crate::definition::{AttachArgs, DetachArgs};
use crate::output::{Failures, Output};
use crate::say;
use crate::text::{heap, in_place, pause::pause, table};
use address_space::format_bytes;
use anyhow::{Context, bail};
use lift_plan::Plan;
use options::Policy;
use process_view::{ObjectReader, ObservationError};
use session::inspect::Inspection;
use session::running::{
    AttachOptions, Attached, Chosen, Detached, Selected, Watch, answering, attach as lift, detach as put_back,
    plan_attach,
};
use session::shared::{InPlace, InPlaceOptions, InPlaceReport, InPlaceReports, lift_in_place, plan_in_place};
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
    let in_place: Vec<_> = InPlace::ALL.into_iter().filter(|memory| kinds.contains(memory.kind())).collect();
    if args.fill && in_place.is_empty() {
        bail!("--fill concerns shared, anonymous and generated memory only; needed: --lift shared, anon or jit");
    }
    if args.watch && !in_place.is_empty() {
        bail!(
            "--watch lifts neither shared nor anonymous nor generated memory; needed: `pagelift attach --lift shared` (or anon, \
             jit) alone, and again once the program has filled more of it"
        );
    }
    let mut failed = Vec::new();
    let mut told = lift_each(args, &pids, chosen, &in_place)?;
    // Other kinds stop the threads of the program.
    if !kinds.usual().is_empty() || args.heap != AttachHeapArg::Off {
        failed = attach_each(args, &pids, chosen, &mut told);
    }
    if let Some(told) = told {
        write_alone(args, pids[0], told)?;
    }
    if failed.is_empty() { Ok(()) } else { Err(Failures(failed).into()) }
}

/// Lifts everything but what is lifted in place, process by process. Returns what failed.
fn attach_each(args: &AttachArgs, pids: &[i32], chosen: Chosen<'_>, told: &mut Option<InPlaceReports>) -> Vec<String> {
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

/// Lifts memory in place, of all processes together, or shows the plan. Returns the outcome if a report is to have it.
fn lift_each(
    args: &AttachArgs,
    pids: &[i32],
    chosen: Chosen<'_>,
    in_place: &[InPlace],
) -> anyhow::Result<Option<InPlaceReports>> {
    let mut told = InPlaceReports::default();
    for &memory in in_place {
        told.add(lift_memory(args, pids, chosen, memory)?);
    }
    let is_complete = args.dry_run || told.all().all(InPlaceReport::is_complete);
    let told = (args.outcome.report.is_some() && !in_place.is_empty()).then_some(told);
    if args.require && !is_complete {
        told.map_or(Ok(()), |told| write_alone(args, pids[0], told))?;
        bail!("not all memory could be lifted in place, and --require was given");
    }
    Ok(told)
}

/// Lifts one kind of memory in place, or shows the plan.
fn lift_memory(args: &AttachArgs, pids: &[i32], chosen: Chosen<'_>, memory: InPlace) -> anyhow::Result<InPlaceReport> {
    let options = InPlaceOptions { memory, chosen, fill: args.fill, most: args.policy.max_memory };
    let name = in_place::family(&process_name(pids[0]), pids.len());
    if args.dry_run {
        let planned = plan_in_place(pids, options)?;
        Output::Standard.print(&in_place::plan(&name, &planned))?;
        return Ok(planned);
    }
    let lifted = lift_in_place(pids, options)?;
    if !args.outcome.quiet {
        say!("{}", in_place::line(&name, &lifted));
        in_place::left_alone(&lifted).iter().for_each(|line| say!("{line}"));
    }
    if args.outcome.verbose {
        Output::Error.print(&in_place::table(&lifted))?;
    }
    Ok(lifted)
}

/// Writes the report about lifts in place, unless another report has included that.
fn write_alone(args: &AttachArgs, pid: i32, in_place: InPlaceReports) -> anyhow::Result<()> {
    let Some(path) = &args.outcome.report else { return Ok(()) };
    let as_line = args.pid.is_none();
    let written = match args.dry_run {
        true => Inspection { in_place, ..Inspection::of_plan(process_name(pid), Plan::default()) }.write(path, as_line),
        false => LiftReport { in_place, ..LiftReport::new(pid, program_name(pid)) }.write(path, as_line),
    };
    written.with_context(|| format!("writing {}", path.display()))
}

fn attach_one(
    args: &AttachArgs,
    process: &Selected<'_>,
    reader: &mut ObjectReader,
    told: &mut Option<InPlaceReports>,
) -> anyhow::Result<()> {
    let pid = process.pid;
    let policy = args.policy.policy();
    let policy = Policy { kinds: policy.kinds.usual(), ..policy };
    if args.dry_run {
        let plan = plan_attach(pid, &policy, reader)?;
        Output::Standard.print(&table::plan(&process_name(pid), &plan))?;
        if let Some(path) = &args.outcome.report {
            let document = Inspection {
                in_place: told.take().unwrap_or_default(),
                ..Inspection::of_plan(process_name(pid), plan)
            };
            document.write(path, args.pid.is_none()).with_context(|| format!("writing {}", path.display()))?;
        }
        return Ok(());
    }
    let options = AttachOptions { policy, prepare: args.prepare, heap: args.heap == AttachHeapArg::Thp };
    let Some(attached) = lift(process, &options, reader)? else { return Ok(()) };
    let Attached { mut report, pause: paused, heap_refused, .. } = attached;
    report.in_place = told.take().unwrap_or_default();
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
