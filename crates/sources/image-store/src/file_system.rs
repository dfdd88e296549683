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

/// Which checks are made before a store is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// Everything.
    Whole,
    /// Everything except checks that matter only for making an image: whether the kernel gives huge pages to a tmpfs
    /// file that is being written. After mapping an image the lift reads back the size of its pages.
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
            if is_shared_memory_denied() {
                let fix = format!("echo never > {THP}/shmem_enabled");
                return Err(unfit("`deny` in shmem_enabled".to_owned(), "any other word there", fix));
            }
            let mode = huge_mode(device).unwrap_or_else(|| "never".to_owned());
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
    Ok(Space { size: bounded(stat.blocks()), free: bounded(stat.blocks_available()) })
}

/// True if the machine's setting forbids huge pages of shared memory to all mounts.
fn is_shared_memory_denied() -> bool {
    fs::read_to_string(format!("{THP}/shmem_enabled")).is_ok_and(|text| chosen_word(&text) == Some("deny"))
}

/// The `huge=` of the mount with this device number; `None` if it has none.
fn huge_mode(device: u64) -> Option<String> {
    let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
    huge_mode_in(&text_of("/proc/self/mountinfo").ok()?, &format!("{major}:{minor}"))
}

/// Fields as in proc_pid_mountinfo(5): the device is the third, the file system's own options are the last.
fn huge_mode_in(mountinfo: &str, device: &str) -> Option<String> {
    let line = mountinfo.lines().rev().find(|line| line.split(' ').nth(2) == Some(device))?;
    let options = line.split_once(" - ")?.1.split(' ').nth(2)?;
    options.split(',').find_map(|option| option.strip_prefix("huge=")).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::huge_mode_in;

    const MOUNTS: &str = "\
21 1 0:20 / /proc rw,nosuid shared:5 - proc proc rw
43 27 0:40 / /run/pagelift/images rw,nosuid,nodev,relatime shared:9 - tmpfs pagelift rw,size=65536k,huge=always
44 27 0:41 / /tmp/huge=always rw - tmpfs none rw,size=65536k
";

    #[test]
    fn the_mode_stands_in_the_options_of_the_very_file_system() {
        assert_eq!(huge_mode_in(MOUNTS, "0:40").as_deref(), Some("always"));
        assert_eq!(huge_mode_in(MOUNTS, "0:41"), None);
        assert_eq!(huge_mode_in(MOUNTS, "0:4"), None);
        assert_eq!(huge_mode_in("x\n\n- -\n", "0:40"), None);
    }
}
