//! Turns of processes, so that the processes of one user do not delay the processes of other users.

use crate::decision::Identity;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Processes that wait for their turn.
#[derive(Debug, Default)]
pub(super) struct Turns {
    users: BTreeMap<u32, OfUser>,
}

#[derive(Debug, Default)]
struct OfUser {
    used: Duration,
    waiting: VecDeque<Identity>,
}

impl Turns {
    /// Turns of processes with their users. The processes of one user keep their order.
    pub(super) fn of(processes: impl IntoIterator<Item = (u32, Identity)>) -> Self {
        let mut turns = Self::default();
        processes.into_iter().for_each(|(user, process)| turns.add(user, process));
        turns
    }

    /// Adds a process after the other processes of the same user.
    pub(super) fn add(&mut self, user: u32, process: Identity) {
        self.users.entry(user).or_default().waiting.push_back(process);
    }

    /// The next process: of the user whose processes have used the least time so far.
    pub(super) fn next(&mut self) -> Option<(u32, Identity)> {
        let waiting = self.users.iter_mut().filter(|(_, user)| !user.waiting.is_empty());
        let (&user, next) = waiting.min_by_key(|(_, user)| user.used)?;
        Some((user, next.waiting.pop_front()?))
    }

    /// Adds the time of a turn.
    pub(super) fn spent(&mut self, user: u32, time: Duration) {
        self.users.entry(user).or_default().used += time;
    }

    /// Time of all turns of a user.
    pub(super) fn used(&self, user: u32) -> Duration {
        self.users.get(&user).map_or(Duration::ZERO, |user| user.used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_who_has_used_the_least_time_is_next() {
        let process = |pid| Identity { pid, start: 1 };
        let mut turns = Turns::of([(5, 1), (5, 2), (5, 3), (7, 4), (7, 5)].map(|(user, pid)| (user, process(pid))));
        let mut order = Vec::new();
        while let Some((user, process)) = turns.next() {
            order.push(process.pid);
            turns.spent(user, Duration::from_secs(if user == 5 { 30 } else { 1 }));
            if process.pid == 4 && !order[..order.len() - 1].contains(&4) {
                turns.add(7, process);
            }
            if order.len() == 4 {
                assert_eq!(turns.used(7), Duration::from_secs(3));
            }
        }
        assert_eq!(order, [1, 4, 5, 4, 2, 3]);
        assert_eq!((turns.used(5), turns.used(9)), (Duration::from_secs(90), Duration::ZERO));
    }
}
