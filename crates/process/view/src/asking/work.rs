//! The processes of one scan: those that wait to be asked, by users, and those that are being asked.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The user to whom a process counts; `None` if nobody knows.
pub(super) type User = Option<u32>;

/// Processes of one user that wait.
struct Waiting {
    pids: VecDeque<i32>,
    /// Time that the user's processes took; `None` if no further process of the user is asked now.
    spent: Option<Duration>,
    /// Number of processes asked since the users take turns.
    asked: usize,
}

impl Waiting {
    fn of(pids: VecDeque<i32>) -> Self {
        Self { pids, spent: Some(Duration::ZERO), asked: 0 }
    }
}

/// A read under way.
pub(super) struct UnderWay {
    /// Number of ticks since it began.
    pub age: u32,
    /// Time of the process's start, read before it was asked.
    pub start: Option<u64>,
    /// Known for a read that takes longer than a tick.
    pub user: Option<User>,
    /// Gone once the thread has ended.
    pub thread: Weak<()>,
}

/// The reads of one user that are under way.
pub(super) struct OfUser<'a>(Vec<&'a UnderWay>);

impl OfUser<'_> {
    pub fn older_than(&self, age: u32) -> usize {
        self.0.iter().filter(|read| read.age >= age).count()
    }

    /// The sum of their ages.
    pub fn ticks(&self) -> u32 {
        self.0.iter().fold(0, |sum, read| sum.saturating_add(read.age))
    }
}

/// The present work of the threads.
#[derive(Default)]
pub(super) struct Work {
    /// Those of all users are first under the key `None`, in the order of their numbers.
    waiting: BTreeMap<User, Waiting>,
    under_way: BTreeMap<i32, UnderWay>,
    /// Users of the processes, once the users take turns.
    users: Option<HashMap<i32, User>>,
    /// True once the scan has taken too long.
    is_over: bool,
    /// Number of threads that read.
    pub threads: usize,
}

impl Work {
    pub fn of(pids: Vec<i32>) -> Self {
        Self { waiting: BTreeMap::from([(None, Waiting::of(pids.into()))]), ..Self::default() }
    }

    /// Begins the read of the next process by a thread; without one, the thread ends.
    pub fn next(&mut self, thread: &Arc<()>) -> Option<i32> {
        let Some(pid) = self.next_waiting() else {
            self.threads -= 1;
            return None;
        };
        let user = self.users.as_ref().map(|users| users.get(&pid).copied().flatten());
        self.under_way.insert(pid, UnderWay { age: 0, start: None, user, thread: Arc::downgrade(thread) });
        Some(pid)
    }

    /// The first process of the user who took the least time; if several users took the least, the user who was asked
    /// least often. Short answers count as no time, but many short answers would delay all other users.
    fn next_waiting(&mut self) -> Option<i32> {
        if self.is_over {
            return None;
        }
        let askable = self.waiting.values_mut().filter(|user| !user.pids.is_empty() && user.spent.is_some());
        let next = askable.min_by_key(|user| (user.spent, user.asked))?;
        next.asked += 1;
        next.pids.pop_front()
    }

    /// True if a process may be asked now.
    pub fn has_more(&self) -> bool {
        !self.is_over && self.waiting.values().any(|user| !user.pids.is_empty() && user.spent.is_some())
    }

    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    pub fn older_than(&self, age: u32) -> usize {
        self.under_way.values().filter(|read| read.age >= age).count()
    }

    pub fn set_start(&mut self, pid: i32, start: Option<u64>) {
        if let Some(read) = self.under_way.get_mut(&pid) {
            read.start = start;
        }
    }

    pub fn set_user(&mut self, pid: i32, user: User) {
        if let Some(read) = self.under_way.get_mut(&pid) {
            read.user = Some(user);
        }
    }

    pub fn answered(&mut self, pid: i32) -> Option<UnderWay> {
        self.under_way.remove(&pid)
    }

    /// Counts a tick. Returns the processes that are being asked and whose users are not known.
    pub fn tick(&mut self) -> Vec<i32> {
        self.under_way.values_mut().for_each(|read| read.age += 1);
        self.under_way.iter().filter(|(_, read)| read.user.is_none()).map(|(pid, _)| *pid).collect()
    }

    pub fn ask_no_more(&mut self) {
        self.is_over = true;
    }

    /// The processes that wait.
    pub fn waiting(&self) -> Vec<i32> {
        self.waiting.values().flat_map(|user| &user.pids).copied().collect()
    }

    /// True once the users take turns.
    pub fn is_sorted(&self) -> bool {
        self.users.is_some()
    }

    /// Sorts the processes that wait by their users.
    pub fn sort_by(&mut self, users: &HashMap<i32, User>) {
        for pid in std::mem::take(&mut self.waiting).into_values().flat_map(|user| user.pids) {
            let of_user = self.waiting.entry(users.get(&pid).copied().flatten());
            of_user.or_insert_with(|| Waiting::of(VecDeque::new())).pids.push_back(pid);
        }
        self.users = Some(users.clone());
    }

    /// Sets for each user the time spent, as `spent` returns it for the user and the reads under way.
    pub fn limit_users(&mut self, spent: impl Fn(User, &OfUser) -> Option<Duration>) {
        if self.users.is_none() {
            return;
        }
        for (user, waiting) in &mut self.waiting {
            let reads = self.under_way.values().filter(|read| read.user == Some(*user));
            waiting.spent = spent(*user, &OfUser(reads.collect()));
        }
    }

    /// Takes all reads that are under way, and all processes that wait.
    pub fn take(&mut self) -> (BTreeMap<i32, UnderWay>, Vec<i32>) {
        let waiting = self.waiting();
        self.waiting.clear();
        (std::mem::take(&mut self.under_way), waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_whose_answers_are_short_take_turns() {
        let mut work = Work::of(vec![1, 2, 3, 4, 5, 6]);
        let users: HashMap<i32, User> = (1..=6).map(|pid| (pid, Some(if pid < 5 { 7 } else { 8 }))).collect();
        work.sort_by(&users);
        let thread = Arc::new(());
        let order: Vec<i32> = std::iter::from_fn(|| work.next(&thread)).take(6).collect();
        assert_eq!(order, [1, 5, 2, 6, 3, 4]);
    }
}
