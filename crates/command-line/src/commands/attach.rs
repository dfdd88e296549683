//! `pagelift attach` and `pagelift detach`: lift a program that runs, and put it back.

use crate::cli::{AttachArgs, DetachArgs};
use crate::lifting::facts::{plan_for_running, without_thp_disable};
use crate::lifting::handler::program_name;
use crate::lifting::heap_in_place::{AttachHeapArg, collapse_in_place};
use crate::lifting::images::MissingImages;
use crate::lifting::live::{lift_running, restore_running};
use crate::lifting::message;
use crate::lifting::report::Report;
use crate::lifting::table;
use anyhow::{Context, bail};
use by_ptrace::live::StopWaiter;
use huge_page_pools::machine_facts;
use observation::{ObjectReader, ProcessFiles};
use std::collections::HashSet;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

/// How often `--watch` looks for objects that were loaded since.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// Lifts.
pub fn attach(args: &AttachArgs) -> anyhow::Result<()> {
    let pids = targets(args.pid, args.all.as_deref())?;
    let mut reader = ObjectReader::new();
    // Looked at before the first lift, so that nothing that is loaded meanwhile is overlooked.
    let watched = if args.watch { pids.iter().map(|&pid| Watched::new(pid)).collect() } else { Vec::new() };
    let mut failed = Vec::new();
    for &pid in &pids {
        if let Err(error) = leaving_no_trace(|| attach_one(args, pid, &mut reader))
            && !has_just_ended(args.all.as_deref(), pid)
        {
            failed.push(format!("{}[{pid}]: {error:#}", program_name(pid)));
        }
    }
    if args.watch {
        // Nobody waits for the end of a watch to learn what was refused at its beginning.
        failed.iter().for_each(|line| eprintln!("pagelift: {line}"));
        watch(args, watched, &mut reader);
        failed.iter_mut().for_each(|line| line.insert_str(0, "at the beginning: "));
    }
    if failed.is_empty() { Ok(()) } else { bail!(failed.join("\npagelift: ")) }
}

fn attach_one(args: &AttachArgs, pid: i32, reader: &mut ObjectReader) -> anyhow::Result<()> {
    let machine = machine_facts(pid);
    let policy = args.policy.policy();
    if args.dry_run {
        let (machine, _) = without_thp_disable(&machine);
        let (_, plan) = plan_for_running(pid, reader, &machine, &policy, MissingImages::Leave)?;
        print!("{}", table::plan(&format!("{}[{pid}]", program_name(pid)), &plan));
        return Ok(());
    }
    let mut report = Report::new(pid, program_name(pid));
    let pause = lift_running(pid, reader, &machine, &policy, &mut report)?;
    if args.heap == AttachHeapArg::Thp {
        report.heap = Some(collapse_in_place(pid, &machine)?);
    }
    if args.perf_map && report.covered_bytes > 0 {
        observation::perf_map::write(pid).context("writing the perf map")?;
    }
    if let Some(path) = &args.report {
        report.write(path, args.all.is_some()).with_context(|| format!("writing {}", path.display()))?;
    }
    if !args.quiet {
        let heap = report.heap.as_ref().map(|heap| format!("; {}", heap.text())).unwrap_or_default();
        eprintln!("{}; {}{heap}", message::line(&report), pause);
    }
    if args.verbose {
        eprint!("{}", table::outcome(&report));
    }
    if args.require && !report.is_complete() {
        bail!("not everything could be lifted, and --require was given");
    }
    Ok(())
}

/// Works on a program in a thread that ends with the work. A thread of the program that was told to stop and could not,
/// in vfork for example, is then let go by the kernel, whenever it comes to a stop: a tracer that lived on would have it
/// stand there.
fn leaving_no_trace<T: Send>(work: impl FnOnce() -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
    // The signals that tell of stops are not for this thread.
    let _signals = StopWaiter::take();
    thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// A process that is watched.
struct Watched {
    pid: i32,
    /// Files whose objects were lifted, or tried.
    known: HashSet<PathBuf>,
    /// Those of the look before.
    last: HashSet<PathBuf>,
}

impl Watched {
    fn new(pid: i32) -> Self {
        let known = mapped_files(pid);
        Self { pid, last: known.clone(), known }
    }
}

/// Looks at the list of mapped files once a second, which costs the program nothing, and lifts again where it has grown.
fn watch(args: &AttachArgs, mut watched: Vec<Watched>, reader: &mut ObjectReader) {
    while !watched.is_empty() {
        thread::sleep(WATCH_EVERY);
        watched.retain_mut(|watched| {
            let files = mapped_files(watched.pid);
            // What is there for the first time may still be half loaded.
            let settled = files.intersection(&watched.last).cloned().collect::<HashSet<_>>();
            if !settled.is_subset(&watched.known) {
                if let Err(error) = leaving_no_trace(|| attach_one(args, watched.pid, reader)) {
                    eprintln!("pagelift: {error:#}");
                }
                watched.known = settled;
            }
            watched.last = files;
            !watched.last.is_empty()
        });
    }
}

fn mapped_files(pid: i32) -> HashSet<PathBuf> {
    let Ok(space) = ProcessFiles::of(pid).maps() else { return HashSet::new() };
    space.mappings().iter().filter(|m| m.protection.execute).filter_map(|m| m.path().map(PathBuf::from)).collect()
}

/// Puts back.
pub fn detach(args: &DetachArgs) -> anyhow::Result<()> {
    let mut failed = Vec::new();
    for pid in targets(args.pid, args.all.as_deref())? {
        match leaving_no_trace(|| restore_running(pid)) {
            Ok(line) if !args.quiet => eprintln!("pagelift: {}[{pid}]: {line}", program_name(pid)),
            Ok(_) => {}
            Err(_) if has_just_ended(args.all.as_deref(), pid) => {}
            Err(error) => failed.push(format!("{}[{pid}]: {error:#}", program_name(pid))),
        }
    }
    if failed.is_empty() { Ok(()) } else { bail!(failed.join("\npagelift: ")) }
}

/// Of many processes of one name some may end meanwhile, which is no failure.
fn has_just_ended(all: Option<&str>, pid: i32) -> bool {
    all.is_some() && ProcessFiles::of(pid).maps().is_ok_and(|space| space.mappings().is_empty())
        || all.is_some() && !ProcessFiles::of(pid).path("maps").exists()
}

fn targets(pid: Option<i32>, all: Option<&str>) -> anyhow::Result<Vec<i32>> {
    if let Some(pid) = pid {
        return Ok(vec![pid]);
    }
    let name = all.context("needed: the number of a process, or --all NAME")?;
    let own = std::process::id() as i32;
    let mut pids = Vec::new();
    for entry in std::fs::read_dir("/proc").context("listing processes")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        if pid != own && program_name(pid) == name {
            pids.push(pid);
        }
    }
    if pids.is_empty() {
        bail!("no process runs a program named {name}; `ps -e` lists those that run");
    }
    pids.sort_unstable();
    Ok(pids)
}
