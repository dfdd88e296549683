//! Starts of servers whose lifts find no huge pages.

use bench::servers::{Bursts, LoadSource, ServerPlace, Servers, run};
use bench::{Ended, Limits};
use measure::record::{Design, Header, Record};
use measure::toggle::Per;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Report of a lift that found no huge page.
const FAILED: &str = r#"{"program":"p","unlifted":null,"considered_bytes":8,"covered_bytes":0,
    "advised_bytes":0,"made_resident_bytes":0,"refusals":[],"edges":[],"ranges":[{"object":"p","kinds":["text"],
    "range":{"start":"0x0","end":"0x8"},"source":null,"page_size":8,"covered":[],"advised":0,"uncovered":[],
    "failed":[{"source":"collapse","reason":"no free huge page"}]}]}"#;
/// Report of a lift of all memory.
const LIFTED: &str = r#"{"program":"p","unlifted":null,"considered_bytes":8,"covered_bytes":8,
    "advised_bytes":0,"made_resident_bytes":8,"refusals":[],"edges":[],"ranges":[]}"#;
const REASON: &str = "collapse: no free huge page";

/// Bursts of a load that does no work, for servers whose lifts find no pages in the starts with these numbers.
fn run_with_failures(starts: u32, failures: &[u32]) -> (Record, u32) {
    let arms = vec!["arm".to_owned()];
    let header = Header::new(Design::Servers, "sleep".to_owned(), arms, "operations".to_owned(), Per::CpuSecond, 1);
    let interrupted = AtomicBool::new(false);
    let limits = Limits { time: Duration::from_millis(1), resolution: None, interrupted: &interrupted };
    let mut lifts = 0;
    let mut command = |arm: Option<usize>, report: &Path, _: &ServerPlace| {
        if arm.is_some() {
            lifts += 1;
            fs::write(report, if failures.contains(&lifts) { FAILED } else { LIFTED }).unwrap();
        }
        let mut server = Command::new("sleep");
        server.arg("1000");
        server
    };
    let servers = Servers {
        command: &mut command,
        load: &LoadSource::parse("true", None).unwrap(),
        clients: 1,
        bursts: Bursts { window: Duration::from_millis(1), settle: Duration::ZERO },
        starts,
        runs_plain_command: &[false],
        prepare: None,
        fill: None,
        ready: Some("true"),
    };
    let record = run(servers, header, limits, None, &mut |_| ()).unwrap();
    (record, lifts)
}

/// A separate process: the end of an experiment ends all children of its process.
#[test]
fn a_server_whose_lift_finds_no_pages_is_started_again() {
    let (record, lifts) = run_with_failures(2, &[1, 2]);
    assert_eq!((record.ended(), lifts, record.lifted_nothing(0)), (Some(&Ended::TimeIsUp), 4, None));
    let retried: Vec<_> = record.timed_blocks().filter_map(|block| block.retried.as_deref()).collect();
    assert_eq!(retried, [REASON]);

    let (record, lifts) = run_with_failures(2, &[1, 2, 3]);
    let why = format!("no memory of the server arm was lifted: {REASON}");
    assert_eq!((record.ended(), lifts), (Some(&Ended::Failed(why.clone())), 3));

    let (record, lifts) = run_with_failures(2, &[2, 3, 4]);
    assert_eq!((record.ended(), lifts), (Some(&Ended::Failed(why)), 4));
    assert_eq!(record.lifted_nothing(0).as_deref(), Some(REASON));
    assert!(record.timed_blocks().count() > 0);
}
