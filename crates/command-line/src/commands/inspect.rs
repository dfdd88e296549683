//! `pagelift inspect`: the plan for a file or a process, and where its base should be.

use super::reading::confine_to;
use crate::cli::InspectArgs;
use crate::lifting::facts::plan_for_running;
use crate::lifting::handler::program_name;
use crate::lifting::heap::{self, HeapView};
use crate::lifting::images::MissingImages;
use crate::lifting::table;
use address_space::{
    Address, AddressRange, AddressSpace, ElfImage, ElfKind, LoadedObject, Mapping, MappingName, ObjectRole, PageSize,
    Protection, format_bytes,
};
use anyhow::{Context, bail};
use confinement::Reads;
use huge_page_pools::machine_facts;
use lift_plan::{BaseChoice, Coverable, MachineFacts, Plan, Policy, ProcessFacts, choose_base, coverable, plan};
use object::ReadCache;
use observation::{BoundedFile, ObjectReader, open_regular_file};
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Files are shown as if loaded near here; only what lies below a huge page matters.
const EXAMPLE_BASE: u64 = 0x5500_0000_0000;
/// More of a file than this is never read for its headers. In bytes.
const MOST_HEADER_BYTES: u64 = 16 << 20;

/// What huge pages cover of the executable at three bases.
#[derive(Serialize)]
struct Bases {
    page_size: PageSize,
    /// At the base it has now, where it is a process.
    now: Option<Coverable>,
    /// At a base that is a multiple of the huge page size.
    aligned: Coverable,
    /// At the best.
    best: BaseChoice,
}

#[derive(Serialize)]
struct Inspection<'a> {
    format: &'static str,
    version: u32,
    target: String,
    bases: Option<&'a Bases>,
    plan: &'a Plan,
    not_understood: Vec<String>,
    heap: Option<&'a HeapView>,
}

/// Prints the plan.
pub fn run(args: &InspectArgs) -> anyhow::Result<()> {
    let policy = args.policy.policy();
    let pid = args.target.to_str().and_then(|text| text.parse::<i32>().ok());
    match pid.filter(|_| !Path::new(&args.target).exists()) {
        Some(pid) => inspect_process(args, &policy, pid),
        None => inspect_file(args, &policy, Path::new(&args.target)),
    }
}

fn inspect_process(args: &InspectArgs, policy: &Policy, pid: i32) -> anyhow::Result<()> {
    confine_to(Reads::Processes);
    let machine = machine_facts(pid);
    let (seen, plan) = plan_for_running(pid, &mut ObjectReader::new(), &machine, policy, MissingImages::Leave)?;
    let executable = seen.process.objects.iter().find(|object| object.role == ObjectRole::Executable);
    let bases = executable.and_then(|object| bases(&object.image, Some(object.bias), &machine, policy));
    let not_understood: Vec<_> =
        seen.not_understood.iter().filter(|f| f.executable).map(|f| format!("{}: {}", f.path, f.reason)).collect();
    let target = format!("{}[{pid}]", program_name(pid));
    let executable = PathBuf::from(format!("/proc/{pid}/exe"));
    let heap = open_regular_file(&executable).ok().flatten().and_then(|file| heap::view(&executable, &file, &machine));
    print(args, &target, bases.as_ref(), &plan, not_understood, heap.as_ref(), "")
}

fn inspect_file(args: &InspectArgs, policy: &Policy, path: &Path) -> anyhow::Result<()> {
    let Some(file) = open_regular_file(path).with_context(|| format!("opening {}", path.display()))? else {
        bail!("{} is no regular file; needed: an ELF file, or the number of a process", path.display());
    };
    confine_to(Reads::Own);
    let length = file.metadata()?.len();
    let bytes = ReadCache::new(BoundedFile::new(&file, length, MOST_HEADER_BYTES));
    let image = ElfImage::parse(&bytes).with_context(|| format!("{} cannot be inspected", path.display()))?;
    let needed = image.segments.iter().map(|segment| segment.offset + segment.file_size).max().unwrap_or(0);
    if needed > length {
        bail!("{} is cut off: found {length} bytes, needed {needed} for its segments", path.display());
    }
    let machine = machine_facts(std::process::id() as i32);
    let bases = bases(&image, None, &machine, policy);
    let bias = match (image.kind, &bases) {
        (ElfKind::PositionIndependent, Some(bases)) => EXAMPLE_BASE + bases.best.offset,
        (ElfKind::PositionIndependent, None) => EXAMPLE_BASE,
        (ElfKind::FixedAddress, _) => 0,
    };
    let process = as_loaded(path, image, bias, machine.base_page);
    let plan = plan(&process, &machine, policy);
    let hint = if process.objects[0].image.interpreter.is_some() {
        "Shared objects are not in this picture; `pagelift run --dry-run -- CMD` shows them too.\n"
    } else {
        ""
    };
    let heap = heap::view(path, &file, &machine);
    print(args, &path.display().to_string(), bases.as_ref(), &plan, Vec::new(), heap.as_ref(), hint)
}

/// Compares bases; `None` for programs that have but one.
fn bases(image: &ElfImage, bias: Option<u64>, machine: &MachineFacts, policy: &Policy) -> Option<Bases> {
    let size = policy.page_size.or_else(|| machine.usual_huge_page())?;
    if image.kind == ElfKind::FixedAddress {
        return None;
    }
    let at = |bias| coverable(image, bias, size, machine.base_page, policy.kinds, policy.edges);
    let best = choose_base(image, size, machine.base_page, policy.kinds, policy.edges);
    Some(Bases { page_size: size, now: bias.map(at), aligned: at(0), best })
}

fn print(
    args: &InspectArgs,
    target: &str,
    bases: Option<&Bases>,
    plan: &Plan,
    not_understood: Vec<String>,
    heap: Option<&HeapView>,
    hint: &str,
) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if args.json {
        let inspection = Inspection {
            format: "pagelift-plan",
            version: 1,
            target: target.to_owned(),
            bases,
            plan,
            not_understood,
            heap,
        };
        serde_json::to_writer_pretty(&mut out, &inspection)?;
        writeln!(out)?;
        return Ok(());
    }
    write!(out, "{}", table::plan(target, plan))?;
    for file in not_understood {
        writeln!(out, "\nNot understood: {file}")?;
    }
    match bases {
        Some(bases) => write!(out, "\n{}", base_text(bases))?,
        None => writeln!(out, "\nIts base is fixed by the linker.")?,
    }
    if let Some(heap) = heap {
        write!(out, "\n{}", heap.text())?;
    }
    write!(out, "{hint}")?;
    out.flush()?;
    Ok(())
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

/// The process that the file would be, alone, relocated and untouched.
fn as_loaded(path: &Path, image: ElfImage, bias: u64, base_page: PageSize) -> ProcessFacts {
    let path = path.display().to_string();
    let object = LoadedObject { path: path.clone(), role: ObjectRole::Executable, bias, image };
    let relro = object.relro(base_page);
    let mut mappings: Vec<Mapping> = Vec::new();
    for segment in &object.image.segments {
        let pages = segment.memory.widened(base_page).shifted(bias);
        let file_pages = segment.file_memory().widened(base_page).shifted(bias);
        let sealed = relro.filter(|_| segment.protection.write).map_or(pages.start(), |r| r.end().max(pages.start()));
        let end_of_file = if segment.file_size == 0 { pages.start() } else { file_pages.end() };
        let mut push = |start: Address, end: Address, protection: Protection, from_file: bool| {
            let start = start.max(mappings.last().map_or(start, |last| last.range.end()));
            let range = AddressRange::new(start, end);
            if !range.is_empty() {
                mappings.push(mapping(range, protection, from_file.then(|| path.clone())));
            }
        };
        if segment.protection.write {
            push(pages.start(), sealed, Protection { write: false, ..segment.protection }, true);
        }
        push(pages.start(), end_of_file, segment.protection, true);
        push(pages.start(), pages.end(), segment.protection, false);
    }
    ProcessFacts { space: AddressSpace::from_mappings(mappings), objects: vec![object], ..ProcessFacts::default() }
}

fn mapping(range: AddressRange, protection: Protection, path: Option<String>) -> Mapping {
    let inode = u64::from(path.is_some());
    let name = path.map_or(MappingName::Anonymous, |path| MappingName::File { path, deleted: false });
    Mapping { range, protection, shared: false, offset: 0, device: (0, 0), inode, name }
}
