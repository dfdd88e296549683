//! Reasons and their fixes.

use super::*;

/// Each reason that has a fix, with its words.
#[test]
fn reasons_say_what_was_found_and_the_fix() {
    let size = PageSize::new(2 << 20).unwrap();
    let gib = PageSize::new(1 << 30).unwrap();
    let bound = "available memory".to_owned();
    let expected = [
        (
            Reason::PoolTooSmall { size, needed: 4, available: 0, total: 9, whole: 13 },
            "needs 4 pages of 2 MiB from the pool, 0 available; the whole lift needs 13",
            "pagelift pool reserve 2M:13",
        ),
        (
            Reason::PoolLimited { size, needed: 7, available: 3, limit: 6 << 20, file: "/c/hugetlb.2MB.max".into() },
            "needs 7 pages of 2 MiB from the pool, 3 allowed by /c/hugetlb.2MB.max",
            "echo 14680064 > /c/hugetlb.2MB.max",
        ),
        (
            Reason::PoolOnOtherNodes {
                size,
                needed: 7,
                available: 2,
                elsewhere: 40,
                nodes: [1, 0].into_iter().collect(),
                whole: 7,
            },
            "needs 7 pages of 2 MiB from the pool on nodes 0, 1, 2 available there; 40 on other nodes may not be used",
            "pagelift pool reserve 2M:7@0",
        ),
        (
            Reason::NodeForbidden { node: 3, allowed: [1].into_iter().collect() },
            "node 3 is not one it may take memory from, found node 1",
            "--numa node=1, or a cpuset with the wanted node",
        ),
        (
            Reason::NoLocalNode,
            "found no node for the CPU that it runs on, needed by --numa local",
            "--numa node=NUMBER",
        ),
        (
            Reason::SharedPages,
            "its pages are shared with other processes, so that --numa cannot choose their node",
            "--pages hugetlb or --pages thp, which copy",
        ),
        (
            Reason::NoImageOnNode { nodes: [1].into_iter().collect(), file: Some("/usr/bin/node".into()) },
            "no shared image on node 1 shows it",
            "pagelift image add --per-node /usr/bin/node",
        ),
        (
            Reason::NoSuchPool { size, sizes: vec![gib] },
            "no pool of 2 MiB pages on this machine, found 1 GiB",
            "--page-size 1GiB",
        ),
        (
            Reason::PoolPagesStay(size),
            "pool pages of 2 MiB cannot be moved into a program that runs on this kernel, needed: Linux 5.16",
            "--pages thp, or pagelift run",
        ),
        (
            Reason::NotCongruent { bytes: 12 << 10, size },
            "its addresses differ from the file's offsets by 12 KiB modulo 2 MiB, needed: 0",
            "link it with -z max-page-size=2097152, or --pages auto",
        ),
        (Reason::SmallFolios(None), "its file is not in huge folios of the page cache", "pagelift cache prepare FILE"),
        (
            Reason::SmallFolios(Some(CacheShortfall { why: "found nfs".into(), fix: Some("move it".into()) })),
            "its file is not in huge folios of the page cache: found nfs",
            "move it",
        ),
        (
            Reason::FileMisplaced { bytes: 4 << 10, size },
            "address and offset disagree by 4 KiB, needed: a multiple of 2 MiB",
            "in the program, mmap at such an address",
        ),
        (
            Reason::FileStays(CacheShortfall { why: "locked".into(), fix: Some("unlock it".into()) }),
            "locked",
            "unlock it",
        ),
        (
            Reason::Displaced { kept: Some(Address(0x5000)) },
            "the kernel removed it and refused the copy, and it could not be restored there; its contents are at 0x5000",
            "restart the program",
        ),
        (Reason::NoImage { file: None }, "no shared image shows it", "pagelift image setup; pagelift image add FILE"),
        (
            Reason::NoImage { file: Some("/opt/my app/server".into()) },
            "no shared image shows it",
            "pagelift image setup; pagelift image add '/opt/my app/server'",
        ),
        (Reason::NotInImage, "its shared image shows other parts only", "--pages auto, which copies the rest"),
        (
            Reason::ThpOff,
            "transparent huge pages are off (`never`), needed `madvise` or `always`",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        (
            Reason::ThpOffInProcess,
            "transparent huge pages are off for this process (PR_SET_THP_DISABLE, THP_enabled: 0)",
            "--pages hugetlb",
        ),
        (
            Reason::ThpSize { wanted: gib, size },
            "transparent huge pages are 2 MiB here, 1 GiB requested",
            "--pages hugetlb",
        ),
        (
            Reason::Memory { needed: 4 << 20, left: 1 << 20, bound },
            "would make 4.0 MiB more resident, 1.0 MiB left by available memory",
            "--max-memory 4194304, or free memory",
        ),
        (
            Reason::Mappings { now: 65_000, most: 65_530 },
            "the process has 65000 mappings, too near to vm.max_map_count = 65530",
            "sysctl vm.max_map_count=131060",
        ),
        (
            Reason::Probed,
            "a breakpoint or a uprobe is in its code, and would remain in a copy",
            "remove it, and lift again",
        ),
        (
            Reason::ProtectionPending,
            "the program will change the protection of a part, which pool pages do not support",
            "--writable-pages thp",
        ),
        (
            Reason::Unpaid { price: Duration::from_micros(12_340), due: Duration::from_millis(1234) },
            "a copy costs 12.3 ms, and is made when the program has used 1.2 s of CPU time",
            "--start-cost any",
        ),
        (
            Reason::NotPaidFor { price: Duration::from_millis(900), paid: Duration::from_millis(12) },
            "a copy costs 900.0 ms, and the program had paid for 12.0 ms in all",
            "pagelift attach PID",
        ),
        (
            Reason::OnlyAtStart {
                price: Duration::from_millis(60),
                allowance: Duration::from_millis(5),
                why: "cannot be made while the program runs",
            },
            "a copy costs 60.0 ms, more than 5.0 ms at the start, and cannot be made while the program runs",
            "--start-cost any",
        ),
        (
            Reason::NotHuge { bytes: 2 << 20 },
            "the kernel had no huge page for 2.0 MiB: memory is fragmented or short",
            "echo 1 > /proc/sys/vm/compact_memory",
        ),
    ];
    for kept in [Reason::Semaphores, Reason::FileHeader] {
        assert!(kept.is_expected() && kept.fix().is_none() && kept.to_string().starts_with("it holds "));
    }
    for (reason, words, fix) in expected {
        assert_eq!((reason.to_string().as_str(), reason.fix().as_deref()), (words, Some(fix)));
        assert_eq!(reason.with_fix(), format!("{words}; fix: {fix}"));
    }
}

#[test]
fn what_nobody_can_fix_offers_nothing() {
    let size = PageSize::new(2 << 20).unwrap();
    let none = Reason::NoSuchPool { size, sizes: Vec::new() };
    assert_eq!(none.to_string(), "no pool of 2 MiB pages on this machine, found no pool at all");
    let no_page = |bytes| Reason::NoWholePage { bytes, size }.to_string();
    assert_eq!(no_page(4096), "holds no whole 2 MiB page (4.0 KiB)");
    assert_eq!(no_page(2 << 20), "holds no aligned 2 MiB page (2.0 MiB)");
    let reasons = [none, Reason::NoWholePage { bytes: 4096, size }, Reason::WritableAndExecutable, Reason::NoThp];
    assert!(reasons.iter().all(|reason| reason.fix().is_none() && reason.with_fix() == reason.to_string()));
}
