//! Restores the processes that were forked from a lifted one: they have the copies of the lift, too.

use super::{Answer, Request};
use crate::decision::Identity;
use crate::discovery::{Sampler, forks};
use linux::process_handle::ProcessHandle;
use session::SessionError;
use session::running::{Selected, detach};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Number of times that forks of a restored process are searched for.
const MOST_GENERATIONS: usize = 8;
/// Number of forks that stay lifted whose reason is reported.
const MOST_REASONS: usize = 8;

/// The answer with the forks of the request's process that were restored. They are tried in a random order, so that a later request
/// reaches those for which this one has no time.
pub(super) fn restore_forks(answer: Answer, request: &Request) -> Answer {
    let Some(file) = request.file else { return answer };
    let find = || {
        let mut found = forks(request.identity, file);
        fastrand::shuffle(&mut found);
        found
    };
    let (begun, most) = (Instant::now(), Duration::from_secs(request.fork_seconds));
    with_forks(answer, request, find, restore_fork, || begun.elapsed() < most)
}

/// The answer with the forks that were restored, and a warning about the others. Each fork that is not in `tried` is tried once, as
/// long as `has_time`.
fn with_forks(
    mut answer: Answer,
    request: &Request,
    find: impl Fn() -> Vec<Identity>,
    mut restore: impl FnMut(Identity) -> Result<u64, SessionError>,
    has_time: impl Fn() -> bool,
) -> Answer {
    let mut tried: BTreeSet<Identity> = request.tried.iter().copied().collect();
    let mut reasons = Vec::new();
    // A fork may fork before it is restored.
    for _ in 0..MOST_GENERATIONS {
        let new: Vec<Identity> = find().into_iter().filter(|fork| !tried.contains(fork)).collect();
        if new.is_empty() || answer.late_forks > 0 {
            break;
        }
        for &fork in &new {
            if !has_time() {
                answer.late_forks += 1;
                continue;
            }
            match restore(fork) {
                Ok(restored) => {
                    answer.covered = answer.covered.saturating_add(restored);
                    answer.forks.push(fork);
                }
                Err(error) => {
                    answer.refused_forks.push(fork);
                    reasons.push(format!("{}: {}", fork.pid, error.in_full()));
                }
            }
        }
        tried.extend(new);
    }
    let stay = |why: String| format!("processes that were forked from it stay lifted: {why}");
    let reasons = reasons_in_short(reasons, answer.late_forks, request.fork_seconds);
    answer.warning = (!reasons.is_empty()).then(|| stay(reasons));
    answer
}

/// The first reasons, the number of further refused forks, and the number of forks that were not tried.
fn reasons_in_short(mut refused: Vec<String>, late: u64, seconds: u64) -> String {
    let more = refused.len().saturating_sub(MOST_REASONS);
    refused.truncate(MOST_REASONS);
    if more > 0 {
        refused.push(format!("… and {more} more"));
    }
    if late > 0 {
        refused.push(format!("{late} not tried within {seconds} s"));
    }
    refused.join("; ")
}

/// Restores one fork. Returns the bytes that are back on their files.
fn restore_fork(fork: Identity) -> Result<u64, SessionError> {
    let Ok(handle) = ProcessHandle::open(fork.pid) else { return Ok(0) };
    if Sampler::now().ok().and_then(|sampler| sampler.sample(fork.pid)).map(|sample| sample.identity) != Some(fork) {
        return Ok(0);
    }
    match detach(&Selected { handle: Some(&handle), ..Selected::by_number(fork.pid) }) {
        Ok(detached) => Ok(detached.map_or(0, |detached| detached.restored)),
        Err(_) if !handle.is_alive() => Ok(0),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::Task;
    use std::cell::Cell;
    use std::path::PathBuf;

    fn request(tried: &[Identity]) -> Request {
        let own = Identity { pid: 9, start: 9 };
        Request {
            task: Task::RestoreForks,
            identity: own,
            file: None,
            kinds: Vec::new(),
            pages: "auto".to_owned(),
            max_memory: None,
            state: PathBuf::new(),
            supervisor: own,
            beside: false,
            fork_seconds: 120,
            tried: tried.to_vec(),
        }
    }

    #[test]
    fn forks_that_cannot_be_restored_are_none_of_the_answer() {
        let forks = [1, 2, 3].map(|pid| Identity { pid, start: 5 });
        let mut tried = Vec::new();
        let restore = |fork: Identity| {
            tried.push(fork.pid);
            if fork.pid == 2 { Err(SessionError::Refused("no".to_owned())) } else { Ok(4) }
        };
        let answer =
            with_forks(Answer { covered: 9, ..Answer::default() }, &request(&[]), || forks.to_vec(), restore, || true);
        assert_eq!((answer.covered, answer.forks), (17, vec![forks[0], forks[2]]));
        assert_eq!(answer.warning.unwrap(), "processes that were forked from it stay lifted: 2: no");
        assert_eq!(tried, [1, 2, 3]);
    }

    /// A user can make hundreds of forks that do not stop.
    #[test]
    fn forks_do_not_use_up_the_time_of_other_restores() {
        let forks: Vec<Identity> = (1..=600).map(|pid| Identity { pid, start: 5 }).collect();
        let tries = Cell::new(0);
        let restore = |_| {
            tries.set(tries.get() + 1);
            Err(SessionError::Refused("no".to_owned()))
        };
        let answer = with_forks(Answer::default(), &request(&[]), || forks.clone(), restore, || tries.get() < 20);
        assert_eq!((tries.get(), answer.refusal.as_deref()), (20, None), "the process itself is restored");
        assert_eq!((answer.lifted_forks(), answer.refused_forks.len()), (600, 20));
        let warning = answer.warning.unwrap();
        assert!(warning.contains("8: no; … and 12 more; 580 not tried within 120 s"), "{warning}");
        assert!(warning.len() < 1000, "{}", warning.len());
    }

    /// A request for the rest does not stop the processes of the first one again.
    #[test]
    fn forks_that_were_tried_are_left_out() {
        let forks = [1, 2, 3].map(|pid| Identity { pid, start: 5 });
        let answer = with_forks(Answer::default(), &request(&forks[..2]), || forks.to_vec(), |_| Ok(4), || true);
        assert_eq!((answer.covered, answer.forks, answer.warning), (4, vec![forks[2]], None));
    }
}
