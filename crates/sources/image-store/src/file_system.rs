//! Checks whether a directory's file system can hold images, and its room.

use crate::StoreError;
use address_space::PageSize;
use foreign_text::quoted_path;
use linux::pages::transparent_huge_page;
use linux::text::text_of;
use machine_facts::{THP, chosen_word};
use nix::sys::statfs::{HUGETLBFS_MAGIC, TMPFS_MAGIC, fstatfs};
use nix::sys::statvfs::{FsFlags, fstatvfs};
use serde::Serialize;
use std::fs;
use std::os::fd::AsFd;
use std::path::Path;

/// The source of an image's huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileSystem {
    /// tmpfs mounted `huge=always`: transparent huge pages, if the kernel has them.
    Tmpfs,
    /// hugetlbfs: pages of the pool.
    Hugetlbfs,
}

/// Room in a store, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Space {
    /// Maximum size of the store; `None` if only memory or the pool limits it.
    pub size: Option<u64>,
    /// Free part of `size`; `None` if there is no limit.
    pub free: Option<u64>,
}

/// The source of stores in the mount table, by which a store is distinguished from other uses of the same file system.
pub(crate) const DEVICE: &str = "pagelift";

/// Number of the device's field in mountinfo, from 0.
const DEVICE_FIELD: usize = 2;
/// Number of the mount point's field.
const MOUNT_POINT_FIELD: usize = 4;

/// Which checks are made before a store is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// Everything.
    Whole,
    /// Everything except checks that matter only for changing the store: whether it was mounted as one, and whether the
    /// kernel gives huge pages to a tmpfs file that is being written. After mapping an image the lift reads back the size
    /// of its pages.
    ToMap,
}

/// The file system of a directory and the size of its huge pages.
pub(crate) fn inspect(
    directory: impl AsFd,
    device: u64,
    path: &Path,
    check: Check,
) -> Result<(FileSystem, PageSize), StoreError> {
    let unfit = |found: String, needed: &'static str, fix: String| StoreError::Unfit {
        path: path.to_owned(),
        found,
        needed,
        fix,
    };
    let set_up = || format!("pagelift image setup --store {}", quoted_path(path));
    let stat = fstatfs(&directory).map_err(|error| StoreError::io("statfs of the image store", error))?;
    let flags = fstatvfs(&directory).map_err(|error| StoreError::io("statvfs of the image store", error))?.flags();
    if flags.contains(FsFlags::ST_NOEXEC) {
        let fix = format!("mount -o remount,exec {}", quoted_path(path));
        return Err(unfit("mounted `noexec`".to_owned(), "a mount from which code may be mapped", fix));
    }
    match stat.filesystem_type() {
        HUGETLBFS_MAGIC => {
            let size = PageSize::new(stat.block_size() as u64)
                .map_err(|_| unfit("no page size".to_owned(), "hugetlbfs", set_up()))?;
            if check == Check::Whole {
                check_source(mounted(device).as_ref(), "hugetlbfs").map_err(|found| foreign(path, found))?;
            }
            Ok((FileSystem::Hugetlbfs, size))
        }
        TMPFS_MAGIC => {
            let Some(size) = transparent_huge_page() else {
                let fix = "pagelift image setup --hugetlbfs".to_owned();
                return Err(unfit("a kernel without transparent huge pages".to_owned(), "such pages", fix));
            };
            if check == Check::ToMap {
                return Ok((FileSystem::Tmpfs, size));
            }
            let mounted = mounted(device);
            check_source(mounted.as_ref(), "tmpfs").map_err(|found| foreign(path, found))?;
            if is_shared_memory_denied() {
                let fix = format!("echo never > {THP}/shmem_enabled");
                return Err(unfit("`deny` in shmem_enabled".to_owned(), "any other word there", fix));
            }
            let mode = mounted.and_then(|mounted| mounted.huge).unwrap_or_else(|| "never".to_owned());
            if mode != "always" && mode != "within_size" {
                let fix = format!("mount -o remount,huge=always {}", quoted_path(path));
                return Err(unfit(format!("a tmpfs mounted `huge={mode}`"), "`huge=always`", fix));
            }
            Ok((FileSystem::Tmpfs, size))
        }
        other => Err(unfit(
            format!("a file system of type {:#x}", other.0),
            "a tmpfs mounted `huge=always`, or hugetlbfs",
            set_up(),
        )),
    }
}

/// Returns the room on the file system of a directory.
pub(crate) fn space(directory: impl AsFd) -> Result<Space, StoreError> {
    let stat = fstatfs(directory).map_err(|error| StoreError::io("statfs of the image store", error))?;
    let block = stat.block_size() as u64;
    // A mount without a limit reports no blocks (tmpfs), or none at all in either field (hugetlbfs).
    let bounded = |blocks: u64| (stat.blocks() != 0 && stat.blocks() != u64::MAX).then(|| blocks.saturating_mul(block));
    // More free blocks than blocks are a number below zero, see `shmem_statfs`.
    let free = Some(stat.blocks_available()).filter(|free| *free <= stat.blocks()).unwrap_or(0);
    Ok(Space { size: bounded(stat.blocks()), free: bounded(free) })
}

/// True if the machine's setting forbids huge pages of shared memory to all mounts.
fn is_shared_memory_denied() -> bool {
    fs::read_to_string(format!("{THP}/shmem_enabled")).is_ok_and(|text| chosen_word(&text) == Some("deny"))
}

/// Refuses a file system that was not mounted as a store: files of others may be in it, which a collection would remove.
fn check_source(mounted: Option<&Mounted>, kind: &str) -> Result<(), String> {
    match mounted.map(|mounted| mounted.source.as_str()) {
        Some(DEVICE) => Ok(()),
        source => Err(format!("a {kind} of the source `{}`", source.unwrap_or("unknown"))),
    }
}

/// The error for a mounted file system of others.
pub(crate) fn foreign(path: &Path, found: String) -> StoreError {
    let fix = "pagelift image setup --store DIRECTORY".to_owned();
    StoreError::Unfit { path: path.to_owned(), found, needed: "an empty directory, or a store", fix }
}

/// The entry of a mounted file system in the mount table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mounted {
    /// Its type, such as `tmpfs`.
    pub kind: String,
    /// Its source, which is [`DEVICE`] for a store.
    pub source: String,
    /// Its option `huge=`.
    huge: Option<String>,
}

/// The mount with this device number.
fn mounted(device: u64) -> Option<Mounted> {
    let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
    mounted_in(&text_of("/proc/self/mountinfo").ok()?, DEVICE_FIELD, &format!("{major}:{minor}"))
}

/// The mount right on a directory.
pub(crate) fn mounted_on(directory: &Path) -> Option<Mounted> {
    mounted_in(&text_of("/proc/self/mountinfo").ok()?, MOUNT_POINT_FIELD, directory.to_str()?)
}

/// The last mount with this text in a field (proc_pid_mountinfo(5)). Type, source and the file system's own options follow
/// the separator.
fn mounted_in(mountinfo: &str, field: usize, text: &str) -> Option<Mounted> {
    let line = mountinfo.lines().rev().find(|line| line.split(' ').nth(field) == Some(text))?;
    let mut fields = line.split_once(" - ")?.1.split(' ');
    let (kind, source, options) = (fields.next()?, fields.next()?, fields.next()?);
    let huge = options.split(',').find_map(|option| option.strip_prefix("huge=")).map(str::to_owned);
    Some(Mounted { kind: kind.to_owned(), source: source.to_owned(), huge })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
21 1 0:20 / /proc rw,nosuid shared:5 - proc proc rw
43 27 0:40 / /run/pagelift/images rw,nosuid,nodev,relatime shared:9 - tmpfs pagelift rw,size=65536k,huge=always
44 27 0:41 / /tmp/huge=always rw - tmpfs none rw,size=65536k
";

    #[test]
    fn the_mode_stands_in_the_options_of_the_very_file_system() {
        let huge_mode = |device| mounted_in(MOUNTS, DEVICE_FIELD, device).and_then(|mounted| mounted.huge);
        assert_eq!(huge_mode("0:40").as_deref(), Some("always"));
        assert_eq!(huge_mode("0:41"), None);
        assert_eq!(huge_mode("0:4"), None);
        assert_eq!(mounted_in("x\n\n- -\n", DEVICE_FIELD, "0:40"), None);
    }

    #[test]
    fn only_a_store_has_the_source_of_a_store() {
        let checked = |place| check_source(mounted_in(MOUNTS, MOUNT_POINT_FIELD, place).as_ref(), "tmpfs");
        assert_eq!(checked("/run/pagelift/images"), Ok(()));
        assert_eq!(checked("/tmp/huge=always"), Err("a tmpfs of the source `none`".to_owned()));
        assert_eq!(checked("/run"), Err("a tmpfs of the source `unknown`".to_owned()));
    }
}
