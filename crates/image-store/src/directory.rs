//! Opens directories and files without ever following a symbolic link.

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::Mode;
use rustix::fs::RawDir;
use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path};

const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC).union(OFlag::O_NOFOLLOW);

/// The kernel tells the names in pieces of this size, in which the longest has room (getdents(2)). In bytes.
const LISTED_AT_ONCE: usize = 2 << 10;

/// Opens a directory by a path in which no part is a symbolic link (`ELOOP` or `ENOTDIR` where one is).
pub(crate) fn open_path(path: &Path) -> Result<OwnedFd, Errno> {
    let how = OpenHow::new().flags(DIRECTORY).resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
    match openat2(nix::fcntl::AT_FDCWD, path, how) {
        // Linux before 5.6, or a filter of system calls that does not know openat2.
        Err(Errno::ENOSYS | Errno::EPERM) => open_by_parts(path),
        result => result,
    }
}

fn open_by_parts(path: &Path) -> Result<OwnedFd, Errno> {
    let start = if path.is_absolute() { "/" } else { "." };
    let mut directory = openat(nix::fcntl::AT_FDCWD, start, DIRECTORY, Mode::empty())?;
    for part in path.components() {
        match part {
            Component::RootDir | Component::CurDir => {}
            part => directory = openat(&directory, part.as_os_str(), DIRECTORY, Mode::empty())?,
        }
    }
    Ok(directory)
}

/// Opens a file or directory right in `directory`; a name with a slash, or one that leads elsewhere, is refused.
pub(crate) fn open_in(directory: impl AsFd, name: &OsStr, flags: OFlag) -> Result<OwnedFd, Errno> {
    if name.as_bytes().contains(&b'/') || name == OsStr::new("..") {
        return Err(Errno::EXDEV);
    }
    let flags = flags | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_XDEV;
    match openat2(&directory, name, OpenHow::new().flags(flags).resolve(resolve)) {
        // One part and O_NOFOLLOW come to the same, but for a mount on it, which only root could have made.
        Err(Errno::ENOSYS | Errno::EPERM) => openat(&directory, name, flags, Mode::empty()),
        result => result,
    }
}

/// Opens a directory right in `directory`.
pub(crate) fn open_directory_in(directory: impl AsFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    open_in(directory, name, DIRECTORY)
}

/// The names in a directory, in order, but for `.` and `..`.
pub(crate) fn names_in(directory: impl AsFd) -> Result<Vec<OsString>, Errno> {
    // A descriptor of its own: reading a directory moves the position of the one it reads by.
    let listing = openat(directory, ".", DIRECTORY, Mode::empty())?;
    // The C library's way would set up a heap of its own for it: 20 microseconds of a start.
    let mut buffer = [MaybeUninit::uninit(); LISTED_AT_ONCE];
    let mut entries = RawDir::new(listing, &mut buffer);
    let mut names = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = entry.map_err(|error| Errno::from_raw(error.raw_os_error()))?;
        let name = entry.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(OsString::from_vec(name));
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn no_way_of_opening_follows_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("real/inner")).unwrap();
        fs::write(root.join("real/file"), "x").unwrap();
        symlink(root.join("real"), root.join("link")).unwrap();
        symlink("file", root.join("real/to-file")).unwrap();
        for open in [open_path, open_by_parts] {
            assert!(open(&root.join("real/inner")).is_ok());
            assert!(open(&root.join("link")).is_err() && open(&root.join("link/inner")).is_err());
            assert!(open(&root.join("real/file")).is_err());
            assert_eq!(open(&root.join("none")).unwrap_err(), Errno::ENOENT);
        }
        let real = open_path(&root.join("real")).unwrap();
        assert!(open_in(&real, OsStr::new("file"), OFlag::O_RDONLY).is_ok());
        for name in ["to-file", "..", "inner/..", "/etc/passwd"] {
            assert!(open_in(&real, OsStr::new(name), OFlag::O_RDONLY).is_err(), "{name}");
        }
        assert_eq!(names_in(&real).unwrap(), ["file", "inner", "to-file"]);
        assert_eq!(names_in(&real).unwrap().len(), 3);
    }
}
