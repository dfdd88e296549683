//! `pagelift attach` and `pagelift detach`: lift a program that runs, and put it back.

use crate::cli::{AttachArgs, DetachArgs};
use crate::lifting::facts::{plan_for_running, without_thp_disable};
use crate::lifting::handler::program_name;
use crate::lifting::images::MissingImages;
use crate::lifting::live::{lift_running, restore_running};
use crate::lifting::message;
use crate::lifting::report::Report;
use crate::lifting::table;
use anyhow::{Context, bail};
use huge_page_pools::machine_facts;
use observation::{ObjectReader, ProcessFiles};
use std::collections::HashSet;
use std::thread;
use std::time::Duration;

/// How often `--watch` looks for objects that were loaded since.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// Lifts.
pub fn attach(args: &AttachArgs) -> anyhow::Result<()> {
    let pids = targets(args.pid, args.all.as_deref())?;
    let mut reader = ObjectReader::new();
    let mut failed = Vec::new();
    for &pid in &pids {
        if let Err(error) = attach_one(args, pid, &mut reader)
            && !has_just_ended(args.all.as_deref(), pid)
        {
            failed.push(format!("{}[{pid}]: {error:#}", program_name(pid)));
        }
    }
    if args.watch {
        watch(args, pids, &mut reader);
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
    if args.perf_map && report.covered_bytes > 0 {
        observation::perf_map::write(pid).context("writing the perf map")?;
    }
    if let Some(path) = &args.report {
        report.write(path, args.all.is_some()).with_context(|| format!("writing {}", path.display()))?;
    }
    if !args.quiet {
        eprintln!("{}; {}", message::line(&report), pause);
    }
    if args.verbose {
        eprint!("{}", table::outcome(&report));
    }
    if args.require && !report.is_complete() {
        bail!("not everything could be lifted, and --require was given");
    }
    Ok(())
}

/// Looks at the list of mapped files once a second, which costs the program nothing, and lifts again where it has grown.
fn watch(args: &AttachArgs, mut pids: Vec<i32>, reader: &mut ObjectReader) {
    let mut known: Vec<HashSet<String>> = pids.iter().map(|&pid| mapped_files(pid)).collect();
    while !pids.is_empty() {
        thread::sleep(WATCH_EVERY);
        let mut index = 0;
        while index < pids.len() {
            let files = mapped_files(pids[index]);
            if files.is_empty() {
                pids.remove(index);
                known.remove(index);
                continue;
            }
            if !files.is_subset(&known[index])
                && let Err(error) = attach_one(args, pids[index], reader)
            {
                eprintln!("pagelift: {error:#}");
            }
            known[index] = files;
            index += 1;
        }
    }
}

fn mapped_files(pid: i32) -> HashSet<String> {
    let Ok(space) = ProcessFiles::of(pid).maps() else { return HashSet::new() };
    space.mappings().iter().filter(|m| m.protection.execute).filter_map(|m| m.path().map(str::to_owned)).collect()
}

/// Puts back.
pub fn detach(args: &DetachArgs) -> anyhow::Result<()> {
    let mut failed = Vec::new();
    for pid in targets(args.pid, args.all.as_deref())? {
        match restore_running(pid) {
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
