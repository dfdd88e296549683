//! Opens a target's `/tmp`, which the target may have replaced by anything that it can mount there.

use super::PerfMapError;
use crate::mounts::FileMount;
use crate::served::Servers;
use linux::bounded::KERNEL_TEXT;
use linux::unasked;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Opened only to find files in it.
const DIRECTORY: OFlag = OFlag::O_PATH.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

/// The root directory of the process whose `/proc/PID` is open, and the text of its `status`: both of the same process.
pub(crate) fn descriptor_of_root(files: &File) -> io::Result<(OwnedFd, String)> {
    let root = openat(files, "root", DIRECTORY, Mode::empty())?;
    let status = File::from(openat(files, "status", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?);
    let status = KERNEL_TEXT.read_rest(status)?;
    Ok((root, String::from_utf8_lossy(&status).into_owned()))
}

/// A sticky directory of temporary files, held open so that it cannot be exchanged for another one.
#[derive(Debug)]
pub(crate) struct TemporaryDirectory {
    open: OwnedFd,
    /// Its path as seen from here.
    pub shown: PathBuf,
}

impl TemporaryDirectory {
    /// Opens `/tmp` below `root`. Below the root of this program, in the same mount namespace, `/tmp` is trusted, as
    /// set up by the administrator; elsewhere no symbolic link is followed, which would lead to a file of this
    /// program's namespace.
    pub fn open(root: &OwnedFd, is_own_namespace: bool, shown: &Path, servers: &Servers) -> Result<Self, PerfMapError> {
        let refuse = |place: &OwnedFd| match unasked::of(place).map(|found| servers.refuse(&FileMount::from(&found))) {
            Ok(Some(served)) => Err(PerfMapError::Served { path: shown.into(), served }),
            _ => Ok(()),
        };
        let error = |path: &Path, source: nix::Error| PerfMapError::Write { path: path.into(), source: source.into() };
        refuse(root)?;
        let is_own = is_own_namespace && is_own_root(root).map_err(|source| error(shown, source))?;
        let (open, shown) = match is_own {
            true => (openat(AT_FDCWD, "/tmp", DIRECTORY, Mode::empty()), Path::new("/tmp")),
            false => (openat2(root, "tmp", how(DIRECTORY).resolve(BENEATH)), shown),
        };
        let open = open.map_err(|source| error(shown, source))?;
        refuse(&open)?;
        let mode = fstat(&open).map_err(|source| error(shown, source))?.st_mode;
        if mode & Mode::S_ISVTX.bits() == 0 {
            return Err(PerfMapError::NotSticky { path: shown.into() });
        }
        Ok(Self { open, shown: shown.into() })
    }

    /// Opens an existing file of this name to read it and to add to its end; `None` where that cannot be done. A file
    /// that is mounted over the name does not count.
    pub fn open_to_add(&self, name: &str) -> Option<File> {
        let flags = OFlag::O_RDWR | OFlag::O_APPEND | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let resolve = BENEATH | ResolveFlag::RESOLVE_NO_XDEV;
        let is_regular = |stat: FileStat| SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG;
        // The check keeps a device or a named pipe from being opened.
        self.stat(name).filter(|stat| is_regular(*stat))?;
        openat2(&self.open, name, how(flags).resolve(resolve)).ok().map(File::from)
    }

    /// The owner of the file with this name; a symbolic link is not followed.
    pub fn owner_of(&self, name: &str) -> Option<u32> {
        self.stat(name).map(|stat| stat.st_uid)
    }

    fn stat(&self, name: &str) -> Option<FileStat> {
        fstatat(&self.open, name, AtFlags::AT_SYMLINK_NOFOLLOW).ok()
    }

    /// Writes under a temporary name and renames the file, so that perf never sees half a file.
    pub fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let temporary = format!("{name}.{}.new", std::process::id());
        let remove = || unlinkat(&self.open, temporary.as_str(), UnlinkatFlags::NoRemoveDir);
        // Left by an interrupted run with the same PID; a symbolic link is removed, not followed.
        let _ = remove();
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
        let resolve = BENEATH | ResolveFlag::RESOLVE_NO_XDEV;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR | Mode::S_IRGRP | Mode::S_IROTH;
        let mut file = File::from(openat2(&self.open, temporary.as_str(), how(flags).mode(mode).resolve(resolve))?);
        let mut write = || -> io::Result<()> {
            file.write_all(bytes)?;
            Ok(renameat(&self.open, temporary.as_str(), &self.open, name)?)
        };
        write().inspect_err(|_| {
            let _ = remove();
        })
    }
}

/// No symbolic link, and nothing outside of the directory (openat2(2), Linux 5.6).
const BENEATH: ResolveFlag = ResolveFlag::RESOLVE_NO_SYMLINKS.union(ResolveFlag::RESOLVE_BENEATH);

fn how(flags: OFlag) -> OpenHow {
    OpenHow::new().flags(flags)
}

fn is_own_root(root: &OwnedFd) -> nix::Result<bool> {
    let own = openat(AT_FDCWD, "/", DIRECTORY, Mode::empty())?;
    let (own, root) = (fstat(own)?, fstat(root)?);
    Ok((own.st_dev, own.st_ino) == (root.st_dev, root.st_ino))
}
