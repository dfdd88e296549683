//! `pagelift inspect`: the plan for a file or a process, and where its base should be.

use super::probe::{beside, known_reach, reach};
use super::reading::confine_to;
use super::stat::report::{Marks, Outcome};
use super::stat::rounds::{Rounds, Watch};
use crate::definition::InspectArgs;
use crate::output::Output;
use crate::text::{heap, in_place, probe, stat, table};
use address_space::format_bytes;
use anyhow::{Context, bail};
use confinement::Reads;
use foreign_text::printable;
use lift_plan::Coverable;
use options::Policy;
use process_view::coverage::MemoryKind;
use process_view::open_regular_file;
use serde::Serialize;
use session::inspect::{Bases, Inspection, Pools, inspect_file, inspect_process};
use session::shared::{InPlace, InPlaceOptions, plan_in_place};
use std::path::Path;
use std::time::Duration;
use tlb_probe::Probe;
use working_set::Reach;

/// The plan, and with `--used` what is in use.
#[derive(Serialize)]
struct Inspected {
    #[serde(flatten)]
    inspection: Inspection,
    #[serde(flatten)]
    used: Option<Used>,
    /// What this machine's huge pages are worth.
    #[serde(skip_serializing_if = "Option::is_none")]
    probe: Option<Outcome<Probe>>,
    /// What would show more.
    #[serde(skip)]
    hint: Option<String>,
}

/// The pages that a process uses, beside the size of the TLB; the form is that of `stat --json`.
#[derive(Serialize)]
struct Used {
    marks: Outcome<Marks>,
    tlb: Reach,
}

/// Prints the plan.
pub fn run(args: &InspectArgs) -> anyhow::Result<()> {
    let inspected = inspect(args)?;
    let out = Output::Standard;
    if args.json {
        out.print_json(&inspected)?;
    } else {
        match args.policy.policy().kinds.usual().is_empty() {
            true => write!(out, "{}", plans_in_place(&inspected.inspection))?,
            false => write!(out, "{}", text(&inspected.inspection))?,
        }
        if let Some(used) = &inspected.used {
            write!(out, "{}", stat::of_use(&used.marks, &used.tlb))?;
        }
        match &inspected.probe {
            Some(Outcome::Measured(probe)) => write!(out, "\n{}", probe::short(probe))?,
            Some(Outcome::NotMeasured(why)) => writeln!(out, "\nWhat page walks cost: not measured: {why}")?,
            None => {}
        }
        if let Some(hint) = &inspected.hint {
            writeln!(out, "\n{hint}")?;
        }
    }
    Ok(())
}

fn inspect(args: &InspectArgs) -> anyhow::Result<Inspected> {
    let policy = args.policy.policy();
    let pools = if args.suppose_pool { Pools::Plentiful } else { Pools::AsTheyAre };
    let path = Path::new(&args.target);
    let pid = args.target.to_str().and_then(|text| text.parse::<i32>().ok());
    // Before the rights to make memory executable are given up.
    let probe = args.probe.then(|| beside().map_or_else(Outcome::NotMeasured, Outcome::Measured));
    if let Some(pid) = pid.filter(|_| !path.exists()) {
        let looks = args.used || args.probe;
        let tlb = match &probe {
            Some(Outcome::Measured(probe)) => Some(reach(probe)),
            _ => looks.then(known_reach),
        };
        // What changes the process is opened before the rights to change anything are given up.
        let stall = Duration::from_millis(args.stall);
        let watch = looks.then(|| Watch::start(Rounds::open_for_one("inspect --used", pid, stall)));
        // Segments are opened whoever owns them, for which the rights to read are not enough; what they hold is only counted.
        let in_place = in_place_kinds(&policy).map(|memory| plan_in_place(&[pid], InPlaceOptions::of(memory)));
        let in_place: Vec<_> = in_place.collect();
        confine_to(Reads::Processes);
        // Counted before the plan is made: to read the map of a process is to hold it.
        let used = watch.zip(tlb).map(|(watch, tlb)| Used { marks: watch.finish(&tlb), tlb });
        let hint = (!looks).then(|| {
            format!(
                "Whether the TLB holds what it uses: `pagelift inspect --used {pid}`; by a measured reach: --probe."
            )
        });
        let mut inspection = inspect_process(pid, &policy, pools)?;
        for planned in in_place {
            inspection.in_place.add(planned?);
        }
        return Ok(Inspected { inspection, used, probe, hint });
    }
    if let Some(memory) = in_place_kinds(&policy).next() {
        bail!(
            "{} is no process, and has no {}; needed: the number of a process",
            path.display(),
            in_place::noun(memory)
        );
    }
    if args.used {
        bail!(
            "{} is no process; --used counts what a process uses; needed: the number of one that runs under its usual load, \
             or `pagelift stat -- CMD`",
            path.display()
        );
    }
    let Some(file) = open_regular_file(path).with_context(|| format!("opening {}", path.display()))? else {
        bail!("{} is no regular file; needed: an ELF file, or the number of a process", path.display());
    };
    confine_to(Reads::Own);
    Ok(Inspected { inspection: inspect_file(path, &file, &policy, pools)?, used: None, probe, hint: None })
}

fn text(inspection: &Inspection) -> String {
    let mut text = table::plan(&inspection.target, &inspection.plan);
    for file in &inspection.not_understood {
        text += &format!("\nNot understood: {}\n", printable(&file.to_string()));
    }
    text += &memory(inspection);
    if inspection.in_place.all().next().is_some() {
        text += &format!("\n{}", plans_in_place(inspection));
    }
    text += &table::far_pages(&inspection.far_pages);
    text += &match &inspection.bases {
        Some(bases) => format!("\n{}", base_text(bases)),
        None => "\nIts base is fixed by the linker.\n".to_owned(),
    };
    if let Some(plan) = &inspection.heap {
        text += &format!("\n{}", heap::plan(plan));
    }
    if inspection.lacks_shared_objects {
        text += "Shared objects are not in this picture; `pagelift run --dry-run -- CMD` shows them too.\n";
    }
    text
}

fn in_place_kinds(policy: &Policy) -> impl Iterator<Item = InPlace> {
    InPlace::ALL.into_iter().filter(|memory| policy.kinds.contains(memory.kind()))
}

fn plans_in_place(inspection: &Inspection) -> String {
    let plans = inspection.in_place.all().map(|report| in_place::plan(&inspection.target, report));
    plans.collect::<Vec<_>>().join("\n")
}

/// Memory that other words of `--lift` lift in place.
fn memory(inspection: &Inspection) -> String {
    let lines = inspection.memory.iter().filter_map(|memory| {
        let kind = match memory.kind {
            MemoryKind::Shared => InPlace::Shared,
            MemoryKind::Anonymous => InPlace::Anonymous,
            MemoryKind::Jit => InPlace::Jit,
            _ => return None,
        };
        let (resident, huge) = (format_bytes(memory.usage.resident), format_bytes(memory.usage.huge_bytes()));
        Some(format!("  --lift {}: {}, {resident} resident, {huge} on huge pages\n", kind.kind(), in_place::noun(kind)))
    });
    let lines = lines.collect::<String>();
    if lines.is_empty() { lines } else { format!("\nMemory besides objects\n{lines}") }
}

fn base_text(bases: &Bases) -> String {
    let Bases { page_size, now, aligned, best } = bases;
    let covered = |c: &Coverable| {
        format!(
            "{} of {} code, {} of {} in all",
            format_bytes(c.text),
            format_bytes(best.all.text),
            format_bytes(c.total),
            format_bytes(best.all.total)
        )
    };
    let mut text = String::from("Base of the executable, and what huge pages cover there\n");
    if let Some(now) = now {
        text += &format!("  now: {}\n", covered(now));
    }
    text += &format!("  a multiple of {page_size}: {}\n", covered(aligned));
    text += &format!("  best, {:#x} above a multiple of {page_size}: {}\n", best.offset, covered(&best.covered));
    text + "`pagelift run` chooses the best by itself: most code first, then most read-only data, then most of all.\n"
}
