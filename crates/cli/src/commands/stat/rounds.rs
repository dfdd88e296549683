//! Rounds of clearing and counting the accessed marks of a process, spread over the time of a measurement: what `stat`,
//! `doctor` and `inspect` know of the pages in use.

use super::{Marks, Outcome};
use crate::commands::status::explain;
use confinement::{Reads, confine};
use linux::urgency::Urgency;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use working_set::{Observer, Options, Reach, WorkingSetError, verdicts};

/// Rounds in one measurement: the median of three leaves one outlier out, and the process is disturbed little.
const ROUNDS: u32 = 3;
/// Of the time of a measurement, the share that rounds may take.
const SHARE: f64 = 0.5;

/// How often a round may be due.
const LOOK: Duration = Duration::from_millis(20);
/// The longest time in milliseconds for which a process may have to wait for the map of its memory, where none is asked for.
pub const USUAL_STALL: u64 = 50;
/// A measurement so short that it has one round, up to the last point of the curve.
const FOR_ONE_ROUND: Duration = Duration::from_secs(1);

/// Rounds in a thread of their own. It comes before all others where it may: waiting for a CPU it would hold the map of the
/// process's memory all that time. It has rights to read only, apart from clearing the marks.
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
            // The main thread says why rights were kept.
            let _ = confine(Reads::Processes);
            rounds.when_due();
            while end.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                rounds.when_due();
            }
            rounds
        });
        Self { told_to_end, thread }
    }

    /// Ends after the round that is being made, and says what all have shown.
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
    apart: Duration,
}

impl Rounds {
    /// Opens the process for rounds in a measurement of this time; `stall` is the longest time that its map may be held.
    pub fn open(pid: i32, time: Duration, stall: Duration) -> Self {
        Self::open_for("stat -p", pid, time, stall)
    }

    /// Opens the process for one round; `command` is what a user repeats with more rights.
    pub fn open_for_one(command: &str, pid: i32, stall: Duration) -> Self {
        Self::open_for(command, pid, FOR_ONE_ROUND, stall)
    }

    fn open_for(command: &str, pid: i32, time: Duration, stall: Duration) -> Self {
        let mut options = Options { longest_hold: stall, ..Options::default() };
        options.points.retain(|&point| point <= time.mul_f64(SHARE));
        let observer = match stall {
            Duration::ZERO => Err("--stall 0".to_owned()),
            _ => Observer::open(pid, options).map_err(|error| said(error, command)),
        };
        Self { observer, command: command.to_owned(), made: 0, next: Instant::now(), apart: time / ROUNDS }
    }

    /// Makes a round if one is due.
    fn when_due(&mut self) {
        let Ok(observer) = &mut self.observer else { return };
        if self.made >= ROUNDS || Instant::now() < self.next || observer.took_too_long() {
            return;
        }
        self.made += 1;
        self.next = Instant::now() + self.apart.max(2 * observer.round_time());
        if let Err(error) = observer.round()
            && self.made == 1
        {
            self.observer = Err(said(error, &self.command));
        }
    }

    /// What they have shown.
    fn finish(self, reach: &Reach) -> Outcome<Marks> {
        match self.observer.map(Observer::finish) {
            Ok(Some(working_set)) => {
                let verdicts = verdicts(&working_set, reach);
                Outcome::Measured(Marks { working_set, verdicts })
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
