//! Who uses pages of the pools: mappings of processes, and files on hugetlbfs.

use address_space::{MappingName, MappingUsage, PageSize};
use machine_facts::{Files, System};
use process_view::{ProcessFiles, ProcessMemory, printable};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Maximum number of files and folders of all hugetlbfs mounts that are looked at.
const MOST_FILES: usize = 10_000;
/// Unit of `st_blocks` (stat(2)).
const BLOCK: u64 = 512;

/// What pool pages are to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum UserKind {
    /// Parts of an ELF object, which a lift has put there.
    Object,
    /// The brk area.
    Heap,
    /// Private anonymous memory, `mmap(MAP_HUGETLB)` for example.
    Anonymous,
    /// Anonymous memory that processes share.
    Shared,
    /// A System V segment.
    SystemV,
    /// A memfd.
    Memfd,
    /// A file on hugetlbfs.
    File,
}

/// Pages of one size that a process has mapped for one purpose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PoolUser {
    /// The process.
    pub pid: i32,
    /// Its name.
    pub program: String,
    /// What it is.
    pub kind: UserKind,
    /// The object and its parts, the file, or the segment.
    pub what: String,
    /// Page size.
    pub size: PageSize,
    /// Bytes of the pool that it has mapped now.
    pub bytes: u64,
}

/// A file on hugetlbfs that holds pages, whether somebody maps it or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HugetlbFile {
    /// Path.
    pub path: PathBuf,
    /// Page size of its file system.
    pub size: PageSize,
    /// Bytes of the pool that it holds.
    pub bytes: u64,
}

/// All users that this process can see.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Users {
    /// Of processes, most bytes first.
    pub processes: Vec<PoolUser>,
    /// Files, most bytes first.
    pub files: Vec<HugetlbFile>,
    /// Number of processes that this user cannot inspect.
    pub not_permitted: u64,
    /// Bytes by page size, each page that several processes share counted once.
    #[serde(skip)]
    explained: BTreeMap<PageSize, u64>,
}

impl Users {
    /// Looks at all processes and all hugetlbfs mounts. A process that ends while it is read is skipped.
    pub fn read() -> Self {
        let mut users = Self { files: files_on(&mounts(&System)), ..Self::default() };
        let mut shared: HashMap<(PageSize, u64), u64> = HashMap::new();
        for pid in System.names_in("/proc").iter().filter_map(|name| name.parse::<i32>().ok()) {
            match pool_bytes(pid) {
                Some(0) => continue,
                Some(_) => {}
                None => {
                    users.not_permitted += u64::from(Path::new(&format!("/proc/{pid}")).exists());
                    continue;
                }
            }
            match ProcessMemory::read(pid) {
                Ok(memory) => users.take(&memory, &mut shared),
                Err(process_view::ObservationError::NotPermitted { .. }) => users.not_permitted += 1,
                Err(_) => {}
            }
        }
        for ((size, _), bytes) in shared {
            *users.explained.entry(size).or_default() += bytes;
        }
        for file in &users.files {
            *users.explained.entry(file.size).or_default() += file.bytes;
        }
        users.processes.sort_by_key(|user| (std::cmp::Reverse(user.bytes), user.pid));
        users.files.sort_by_key(|file| std::cmp::Reverse(file.bytes));
        users
    }

    /// Pages of a pool with so many used ones that belong to nobody seen.
    pub fn unexplained(&self, size: PageSize, used: u64) -> u64 {
        used.saturating_sub(size.pages_for(self.explained.get(&size).copied().unwrap_or(0)))
    }

    fn take(&mut self, memory: &ProcessMemory, shared: &mut HashMap<(PageSize, u64), u64>) {
        let coverage = memory.coverage();
        let part_of = |usage: &MappingUsage| {
            coverage.objects.iter().find_map(|object| {
                let shown = object.parts.iter().find(|part| part.ranges.covers(usage.mapping.range))?;
                Some((object.name(), shown.parts.iter().map(ToString::to_string).collect::<Vec<_>>().join("+")))
            })
        };
        let mut sums: BTreeMap<(UserKind, String, PageSize), u64> = BTreeMap::new();
        for usage in memory.usages.iter().filter(|usage| usage.hugetlb > 0) {
            let Some(size) = usage.kernel_page_size else { continue };
            let (kind, what) = match part_of(usage) {
                Some((object, parts)) => (UserKind::Object, format!("{object} {parts}")),
                None => described(&usage.mapping.name, usage.mapping.shared),
            };
            // The bytes of a file on a mount are its own, whoever maps them.
            match (kind, usage.mapping.shared) {
                (UserKind::File, true) => {}
                (_, true) => {
                    let most = shared.entry((size, usage.mapping.inode)).or_default();
                    *most = usage.hugetlb.max(*most);
                }
                _ => *self.explained.entry(size).or_default() += usage.hugetlb,
            }
            *sums.entry((kind, printable(&what), size)).or_default() += usage.hugetlb;
        }
        let (pid, program) = (memory.pid, printable(&memory.name));
        let users = sums.into_iter().map(|((kind, what, size), bytes)| {
            let program = program.clone();
            PoolUser { pid, program, kind, what, size, bytes }
        });
        self.processes.extend(users);
    }
}

/// What a mapping of pool pages is that belongs to no object. The names are the kernel's (mm/hugetlb.c, ipc/shm.c).
fn described(name: &MappingName, shared: bool) -> (UserKind, String) {
    match name {
        MappingName::Heap => (UserKind::Heap, "[heap]".to_owned()),
        MappingName::File { path, deleted } => match path.as_str() {
            "/anon_hugepage" if shared => (UserKind::Shared, "shared anonymous memory".to_owned()),
            "/anon_hugepage" => (UserKind::Anonymous, "anonymous memory".to_owned()),
            path if path.starts_with("/SYSV") => (UserKind::SystemV, format!("System V segment, key 0x{}", &path[5..])),
            path if path.starts_with("/memfd:") => (UserKind::Memfd, path[1..].to_owned()),
            path if *deleted => (UserKind::File, format!("{path} (deleted)")),
            path => (UserKind::File, path.to_owned()),
        },
        _ if shared => (UserKind::Shared, "shared anonymous memory".to_owned()),
        _ => (UserKind::Anonymous, "anonymous memory".to_owned()),
    }
}

/// Bytes of the pool that a process has mapped (`HugetlbPages` in its status, Linux 4.4); `None` where the status cannot be
/// read. A kernel thread has none.
fn pool_bytes(pid: i32) -> Option<u64> {
    let status = ProcessFiles::of(pid).text("status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("HugetlbPages:"));
    Some(line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0))
}

/// Mount points of hugetlbfs and their page sizes, each file system once.
fn mounts(files: &impl Files) -> Vec<(PathBuf, PageSize)> {
    let text = files.text("/proc/self/mountinfo").unwrap_or_default();
    let mut seen = Vec::new();
    let mut mounts = Vec::new();
    for line in text.lines() {
        let Some((left, right)) = line.split_once(" - hugetlbfs ") else { continue };
        let mut left = left.split(' ').skip(2);
        let (Some(device), Some(_), Some(point)) = (left.next(), left.next(), left.next()) else { continue };
        let size = right.split([' ', ',']).find_map(|option| option.strip_prefix("pagesize=")?.parse().ok());
        if let Some(size) = size.filter(|_| !seen.contains(&device)) {
            seen.push(device);
            mounts.push((PathBuf::from(unescaped(point)), size));
        }
    }
    mounts
}

/// Blanks and backslashes stand as octal numbers in mountinfo (proc_pid_mountinfo(5)).
fn unescaped(path: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(path.to_owned(), |path, (octal, sign)| path.replace(octal, sign))
}

/// The files on these mounts that hold pages.
fn files_on(mounts: &[(PathBuf, PageSize)]) -> Vec<HugetlbFile> {
    let mut found = Vec::new();
    for (point, size) in mounts {
        let mut folders = vec![point.clone()];
        let (mut seen, device) = (0, fs::symlink_metadata(point).map(|point| point.dev()).ok());
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
                    found.push(HugetlbFile { path: entry.path(), size: *size, bytes });
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    struct MountTable(&'static str);

    impl Files for MountTable {
        fn text(&self, _: &str) -> Option<String> {
            Some(self.0.to_owned())
        }

        fn names_in(&self, _: &str) -> Vec<String> {
            Vec::new()
        }
    }

    #[test]
    fn each_hugetlbfs_is_found_once_with_its_page_size() {
        let table = "\
30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw
31 20 0:40 / /dev/hugepages rw,relatime shared:5 - hugetlbfs hugetlbfs rw,pagesize=2M
32 20 0:40 /sub /mnt/again rw - hugetlbfs hugetlbfs rw,pagesize=2M
33 20 0:41 / /mnt/with\\040blank rw - hugetlbfs none rw,mode=1777,pagesize=1024M
";
        let found: Vec<_> = mounts(&MountTable(table)).into_iter().map(|(path, size)| (path, size.bytes())).collect();
        assert_eq!(found, [("/dev/hugepages".into(), 2 << 20), ("/mnt/with blank".into(), 1 << 30)]);
    }

    #[test]
    fn the_kernels_names_are_told_apart() {
        let of = |path: &str, deleted, shared| described(&MappingName::File { path: path.to_owned(), deleted }, shared);
        assert_eq!(of("/anon_hugepage", true, false).0, UserKind::Anonymous);
        assert_eq!(of("/anon_hugepage", true, true).0, UserKind::Shared);
        assert_eq!(of("/SYSV0000002a", true, true), (UserKind::SystemV, "System V segment, key 0x0000002a".to_owned()));
        assert_eq!(of("/memfd:buffers", true, true), (UserKind::Memfd, "memfd:buffers".to_owned()));
        assert_eq!(of("/dev/hugepages/a", false, true).0, UserKind::File);
        assert_eq!(of("/dev/hugepages/a", true, true).1, "/dev/hugepages/a (deleted)");
    }

    #[test]
    fn what_nobody_is_seen_to_use_is_counted() {
        let size = PageSize::new(2 << 20).unwrap();
        let users = Users { explained: BTreeMap::from([(size, 6 << 20)]), ..Users::default() };
        assert_eq!([users.unexplained(size, 5), users.unexplained(size, 2)], [2, 0]);
    }
}
