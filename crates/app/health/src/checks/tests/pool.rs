//! Pools and their limits.

use super::*;

fn cgroup(directory: &str, in_use: Option<u64>, promised: Option<u64>) -> HugetlbCgroup {
    HugetlbCgroup {
        size: huge(),
        directory: directory.to_owned(),
        in_use,
        promised,
        in_use_file: format!("{directory}/hugetlb.2MB.max"),
        promised_file: Some(format!("{directory}/hugetlb.2MB.rsvd.max")),
    }
}

#[test]
fn limits_of_pool_pages() {
    let limit = Some(10 * MIB);
    let fix = "echo 10485760 > /c/a/hugetlb.2MB.rsvd.max";
    finds("pool-cgroup", Severity::Problem, ["10.0 MiB in /c/a/hugetlb.2MB.max", fix], |f| {
        f.cgroups = vec![cgroup("/c/a", limit, None)];
    });
    finds("pool-cgroup", Severity::Problem, ["/c/a/", fix], |f| {
        // A larger limit of reservations, or a neighbour's, does not help.
        f.cgroups = vec![cgroup("/c/a", limit, Some(11 * MIB)), cgroup("/c/aa", None, limit)];
    });
    finds("pool-cgroup", Severity::Problem, ["2 MiB", "Linux 5.7"], |f| {
        f.cgroups = vec![HugetlbCgroup { promised_file: None, ..cgroup("/c/a", limit, None) }];
    });
    // A user chooses the names of cgroups.
    finds("pool-cgroup", Severity::Problem, ["", "echo 10485760 > '/c/x;touch y/hugetlb.2MB.rsvd.max'"], |f| {
        f.cgroups = vec![cgroup("/c/x;touch y", limit, None)];
    });
    let harmless = |cgroups: Vec<HugetlbCgroup>| assert_eq!(found_with(|f| f.cgroups = cgroups, "pool-cgroup"), []);
    harmless(vec![cgroup("/c/a", limit, limit)]);
    harmless(vec![cgroup("/c/a", limit, None), cgroup("/c", None, Some(4 * MIB))]);
    harmless(vec![cgroup("/c/a", Some(128 * MIB), None)]);
}

#[test]
fn pages_of_the_pool() {
    use Severity::{Advice, Note, Problem};
    let empty =
        |f: &mut Facts| (f.pools[0].total, f.pools[0].available, f.pools[0].nodes) = (3, 0, vec![on_node(0, 3, 0)]);
    assert_eq!(found_with(empty, "pool-pages"), [], "transparent huge pages serve the code");
    let only_pool = |f: &mut Facts| {
        f.thp.general = Some("never".into());
        (program_of(f).lifts, program_of(f).planned) = (Vec::new(), 0);
    };
    finds("pool-pages", Advice, ["empty", "pagelift pool reserve 2M:10"], |f| {
        only_pool(f);
        empty(f);
    });
    finds("pool-pages", Advice, ["too small", "pagelift pool reserve 2M:10"], |f| {
        only_pool(f);
        f.pools[0].available = 6;
    });
    assert_eq!(found_with(only_pool, "pool-pages"), [], "64 are available");
    finds("pool-pages", Note, ["empty", "pagelift pool overcommit 2M:64"], |f| {
        empty(f);
        f.program = None;
    });
    finds("pool-pages", Note, ["no pool", ""], |f| f.pools.clear());
    let fix = "pagelift pool reserve 2M:64@1";
    finds("pool-nodes", Problem, ["64 free pages, all on other nodes (node 0)", fix], |f| {
        f.permission.allowed_nodes = Some(vec![1]);
    });
    // Surplus pages have taken all of the overcommit.
    finds("pool-pages", Note, ["empty", "pagelift pool overcommit 2M:69"], |f| {
        empty(f);
        (f.program, f.pools[0].overcommit) = (None, 5);
    });
}

/// Pages in use stay on every node: sizes are set, not added to.
#[test]
fn pages_move_from_other_nodes_without_a_loss() {
    let in_use = |f: &mut Facts| {
        (f.pools[0].total, f.pools[0].available) = (1500, 200);
        f.pools[0].nodes = vec![on_node(0, 1000, 0), on_node(1, 300, 200), on_node(2, 200, 0)];
    };
    let grow = "pagelift pool reserve 2M:200@0";
    finds("pool-nodes", Severity::Problem, ["200 free pages, all on other nodes (node 1)", grow], in_use);
    let back = "free now: pagelift pool release 2M:200@1";
    finds("pool-nodes", Severity::Problem, ["the process may use node 0", back], in_use);
    // Surplus pages are no part of the size that is set.
    let back = "pagelift pool release 2M:200@1 2M:7@2";
    finds("pool-nodes", Severity::Problem, ["207 free pages, all on other nodes (node 1, node 2)", back], |f| {
        in_use(f);
        f.pools[0].nodes[1].surplus = 10;
        f.pools[0].nodes[2] = on_node(2, 7, 7);
    });
    // Pages of other reservations stay.
    let back = "free now: pagelift pool release 2M:150@1";
    finds("pool-nodes", Severity::Problem, ["200 free pages", back], |f| {
        in_use(f);
        f.pools[0].recorded = vec![(Some(0), 300), (Some(1), 50)];
    });
    let all_recorded = found_with(
        |f| {
            in_use(f);
            f.pools[0].recorded = vec![(None, 200)];
        },
        "pool-nodes",
    );
    assert!(!format!("{all_recorded:?}").contains("pool release"), "{all_recorded:?}");
    // The node has no part that could be read.
    let grow = "pagelift pool reserve 2M:200@3";
    finds("pool-nodes", Severity::Problem, ["the process may use node 3", grow], |f| {
        in_use(f);
        f.permission.allowed_nodes = Some(vec![3]);
    });
}

#[test]
fn modes_and_pools_are_listed_by_size_and_node() {
    let mut facts = healthy();
    let nodes = vec![on_node(0, 60, 60), on_node(1, 4, 4)];
    facts.pools[0].nodes = nodes;
    facts.permission.allowed_nodes = Some(vec![0, 1]);
    let gigantic = PoolFacts {
        size: size(1 << 30),
        total: 0,
        available: 0,
        overcommit: 2,
        nodes: vec![on_node(0, 0, 0)],
        recorded: Vec::new(),
    };
    facts.pools.push(gigantic);
    let fine: Vec<String> = examine(&facts).fine.iter().map(|fine| format!("{fine:?}")).collect();
    let all = fine.join("\n");
    for part in [
        "2 MiB: madvise (in general madvise; 64 KiB never, 2 MiB inherit)",
        "pool of 2 MiB pages: 64 pages (node 0: 60 free, node 1: 4 free)",
        "pool of 1 GiB pages: 0 pages, and 2 more by overcommit",
    ] {
        assert!(all.contains(part), "{part} in {all}");
    }
}
