//! `pagelift inspect`: the plan for a file or a process, and the best base.

use super::probe::{beside, known_reach, reach};
use super::reading::confine_to;
use super::stat::report::{Marks, Outcome};
use super::stat::rounds::{Rounds, Watch};
use super::status::explain;
use crate::arguments::process::{process_besides_file, process_unless_file};
use crate::definition::InspectArgs;
use crate::output::Output;
use crate::text::{heap, in_place, message, probe, stat, table};
use address_space::{PageSize, format_bytes};
use anyhow::{Context, bail};
use confinement::Reads;
use foreign_text::printable;
use health::Standing;
use lift_plan::{Coverable, Plan, Source};
use linux::pages::transparent_huge_page;
use options::{Kind, Policy};
use process_view::coverage::{MemoryCoverage, MemoryKind, Usage};
use process_view::open_regular_file;
use serde::Serialize;
use session::inspect::{Amounts, Bases, FileLift, Inspection, KnownFile, Pools, inspect_file, inspect_process};
use session::shared::{InPlace, InPlaceOptions, plan_in_place};
use session::start::Payment;
use session::{DataFileReport, SessionError};
use std::path::Path;
use translation::tlb_probe::Probe;
use translation::working_set::Reach;

/// The plan, and with `--used` the pages in use.
#[derive(Serialize)]
struct Inspected {
    #[serde(flatten)]
    inspection: Inspection,
    #[serde(flatten)]
    used: Option<Used>,
    /// The gain from this machine's huge pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    probe: Option<Outcome<Probe>>,
    /// A command that would show more.
    #[serde(skip)]
    hint: Option<String>,
}

/// The pages that a process uses, beside the size of the TLB; the format equals `stat --json`.
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
        match args.policy.policy().kinds.planned().is_empty() {
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
    let pid = process_unless_file(&args.target).map_err(anyhow::Error::msg)?;
    // Before the rights to make memory executable are given up.
    let probe = args.probe.then(|| beside().map_or_else(Outcome::NotMeasured, Outcome::Measured));
    if let Some(pid) = pid.filter(|_| !path.exists()) {
        let looks = args.used || args.probe;
        let tlb = match &probe {
            Some(Outcome::Measured(probe)) => Some(reach(probe)),
            _ => looks.then(|| known_reach(true)),
        };
        // The files that change the process are opened before the rights to change anything are dropped.
        let stall = args.stall;
        let watch = looks.then(|| Watch::start(Rounds::open_for_one("inspect --used", pid, stall)));
        // Segments are opened even if another user owns them, which needs more than the rights to read; their contents
        // are only counted.
        let in_place = in_place_kinds(&policy).map(|memory| plan_in_place(&[pid], InPlaceOptions::of(memory)));
        let in_place: Vec<_> = in_place.collect();
        confine_to(Reads::Processes);
        // Counted before the plan is made: to read the map of a process is to hold it.
        let used = watch.zip(tlb).map(|(watch, tlb)| Used { marks: watch.finish(&tlb), tlb });
        let hint = (!looks).then(|| {
            format!(
                "To check whether the TLB holds the pages in use: `pagelift inspect --used {pid}`; with a measured \
                 reach: --probe."
            )
        });
        let mut inspection = inspect_process(pid, &policy, pools).map_err(|error| match error {
            SessionError::Process(error) => explain(error, "inspect"),
            error => error.into(),
        })?;
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
            "{} is not a process; --used counts the pages that a process uses; needed: the number of a process under \
             its usual load, or `pagelift stat -- CMD`",
            path.display()
        );
    }
    let Some(file) = open_regular_file(path).with_context(|| format!("opening {}", path.display()))? else {
        bail!("{} is no regular file; needed: an ELF file, or the number of a process", path.display());
    };
    let hint = process_besides_file(&args.target);
    // Processes that map the file are found before rights are given up.
    let known = KnownFile::foresee(&file, path, &policy);
    confine_to(Reads::Own);
    let start = FileLift { known: known.as_ref(), payment: Payment::usual(policy.pages), pools };
    let inspection = inspect_file(path, &file, &policy, start)?;
    Ok(Inspected { inspection, used: None, probe, hint })
}

fn text(inspection: &Inspection) -> String {
    let width = Output::Standard.width();
    let mut text = match standing(inspection) {
        Some(standing) => {
            let head = format!("{}: {}", inspection.target, standing.in_words());
            format!("{}\n{}", printable(&head), table::ranges(&inspection.plan, width))
        }
        None => table::plan(&inspection.target, &inspection.plan, inspection.postponed.as_ref(), width),
    };
    if inspection.to_prepare > 0 {
        let bytes = format_bytes(inspection.to_prepare);
        text +=
            &format!("\n`pagelift run` would bring {bytes} of the file into huge folios of the page cache first.\n");
    }
    if !inspection.plan.lifts.is_empty() {
        text += &format!("\n{}", message::plan_cost(&inspection.cost));
    }
    for file in &inspection.not_understood {
        text += &format!("\nNot understood: {}\n", printable(&file.to_string()));
    }
    text += &data_files(&inspection.data_files);
    text += &memory(inspection);
    if inspection.in_place.all().next().is_some() {
        text += &format!("\n{}", plans_in_place(inspection));
    }
    text += &table::far_pages(&inspection.far_pages);
    text += &match &inspection.bases {
        Some(bases) => format!("\n{}", base_text(bases, is_of_file(&inspection.plan))),
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

/// Returns the bytes of a process on huge pages, and the bytes that a lift would add; `None` for a file.
fn standing(inspection: &Inspection) -> Option<Standing> {
    let Amounts { resident, huge, in_place, .. } = inspection.now?;
    Some(Standing { huge, resident, more: Some(inspection.adds()), in_place })
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
    let lines = lines.collect::<String>() + &large_files(inspection);
    if lines.is_empty() { lines } else { format!("\nMemory besides objects\n{lines}") }
}

/// Data files that can hold a huge page, as one line.
fn large_files(inspection: &Inspection) -> String {
    let smallest = transparent_huge_page().map_or(u64::MAX, PageSize::bytes);
    let is_large = |memory: &&MemoryCoverage| memory.kind == MemoryKind::File && memory.usage.mapped >= smallest;
    let files = || inspection.memory.iter().filter(is_large).map(|memory| &memory.usage);
    if files().next().is_none() {
        return String::new();
    }
    let (resident, huge) = (files().map(|usage| usage.resident).sum(), files().map(Usage::huge_bytes).sum());
    let (resident, huge) = (format_bytes(resident), format_bytes(huge));
    format!("  --lift {}: mapped files, {resident} resident, {huge} on huge pages\n", Kind::Files)
}

/// Data files: mapped, cached and huge bytes.
fn data_files(files: &[DataFileReport]) -> String {
    if files.is_empty() {
        return String::new();
    }
    let mut table = table::table(&["file", "mapped", "agrees", "resident", "huge", "cached", "in huge folios"]);
    (1..7).for_each(|column| table::align_right(&mut table, column));
    for file in files {
        let cached = file.cached.map_or_else(|| "unknown".to_owned(), format_bytes);
        let [mapped, congruent, resident, huge, folios] =
            [file.mapped, file.congruent, file.resident, file.huge, file.cached_huge].map(format_bytes);
        table.add_row([&file.path, &mapped, &congruent, &resident, &huge, &cached, &folios]);
    }
    format!("\nMapped files\n{}\n", table::trimmed(&table))
}

/// True if huge folios of the page cache serve a part of the plan.
fn is_of_file(plan: &Plan) -> bool {
    plan.lifts.iter().any(|lift| lift.attempts[0].source == Source::File)
}

fn base_text(bases: &Bases, is_of_file: bool) -> String {
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
    let mut text = String::from("Base of the executable, and the memory that huge pages cover\n");
    if let Some(now) = now {
        text += &format!("  now: {}\n", covered(now));
    }
    text += &format!("  a multiple of {page_size}: {}\n", covered(aligned));
    text += &format!("  best, {:#x} above a multiple of {page_size}: {}\n", best.offset, covered(&best.covered));
    const BEST: &str = "the best base: most code first, then most read-only data, then most memory in all.\n";
    text += "`pagelift run` chooses ";
    if is_of_file {
        text += "a base at which addresses agree with the file, since that costs no memory; for copies (--pages thp) ";
    }
    text + BEST
}
