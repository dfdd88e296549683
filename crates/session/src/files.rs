//! Reads the state of a process's files in the page cache, and brings them into huge folios.

use crate::{SessionError, images};
use address_space::{AddressSpace, ElfKind, LoadedObject, Mapping, ObjectRole, PageSize, RangeSet};
use lift_plan::{CacheShortfall, CachedFile, MachineFacts, Policy, ProcessFacts, cached_coverable, choose_cached_base};
use linux::pagemap::Pagemap;
use machine_facts::{base_page, memory_available, usual_huge_page};
use options::Prepare;
use page_cache::{Budget, Effort, Hold, Refusal, Users};
use process_view::{
    FileIdentity, ObjectReader, ProcessFiles, Unreadable, executed_metadata, exists_in_root, metadata_in_root,
};
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest time that a start, or a lift of a running program, waits for one file to be brought into huge folios.
const LONGEST_PREPARATION: Duration = Duration::from_millis(500);
/// Divisor of the available memory; no more than the quotient is read again.
const SHARE_OF_MEMORY: u64 = 4;

/// The state of a process's files in the page cache.
#[derive(Default)]
pub struct Cached {
    /// The files.
    pub files: Vec<CachedFile>,
    /// Pages of their mappings that were written to.
    pub changed: RangeSet,
    /// Keeps huge folios in the page cache until the process has mapped them.
    pub held: Vec<Hold>,
}

/// The way to bring the files of a process into huge folios before it is lifted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilePreparation {
    /// They are used in their present state.
    Nothing,
    /// They are collapsed in place, if the kernel can: the process has mapped them already.
    InPlace,
    /// They are brought into huge folios, except for parts that a process maps.
    Evicting(Prepare),
}

/// A file that was read or prepared before its program was mapped.
pub struct KnownFile {
    identity: FileIdentity,
    huge: Vec<Range<u64>>,
    shortfall: Option<CacheShortfall>,
    held: Option<Hold>,
    /// Bytes that were brought into huge folios, or would be.
    made: u64,
}

impl KnownFile {
    /// Returns the file in the page cache as a start would prepare it; `None` if no part would be mapped from there.
    pub fn foresee(file: &File, path: &Path, policy: &Policy) -> Option<Self> {
        let identity = FileIdentity::of(&file.metadata().ok()?);
        let size = usual_huge_page().filter(|size| policy.page_size.is_none_or(|wanted| wanted == *size))?;
        if !policy.may_use_files() || identity.size < size.bytes() {
            return None;
        }
        let available = || memory_available(std::process::id() as i32);
        let limits: (_, &dyn Fn() -> u64, _) = (LONGEST_PREPARATION, &available, Users::BeforeEviction);
        Some(Self::of(identity, prepare(file, path, 0..identity.size, size, Effort::Foresee, limits)))
    }

    fn of(identity: FileIdentity, prepared: Prepared) -> Self {
        let Prepared { huge, shortfall, held, made } = prepared;
        Self { identity, huge, shortfall, held: Some(held), made }
    }

    /// Bytes that were brought into huge folios, or would be.
    pub fn made(&self) -> u64 {
        self.made
    }

    /// Why parts of the file are small.
    pub fn shortfall(&self) -> Option<&CacheShortfall> {
        self.shortfall.as_ref()
    }

    /// Holds the file in a process that was copied from the one which prepared it.
    pub fn hold_again(&self) {
        self.held.iter().for_each(Hold::renew);
    }

    /// Lets the file go: the program maps it by now.
    pub fn let_go(&mut self) {
        self.held = None;
    }

    /// The parts of the file in huge folios.
    pub fn huge(&self) -> &[Range<u64>] {
        &self.huge
    }

    /// The parts of the file in huge folios, if it is this file.
    pub fn huge_of(&self, identity: &FileIdentity) -> Option<&[Range<u64>]> {
        (self.identity == *identity).then_some(self.huge.as_slice())
    }
}

/// Brings the file of a program that will be executed into huge folios, if that is wanted and allowed, and reads its
/// state. `path` opens it, messages name it as `shown`. `available` returns the free bytes of memory. `None` if the
/// file cannot be read; a file that shows no huge folio at any base counts as one without any.
pub fn prepare_program(
    (path, shown): (&Path, &Path),
    reader: &mut ObjectReader,
    policy: &Policy,
    (size, effort): (PageSize, Effort),
    available: &dyn Fn() -> u64,
) -> Option<KnownFile> {
    let file = process_view::open_regular_file(path).ok()??;
    let identity = FileIdentity::of(&file.metadata().ok()?);
    if identity.size < size.bytes() {
        return None;
    }
    let image = reader.read_ahead(path)?;
    let whole_file = &std::iter::once(0..identity.size & !(size.bytes() - 1)).collect::<Vec<_>>();
    let best = match image.kind {
        ElfKind::FixedAddress => cached_coverable(image, whole_file, 0, size, base_page(), policy.kinds),
        ElfKind::PositionIndependent => choose_cached_base(image, whole_file, size, base_page(), policy.kinds).covered,
    };
    if best.read_only == 0 {
        return Some(KnownFile { identity, huge: Vec::new(), shortfall: None, held: None, made: 0 });
    }
    let read_only = || image.segments.iter().filter(|segment| !segment.protection.write);
    let start = read_only().map(|segment| segment.offset).min()?;
    let end = read_only().map(|segment| segment.offset.saturating_add(segment.file_size)).max()?;
    let limits = (LONGEST_PREPARATION, available, Users::OncePagesStay);
    Some(KnownFile::of(identity, prepare(&file, shown, start..end, size, effort, limits)))
}

/// Returns the effort of a preparation for a user's choice.
pub fn effort_of(how: Prepare) -> Effort {
    match how {
        Prepare::Auto => Effort::Once,
        Prepare::Never => Effort::Look,
        Prepare::Always => Effort::Always,
    }
}

/// Effort for data files, which may be large: nothing is evicted unless the user asks for it.
pub(crate) fn effort_in_place(how: Prepare) -> Effort {
    match how {
        Prepare::Auto => Effort::InPlace,
        how => effort_of(how),
    }
}

/// Reads the state of a mapped part of a file, after it was prepared. Returns the parts in huge folios, the reason for
/// the others, and the hold that keeps the former there.
pub(crate) fn prepare_mapped(
    file: &File,
    path: &Path,
    offsets: Range<u64>,
    size: PageSize,
    effort: Effort,
    available: u64,
) -> (Vec<Range<u64>>, Option<CacheShortfall>, Hold) {
    let limits: (Duration, &dyn Fn() -> u64, Users) = (LONGEST_PREPARATION, &|| available, Users::BeforeEviction);
    let Prepared { huge, shortfall, held, .. } = prepare(file, path, offsets.clone(), size, effort, limits);
    if !huge.is_empty() || shortfall.is_none() {
        return (huge, shortfall, held);
    }
    // A file that cannot be prepared, for example because it is larger than the memory, may have huge folios in part.
    match page_cache::look_and_hold(file, offsets, size) {
        Ok((extents, held)) => (extents.huge, shortfall, held),
        Err(_) => (huge, shortfall, held),
    }
}

/// Returns the parts of an open file in huge folios; empty if that is unknown.
pub fn huge_parts(file: &File, huge: PageSize) -> Vec<Range<u64>> {
    let length = file.metadata().map_or(0, |metadata| metadata.len());
    page_cache::look(file, 0..length, huge).map(|looked| looked.huge).unwrap_or_default()
}

/// A file after its preparation.
#[derive(Default)]
struct Prepared {
    /// The parts in huge folios.
    huge: Vec<Range<u64>>,
    /// Why others are not.
    shortfall: Option<CacheShortfall>,
    held: Hold,
    /// Bytes that were brought into huge folios, or would be.
    made: u64,
}

fn prepare(
    file: &File,
    path: &Path,
    offsets: Range<u64>,
    huge: PageSize,
    effort: Effort,
    (time, available, users): (Duration, &dyn Fn() -> u64, Users),
) -> Prepared {
    let budget = Budget { time, bytes: &|| available() / SHARE_OF_MEMORY, users };
    match page_cache::prepare(file, path, offsets, huge, effort, budget) {
        Ok(prepared) => {
            let shortfall = prepared.rest.as_ref().map(shortfall);
            let made = prepared.created + prepared.collapsed;
            Prepared { huge: prepared.extents.huge, shortfall, held: prepared.held, made }
        }
        Err(refusal) => Prepared { shortfall: Some(shortfall(&refusal)), ..Prepared::default() },
    }
}

fn shortfall(refusal: &Refusal) -> CacheShortfall {
    let text = refusal.to_string();
    let (why, fix) = text.split_once("; fix: ").map_or((text.as_str(), None), |(why, fix)| (why, Some(fix)));
    CacheShortfall { why: why.to_owned(), fix: fix.map(str::to_owned) }
}

/// Reads the state of the chosen objects' files, if their addresses agree with their offsets, after the files have been
/// prepared as wanted.
pub fn look(
    pid: i32,
    process: &ProcessFacts,
    machine: &MachineFacts,
    policy: &Policy,
    known: Option<&KnownFile>,
    preparation: FilePreparation,
) -> Cached {
    let mut cached = Cached::default();
    let size = machine.thp.map(|thp| thp.size).filter(|size| policy.page_size.is_none_or(|wanted| wanted == *size));
    let Some(size) = size.filter(|_| policy.may_use_files()) else { return cached };
    let looking = Looking { size, known, preparation, available: machine.memory_available, begin: Instant::now() };
    for object in process.objects.iter().filter(|object| policy.objects.chooses(object)) {
        let mappings = mappings_of(object, &process.space, size);
        let Some(first) = mappings.first() else { continue };
        let (path, device, inode) = (object.path.clone(), first.device, first.inode);
        let mut found = CachedFile { path, device, inode, ..CachedFile::default() };
        let congruent: Vec<_> = mappings.into_iter().filter(|mapping| is_congruent(mapping, size)).collect();
        if !congruent.is_empty() {
            let looked = images::open(pid, &process.space, object)
                .and_then(|(file, identity)| looking.look_at(&file, &identity, object, &congruent));
            // The planner has no facts about a file that cannot be read.
            let Some(looked) = looked else { continue };
            (found.huge, found.shortfall) = (looked.huge, looked.shortfall);
            cached.held.push(looked.held);
        } else if let Some(known) = known.filter(|known| known.shortfall.is_some()) {
            // The base was not chosen for the file, since the file stayed small.
            let is_it = images::open(pid, &process.space, object).is_some_and(|(_, found)| found == known.identity);
            found.shortfall = known.shortfall.clone().filter(|_| is_it);
        }
        if !found.huge.is_empty() {
            let pagemap = Pagemap::open(pid, machine.base_page).ok();
            let changed = |mapping: &&Mapping| pagemap.as_ref()?.changed(mapping.range).ok();
            for mapping in congruent {
                // If the kernel does not report it, every page may have been written.
                let changed = changed(&mapping).unwrap_or_else(|| RangeSet::from_iter([mapping.range]));
                changed.iter().for_each(|range| cached.changed.insert(range));
            }
            let path = own_path(pid, &process.space, object).ok();
            found.own_path = path.and_then(|path| path.to_str().map(str::to_owned));
        }
        cached.files.push(found);
    }
    cached
}

/// The reading of one process's files.
struct Looking<'a> {
    size: PageSize,
    known: Option<&'a KnownFile>,
    preparation: FilePreparation,
    /// Bytes of memory that are left.
    available: u64,
    begin: Instant,
}

impl Looking<'_> {
    fn look_at(
        &self,
        file: &File,
        identity: &FileIdentity,
        object: &LoadedObject,
        mappings: &[&Mapping],
    ) -> Option<Prepared> {
        let start = mappings.iter().map(|mapping| mapping.offset).min()?;
        let end = mappings.iter().map(|mapping| mapping.offset.saturating_add(mapping.range.len())).max()?;
        let evicts = matches!(self.preparation, FilePreparation::Evicting(_));
        let known = self.known.filter(|known| known.identity == *identity && !evicts);
        if let Some(known) = known.filter(|known| !known.huge.is_empty()) {
            // It was read before the program was executed.
            let (huge, shortfall) = (known.huge.clone(), known.shortfall.clone());
            return Some(Prepared { huge, shortfall, ..Prepared::default() });
        }
        let effort = match self.preparation {
            FilePreparation::Evicting(how) => effort_of(how),
            // A file that is known was prepared before, and stayed small.
            FilePreparation::InPlace if known.is_none() => Effort::InPlace,
            _ => Effort::Look,
        };
        let left = LONGEST_PREPARATION.saturating_sub(self.begin.elapsed());
        // The process itself maps them.
        let limits: (Duration, &dyn Fn() -> u64, Users) = (left, &|| self.available, Users::BeforeEviction);
        let looked = prepare(file, Path::new(&object.path), start..end, self.size, effort, limits);
        // The result of an earlier preparation has more information.
        let shortfall = known.and_then(|known| known.shortfall.clone()).or(looked.shortfall);
        Some(Prepared { shortfall, ..looked })
    }
}

/// The private mappings of an object's file that are never written and can contain a huge page. If several files had
/// the path one after the other, only mappings of the first mapping's file, which [`images::open`] opens.
fn mappings_of<'a>(object: &LoadedObject, space: &'a AddressSpace, size: PageSize) -> Vec<&'a Mapping> {
    let of_path = |m: &&Mapping| !m.shared && m.path() == Some(object.path.as_str());
    let Some(first) = space.mappings().iter().find(of_path) else { return Vec::new() };
    let same = |m: &&Mapping| (m.device, m.inode) == (first.device, first.inode) && !m.protection.write;
    let fits = |m: &&Mapping| !m.range.whole_pages(size).is_empty();
    space.mappings().iter().filter(of_path).filter(same).filter(fits).collect()
}

fn is_congruent(mapping: &Mapping, size: PageSize) -> bool {
    mapping.range.start().0 % size.bytes() == mapping.offset % size.bytes()
}

/// Returns the error text for a file that a process with the root directory `root` cannot find at `own_path`.
fn not_found(root: &Path, own_path: &Path, path: &str) -> String {
    match root == Path::new("/") || root.as_os_str().is_empty() {
        true => format!("its file {path} is gone; needed: the file, or a restart"),
        false => format!(
            "its file {path} is not in its root directory {} (chroot), where only it can open files; needed: the same file as {} \
             there, by a hard link or a bind mount, or a restart",
            root.display(),
            own_path.display()
        ),
    }
}

/// Returns the path by which the process itself can open the object's file, if that is still the same file.
pub fn own_path(pid: i32, space: &AddressSpace, object: &LoadedObject) -> Result<PathBuf, SessionError> {
    let process = ProcessFiles::of(pid);
    // A process with a separate root may have no /proc, and its paths begin elsewhere.
    let sees_proc = exists_in_root(&process, Path::new("/proc/self"));
    if object.role == ObjectRole::Executable && sees_proc && executed_metadata(&process).is_some() {
        return Ok(PathBuf::from("/proc/self/exe"));
    }
    let root = fs::read_link(process.path("root")).unwrap_or_default();
    let path = Path::new(&object.path);
    let own_path = Path::new("/").join(path.strip_prefix(&root).or_else(|_| path.strip_prefix("/")).unwrap_or(path));
    let still = space.mappings().iter().find(|mapping| mapping.path() == Some(object.path.as_str()));
    let metadata = metadata_in_root(&process, &own_path).map_err(|error| {
        SessionError::Refused(match error {
            Unreadable::Missing => not_found(&root, &own_path, &object.path),
            error => format!("its file {}: {error}", object.path),
        })
    })?;
    match still {
        Some(mapping) if mapping.inode != metadata.ino() => {
            Err(SessionError::Refused(format!("its file {} has been replaced since; needed: a restart", object.path)))
        }
        _ => Ok(own_path),
    }
}
