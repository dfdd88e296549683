//! Opens directories and files without following symbolic links.

use linux::directory::for_each_name;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::Mode;
use std::ffi::{CStr, OsStr, OsString};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path};

const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC).union(OFlag::O_NOFOLLOW);

/// Size of the buffer for names, in bytes; the longest name fits (getdents(2)).
const LISTED_AT_ONCE: usize = 2 << 10;

/// Opens a directory by a path in which no part is a symbolic link (`ELOOP` or `ENOTDIR` otherwise).
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
        // A name of one part opened with O_NOFOLLOW is equivalent, except for a mount on it, which only root can make.
        Err(Errno::ENOSYS | Errno::EPERM) => openat(&directory, name, flags, Mode::empty()),
        result => result,
    }
}

/// Opens a directory right in `directory`.
pub(crate) fn open_directory_in(directory: impl AsFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    open_in(directory, name, DIRECTORY)
}

/// Returns the names in a directory, sorted, without `.` and `..`. A directory that has been removed since it was opened
/// has none: the kernel answers `ENOENT` when it is read (getdents(2)).
pub(crate) fn names_in(directory: impl AsFd) -> Result<Vec<OsString>, Errno> {
    match read_names(directory) {
        Err(Errno::ENOENT) => Ok(Vec::new()),
        result => result,
    }
}

fn read_names(directory: impl AsFd) -> Result<Vec<OsString>, Errno> {
    // A separate descriptor, because reading a directory moves the descriptor's position.
    let listing = openat(directory, ".", DIRECTORY, Mode::empty())?;
    // The C library's `readdir` would set up its heap for this, which costs 20 µs of a start.
    let mut names = Vec::new();
    let add = |name: &CStr| {
        names.push(OsString::from_vec(name.to_bytes().to_vec()));
        ControlFlow::<()>::Continue(())
    };
    let _ = for_each_name(listing.as_raw_fd(), &mut [0; LISTED_AT_ONCE], add).map_err(Errno::from_raw)?;
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

    #[test]
    fn a_directory_that_is_removed_while_it_is_open_has_no_names() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap().join("removed");
        fs::create_dir(&path).unwrap();
        let open = open_path(&path).unwrap();
        fs::remove_dir(&path).unwrap();
        assert_eq!(names_in(&open), Ok(Vec::new()));
    }
}
