//! `pagelift attach` and `pagelift detach`: lift a program that runs, and put it back.

mod watch;

use super::reading::{keeps_rights, limit_reads};
use super::service::control_group;
use super::status::explain;
use crate::arguments::heap::AttachHeapArg;
use crate::definition::{AttachArgs, DetachArgs};
use crate::output::{Failures, Output};
use crate::say;
use crate::text::in_place::{self, Told};
use crate::text::{heap, pause::pause, table};
use address_space::format_bytes;
use anyhow::{Context, bail};
use foreign_text::printable;
use health::Standing;
use lift_plan::Plan;
use linux::process_handle::ProcessHandle;
use linux::urgency::hurry;
use linux::written_file::is_standard_output;
use options::{Kind, Policy};
use process_view::coverage::ProcessMemory;
use process_view::{ObjectReader, ObservationError, OneByOne};
use session::inspect::Inspection;
use session::running::{
    AttachOptions, Attached, Chosen, Detached, Members, Selected, Watches, answering, attach as lift,
    detach as put_back, leave_stops_to_waiters, plan_attach, with_process,
};
use session::shared::{
    Growing, InPlace, InPlaceAmounts, InPlaceOptions, InPlaceReport, InPlaceReports, added, plan_in_place,
};
use session::{LiftReport, SessionError, process_name, process_name_in_time, program_name_in_time};
use std::collections::BTreeSet;
use std::sync::Arc;
use watch::{GrowingFamily, GrowingMemory, WatchedFiles, watch};

/// Why a lift that was carried out has failed.
const NOT_AS_IT_WAS: &str = "its memory is not as it was; see the line about the FAULT";

/// Lifts.
pub fn attach(args: &AttachArgs) -> anyhow::Result<()> {
    let kinds = args.policy.policy().kinds;
    let in_place: Vec<_> = InPlace::ALL.into_iter().filter(|memory| kinds.contains(memory.kind())).collect();
    // systemctl would inherit what follows.
    let group = args.unit.as_deref().map(control_group).transpose()?;
    leave_stops_to_waiters();
    // Lifts in place may take minutes, and take the largest share for each block.
    if in_place.is_empty() && args.heap == AttachHeapArg::Off && !args.watch {
        hurry();
    }
    limit_reads();
    let chosen = chosen(args, group.as_deref());
    let pids = targets(args.pid, chosen)?;
    if args.fill && in_place.is_empty() {
        bail!("--fill concerns shared, anonymous and generated memory only; needed: --lift shared, anon or jit");
    }
    let mut memory = MemoryLeft(args.policy.max_memory);
    let (told, mut family) = lift_each(args, &pids, chosen, &in_place, &mut memory)?;
    let (mut failed, mut objects) = (Vec::new(), Watches::of(&[]));
    let mut lifts = Lifts {
        args: Arc::new(args.clone()),
        group: group.clone(),
        threads: OneByOne::default(),
        silent: BTreeSet::new(),
    };
    let mut state = State { reader: ObjectReader::new(), told, memory };
    // Other kinds stop the threads of the program.
    if !kinds.planned().is_empty() || args.heap != AttachHeapArg::Off {
        (failed, objects) = attach_each(&mut lifts, &pids, &mut state);
        family.iter_mut().for_each(GrowingFamily::files_were_lifted);
    }
    if let Some(told) = state.told.take() {
        write_alone(args, pids[0], told)?;
    }
    if args.watch {
        // Refusals at the beginning of a watch are printed at once, not at its end.
        failed.iter().for_each(|line| say!("pagelift: {line}"));
        let faults = watch(&mut lifts, (objects, family), &mut state);
        failed.iter_mut().for_each(|line| line.insert_str(0, "at the beginning: "));
        failed.extend(faults);
    }
    if failed.is_empty() { Ok(()) } else { Err(Failures(failed).into()) }
}

/// The rest of `--max-memory`, one limit for all kinds of memory and all processes of a command.
#[derive(Clone, Copy, Default)]
struct MemoryLeft(Option<u64>);

impl MemoryLeft {
    fn spend(&mut self, bytes: u64) {
        self.0 = self.0.map(|left| left.saturating_sub(bytes));
    }
}

/// The lifts, process by process.
struct Lifts {
    args: Arc<AttachArgs>,
    /// The control group of the processes.
    group: Option<String>,
    threads: OneByOne,
    /// Processes that did not answer at their last lift, and have been named for that.
    silent: BTreeSet<i32>,
}

/// The state that one lift passes to the next.
#[derive(Default)]
struct State {
    reader: ObjectReader,
    /// Reports of lifts in place, for the next report.
    told: Option<InPlaceReports>,
    memory: MemoryLeft,
}

impl Lifts {
    /// Lifts everything but what is lifted in place. Returns why that failed. A process that stops answering is named as well.
    fn lift(&mut self, pid: i32, handle: Option<Arc<ProcessHandle>>, state: &mut State) -> Option<String> {
        let (args, group, memory) = (self.args.clone(), self.group.clone(), state.memory);
        let told = state.told.clone();
        let mut own = std::mem::replace(state, State { told, memory, ..State::default() });
        let work = move || {
            let chosen = match &handle {
                Some(_) => Chosen::ByNumber,
                None => chosen(&args, group.as_deref()),
            };
            let process = Selected { pid, chosen, handle: handle.as_deref() };
            let failed = attach_one(&args, &process, &mut own).err().filter(|_| !process.has_gone());
            (failed.map(|error| refusal(pid, &error)), own)
        };
        match with_process(&mut self.threads, pid, work) {
            Ok((failed, own)) => {
                *state = own;
                self.silent.remove(&pid);
                failed
            }
            Err(silent) => {
                self.silent.insert(pid);
                Some(silent.to_string())
            }
        }
    }
}

fn chosen<'a>(args: &'a AttachArgs, group: Option<&'a str>) -> Chosen<'a> {
    group.map_or_else(|| by_program(args.all.as_deref()), Chosen::ByCgroup)
}

/// Lifts everything but what is lifted in place, process by process. Returns what failed, and what is watched.
fn attach_each(lifts: &mut Lifts, pids: &[i32], state: &mut State) -> (Vec<String>, Watches) {
    let (pids, silent) = answering(pids);
    // Watched from before the first lift, so that objects loaded during it are noticed.
    let watched = Watches::of(if lifts.args.watch { &pids } else { &[] });
    let mut failed: Vec<String> = silent.iter().map(ToString::to_string).collect();
    lifts.silent.extend(silent.iter().map(|process| process.pid));
    failed.extend(pids.into_iter().filter_map(|pid| lifts.lift(pid, None, state)));
    (failed, watched)
}

/// Lifts memory in place, of all processes together, or shows the plan. Returns the outcome if a report is to have it, and the
/// family if it is watched.
fn lift_each<'a>(
    args: &AttachArgs,
    pids: &[i32],
    chosen: Chosen<'a>,
    in_place: &[InPlace],
    left: &mut MemoryLeft,
) -> anyhow::Result<(Option<InPlaceReports>, Option<GrowingFamily<'a>>)> {
    let members = Members::new(pids, chosen);
    let (mut reports, mut growing) = (InPlaceReports::default(), Vec::new());
    for &memory in in_place {
        let options = InPlaceOptions { memory, chosen, fill: args.fill.into(), with_break: false, most: left.0 };
        let (report, grows) = lift_memory(args, pids, options)?;
        left.spend(added(&report));
        reports.add(report);
        growing.extend(grows);
    }
    let is_complete = args.dry_run || reports.all().all(InPlaceReport::is_complete);
    let has_files = args.watch && args.policy.policy().kinds.contains(Kind::Files);
    let files = has_files.then(|| WatchedFiles::new(args, pids, chosen)).flatten();
    let family = args.watch && (!growing.is_empty() || files.is_some());
    let family = family.then(|| GrowingFamily::new(members, growing, files));
    let reports = (args.outcome.report.is_some() && !in_place.is_empty()).then_some(reports);
    if args.require && !is_complete {
        reports.map_or(Ok(()), |reports| write_alone(args, pids[0], reports))?;
        bail!("not all memory could be lifted in place, and --require was given");
    }
    Ok((reports, family))
}

/// Lifts one kind of memory in place, or shows the plan. Returns what lifts it again as it grows, too.
fn lift_memory<'a>(
    args: &AttachArgs,
    pids: &[i32],
    options: InPlaceOptions<'a>,
) -> anyhow::Result<(InPlaceReport, Option<GrowingMemory<'a>>)> {
    if args.dry_run {
        let planned = plan_in_place(pids, options)?;
        stream_of_plan(args).print(&in_place::plan(&family_name(pids), &planned))?;
        return Ok((planned, None));
    }
    let (lifted, growing) = Growing::begin(pids, options)?;
    let mut told = Told::default();
    if !args.outcome.quiet {
        tell(pids, &lifted, true, &mut told);
    }
    if args.outcome.verbose && !lifted.segments.is_empty() {
        Output::Error.print(&in_place::table(&lifted, Output::Error))?;
    }
    Ok((lifted, growing.map(|growing| GrowingMemory { growing, options, told })))
}

/// Prints the result, and the blocks left alone if one of their reasons is new.
fn tell(pids: &[i32], lifted: &InPlaceReport, has_lifted: bool, told: &mut Told) {
    if has_lifted {
        say!("pagelift: {}", in_place::line(&family_name(pids), lifted));
    }
    told.left_alone(lifted).iter().for_each(|line| say!("pagelift: {line}"));
}

/// The stream for the text of a plan: standard error if the report goes to standard output.
fn stream_of_plan(args: &AttachArgs) -> Output {
    let is_taken = args.outcome.report.as_deref().is_some_and(is_standard_output);
    if is_taken { Output::Error } else { Output::Standard }
}

fn family_name(pids: &[i32]) -> String {
    in_place::family(&process_name_in_time(pids[0]), pids.len())
}

/// Writes the report about lifts in place, unless another report has included that.
fn write_alone(args: &AttachArgs, pid: i32, in_place: InPlaceReports) -> anyhow::Result<()> {
    let Some(path) = &args.outcome.report else { return Ok(()) };
    let as_line = args.pid.is_none();
    let written = match args.dry_run {
        true => {
            let document = Inspection::of_plan(process_name_in_time(pid), Plan::default());
            Inspection { in_place, ..document }.write(path, as_line)
        }
        false => LiftReport { in_place, ..LiftReport::new(pid, program_name_in_time(pid)) }.write(path, as_line),
    };
    written.with_context(|| format!("writing {}", path.display()))
}

fn attach_one(args: &AttachArgs, process: &Selected<'_>, state: &mut State) -> anyhow::Result<()> {
    let State { reader, told, memory } = state;
    let pid = process.pid;
    let policy = args.policy.policy();
    let policy = Policy { kinds: policy.kinds.planned(), max_memory: memory.0, ..policy };
    if args.dry_run {
        let plan = plan_attach(pid, &policy, reader)?;
        memory.spend(plan.makes_resident());
        let heap = if args.heap == AttachHeapArg::Thp { plan_of_heap(pid) } else { String::new() };
        let planned = Inspection::of_plan(process_name(pid), plan).with_memory_of(pid);
        stream_of_plan(args).print(&(heap + &plan_text(&planned, stream_of_plan(args).width())))?;
        if let Some(path) = &args.outcome.report {
            let document = Inspection { in_place: told.take().unwrap_or_default(), ..planned };
            document.write(path, args.pid.is_none()).with_context(|| format!("writing {}", path.display()))?;
        }
        return Ok(());
    }
    let options = AttachOptions { policy, prepare: args.prepare, heap: args.heap == AttachHeapArg::Thp, paid: None };
    let Some(attached) = lift(process, &options, reader)? else { return Ok(()) };
    let Attached { mut report, pause: paused, heap_refused, .. } = attached;
    memory.spend(report.lift.made_resident_bytes);
    report.in_place = told.take().unwrap_or_default();
    if args.outcome.perf_map && report.lift.covered_bytes > 0 {
        let written = session::perf_map::write(pid).context("writing the perf map")?;
        written.not_confined.iter().for_each(keeps_rights);
    }
    if let Some(path) = &args.outcome.report {
        report.write(path, args.pid.is_none()).with_context(|| format!("writing {}", path.display()))?;
    }
    if is_told(args.outcome.quiet, report.lift.unexpected.len()) {
        let more = if report.lift.is_nothing() { on_request(pid, report.heap.is_some()) } else { String::new() };
        say!("{}; {}{more}", heap::outcome(&report), pause(paused));
    }
    if args.outcome.verbose {
        Output::Error.print(&table::outcome(&report))?;
    }
    let refused: Vec<String> =
        heap_refused.map(|error| error.in_full()).into_iter().chain(report.still_suspended.clone()).collect();
    if !refused.is_empty() {
        bail!(refused.join("; "));
    }
    if !report.lift.unexpected.is_empty() {
        bail!("{NOT_AS_IT_WAS}");
    }
    if args.require && !report.is_complete() {
        bail!("not everything could be lifted, and --require was given");
    }
    Ok(())
}

/// True if a line about the lift is printed. With `--quiet` only a fault has one.
fn is_told(is_quiet: bool, faults: usize) -> bool {
    !is_quiet || faults > 0
}

/// The bytes that a lift would add to those on huge pages, and the ranges.
fn plan_text(planned: &Inspection, width: Option<usize>) -> String {
    let huge = planned.now.map_or(0, |now| now.huge);
    if huge == 0 {
        return table::plan(&planned.target, &planned.plan, None, width);
    }
    let [adds, considered, huge] = [planned.adds(), planned.plan.considered, huge].map(format_bytes);
    let target = printable(&planned.target);
    let ranges = table::ranges(&planned.plan, width);
    format!("{target}: {adds} of {considered} would be put on huge pages; {huge} is on huge pages already\n{ranges}")
}

/// The most that `--heap=thp` would put on huge pages, as a line of a plan.
fn plan_of_heap(pid: i32) -> String {
    let amounts = in_place_amounts(pid);
    let most = amounts.anonymous.max(amounts.heap);
    format!("heap: up to {} of anonymous memory would be put on huge pages in place\n\n", format_bytes(most))
}

fn in_place_amounts(pid: i32) -> InPlaceAmounts {
    ProcessMemory::read(pid).map(|memory| InPlaceAmounts::of(&memory)).unwrap_or_default()
}

/// Names the options by which memory of the process would be lifted in place, if there is any. A lift of the heap has tried
/// all anonymous memory.
fn on_request(pid: i32, has_tried_heap: bool) -> String {
    let mut in_place = in_place_amounts(pid);
    if has_tried_heap {
        (in_place.anonymous, in_place.heap) = (0, 0);
    }
    let standing = Standing { in_place, ..Standing::default() };
    standing.on_request().map_or_else(String::new, |options| format!("; on request: {options}"))
}

/// Puts back.
pub fn detach(args: &DetachArgs) -> anyhow::Result<()> {
    leave_stops_to_waiters();
    hurry();
    limit_reads();
    let chosen = by_program(args.all.as_deref());
    let (pids, silent) = answering(&targets(args.pid, chosen)?);
    let mut failed: Vec<String> = silent.iter().map(ToString::to_string).collect();
    let mut threads = OneByOne::default();
    for pid in pids {
        let args = args.clone();
        let work = move || detach_one(&args, pid);
        failed.extend(with_process(&mut threads, pid, work).unwrap_or_else(|silent| Some(silent.to_string())));
    }
    if failed.is_empty() { Ok(()) } else { Err(Failures(failed).into()) }
}

/// Puts one process back. Returns why that failed.
fn detach_one(args: &DetachArgs, pid: i32) -> Option<String> {
    let process = Selected { chosen: by_program(args.all.as_deref()), ..Selected::by_number(pid) };
    match put_back(&process) {
        Ok(Some(detached)) if !args.quiet => {
            say!("pagelift: {}: {}", process_name(pid), text(&detached));
            None
        }
        Ok(_) => None,
        Err(error) => (!process.has_gone()).then(|| refusal(pid, &error.into())),
    }
}

/// Names the process and the reason of its refusal. An error about a missing process contains its number already.
fn refusal(pid: i32, error: &anyhow::Error) -> String {
    match error.downcast_ref() {
        Some(SessionError::Process(ObservationError::NoSuchProcess { .. })) => error.to_string(),
        Some(SessionError::Process(ObservationError::NotPermitted { .. })) => {
            explain(ObservationError::NotPermitted { pid }, "attach").to_string()
        }
        _ => format!("{}: {error:#}", process_name(pid)),
    }
}

fn text(detached: &Detached) -> String {
    let Detached { restored, stays, stays_shared, stays_file, .. } = *detached;
    let stay = |bytes: u64, what: &str| match bytes {
        0 => String::new(),
        bytes => format!("; {} of {what}", format_bytes(bytes)),
    };
    let stays = stay(stays, "written memory stays on huge pages until the process ends")
        + &stay(stays_shared, "shared memory stays on huge pages until it is freed")
        + &stay(stays_file, "mapped files stays on huge pages of the page cache");
    match restored {
        0 if stays.is_empty() => "nothing is lifted".to_owned(),
        0 => format!("no copies of code or read-only data to restore{stays}"),
        bytes => {
            format!("{} back on the pages of their files; {}{stays}", format_bytes(bytes), pause(detached.pause))
        }
    }
}

fn by_program(name: Option<&str>) -> Chosen<'_> {
    name.map_or(Chosen::ByNumber, Chosen::ByProgram)
}

fn targets(pid: Option<i32>, chosen: Chosen<'_>) -> anyhow::Result<Vec<i32>> {
    pid.map_or_else(|| Ok(chosen.processes()?), |pid| Ok(vec![pid]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_quiet_lift_has_the_line_of_its_fault() {
        assert!(is_told(false, 0) && is_told(true, 1) && !is_told(true, 0));
    }

    #[test]
    fn a_detach_names_all_that_stays_on_huge_pages() {
        let words = |stays, stays_shared, stays_file| {
            text(&Detached { stays, stays_shared, stays_file, ..Detached::default() })
        };
        assert_eq!(words(0, 0, 0), "nothing is lifted");
        assert_eq!(
            words(2 * MIB, 0, 18 * MIB),
            "no copies of code or read-only data to restore; 2.0 MiB of written memory stays on huge pages until the process \
             ends; 18.0 MiB of mapped files stays on huge pages of the page cache"
        );
    }
}
