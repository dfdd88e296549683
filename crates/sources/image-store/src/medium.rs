//! The file system of a source: its ability to show changes of files, and its identity.
//!
//! The device number of an unmounted file system is given to the next one, and inode numbers and times come from the
//! medium. An image therefore belongs to a file on one *mounted file system*, which the kernel numbers in one of these
//! ways:
//!
//! - It makes a folder below `/sys/fs` at each mount, and inode numbers there come from one 64-bit counter that is
//!   never reset before the next boot (`kernfs_new_node` in `fs/kernfs/dir.c`). Since Linux 6.10 it reports the folder
//!   of a file's file system: ext4, xfs, f2fs. On btrfs, of any release, the folder's name is the file system's
//!   identifier.
//! - It numbers the disks in the order in which they appear and in which their media are changed (`diskseq` in
//!   `Documentation/ABI/stable/sysfs-block`, Linux 5.15).
//! - The file systems of `/` and `/usr` stay mounted.

use crate::StoreError;
use linux::file_systems::{cannot_be_written, records_changes, sysfs_path};
use nix::sys::stat::{major, minor};
use nix::sys::statfs::fstatfs;
use std::fmt;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Mounts that stay as long as any process runs that could read them.
const PERMANENT: [&str; 2] = ["/", "/usr"];

/// The mounted file system of a file, distinct from all others mounted since the machine started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Medium {
    /// Inode number of its folder below `/sys/fs`.
    Mounted(u64),
    /// Sequence number of its disk.
    Disk(u64),
    /// The one of `/` or `/usr`.
    Permanent,
}

impl Medium {
    /// The medium of an open file on the device `device` (as stat(2) gives it).
    ///
    /// # Errors
    /// [`StoreError::ChangesUnseen`] if the file could change without another time of change, and
    /// [`StoreError::MediumUnknown`] if nothing distinguishes its file system from one that is mounted there later.
    pub fn of(file: &File, device: u64) -> Result<Self, StoreError> {
        let found = fstatfs(file).map_err(|error| StoreError::io("statfs of the source", error))?.filesystem_type();
        if !records_changes(found) && !cannot_be_written(found) {
            return Err(StoreError::ChangesUnseen(found.0 as u64));
        }
        let mounted = || sysfs_path(file).ok().and_then(|name| folder_number(&name)).map(Self::Mounted);
        let disk = || disk_number(device).map(Self::Disk);
        let permanent = || is_permanent(device).then_some(Self::Permanent);
        mounted().or_else(disk).or_else(permanent).ok_or(StoreError::MediumUnknown)
    }

    /// Parses the output of `Display`.
    pub fn parse(text: &str) -> Option<Self> {
        let number = |digits: &str| u64::from_str_radix(digits, 16).ok();
        match text.split_at_checked(1)? {
            ("m", digits) => number(digits).map(Self::Mounted),
            ("d", digits) => number(digits).map(Self::Disk),
            ("p", "") => Some(Self::Permanent),
            _ => None,
        }
    }
}

impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mounted(number) => write!(f, "m{number:x}"),
            Self::Disk(number) => write!(f, "d{number:x}"),
            Self::Permanent => write!(f, "p"),
        }
    }
}

fn folder_number(name: &str) -> Option<u64> {
    // The name comes from the kernel, but a file system may take it from its medium.
    let is_plain = Path::new(name).components().all(|part| matches!(part, std::path::Component::Normal(_)));
    let folder = fs::symlink_metadata(Path::new("/sys/fs").join(name)).ok().filter(|_| is_plain && !name.is_empty())?;
    folder.is_dir().then(|| folder.ino())
}

/// A partition has the number of its disk.
fn disk_number(device: u64) -> Option<u64> {
    let folder = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    let read = |name: &str| fs::read_to_string(format!("{folder}/{name}")).ok();
    read("diskseq").or_else(|| read("../diskseq"))?.trim().parse().ok()
}

fn is_permanent(device: u64) -> bool {
    PERMANENT.iter().any(|path| fs::metadata(path).is_ok_and(|found| found.dev() == device))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        for medium in [Medium::Mounted(u64::MAX), Medium::Disk(0), Medium::Permanent] {
            assert_eq!(Medium::parse(&medium.to_string()), Some(medium));
        }
        for text in ["", "m", "p1", "x1", "ä", "d-1"] {
            assert_eq!(Medium::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_folder_is_looked_for_in_sys_fs_alone() {
        for name in ["", "..", "../fs", "/sys", "ext4/../..", "ext4/features/no-such"] {
            assert_eq!(folder_number(name), None, "{name}");
        }
    }

    #[test]
    fn files_of_the_kernel_have_no_medium() {
        let file = File::open("/proc/self/status").unwrap();
        assert!(matches!(Medium::of(&file, 0), Err(StoreError::ChangesUnseen(_))));
    }
}
