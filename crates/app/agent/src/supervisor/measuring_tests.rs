//! Simulated measurements of a real process that does nothing.

use super::*;
use crate::decision::{Order, Usage};
use crate::discovery::{Sample, program_of};
use crate::measurement::Seen;
use crate::rules::{Configuration, Keep, Settings, Share};
use crate::supervisor::ledger::tests::entry;
use crate::supervisor::{MetricsPlaces, Paths, Patience, Tracked, Worker};
use crate::verdicts::{Standing, Store};
use crate::worker::{Answer, Request};
use measure::sequential::Decision;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use options::{Kind, Kinds, Pages};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::process::{Child, Command};
use std::rc::Rc;

/// The steps of the simulated measurement, and the requests to it.
#[derive(Default)]
struct Script {
    /// The end, once it is there or once it was asked to end.
    end: Option<Result<ResultLine, String>>,
    ends_by_itself: bool,
    seen: Seen,
    cpu: Duration,
    stops: u32,
    /// The answer to the request to restore.
    restored: Option<Result<Answer, String>>,
    restores: u32,
    /// The program crashes.
    crashes: bool,
    pid: i32,
    /// A process whose lift is to be undone.
    other: Option<Identity>,
}

#[derive(Clone, Default)]
struct Simulated(Rc<RefCell<Script>>);

impl Worker for Simulated {
    fn perform(&mut self, request: &Request, _: &mut dyn FnMut() -> Patience) -> Result<Answer, String> {
        assert_eq!(request.task, Task::Restore);
        self.0.borrow_mut().restores += 1;
        self.0.borrow_mut().restored.take().unwrap_or_else(|| Ok(Answer::default()))
    }

    fn measure(&mut self, pid: i32, options: &[String], _: Duration, _: &Path) -> Result<Box<dyn Ongoing>, String> {
        self.0.borrow_mut().pid = pid;
        assert_eq!(
            options,
            ["--leave-plain", "--only-forks", "--pages=thp", "--lift=text,rodata", "--max-memory=8388608"]
        );
        Ok(Box::new(self.clone()))
    }
}

impl Ongoing for Simulated {
    fn poll(&mut self) -> Option<Result<ResultLine, String>> {
        let mut script = self.0.borrow_mut();
        if script.crashes {
            let handle = ProcessHandle::open(script.pid).unwrap();
            kill(Pid::from_raw(script.pid), Signal::SIGSEGV).unwrap();
            assert!(handle.ends_within(LONGEST_END));
        }
        if script.ends_by_itself || script.stops > 0 { script.end.take() } else { None }
    }

    fn seen(&self) -> Seen {
        self.0.borrow().seen
    }

    fn cpu(&self) -> Duration {
        self.0.borrow().cpu
    }

    fn stop(&mut self) {
        self.0.borrow_mut().stops += 1;
    }

    fn kill(&mut self) {}
}

fn result(decision: Decision) -> ResultLine {
    let (gain, unit) = (Some([-0.03, -0.02, -0.01]), "units".to_owned());
    ResultLine { decision, blocks: 9, controls: 3, dropped: 0, log_evidence: 0.0, gain, unit }
}

/// The state after a measurement.
struct After {
    progress: Progress,
    /// State of the other process, and whether it has an entry.
    other: Option<(State, bool)>,
    entry: Option<Entry>,
    said: Vec<String>,
    standing: Vec<Standing>,
    blocked: usize,
    /// CPU time in the budget after the measurement has used its CPU time.
    budget: Duration,
}

struct Sleeper(Child);

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs one measurement to its end, with settings and a kill switch.
fn measured(worker: &Simulated, settings: Settings, is_switched_off: bool) -> After {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let paths = Paths {
        config: path("agent.d"),
        state: path("state"),
        switch: path("agent.off"),
        verdicts: path("verdicts"),
        metrics: MetricsPlaces::default(),
    };
    let sleeper = Sleeper(Command::new("/bin/sleep").arg("600").spawn().unwrap());
    let pid = sleeper.0.id() as i32;
    let mut said = Vec::new();
    let (progress, entry, other, blocked, budget) = {
        let mut report = |action: &Action| said.push(action.to_string());
        let configuration = Configuration { settings, rules: Vec::new() };
        let mut agent = Agent::start(paths, configuration, Box::new(worker.clone()), &mut report).unwrap();
        let other = worker.0.borrow().other;
        if let Some(identity) = other {
            let progress = Progress { state: State::Kept, refusals: 0 };
            let refusal = Some(Refusal::new(Reason::DoesNotPay, "it loses"));
            agent.ledger.put(Entry { identity, progress, refusal, ..entry(1) });
            agent.tracked.insert(identity, Tracked { progress, ..Tracked::default() });
        }
        let candidate = candidate(&mut agent, pid);
        assert!(agent.measure(&candidate).unwrap());
        assert_eq!(agent.ledger.lifts.last().unwrap().progress.state, State::Measuring);
        let cpu = worker.0.borrow().cpu;
        // A process that has ended shows no CPU time until its parent has waited for it.
        for cpu in [cpu, Duration::ZERO, cpu] {
            worker.0.borrow_mut().cpu = cpu;
            agent.advance_budget();
        }
        let budget = agent.budget.left();
        agent.undo_due().unwrap();
        assert_eq!(worker.0.borrow().restores, 0, "a worker waits for the end of the measurement");
        if is_switched_off {
            fs::write(path("agent.off"), "").unwrap();
        }
        let ended = (0..10).any(|_| agent.follow_measuring().unwrap());
        assert!(ended && agent.measuring.is_none(), "it did not end");
        let identity = candidate.sample.identity;
        let entry = agent.ledger.lifts.iter().find(|entry| entry.identity == identity).cloned();
        let progress = agent.tracked.get(&identity).map_or_else(Progress::default, |tracked| tracked.progress);
        let other = other.map(|other| {
            (agent.tracked[&other].progress.state, agent.ledger.lifts.iter().any(|entry| entry.identity == other))
        });
        (progress, entry, other, agent.ledger.blocked.len(), budget)
    };
    let store = Store::load(&path("verdicts")).unwrap();
    let standing = store.records().iter().map(|record| record.standing(unix_time())).collect();
    After { progress, entry, other, said, standing, blocked, budget }
}

fn candidate(agent: &mut Agent<'_>, pid: i32) -> Candidate {
    let sample: Sample = Sampler::now().unwrap().sample(pid).unwrap();
    let is_asleep = || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit_once(") ").is_some_and(|(_, behind_name)| behind_name.starts_with('S'))
    };
    // The child may not have executed the program yet. The kernel sets the begin of the stack, which identifies it, last.
    let program = loop {
        let program = program_of(pid, &BTreeSet::new()).unwrap();
        if program.exe.ends_with("sleep") && is_asleep() {
            break program;
        }
        thread::yield_now();
    };
    let progress = Progress::default().after(Event::Matched { settled: true });
    let tracked = Tracked { progress, file: executed_file(pid), program: Some(program), ..Tracked::default() };
    agent.tracked.insert(sample.identity, tracked);
    let named =
        Named { program: "sleep".to_owned(), identity: sample.identity, rule: "r".to_owned(), build: "b".to_owned() };
    let order = Order {
        kinds: Kinds::of(&[Kind::Text, Kind::Rodata]),
        pages: Pages::Thp,
        max_memory: Some(8 << 20),
        keep: Keep::IfItPays,
    };
    let sample = Sample { usage: Usage::default(), ..sample };
    Candidate { sample, named, order, cost: Duration::ZERO }
}

/// Settings by which the state of this machine ends nothing.
fn calm() -> Settings {
    let all = Share::percent(100.0);
    let none = Share::percent(0.0);
    Settings { max_cpu_pressure: all, max_memory_pressure: all, min_free_memory: none, ..Settings::default() }
}

fn simulated(end: Result<ResultLine, String>, ends_by_itself: bool) -> Simulated {
    Simulated(Rc::new(RefCell::new(Script { end: Some(end), ends_by_itself, ..Script::default() })))
}

#[test]
fn a_decision_is_kept_and_followed() {
    let after = measured(&simulated(Ok(result(Decision::Keep)), true), calm(), false);
    assert_eq!((after.progress.state, after.entry, after.blocked), (State::Eligible, None, 0));
    assert_eq!(after.standing, [Standing::Unknown]);
    let after = measured(&simulated(Ok(result(Decision::Harm)), true), calm(), false);
    let entry = after.entry.unwrap();
    assert_eq!((after.progress.state, entry.progress.state), (State::Restored, State::Restored));
    assert_eq!(entry.refusal.unwrap().reason, Reason::NoGain);
    assert_eq!(after.standing, [Standing::DoesNotPay]);
    let expected = "the program is slower with the lift; gain -2.0 % (-3.0 to -1.0), 9 blocks; left plain";
    assert!(after.said.last().unwrap().ends_with(expected), "{:?}", after.said);
}

#[test]
fn what_forbids_a_lift_ends_a_measurement() {
    let worker = simulated(Ok(result(Decision::Undecided)), false);
    let pressed = Settings { min_free_memory: Share::percent(100.0), ..calm() };
    let after = measured(&worker, pressed, false);
    assert_eq!((after.progress, worker.0.borrow().stops), (Progress { state: State::Refused, refusals: 1 }, 1));
    assert_eq!(after.entry.unwrap().refusal.unwrap().reason, Reason::LowMemory);
    assert!(after.standing.is_empty(), "a measurement that was ended has no result");
    assert_eq!(worker.0.borrow().restores, 0, "it has restored the program itself");
}

#[test]
fn the_kill_switch_ends_a_measurement_and_is_no_refusal() {
    let worker = simulated(Ok(result(Decision::Undecided)), false);
    let after = measured(&worker, calm(), true);
    assert_eq!((after.progress, after.entry), (Progress { state: State::Eligible, refusals: 0 }, None));
    assert_eq!(worker.0.borrow().stops, 1);
}

#[test]
fn a_long_pause_blocks_the_build() {
    let worker = simulated(Ok(result(Decision::Undecided)), false);
    worker.0.borrow_mut().seen =
        Seen { blocks: 3, longest_pause: Duration::from_millis(51), paused: Duration::from_millis(90) };
    let after = measured(&worker, calm(), false);
    assert_eq!((after.progress.state, after.blocked), (State::Restored, 1));
    assert!(after.said.iter().any(|line| line.contains("a pause of its measurement was 51.0 ms")), "{:?}", after.said);
}

#[test]
fn a_measurement_that_takes_too_much_is_ended() {
    let worker = simulated(Ok(result(Decision::Undecided)), false);
    worker.0.borrow_mut().cpu = Duration::from_secs(3600);
    let after = measured(&worker, calm(), false);
    assert_eq!(after.entry.unwrap().refusal.unwrap().reason, Reason::NotMeasured);
    assert_eq!(after.progress.refusals, 1);
}

#[test]
fn a_program_that_crashes_while_it_is_measured_blocks_its_build() {
    let worker = simulated(Err("the process has ended".to_owned()), true);
    worker.0.borrow_mut().crashes = true;
    let after = measured(&worker, calm(), false);
    assert_eq!((after.blocked, after.entry, worker.0.borrow().restores), (1, None, 0));
    assert!(after.said.iter().any(|line| line.contains("it was killed by SIGSEGV")), "{:?}", after.said);
}

#[test]
fn a_crash_restores_the_program() {
    let crashed = || simulated(Err("the measurement ended without a decision (signal: 9)".to_owned()), true);
    let worker = crashed();
    let after = measured(&worker, calm(), false);
    assert_eq!((after.progress.state, worker.0.borrow().restores), (State::Refused, 1));
    let worker = crashed();
    worker.0.borrow_mut().restored = Some(Err("no answer".to_owned()));
    let after = measured(&worker, calm(), false);
    assert_eq!(after.progress.state, State::Kept, "the kill switch and `stop --restore` try again");
    assert!(after.said.iter().any(|line| line.ends_with("no answer")), "{:?}", after.said);
}

/// The workers of a program that pays stayed plain for good.
#[test]
fn forks_of_a_measured_process_get_their_turn_again() {
    let other = Identity { pid: 1, start: 7 };
    for (forks, expected) in [(vec![other], (State::Eligible, false)), (Vec::new(), (State::Kept, true))] {
        let worker = simulated(Err("the measurement was killed".to_owned()), true);
        worker.0.borrow_mut().other = Some(other);
        worker.0.borrow_mut().restored = Some(Ok(Answer { forks, ..Answer::default() }));
        assert_eq!(measured(&worker, calm(), false).other, Some(expected));
    }
}

#[test]
fn a_measurement_is_charged_once() {
    let worker = simulated(Ok(result(Decision::Undecided)), true);
    worker.0.borrow_mut().cpu = Duration::from_secs(20);
    let after = measured(&worker, Settings { cpu: Share::percent(100.0), ..calm() }, false);
    assert!(after.budget > Duration::from_secs(30), "{:?} of 60 s are left", after.budget);
}
