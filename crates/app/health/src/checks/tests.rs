//! Every check with healthy and with ill facts.

mod host;
mod own_pages;
mod own_way;
mod pool;
mod shared_memory;
mod states;

use super::*;
use crate::examine;
use crate::facts::{
    Attempt, DamonReclaim, DataFileFacts, Feature, FreeMemory, HostFacts, HugetlbCgroup, Khugepaged, Known, Measured,
    MeasuringFacts, MemoryFacts, NodePool, PermissionFacts, Place, PoolFacts, ProgramFacts, RunningFacts, SwitchedOff,
    ThpFacts,
};
use crate::finding::Finding;
use address_space::PageSize;
use heap_choice::Family;
use lift_plan::{CacheShortfall, Source};
use session::{FarPages, NodeBytes};
use translation::working_set::{Part, PartVerdict, ReachVerdict as InUse};

const MIB: u64 = 1 << 20;
/// `EPERM`, `EACCES`, `EINVAL` (errno(3)).
const EPERM: i32 = 1;
const EACCES: i32 = 13;
const EINVAL: i32 = 22;

fn free_memory(node: u32, free_mib: u64, in_blocks_mib: u64) -> FreeMemory {
    FreeMemory { node, free: free_mib * MIB, in_blocks: in_blocks_mib * MIB }
}

fn size(bytes: u64) -> PageSize {
    PageSize::new(bytes).unwrap()
}

fn huge() -> PageSize {
    size(2 * MIB)
}

fn on_node(node: u32, total: u64, free: u64) -> NodePool {
    NodePool { node, total, free, surplus: 0 }
}

const FEATURES: [Feature; 12] = [
    Feature::PagemapScan,
    Feature::Collapse,
    Feature::CollapseOther,
    Feature::Populate,
    Feature::MovePool,
    Feature::PoolFile,
    Feature::Userfaultfd,
    Feature::Trace,
    Feature::ExecutableCopy,
    Feature::AuxiliaryVector,
    Feature::Events,
    Feature::CpuCounters,
];

/// A machine and a process at which nothing is to be found.
fn healthy() -> Facts {
    Facts {
        place: Place::default(),
        is_root: true,
        release: (6, 18),
        base_page: size(4096),
        huge_page: Some(huge()),
        attempts: FEATURES.map(|feature| (feature, Attempt::Works)).to_vec(),
        thp: ThpFacts {
            size: Some(huge()),
            general: Some("madvise".into()),
            sizes: vec![(size(65536), "never".into()), (huge(), "inherit".into())],
            defrag: Some("madvise".into()),
            max_ptes_none: Some(511),
            khugepaged: Some(Khugepaged { compacts: true, pages: 4096, pause: 10_000 }),
            shared: Some("never".into()),
            shared_of_size: Some("inherit".into()),
            switched_off: None,
        },
        pools: vec![PoolFacts {
            size: huge(),
            total: 64,
            available: 64,
            overcommit: 0,
            nodes: vec![on_node(0, 64, 64)],
            recorded: Vec::new(),
        }],
        cgroups: Vec::new(),
        memory: MemoryFacts {
            nodes: vec![free_memory(0, 4096, 2048)],
            online: vec![0],
            zones: 3,
            min_free_kib: Some(67584),
            total: Some(16384 * MIB),
            numa_balancing: Some(0),
            ksm: Some(0),
            proactiveness: Some(20),
            damon: Some(Vec::new()),
        },
        permission: PermissionFacts {
            ptrace_scope: Some(1),
            selinux_enforces: Some(false),
            seccomp: Some(0),
            allowed_nodes: Some(vec![0]),
            lockable: Some(8 * MIB),
            locked: 0,
            most_mappings: 65530,
            mappings: Some(100),
            unit: Some("server.service".into()),
        },
        host: HostFacts {
            virtual_machine: Some(true),
            nx_huge_pages: Some("N".into()),
            itlb_multihit: Some("Not affected".into()),
            measured: Some(Measured {
                splintered: Some(false),
                needed: None,
                reach: Some((8 * MIB, 8 * MIB)),
                code_reach: Some((8 * MIB, 8 * MIB)),
                others: Some(0.0),
            }),
            entries: None,
        },
        measuring: MeasuringFacts { paranoid: Some(2), tracepoints: true },
        program: Some(program()),
    }
}

fn program() -> ProgramFacts {
    ProgramFacts {
        name: "server".into(),
        path: "/usr/sbin/server".into(),
        command: vec!["/usr/sbin/server".into(), "--name=a b".into()],
        interpreter: None,
        worker: None,
        known: Known::Other,
        is_static: Some(false),
        fixed_base: false,
        allocator: Some((Family::Glibc { minor: Some(36) }, "glibc 2.36".into())),
        heap_choice: Some("glibc 2.36: it asks for huge pages".into()),
        serves_heap: true,
        code: (20 * MIB, 1),
        lifts: vec![(Source::Hugetlb, 20 * MIB)],
        pages: None,
        pool_pages: 10,
        small_folios: Vec::new(),
        refused: None,
        running: Some(RunningFacts {
            pid: 7,
            code: (20 * MIB, 0),
            anonymous: (100 * MIB, 90 * MIB),
            all: (130 * MIB, 90 * MIB),
            ..RunningFacts::default()
        }),
        environment: Vec::new(),
        own_pages: None,
        planned: 20 * MIB,
        postponed: None,
        to_prepare: 0,
    }
}

/// The findings of a check for the healthy facts with a flaw.
fn found_with(flaw: impl FnOnce(&mut Facts), check: &str) -> Vec<Finding> {
    let mut facts = healthy();
    flaw(&mut facts);
    examine(&facts).findings.into_iter().filter(|finding| finding.check == check).collect()
}

/// The flaw gives one finding of the check, of this severity, with these words in title and found and in the fix.
#[track_caller]
fn finds(check: &str, severity: Severity, words: [&str; 2], flaw: impl FnOnce(&mut Facts)) {
    let findings = found_with(flaw, check);
    let [finding] = findings.as_slice() else { panic!("{check}: {findings:?}") };
    let fix = finding.fix.as_ref().map_or_else(String::new, |fix| {
        format!("{} {}", fix.typed(true).join("; "), fix.note.as_deref().unwrap_or_default())
    });
    let title = format!("{} {}", finding.title, finding.found);
    assert_eq!(finding.severity, severity, "{finding:?}");
    assert!(title.contains(words[0]), "{} in {title}", words[0]);
    assert!(fix.contains(words[1]), "{} in {fix}", words[1]);
    assert!(!finding.wanted.is_empty() && !finding.why.is_empty());
}

fn program_of(facts: &mut Facts) -> &mut ProgramFacts {
    facts.program.as_mut().unwrap()
}

fn running_of(facts: &mut Facts) -> &mut RunningFacts {
    program_of(facts).running.as_mut().unwrap()
}

fn refuse(facts: &mut Facts, feature: Feature, error: i32) {
    let attempt = facts.attempts.iter_mut().find(|(tried, _)| *tried == feature).unwrap();
    let words = match error {
        EPERM => "Operation not permitted",
        EACCES => "Permission denied",
        _ => "Invalid argument",
    };
    attempt.1 = Attempt::Refused { errno: error, words };
}

#[test]
fn nothing_is_found_where_all_is_well() {
    let report = examine(&healthy());
    assert_eq!(report.findings, []);
    assert_eq!(report.not_seen, []);
    assert_eq!((report.exit_status(), report.subject.as_str()), (0, "server[7]"));
    assert!(report.fine.len() > 20, "{:?}", report.fine);
    assert_eq!(report.verdict.run.as_deref(), Some("pagelift attach 7"));
    let machine = examine(&Facts { program: None, ..healthy() });
    assert_eq!((machine.findings, machine.subject.as_str()), (Vec::new(), "this machine"));
}

#[test]
fn names_of_checks_are_unique() {
    let names: std::collections::BTreeSet<_> = CHECKS.iter().map(|check| check.name).collect();
    assert_eq!(names.len(), CHECKS.len());
}

#[test]
fn transparent_huge_pages() {
    use Severity::{Advice, Note, Problem};
    let never = || Some("never".to_owned());
    finds("thp-mode", Problem, ["switched off", "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"], |f| {
        f.thp.general = never();
    });
    finds("thp-mode", Problem, ["hugepages-2048kB/enabled", "hugepages-2048kB/enabled"], |f| {
        f.thp.sizes[1].1 = "never".into();
    });
    finds("thp-mode", Problem, ["no transparent huge pages", "--pages hugetlb"], |f| f.thp.size = None);
    finds("thp-defrag", Advice, ["never", "echo madvise > /sys/kernel/mm/transparent_hugepage/defrag"], |f| {
        f.thp.defrag = never();
    });
    finds("thp-defrag", Advice, ["always", "defrag"], |f| f.thp.defrag = Some("always".into()));
    finds("khugepaged-bloat", Advice, ["511 of 512", "echo 64 >"], |f| f.thp.general = Some("always".into()));
    finds("khugepaged", Note, ["does nothing", "echo 4096 >"], |f| f.thp.khugepaged.as_mut().unwrap().pages = 0);
    finds("khugepaged", Note, ["16.0 MiB every 10.0 s", "echo 1 >"], |f| {
        f.thp.khugepaged.as_mut().unwrap().compacts = false;
    });
    // A server that has just started has touched a small part.
    let unaligned = |f: &mut Facts| running_of(f).in_place.unaligned_shared = 100 * MIB;
    finds("shmem-enabled", Note, ["100.0 MiB not aligned, 0 B can be lifted", "echo advise >"], unaligned);
    finds("shmem-enabled", Note, ["advise in", "restart the program"], |f| {
        unaligned(f);
        f.thp.shared = Some("advise".into());
    });
    let aligned = |f: &mut Facts| (running_of(f).shared, running_of(f).in_place.shared) = ((100 * MIB, 0), 90 * MIB);
    assert_eq!(found_with(aligned, "shmem-enabled"), []);
    let starts = |pages: u64| {
        move |f: &mut Facts| {
            (program_of(f).known, program_of(f).running, f.pools[0].available) = (Known::Postgres, None, pages);
        }
    };
    finds("shmem-enabled", Note, ["never in", "once it runs, `pagelift attach --lift shared`"], starts(0));
    assert_eq!(found_with(starts(64), "shmem-enabled"), []);
    let off = |inherited_from, except_advised| Some(SwitchedOff { inherited_from, except_advised });
    finds("thp-switched-off", Problem, ["manager[5]", "exec @ARGV' CMD"], |f| {
        f.thp.switched_off = off(Some((5, "manager".into())), false);
    });
    let restart = "exec @ARGV' /usr/sbin/server '--name=a b'";
    finds("thp-switched-off", Problem, ["manager[5]", restart], |f| {
        f.thp.switched_off = off(Some((5, "manager".into())), false);
        program_of(f).running = None;
    });
    finds("thp-switched-off", Note, ["for itself", "MemoryTHP -- server.service"], |f| {
        f.thp.switched_off = off(None, false)
    });
    finds("thp-switched-off", Note, ["only where advised", ""], |f| f.thp.switched_off = off(None, true));
}

#[test]
fn permissions() {
    use Severity::{Advice, Note, Problem};
    let later = "echo kernel.yama.ptrace_scope = 1 > /etc/sysctl.d/zz-pagelift.conf then reboot";
    finds("ptrace", Problem, ["kernel.yama.ptrace_scope = 3", later], |f| f.permission.ptrace_scope = Some(3));
    finds("ptrace", Problem, ["Operation not permitted", "SYS_PTRACE"], |f| refuse(f, Feature::Trace, EPERM));
    finds("ptrace", Problem, ["only root", "sysctl kernel.yama.ptrace_scope=1"], |f| {
        (f.is_root, f.permission.ptrace_scope) = (false, Some(2));
        refuse(f, Feature::Trace, EPERM);
    });
    finds("ptrace", Note, ["only root may attach", "sudo pagelift attach 7"], |f| f.is_root = false);
    finds("executable-memory", Problem, ["MemoryDenyWriteExecute", "pagelift image add"], |f| {
        refuse(f, Feature::ExecutableCopy, EACCES);
    });
    finds("executable-memory", Problem, ["SELinux", "execmem"], |f| {
        f.permission.selinux_enforces = Some(true);
        refuse(f, Feature::ExecutableCopy, EACCES);
    });
    finds("seccomp", Note, ["seccomp filter", "systemctl show"], |f| f.permission.seccomp = Some(2));
    finds("max-map-count", Problem, ["50000 mappings", "sysctl vm.max_map_count=131060"], |f| {
        f.permission.mappings = Some(50_000);
    });
    finds("memlock", Advice, ["7.0 MiB of 8.0 MiB", "prlimit --pid 7"], |f| f.permission.locked = 7 * MIB);
}

#[test]
fn memory() {
    use Severity::{Advice, Note};
    finds(
        "fragmentation",
        Advice,
        ["node 0: 3, at most 2048 after compaction", "echo 1 > /proc/sys/vm/compact_memory"],
        |f| {
            f.memory.nodes = vec![free_memory(0, 4096, 6)];
        },
    );
    finds("fragmentation", Advice, ["4.0 GiB free", ""], |f| {
        // Blocks of a node that the process may not use do not count.
        f.memory.nodes = vec![free_memory(0, 4096, 0), free_memory(1, 4096, 4096)];
    });
    assert_eq!(
        found_with(|f| f.memory.nodes = vec![free_memory(0, 8, 0)], "fragmentation"),
        [],
        "short is not in pieces"
    );
    finds("min-free", Advice, ["8192", "sysctl vm.min_free_kbytes=67584"], |f| f.memory.min_free_kib = Some(8192));
    finds("swap", Advice, ["5.0 MiB", "vm.swappiness"], |f| running_of(f).swapped = 5 * MIB);
    let scheme = |spares_mapped| DamonReclaim { place: "kdamonds/0".into(), spares_mapped };
    finds("damon", Note, ["kdamonds/0: pageout of pages that no process maps", "cache keep --lock"], |f| {
        f.memory.damon = Some(vec![scheme(true)]);
    });
    finds("damon", Note, ["pageout of idle pages", "cache.conf"], |f| {
        f.memory.damon = Some(vec![scheme(true), scheme(false)])
    });
    finds("ksm", Note, ["run = 1", "echo 2 > /sys/kernel/mm/ksm/run"], |f| f.memory.ksm = Some(1));
    finds("ksm", Advice, ["1.0 MiB merged", "echo 2"], |f| running_of(f).merged = MIB);
    finds("numa-balancing", Note, ["on 2 nodes", "kernel.numa_balancing=0"], |f| {
        (f.memory.numa_balancing, f.memory.online) = (Some(1), vec![0, 1]);
    });
    assert_eq!(found_with(|f| f.memory.numa_balancing = Some(1), "numa-balancing"), [], "one node");
}

#[test]
fn host_kernel_and_measuring() {
    use Severity::{Advice, Note};
    finds("host-backing", Advice, ["small ones", "on the host"], |f| {
        f.host.measured.as_mut().unwrap().splintered = Some(true);
    });
    let mut unseen = healthy();
    let measured = unseen.host.measured.as_mut().unwrap();
    (measured.splintered, measured.needed) = (None, Some(256 * MIB));
    let missing = examine(&unseen).not_seen;
    let missing = missing.iter().find(|missing| missing.check == "host-backing").unwrap();
    assert!(missing.what.ends_with("fix: pagelift probe --memory 256M"), "{}", missing.what);
    unseen.host.virtual_machine = Some(false);
    assert!(!examine(&unseen).not_seen.iter().any(|missing| missing.check == "host-backing"));
    finds("itlb-multihit", Note, ["may split", "trusted"], |f| {
        f.host.itlb_multihit = Some("KVM: Mitigation: VMX unsupported".into());
    });
    finds("itlb-multihit", Note, ["this host splits", "nx_huge_pages=off"], |f| {
        f.host.virtual_machine = Some(false);
        f.host.itlb_multihit = Some("KVM: Mitigation: Split huge pages".into());
    });
    finds("kernel-features", Advice, ["MADV_COLLAPSE does not work tried: Invalid argument", "Linux 6.1"], |f| {
        refuse(f, Feature::Collapse, EINVAL);
    });
    finds("kernel-features", Note, ["PAGEMAP_SCAN", "Linux 6.7"], |f| refuse(f, Feature::PagemapScan, EINVAL));
    finds("perf-events", Note, ["perf_event_paranoid = 2", "sysctl kernel.perf_event_paranoid=2"], |f| {
        refuse(f, Feature::Events, EACCES);
    });
    finds("cpu-counters", Note, ["no PMU", ""], |f| {
        f.program = None;
        refuse(f, Feature::CpuCounters, EINVAL);
    });
    finds("tracepoints", Note, ["tracefs", ""], |f| f.measuring.tracepoints = false);
}

#[test]
fn what_only_root_sees_is_said() {
    let mut facts = Facts { is_root: false, ..healthy() };
    facts.measuring.tracepoints = false;
    refuse(&mut facts, Feature::CollapseOther, EPERM);
    facts.memory.damon = None;
    let not_seen = examine(&facts).not_seen;
    let names: Vec<_> = not_seen.iter().map(|missing| missing.check).collect();
    assert_eq!(names, ["damon", "kernel-features", "tracepoints"]);
    assert!(not_seen.iter().all(|missing| missing.root_sees));
    // A process of another user.
    let hidden = program_of(&mut facts);
    (hidden.is_static, hidden.lifts) = (None, Vec::new());
    let verdict = examine(&facts).verdict;
    assert_eq!(verdict.run.as_deref(), Some("sudo pagelift doctor 7"));
    facts.place.lacks_sudo = true;
    assert_eq!(examine(&facts).verdict.run.as_deref(), Some("su -c 'pagelift doctor 7'"));
    // Root is not sent to root.
    facts.is_root = true;
    let verdict = examine(&facts).verdict;
    assert!(verdict.run.is_none() && verdict.summary.contains("the host's root may"), "{verdict:?}");
}

#[test]
fn programs_that_can_do_it_themselves() {
    use Severity::{Advice, Note};
    let plain = |f: &mut Facts| running_of(f).anonymous = (200 * MIB, 0);
    finds("heap", Advice, ["200.0 MiB of 200.0 MiB", "pagelift attach 7 --heap=thp"], plain);
    for known in [Known::Mysql, Known::Other] {
        let off = |f: &mut Facts| {
            plain(f);
            program_of(f).known = known;
            f.thp.switched_off = Some(SwitchedOff { except_advised: false, inherited_from: None });
        };
        finds("heap", Advice, ["heap of server", "pagelift attach --lift anon 7"], off);
        let mut facts = healthy();
        off(&mut facts);
        let run = |facts: &Facts| examine(facts).verdict.run;
        let all = "pagelift attach 7 --lift text,rodata,data,bss,heap,anon";
        assert_eq!(run(&facts).as_deref(), Some(all));
        program_of(&mut facts).planned = 0;
        assert_eq!(run(&facts).as_deref(), Some("pagelift attach 7 --lift anon"));
    }
    let as_known = |known: Known| {
        move |f: &mut Facts| {
            plain(f);
            program_of(f).known = known;
        }
    };
    assert_eq!(found_with(as_known(Known::Redis), "heap"), [], "it forks to save");
    finds("java", Advice, ["neither", "java -XX:+UseTransparentHugePages ARGUMENTS"], as_known(Known::Java));
    let with_option = |option: &str| {
        let option = option.to_owned();
        move |f: &mut Facts| {
            program_of(f).known = Known::Java;
            running_of(f).anonymous = (200 * MIB, 0);
            program_of(f).command.extend([option, "-Xmx1g".to_owned()]);
        }
    };
    assert_eq!(found_with(with_option("-XX:+UseTransparentHugePages"), "java"), []);
    assert_eq!(found_with(with_option("-XX:+UseLargePages"), "java"), []);
    finds("redis", Advice, ["forks copy", "echo madvise >"], |f| {
        program_of(f).known = Known::Redis;
        f.thp.general = Some("always".into());
    });
    finds("node", Note, ["moves its own code", "pagelift run"], |f| {
        program_of(f).known = Known::Node;
        program_of(f).environment = vec!["--use-largepages=on".into()];
    });
    finds("shared-memory", Advice, ["100.0 MiB resident, 0 B", "pagelift attach --lift shared --all "], |f| {
        program_of(f).known = Known::Postgres;
        (running_of(f).shared, running_of(f).in_place.shared) = ((100 * MIB, 0), 60 * MIB);
    });
    finds("shared-memory", Advice, ["100.0 MiB resident, 0 B", "pagelift attach --lift shared "], |f| {
        (running_of(f).shared, running_of(f).in_place.shared) = ((100 * MIB, 0), 60 * MIB);
    });
    finds("data-files", Advice, ["100.0 MiB resident, 0 B", "pagelift attach --lift files "], |f| {
        let liftable = 90 * MIB;
        running_of(f).data_files = DataFileFacts { resident: 100 * MIB, liftable, ..DataFileFacts::default() };
    });
    finds("data-files", Advice, ["100.0 MiB resident, 0 B", "pagelift cache prepare /data/x"], |f| {
        let (in_small_folios, largest) = (90 * MIB, "/data/x".to_owned());
        let files = DataFileFacts { resident: 100 * MIB, in_small_folios, largest, ..DataFileFacts::default() };
        running_of(f).data_files = files;
    });
    let glibc =
        |f: &mut Facts| program_of(f).allocator = Some((Family::Glibc { minor: Some(43) }, "glibc 2.43".into()));
    finds("glibc-heap", Note, ["glibc 2.43 in the mode madvise", "glibc.malloc.hugetlb=0"], glibc);
    let tuned = |f: &mut Facts| {
        glibc(f);
        program_of(f).environment = vec!["glibc.malloc.hugetlb=0".into()];
    };
    assert_eq!(found_with(tuned, "glibc-heap"), []);
    finds("elf-thp", Note, ["glibc 2.44", "GLIBC_TUNABLES=glibc.elf.thp=1 CMD"], |f| {
        program_of(f).allocator = Some((Family::Glibc { minor: Some(44) }, "glibc 2.44".into()));
    });
}

#[test]
fn files_and_ranges_that_stay() {
    finds("large-folios", Severity::Advice, ["/usr/sbin/server: the file system btrfs", "pagelift image add"], |f| {
        let why = "found the file system btrfs".to_owned();
        let shortfall = CacheShortfall { why, fix: Some("use an image of the file, `pagelift image add`".to_owned()) };
        program_of(f).small_folios = vec![("/usr/sbin/server".to_owned(), shortfall)];
    });
    finds(
        "far-pages",
        Severity::Advice,
        ["/bin/a: 2.0 MiB on node 0 of 6.0 MiB", "image add --per-node /bin/a"],
        |f| {
            let elsewhere = vec![NodeBytes { node: 0, bytes: 2 * MIB }];
            running_of(f).far_pages = vec![FarPages { path: "/bin/a".to_owned(), home: 1, of: 6 * MIB, elsewhere }];
        },
    );
    finds("refused", Severity::Advice, ["4.0 MiB would not be lifted a uprobe", "remove it"], |f| {
        program_of(f).refused = Some((4 * MIB, "a uprobe".to_owned(), Some("remove it".to_owned())));
    });
    let unread = examine(&{
        let mut facts = healthy();
        program_of(&mut facts).is_static = None;
        facts
    });
    assert!(unread.not_seen.iter().any(|missing| missing.check == "program"));
}

#[test]
fn the_worst_is_first_and_sets_the_exit_status() {
    let mut facts = healthy();
    facts.memory.ksm = Some(1);
    assert_eq!(examine(&facts).exit_status(), 0);
    facts.thp.defrag = Some("never".into());
    assert_eq!(examine(&facts).exit_status(), 1);
    facts.permission.ptrace_scope = Some(3);
    let report = examine(&facts);
    let checks: Vec<_> = report.findings.iter().map(|finding| finding.check).collect();
    assert_eq!((report.exit_status(), checks), (2, vec!["ptrace", "thp-defrag", "ksm"]));
    assert!(report.verdict.summary.contains("once the problem above is fixed"), "{:?}", report.verdict);
}

#[test]
fn the_verdict_compares_with_the_reach_and_says_what_it_rests_on() {
    let of_code = |bytes: u64, splintered: bool| {
        let mut facts = healthy();
        running_of(&mut facts).code = (bytes, 0);
        facts.host.measured.as_mut().unwrap().splintered = Some(splintered);
        let estimate = examine(&facts).verdict.estimates.remove(0);
        (estimate.likely, estimate.based_on)
    };
    assert!(of_code(4 * MIB, false).0.starts_with("no gain"));
    let (likely, based_on) = of_code(20 * MIB, true);
    assert!(likely.starts_with("0 to 10 %") && based_on.contains("8.0 MiB (measured)"), "{likely} {based_on}");
    assert!(based_on.contains("the host splits huge pages"), "{based_on}");
    // Passes that differ give a range.
    let mut differ = healthy();
    differ.host.measured.as_mut().unwrap().code_reach = Some((4 * MIB, 30 * MIB));
    let estimate = examine(&differ).verdict.estimates.remove(0);
    assert!(estimate.likely.starts_with("0 to 2 %") && estimate.based_on.contains("4.0 MiB to 30.0 MiB (measured)"));
    // Without a measurement it is a range.
    let mut facts = healthy();
    facts.host.measured = None;
    running_of(&mut facts).code = (9 * MIB, 0);
    running_of(&mut facts).anonymous = (500 * MIB, 0);
    let verdict = examine(&facts).verdict;
    assert!(verdict.estimates[0].likely.starts_with("0 to 2 %"), "{verdict:?}");
    assert!(verdict.estimates[0].based_on.contains("2.0 MiB to 16.0 MiB"), "{verdict:?}");
    assert_eq!(verdict.estimates[1].what, "heap");
    assert_eq!(verdict.run.as_deref(), Some("pagelift attach 7 --heap=thp"));
    assert_eq!(verdict.measure.as_deref(), Some("pagelift bench --toggle 7 --lift text,rodata"));
}

#[test]
fn what_was_seen_in_use_outweighs_what_is_resident() {
    let of_code = |verdict: InUse, entries: Option<(u64, u64)>| {
        let mut facts = healthy();
        (facts.host.measured, facts.host.entries) = (None, entries);
        running_of(&mut facts).code = (200 * MIB, 0);
        let (first, last) = (354, 359);
        let used = PartVerdict {
            part: Part::Code,
            verdict,
            first,
            first_within: 0.024,
            last,
            last_within: 0.527,
            entries: Some(512),
            is_measured: false,
        };
        running_of(&mut facts).used = vec![used];
        let estimate = examine(&facts).verdict.estimates.remove(0);
        (estimate.likely, estimate.based_on)
    };
    let (likely, based_on) = of_code(InUse::Fits, None);
    assert!(likely.starts_with("hardly any gain: the TLB holds all"), "{likely}");
    assert!(
        based_on.starts_with("354 pages walked to within 24 ms, 359 within 527 ms, beside 512 entries"),
        "{based_on}"
    );
    assert!(of_code(InUse::Exceeds, None).0.starts_with("0 to 10 %"));
    let mut facts = healthy();
    running_of(&mut facts).used = vec![PartVerdict {
        part: Part::Code,
        verdict: InUse::Exceeds,
        first: 354,
        first_within: 0.024,
        last: 3_590,
        last_within: 0.527,
        entries: Some(1_536),
        is_measured: true,
    }];
    let based_on = &examine(&facts).verdict.estimates[0].based_on;
    assert!(based_on.contains("beside 1536 pages that the TLB was measured to hold"), "{based_on}");
    // Without a known TLB the resident bytes are compared with the entries in CPUID, if it has them.
    assert!(of_code(InUse::Unknown, Some((512, 2048))).1.contains("2.0 MiB (from CPUID)"));
}
