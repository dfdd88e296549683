//! An agent on a real program, with workers that only answer.

use super::*;
use crate::discovery::Sampler;
use crate::rules::{Keep, Mode};
use crate::worker::{Answer, Request, Share, SourceBytes, Task};
use linux::process_handle::ProcessHandle;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat;
use nix::unistd::{Pid, mkfifo};
use std::cell::RefCell;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;

/// Longest wait for a decision.
const SOON: Duration = Duration::from_secs(120);
/// Uses more CPU time than a lift costs, then waits.
const BURN: &str = "i=0; while [ $i -lt 500000 ]; do i=$((i+1)); done; read x";
/// [`BURN`] beside a fork that waits for a writer; executes another program at the end.
const BURN_AND_FORK: &str = "(read y <$0.pipe) & i=0; while [ $i -lt 500000 ]; do i=$((i+1)); done; read x; exec cat";

type Answers = dyn FnMut(&Request) -> Result<Answer, String>;

/// A worker that answers, with the requests so far.
struct Scripted {
    answers: Box<Answers>,
    requests: Rc<RefCell<Vec<Request>>>,
    /// Workers that do not end.
    stuck: Rc<RefCell<Vec<StuckWorker>>>,
    /// Calls of the supervisor's duties before each answer.
    duties: u32,
}

impl Worker for Scripted {
    fn perform(&mut self, request: &Request, meanwhile: &mut dyn FnMut() -> Patience) -> Result<Answer, String> {
        self.requests.borrow_mut().push(request.clone());
        for _ in 0..self.duties {
            std::thread::sleep(Duration::from_millis(110));
            assert_eq!(meanwhile(), Patience::Wait);
        }
        (self.answers)(request)
    }

    fn stuck(&mut self) -> Vec<StuckWorker> {
        self.stuck.borrow().clone()
    }

    fn measure(&mut self, _: i32, _: &[String], _: Duration, _: &Path) -> Result<Box<dyn Ongoing>, String> {
        Err("nothing is measured here".to_owned())
    }
}

/// A program that meets a rule, and the folders of an agent.
struct Bench {
    folder: tempfile::TempDir,
    child: Child,
    requests: Rc<RefCell<Vec<Request>>>,
    stuck: Rc<RefCell<Vec<StuckWorker>>>,
    duties: u32,
    said: Vec<Action>,
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(-self.pid().as_raw()), Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

impl Bench {
    fn new(more: &str) -> Self {
        Self::with_settings("", more)
    }

    fn with_settings(settings: &str, more: &str) -> Self {
        Self::with_script(BURN, settings, more)
    }

    fn with_script(script: &str, settings: &str, more: &str) -> Self {
        let given = settings;
        let folder = tempfile::tempdir().unwrap();
        let rules = folder.path().join("agent.d");
        fs::create_dir(&rules).unwrap();
        let settings = "mode = \"act\"\nscan = \"100ms\"\nsettle = \"0s\"\noverhead = \"100%\"\ncpu = \"100%\"\n\
                        max_cpu_pressure = \"100%\"\nmax_memory_pressure = \"100%\"\nmin_free_memory = \"0%\"";
        let program = folder.path().join("burner");
        fs::copy("/bin/sh", &program).unwrap();
        mkfifo(&folder.path().join("burner.pipe"), stat::Mode::S_IRWXU).unwrap();
        let rule = format!("[[rule]]\nname = \"r\"\nmatch = {{ exe = \"{}\" }}\nkeep = \"always\"", program.display());
        let file = rules.join("10.toml");
        fs::write(&file, format!("[agent]\n{settings}\n{given}\n{rule}\n{more}\n")).unwrap();
        fs::set_permissions(file, fs::Permissions::from_mode(0o644)).unwrap();
        let child = loop {
            match Command::new(&program).args(["-c", script]).stdin(Stdio::piped()).process_group(0).spawn() {
                // A child of another test has inherited the file while it was written, until it executes its program.
                Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
                child => break child.unwrap(),
            }
        };
        Self { folder, child, requests: Rc::default(), stuck: Rc::default(), duties: 0, said: Vec::new() }
    }

    fn paths(&self) -> Paths {
        let folder = self.folder.path();
        Paths {
            config: folder.join("agent.d"),
            state: folder.join("state"),
            switch: folder.join("agent.off"),
            verdicts: folder.join("verdicts"),
            metrics: MetricsPlaces::default(),
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// Lets an agent with these workers scan until `is_done`. Returns its ledger.
    fn run(
        &mut self,
        answers: impl FnMut(&Request) -> Result<Answer, String> + 'static,
        mut is_done: impl FnMut(&mut Agent<'_>) -> bool,
    ) -> Ledger {
        let configuration = read_folder(&self.paths().config).unwrap();
        let (paths, requests, stuck) = (self.paths(), Rc::clone(&self.requests), Rc::clone(&self.stuck));
        let worker = Box::new(Scripted { answers: Box::new(answers), requests, stuck, duties: self.duties });
        let said = &mut self.said;
        let mut report = |action: &Action| said.push(action.clone());
        let mut agent = Agent::start(paths, configuration, worker, &mut report).unwrap();
        let begin = Instant::now();
        while !is_done(&mut agent) {
            assert!(begin.elapsed() < SOON, "{:?}", agent.status());
            agent.round().unwrap();
            std::thread::yield_now();
        }
        agent.ledger.save(&agent.paths.state).unwrap();
        agent.ledger.clone()
    }

    fn tasks(&self) -> Vec<Task> {
        self.requests.borrow().iter().map(|request| request.task).collect()
    }
}

fn lifted(covered: u64) -> Result<Answer, String> {
    Ok(Answer { covered, resident: covered, ..Answer::default() })
}

fn state(ledger: &Ledger) -> Option<State> {
    ledger.lifts.first().map(|entry| entry.progress.state)
}

fn recent(pid: Pid) -> ending::Recent {
    let identity = Sampler::now().unwrap().sample(pid.as_raw()).unwrap().identity;
    let [program, rule, build] = ["burner", "r", "b"].map(str::to_owned);
    let handle = ProcessHandle::open(pid.as_raw()).unwrap();
    let named = Named { program, identity, rule, build: build.clone() };
    ending::Recent { named, build, owner: 0, user: 0, handle, at: Instant::now() }
}

fn has_entry(agent: &mut Agent<'_>) -> bool {
    agent.ledger.lifts.iter().any(|entry| entry.changed > 0)
}

#[test]
fn a_program_that_is_killed_by_its_lift_blocks_its_build() {
    for signal in [Signal::SIGKILL, Signal::SIGSEGV] {
        let mut bench = Bench::new("");
        let pid = bench.pid();
        let kills = move |_: &Request| {
            let handle = ProcessHandle::open(pid.as_raw()).unwrap();
            kill(pid, signal).unwrap();
            assert!(handle.ends_within(SOON));
            Ok(Answer { gone: true, ..Answer::default() })
        };
        let is_blocked = |agent: &mut Agent<'_>| {
            if agent.ledger.blocked.is_empty() {
                // It was measured before, perhaps twice.
                agent.watch(recent(pid));
                agent.watch(recent(pid));
                assert_eq!(agent.recent.len(), 1);
                return false;
            }
            agent.round().unwrap();
            true
        };
        let ledger = bench.run(kills, is_blocked);
        assert!(ledger.blocked[0].why.contains("lift"), "{ledger:?}");
        assert_eq!((ledger.counts.crashes, ledger.lifts.len()), (1, 0));
        assert!(bench.said.iter().any(|action| matches!(action, Action::Blocked { .. })), "{:?}", bench.said);
    }
}

#[test]
fn what_a_killed_worker_has_lifted_is_known_and_undone() {
    let mut bench = Bench::new("");
    let answers = |request: &Request| match request.task {
        Task::Lift => Err("the worker was killed by signal 9".to_owned()),
        Task::Look => lifted(7 << 20),
        _ => Ok(Answer { covered: 7 << 20, ..Answer::default() }),
    };
    let ledger = bench.run(answers, has_entry);
    let entry = &ledger.lifts[0];
    assert_eq!((entry.progress.state, entry.covered), (State::Kept, 7 << 20));
    assert!(entry.resident >= 7 << 20 && entry.refusal.is_some(), "{entry:?}");
    fs::write(bench.paths().switch, "restore").unwrap();
    let ledger = bench.run(answers, |agent| agent.ledger.counts.restored > 0);
    assert_eq!(state(&ledger), Some(State::Restored));
    assert_eq!(bench.tasks(), [Task::Lift, Task::Look, Task::Restore]);
}

#[test]
fn a_lift_in_doubt_is_never_repeated_and_is_undone() {
    let mut bench = Bench::new("");
    let silent = |_: &Request| Err("the worker ended with status 125".to_owned());
    let scans = |agent: &mut Agent<'_>| has_entry(agent) && agent.ledger.counts.scans > 5;
    assert_eq!(state(&bench.run(silent, scans)), Some(State::Lifting));
    // The next agent examines it again.
    assert_eq!(state(&bench.run(silent, |agent| agent.ledger.counts.scans > 8)), Some(State::Lifting));
    assert_eq!(bench.tasks(), [Task::Lift, Task::Look, Task::Look]);
    let mut ledger = Ledger::load(&bench.paths().state, &Machine::read(&System).boot).unwrap();
    let requests = Rc::clone(&bench.requests);
    let mut worker = Scripted { answers: Box::new(|_| lifted(5)), requests, stuck: Rc::default(), duties: 0 };
    let mut report = |_: &Action| {};
    let failed = restore_all(&mut ledger, &mut worker, &bench.paths().state, &mut report, "test").unwrap();
    assert!(failed.is_empty() && state(&ledger) == Some(State::Restored));
}

/// It was read again and again, and nobody behind it was lifted.
#[test]
fn a_program_that_cannot_be_identified_gets_no_turn() {
    let mut bench = Bench::new("");
    let unread = |agent: &mut Agent<'_>| {
        agent.tracked.values_mut().filter(|tracked| tracked.program.is_some()).for_each(|tracked| tracked.file = None);
        agent.ledger.counts.refusals.contains_key(&Reason::Unidentified)
    };
    assert_eq!(bench.run(|_| panic!("no worker is started"), unread).lifts.len(), 0);
}

/// The owner of a file sets its times at will.
#[test]
fn a_lift_is_remembered_if_the_file_is_touched() {
    let mut bench = Bench::new("");
    assert_eq!(state(&bench.run(|_| lifted(9), has_entry)), Some(State::Kept));
    let program = fs::File::open(bench.folder.path().join("burner")).unwrap();
    program.set_modified(UNIX_EPOCH).unwrap();
    let ledger = bench.run(|_| lifted(9), |agent| agent.ledger.counts.scans > 8);
    assert_eq!((state(&ledger), bench.tasks()), (Some(State::Kept), vec![Task::Lift]));
}

/// The estimate before a lift has the executable only; a lift copies shared objects, too.
#[test]
fn what_budgets_of_memory_leave_is_the_most_that_a_worker_may_add() {
    for (settings, more, most) in [
        ("max_memory = \"64M\"", "", 64 << 20),
        ("max_memory = \"64M\"\nmax_memory_per_cgroup = \"32M\"", "", 32 << 20),
        ("max_memory = \"64M\"", "max_memory = \"16M\"", 16 << 20),
    ] {
        let mut bench = Bench::with_settings(settings, more);
        bench.run(|_| lifted(9), |agent| agent.ledger.counts.lifts > 0);
        assert_eq!(bench.requests.borrow()[0].max_memory, Some(most), "{settings}");
    }
}

/// A thread that cannot be stopped at one moment is the usual failure.
#[test]
fn a_restore_that_failed_is_tried_again() {
    let mut bench = Bench::new("");
    bench.run(|_| lifted(9), |agent| agent.ledger.counts.lifts > 0);
    fs::write(bench.paths().switch, "restore").unwrap();
    let mut tries = 0;
    let busy = move |_: &Request| {
        tries += 1;
        if tries < 3 { Err("a thread is in an uninterruptible sleep".to_owned()) } else { lifted(9) }
    };
    let ledger = bench.run(busy, |agent| agent.ledger.counts.restored > 0);
    assert_eq!((state(&ledger), bench.tasks().len()), (Some(State::Restored), 4));
}

/// `agent stop` reads the status, also while the first worker is busy.
#[test]
fn an_agent_is_found_before_its_first_scan_has_ended() {
    let mut bench = Bench::new("");
    let state_folder = bench.paths().state;
    let known = move |_: &Request| {
        let status = Status::load(&state_folder).unwrap();
        if status.is_some_and(|status| status.agent == own_identity().unwrap()) {
            lifted(9)
        } else {
            Err(String::new())
        }
    };
    assert_eq!(state(&bench.run(known, has_entry)), Some(State::Kept));
}

#[test]
fn mappings_that_are_not_as_planned_are_undone() {
    let mut bench = Bench::new("");
    let answers = |request: &Request| match request.task {
        Task::Lift => Ok(Answer { covered: 9, fault: Some("FAULT".to_owned()), ..Answer::default() }),
        _ => lifted(9),
    };
    let ledger = bench.run(answers, |agent| agent.ledger.counts.restored > 0);
    assert_eq!((state(&ledger), ledger.blocked[0].why.as_str()), (Some(State::Restored), "FAULT"));
}

#[test]
fn an_error_after_some_copies_leaves_a_lift_that_can_be_undone() {
    let mut bench = Bench::new("");
    let answers = |request: &Request| match request.task {
        Task::Lift => Ok(Answer { covered: 9, resident: 9, refusal: Some("no".to_owned()), ..Answer::default() }),
        _ => lifted(9),
    };
    let ledger = bench.run(answers, |agent| has_entry(agent) && agent.ledger.counts.scans > 5);
    assert_eq!((state(&ledger), ledger.lifts[0].lasting), (Some(State::Kept), Share::default()));
    assert_eq!(bench.tasks(), [Task::Lift]);
}

#[test]
fn pages_that_a_lift_has_lost_are_reported_once() {
    let mut bench = Bench::new("");
    let answers = |request: &Request| {
        let sources = vec![SourceBytes { source: "thp".to_owned(), page_size: 2 << 20, bytes: 9 << 20 }];
        match request.task {
            Task::Look => lifted(7 << 20),
            _ => Ok(Answer { sources, ..lifted(9 << 20).unwrap() }),
        }
    };
    let requests = Rc::clone(&bench.requests);
    let looks = |agent: &mut Agent<'_>| {
        // An hour passes between two scans.
        agent.ledger.lifts.iter_mut().for_each(|entry| entry.changed = 1);
        let last = Instant::now().checked_sub(Duration::from_secs(3600));
        agent.tracked.values_mut().for_each(|tracked| tracked.looked = tracked.looked.and(last));
        requests.borrow().iter().filter(|request| request.task == Task::Look).count() > 2
    };
    let ledger = bench.run(answers, looks);
    assert_eq!((ledger.lifts[0].lost, ledger.lifts[0].covered), (2 << 20, 9 << 20));
    let lost = |action: &&Action| matches!(action, Action::Lost { lost, of, .. } if (*lost, *of) == (2 << 20, 9 << 20));
    assert_eq!(bench.said.iter().filter(lost).count(), 1, "{:?}", bench.said);
}

/// After a measurement that has used more than a full budget, scans are made as fast as they are earned.
#[test]
fn scans_that_the_budget_does_not_permit_are_dropped_and_counted() {
    let mut bench = Bench::new("");
    let ledger = bench.run(
        |_| lifted(9),
        |agent| {
            if agent.ledger.counts.scans == 1 {
                agent.budget.advance(Duration::ZERO, Duration::from_secs(3600));
                agent.last_scan.cost = Duration::from_secs(3600);
            }
            agent.ledger.counts.dropped_scans > 5
        },
    );
    assert_eq!(ledger.counts.scans, 1);
    fs::write(bench.paths().switch, "").unwrap();
    bench.run(|_| lifted(9), |agent| agent.switch != Switch::Off);
}

/// A fork has the copies of its parent, whether the agent has lifted it or not.
#[test]
fn forks_that_were_restored_are_known_to_be_plain() {
    let mut ledger = Ledger::default();
    for pid in [1, 2, 3] {
        let kept = Progress { state: State::Kept, refusals: 0 };
        ledger.put(Entry { covered: 9, progress: kept, ..ledger::tests::entry(pid) });
    }
    let of = |pid| Identity { pid, start: 5 };
    let changed = pass::restored_with(&mut ledger, of(1), &[of(1), of(2), of(7)]);
    assert_eq!(changed.iter().map(|entry| entry.identity.pid).collect::<Vec<_>>(), [2]);
    let states: Vec<State> = ledger.lifts.iter().map(|entry| entry.progress.state).collect();
    assert_eq!(states, [State::Kept, State::Restored, State::Kept]);
    assert_eq!(ledger.lifts[1].covered, 0);
    // A measurement decides nothing about forks. Memory that was lifted in place still counts.
    ledger.lifts[2].lasting = Share { covered: 4, resident: 4 };
    let changed = restore::postponed_with(&mut ledger, of(7), &[of(1), of(2), of(3)]);
    assert!(changed.len() == 2 && changed.iter().all(|entry| entry.progress.state == State::Eligible), "{changed:?}");
    let left: Vec<_> =
        ledger.lifts.iter().map(|entry| (entry.identity.pid, entry.progress.state, entry.covered)).collect();
    assert_eq!(left, [(2, State::Restored, 0), (3, State::Eligible, 4)]);
}

/// They had no later turn.
#[test]
fn forks_that_stay_lifted_get_a_later_turn() {
    let mut bench = Bench::new("");
    bench.run(|_| lifted(9), |agent| agent.ledger.counts.lifts > 0);
    fs::write(bench.paths().switch, "restore").unwrap();
    let mut tries = 0;
    let answers = move |request: &Request| {
        let late = |late_forks| Ok(Answer { late_forks, ..Answer::default() });
        if request.task == Task::Restore {
            return late(2);
        }
        tries += 1;
        if tries < 5 { late(1) } else { late(0) }
    };
    let switch = bench.paths().switch;
    let all_restored = move |agent: &mut Agent<'_>| {
        if agent.ledger.counts.restored > 0 && switch.exists() {
            fs::remove_file(&switch).unwrap();
        }
        let first = agent.ledger.lifts.first();
        agent.ledger.counts.restored > 0 && first.is_some_and(|entry| entry.forks == 0)
    };
    let ledger = bench.run(answers, all_restored);
    assert_eq!(bench.tasks().iter().filter(|task| **task == Task::RestoreForks).count(), 5, "{ledger:?}");
}

/// The fork has the copies, and was forgotten with the process.
#[test]
fn a_fork_stays_known_when_its_parent_ends_or_executes_another_program() {
    for ends in [true, false] {
        let mut bench = Bench::with_script(BURN_AND_FORK, "", "");
        bench.run(|_| lifted(9), |agent| agent.ledger.counts.lifts > 0);
        let parent = bench.pid().as_raw();
        if ends {
            kill(bench.pid(), Signal::SIGKILL).unwrap();
        } else {
            bench.child.stdin.take().unwrap().write_all(b"\n").unwrap();
        }
        let has_left = move |agent: &mut Agent<'_>| agent.ledger.lifts.iter().all(|entry| entry.identity.pid != parent);
        let ledger = bench.run(|_| lifted(9), has_left);
        let seen = ledger.lifts.iter().map(|entry| (entry.progress.state, entry.resident, entry.forks));
        assert_eq!(seen.collect::<Vec<_>>(), [(State::Kept, 9, 0)], "ends: {ends}");
        let fork = ledger.lifts[0].identity;
        fs::write(bench.paths().switch, "restore").unwrap();
        let ledger = bench.run(|_| lifted(9), |agent| agent.ledger.counts.restored > 0);
        assert_eq!((ledger.lifts[0].identity, state(&ledger)), (fork, Some(State::Restored)));
        let last = bench.requests.borrow().iter().rfind(|request| request.task == Task::Restore).cloned();
        assert_eq!(last.map(|request| request.identity), Some(fork));
    }
}

/// It could not be read once, for want of descriptors for example, and was left alone for good.
#[test]
fn a_process_whose_file_could_not_be_read_is_judged_again() {
    let ignored = Progress { state: State::Ignored, refusals: 0 };
    let unread = || Tracked { progress: ignored, program: Some(Program::default()), ..Tracked::default() };
    let now = Some(ExecutedFile { device: 1, inode: 2, stack: 3 });
    assert!(unread().is_another(now) && !unread().is_another(None));
    assert!(!Tracked { file: now, ..unread() }.is_another(now));
    assert!(!Tracked::default().is_another(now), "it was not judged so far");
}

#[test]
fn a_lift_that_must_be_undone_is_tried_until_it_is() {
    let mut bench = Bench::new("");
    let mut tries = 0;
    let answers = move |request: &Request| match request.task {
        Task::Lift => Ok(Answer { covered: 9, fault: Some("FAULT".to_owned()), ..Answer::default() }),
        _ => {
            tries += 1;
            if tries < 3 { Err("a thread is in an uninterruptible sleep".to_owned()) } else { lifted(9) }
        }
    };
    let ledger = bench.run(answers, |agent| agent.ledger.counts.restored > 0);
    assert_eq!((state(&ledger), bench.tasks().len()), (Some(State::Restored), 4));
    assert!(matches!(bench.said.last(), Some(Action::Restored { why, .. }) if why == "FAULT"), "{:?}", bench.said);
}

/// A moment without a free task, or an upgrade of the package, is no refusal of the program.
#[test]
fn a_worker_that_was_not_started_is_no_refusal_of_the_program() {
    let mut bench = Bench::new("");
    let mut tries = 0;
    let answers = move |_: &Request| {
        tries += 1;
        let refusal = Some("no task is free".to_owned());
        if tries < 4 { Ok(Answer { not_started: true, refusal, ..Answer::default() }) } else { lifted(9) }
    };
    let ledger = bench.run(answers, |agent| agent.ledger.counts.lifts > 0);
    assert_eq!((state(&ledger), bench.tasks()), (Some(State::Kept), vec![Task::Lift; 4]));
    assert_eq!(ledger.counts.refusals, [(Reason::WorkerFailed, 1)].into(), "it is reported once");
}

/// Rules that keep every lift are not asked whether it pays.
#[test]
fn a_loss_undoes_the_lifts_of_its_build_that_must_pay() {
    for (keep, options, expected) in [
        (Keep::IfItPays, "text,rodata auto", State::Restored),
        (Keep::IfItPays, "text,rodata thp", State::Kept),
        (Keep::Always, "text,rodata auto", State::Kept),
    ] {
        let mut bench = Bench::new("");
        bench.run(|_| lifted(9), |agent| agent.ledger.counts.lifts > 0);
        let mut scans = 0;
        let undone = move |agent: &mut Agent<'_>| {
            scans += 1;
            if scans == 1 {
                let entry = Entry { options: options.to_owned(), ..agent.ledger.lifts[0].clone() };
                agent.configuration.rules[0].keep = keep;
                agent.undo_all_of(&entry, "it loses");
            }
            scans > 3
        };
        let ledger = bench.run(|_| lifted(9), undone);
        assert_eq!(state(&ledger), Some(expected));
    }
}

/// Scans followed each other without a pause, and the other programs got no turn.
#[test]
fn a_plan_without_a_worker_ends_no_turn() {
    let mut bench = Bench::new("");
    let mut tries = 0;
    let answers = move |request: &Request| {
        assert_eq!(request.task, Task::Plan);
        tries += 1;
        if tries < 4 { Ok(Answer { not_started: true, ..Answer::default() }) } else { lifted(9) }
    };
    let requests = Rc::clone(&bench.requests);
    let number = move || requests.borrow().len();
    let observed = |agent: &mut Agent<'_>| {
        agent.configuration.settings.mode = Mode::Observe;
        let before = number();
        let has_worked = agent.round().unwrap();
        assert!(number() == before || has_worked == (number() == 4), "after request {}", number());
        agent.ledger.counts.observed > 0
    };
    bench.run(answers, observed);
    assert_eq!(bench.tasks(), [Task::Plan; 4]);
}

/// The supervisor waited, and did nothing else.
#[test]
fn scans_do_not_wait_for_a_worker() {
    let mut bench = Bench::new("");
    bench.duties = 5;
    let ledger = bench.run(|_| lifted(9), |agent| agent.ledger.counts.lifts > 0);
    assert!(ledger.counts.scans >= 5, "{:?}", ledger.counts);
}

/// While a worker was busy, a denied scan was repeated twice a second, and its low cost permitted the next scan.
#[test]
fn scans_beside_a_worker_keep_to_the_budget() {
    let mut bench = Bench::new("");
    bench.run(
        |_| lifted(9),
        |agent| {
            agent.budget.advance(Duration::ZERO, Duration::from_secs(3600));
            agent.last_scan.cost = Duration::from_secs(3600);
            let (before, begun) = (agent.ledger.counts.clone(), Instant::now());
            for _ in 0..30 {
                std::thread::sleep(Duration::from_millis(10));
                agent.meanwhile(Task::Lift);
            }
            let (after, most) = (agent.ledger.counts.clone(), begun.elapsed().as_millis() / 100 + 1);
            assert_eq!(after.scans, before.scans);
            assert!(u128::from(after.dropped_scans - before.dropped_scans) <= most, "{before:?} {after:?}");
            true
        },
    );
}

/// The end of the worker was waited for without a limit, and the lock of workers kept all restores out.
#[test]
fn nothing_is_lifted_while_a_worker_does_not_end() {
    let mut bench = Bench::new("");
    bench.run(|_| lifted(9), |agent| agent.ledger.counts.lifts > 0);
    let process = Identity { pid: 1, start: 1 };
    let stuck = StuckWorker { worker: 7, task: Task::Lift, process, since: 1, beside: false };
    bench.stuck.borrow_mut().push(stuck.clone());
    fs::write(bench.paths().switch, "restore").unwrap();
    let ledger = bench.run(|_| lifted(9), |agent| agent.ledger.counts.restored > 0 && agent.ledger.counts.scans > 3);
    assert_eq!(state(&ledger), Some(State::Restored));
    assert!(bench.said.contains(&Action::Stuck { stuck: stuck.clone() }), "{:?}", bench.said);

    let mut bench = Bench::new("");
    bench.stuck.borrow_mut().push(stuck.clone());
    let workers = Rc::clone(&bench.stuck);
    let freed = move |agent: &mut Agent<'_>| {
        if agent.ledger.counts.scans == 8 {
            assert!(agent.ledger.lifts.is_empty() && agent.status().stuck.len() == 1);
            workers.borrow_mut().clear();
        }
        agent.ledger.counts.lifts > 0
    };
    let ledger = bench.run(|_| lifted(9), freed);
    assert!(ledger.counts.scans > 8 && bench.said.contains(&Action::Freed { stuck }), "{:?}", bench.said);
}
