//! Acts on one stopped process: chooses its base at the exec stop, lifts it at the entry stop.

use super::facts::plan_for;
use super::images::{Known, MissingImages};
use super::report::{Base, Report};
use address_space::{Address, AddressRange, AddressSpace, ElfImage, ElfKind, LoadedObject, ObjectRole, PageSize};
use anyhow::Context;
use by_ptrace::{EntryStop, ExecStop, Injector, ProcessExecutor, move_image};
use huge_page_pools::base_page;
use lift_execution::execute;
use lift_plan::{Coverable, ImageSpan, MachineFacts, Plan, Policy, ProcessFacts, choose_base, coverable};
use observation::{ObjectReader, ProcessFiles};
use std::time::Instant;

/// The kernel refuses mappings below this by default (`vm.mmap_min_addr`); bases are kept well above.
const LOWEST_BASE: Address = Address(1 << 20);

/// What the exec stop found.
pub struct Started {
    /// The executable and, if it has one, its dynamic linker.
    pub objects: Vec<LoadedObject>,
    /// The mappings.
    pub space: AddressSpace,
}

impl Started {
    /// Looks at a program that has just been mapped.
    pub fn look(pid: i32, reader: &mut ObjectReader) -> anyhow::Result<Self> {
        let space = ProcessFiles::of(pid).maps()?;
        let loaded = reader.load(pid, &space)?;
        if let Some(bad) = loaded.not_understood.iter().find(|file| file.executable) {
            anyhow::bail!("{}: {}", bad.path, bad.reason);
        }
        Ok(Self { objects: loaded.objects, space })
    }
}

/// A base for a program, and how much it covers beside the one that the kernel chose.
pub struct Better {
    size: PageSize,
    offset: u64,
    before: Coverable,
    after: Coverable,
}

/// The base that covers more of a program than its present one, or why there is none. `usual` is the machine's usual huge
/// page.
pub fn better_base(image: &ElfImage, bias: u64, policy: &Policy, usual: Option<PageSize>) -> Result<Better, Base> {
    let kept = |why: &str| Err(Base::Kept { why: why.to_owned() });
    if image.kind == ElfKind::FixedAddress {
        return kept("the program is linked to a fixed address");
    }
    // Not the whole of the machine's facts: those are gathered while the program runs to its entry.
    let (Some(size), base_page) = (policy.page_size.or(usual), base_page()) else {
        return kept("no huge pages on this kernel");
    };
    let best = choose_base(image, size, base_page, policy.kinds, policy.edges);
    let before = coverable(image, bias, size, base_page, policy.kinds, policy.edges);
    if best.covered <= before {
        return kept("no base covers more");
    }
    Ok(Better { size, offset: best.offset, before, after: best.covered })
}

/// Moves the executable to the base that covers most, where that covers more than the base the kernel chose.
///
/// Returns what was done and the bias afterwards.
pub fn choose_and_move(
    stop: &ExecStop,
    started: &Started,
    executable: &LoadedObject,
    policy: &Policy,
    usual: Option<PageSize>,
) -> (Base, u64) {
    let better = match better_base(&executable.image, executable.bias, policy, usual) {
        Ok(better) => better,
        Err(kept) => return (kept, executable.bias),
    };
    let extent = executable.extent().widened(base_page());
    match place_and_move(stop, &started.space, extent, &better, executable.bias) {
        Ok(bias) => (Base::Moved { before: better.before, after: better.after }, bias),
        Err(error) => (Base::Kept { why: format!("{error:#}") }, executable.bias),
    }
}

fn place_and_move(
    stop: &ExecStop,
    space: &AddressSpace,
    extent: AddressRange,
    better: &Better,
    bias: u64,
) -> anyhow::Result<u64> {
    let size = better.size;
    // The bias is what must have the offset; the image's first page lies at a fixed distance from it.
    let first = extent.start() - Address(bias);
    let start_offset = better.offset.wrapping_add(first) % size.bytes();
    let place = space
        .free_place_below(extent.start(), extent.len(), size, start_offset, size.bytes(), LOWEST_BASE)
        .context("no free place for the program at a better base")?;
    let displacement = place - extent.start();
    let mut injector = stop.injector(space)?;
    let moved = move_image(&mut injector, space, extent, displacement, base_page());
    injector.finish()?;
    moved?;
    Ok(bias.wrapping_add(displacement))
}

/// Lifts a program at its entry, or only plans it.
pub fn lift(
    stop: &EntryStop,
    reader: &mut ObjectReader,
    (machine, known): (&MachineFacts, Known),
    policy: &Policy,
    report: &mut Report,
    dry_run: bool,
) -> anyhow::Result<Option<Plan>> {
    let started = Instant::now();
    let missing = if dry_run { MissingImages::Leave } else { MissingImages::Make };
    let mut ahead = None;
    let open_ahead = |process: &ProcessFacts| {
        ahead =
            process.images.first().filter(|_| !dry_run).and_then(|span| begin_to_open(stop, process, span, machine));
    };
    let planned = plan_for(stop.pid(), reader, machine, policy, missing, known, open_ahead);
    // Whatever has become of the plan: the process must not be left with what was begun.
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
        return Ok(Some(plan));
    }
    let mut outcome = lift_execution::Outcome::default();
    if !plan.lifts.is_empty() {
        let mut injector = ahead.map_or_else(|| stop.injector(&seen.process.space), Ok)?;
        match refuse_own_ground(&injector, &plan) {
            Ok(()) => {
                let mut executor = ProcessExecutor::new(&mut injector, machine.base_page);
                outcome = execute(&plan, &seen.process.space, &mut executor);
            }
            Err(refused) => {
                injector.finish()?;
                return Err(refused);
            }
        }
        injector.finish()?;
    }
    report.take(plan, outcome, started.elapsed());
    Ok(None)
}

/// Takes the process over and lets it open the image that will be mapped first, while we look up the rest. Where that
/// cannot be done, it is tried again when it is needed.
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

/// The code that makes the system calls must not be replaced while it is used. It lies behind the vDSO, which is never
/// lifted, or where there is none behind the code of a file.
fn refuse_own_ground(injector: &Injector, plan: &Plan) -> anyhow::Result<()> {
    match plan.lifts.iter().any(|lift| injector.stands_in(lift.range)) {
        true => anyhow::bail!(
            "it has no vDSO with room for the code that makes its system calls, which stands in a range to be lifted; \
             needed: a kernel that was not started with vdso=0"
        ),
        false => Ok(()),
    }
}
