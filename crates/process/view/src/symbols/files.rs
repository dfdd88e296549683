//! Opens the files that hold the symbols of one process.
//!
//! The process chooses the files: by the path of an object, by the name of the debug file in the object, and by links on
//! the path. If the names are written for the process, only files that the process itself may read are read.

use crate::ProcessFiles;
use crate::foreign_path::place_below;
use crate::mounts::FileMount;
use crate::opening::{MappedFile, open_place};
use crate::owner::Owner;
use crate::served::{Served, Servers, refuse_here};
use linux::unasked;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The longest time that opening a file may take.
const LIMIT: Duration = Duration::from_secs(10);
/// Permission for all to read a file.
const FOR_ALL: u32 = 0o004;

/// Opens files as one process would.
#[derive(Debug)]
pub(crate) struct SymbolFiles {
    /// `None` where the files are opened with this program's own rights.
    owner: Option<Owner>,
    servers: Arc<Servers>,
    root: Option<Arc<OwnedFd>>,
    /// The path of the root, if it differs from this program's root; empty if it is the root of a namespace.
    foreign_root: Option<String>,
}

impl SymbolFiles {
    /// Files for names that only the caller sees.
    pub fn for_caller(process: &ProcessFiles) -> Self {
        Self::of(process, None)
    }

    /// Files for names that the process sees: `owner` has its rights.
    pub fn for_process(process: &ProcessFiles, owner: Owner) -> Self {
        Self::of(process, Some(owner))
    }

    fn of(process: &ProcessFiles, owner: Option<Owner>) -> Self {
        let servers = Servers::of(process);
        if owner.is_some() {
            servers.read();
        }
        let root = unasked::place(&process.path("root")).ok().map(Arc::new);
        // The root may be a user's file system, which is not asked what it is.
        let same_place = |one: &Path, other: &Path| {
            let found = |path: &Path| unasked::of(unasked::place(path).ok()?).ok();
            found(one).zip(found(other)).is_some_and(|(one, other)| one.is_same_file(&other))
        };
        let mounts = |path: &Path| fs::read_link(path).ok();
        let is_own = same_place(&process.path("root"), Path::new("/"))
            && mounts(&process.path("ns/mnt")) == mounts(Path::new("/proc/self/ns/mnt"));
        let link = || fs::read_link(process.path("root")).unwrap_or_default().to_string_lossy().into_owned();
        let foreign_root = (!is_own).then(|| link().trim_end_matches('/').to_owned());
        Self { owner, servers: Arc::new(servers), root, foreign_root }
    }

    /// A path as the process itself has it: maps shows the path of a file below a root folder of this namespace with the
    /// path of the root.
    pub fn path_within<'a>(&self, path: &'a str) -> &'a str {
        let within = self.foreign_root.as_deref().and_then(|root| path.strip_prefix(root));
        within.filter(|path| path.starts_with('/')).unwrap_or(path)
    }

    /// True if the process may read an open file, whatever its path is.
    pub fn may_read(&self, file: &File) -> bool {
        let Some(owner) = &self.owner else { return true };
        let opened_anew = |file: File| owner.act(LIMIT, move || unasked::reopen(&file).is_ok());
        file.try_clone().is_ok_and(|file| opened_anew(file) == Ok(true))
    }

    /// Opens a regular file below the root of the process.
    pub fn open(&self, path: &str) -> Option<MappedFile> {
        let (root, servers, path) = (self.root.clone()?, self.servers.clone(), path.to_owned());
        self.act(move || {
            let refuse = |place: &FileMount| servers.refuse(place);
            open_below(&root, &path, &refuse)
        })
    }

    /// Opens a regular file that all may read below this program's root, where that is not the process's.
    pub fn open_of_host(&self, path: &str) -> Option<MappedFile> {
        self.foreign_root.as_ref()?;
        let path = path.to_owned();
        let found = self.act(move || open_below(&unasked::place(Path::new("/"))?, &path, &refuse_here))?;
        (found.metadata.mode() & FOR_ALL != 0).then_some(found)
    }

    fn act(&self, work: impl FnOnce() -> io::Result<Option<MappedFile>> + Send + 'static) -> Option<MappedFile> {
        match &self.owner {
            Some(owner) => owner.act(LIMIT, work).ok()?,
            None => work(),
        }
        .ok()?
    }
}

fn open_below(
    root: &OwnedFd,
    path: &str,
    refuse: &dyn Fn(&FileMount) -> Option<Served>,
) -> io::Result<Option<MappedFile>> {
    open_place(place_below(root, Path::new(path), refuse)?, refuse)
}
