//! Rounds of clearing and counting the accessed marks of a process, spread over the time of a measurement: the source
//! of the pages in use for `stat`, `doctor` and `inspect`.

use super::{Marks, Outcome};
use crate::commands::status::explain;
use confinement::{Reads, confine};
use linux::urgency::Urgency;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use translation::working_set::{Observer, Options, Reach, WorkingSetError, verdicts};

/// Rounds in one measurement: the median of three leaves one outlier out, and the process is disturbed little.
const ROUNDS: u32 = 3;
/// Share of the time of a measurement that rounds may take.
const SHARE: f64 = 0.5;

/// Interval between checks for a due round.
const LOOK: Duration = Duration::from_millis(20);
/// Longest time for which a process may have to wait for the map of its memory, unless another one is given.
pub const USUAL_STALL: Duration = Duration::from_millis(50);
/// The word for it.
pub const USUAL_STALL_WORD: &str = "50ms";
/// A measurement so short that it has one round, up to the last point of the curve.
const FOR_ONE_ROUND: Duration = Duration::from_secs(1);

/// Rounds in a separate thread. It has priority over all others if permitted: while waiting for a CPU it would hold the
/// map of the process's memory. It has rights to read only, apart from clearing the marks.
pub struct Watch {
    told_to_end: Sender<()>,
    thread: JoinHandle<Rounds>,
}

impl Watch {
    /// Starts making rounds.
    pub fn start(mut rounds: Rounds) -> Self {
        let (told_to_end, end) = channel();
        let thread = thread::spawn(move || {
            let _urgent = Urgency::raise();
            // The main thread reports why rights were kept.
            let _ = confine(Reads::Processes);
            rounds.when_due();
            while end.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                rounds.when_due();
            }
            rounds
        });
        Self { told_to_end, thread }
    }

    /// Ends after the present round, and returns the result of all.
    pub fn finish(self, reach: &Reach) -> Outcome<Marks> {
        drop(self.told_to_end);
        match self.thread.join() {
            Ok(rounds) => rounds.finish(reach),
            Err(_) => Outcome::NotMeasured("the thread that reads the marks has failed".to_owned()),
        }
    }
}

/// The rounds of one process.
pub struct Rounds {
    observer: Result<Observer, String>,
    command: String,
    made: u32,
    next: Instant,
    plan: Plan,
}

/// When rounds are made.
#[derive(Clone, Copy)]
enum Plan {
    /// At this interval, over the time of the measurement.
    Apart(Duration),
    /// For a command that was started at `started`, and whose end is unknown: each round begins twice as late as the
    /// one before, and lasts no longer than half of the time that the command has run. So the start, in which a program
    /// behaves differently, has short rounds, and a run of a second has a curve. No round begins after `until`.
    Doubling { started: Instant, until: Option<Duration> },
}

impl Plan {
    /// Returns the longest point of the curve of a round that begins now, and when the next one is due. A whole round takes
    /// `round_time`.
    fn round(self, now: Instant, round_time: Duration) -> (Duration, Instant) {
        match self {
            Self::Apart(apart) => (Duration::MAX, now + apart.max(2 * round_time)),
            Self::Doubling { started, .. } => ((now - started).mul_f64(SHARE), now + (now - started)),
        }
    }
}

impl Rounds {
    /// Opens the process for rounds in a measurement of this time; `stall` is the longest time that its map may be held.
    pub fn open(pid: i32, time: Duration, stall: Duration) -> Self {
        Self::open_for("stat -p", pid, time, stall)
    }

    /// Opens the process for one round; `command` is the command for a user to repeat with more rights.
    pub fn open_for_one(command: &str, pid: i32, stall: Duration) -> Self {
        Self::open_for(command, pid, FOR_ONE_ROUND, stall)
    }

    /// Opens a command that was started then, for rounds until it ends or this time is over.
    pub fn open_command(pid: i32, started: Instant, until: Option<Duration>, stall: Duration) -> Self {
        let options = Options { longest_hold: stall, since: started, is_starting: true, ..Options::default() };
        Self::with("stat -p", pid, options, Plan::Doubling { started, until })
    }

    fn open_for(command: &str, pid: i32, time: Duration, stall: Duration) -> Self {
        let mut options = Options { longest_hold: stall, ..Options::default() };
        options.points.retain(|&point| point <= time.mul_f64(SHARE));
        Self::with(command, pid, options, Plan::Apart(time / ROUNDS))
    }

    fn with(command: &str, pid: i32, options: Options, plan: Plan) -> Self {
        let stall = options.longest_hold;
        let observer = match stall {
            Duration::ZERO => Err("--stall 0".to_owned()),
            _ => Observer::open(pid, options).map_err(|error| said(error, command)),
        };
        Self { observer, command: command.to_owned(), made: 0, next: Instant::now(), plan }
    }

    /// Makes a round if one is due.
    fn when_due(&mut self) {
        let Ok(observer) = &mut self.observer else { return };
        let now = Instant::now();
        if now < self.next || observer.took_too_long() {
            return;
        }
        let enough = match self.plan {
            Plan::Apart(_) => self.made >= ROUNDS,
            Plan::Doubling { started, until } => {
                observer.whole_rounds() >= ROUNDS as usize || until.is_some_and(|until| now - started >= until)
            }
        };
        if enough {
            return;
        }
        let (longest, next) = self.plan.round(now, observer.round_time());
        self.next = next;
        self.made += 1;
        if let Err(error) = observer.round_within(longest)
            && self.made == 1
        {
            self.observer = Err(said(error, &self.command));
        }
    }

    /// Their results.
    fn finish(self, reach: &Reach) -> Outcome<Marks> {
        match self.observer.map(Observer::finish) {
            Ok(Some(working_set)) => {
                let verdicts = verdicts(&working_set, reach);
                let of_command = matches!(self.plan, Plan::Doubling { .. });
                Outcome::Measured(Marks { working_set, verdicts, of_command })
            }
            Ok(None) => Outcome::NotMeasured("the process ended too soon".to_owned()),
            Err(why) => Outcome::NotMeasured(why),
        }
    }
}

/// The error with the command that fixes it.
fn said(error: WorkingSetError, command: &str) -> String {
    match error {
        WorkingSetError::Process(error) => explain(error, command).to_string(),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_looked_at_shortly_at_first_and_longer_later() {
        const WHOLE: Duration = Duration::from_millis(500);
        let started = Instant::now();
        let plan = Plan::Doubling { started, until: None };
        let mut at = started + Duration::from_millis(200);
        let mut rounds = Vec::new();
        while rounds.len() < 5 {
            let (longest, next) = plan.round(at, WHOLE);
            rounds.push(((at - started).as_millis(), longest.as_millis()));
            at = next;
        }
        assert_eq!(rounds, [(200, 100), (400, 200), (800, 400), (1_600, 800), (3_200, 1_600)]);
        let apart = Plan::Apart(Duration::from_millis(300)).round(started, WHOLE);
        assert_eq!(apart, (Duration::MAX, started + 2 * WHOLE));
    }
}
