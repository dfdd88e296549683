//! Follows a path that another user has chosen, without asking a file system that a user's program serves, and without
//! leaving a root folder.
//!
//! The kernel's own look-up asks the file system of each folder on the way. So each part is opened as a place, and the next
//! one only if the kernel answers for that place's file system.

use crate::served::{Device, Place, Served};
use linux::unasked::{self, Unasked};
use nix::libc;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

/// Symbolic links on one way, as the kernel follows (path_resolution(7)).
const MOST_LINKS: usize = 40;

/// Treatment of a link that is the last part of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastLink {
    Follow,
    Keep,
}

/// As [`place_of`], with the last link followed.
///
/// # Errors
/// As [`place_of`].
pub(crate) fn place_below(
    root: impl AsFd,
    path: &Path,
    refuse: &dyn Fn(&Place) -> Option<Served>,
) -> io::Result<OwnedFd> {
    place_of(root, path, LastLink::Follow, refuse)
}

/// Opens a place by a path below `root`, from which absolute links begin anew. `refuse` returns why a file system is not
/// asked.
///
/// # Errors
/// The kernel's; an error that is a [`Refusal`], where a file system is not asked.
pub(crate) fn place_of(
    root: impl AsFd,
    path: &Path,
    last: LastLink,
    refuse: &dyn Fn(&Place) -> Option<Served>,
) -> io::Result<OwnedFd> {
    let mut folders = vec![checked(root.as_fd().try_clone_to_owned()?, refuse)?];
    let mut left: VecDeque<OsString> = parts(path.as_os_str()).collect();
    let mut links = 0;
    while let Some(part) = left.pop_front() {
        if part == ".." {
            folders.truncate((folders.len() - 1).max(1));
            continue;
        }
        let Some((here, found)) = folders.last() else { break };
        // A link of /proc leads to an open file itself and cannot be read as a path.
        let keep = last == LastLink::Keep && left.is_empty();
        let follow = !keep && found.device == device_of_proc();
        let (place, found) = checked(unasked::place_in(here, Path::new(&part), follow)?, refuse)?;
        if keep || found.mode & libc::S_IFMT != libc::S_IFLNK {
            folders.push((place, found));
            continue;
        }
        links += 1;
        if links > MOST_LINKS {
            return Err(io::Error::from_raw_os_error(libc::ELOOP));
        }
        let target = unasked::target_of(&place)?;
        if target.as_bytes().first() == Some(&b'/') {
            folders.truncate(1);
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

fn checked(place: OwnedFd, refuse: &dyn Fn(&Place) -> Option<Served>) -> io::Result<(OwnedFd, Unasked)> {
    let found = unasked::of(&place)?;
    match refuse(&Place::from(&found)) {
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

        fn read(&self, path: &str, refuse: &dyn Fn(&Place) -> Option<Served>) -> io::Result<String> {
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
        let refuse = |place: &Place| Some(Served::Unknown { device: place.device });
        let error = folder.read("a/file", &refuse).unwrap_err();
        assert!(error.get_ref().is_some_and(|inner| inner.is::<Refusal>()), "{error}");
    }

    #[test]
    fn links_of_proc_lead_to_the_files_themselves() {
        let root = unasked::place(Path::new("/")).unwrap();
        let found = place_below(&root, Path::new("/proc/self/exe"), &|_| None).unwrap();
        let own = fs::metadata("/proc/self/exe").unwrap();
        assert_eq!(unasked::reopen(found).unwrap().metadata().unwrap().ino(), own.ino());
    }
}
