//! Files on hugetlbfs that hold pages of the pools, in all mount namespaces that this process can look into.

use address_space::{FileNumbers, PageSize};
use linux::device_numbers;
use machine_facts::{Files, System};
use nix::sys::stat::{major, minor};
use process_view::{Unanswered, ask_one};
use serde::Serialize;
use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Maximum number of files and folders that are read on one hugetlbfs mount.
const MOST_FILES: usize = 10_000;
/// Maximum number of mount namespaces that are looked into.
const MOST_NAMESPACES: usize = 1_000;
/// Unit of `st_blocks` (stat(2)).
const BLOCK: u64 = 512;

/// A file on hugetlbfs that holds pages, whether somebody maps it or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HugetlbFile {
    /// Path, in the mount namespace of process `pid` if there is one.
    pub path: PathBuf,
    /// A process in whose mount namespace the file is; `None` for this process's.
    pub pid: Option<i32>,
    /// Page size of its file system.
    pub size: PageSize,
    /// Bytes of the pool that it holds.
    pub bytes: u64,
    /// The identity by which its mappings are found.
    #[serde(skip)]
    pub(crate) id: FileNumbers,
}

fn file_id(metadata: &fs::Metadata) -> FileNumbers {
    FileNumbers { device: device_numbers(metadata.dev()), inode: metadata.ino() }
}

/// A mount of hugetlbfs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// Number of its device, `0:40`.
    device: String,
    /// Its path, as process `pid` sees it.
    point: PathBuf,
    /// A process that sees it; `None` for this one.
    pid: Option<i32>,
    size: PageSize,
}

impl Mount {
    /// The path by which this process reaches a path of the mount's namespace (proc_pid_root(5)).
    fn reached(&self) -> PathBuf {
        let below = self.point.strip_prefix("/").unwrap_or(&self.point);
        self.pid.map_or_else(|| self.point.clone(), |pid| PathBuf::from(format!("/proc/{pid}/root")).join(below))
    }
}

/// The mounts in the namespaces of this process and of `pids`, each file system once. Adds processes that do not answer.
pub(crate) fn all_mounts(pids: &[i32], unanswered: &mut Vec<Unanswered>) -> Vec<Mount> {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    let mut seen: HashSet<PathBuf> = namespace("self").into_iter().collect();
    let mut all = mounts(&System.text("/proc/self/mountinfo").unwrap_or_default(), None);
    for &pid in pids {
        let is_new = namespace(&pid.to_string()).is_some_and(|namespace| seen.insert(namespace));
        if !is_new || seen.len() > MOST_NAMESPACES {
            continue;
        }
        let table = ask_one(pid, |process| process.text("mountinfo").unwrap_or_default());
        let table = table.map_err(|silent| unanswered.push(silent)).unwrap_or_default();
        for mount in mounts(&table, Some(pid)) {
            if all.iter().all(|other| other.device != mount.device) {
                all.push(mount);
            }
        }
    }
    all
}

/// The mounts in a table that process `pid` sees (proc_pid_mountinfo(5)), each file system once.
fn mounts(table: &str, pid: Option<i32>) -> Vec<Mount> {
    let mut mounts: Vec<Mount> = Vec::new();
    for line in table.lines() {
        let Some((left, right)) = line.split_once(" - hugetlbfs ") else { continue };
        let mut left = left.split(' ').skip(2);
        let (Some(device), Some(_), Some(point)) = (left.next(), left.next(), left.next()) else { continue };
        let size = right.split([' ', ',']).find_map(|option| option.strip_prefix("pagesize=")?.parse().ok());
        if let Some(size) = size.filter(|_| mounts.iter().all(|mount| mount.device != device)) {
            mounts.push(Mount { device: device.to_owned(), point: PathBuf::from(unescaped(point)), pid, size });
        }
    }
    mounts
}

/// mountinfo shows blanks and backslashes as octal numbers.
fn unescaped(path: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(path.to_owned(), |path, (octal, sign)| path.replace(octal, sign))
}

/// The files on these mounts that hold pages. A mount of another namespace is reached through a process, which may not answer.
pub(crate) fn files_on(mounts: &[Mount], unanswered: &mut Vec<Unanswered>) -> Vec<HugetlbFile> {
    let on = |mount: &Mount| match mount.pid {
        None => files_of(mount),
        Some(pid) => {
            let mount = mount.clone();
            ask_one(pid, move |_| files_of(&mount)).map_err(|silent| unanswered.push(silent)).unwrap_or_default()
        }
    };
    mounts.iter().flat_map(on).collect()
}

fn files_of(mount: &Mount) -> Vec<HugetlbFile> {
    let point = mount.reached();
    let device = fs::symlink_metadata(&point).map(|point| point.dev()).ok();
    // In another namespace a link on the path could lead outside the mount.
    if device.is_none_or(|device| format!("{}:{}", major(device), minor(device)) != mount.device) {
        return Vec::new();
    }
    let (mut found, mut folders, mut seen) = (Vec::new(), vec![point.clone()], 0);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            seen += 1;
            let Ok(metadata) = fs::symlink_metadata(entry.path()) else { continue };
            if seen > MOST_FILES || Some(metadata.dev()) != device {
                continue;
            }
            let bytes = metadata.blocks() * BLOCK;
            if metadata.is_dir() {
                folders.push(entry.path());
            } else if bytes > 0 {
                let path = entry.path();
                let path = path.strip_prefix(&point).map_or_else(|_| path.clone(), |below| mount.point.join(below));
                found.push(HugetlbFile { path, pid: mount.pid, size: mount.size, bytes, id: file_id(&metadata) });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_hugetlbfs_is_found_once_with_its_page_size() {
        let table = "\
30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw
31 20 0:40 / /dev/hugepages rw,relatime shared:5 - hugetlbfs hugetlbfs rw,pagesize=2M
32 20 0:40 /sub /mnt/again rw - hugetlbfs hugetlbfs rw,pagesize=2M
33 20 0:41 / /mnt/with\\040blank rw - hugetlbfs none rw,mode=1777,pagesize=1024M
";
        let found: Vec<_> = mounts(table, None).into_iter().map(|mount| (mount.point, mount.size.bytes())).collect();
        assert_eq!(found, [("/dev/hugepages".into(), 2 << 20), ("/mnt/with blank".into(), 1 << 30)]);
        let reached = |pid| mounts(table, pid)[1].reached();
        assert_eq!(reached(None), PathBuf::from("/mnt/with blank"));
        assert_eq!(reached(Some(7)), PathBuf::from("/proc/7/root/mnt/with blank"));
    }

    #[test]
    fn a_path_that_leads_to_another_file_system_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "not of a pool").unwrap();
        let dev = fs::metadata(folder.path()).unwrap().dev();
        let on = |device: String| {
            let size = PageSize::new(2 << 20).unwrap();
            files_on(&[Mount { device, point: folder.path().to_owned(), pid: None, size }], &mut Vec::new()).len()
        };
        assert_eq!(on(format!("{}:{}", major(dev), minor(dev))), 1);
        assert_eq!(on(format!("{}:{}", major(dev), minor(dev) + 1)), 0);
    }
}
