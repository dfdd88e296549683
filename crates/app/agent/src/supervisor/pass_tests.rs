//! Passes over simulated processes with a simulated clock.

use super::*;
use crate::decision::Progress;
use crate::supervisor::ledger::tests::entry;
use std::collections::BTreeMap;
use std::path::Path;

/// A process that takes some seconds for each try, and is restored at a try with this number.
#[derive(Clone, Copy)]
struct Simulated {
    seconds: u64,
    succeeds_at: u32,
    tries: u32,
}

const QUICK: Simulated = Simulated { seconds: 0, succeeds_at: 1, tries: 0 };
/// It does not answer.
const SILENT: Simulated = Simulated { seconds: 30, succeeds_at: u32::MAX, tries: 0 };

impl Simulated {
    fn is_restored(&mut self) -> bool {
        self.tries += 1;
        self.tries >= self.succeeds_at
    }
}

struct World {
    ledger: Ledger,
    processes: BTreeMap<i32, Simulated>,
    forks: BTreeMap<i32, Vec<(i32, Simulated)>>,
    has_failed: Vec<i32>,
    begun: Instant,
    clock: Duration,
    /// PIDs in the order of their tries, with the time of each.
    tried: Vec<(i32, u64)>,
    said: Vec<String>,
}

impl World {
    fn new() -> Self {
        Self {
            ledger: Ledger::default(),
            processes: BTreeMap::new(),
            forks: BTreeMap::new(),
            has_failed: Vec::new(),
            begun: Instant::now(),
            clock: Duration::ZERO,
            tried: Vec::new(),
            said: Vec::new(),
        }
    }

    fn add(&mut self, pid: i32, user: u32, process: Simulated, forks: &[(i32, Simulated)]) {
        let progress = Progress { state: State::Kept, refusals: 0 };
        self.ledger.put(Entry { user, progress, covered: 9, ..entry(pid) });
        self.processes.insert(pid, process);
        self.forks.insert(pid, forks.to_vec());
    }

    fn pass(&mut self) -> Vec<i32> {
        let failed = restore_in_turns(self, &BTreeSet::new(), "test").unwrap();
        failed.into_iter().map(|process| process.pid).collect()
    }

    fn order(&self) -> Vec<i32> {
        self.tried.iter().map(|(pid, _)| *pid).collect()
    }

    fn try_one(&mut self, pid: i32, process: &mut Simulated) -> bool {
        self.tried.push((pid, self.clock.as_secs()));
        self.clock += Duration::from_secs(process.seconds);
        process.is_restored()
    }

    /// As the worker does: it reads the time before each fork.
    fn try_forks(&mut self, request: &Request) -> Answer {
        let until = self.clock + Duration::from_secs(request.fork_seconds);
        let mut answer = Answer::default();
        let mut forks = self.forks.get(&request.identity.pid).cloned().unwrap_or_default();
        for (pid, fork) in &mut forks {
            let identity = Identity { pid: *pid, start: 5 };
            if request.tried.contains(&identity) {
                continue;
            }
            if self.clock >= until {
                answer.late_forks += 1;
            } else if fork.tries >= fork.succeeds_at || self.try_one(*pid, fork) {
                answer.forks.push(identity);
            } else {
                answer.refused_forks.push(identity);
            }
        }
        self.forks.insert(request.identity.pid, forks);
        answer
    }
}

impl Means for World {
    fn ledger(&mut self) -> &mut Ledger {
        &mut self.ledger
    }

    fn save(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn request(&self, entry: &Entry, task: Task) -> Request {
        entry.request(task, Path::new("/"), Identity { pid: 1, start: 1 })
    }

    fn perform(&mut self, request: &Request) -> Result<Answer, String> {
        let pid = request.identity.pid;
        if request.task == Task::RestoreForks {
            return Ok(self.try_forks(request));
        }
        assert_eq!((request.task, request.fork_seconds), (Task::Restore, 0));
        let mut process = self.processes[&pid];
        let is_restored = self.try_one(pid, &mut process);
        self.processes.insert(pid, process);
        if is_restored { Ok(self.try_forks(request)) } else { Err("it does not answer".to_owned()) }
    }

    fn has_failed(&self, process: Identity) -> bool {
        self.has_failed.contains(&process.pid)
    }

    fn report(&mut self, action: &Action) {
        self.said.push(action.to_string());
    }

    fn now(&self) -> Instant {
        self.begun + self.clock
    }
}

/// Forks of the first program were tried for two minutes before the second program was restored.
#[test]
fn processes_are_restored_before_all_forks() {
    let mut world = World::new();
    world.add(1, 0, QUICK, &[(11, QUICK), (12, SILENT), (13, QUICK)]);
    world.add(2, 0, QUICK, &[(21, QUICK)]);
    world.add(3, 0, SILENT, &[]);
    world.add(4, 0, QUICK, &[]);
    world.has_failed = vec![3];
    assert_eq!(world.pass(), [1, 3]);
    let order = world.order();
    assert_eq!(order[..3], [1, 2, 4], "{order:?}");
    let at = |pid| order.iter().position(|other| *other == pid).unwrap();
    assert!(at(21) < at(3) && at(13) < at(3), "a process that failed before is last: {order:?}");
    let tries = |pid| order.iter().filter(|other| **other == pid).count();
    assert_eq!((tries(3), tries(12), tries(1), tries(11)), (2, 2, 1, 1), "once more, at the end: {order:?}");
    assert_eq!(world.ledger.lifts[0].forks, 1);
    assert_eq!(world.said.iter().filter(|line| line.contains("[3]")).count(), 1, "{:?}", world.said);
}

/// Forks that were not reached within two minutes had no later turn.
#[test]
fn forks_beyond_the_time_of_a_pass_have_a_later_turn() {
    let mut world = World::new();
    let forks: Vec<_> = (100..150).map(|pid| (pid, Simulated { seconds: 5, ..QUICK })).collect();
    world.add(1, 1000, QUICK, &forks);
    assert_eq!(world.pass(), [1]);
    let left = world.ledger.lifts[0].forks;
    assert!((10..=26).contains(&left), "{left} of 50 after {:?}", world.clock);
    assert!(world.clock <= LONGEST_OF_USER + LONGEST_AGAIN + FORK_TURN, "{:?}", world.clock);
    for _ in 0..3 {
        world.pass();
    }
    assert_eq!((world.ledger.lifts[0].forks, world.order().len()), (0, 51), "each was tried once");
}

/// Each program of one user delayed the programs of all other users by two minutes.
#[test]
fn one_users_processes_do_not_delay_those_of_others() {
    let mut world = World::new();
    let silent: Vec<_> = (0..40).map(|number| (1000 + number, SILENT)).collect();
    for pid in 1..=20 {
        world.add(pid, 1000, SILENT, &[]);
    }
    world.add(21, 1000, QUICK, &silent);
    for pid in 31..=50 {
        world.add(pid, 1001, QUICK, &[(pid + 100, QUICK)]);
    }
    let failed = world.pass();
    assert!(failed.iter().all(|pid| *pid <= 21), "{failed:?}");
    let last = |all: std::ops::RangeInclusive<i32>| {
        world.tried.iter().filter(|(pid, _)| all.contains(pid)).map(|(_, at)| *at).max().unwrap()
    };
    assert!(last(31..=50) <= 30, "processes of the other user after {} s", last(31..=50));
    assert!(last(131..=150) <= 150, "their forks after {} s", last(131..=150));
    let order = world.order();
    assert!((1..=21).all(|pid| order.contains(&pid)), "each is tried: {order:?}");
    let most = 21 * 30 + 2 * (LONGEST_OF_USER + LONGEST_AGAIN).as_secs();
    assert!(world.clock.as_secs() < most, "{:?}", world.clock);
}

#[test]
fn a_process_that_answers_at_the_second_try_is_restored_in_one_pass() {
    let mut world = World::new();
    let second = Simulated { seconds: 2, succeeds_at: 2, tries: 0 };
    world.add(1, 0, second, &[]);
    world.add(2, 0, QUICK, &[(21, second)]);
    assert!(world.pass().is_empty() && world.ledger.lifts.iter().all(|entry| entry.forks == 0));
    assert!(world.ledger.lifts.iter().all(|entry| entry.progress.state == State::Restored));
    assert_eq!(world.ledger.counts.restored, 2);
}
