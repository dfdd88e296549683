//! Puts a lifted program back onto the pages of its files while it runs.

use super::{Selected, executor_for};
use crate::SessionError;
use crate::files::own_path;
use address_space::{
    Address, AddressRange, AddressSpace, LoadSegment, LoadedObject, Mapping, MappingFlags, MappingName, ObjectRole,
    Protection, RangeSet, format_bytes,
};
use lift_execution::{CallError, FileMapping, RestoredPart, RestoredRange, move_to_ordinary};
use lift_plan::{Reason, holds_probe, special_properties};
use machine_facts::base_page;
use process_view::{ObjectReader, ProcessFiles};
use ptrace::attach::{LiveExecutor, Pause, Target};
use std::borrow::Cow;

/// Number of bytes of a range that are compared with its file at a time.
const COMPARED_AT_ONCE: u64 = 1 << 20;
/// Number of bytes that are restored at a time. Anonymous memory is compared once more while all threads are stopped,
/// which takes about 0.2 ms for each MiB.
const PUT_BACK_AT_ONCE: u64 = 4 << 20;
/// Number of bytes that are restored at a time if the program's threads compete for CPUs: the command waits for a CPU after each stop, and 16 MiB are compared
/// in 3 ms.
const PUT_BACK_AT_ONCE_IF_THREADS_COMPETE: u64 = 16 << 20;

/// The outcome of a detach.
#[derive(Clone, Copy, Debug, Default)]
pub struct Detached {
    /// Bytes that are back on the pages of their files; 0 where nothing was lifted.
    pub restored: u64,
    /// Bytes of written memory on huge pages, which stay there: what the program has written cannot be moved while it runs.
    pub stays: u64,
    /// Bytes of shared memory on huge pages, which stay there: other processes may use them.
    pub stays_shared: u64,
    /// Bytes of mapped files on huge pages of the page cache, which stay there: they are pages of the files.
    pub stays_file: u64,
    /// Time for which the program's threads were stopped.
    pub pause: Pause,
}

/// Puts the ranges of every object that no longer show their file back onto it; Returns `None` where the process is no
/// longer the one that was selected.
///
/// # Errors
/// The program cannot be stopped or changed, or a range could not be restored; the other ranges are restored.
pub fn detach(process: &Selected<'_>) -> Result<Option<Detached>, SessionError> {
    let detached = super::in_own_thread(|| process.open()?.map(restore_all).transpose())?;
    Ok(detached.map(|detached| detached.with_huge_pages_of(process.pid)))
}

impl Detached {
    /// Adds the memory that is on huge pages; none if the process has ended.
    fn with_huge_pages_of(self, pid: i32) -> Self {
        let usages = ProcessFiles::of(pid).smaps().unwrap_or_default();
        let written = || usages.iter().filter(|usage| usage.mapping.protection.write);
        let stays = written().map(|usage| usage.anonymous_huge).sum();
        let stays_shared = written().map(|usage| usage.shmem_huge).sum();
        let stays_file = usages.iter().map(|usage| usage.file_huge).sum();
        Self { stays, stays_shared, stays_file, ..self }
    }
}

fn restore_all(target: Target) -> Result<Detached, SessionError> {
    let pid = target.pid();
    let look = || -> Result<_, SessionError> {
        let space = ProcessFiles::of(pid).maps()?;
        let objects = ObjectReader::new().load(pid, &space)?.objects;
        Ok((space, objects))
    };
    let (mut space, mut objects) = look()?;
    if objects.is_empty() {
        // A 32-bit program, for example: no lift has ever found anything in it.
        return Ok(Detached::default());
    }
    let mut executor = executor_for(target, &space, &objects)?;
    if executor.has_cleaned_up() {
        let target = executor.finish().target;
        (space, objects) = look()?;
        executor = executor_for(target, &space, &objects)?;
    }
    let at_once = if executor.threads_compete() { PUT_BACK_AT_ONCE_IF_THREADS_COMPETE } else { PUT_BACK_AT_ONCE };
    let lifted = lifted_ranges(&space, &objects, at_once);
    if lifted.is_empty() {
        return left(executor, Detached::default());
    }
    let attributes = attributes_of(pid, &lifted)?;
    if let Some(range) = sealed_of(&attributes, &lifted) {
        let why =
            format!("{range} is sealed (`--seal`), so that the kernel refuses to replace it; fix: restart the program");
        return Err(SessionError::Refused(executor.finish().with_reason(why)));
    }
    executor.accept_attributes(attributes.clone());
    let mut restored = 0;
    let mut failed = Vec::new();
    for lifted in &lifted {
        match restore(&mut executor, pid, &space, lifted, &Attributes::of(lifted.range, &attributes)) {
            Ok(()) => restored += lifted.range.len(),
            Err(error) => failed.push(format!("{} {}: {}", lifted.object.name(), lifted.range, error.in_full())),
        }
    }
    let pause = executor.pause();
    let why = executor.refusal().map(|why| format!("; {why}")).unwrap_or_default();
    if !failed.is_empty() {
        let failed = failed.join(", ");
        let why = format!("{} restored, but not {failed}{why}", format_bytes(restored));
        let may_work_later = executor.may_work_later();
        return Err(SessionError::refused(executor.finish().with_reason(why), may_work_later));
    }
    left(executor, Detached { restored, pause, ..Detached::default() })
}

/// Leaves the program; an error if one of its own settings could not be restored.
fn left(executor: LiveExecutor, detached: Detached) -> Result<Detached, SessionError> {
    match executor.finish().still_suspended {
        None => Ok(detached),
        Some(still) => Err(SessionError::Refused(format!("{} restored, but {still}", format_bytes(detached.restored)))),
    }
}

/// Returns the flags of the mappings in lifted ranges.
fn attributes_of(pid: i32, lifted: &[Lifted<'_>]) -> Result<Vec<MappingFlags>, SessionError> {
    let Some(end) = lifted.iter().map(|lifted| lifted.range.end()).max() else { return Ok(Vec::new()) };
    let mut flags = ProcessFiles::of(pid).mapping_flags_below(end)?;
    flags.retain(|mapping| lifted.iter().any(|lifted| lifted.range.overlaps(mapping.range)));
    Ok(flags)
}

/// Returns the first of these ranges that is sealed: smaps shows the flag `sl` (Linux 6.10).
fn sealed_of(attributes: &[MappingFlags], lifted: &[Lifted<'_>]) -> Option<AddressRange> {
    let sealed: Vec<_> = attributes.iter().filter(|mapping| has_flag(mapping, "sl")).collect();
    lifted.iter().map(|lifted| lifted.range).find(|range| sealed.iter().any(|sealed| sealed.range.overlaps(*range)))
}

fn has_flag(mapping: &MappingFlags, flag: &str) -> bool {
    mapping.flags.split(' ').any(|found| found == flag)
}

/// Attributes that the program has given to a range since its lift. A new mapping of the file lacks them.
#[derive(Debug, PartialEq, Eq)]
struct Attributes {
    /// The range is locked (mlock, mlockall). The mapping of the file is locked, too.
    locked: bool,
    /// An attribute that the mapping of the file cannot get.
    lost: Option<String>,
}

impl Attributes {
    fn of(range: AddressRange, attributes: &[MappingFlags]) -> Self {
        let within = || attributes.iter().filter(|mapping| mapping.range.overlaps(range));
        // A lift itself keeps pages of the pool out of core dumps.
        let is_kept = |mapping: &MappingFlags, flag: &str| flag == "lo" || flag == "dd" && has_flag(mapping, "ht");
        let lost = |mapping: &MappingFlags| {
            let flags: Vec<&str> = mapping.flags.split(' ').filter(|flag| !is_kept(mapping, flag)).collect();
            special_properties(&MappingFlags { flags: flags.join(" "), ..mapping.clone() }).into_iter().next()
        };
        let locked: RangeSet =
            within().filter(|mapping| has_flag(mapping, "lo")).map(|mapping| mapping.range.intersect(range)).collect();
        // The kernel does not move several mappings at once.
        let in_part = || Some("locked in memory in part (mlock)".to_owned());
        let is_in_part = !locked.is_empty() && !locked.covers(range);
        let lost = within().find_map(lost).or_else(|| if is_in_part { in_part() } else { None });
        Self { locked: locked.covers(range), lost }
    }
}

/// Returns the number of bytes of a range that are restored at a time: usually `at_once`. No page of the pool is cut: its size divides the
/// start and the length of the range. Hardly any bytes of an image are compared.
fn put_back_at_once(range: AddressRange, name: &MappingName, at_once: u64) -> u64 {
    match name {
        MappingName::HugetlbAnonymous => {
            let divisor = 1u64 << (range.start().0 | range.len()).trailing_zeros().min(u64::BITS - 1);
            at_once.max(divisor)
        }
        MappingName::File { .. } => u64::MAX,
        _ => at_once,
    }
}

/// A range that shows a copy instead of its file.
struct Lifted<'a> {
    object: &'a LoadedObject,
    segment: LoadSegment,
    range: AddressRange,
    /// Number of bytes that are restored at a time.
    at_once: u64,
    /// The pool mapping that it shares with another segment.
    shared_page: Option<Mapping>,
}

fn lifted_ranges<'a>(space: &AddressSpace, objects: &'a [LoadedObject], at_once: u64) -> Vec<Lifted<'a>> {
    let base = base_page();
    let mut lifted = Vec::new();
    for object in objects.iter().filter(|object| object.role != ObjectRole::DynamicLinker) {
        for segment in &object.image.segments {
            let pages = segment.file_memory().widened(base).shifted(object.bias);
            for mapping in space.overlapping(pages).iter().filter(|mapping| is_lift(mapping, object)) {
                let range = mapping.range.intersect(pages);
                // Writable memory is on transparent huge pages, which stay: it cannot be moved while the program runs.
                if mapping.protection.write || range.is_empty() {
                    continue;
                }
                let spans_more = mapping.name == MappingName::HugetlbAnonymous && range != mapping.range;
                let shared_page = spans_more.then(|| mapping.clone());
                let range = if spans_more { mapping.range } else { range };
                if lifted.iter().all(|other: &Lifted<'_>| other.range != range) {
                    let at_once = put_back_at_once(range, &mapping.name, at_once);
                    lifted.push(Lifted { object, segment: *segment, range, at_once, shared_page });
                }
            }
        }
    }
    lifted
}

fn is_lift(mapping: &Mapping, object: &LoadedObject) -> bool {
    match &mapping.name {
        // Another file within the object's segments is an image of it.
        MappingName::File { path, .. } => !mapping.shared && *path != object.path,
        MappingName::HugetlbAnonymous => true,
        MappingName::Named(name) => name.starts_with("pagelift "),
        // Kernels without names for anonymous memory (before Linux 5.17) show none.
        MappingName::Anonymous => mapping.protection != Protection::NONE,
        _ => false,
    }
}

fn restore(
    executor: &mut LiveExecutor,
    pid: i32,
    space: &AddressSpace,
    lifted: &Lifted<'_>,
    attributes: &Attributes,
) -> Result<(), SessionError> {
    if let Some(property) = &attributes.lost {
        return Err(SessionError::Refused(format!(
            "the program has made it {property} since the lift, which a mapping of its file would lack; fix: restart the program"
        )));
    }
    if let Some(whole) = &lifted.shared_page {
        return Ok(move_to_ordinary(executor, whole.range, whole.protection, lifted.at_once)?);
    }
    let path = own_path(pid, space, lifted.object)?;
    let path = path.to_str().ok_or_else(|| SessionError::Refused(format!("{} is no UTF-8", path.display())))?;
    let offset = file_offset(lifted);
    let protection = object_protection(lifted.object, offset);
    let file = Some(FileMapping { path, offset, protection });
    let parts = &[RestoredPart { range: lifted.range, protection, file }];
    let Lifted { range, at_once, .. } = *lifted;
    let whole = RestoredRange { range, protection, is_pool: false, at_once, parts };
    let complete = |executor: &mut LiveExecutor, _: &RestoredPart<'_>, copy| -> Result<RangeSet, SessionError> {
        let changes = changes_in(executor, lifted, copy)?;
        if attributes.locked {
            executor.lock_in_memory(copy)?;
        }
        Ok(changes)
    };
    lift_execution::restore(executor, &whole, complete).map_err(explained)
}

/// Adds the fix to the error of a program that may no longer open its own file. No other process can open it in its place.
fn explained(error: SessionError) -> SessionError {
    match error {
        SessionError::Call(CallError { call, errno: libc::EACCES | libc::EPERM }) if call.starts_with("open") => {
            SessionError::Refused(format!(
                "{error}; needed: a program that may open its file, which Landlock, another security module or lost rights keep \
                 it from; fix: restart the program"
            ))
        }
        error => error,
    }
}

/// Returns the pages that the program or its dynamic linker has changed: they differ from the file, which is mapped at `file`.
fn changes_in(executor: &mut LiveExecutor, lifted: &Lifted<'_>, file: AddressRange) -> Result<RangeSet, SessionError> {
    let memory = |error| SessionError::io("memory of the process", error);
    let base = executor.base_page();
    let page = base.bytes() as usize;
    let most = lifted.range.len().min(COMPARED_AT_ONCE) as usize;
    let (mut now, mut before) = (vec![0; most], vec![0; most]);
    let mut changes = RangeSet::new();
    for at in (0..lifted.range.len()).step_by(most) {
        let length = (lifted.range.len() - at).min(most as u64) as usize;
        let (now, before) = (&mut now[..length], &mut before[..length]);
        executor.memory().read(lifted.range.start() + at, now).map_err(memory)?;
        executor.memory().read(file.start() + at, before).map_err(memory)?;
        if now == before {
            continue;
        }
        for (index, (now, before)) in now.chunks(page).zip(before.chunks(page)).enumerate() {
            let offset = at + (index * page) as u64;
            let probed =
                |original: &[u8], found: &[u8]| lifted.segment.protection.execute && holds_probe(original, found);
            let of_program = without_own_code(executor.own_code(), lifted.range.start() + offset, before, now);
            if probed(before, &of_program) {
                return Err(SessionError::Refused(format!("{}; fix: remove it, and detach again", Reason::Probed)));
            }
            // A uprobe on the file itself, which the kernel has just inserted into the new mapping, stays.
            let of_kernel = || executor.probed().covers(AddressRange::sized(file.start() + offset, base.bytes()));
            if now != before && !(probed(now, before) && of_kernel()) {
                changes.insert(AddressRange::sized(lifted.range.start() + offset, base.bytes()));
            }
        }
    }
    Ok(changes)
}

/// Returns the contents `now` of memory at `start`, with the contents `before` at the addresses of this lift's code:
/// its bytes can equal a breakpoint.
fn without_own_code<'a>(code: AddressRange, start: Address, before: &[u8], now: &'a [u8]) -> Cow<'a, [u8]> {
    let own = code.intersect(AddressRange::sized(start, now.len() as u64));
    if own.is_empty() {
        return Cow::Borrowed(now);
    }
    let part = (own.start() - start) as usize..(own.end() - start) as usize;
    let mut of_program = now.to_vec();
    of_program[part.clone()].copy_from_slice(&before[part]);
    Cow::Owned(of_program)
}

fn file_offset(lifted: &Lifted<'_>) -> u64 {
    let pages = lifted.segment.memory.widened(base_page()).shifted(lifted.object.bias);
    let first = lifted.segment.offset & !(base_page().bytes() - 1);
    first + (lifted.range.start() - pages.start())
}

/// Returns the protection of the file's segment without write permission, which the range had before it was lifted.
fn object_protection(object: &LoadedObject, offset: u64) -> Protection {
    let base = base_page().bytes();
    let holder = object.image.segments.iter().find(|segment| {
        let first = segment.offset & !(base - 1);
        offset >= first && offset < segment.offset + segment.file_size
    });
    let asked = holder.map_or(Protection::READ, |segment| segment.protection);
    Protection { write: false, ..asked }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_of_the_lift_itself_is_no_breakpoint() {
        let before = [0x90; 64];
        let mut now = before;
        // An address in the code has the byte of a breakpoint.
        now[24..32].copy_from_slice(&0x7fcc_0000_1000_u64.to_le_bytes());
        let (start, range) = (Address(0x1000), |from: u64| AddressRange::sized(Address(from), 16));
        let seen = |now: &[u8], code| without_own_code(code, start, &before, now).into_owned();
        assert_eq!(holds_probe(&before, &seen(&now, range(0x2000))), cfg!(target_arch = "x86_64"));
        assert!(!holds_probe(&before, &seen(&now, range(0x1018))));
        // The page may contain only a part of the code.
        now[..16].copy_from_slice(&[0xcc; 16]);
        let seen = seen(&now, range(0xff8));
        assert_eq!((&seen[..8], &seen[8..16]), (&[0x90; 8][..], &[0xcc; 8][..]));
    }

    #[test]
    fn attributes_of_the_program_are_kept_or_refused() {
        let range = |start, end| AddressRange::new(Address(start), Address(end));
        let mapping = |start, end, flags: &str| MappingFlags {
            range: range(start, end),
            protection_key: 0,
            flags: flags.to_owned(),
        };
        let all = [
            mapping(0x1000, 0x2000, "rd ex mr me hg"),
            mapping(0x2000, 0x3000, "rd ex lo hg"),
            mapping(0x3000, 0x4000, "rd ht dd"),
            mapping(0x4000, 0x5000, "rd lo dc"),
            MappingFlags { protection_key: 3, ..mapping(0x5000, 0x6000, "rd") },
        ];
        let of = |start, end| Attributes::of(range(start, end), &all);
        let kept = |locked| Attributes { locked, lost: None };
        assert_eq!(
            [of(0x1000, 0x2000), of(0x2000, 0x2800), of(0x3000, 0x4000)],
            [kept(false), kept(true), kept(false)]
        );
        assert_eq!(of(0x1800, 0x3000).lost.unwrap(), "locked in memory in part (mlock)");
        assert_eq!(of(0x4000, 0x5000).lost.unwrap(), "not inherited by children (MADV_DONTFORK)");
        assert_eq!(of(0x5000, 0x6000).lost.unwrap(), "guarded by protection key 3");
    }

    #[test]
    fn no_page_of_the_pool_is_cut() {
        const MIB: u64 = 1 << 20;
        let at_once = |start, length, name: MappingName| {
            put_back_at_once(AddressRange::sized(Address(start), length), &name, 4 * MIB) / MIB
        };
        let pool = |start, length| at_once(start, length, MappingName::HugetlbAnonymous);
        assert_eq!([pool(6 * MIB, 10 * MIB), pool(32 * MIB, 96 * MIB), pool(1 << 30, 3 << 30)], [4, 32, 1024]);
        assert_eq!(at_once(1 << 30, 3 << 30, MappingName::Anonymous), 4, "transparent huge pages may be cut");
    }
}
