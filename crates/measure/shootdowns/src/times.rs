//! Time that senders wait and receivers are interrupted, from the records of one window.
//!
//! A sender queues a request for each CPU (`csd:csd_queue_cpu`) and waits until the last has been served; a receiver
//! serves each between `csd_function_entry` and `csd_function_exit`. Kernels without these events, and kernels with
//! hidden addresses of functions, have records of interrupts, without requests, for receivers alone. Pairs that the
//! window cuts do not count.

use crate::lives::Life;
use std::collections::HashMap;

/// Maximum number of processes with times. It exceeds the maximum number of processes with counts.
const MOST_TIMES: usize = 16_384;

/// One record of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Nanoseconds.
    pub time: u64,
    /// CPU of the record.
    pub cpu: u32,
    /// Current process.
    pub pid: i32,
    /// Current thread.
    pub tid: i32,
    /// The event.
    pub step: Step,
    /// The request's address, by which its records belong together.
    pub request: u64,
}

/// A step of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Its sender has queued it.
    Queued,
    /// Its receiver begins to serve it.
    Entered,
    /// Its receiver is done.
    Left,
}

/// A sum of times and their number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Nanoseconds together.
    pub nanoseconds: u64,
    /// Times that were measured.
    pub count: u64,
}

impl Times {
    fn add(&mut self, nanoseconds: u64) {
        self.nanoseconds += nanoseconds;
        self.count += 1;
    }

    /// Nanoseconds on average; `None` if none was measured.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.nanoseconds as f64 / self.count as f64)
    }
}

/// Times by process.
#[derive(Clone, Debug, Default)]
pub struct TimesByProcess {
    /// From the first request to the last answer, by the sender's process.
    pub waited: HashMap<Life, Times>,
    /// In the handler, by the process that was interrupted.
    pub interrupted: HashMap<Life, Times>,
    /// Sums that were dropped to bound memory.
    pub left_out: u64,
}

/// A shootdown under way.
#[derive(Clone, Copy)]
struct Open {
    life: Life,
    since: u64,
    unanswered: u32,
}

impl TimesByProcess {
    /// Adds the records of one window, in any order. `life` finds a process at a time.
    pub fn add(&mut self, window: &mut [Moment], life: impl Fn(i32, u64) -> Life) {
        window.sort_by_key(|moment| moment.time);
        let mut open: HashMap<i32, Open> = HashMap::new();
        let mut senders: HashMap<u64, i32> = HashMap::new();
        let mut entered: HashMap<u32, Moment> = HashMap::new();
        for moment in window {
            match moment.step {
                Step::Queued => {
                    let new = || Open { life: life(moment.pid, moment.time), since: moment.time, unanswered: 0 };
                    open.entry(moment.tid).or_insert_with(new).unanswered += 1;
                    senders.insert(moment.request, moment.tid);
                }
                Step::Entered => {
                    entered.insert(moment.cpu, *moment);
                }
                Step::Left => {
                    if let Some(begin) = entered.remove(&moment.cpu).filter(|begin| begin.request == moment.request) {
                        let taken = moment.time.saturating_sub(begin.time);
                        self.interrupted.entry(life(moment.pid, begin.time)).or_default().add(taken);
                    }
                    self.answer(moment, &mut open, &mut senders);
                }
            }
        }
    }

    /// Drops the times of all but these processes if there are too many.
    pub fn make_room(&mut self, is_kept: impl Fn(Life) -> bool) {
        for times in [&mut self.waited, &mut self.interrupted] {
            let before = times.len();
            if before > MOST_TIMES {
                times.retain(|&life, _| is_kept(life));
            }
            self.left_out += (before - times.len()) as u64;
        }
    }

    fn answer(&mut self, moment: &Moment, open: &mut HashMap<i32, Open>, senders: &mut HashMap<u64, i32>) {
        let Some(sender) = senders.remove(&moment.request) else { return };
        let Some(shootdown) = open.get_mut(&sender) else { return };
        shootdown.unanswered = shootdown.unanswered.saturating_sub(1);
        if shootdown.unanswered == 0 {
            self.waited.entry(shootdown.life).or_default().add(moment.time.saturating_sub(shootdown.since));
            open.remove(&sender);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(time: u64, cpu: u32, tid: i32, step: Step, request: u64) -> Moment {
        Moment { time, cpu, pid: tid / 10, tid, step, request }
    }

    /// Every process began before the watch.
    fn old(pid: i32, _time: u64) -> Life {
        Life { pid, since: 0 }
    }

    #[test]
    fn a_sender_waits_for_the_last_answer() {
        let mut times = TimesByProcess::default();
        // In the order of their rings, not of time.
        let mut window = [
            moment(100, 0, 10, Step::Queued, 1),
            moment(110, 0, 10, Step::Queued, 2),
            moment(130, 1, 20, Step::Entered, 1),
            moment(150, 1, 20, Step::Left, 1),
            moment(140, 2, 30, Step::Entered, 2),
            moment(190, 2, 30, Step::Left, 2),
        ];
        window.reverse();
        times.add(&mut window, old);
        assert_eq!(times.waited[&old(1, 0)], Times { nanoseconds: 90, count: 1 });
        assert_eq!(times.interrupted[&old(2, 0)], Times { nanoseconds: 20, count: 1 });
        assert_eq!(times.interrupted[&old(3, 0)].mean(), Some(50.0));
    }

    #[test]
    fn interrupts_without_requests_tell_the_time_of_receivers() {
        let mut times = TimesByProcess::default();
        let step = |time, cpu, step| moment(time, cpu, 20, step, 0);
        times.add(
            &mut [
                step(10, 1, Step::Entered),
                step(12, 2, Step::Entered),
                step(15, 1, Step::Left),
                step(30, 2, Step::Left),
            ],
            old,
        );
        assert_eq!(times.interrupted[&old(2, 0)], Times { nanoseconds: 23, count: 2 });
        assert!(times.waited.is_empty());
    }

    #[test]
    fn what_the_window_cuts_does_not_count() {
        let mut times = TimesByProcess::default();
        times.add(&mut [moment(5, 1, 20, Step::Left, 1), moment(9, 0, 10, Step::Queued, 2)], old);
        times.add(&mut [moment(10, 1, 20, Step::Entered, 2), moment(12, 1, 20, Step::Left, 2)], old);
        assert!(times.waited.is_empty(), "{times:?}");
        assert_eq!(times.interrupted[&old(2, 0)].count, 1);
    }

    #[test]
    fn the_number_of_processes_is_bounded() {
        let mut times = TimesByProcess::default();
        let most = MOST_TIMES as i32;
        times.waited = (0..=most).map(|pid| (old(pid, 0), Times::default())).collect();
        times.interrupted = (0..most).map(|pid| (old(pid, 0), Times::default())).collect();
        times.make_room(|life| life.pid < 10);
        assert_eq!(
            (times.waited.len(), times.interrupted.len(), times.left_out),
            (10, MOST_TIMES, MOST_TIMES as u64 - 9)
        );
    }

    #[test]
    fn a_program_that_is_executed_has_its_own_times() {
        let mut times = TimesByProcess::default();
        let by_time = |pid, time: u64| Life { pid, since: if time < 15 { 0 } else { 15 } };
        let step = |time, step| moment(time, 1, 20, step, 0);
        let window = [(10, Step::Entered), (12, Step::Left), (20, Step::Entered), (25, Step::Left)];
        times.add(&mut window.map(|(time, of)| step(time, of)), by_time);
        assert_eq!([0, 15].map(|since| times.interrupted[&Life { pid: 2, since }].nanoseconds), [2, 5]);
    }
}
