use super::*;
use crate::decision::{Reason, State};
use crate::metrics::families::MOST_SERIES;
use crate::metrics::kernel::{KernelCounts, VMSTAT};
use crate::metrics::{Heard, Lifted, Names, Pauses, ProgramGain, textfile};
use crate::rules::Mode;
use crate::verdicts::Standing;
use address_space::PageSize;
use machine_facts::{NodePool, PoolCounts};
use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A node with more of everything than any real one.
fn crowded() -> Snapshot {
    let mut snapshot = Snapshot::new("0.1.0", Mode::Act);
    snapshot.processes = State::ALL.into_iter().map(|state| (state, 7)).collect();
    snapshot.refusals = Reason::ALL.iter().map(|&reason| (reason, 3)).collect();
    snapshot.verdicts = Standing::ALL.into_iter().map(|standing| (standing, 2)).collect();
    for number in 0..500_u64 {
        for source in ["file", "image", "hugetlb", "thp"] {
            for page_size in [64 << 10, 2 << 20, 1 << 30] {
                let program = format!("program-{number}");
                snapshot.lifted.push(Lifted { program, source, page_size, bytes: number << 21, private: number });
            }
        }
        snapshot.gains.push(ProgramGain { program: format!("program-{number}"), gain: [0.01, 0.02, 0.03] });
    }
    let nodes: Vec<NodePool> = (0..4).map(|node| NodePool { node, total: 9, free: 4, surplus: 1 }).collect();
    let pool = |bytes| PoolCounts {
        size: PageSize::new(bytes).unwrap(),
        total: 36,
        free: 16,
        reserved: 5,
        surplus: 4,
        overcommit: 0,
        demotes_to: None,
        nodes: nodes.clone(),
    };
    snapshot.kernel = KernelCounts {
        pools: [64 << 10, 2 << 20, 32 << 20, 1 << 30].map(pool).into(),
        vmstat: VMSTAT.map(|name| (name, u64::MAX)).into(),
        shootdowns: Some(5),
    };
    snapshot.exec_events = Some(Heard { executed: 9, lost: 1 });
    snapshot.pauses = Pauses::default();
    snapshot.pauses.add(Duration::from_millis(3));
    snapshot
}

fn samples(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.starts_with('#')).collect()
}

#[test]
fn no_node_has_more_than_the_permitted_series() {
    assert!(!classic(&crowded()).contains("process_cpu"), "node_exporter has a metric of this name");
    for text in [open_metrics(&crowded()), classic(&crowded())] {
        let found = samples(&text).len();
        assert!((150..=MOST_SERIES).contains(&found), "{found} series");
    }
    assert!(samples(&open_metrics(&Snapshot::new("0.1.0", Mode::Observe))).len() > 40);
}

/// Series that a database has stored at the end. Programs came and went, and each left its own series there.
#[test]
fn programs_that_come_and_go_leave_few_series() {
    let (mut names, mut series, mut last) = (Names::default(), BTreeSet::new(), String::new());
    for number in 0..1_000 {
        let mut snapshot = Snapshot { lifted: Vec::new(), gains: Vec::new(), ..crowded() };
        for program in (0..10).map(|one| format!("program-{}", number * 10 + one)) {
            let lifted = Lifted { program: program.clone(), source: "thp", page_size: 2 << 20, bytes: 5, private: 1 };
            snapshot.lifted.push(lifted);
            snapshot.gains.push(ProgramGain { program, gain: [0.01, 0.02, 0.03] });
        }
        names.apply(&mut snapshot);
        last = open_metrics(&snapshot);
        series.extend(samples(&last).iter().filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned())));
    }
    assert!((150..=MOST_SERIES).contains(&series.len()), "{} series", series.len());
    assert!(last.contains("pagelift_lifted_bytes{program=\"other\",source=\"thp\",page_size=\"2097152\"} 50.0\n"));
    assert!(!last.contains("program=\"program-"), "{last}");
}

#[test]
fn the_gain_is_that_of_the_build_that_was_measured_last() {
    let mut snapshot = Snapshot::new("0.1.0", Mode::Observe);
    for share in [0.05, 0.01] {
        snapshot.gains.push(ProgramGain { program: "mariadbd".to_owned(), gain: [share; 3] });
    }
    let text = open_metrics(&snapshot);
    assert!(text.contains("pagelift_gain_ratio{program=\"mariadbd\",bound=\"mid\"} 0.05\n"), "{text}");
}

#[test]
fn labels_have_no_text_of_users() {
    let mut snapshot = Snapshot::new("0.1.0", Mode::Observe);
    for program in ["a\"b\n", "über", "/bin/sh", "x y", "", "other", &"x".repeat(33)] {
        let program = program.to_owned();
        snapshot.gains.push(ProgramGain { program: program.clone(), gain: [0.0; 3] });
        snapshot.lifted.push(Lifted { program, source: "thp", page_size: 2 << 20, bytes: 10, private: 1 });
    }
    let sound = Lifted { program: "mariadbd".to_owned(), source: "thp", page_size: 2 << 20, bytes: 5, private: 2 };
    snapshot.lifted.push(sound);
    let text = open_metrics(&snapshot);
    let lifted: Vec<&str> = text.lines().filter(|line| line.starts_with("pagelift_lifted_bytes{")).collect();
    assert_eq!(
        lifted,
        [
            "pagelift_lifted_bytes{program=\"other\",source=\"thp\",page_size=\"2097152\"} 70.0",
            "pagelift_lifted_bytes{program=\"mariadbd\",source=\"thp\",page_size=\"2097152\"} 5.0"
        ]
    );
    assert!(text.contains("pagelift_private_copy_bytes{program=\"other\"} 7.0\n"));
    assert!(!text.contains("pagelift_gain_ratio"), "{text}");
}

#[test]
fn the_formats_differ_where_they_must() {
    let (open, old) = (open_metrics(&crowded()), classic(&crowded()));
    assert!(open.ends_with("# EOF\n") && !old.contains("# EOF"));
    assert!(open.contains("# TYPE pagelift_build info\n") && old.contains("# TYPE pagelift_build_info gauge\n"));
    assert!(open.contains("# TYPE pagelift_lifts counter\n") && old.contains("# TYPE pagelift_lifts_total counter\n"));
    for text in [open, old] {
        assert!(text.contains("pagelift_build_info{version=\"0.1.0\"} 1\n"));
        assert!(text.contains("pagelift_pool_pages{page_size=\"2097152\",node=\"all\",state=\"reserved\"} 5"));
        assert!(text.contains("pagelift_pool_pages{page_size=\"2097152\",node=\"3\",state=\"used\"} 5"));
        assert!(text.contains("pagelift_pause_seconds_bucket{le=\"0.005\"} 1\n"), "{text}");
    }
}

#[test]
fn a_machine_with_many_nodes_has_the_sums_of_its_pools() {
    let mut snapshot = crowded();
    for pool in &mut snapshot.kernel.pools {
        pool.nodes = (0..64).map(|node| NodePool { node, total: 9, free: 4, surplus: 1 }).collect();
    }
    let text = classic(&snapshot);
    assert!(text.contains("pagelift_pool_pages{page_size=\"2097152\",node=\"all\",state=\"free\"} 16"));
    assert!(!text.contains("node=\"0\""));
}

/// The messages of Prometheus' own checker about a text. It reads OpenMetrics as the older format, and then misses the help of
/// names with suffixes.
fn promtool(text: &str) -> Option<(bool, String)> {
    let words = ["check", "metrics"];
    let process = Command::new("promtool").args(words).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let Ok(mut process) = process else {
        eprintln!("skipped: promtool is not installed; fix: apt install prometheus");
        return None;
    };
    process.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = process.wait_with_output().unwrap();
    Some((output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
}

#[test]
fn promtool_accepts_both_formats() {
    if let Some((is_sound, said)) = promtool(&classic(&crowded())) {
        assert!(is_sound && said.is_empty(), "{said}");
    }
    if let Some((_, said)) = promtool(&open_metrics(&crowded()).replace(" info\n", " gauge\n")) {
        assert!(!said.contains("error while linting") && !said.contains("parsing"), "{said}");
    }
    if let Some((is_sound, said)) = promtool("a{b=} 1\n") {
        assert!(!is_sound && !said.is_empty());
    }
}

#[test]
fn the_file_is_replaced_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pagelift.prom");
    for _ in 0..2 {
        textfile::write(&path, &crowded()).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), classic(&crowded()));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
    assert!(textfile::write(std::path::Path::new("/"), &crowded()).is_err());
}

/// The folder may belong to another user, such as node_exporter's.
#[test]
fn a_link_at_the_name_of_the_new_file_is_not_written_through() {
    let folder = tempfile::tempdir().unwrap();
    let [path, new, other] = ["pagelift.prom", "pagelift.prom.new", "other"].map(|name| folder.path().join(name));
    std::fs::write(&other, "text").unwrap();
    std::fs::hard_link(&other, &new).unwrap();
    textfile::write(&path, &crowded()).unwrap();
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "text");
    std::os::unix::fs::symlink(&other, &new).unwrap();
    textfile::write(&path, &crowded()).unwrap();
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "text");
}
