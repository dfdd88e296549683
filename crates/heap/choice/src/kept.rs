//! Facts of a program's files, kept from one start to the next by the files' identities.
//!
//! Root's facts are in `/run/pagelift/heap-facts`, other users' in `pagelift/heap-facts` below `$XDG_RUNTIME_DIR`. Both
//! are in memory, and vanish at the next boot. A user's processes use only facts that this user and the same build of
//! Pagelift have written. Facts that cannot be read, parsed or written count as missing.
//!
//! A file's identity distinguishes its states only if the kernel gives it a new time of change with each change, and if its file
//! system stays mounted: a later file system can get the same device number, and files of squashfs have the times that the maker
//! of the image chose. So facts are kept only for files on file systems that record each change, and on the file system of `/`.

mod record;

use crate::elf::{ElfFacts, Reads};
use linux::bounded::KEPT_FACTS;
use linux::file_systems::{OVERLAYFS_SUPER_MAGIC, cannot_be_written, records_changes};
use nix::fcntl::{AT_FDCWD, OFlag, openat, renameat};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::stat::{Mode, fstat, mkdirat};
use nix::sys::statfs::FsType;
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};
use process_view::{FileIdentity, FoundFile};
use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Number of files in which facts are kept, each of one program: a program that gets another's file replaces it.
const FILES: u64 = 32;
/// Age from which a file's times distinguish its contents: a clock tick, in which a file may be written twice, is shorter.
const SETTLED: Duration = Duration::from_secs(2);
/// Files that were read from which their facts are kept; to write them costs as much as to read about five.
const WORTH_KEEPING: u64 = 16;
/// The root folder, whose file system stays mounted.
const ROOT: &str = "/";
/// Bytes of a file for which it counts as one more.
const MORE: u64 = 4 << 20;

/// The key of a file's facts: its identity and the parts that were read.
type Key = (FileIdentity, Reads);

/// Facts of one program's files.
pub(crate) struct KeptFacts {
    /// The folder of this user.
    folder: PathBuf,
    /// Name of the file in the folder.
    name: String,
    /// The executable file of this process.
    build: FileIdentity,
    /// Contents of the file as found.
    found: Vec<u8>,
    /// Place of each record in `found`.
    places: HashMap<Key, Range<usize>>,
    /// Records of the files that this program has now.
    records: Vec<u8>,
    /// Files that were read, with [`MORE`] for large ones.
    read: u64,
    /// The device of the root folder's file system.
    root: Option<u64>,
}

impl KeptFacts {
    /// The facts that are kept for an executable; `None` if this user has no place for them.
    pub fn of_executable(executable: &FileIdentity) -> Option<Self> {
        Self::in_folder(folder_of_this_user()?, executable)
    }

    fn in_folder(folder: PathBuf, executable: &FileIdentity) -> Option<Self> {
        let name = format!("{:02x}", (executable.inode ^ executable.device.rotate_left(32)) % FILES);
        let build = FileIdentity::of(&std::fs::metadata("/proc/self/exe").ok()?);
        let found = read_own(&folder.join(&name)).unwrap_or_default();
        let places = record::places(&found, &build).unwrap_or_default();
        Some(Self { folder, name, build, found, places, records: Vec::new(), read: 0, root: device_of(ROOT) })
    }

    /// Returns the facts of a file. `read` reads them if they are not kept.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn of_file(
        &mut self,
        metadata: &Metadata,
        reads: Reads,
        read: impl FnOnce() -> io::Result<Option<ElfFacts>>,
    ) -> io::Result<Option<ElfFacts>> {
        let key = (FileIdentity::of(metadata), reads);
        let kept = self.places.get(&key).and_then(|place| self.found.get(place.clone()));
        if let Some((kept, facts)) = kept.and_then(|kept| Some((kept, record::facts(kept)?))) {
            record::add_encoded(&mut self.records, &key, kept);
            return Ok(Some(facts));
        }
        let facts = read()?;
        if let Some(facts) = facts.as_ref().filter(|_| is_settled(metadata)) {
            record::add(&mut self.records, &key, facts);
            self.read += 1 + metadata.len() / MORE;
        }
        Ok(facts)
    }

    /// True if the file's identity distinguishes its states.
    fn has_identity(&self, file_system: FsType, metadata: &Metadata) -> bool {
        let stays_mounted = self.root == Some(metadata.dev());
        let is_overlay = file_system == OVERLAYFS_SUPER_MAGIC;
        records_changes(file_system) || stays_mounted && (is_overlay || cannot_be_written(file_system))
    }

    /// Keeps the facts of all files that were requested, if enough files were read.
    pub fn keep(self) {
        if self.read >= WORTH_KEEPING {
            // Without them the next start reads the files again.
            let _ = self.write();
        }
    }

    fn write(&self) -> io::Result<()> {
        let contents = record::file(&self.build, &self.records);
        let (most, _) = getrlimit(Resource::RLIMIT_FSIZE)?;
        // A write beyond the limit would end the process by SIGXFSZ.
        if contents.len() as u64 > KEPT_FACTS.bytes().min(most) {
            return Ok(());
        }
        let folder = make(&self.folder)?;
        let new = format!("{}.new", self.name);
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        // A process that ended while it wrote has left its file.
        let is_left = std::fs::symlink_metadata(self.folder.join(&new)).is_ok_and(|found| is_settled(&found));
        if is_left {
            unlinkat(&folder, new.as_str(), UnlinkatFlags::NoRemoveDir)?;
        }
        let mut file = File::from(openat(&folder, new.as_str(), flags, Mode::from_bits_truncate(0o600))?);
        let written =
            file.write_all(&contents).and_then(|()| Ok(renameat(&folder, new.as_str(), &folder, self.name.as_str())?));
        if written.is_err() {
            unlinkat(&folder, new.as_str(), UnlinkatFlags::NoRemoveDir)?;
        }
        written
    }
}

/// The facts of the file at a path, from `kept` if they are known there; `None` if it is no regular or no ELF file.
///
/// # Errors
/// The file cannot be found or read.
pub(crate) fn facts_at(path: &Path, reads: Reads, kept: Option<&mut KeptFacts>) -> io::Result<Option<ElfFacts>> {
    let Some(kept) = kept else { return ElfFacts::read(path, reads) };
    let Some(found) = FoundFile::at(path)? else { return Ok(None) };
    let metadata = found.metadata()?;
    if !kept.has_identity(found.file_system()?, &metadata) {
        return ElfFacts::of_file(path, &found.open()?, reads);
    }
    let facts = kept.of_file(&metadata, reads, || ElfFacts::of_file(path, &found.open()?, reads))?;
    Ok(facts.map(|facts| ElfFacts { path: path.to_owned(), ..facts }))
}

fn device_of(path: &str) -> Option<u64> {
    Some(std::fs::metadata(path).ok()?.dev())
}

/// The folder for the facts of this process's user. Only users with a folder for their session have one.
fn folder_of_this_user() -> Option<PathBuf> {
    let start = match geteuid().is_root() {
        true => PathBuf::from("/run"),
        false => std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute())?,
    };
    Some(start.join("pagelift/heap-facts"))
}

/// Opens the folder, with the one around it, and makes both if necessary. They must be this user's, and writable for
/// nobody else.
fn make(folder: &Path) -> io::Result<OwnedFd> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_PATH;
    let around = folder.parent().unwrap_or(folder);
    let mut made = None;
    for (part, mode) in [(around, 0o755), (folder, 0o700)] {
        let _ = mkdirat(AT_FDCWD, part, Mode::from_bits_truncate(mode));
        let next = match made.as_ref() {
            None => openat(AT_FDCWD, part, flags, Mode::empty())?,
            Some(made) => openat(made, part.file_name().unwrap_or_default(), flags, Mode::empty())?,
        };
        let found = fstat(&next)?;
        if found.st_uid != geteuid().as_raw() || found.st_mode & 0o022 != 0 {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        made = Some(next);
    }
    made.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// The contents of a file that this user alone can read and write.
fn read_own(path: &Path) -> Option<Vec<u8>> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let file = File::from(openat(AT_FDCWD, path, flags, Mode::empty()).ok()?);
    let found = file.metadata().ok()?;
    let is_own = found.uid() == geteuid().as_raw() && found.mode() == regular(0o600) && found.nlink() == 1;
    if !is_own || found.len() > KEPT_FACTS.bytes() {
        return None;
    }
    let mut contents = Vec::with_capacity(found.len() as usize + 1);
    file.take(KEPT_FACTS.bytes()).read_to_end(&mut contents).ok()?;
    Some(contents)
}

/// The mode of a regular file with these permissions.
fn regular(permissions: u32) -> u32 {
    nix::sys::stat::SFlag::S_IFREG.bits() | permissions
}

/// True if a file was last changed so long ago that a later change changes its times.
fn is_settled(metadata: &Metadata) -> bool {
    let ages =
        [Duration::from_secs(metadata.mtime().max(0) as u64), Duration::from_secs(metadata.ctime().max(0) as u64)];
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    ages.iter().all(|&changed| changed + SETTLED < now)
}

#[cfg(test)]
mod tests;
