//! The place of a file: an open directory and a name in it, reached without following a link that appears on the path.

use crate::replacement::ReplaceError;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, open, openat, renameat};
use nix::sys::stat::{FileStat, Mode, fstatat};
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

/// A name in an open directory.
#[derive(Debug)]
pub(crate) struct NameInFolder {
    directory: OwnedFd,
    name: OsString,
    /// The path without links, for messages.
    pub path: PathBuf,
}

impl NameInFolder {
    /// The place that a path leads to. Links are resolved once, at the beginning. The resolved path is then opened
    /// directory by directory; it is an error if a directory on it has become a link.
    pub fn of(path: &Path) -> Result<Self, ReplaceError> {
        let path = fs::canonicalize(path).map_err(ReplaceError::io("resolving the path"))?;
        Self::without_links(path)
    }

    /// The place of a file that need not exist. A link at the path is not followed.
    pub fn of_new(path: &Path) -> Result<Self, ReplaceError> {
        let name = path.file_name().ok_or(ReplaceError::NotRegular)?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let parent = fs::canonicalize(parent).map_err(ReplaceError::io("resolving the path"))?;
        Self::without_links(parent.join(name))
    }

    fn without_links(path: PathBuf) -> Result<Self, ReplaceError> {
        let name = path.file_name().ok_or(ReplaceError::NotRegular)?.to_owned();
        let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        let failed = "opening its directory";
        let mut directory = open("/", flags, Mode::empty()).map_err(ReplaceError::call(failed))?;
        for part in path.parent().into_iter().flat_map(Path::components) {
            if let Component::Normal(part) = part {
                // A directory that may be searched and not read can be passed.
                directory = openat(&directory, part, flags | OFlag::O_PATH, Mode::empty())
                    .map_err(ReplaceError::call(failed))?;
            }
        }
        let directory = openat(&directory, ".", flags, Mode::empty()).map_err(ReplaceError::call(failed))?;
        Ok(Self { directory, name, path })
    }

    /// Opens the file; never a device, nor a link.
    pub fn open(&self) -> Result<File, ReplaceError> {
        let found = self.look(&self.name).map_err(ReplaceError::io("looking at the file"))?;
        if found.st_mode & nix::libc::S_IFMT != nix::libc::S_IFREG {
            return Err(ReplaceError::NotRegular);
        }
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        // Only root and the owner may leave the time of last use as it is.
        let opened = openat(&self.directory, self.name.as_os_str(), flags | OFlag::O_NOATIME, Mode::empty())
            .or_else(|_| openat(&self.directory, self.name.as_os_str(), flags, Mode::empty()));
        Ok(File::from(opened.map_err(ReplaceError::call("opening the file"))?))
    }

    /// A file in the same directory without a name, so that no file is left when this program is killed.
    pub fn nameless(&self) -> Result<File, ReplaceError> {
        let flags = OFlag::O_TMPFILE | OFlag::O_RDWR | OFlag::O_CLOEXEC;
        match openat(&self.directory, ".", flags, Mode::from_bits_truncate(0o600)) {
            Ok(file) => Ok(File::from(file)),
            Err(nix::errno::Errno::EOPNOTSUPP | nix::errno::Errno::EISDIR) => Err(ReplaceError::NoNamelessFiles),
            Err(error) => Err(ReplaceError::call("making a file in the directory")(error)),
        }
    }

    /// An error if this user can write less than `needed` bytes to the file system.
    pub fn check_room(&self, needed: u64) -> Result<(), ReplaceError> {
        let free = self.free()?;
        if free < needed { Err(ReplaceError::NoRoom { free, needed }) } else { Ok(()) }
    }

    /// Bytes that this user can still write to the file system.
    fn free(&self) -> Result<u64, ReplaceError> {
        let found = nix::sys::statvfs::fstatvfs(&self.directory).map_err(ReplaceError::call("fstatvfs"))?;
        #[allow(clippy::unnecessary_cast)] // Other types on other C libraries.
        Ok((found.blocks_available() as u64).saturating_mul(found.fragment_size() as u64))
    }

    /// Renames `new`, an open file of this directory, over the file that is there, unless `is_same` has an objection: it is asked
    /// directly before.
    ///
    /// An exchange (`RENAME_EXCHANGE`) could be undone if an installer was quicker by microseconds, but processes that
    /// have the old file would then see it under the copy's temporary name instead of its own with ` (deleted)`.
    pub fn put(&self, new: &File, is_same: &dyn Fn() -> Result<(), ReplaceError>) -> Result<(), ReplaceError> {
        let temporary = self.give_name(new)?;
        let renamed = is_same().and_then(|()| {
            renameat(&self.directory, temporary.as_os_str(), &self.directory, self.name.as_os_str())
                .map_err(ReplaceError::call("renaming the copy"))
        });
        if renamed.is_err() && self.is(&temporary, new) {
            let _ = unlinkat(&self.directory, temporary.as_os_str(), UnlinkatFlags::NoRemoveDir);
        }
        renamed?;
        self.make_durable()
    }

    /// Puts `new`, an open file of this directory, in the place of whatever regular file or link is there.
    pub fn put_new(&self, new: &File) -> Result<(), ReplaceError> {
        let is_other = |found: FileStat| {
            let kind = found.st_mode & nix::libc::S_IFMT;
            kind != nix::libc::S_IFREG && kind != nix::libc::S_IFLNK
        };
        if self.look(&self.name).is_ok_and(is_other) {
            return Err(ReplaceError::NotRegular);
        }
        let temporary = self.give_name(new)?;
        let renamed = renameat(&self.directory, temporary.as_os_str(), &self.directory, self.name.as_os_str());
        if renamed.is_err() {
            let _ = unlinkat(&self.directory, temporary.as_os_str(), UnlinkatFlags::NoRemoveDir);
        }
        renamed.map_err(ReplaceError::call("renaming the copy"))?;
        self.make_durable()
    }

    fn make_durable(&self) -> Result<(), ReplaceError> {
        let failed = ReplaceError::call(
            "fsync of the directory, which has the new file now, and after a crash perhaps the old one",
        );
        nix::unistd::fsync(&self.directory).map_err(failed)
    }

    /// Gives a nameless file a name in the directory.
    fn give_name(&self, file: &File) -> Result<OsString, ReplaceError> {
        let mut suffix = [0; 8];
        File::open("/dev/urandom")
            .and_then(|mut random| random.read_exact(&mut suffix))
            .map_err(ReplaceError::io("reading /dev/urandom"))?;
        let name = OsString::from(format!(".pagelift-{:016x}", u64::from_ne_bytes(suffix)));
        // Needs CAP_DAC_READ_SEARCH; the alternative needs /proc.
        linkat(file, "", &self.directory, name.as_os_str(), AtFlags::AT_EMPTY_PATH)
            .or_else(|_| {
                let own = format!("/proc/self/fd/{}", file.as_raw_fd());
                linkat(AT_FDCWD, own.as_str(), &self.directory, name.as_os_str(), AtFlags::AT_SYMLINK_FOLLOW)
            })
            .map_err(ReplaceError::call("linking the copy into the directory"))?;
        Ok(name)
    }

    fn look(&self, name: &OsStr) -> io::Result<FileStat> {
        Ok(fstatat(&self.directory, name, AtFlags::AT_SYMLINK_NOFOLLOW)?)
    }

    /// True if this name is the open file's.
    fn is(&self, name: &OsStr, file: &File) -> bool {
        let own = nix::sys::stat::fstat(file);
        let (Ok(found), Ok(own)) = (self.look(name), own) else { return false };
        (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)
    }

    /// True if the open file is still there.
    pub fn still_holds(&self, file: &File) -> bool {
        self.is(&self.name, file)
    }
}
