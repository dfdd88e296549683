use super::*;
use std::ops::Range;
use std::sync::RwLock;
use std::sync::atomic::{AtomicUsize, Ordering};

const LIMITS: Limits = Limits {
    // A thread that answers at once gets a CPU within two ticks, also on a busy machine.
    tick: Duration::from_millis(250),
    patience: 2,
    limit: 10,
    scan: 100,
    most: 3,
    reserve: 1,
    most_of_a_user: 3,
    of_a_user: Duration::from_secs(60),
    short: Duration::from_millis(750),
    user_of: |_| None,
};
/// The threads that are left behind count for all tests of this process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    let alone = locked(&ONE_AT_A_TIME);
    let mut known = locked(&KNOWN);
    known.left_behind.clear();
    known.spent.clear();
    drop(known);
    alone
}

/// Processes of which some do not answer before they are released.
struct Processes {
    closed: Arc<RwLock<()>>,
    asked: Arc<AtomicUsize>,
}

impl Processes {
    fn new() -> Self {
        Self { closed: Arc::default(), asked: Arc::default() }
    }

    fn look(&self, pids: Range<i32>, silent: fn(i32) -> bool) -> BTreeMap<i32, Result<i32, Silence>> {
        self.look_within(LIMITS, pids, silent)
    }

    fn look_within(
        &self,
        limits: Limits,
        pids: Range<i32>,
        silent: fn(i32) -> bool,
    ) -> BTreeMap<i32, Result<i32, Silence>> {
        let (at, asked) = (self.closed.clone(), self.asked.clone());
        let look = move |pid| {
            asked.fetch_add(1, Ordering::Relaxed);
            let _answers = silent(pid).then(|| drop(at.read()));
            10 * pid
        };
        let mut all = BTreeMap::new();
        let found = |pid, looked: Result<i32, Unanswered>| {
            assert!(all.insert(pid, looked.map_err(|unanswered| unanswered.reason)).is_none());
        };
        ask(pids.collect(), limits, look, found);
        all
    }

    /// Number of reads since the last call.
    fn asked(&self) -> usize {
        self.asked.swap(0, Ordering::Relaxed)
    }
}

/// Waits until the threads that were left behind have ended.
fn wait_for_the_end() {
    let begun = Instant::now();
    while locked(&KNOWN).left_behind.iter().any(|silent| silent.thread.strong_count() > 0) {
        assert!(begun.elapsed().as_secs() < 240, "threads wait for nothing");
        thread::yield_now();
    }
}

// Numbers above the kernel's largest possible one (PID_MAX_LIMIT is 4 million): no process has them.
const FIRST: i32 = 5_000_000;

#[test]
fn a_process_that_does_not_answer_hides_no_other_and_is_asked_once() {
    let _alone = alone();
    let processes = Processes::new();
    let held = processes.closed.write().unwrap();
    let silent = |pid| pid == FIRST + 1 || pid == FIRST + 3;
    let expected = |pid| if silent(pid) { Err(Silence::NoAnswer) } else { Ok(10 * pid) };
    let all = (FIRST..FIRST + 6).map(|pid| (pid, expected(pid))).collect();
    assert_eq!(processes.look(FIRST..FIRST + 6, silent), all);
    assert_eq!(processes.asked(), 6);
    // The other four are asked again.
    assert_eq!(processes.look(FIRST..FIRST + 6, silent), all);
    assert_eq!(processes.asked(), 4);
    drop(held);
    wait_for_the_end();
    assert_eq!(processes.look(FIRST..FIRST + 6, silent)[&(FIRST + 1)], Ok(10 * (FIRST + 1)));
}

#[test]
fn only_so_many_are_waited_for_in_all() {
    let _alone = alone();
    let processes = Processes::new();
    let held = processes.closed.write().unwrap();
    let is = |pid| match pid - FIRST {
        0 => Ok(10 * pid),
        1..=3 => Err(Silence::NoAnswer),
        _ => Err(Silence::NotAsked),
    };
    let all = |pids: Range<i32>| pids.map(|pid| (pid, is(pid))).collect();
    assert_eq!(processes.look(FIRST..FIRST + 8, |pid| pid > FIRST), all(FIRST..FIRST + 8));
    assert_eq!(processes.asked(), 4);
    assert_eq!(processes.look(FIRST + 2..FIRST + 6, |_| true), all(FIRST + 2..FIRST + 6));
    assert_eq!(processes.asked(), 0, "no thread is left to ask");
    drop(held);
    wait_for_the_end();
}

#[test]
fn processes_that_are_slow_hide_no_other() {
    let _alone = alone();
    let look = |pid: i32| {
        thread::sleep(LIMITS.tick * if pid < FIRST + 5 { 4 } else { 0 });
        pid
    };
    let mut answers = 0;
    ask((FIRST..FIRST + 20).collect(), LIMITS, look, |pid, looked| answers += i32::from(looked == Ok(pid)));
    assert_eq!(answers, 20);
}

#[test]
fn a_later_process_of_the_number_is_asked() {
    let _alone = alone();
    let own = std::process::id() as i32;
    let (alive, start) = (Arc::new(()), ProcessFiles::of(own).start_time());
    let is_asked = |start| {
        let silent = LeftBehind { pid: own, start, user: None, thread: Arc::downgrade(&alive) };
        locked(&KNOWN).left_behind.push(silent);
        let mut answer = None;
        ask(vec![own], LIMITS, |pid| pid, |_, looked| answer = Some(looked));
        locked(&KNOWN).left_behind.clear();
        answer.unwrap()
    };
    assert_eq!(is_asked(start).unwrap_err().reason, Silence::NoAnswer);
    assert_eq!(is_asked(start.map(|start| start - 1)), Ok(own));
}

#[test]
fn every_process_is_looked_at() {
    let _alone = alone();
    let mut own = None;
    let is_own = std::process::id() as i32;
    each_process(ProcessFiles::pid, |pid, looked| own = own.take().or((pid == is_own).then_some(looked))).unwrap();
    assert_eq!(own, Some(Ok(is_own)));
    assert_eq!(ask_one(is_own, ProcessFiles::pid), Ok(is_own));
}

/// Users of the processes above [`FIRST`]: one for each thousand.
fn by_thousands(pid: i32) -> User {
    Some((pid - FIRST) as u32 / 1000)
}

#[test]
fn silent_processes_of_one_user_hide_none_of_another() {
    let _alone = alone();
    let limits = Limits { most: 8, most_of_a_user: 2, user_of: by_thousands, ..LIMITS };
    let processes = Processes::new();
    let held = processes.closed.write().unwrap();
    // Ten silent processes of one user, all asked before the others.
    let pids = FIRST + 990..FIRST + 1010;
    let is = |pid: i32| match pid - FIRST {
        990..992 => Err(Silence::NoAnswer),
        992..1000 => Err(Silence::NotAsked),
        _ => Ok(10 * pid),
    };
    let all: BTreeMap<_, _> = pids.clone().map(|pid| (pid, is(pid))).collect();
    assert_eq!(processes.look_within(limits, pids.clone(), |pid| pid < FIRST + 1000), all);
    assert_eq!(processes.look_within(limits, pids, |pid| pid < FIRST + 1000), all, "again");
    assert_eq!(processes.asked(), 22, "two that do not answer, and ten others twice");
    drop(held);
    wait_for_the_end();
}

#[test]
fn silent_processes_of_many_users_end_no_later_scan() {
    let _alone = alone();
    let limits = Limits { most_of_a_user: 1, user_of: by_thousands, ..LIMITS };
    let processes = Processes::new();
    let held = processes.closed.write().unwrap();
    // One of each of as many users as there are threads. The second user has another one.
    let silent = (0..3).map(|user| FIRST + 1000 * user);
    for pid in silent {
        assert_eq!(processes.look_within(limits, pid..pid + 1, |_| true)[&pid], Err(Silence::NoAnswer));
    }
    processes.asked();
    let others = processes.look_within(limits, FIRST + 1999..FIRST + 2003, |_| true);
    let reasons: Vec<_> = others.into_values().map(Result::unwrap_err).collect();
    assert_eq!(reasons, [Silence::NotAsked, Silence::NoAnswer, Silence::NotAsked, Silence::NotAsked]);
    assert_eq!(processes.asked(), 0);
    let answered = processes.look_within(limits, FIRST + 4000..FIRST + 4003, |_| false);
    assert!(answered.into_iter().all(|(pid, answer)| answer == Ok(10 * pid)));
    drop(held);
    wait_for_the_end();
}

#[test]
fn slow_processes_of_one_user_delay_others_once_and_no_longer_than_the_user_has_time() {
    let _alone = alone();
    let limits = Limits { patience: 6, of_a_user: LIMITS.tick * 12, user_of: by_thousands, ..LIMITS };
    // So slow that it counts, and faster than the patience.
    let look = |pid: i32| thread::sleep(LIMITS.tick * if pid < FIRST + 1000 { 4 } else { 0 });
    let mut order = Vec::new();
    let mut not_asked = 0;
    ask((FIRST + 900..FIRST + 1100).collect(), limits, look, |pid, looked| match looked {
        Ok(()) => order.push(pid),
        Err(unanswered) => {
            assert_eq!(unanswered.reason, Silence::NotAsked);
            not_asked += 1;
        }
    });
    assert_eq!(order.iter().filter(|pid| **pid >= FIRST + 1000).count(), 100, "{order:?}");
    let slow = order.len() - 100;
    assert!((1..50).contains(&slow) && not_asked == 100 - slow, "{slow} answered, {not_asked} not asked");
    // The time counts for later scans, too.
    let mut again = Vec::new();
    let look = |_| ();
    ask(vec![FIRST, FIRST + 1000], limits, look, |pid, looked| again.push((pid, looked.is_ok())));
    again.sort_unstable();
    assert_eq!(again, [(FIRST, false), (FIRST + 1000, true)]);
}

#[test]
fn a_scan_ends_however_many_users_are_slow() {
    let _alone = alone();
    let limits = Limits { scan: 5, user_of: |pid| Some(pid as u32), ..LIMITS };
    let look = |_| thread::sleep(LIMITS.tick);
    let (mut answered, mut not_asked) = (0, 0);
    ask((FIRST..FIRST + 100).collect(), limits, look, |_, looked| match looked {
        Ok(()) => answered += 1,
        Err(_) => not_asked += 1,
    });
    assert!((1..50).contains(&answered) && answered + not_asked == 100, "{answered} answered, {not_asked} not asked");
}
