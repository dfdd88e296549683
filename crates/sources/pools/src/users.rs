//! The users of pages of the pools: mappings of processes, and files on hugetlbfs.

use crate::hugetlbfs::{HugetlbFile, all_mounts, files_on};
use crate::system_v::{SEGMENTS, Unattached, unattached};
use address_space::{AddressRange, AddressSpace, FileNumbers, MappingName, MappingUsage, PageSize};
use linux::pages::base_page;
use machine_facts::{Files, System};
use process_view::{ObservationError, ProcessFiles, ProcessMemory, Unanswered, each_of, printable};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};

/// The use of pool pages in a process.
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
    /// The kind.
    pub kind: UserKind,
    /// The object and its parts, the file, or the segment.
    pub what: String,
    /// Page size.
    pub size: PageSize,
    /// Bytes of the pool that it has mapped now.
    pub bytes: u64,
}

/// All users that this process can see.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Users {
    /// Processes, most bytes first.
    pub processes: Vec<PoolUser>,
    /// Files, most bytes first.
    pub files: Vec<HugetlbFile>,
    /// System V segments that no process has attached.
    pub unattached: Vec<Unattached>,
    /// Number of processes that this user cannot inspect.
    pub not_permitted: u64,
    /// Processes that are left out because they do not answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unanswered: Vec<Unanswered>,
    /// Bytes by page size, each page that several processes share counted once.
    #[serde(skip)]
    explained: BTreeMap<PageSize, u64>,
}

impl Users {
    /// Looks at all processes and all hugetlbfs mounts. A process that ends while it is read is skipped.
    pub fn read() -> Self {
        let pids: Vec<i32> = System.names_in("/proc").iter().filter_map(|name| name.parse().ok()).collect();
        let unattached = unattached(&System.text(SEGMENTS).unwrap_or_default());
        let mut unanswered = Vec::new();
        let mounts = all_mounts(&pids, &mut unanswered);
        let files = files_on(&mounts, &mut unanswered);
        let mut users = Self { files, unattached, unanswered, ..Self::default() };
        let mut shared = SharedMemory::beside(&users.files);
        each_of(pids, pool_memory, |_, looked| match looked {
            Ok(Ok(Some(memory))) => users.take(&memory, &mut shared),
            Ok(Err(ObservationError::NotPermitted { .. })) => users.not_permitted += 1,
            Ok(_) => {}
            Err(unanswered) => users.unanswered.push(unanswered),
        });
        users.unanswered.sort_by_key(|silent| silent.pid);
        users.unanswered.dedup_by_key(|silent| silent.pid);
        for ((size, _), bytes) in shared.most {
            *users.explained.entry(size).or_default() += bytes;
        }
        for file in &users.files {
            *users.explained.entry(file.size).or_default() += file.bytes;
        }
        users.processes.sort_by_key(|user| (std::cmp::Reverse(user.bytes), user.pid));
        users.files.sort_by_key(|file| std::cmp::Reverse(file.bytes));
        users
    }

    /// Pages of a pool that belong to no visible user, of `used` used ones.
    pub fn unexplained(&self, size: PageSize, used: u64) -> u64 {
        used.saturating_sub(size.pages_for(self.explained.get(&size).copied().unwrap_or(0)))
    }

    fn take(&mut self, memory: &ProcessMemory, shared: &mut SharedMemory) {
        let coverage = memory.coverage();
        let part_of = |usage: &MappingUsage| {
            coverage.objects.iter().find_map(|object| {
                let shown = object.parts.iter().find(|part| part.ranges.covers(usage.mapping.range))?;
                Some((object.name.as_str(), shown.parts.iter().map(ToString::to_string).collect::<Vec<_>>().join("+")))
            })
        };
        let mut sums: BTreeMap<(UserKind, String, PageSize), u64> = BTreeMap::new();
        for usage in memory.usages.iter().filter(|usage| usage.hugetlb > 0) {
            let Some(size) = usage.kernel_page_size else { continue };
            let (kind, what) = match part_of(usage) {
                Some((object, parts)) => (UserKind::Object, format!("{object} {parts}")),
                None => described(&usage.mapping.name, usage.mapping.shared),
            };
            *self.explained.entry(size).or_default() += shared.bytes_of_one(usage);
            *sums.entry((kind, printable(&what), size)).or_default() += usage.hugetlb;
        }
        shared.take(&memory.usages);
        let (pid, program) = (memory.pid, printable(&memory.name));
        let users = sums.into_iter().map(|((kind, what, size), bytes)| {
            let program = program.clone();
            PoolUser { pid, program, kind, what, size, bytes }
        });
        self.processes.extend(users);
    }
}

/// Memory on pool pages that processes share and that no file on a mount shows: anonymous memory, memfds, System V segments,
/// files that were deleted, and private memory after a fork, whose copies have the file numbers of one mmap(2).
struct SharedMemory {
    /// The files on mounts. The bytes of such a file are its own, even if processes map it.
    files: HashSet<FileNumbers>,
    /// The most bytes that a process has mapped of each.
    most: HashMap<(PageSize, FileNumbers), u64>,
}

impl SharedMemory {
    fn beside(files: &[HugetlbFile]) -> Self {
        Self { files: files.iter().map(|file| file.id).collect(), most: HashMap::new() }
    }

    /// Bytes of a mapping that no other process and no file on a mount shows. Only a mapping that can be written has pages
    /// which are not its file's (copy on write).
    fn bytes_of_one(&self, usage: &MappingUsage) -> u64 {
        let mapping = &usage.mapping;
        let is_of_file = !mapping.protection.write && self.files.contains(&mapping.file_numbers());
        if mapping.shared || is_of_file { 0 } else { usage.hugetlb.saturating_sub(usage.shared_hugetlb) }
    }

    /// Counts the pages that one process has mapped.
    fn take(&mut self, usages: &[MappingUsage]) {
        // Bytes, and the part of the file from the lowest to the highest offset.
        let mut own: HashMap<(PageSize, FileNumbers), (u64, u64, u64)> = HashMap::new();
        for (usage, in_common) in usages.iter().map(|usage| (usage, in_common(usage))).filter(|(_, bytes)| *bytes > 0) {
            let mapping = &usage.mapping;
            let id = mapping.file_numbers();
            let Some(size) = usage.kernel_page_size.filter(|_| !self.files.contains(&id)) else { continue };
            let (bytes, start, end) = own.entry((size, id)).or_insert((0, u64::MAX, 0));
            *bytes += in_common;
            *start = mapping.offset.min(*start);
            *end = mapping.offset.saturating_add(mapping.range.len()).max(*end);
        }
        for (key, (bytes, start, end)) in own {
            let most = self.most.entry(key).or_default();
            // It may have mapped the same pages twice.
            *most = bytes.min(end - start).max(*most);
        }
    }
}

/// Bytes of a mapping that other processes may have mapped.
fn in_common(usage: &MappingUsage) -> u64 {
    if usage.mapping.shared { usage.hugetlb } else { usage.shared_hugetlb }
}

/// The meaning of a mapping of pool pages that belongs to no object. The names are the kernel's (mm/hugetlb.c,
/// ipc/shm.c).
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

/// The memory of a process that has mapped pages of a pool; `None` of others.
fn pool_memory(process: &ProcessFiles) -> Result<Option<ProcessMemory>, ObservationError> {
    let counts_some = pool_bytes(&process.text("status")?) > 0;
    // The status is open to everybody, and the mappings are not: a process of which nobody knows has none.
    if !counts_some && !process.maps().is_ok_and(|space| may_share_tables(&space, base_page())) {
        return Ok(None);
    }
    ProcessMemory::read(process.pid()).map(Some)
}

/// True if pool pages of a process may be missing in its `HugetlbPages`. Processes share the page tables of shared memory that
/// covers a whole table of huge pages (1 GiB on x86-64), and the kernel counts the pages of such a table for the process that
/// touched them first, not for the others (`huge_pmd_share` in mm/hugetlb.c; seen with Linux 6.18).
fn may_share_tables(space: &AddressSpace, base_page: PageSize) -> bool {
    const ENTRY: u64 = 8;
    let entries = base_page.bytes() / ENTRY;
    let of_table = base_page.bytes().saturating_mul(entries).saturating_mul(entries);
    let covers_one = |range: AddressRange| {
        let first = range.start().0.checked_next_multiple_of(of_table);
        first.is_some_and(|first| first.saturating_add(of_table) <= range.end().0)
    };
    space.mappings().iter().any(|mapping| mapping.shared && covers_one(mapping.range))
}

/// Bytes of the pool that a process has mapped (`HugetlbPages` in its status, Linux 4.4). A kernel thread has none.
fn pool_bytes(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("HugetlbPages:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn only_shared_memory_that_covers_a_table_may_have_pages_that_no_status_counts() {
        let may = |line: &str| {
            may_share_tables(&AddressSpace::parse(&format!("{line}\n")).unwrap(), PageSize::new(4096).unwrap())
        };
        assert!(may("7f0040000000-7f0080000000 rw-s 00000000 00:0f 77 /anon_hugepage (deleted)"));
        assert!(may("7f003fe00000-7f0080000000 rw-s 00000000 00:01 5 /SYSV00000000 (deleted)"));
        for not in [
            "7f0040000000-7f0080000000 rw-p 00000000 00:0f 77 /anon_hugepage (deleted)",
            "7f0040200000-7f00bfe00000 rw-s 00000000 00:0f 77 /anon_hugepage (deleted)",
        ] {
            assert!(!may(not), "{not}");
        }
    }

    /// smaps of mappings of files on device 00:2a, from these offsets on and as long as they are filled, in pages of 2 MiB.
    fn smaps(mappings: &[(u64, u64, u64)]) -> Vec<MappingUsage> {
        let entry = |(place, (inode, offset, pages)): (u64, &(u64, u64, u64))| {
            let (start, length) = (0x4000_0000 + (place << 30), pages << 21);
            format!(
                "{start:x}-{:x} rw-s {:08x} 00:2a {inode} /mnt/a (deleted)\nKernelPageSize: 2048 kB\nShared_Hugetlb: {} kB\n",
                start + length,
                offset << 21,
                length >> 10
            )
        };
        let text: String = (0..).zip(mappings).map(entry).collect();
        address_space::parse_smaps(&text).unwrap()
    }

    #[test]
    fn shared_memory_counts_once_unless_a_file_shows_it() {
        let size = PageSize::new(2 << 20).unwrap();
        let id = |inode| FileNumbers { device: (0, 0x2a), inode };
        let file = HugetlbFile { path: "/mnt/b".into(), pid: None, size, bytes: 2 << 20, id: id(9) };
        let mut shared = SharedMemory::beside(&[file]);
        shared.take(&smaps(&[(7, 0, 3), (9, 0, 1)]));
        // Another process has mapped it in two parts, and one part twice.
        shared.take(&smaps(&[(7, 0, 2), (7, 2, 2), (7, 0, 2), (8, 5, 1)]));
        assert_eq!(shared.most, HashMap::from([((size, id(7)), 4 << 21), ((size, id(8)), 1 << 21)]));
    }

    #[test]
    fn private_pages_that_forks_share_count_once() {
        let size = PageSize::new(2 << 20).unwrap();
        let id = |inode| FileNumbers { device: (0, 0x2a), inode };
        let file = HugetlbFile { path: "/mnt/image".into(), pid: None, size, bytes: 4 << 20, id: id(9) };
        let mut shared = SharedMemory::beside(&[file]);
        let entry = |start: u64, rights: &str, inode: u64, private: u64, shared: u64| {
            let end = (start << 30) + (8 << 21);
            format!(
                "{:x}-{end:x} {rights} 00000000 00:2a {inode} /anon_hugepage (deleted)\nKernelPageSize: 2048 kB\n\
                 Private_Hugetlb: {} kB\nShared_Hugetlb: {} kB\n",
                start << 30,
                private << 11,
                shared << 11
            )
        };
        // A process and its fork share 5 pages, and each has copied 1 or 2. Both map an image, of which one also has a copied page.
        let one = entry(1, "rw-p", 7, 1, 5) + &entry(2, "r-xp", 9, 0, 2) + &entry(3, "rw-p", 9, 1, 1);
        let other = entry(1, "rw-p", 7, 2, 5) + &entry(2, "r-xp", 9, 1, 1);
        let mut alone = 0;
        for text in [one, other] {
            let usages = address_space::parse_smaps(&text).unwrap();
            alone += usages.iter().map(|usage| shared.bytes_of_one(usage)).sum::<u64>();
            shared.take(&usages);
        }
        assert_eq!(alone, (1 + 1 + 2) << 21);
        assert_eq!(shared.most, HashMap::from([((size, id(7)), 5 << 21)]));
    }

    #[test]
    fn what_nobody_is_seen_to_use_is_counted() {
        let size = PageSize::new(2 << 20).unwrap();
        let users = Users { explained: BTreeMap::from([(size, 6 << 20)]), ..Users::default() };
        assert_eq!([users.unexplained(size, 5), users.unexplained(size, 2)], [2, 0]);
    }
}
