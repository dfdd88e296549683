//! Reads the state of a process's files in the page cache, and brings them into huge folios.

use crate::{SessionError, images};
use address_space::{AddressRange, AddressSpace, ElfKind, LoadedObject, Mapping, ObjectRole, PageSize, RangeSet};
use lift_plan::{CacheShortfall, MachineFacts, Policy, ProcessFacts, cached_coverable, choose_cached_base};
use linux::pagemap::Pagemap;
use machine_facts::{CachedFiles, FileReader, FileState, base_page, cached_files, memory_available, usual_huge_page};
use options::Prepare;
use page_cache::{Budget, Effort, Hold, Refusal, Users};
use process_view::{
    FileIdentity, ObjectReader, ProcessFiles, Unreadable, executed_metadata, exists_in_root, metadata_in_root,
};
use std::cell::OnceCell;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest time that a start, or a lift of a running program, waits for one file to be brought into huge folios.
const LONGEST_PREPARATION: Duration = Duration::from_millis(500);
/// Divisor of the available memory; no more than the quotient is read again.
const SHARE_OF_MEMORY: u64 = 4;

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
        let limits = Limits { time: LONGEST_PREPARATION, available: &available, users: Users::BeforeEviction };
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

/// The path of a program that starts.
#[derive(Clone, Copy)]
pub struct ProgramPath<'a> {
    /// The path that opens its file.
    pub opened: &'a Path,
    /// The path in messages.
    pub shown: &'a Path,
}

impl<'a> ProgramPath<'a> {
    /// A path that opens the file, and that messages contain.
    pub fn new(path: &'a Path) -> Self {
        Self { opened: path, shown: path }
    }
}

/// Brings the file of a program that will be executed into huge folios, if that is wanted and allowed, and reads its
/// state. `available` returns the free bytes of memory. `None` if the
/// file cannot be read; a file that shows no huge folio at any base counts as one without any.
pub fn prepare_program(
    path: ProgramPath<'_>,
    reader: &mut ObjectReader,
    policy: &Policy,
    size: PageSize,
    effort: Effort,
    available: &dyn Fn() -> u64,
) -> Option<KnownFile> {
    let file = process_view::open_regular_file(path.opened).ok()??;
    let identity = FileIdentity::of(&file.metadata().ok()?);
    if identity.size < size.bytes() {
        return None;
    }
    let image = reader.read_ahead(path.opened)?;
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
    let limits = Limits { time: LONGEST_PREPARATION, available, users: Users::OncePagesStay };
    Some(KnownFile::of(identity, prepare(&file, path.shown, start..end, size, effort, limits)))
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

/// Reads the state of a mapped part of a file, after it was prepared.
pub(crate) fn prepare_mapped(
    file: &File,
    path: &Path,
    offsets: Range<u64>,
    size: PageSize,
    effort: Effort,
    available: u64,
) -> Prepared {
    let limits = Limits { time: LONGEST_PREPARATION, available: &|| available, users: Users::BeforeEviction };
    let prepared = prepare(file, path, offsets.clone(), size, effort, limits);
    if !prepared.huge.is_empty() || prepared.shortfall.is_none() {
        return prepared;
    }
    // A file that cannot be prepared, for example because it is larger than the memory, may have huge folios in part.
    match page_cache::look_and_hold(file, offsets, size) {
        Ok((extents, held)) => Prepared { huge: extents.huge, held, ..prepared },
        Err(_) => prepared,
    }
}

/// Returns the parts of an open file in huge folios; empty if that is unknown.
pub fn huge_parts(file: &File, huge: PageSize) -> Vec<Range<u64>> {
    let length = file.metadata().map_or(0, |metadata| metadata.len());
    page_cache::look(file, 0..length, huge).map(|looked| looked.huge).unwrap_or_default()
}

/// A file after its preparation.
#[derive(Default)]
pub(crate) struct Prepared {
    /// The parts in huge folios, as offsets in bytes.
    pub(crate) huge: Vec<Range<u64>>,
    /// Why others are not.
    pub(crate) shortfall: Option<CacheShortfall>,
    /// Keeps the huge folios in the page cache.
    pub(crate) held: Hold,
    /// Bytes that were brought into huge folios, or would be.
    made: u64,
}

/// The bounds of a preparation.
struct Limits<'a> {
    /// Longest time.
    time: Duration,
    /// Returns the bytes of memory that are free.
    available: &'a dyn Fn() -> u64,
    /// The moment at which other users of the file are searched for.
    users: Users,
}

fn prepare(
    file: &File,
    path: &Path,
    offsets: Range<u64>,
    huge: PageSize,
    effort: Effort,
    Limits { time, available, users }: Limits<'_>,
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
/// prepared as wanted. The holds keep huge folios in the page cache until the process has mapped them.
pub fn look(
    pid: i32,
    process: &ProcessFacts,
    machine: &MachineFacts,
    policy: &Policy,
    known: Option<&KnownFile>,
    preparation: FilePreparation,
) -> (CachedFiles, Vec<Hold>) {
    let mut reader = OtherFiles {
        pid,
        space: &process.space,
        known,
        preparation,
        available: machine.memory_available,
        base_page: machine.base_page,
        begin: Instant::now(),
        pagemap: OnceCell::new(),
        held: Vec::new(),
    };
    let cached = cached_files(process, machine, policy, &mut reader);
    (cached, reader.held)
}

/// The files of another process.
struct OtherFiles<'a> {
    pid: i32,
    space: &'a AddressSpace,
    known: Option<&'a KnownFile>,
    preparation: FilePreparation,
    /// Bytes of memory that are left.
    available: u64,
    base_page: PageSize,
    begin: Instant,
    /// Opened only if a file has huge folios.
    pagemap: OnceCell<Option<Pagemap>>,
    held: Vec<Hold>,
}

impl FileReader for OtherFiles<'_> {
    fn state(&mut self, object: &LoadedObject, mappings: &[&Mapping], size: PageSize) -> Option<FileState> {
        let (file, identity) = images::open(self.pid, self.space, object)?;
        let Prepared { huge, shortfall, held, .. } = self.prepared(&file, &identity, object, mappings, size)?;
        self.held.push(held);
        let path = (!huge.is_empty()).then(|| own_path(self.pid, self.space, object).ok()).flatten();
        let own_path = path.and_then(|path| path.to_str().map(str::to_owned));
        Some(FileState { huge, shortfall, own_path })
    }

    /// The base was not chosen for the file, since the file stayed small.
    fn shortfall(&mut self, object: &LoadedObject) -> Option<CacheShortfall> {
        let known = self.known.filter(|known| known.shortfall.is_some())?;
        let (_, found) = images::open(self.pid, self.space, object)?;
        known.shortfall.clone().filter(|_| found == known.identity)
    }

    fn changed(&mut self, range: AddressRange) -> Option<RangeSet> {
        let pagemap = self.pagemap.get_or_init(|| Pagemap::open(self.pid, self.base_page).ok());
        pagemap.as_ref()?.changed(range).ok()
    }
}

impl OtherFiles<'_> {
    fn prepared(
        &self,
        file: &File,
        identity: &FileIdentity,
        object: &LoadedObject,
        mappings: &[&Mapping],
        size: PageSize,
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
        let time = LONGEST_PREPARATION.saturating_sub(self.begin.elapsed());
        // The process itself maps them.
        let limits = Limits { time, available: &|| self.available, users: Users::BeforeEviction };
        let looked = prepare(file, Path::new(&object.path), start..end, size, effort, limits);
        // The result of an earlier preparation has more information.
        let shortfall = known.and_then(|known| known.shortfall.clone()).or(looked.shortfall);
        Some(Prepared { shortfall, ..looked })
    }
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
