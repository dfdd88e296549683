//! The facts for the checks. A fact that could not be read is `None`, never a guess.

use crate::own_pages::OwnPages;
use crate::standing::Standing;
use address_space::PageSize;
use heap_choice::Family;
use lift_plan::{CacheShortfall, Pages, Source};
pub use machine_facts::{HugetlbCgroup, NodePool};
use session::shared::InPlaceAmounts;
use session::{FarPages, Postponed};
use translation::working_set::PartVerdict;

/// A feature of the kernel that was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// `PAGEMAP_SCAN`.
    PagemapScan,
    /// `MADV_COLLAPSE` in this process.
    Collapse,
    /// `process_madvise(MADV_COLLAPSE)` in another process.
    CollapseOther,
    /// `MADV_POPULATE_WRITE`.
    Populate,
    /// `mremap` of pool pages.
    MovePool,
    /// `memfd_create` with pool pages.
    PoolFile,
    /// userfaultfd(2) for faults of system calls.
    Userfaultfd,
    /// ptrace(2) of a child.
    Trace,
    /// Memory that is written, then executable.
    ExecutableCopy,
    /// `PR_SET_MM_MAP`.
    AuxiliaryVector,
    /// perf_event_open(2) of this process's own time.
    Events,
    /// perf_event_open(2) of the CPU's own counters.
    CpuCounters,
}

/// The result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// It worked.
    Works,
    /// The kernel refused.
    Refused {
        /// With this error (errno(3)).
        errno: i32,
        /// The error in words.
        words: &'static str,
    },
    /// It was not made, for this reason.
    NotMade(&'static str),
}

/// The state of transparent huge pages.
#[derive(Clone, Debug, Default)]
pub struct ThpFacts {
    /// Size; `None` on a kernel without them.
    pub size: Option<PageSize>,
    /// The chosen word of `enabled`.
    pub general: Option<String>,
    /// The chosen word of each size's own `enabled` (Linux 6.8), smallest size first.
    pub sizes: Vec<(PageSize, String)>,
    /// The chosen word of `defrag`.
    pub defrag: Option<String>,
    /// `khugepaged/max_ptes_none`.
    pub max_ptes_none: Option<u64>,
    /// The other settings of khugepaged.
    pub khugepaged: Option<Khugepaged>,
    /// The chosen word of `shmem_enabled`.
    pub shared: Option<String>,
    /// The chosen word of the usual size's own `shmem_enabled` (Linux 6.11).
    pub shared_of_size: Option<String>,
    /// The process's own setting.
    pub switched_off: Option<SwitchedOff>,
}

/// Settings of khugepaged, which collapses memory that was touched before it was advised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Khugepaged {
    /// It may compact memory (`defrag`).
    pub compacts: bool,
    /// Base pages that it scans in one turn (`pages_to_scan`).
    pub pages: u64,
    /// Milliseconds between two turns (`scan_sleep_millisecs`).
    pub pause: u64,
}

/// A process that has disabled transparent huge pages for itself (`PR_SET_THP_DISABLE`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchedOff {
    /// Except for advised memory (Linux 6.18).
    pub except_advised: bool,
    /// The oldest ancestor that has the setting too, by number and name; `None` if the process made it by itself.
    pub inherited_from: Option<(i32, String)>,
}

/// A pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolFacts {
    /// Page size.
    pub size: PageSize,
    /// Pages in it.
    pub total: u64,
    /// Pages that a new mapping can have, overcommit included, cgroups not.
    pub available: u64,
    /// Pages that may be taken beyond it (`nr_overcommit_hugepages`).
    pub overcommit: u64,
    /// Its part on each node.
    pub nodes: Vec<NodePool>,
    /// Pages of reservations with a record, in use or not, by node; `None` for any node.
    pub recorded: Vec<(Option<u32>, u64)>,
}

impl PoolFacts {
    /// Free pages of a node beyond the recorded ones.
    pub fn unrecorded_on(&self, part: &NodePool) -> u64 {
        let is_there = |node: &Option<u32>| node.is_none_or(|node| node == part.node);
        let recorded = self.recorded.iter().filter(|(node, _)| is_there(node)).map(|(_, pages)| pages);
        part.free.saturating_sub(recorded.sum())
    }
}

/// Free memory of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeMemory {
    /// Number of the node.
    pub node: u32,
    /// Free bytes.
    pub free: u64,
    /// Free bytes in blocks of a huge page or larger.
    pub in_blocks: u64,
}

/// Free memory, and the kernel's own actions on memory.
#[derive(Clone, Debug, Default)]
pub struct MemoryFacts {
    /// Nodes with memory. Empty if blocks of the size of a huge page are not counted.
    pub nodes: Vec<FreeMemory>,
    /// Nodes that are online.
    pub online: Vec<u32>,
    /// Zones that hold memory (lines of `/proc/buddyinfo`).
    pub zones: u64,
    /// `vm.min_free_kbytes`.
    pub min_free_kib: Option<u64>,
    /// Bytes of memory.
    pub total: Option<u64>,
    /// `kernel.numa_balancing`.
    pub numa_balancing: Option<u64>,
    /// `/sys/kernel/mm/ksm/run`.
    pub ksm: Option<u64>,
    /// `vm.compaction_proactiveness` (Linux 5.9).
    pub proactiveness: Option<u64>,
    /// Schemes of DAMON that reclaim memory of the machine although some is free; `None` if only root may read them.
    pub damon: Option<Vec<DamonReclaim>>,
}

/// A scheme of DAMON that reclaims physical memory (`Documentation/admin-guide/mm/damon/usage.rst`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamonReclaim {
    /// Its directory or module.
    pub place: String,
    /// It spares pages that anybody maps.
    pub spares_mapped: bool,
}

/// The rights of the process and its user.
#[derive(Clone, Debug, Default)]
pub struct PermissionFacts {
    /// `kernel.yama.ptrace_scope`; `None` without Yama.
    pub ptrace_scope: Option<u64>,
    /// SELinux enforces its policy.
    pub selinux_enforces: Option<bool>,
    /// The process's mode of seccomp: 0, 1 (strict) or 2 (a filter).
    pub seccomp: Option<u64>,
    /// Nodes that the process may take memory from.
    pub allowed_nodes: Option<Vec<u32>>,
    /// Bytes that it may lock (`RLIMIT_MEMLOCK`); `None` without a limit or if it is unknown.
    pub lockable: Option<u64>,
    /// Bytes that it has locked.
    pub locked: u64,
    /// `vm.max_map_count`.
    pub most_mappings: u64,
    /// Mappings that it has.
    pub mappings: Option<u64>,
    /// systemd's unit that it belongs to.
    pub unit: Option<String>,
}

/// The facts about the machine below this kernel.
#[derive(Clone, Debug, Default)]
pub struct HostFacts {
    /// This is a virtual machine.
    pub virtual_machine: Option<bool>,
    /// KVM's parameter `nx_huge_pages`.
    pub nx_huge_pages: Option<String>,
    /// `/sys/devices/system/cpu/vulnerabilities/itlb_multihit`.
    pub itlb_multihit: Option<String>,
    /// The probe's result; `None` if no probe was requested.
    pub measured: Option<Measured>,
    /// Entries for base pages in the last level of the TLB, for code and for data, from CPUID.
    pub entries: Option<(u64, u64)>,
}

/// The probe's result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// The host backs huge pages by smaller ones; `None` if huge pages could not be measured, or if even base pages
    /// caused no walks.
    pub splintered: Option<bool>,
    /// If even base pages caused no walks, the footprint in bytes at which walks are likely.
    pub needed: Option<u64>,
    /// Bytes of data that the TLB reaches with base pages: the least and the most of several passes.
    pub reach: Option<(u64, u64)>,
    /// Bytes of code that it reaches with base pages.
    pub code_reach: Option<(u64, u64)>,
    /// CPUs that other programs used during the measurement.
    pub others: Option<f64>,
}

/// The requirements of measuring.
#[derive(Clone, Debug, Default)]
pub struct MeasuringFacts {
    /// `kernel.perf_event_paranoid`.
    pub paranoid: Option<i64>,
    /// Tracepoints can be read.
    pub tracepoints: bool,
}

/// Programs whose own settings of huge pages are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// PostgreSQL.
    Postgres,
    /// MariaDB or MySQL.
    Mysql,
    /// Redis or Valkey.
    Redis,
    /// node.
    Node,
    /// A Java virtual machine.
    Java,
    /// Another program.
    Other,
}

/// The program that is asked about.
#[derive(Clone, Debug)]
pub struct ProgramFacts {
    /// Its name.
    pub name: String,
    /// Path of its file.
    pub path: String,
    /// The words that start it.
    pub command: Vec<String>,
    /// The program that runs it, if it is a script.
    pub interpreter: Option<String>,
    /// The program that does its work, if it is a known driver.
    pub worker: Option<String>,
    /// The known settings.
    pub known: Known,
    /// No dynamic linker loads it; `None` if its file could not be read.
    pub is_static: Option<bool>,
    /// Its base is fixed by the linker.
    pub fixed_base: bool,
    /// The allocator and how that was found out.
    pub allocator: Option<(Family, String)>,
    /// Its allocator and the action of `run --heap=auto` on it, as one line.
    pub heap_choice: Option<String>,
    /// `run --heap=auto` serves its heap.
    pub serves_heap: bool,
    /// Code in its objects of at least a huge page, in bytes, and in how many objects.
    pub code: (u64, usize),
    /// Bytes of read-only memory that a lift would put on huge pages, by source.
    pub lifts: Vec<(Source, u64)>,
    /// The value of `--pages` by which a lift leaves the pool to the program, if the usual lift would take pages of the pool.
    pub pages: Option<Pages>,
    /// Pool pages that all of its read-only memory would need.
    pub pool_pages: u64,
    /// Files that are not in huge folios, each with the reason.
    pub small_folios: Vec<(String, CacheShortfall)>,
    /// The reason why most of the unchanged memory is not lifted.
    pub refused: Option<(u64, String, Option<String>)>,
    /// The facts that exist because it runs.
    pub running: Option<RunningFacts>,
    /// Its environment sets huge pages for Java, or glibc's `elf.thp`.
    pub environment: Vec<String>,
    /// Pool pages that it requests, or can request, by its own settings; `None` for programs whose settings are not known.
    pub own_pages: Option<OwnPages>,
    /// Bytes that `inspect` plans to lift and that are not on huge pages yet, written memory included.
    pub planned: u64,
    /// Memory that a start lifts later.
    pub postponed: Option<Postponed>,
    /// Bytes of its file that a start brings into huge folios first.
    pub to_prepare: u64,
}

impl ProgramFacts {
    /// Returns the bytes of the process on huge pages; `None` for a program that is not running or may not be read.
    pub fn standing(&self) -> Option<Standing> {
        let running = self.running.as_ref()?;
        let (resident, huge) = running.all;
        Some(Standing { huge, resident, more: Some(self.planned), in_place: running.in_place })
    }

    /// Returns the words that start the program, quoted for a shell. A process can choose the words that `/proc` shows, so
    /// the words of a running process are never part of a printed command.
    pub fn typed(&self) -> String {
        match self.running {
            Some(_) => "CMD".to_owned(),
            None => foreign_text::words(&self.command),
        }
    }
}

/// A program that runs. Bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunningFacts {
    /// The process.
    pub pid: i32,
    /// Another user's, so that only root may change it.
    pub foreign: bool,
    /// It accepts connections: a server, which does not end by itself.
    pub is_server: bool,
    /// Resident code, and its bytes on huge pages.
    pub code: (u64, u64),
    /// Resident private anonymous memory, and its bytes on huge pages.
    pub anonymous: (u64, u64),
    /// Resident shared memory, and its bytes on huge pages.
    pub shared: (u64, u64),
    /// Mapped data files.
    pub data_files: DataFileFacts,
    /// Memory that lifts in place can add.
    pub in_place: InPlaceAmounts,
    /// Resident bytes, and resident bytes on huge pages: the numbers of `status`.
    pub all: (u64, u64),
    /// Lengths of its mappings of anonymous and shared memory on the pool.
    pub pool_mappings: Vec<u64>,
    /// Swapped out.
    pub swapped: u64,
    /// Merged by KSM.
    pub merged: u64,
    /// Files and images that it maps by huge pages from other NUMA nodes than its own.
    pub far_pages: Vec<FarPages>,
    /// The parts of its memory that are in use, by the accessed marks of its page tables; empty if that was not
    /// measured.
    pub used: Vec<PartVerdict>,
}

impl RunningFacts {
    /// Bytes that its anonymous and shared memory has of the pool.
    pub fn on_pool(&self) -> u64 {
        self.pool_mappings.iter().fold(0, |sum, length| sum.saturating_add(*length))
    }

    /// True if shared memory is the largest part on base pages, and can mostly be lifted in place.
    pub fn shared_is_worth_a_lift(&self) -> bool {
        let on_base_pages = |(resident, huge): (u64, u64)| resident.saturating_sub(huge);
        let shared = on_base_pages(self.shared);
        shared > on_base_pages(self.anonymous).max(on_base_pages(self.code)) && self.in_place.shared > shared / 2
    }

    /// True if mapped data files are the largest part on base pages, and can mostly be lifted.
    pub fn data_files_are_worth_a_lift(&self) -> bool {
        let on_base_pages = |(resident, huge): (u64, u64)| resident.saturating_sub(huge);
        let others = [self.anonymous, self.code, self.shared].map(on_base_pages);
        let files = on_base_pages((self.data_files.resident, self.data_files.huge));
        others.iter().all(|other| files > *other) && self.data_files.liftable > files / 2
    }
}

/// Mapped data files of a process, of at least a huge page. Bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataFileFacts {
    /// Resident.
    pub resident: u64,
    /// On huge pages.
    pub huge: u64,
    /// A lift would map them by huge pages now.
    pub liftable: u64,
    /// They lack only huge folios of the page cache.
    pub in_small_folios: u64,
    /// Path of the file with the most bytes outside of huge folios.
    pub largest: String,
}

/// The place where commands are typed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// `/sys` and `/proc/sys` are read-only, as in most containers: settings are changed on the host.
    pub is_read_only: bool,
    /// There is no sudo(8).
    pub lacks_sudo: bool,
}

/// All facts.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The place where commands are typed.
    pub place: Place,
    /// The user is root.
    pub is_root: bool,
    /// Release of the kernel.
    pub release: (u32, u32),
    /// Base page.
    pub base_page: PageSize,
    /// Default size of huge pages.
    pub huge_page: Option<PageSize>,
    /// The attempts.
    pub attempts: Vec<(Feature, Attempt)>,
    /// Transparent huge pages.
    pub thp: ThpFacts,
    /// The pools, smallest page size first.
    pub pools: Vec<PoolFacts>,
    /// The cgroups' limits of pool pages.
    pub cgroups: Vec<HugetlbCgroup>,
    /// Memory.
    pub memory: MemoryFacts,
    /// Permissions.
    pub permission: PermissionFacts,
    /// The host.
    pub host: HostFacts,
    /// The requirements of measuring.
    pub measuring: MeasuringFacts,
    /// The program; `None` if only the machine is checked.
    pub program: Option<ProgramFacts>,
}

impl Facts {
    /// The result of the attempt.
    pub fn attempt(&self, feature: Feature) -> Option<Attempt> {
        self.attempts.iter().find(|(tried, _)| *tried == feature).map(|(_, attempt)| *attempt)
    }

    /// True if the attempt was made and succeeded.
    pub fn works(&self, feature: Feature) -> bool {
        self.attempt(feature) == Some(Attempt::Works)
    }

    /// The facts about the program that exist because it runs.
    pub fn running(&self) -> Option<&RunningFacts> {
        self.program.as_ref()?.running.as_ref()
    }

    /// True if the program's own setting permits transparent huge pages. A lift suspends the setting, a collapse of its
    /// heap cannot.
    pub fn process_permits_thp(&self) -> bool {
        self.thp.switched_off.as_ref().is_none_or(|off| off.except_advised)
    }

    /// The mode of transparent huge pages of the usual size: the size's own, or the general one.
    pub fn thp_mode(&self) -> Option<&str> {
        let own = self.thp.sizes.iter().find(|(size, _)| Some(*size) == self.thp.size).map(|(_, word)| word.as_str());
        own.filter(|word| *word != "inherit").or(self.thp.general.as_deref())
    }
}
