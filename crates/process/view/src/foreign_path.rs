//! Follows a path that another user has chosen, without asking a file system that a user's program serves, and without
//! leaving a root folder.
//!
//! The kernel's own look-up asks the file system of each folder on the way. So each part is opened as a place, and the next
//! one only if the kernel answers for that place's file system. The links of `/proc` that lead to an open file instead of a
//! path (magic links) lead out of every root folder: below the root of a process they are refused.

use crate::mounts::{Device, FileMount};
use crate::served::Served;
use linux::unasked::{self, Unasked};
use nix::libc;
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

/// Symbolic links on one way, as the kernel follows (path_resolution(7)).
const MOST_LINKS: usize = 40;
/// Number of the root folder in every file system of the type proc (`PROC_ROOT_INO`). Its links, such as `self`, have paths.
const ROOT_OF_PROC: u64 = 1;

/// Treatment of a link that is the last part of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastLink {
    Follow,
    Keep,
}

/// Treatment of the links of `/proc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MagicLinks {
    Follow,
    Refuse,
}

/// As [`place_of`], with the last link followed.
///
/// # Errors
/// As [`place_of`].
pub(crate) fn place_below(
    root: impl AsFd,
    path: &Path,
    refuse: &dyn Fn(&FileMount) -> Option<Served>,
) -> io::Result<OwnedFd> {
    place_of(root, path, LastLink::Follow, refuse)
}

/// Opens a place by a path below `root`, from which absolute links begin anew. `refuse` returns why a file system is not
/// asked.
///
/// # Errors
/// The kernel's; an error that is a [`Refusal`], where a file system is not asked; an error that is a [`MagicLink`].
pub(crate) fn place_of(
    root: impl AsFd,
    path: &Path,
    last: LastLink,
    refuse: &dyn Fn(&FileMount) -> Option<Served>,
) -> io::Result<OwnedFd> {
    walk(vec![root.as_fd().try_clone_to_owned()?], path, last, MagicLinks::Refuse, refuse)
}

/// Opens a place by a relative path from `folder`, above which the path does not lead. Absolute links begin at `root`.
///
/// # Errors
/// As [`place_of`].
pub(crate) fn place_from(
    root: OwnedFd,
    folder: OwnedFd,
    path: &Path,
    refuse: &dyn Fn(&FileMount) -> Option<Served>,
) -> io::Result<OwnedFd> {
    walk(vec![root, folder], path, LastLink::Follow, MagicLinks::Refuse, refuse)
}

/// Opens a place by a path that the caller of this program has named, and that leads wherever this program itself may go.
///
/// # Errors
/// As [`place_of`], but magic links are followed.
pub(crate) fn place_from_here(path: &Path, refuse: &dyn Fn(&FileMount) -> Option<Served>) -> io::Result<OwnedFd> {
    walk(vec![unasked::place(Path::new("/"))?], path, LastLink::Follow, MagicLinks::Follow, refuse)
}

/// The first of `start` is the root, the last is the folder in which the path begins.
fn walk(
    start: Vec<OwnedFd>,
    path: &Path,
    last: LastLink,
    magic: MagicLinks,
    refuse: &dyn Fn(&FileMount) -> Option<Served>,
) -> io::Result<OwnedFd> {
    let mut folders = start.into_iter().map(|place| checked(place, refuse)).collect::<io::Result<Vec<_>>>()?;
    let mut lowest = folders.len();
    let mut left: VecDeque<OsString> = parts(path.as_os_str()).collect();
    let mut links = 0;
    while let Some(part) = left.pop_front() {
        if part == ".." {
            folders.truncate((folders.len() - 1).max(lowest));
            continue;
        }
        let Some((here, found)) = folders.last() else { break };
        let keep = last == LastLink::Keep && left.is_empty();
        // A magic link cannot be read as a path.
        let follow = !keep && magic == MagicLinks::Follow && found.device == device_of_proc();
        let (place, next) = checked(unasked::place_in(here, Path::new(&part), follow)?, refuse)?;
        if keep || next.mode & libc::S_IFMT != libc::S_IFLNK {
            folders.push((place, next));
            continue;
        }
        links += 1;
        if links > MOST_LINKS {
            return Err(io::Error::from_raw_os_error(libc::ELOOP));
        }
        if found.inode != ROOT_OF_PROC && fstatfs(&place)?.filesystem_type() == PROC_SUPER_MAGIC {
            return Err(io::Error::other(MagicLink));
        }
        let target = unasked::target_of(&place)?;
        if target.as_bytes().first() == Some(&b'/') {
            folders.truncate(1);
            lowest = 1;
        }
        parts(&target).collect::<Vec<_>>().into_iter().rev().for_each(|part| left.push_front(part));
    }
    folders.pop().map(|(place, _)| place).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// The parts of a path that lead somewhere.
fn parts(path: &OsStr) -> impl Iterator<Item = OsString> {
    Path::new(path).components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    })
}

fn checked(place: OwnedFd, refuse: &dyn Fn(&FileMount) -> Option<Served>) -> io::Result<(OwnedFd, Unasked)> {
    let found = unasked::of(&place)?;
    match refuse(&FileMount::from(&found)) {
        None => Ok((place, found)),
        Some(served) => Err(io::Error::other(Refusal(served))),
    }
}

/// The device of `/proc` as this program sees it.
fn device_of_proc() -> Device {
    static FOUND: std::sync::OnceLock<Device> = std::sync::OnceLock::new();
    let found = || unasked::of(unasked::place(Path::new("/proc")).ok()?).ok().map(|proc| proc.device);
    *FOUND.get_or_init(|| found().unwrap_or((u32::MAX, u32::MAX)))
}

/// An error that says why a file system is not asked.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Refusal(pub Served);

/// An error that says that a path leads out of the root folder.
#[derive(Debug, thiserror::Error)]
#[error("a link of /proc on its path leads out of the root folder of the process, and is not followed")]
struct MagicLink;

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::path::PathBuf;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("pagelift-foreign-path-{name}-{}", std::process::id()));
            fs::create_dir_all(folder.join("root/a/b")).unwrap();
            fs::write(folder.join("outside"), "outside").unwrap();
            fs::write(folder.join("root/a/file"), "inside").unwrap();
            Self(folder)
        }

        fn read(&self, path: &str, refuse: &dyn Fn(&FileMount) -> Option<Served>) -> io::Result<String> {
            let root = unasked::place(&self.0.join("root"))?;
            io::read_to_string(unasked::reopen(place_below(root, Path::new(path), refuse)?)?)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn no_link_and_no_parent_leads_out_of_the_root() {
        let folder = Folder::new("root");
        let link = |target: &str, name: &str| symlink(target, folder.0.join("root").join(name)).unwrap();
        link("/a/file", "absolute");
        link("../../../../a/../a/./file", "a/b/relative");
        link("/outside", "out");
        link(folder.0.join("outside").to_str().unwrap(), "far");
        link("loop", "loop");
        link("/a", "folder");
        let read = |path: &str| folder.read(path, &|_| None);
        for path in ["/a/file", "absolute", "a/b/relative", "/../../a//b/../file", "folder/file"] {
            assert_eq!(read(path).unwrap(), "inside", "{path}");
        }
        for path in ["/out", "far", "../outside", "/a/nothing", "a/file/below"] {
            assert!(read(path).is_err(), "{path}");
        }
        assert_eq!(read("loop").unwrap_err().raw_os_error(), Some(libc::ELOOP));
    }

    #[test]
    fn a_file_system_that_is_refused_is_not_entered() {
        let folder = Folder::new("refused");
        let refuse = |place: &FileMount| Some(Served::Unknown { device: place.device });
        let error = folder.read("a/file", &refuse).unwrap_err();
        assert!(error.get_ref().is_some_and(|inner| inner.is::<Refusal>()), "{error}");
    }

    #[test]
    fn links_of_proc_lead_to_the_files_themselves_where_the_caller_names_them() {
        let found = place_from_here(Path::new("/proc/self/exe"), &|_| None).unwrap();
        let own = fs::metadata("/proc/self/exe").unwrap();
        assert_eq!(unasked::reopen(found).unwrap().metadata().unwrap().ino(), own.ino());
    }

    #[test]
    fn no_link_of_proc_leads_out_of_the_root_of_a_process() {
        let root = unasked::place(Path::new("/")).unwrap();
        let below = |path: &str| place_below(&root, Path::new(path), &|_| None);
        let own = std::process::id();
        for path in ["/proc/self/exe", "/proc/thread-self/root/etc", &format!("/proc/{own}/root/etc"), "/proc/self/cwd"]
        {
            let error = below(path).unwrap_err();
            assert!(error.get_ref().is_some_and(|inner| inner.is::<MagicLink>()), "{path}: {error}");
        }
        // A link that has a path is followed.
        let mounts = below("/proc/mounts").unwrap();
        assert!(!io::read_to_string(unasked::reopen(mounts).unwrap()).unwrap().is_empty());
        let kept = place_of(&root, Path::new("/proc/self/exe"), LastLink::Keep, &|_| None).unwrap();
        assert_eq!(unasked::of(kept).unwrap().mode & libc::S_IFMT, libc::S_IFLNK);
    }

    #[test]
    fn a_relative_path_begins_in_its_folder_and_its_absolute_links_in_the_root() {
        let folder = Folder::new("relative");
        symlink("/a/file", folder.0.join("root/a/b/absolute")).unwrap();
        fs::write(folder.0.join("root/a/b/file"), "beside").unwrap();
        let read = |path: &str| {
            let start = |path: &str| unasked::place(&folder.0.join(path)).unwrap();
            let place = place_from(start("root"), start("root/a/b"), Path::new(path), &|_| None).unwrap();
            io::read_to_string(unasked::reopen(place).unwrap()).unwrap()
        };
        assert_eq!(
            (read("file"), read("./absolute"), read("../file")),
            ("beside".into(), "inside".into(), "beside".into())
        );
    }
}
