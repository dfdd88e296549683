//! Lifts a program that runs, and restores it.

use super::facts::{plan_for_running, without_thp_disable};
use super::images::MissingImages;
use super::report::Report;
use address_space::{
    Address, AddressRange, AddressSpace, LoadSegment, LoadedObject, Mapping, MappingName, ObjectRole, Protection,
    format_bytes,
};
use anyhow::{Context, anyhow, bail};
use by_ptrace::live::{LiveExecutor, Pause};
use huge_page_pools::base_page;
use lift_execution::{Backing, Executor, execute};
use lift_plan::{MachineFacts, Policy, Reason, holds_probe};
use observation::{ObjectReader, ProcessFiles};
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// So much of a range and of its file is compared at a time. In bytes.
const COMPARED_AT_ONCE: u64 = 1 << 20;

/// A pause in words.
pub struct PauseText(Pause);

impl fmt::Display for PauseText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |duration: std::time::Duration| duration.as_secs_f64() * 1000.0;
        let Pause { longest, total, longest_of_one, threads } = self.0;
        if threads == 0 {
            return match longest_of_one.is_zero() {
                true => f.write_str("no thread paused"),
                false => write!(f, "one thread paused {:.1} ms at the longest", ms(longest_of_one)),
            };
        }
        write!(
            f,
            "all {threads} threads paused {:.1} ms at the longest, {:.1} ms in all; one thread {:.1} ms at the longest",
            ms(longest),
            ms(total),
            ms(longest_of_one)
        )
    }
}

/// Lifts what can be lifted while the program runs.
///
/// # Errors
/// Where the program cannot be worked on at all; it runs on as it was.
pub fn lift_running(
    pid: i32,
    reader: &mut ObjectReader,
    machine: &MachineFacts,
    policy: &Policy,
    report: &mut Report,
) -> anyhow::Result<PauseText> {
    let started = Instant::now();
    let (machine, thp_is_suspended) = &without_thp_disable(machine);
    let (mut seen, mut plan) = plan_for_running(pid, reader, machine, policy, MissingImages::Make)?;
    if plan.lifts.is_empty() {
        report.take(plan, lift_execution::Outcome::default(), started.elapsed());
        report.without_image = seen.without_image;
        return Ok(PauseText(Pause::default()));
    }
    let mut executor = executor_for(pid, &seen.process.space, &seen.process.objects)?;
    if executor.has_cleaned_up() {
        executor.finish();
        (seen, plan) = plan_for_running(pid, reader, machine, policy, MissingImages::Make)?;
        executor = executor_for(pid, &seen.process.space, &seen.process.objects)?;
    }
    if *thp_is_suspended {
        executor.suspend_thp_disable()?;
    }
    let space = &seen.process.space;
    let mut outcome = execute(&plan, space, &mut executor);
    // The program goes on mapping and unmapping while it is lifted; only the lifted ranges themselves are ours.
    outcome.unexpected.retain(|difference| plan.lifts.iter().any(|lift| lift.range.covers(difference.range)));
    let pause = executor.pause();
    let refusal = executor.refusal().map(str::to_owned);
    executor.finish();
    report.take(plan, outcome, started.elapsed());
    report.without_image = seen.without_image;
    report.other_threads = pause.threads.saturating_sub(1);
    if let Some(why) = refusal.filter(|_| report.covered_bytes == 0) {
        bail!(why);
    }
    Ok(PauseText(pause))
}

fn executor_for(pid: i32, space: &AddressSpace, objects: &[LoadedObject]) -> anyhow::Result<LiveExecutor> {
    LiveExecutor::new(pid, space, objects, base_page()).map_err(|why| anyhow!(why))
}

/// Puts the ranges of every object that no longer show their file back onto it.
///
/// # Errors
/// Where the program cannot be worked on, or a range could not be put back; what could be is.
pub fn restore_running(pid: i32) -> anyhow::Result<String> {
    let look = || -> anyhow::Result<_> {
        let space = ProcessFiles::of(pid).maps()?;
        let objects = ObjectReader::new().load(pid, &space)?.objects;
        Ok((space, objects))
    };
    let (mut space, mut objects) = look()?;
    let mut executor = executor_for(pid, &space, &objects)?;
    if executor.has_cleaned_up() {
        executor.finish();
        (space, objects) = look()?;
        executor = executor_for(pid, &space, &objects)?;
    }
    let lifted = lifted_ranges(&space, &objects);
    if lifted.is_empty() {
        executor.finish();
        return Ok("nothing of it is lifted".to_owned());
    }
    let mut restored = 0;
    let mut failed = Vec::new();
    for lifted in &lifted {
        match restore(&mut executor, pid, &space, lifted) {
            Ok(()) => restored += lifted.range.len(),
            Err(error) => failed.push(format!("{} {}: {error:#}", lifted.object.name(), lifted.range)),
        }
    }
    let pause = PauseText(executor.pause());
    let why = executor.refusal().map(|why| format!("; {why}")).unwrap_or_default();
    executor.finish();
    if !failed.is_empty() {
        bail!("{} restored, but not {}{why}", format_bytes(restored), failed.join(", "));
    }
    Ok(format!("{} back on the pages of their files; {pause}", format_bytes(restored)))
}

/// A range that stands on a copy instead of its file.
struct Lifted<'a> {
    object: &'a LoadedObject,
    segment: LoadSegment,
    range: AddressRange,
    /// The pool mapping that it shares with another segment.
    shared_page: Option<Mapping>,
}

fn lifted_ranges<'a>(space: &AddressSpace, objects: &'a [LoadedObject]) -> Vec<Lifted<'a>> {
    let base = base_page();
    let mut lifted = Vec::new();
    for object in objects.iter().filter(|object| object.role != ObjectRole::DynamicLinker) {
        for segment in &object.image.segments {
            let pages = segment.file_memory().widened(base).shifted(object.bias);
            for mapping in space.overlapping(pages).iter().filter(|mapping| is_lift(mapping, object)) {
                let range = mapping.range.intersect(pages);
                // What can be written lies on transparent pages, stays right there, and cannot be moved while it runs.
                if mapping.protection.write || range.is_empty() {
                    continue;
                }
                let spans_more = mapping.name == MappingName::HugetlbAnonymous && range != mapping.range;
                let shared_page = spans_more.then(|| mapping.clone());
                let range = if spans_more { mapping.range } else { range };
                if lifted.iter().all(|other: &Lifted<'_>| other.range != range) {
                    lifted.push(Lifted { object, segment: *segment, range, shared_page });
                }
            }
        }
    }
    lifted
}

fn is_lift(mapping: &Mapping, object: &LoadedObject) -> bool {
    match &mapping.name {
        // Another file within the object's own segments is an image of it.
        MappingName::File { path, .. } => !mapping.shared && *path != object.path,
        MappingName::HugetlbAnonymous => true,
        MappingName::Named(name) => name.starts_with("pagelift "),
        // Kernels without names for anonymous memory show none.
        MappingName::Anonymous => mapping.protection != Protection::NONE,
        _ => false,
    }
}

fn restore(executor: &mut LiveExecutor, pid: i32, space: &AddressSpace, lifted: &Lifted<'_>) -> anyhow::Result<()> {
    if let Some(whole) = &lifted.shared_page {
        return restore_without_file(executor, whole);
    }
    let path = file_of(pid, space, lifted.object)?;
    let offset = file_offset(lifted);
    let staging = map_file(executor, &path, offset, lifted.range.len(), lifted.object)?;
    let result = fill_and_swap(executor, lifted, staging);
    if result.is_err() {
        let _ = executor.unmap(AddressRange::sized(staging, lifted.range.len()));
    }
    result
}

/// A pool mapping that holds pages of several segments can only be replaced as a whole, and so by one mapping, which
/// can be of no file: it is put on ordinary pages with the same contents.
fn restore_without_file(executor: &mut LiveExecutor, mapping: &Mapping) -> anyhow::Result<()> {
    let start = executor.map(mapping.range.len(), Backing::Ordinary)?;
    let copy = AddressRange::sized(start, mapping.range.len());
    let result = executor
        .copy(mapping.range, start)
        .and_then(|()| executor.protect(copy, mapping.protection))
        .and_then(|()| executor.move_to(copy, mapping.range.start()));
    if result.is_err() {
        let _ = executor.unmap(copy);
    }
    Ok(result?)
}

/// Writes what differs from the file, which the program or its dynamic linker once changed, and puts the file in place.
fn fill_and_swap(executor: &mut LiveExecutor, lifted: &Lifted<'_>, staging: Address) -> anyhow::Result<()> {
    let page = executor.base_page().bytes() as usize;
    let most = lifted.range.len().min(COMPARED_AT_ONCE) as usize;
    let (mut now, mut file) = (vec![0; most], vec![0; most]);
    for at in (0..lifted.range.len()).step_by(most) {
        let length = (lifted.range.len() - at).min(most as u64) as usize;
        let (now, file) = (&mut now[..length], &mut file[..length]);
        executor.memory().read(lifted.range.start() + at, now)?;
        executor.memory().read(staging + at, file)?;
        if now == file {
            continue;
        }
        for (index, (now, file)) in now.chunks(page).zip(file.chunks(page)).enumerate() {
            let probed = |original, found| lifted.segment.protection.execute && holds_probe(original, found);
            if probed(file, now) {
                bail!("{}; to mend: remove it, and detach again", Reason::Probed);
            }
            // A probe of the file itself, which the kernel has just put into the new mapping, stays.
            if now != file && !probed(now, file) {
                executor.memory().write(staging + at + (index * page) as u64, now)?;
            }
        }
    }
    let copy = AddressRange::sized(staging, lifted.range.len());
    executor.move_to(copy, lifted.range.start())?;
    Ok(())
}

fn file_offset(lifted: &Lifted<'_>) -> u64 {
    let pages = lifted.segment.memory.widened(base_page()).shifted(lifted.object.bias);
    let first = lifted.segment.offset & !(base_page().bytes() - 1);
    first + (lifted.range.start() - pages.start())
}

/// The path by which the process itself can open the object's file, if that is still the same file.
fn file_of(pid: i32, space: &AddressSpace, object: &LoadedObject) -> anyhow::Result<PathBuf> {
    let process = ProcessFiles::of(pid);
    // Below a root of its own it may see no /proc, and every path begins elsewhere.
    let sees_proc = fs::symlink_metadata(process.path("root").join("proc/self")).is_ok();
    if object.role == ObjectRole::Executable && sees_proc && fs::metadata(process.path("exe")).is_ok() {
        return Ok(PathBuf::from("/proc/self/exe"));
    }
    let root = fs::read_link(process.path("root")).unwrap_or_default();
    let path = Path::new(&object.path);
    let own_path = Path::new("/").join(path.strip_prefix(&root).or_else(|_| path.strip_prefix("/")).unwrap_or(path));
    let still = space.mappings().iter().find(|mapping| mapping.path() == Some(object.path.as_str()));
    let seen_from_here = process.path("root").join(own_path.strip_prefix("/").unwrap_or(&own_path));
    let metadata = fs::metadata(&seen_from_here)
        .with_context(|| format!("its file {} is gone; needed: the file, or a restart", object.path))?;
    match still {
        Some(mapping) if mapping.inode != metadata.ino() => {
            bail!("its file {} has been replaced since; needed: a restart", object.path)
        }
        _ => Ok(own_path),
    }
}

fn map_file(
    executor: &mut LiveExecutor,
    path: &Path,
    offset: u64,
    length: u64,
    object: &LoadedObject,
) -> anyhow::Result<Address> {
    let mut bytes = path.as_os_str().as_bytes().to_vec();
    bytes.push(0);
    Ok(executor.map_own_file(&bytes, offset, length, object_protection(object, offset))?)
}

/// The protection that the file's segment asks for, without writing: the one the range had before it was lifted.
fn object_protection(object: &LoadedObject, offset: u64) -> Protection {
    let base = base_page().bytes();
    let holder = object.image.segments.iter().find(|segment| {
        let first = segment.offset & !(base - 1);
        offset >= first && offset < segment.offset + segment.file_size
    });
    let asked = holder.map_or(Protection::READ, |segment| segment.protection);
    Protection { write: false, ..asked }
}
