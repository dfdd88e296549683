//! The end of an experiment, in a process that had children before: a script that becomes Pagelift by `exec`.

use bench::servers::{Bursts, LoadSource, ServerPlace, Servers, run};
use bench::{Ended, Limits};
use measure::record::{Design, Header};
use measure::toggle::Per;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Runs an experiment with servers that start a daemon in another session. The daemons' PIDs are appended to `daemons`.
fn experiment(daemons: &Path) -> Option<Ended> {
    let arms = vec!["arm".to_owned()];
    let header = Header::new(Design::Servers, "sleep".to_owned(), arms, "operations".to_owned(), Per::CpuSecond, 1);
    let interrupted = AtomicBool::new(false);
    let limits = Limits { time: Duration::from_millis(1), resolution: None, interrupted: &interrupted };
    let script = format!("setsid sh -c 'echo $$ >> {}; exec sleep 1000' & exec sleep 1000", daemons.display());
    let ready = format!("test -s {}", daemons.display());
    let mut command = |_: Option<usize>, _: &Path, _: &ServerPlace| {
        let mut server = Command::new("sh");
        server.args(["-c", &script]);
        server
    };
    let servers = Servers {
        command: &mut command,
        load: &LoadSource::parse("true", None).unwrap(),
        clients: 1,
        bursts: Bursts { window: Duration::from_millis(1), settle: Duration::ZERO },
        starts: 1,
        runs_plain_command: &[false],
        prepare: None,
        fill: None,
        ready: Some(&ready),
    };
    run(servers, header, limits, None, &mut |_| ()).unwrap().ended().cloned()
}

/// Returns true if a process exists and is no zombie.
fn runs(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, fields)| !fields.starts_with(['Z', 'X']))
}

/// A separate process: the end of an experiment ends all processes that this process starts during it.
#[test]
fn processes_that_existed_before_an_experiment_live_on() {
    let folder = tempfile::tempdir().unwrap();
    let daemons = folder.path().join("daemons");
    let mut earlier = Command::new("sh");
    earlier.args(["-c", "sleep 1000 & echo $!; wait"]).stdout(Stdio::piped());
    let mut earlier = earlier.spawn().unwrap();
    let mut child_of_earlier = String::new();
    BufReader::new(earlier.stdout.take().unwrap()).read_line(&mut child_of_earlier).unwrap();
    let child_of_earlier: i32 = child_of_earlier.trim().parse().unwrap();
    let mut ended_early = Command::new("true").spawn().unwrap();

    assert_eq!(experiment(&daemons), Some(Ended::TimeIsUp));

    let live_on = [earlier.id() as i32, child_of_earlier].map(runs);
    let daemons = fs::read_to_string(&daemons).unwrap();
    let left: Vec<&str> = daemons.lines().filter(|pid| runs(pid.parse().unwrap())).collect();
    let kill = Command::new("kill").args(["-KILL", &child_of_earlier.to_string()]).status();
    earlier.kill().unwrap();
    earlier.wait().unwrap();
    assert!(kill.unwrap().success());
    assert_eq!((live_on, left), ([true, true], vec![]));
    assert!(ended_early.wait().unwrap().success(), "the status of an earlier child is left to its owner");
}
