//! One measurement at a time: started, watched at each tick, and ended with a decision or a reason.

use super::action::{Action, Named};
use super::ending::{Recent, crash_while_measured};
use super::examination::Perform;
use super::ledger::{Block, Entry, Ledger};
use super::restore::{postponed_with, warn};
use super::round::week_time;
use super::spawn::Ongoing;
use super::stuck_workers::LONGEST_DEATH;
use super::switch::Switch;
use super::{Agent, Candidate, unix_time};
use crate::decision::{
    Course, Event, Identity, Pending, Progress, Reason, Refusal, State, cost_of_measurement, course,
    least_cpu_to_measure, most_of_measurement, of_hours, of_machine,
};
use crate::discovery::{Sampler, conditions, executed_file, forks};
use crate::verdicts::{Key, Measurement, Standing, decision_text, gain_text};
use crate::worker::Task;
use address_space::counted;
use linux::process_handle::ProcessHandle;
use machine_facts::System;
use measure::sequential::ResultLine;
use options::Choice;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Time after which a measurement ends undecided.
pub const LONGEST: Duration = Duration::from_secs(600);
/// Time beyond that for the start and the end.
const MARGIN: Duration = Duration::from_secs(120);
/// Time within which a measurement restores its program and ends: a thread in uninterruptible sleep delays that.
const LONGEST_END: Duration = Duration::from_secs(20);
/// Time between two looks while the end of a measurement is waited for.
const LOOK: Duration = Duration::from_millis(20);

/// A measurement that runs.
pub(super) struct Measuring {
    named: Named,
    entry: Entry,
    key: Key,
    handle: ProcessHandle,
    ongoing: Box<dyn Ongoing>,
    begun: Instant,
    estimate: Duration,
    blocks: u64,
    /// Pauses that were added to the budget.
    paused: Duration,
    /// Why it was asked to end, and when.
    stopped: Option<(Stop, Instant)>,
    /// The time of its SIGKILL.
    killed: Option<Instant>,
}

/// Why a measurement is ended before its decision.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stop {
    /// For a reason outside the program: it may be measured later.
    Postponed,
    /// Counts as a refusal.
    Refused(Refusal),
    /// The build is blocked.
    Blocked(String),
}

impl Measuring {
    pub(super) fn cpu(&self) -> Duration {
        self.ongoing.cpu()
    }

    /// The process, with the blocks so far.
    pub(super) fn progress(&self) -> (&Named, u64) {
        (&self.named, self.blocks)
    }

    /// True if it was killed and does not end: it is in an uninterruptible sleep.
    pub(super) fn is_stuck(&self) -> bool {
        self.killed.is_some_and(|at| at.elapsed() > LONGEST_DEATH)
    }

    fn stop(&mut self, why: Stop) {
        if self.stopped.is_none() {
            self.ongoing.stop();
            self.stopped = Some((why, Instant::now()));
        }
    }
}

impl Agent<'_> {
    /// The treatment of a candidate by the verdicts.
    pub(super) fn course_of(&self, candidate: &Candidate) -> Course {
        let identity = candidate.sample.identity;
        let Some((tracked, program)) =
            self.tracked.get(&identity).and_then(|tracked| Some((tracked, tracked.program.as_ref()?)))
        else {
            return Course::Lift;
        };
        let known = self.known.summary(program, &candidate.order, &self.machine.boot, unix_time());
        let pending = Pending { identity, order: &candidate.order, pays: tracked.pays };
        course(pending, &known, &self.machine.id, &self.machine.boot)
    }

    /// CPU time that all processes of a candidate's build have used, and the time that a measurement needs. `None`: it is not
    /// measured first.
    pub(super) fn paid_for_measurement(&self, candidate: &Candidate) -> Option<(Duration, Duration)> {
        if self.course_of(candidate) != Course::Measure {
            return None;
        }
        let program = self.tracked.get(&candidate.sample.identity)?.program.as_ref()?;
        let known = self.known.summary(program, &candidate.order, &self.machine.boot, unix_time());
        let of_build = self.tracked.values().filter(|tracked| {
            tracked.program.as_ref().is_some_and(|other| (&other.build, other.owner) == (&program.build, program.owner))
        });
        let used = of_build.map(|tracked| tracked.used).fold(Duration::ZERO, Duration::saturating_add);
        Some((used, least_cpu_to_measure(self.estimate(candidate), &known, &self.configuration.settings)))
    }

    /// CPU time of the measurement of a candidate.
    pub(super) fn estimate(&self, candidate: &Candidate) -> Duration {
        let program = self.tracked.get(&candidate.sample.identity).and_then(|tracked| tracked.program.as_ref());
        cost_of_measurement(program.map_or(0, |program| program.read_only))
    }

    /// Starts a measurement. Returns true if there is one now.
    pub(super) fn measure(&mut self, candidate: &Candidate) -> io::Result<bool> {
        let identity = candidate.sample.identity;
        // The handle keeps referring to this process.
        let Ok(handle) = ProcessHandle::open(identity.pid) else { return Ok(false) };
        let is_same = Sampler::now()?.sample(identity.pid).is_some_and(|sample| sample.identity == identity);
        let (estimate, most) = (self.estimate(candidate), self.most_of(candidate));
        let Some(tracked) = self.tracked.get_mut(&identity).filter(|_| is_same) else { return Ok(false) };
        let (Some(file), Some(program)) = (tracked.file, &tracked.program) else { return Ok(false) };
        let progress = tracked.progress.after(Event::Measuring);
        if executed_file(identity.pid) != Some(file) || progress.state != State::Measuring {
            return Ok(false);
        }
        tracked.progress = progress;
        let order = &candidate.order;
        let key = self.known.key(program, order);
        let rule = &candidate.named.rule;
        let entry = Entry {
            options: key.options.clone(),
            ..Entry::new(identity, file, program, rule, &order.kind_words(), progress, unix_time())
        };
        self.ledger.put(entry.clone());
        self.ledger.save(&self.paths.state)?;
        let (pages, kinds) = (order.pages.word(), order.kind_words().join(","));
        // Rules, `off` and holdouts decide about each other process.
        let mut options = vec!["--leave-plain".to_owned(), "--only-forks".to_owned()];
        options.extend([format!("--pages={pages}"), format!("--lift={kinds}")]);
        options.extend(most.map(|most| format!("--max-memory={most}")));
        let named = candidate.named.clone();
        match self.worker.measure(identity.pid, &options, LONGEST, &self.paths.state) {
            Ok(ongoing) => {
                let kinds = order.kind_words().join(", ");
                (self.report)(&Action::Measuring { named: named.clone(), kinds, cost: estimate });
                let begun = Instant::now();
                let measuring = Measuring {
                    named,
                    entry,
                    key,
                    handle,
                    ongoing,
                    begun,
                    estimate,
                    blocks: 0,
                    paused: Duration::ZERO,
                    stopped: None,
                    killed: None,
                };
                self.measuring = Some(measuring);
                Ok(true)
            }
            Err(why) => {
                self.postpone(&entry)?;
                self.refuse(&named, &Refusal::new(Reason::NotMeasured, why));
                Ok(false)
            }
        }
    }

    /// Looks after the measurement that runs. Returns true if it has ended.
    pub(super) fn follow_measuring(&mut self) -> io::Result<bool> {
        let Some(mut measuring) = self.measuring.take() else { return Ok(false) };
        let end = measuring.ongoing.poll();
        let seen = measuring.ongoing.seen();
        self.ledger.counts.measured_blocks += seen.blocks - measuring.blocks;
        measuring.blocks = seen.blocks;
        self.pauses += seen.paused.saturating_sub(measuring.paused);
        measuring.paused = seen.paused;
        if let Some(end) = end {
            if seen.blocks > 0 {
                self.pause_histogram.add(seen.longest_pause);
            }
            self.ended(measuring, end)?;
            return Ok(true);
        }
        if let Some(why) = self.obstacle_of(&measuring) {
            measuring.stop(why);
        }
        if measuring.stopped.as_ref().is_some_and(|(_, at)| at.elapsed() > LONGEST_END) {
            measuring.ongoing.kill();
            measuring.killed.get_or_insert_with(Instant::now);
        }
        self.measuring = Some(measuring);
        Ok(false)
    }

    /// The reason to end a measurement early.
    fn obstacle_of(&self, measuring: &Measuring) -> Option<Stop> {
        let settings = &self.configuration.settings;
        let identity = measuring.entry.identity;
        if !self.is_measuring(identity) || Switch::read(&self.paths.switch) != Switch::Off {
            return Some(Stop::Postponed);
        }
        let pause = measuring.ongoing.seen().longest_pause;
        if pause > settings.max_pause {
            return Some(Stop::Blocked(format!(
                "a pause of its measurement was {:.1} ms; needed: at most {} ms (max_pause)",
                pause.as_secs_f64() * 1e3,
                settings.max_pause.as_millis()
            )));
        }
        let refused = |text: String| Some(Stop::Refused(Refusal::new(Reason::NotMeasured, text)));
        let (cpu, most) = (measuring.cpu(), most_of_measurement(measuring.estimate));
        if cpu > most {
            return refused(format!(
                "its measurement has used {} s of CPU time; needed: at most {} s",
                cpu.as_secs(),
                most.as_secs()
            ));
        }
        if measuring.begun.elapsed() > LONGEST + MARGIN {
            return refused(format!("its measurement took longer than {} s", (LONGEST + MARGIN).as_secs()));
        }
        let waits =
            of_hours(settings, week_time()).or_else(|| of_machine(&conditions(&System, identity.pid), settings));
        waits.map(Stop::Refused)
    }

    fn is_measuring(&self, identity: Identity) -> bool {
        self.tracked.get(&identity).is_some_and(|tracked| tracked.progress.state == State::Measuring)
    }

    /// Stops the measurement for a reason outside its program.
    pub(super) fn stop_measuring(&mut self) {
        if let Some(measuring) = &mut self.measuring {
            measuring.stop(Stop::Postponed);
        }
    }

    /// Ends the measurement, and waits for that, unless SIGKILL does not end it.
    pub(super) fn end_measuring(&mut self) -> io::Result<()> {
        while self.measuring.is_some() && !self.has_stuck_measurement() {
            self.stop_measuring();
            if !self.follow_measuring()? {
                thread::sleep(LOOK);
                self.meanwhile(Task::Restore);
            }
        }
        Ok(())
    }

    /// The measurement has ended: with a decision, with a reason, or as it was asked to.
    fn ended(&mut self, measuring: Measuring, end: Result<ResultLine, String>) -> io::Result<()> {
        let Measuring { named, entry, key, handle, ongoing, stopped, begun, .. } = measuring;
        // The lock of workers ends with it.
        drop(ongoing);
        let (build, owner, user) = (entry.build.clone(), entry.owner, entry.user);
        let measured = Recent { named: named.clone(), build, owner, user, handle, at: Instant::now() };
        if let Ok(status) = measured.ended() {
            return self.ended_in_lift(&entry, crash_while_measured(status, begun.elapsed()));
        }
        // Without a last line the program may be in any state.
        let plain = match end {
            Ok(_) => forks(entry.identity, entry.file),
            Err(_) => match self.restore_measured(&entry)? {
                Some(forks) => forks,
                None => return Ok(()),
            },
        };
        for fork in postponed_with(&mut self.ledger, entry.identity, &plain) {
            self.set(fork.identity, fork.progress);
        }
        // It has executed another program.
        if !self.is_measuring(entry.identity) || entry.file.was_left_for(executed_file(entry.identity.pid)) {
            self.tracked.remove(&entry.identity);
            self.ledger.lifts.retain(|other| other.identity != entry.identity);
            return self.ledger.save(&self.paths.state);
        }
        self.watch(measured);
        match (stopped.map(|(why, _)| why), end) {
            (Some(Stop::Postponed), _) => self.postpone(&entry),
            (Some(Stop::Refused(refusal)), _) => self.not_measured(&entry, refusal),
            (Some(Stop::Blocked(why)), _) => self.block_measured(&entry, why),
            (None, Err(why)) => self.not_measured(&entry, Refusal::new(Reason::NotMeasured, why)),
            (None, Ok(result)) => self.decided(named, &entry, key, &result),
        }
    }

    /// Keeps the result, and leaves the process plain or eligible for its lift.
    fn decided(&mut self, named: Named, entry: &Entry, key: Key, result: &ResultLine) -> io::Result<()> {
        self.ledger.counts.measurements += 1;
        let measurement = Measurement::of(result, &self.machine.boot, unix_time());
        if let Err(error) = self.known.add(key.clone(), &foreign_text::printable(&entry.program), measurement) {
            let what = format!("the verdict on {named} was not kept: {error}");
            (self.report)(&Action::Failed { what });
        }
        let gain = result.gain.map_or_else(|| "unknown".to_owned(), gain_text);
        let text =
            format!("{}; gain {gain}, {}", decision_text(result.decision), counted(result.blocks.into(), "block"));
        let pays = result.decision.keeps();
        (self.report)(&Action::Measured { named, text: text.clone(), pays });
        if pays {
            if let Some(tracked) = self.tracked.get_mut(&entry.identity) {
                tracked.pays = true;
            }
            return self.postpone(entry);
        }
        if self.known.standing(&key) == Standing::DoesNotPay {
            self.undo_all_of(entry, &format!("a measurement of another process of its build: {text}"));
        }
        self.ledger.count(Reason::NoGain);
        self.put(entry, entry.progress.after(Event::Undone), Refusal::new(Reason::NoGain, format!("measured: {text}")))
    }

    /// The process may be lifted or measured later.
    fn postpone(&mut self, entry: &Entry) -> io::Result<()> {
        self.set(entry.identity, entry.progress.after(Event::Postponed));
        self.ledger.lifts.retain(|other| other.identity != entry.identity);
        self.ledger.save(&self.paths.state)
    }

    fn not_measured(&mut self, entry: &Entry, refusal: Refusal) -> io::Result<()> {
        let progress = entry.progress.after(Event::Refused);
        self.ledger.count(refusal.reason);
        let action = Action::Refused { named: entry.named(), refusal: refusal.clone(), last: progress.is_final() };
        (self.report)(&action);
        self.put(entry, progress, refusal)
    }

    fn block_measured(&mut self, entry: &Entry, why: String) -> io::Result<()> {
        let Entry { build, owner, user, program, .. } = entry.clone();
        self.ledger.block(Block { build: build.clone(), owner, user, program, why: why.clone() });
        (self.report)(&Action::Blocked { named: entry.named(), build, why: why.clone() });
        self.put(entry, entry.progress.after(Event::Undone), Refusal::new(Reason::Blocked, why))
    }

    /// Restores a process whose measurement has ended without a last line. Returns the forks that were restored with it; `None` if
    /// that failed, so that it counts as lifted until it is restored.
    fn restore_measured(&mut self, entry: &Entry) -> io::Result<Option<Vec<Identity>>> {
        let result = self.perform(&entry.request(Task::Restore, &self.paths.state, self.own));
        let why = match result.and_then(|answer| answer.refusal.clone().map_or(Ok(answer), Err)) {
            Ok(answer) => {
                self.account(&answer);
                warn(self.report, &answer, &entry.named());
                return Ok(Some(answer.forks));
            }
            Err(why) => why,
        };
        (self.report)(&Action::NotRestored { named: entry.named(), why: why.clone() });
        self.put(entry, entry.progress.after(Event::Lifted), Refusal::new(Reason::NotMeasured, why))?;
        Ok(None)
    }

    fn put(&mut self, entry: &Entry, progress: Progress, refusal: Refusal) -> io::Result<()> {
        self.set(entry.identity, progress);
        self.ledger.put(Entry { progress, changed: unix_time(), refusal: Some(refusal), ..entry.clone() });
        self.ledger.save(&self.paths.state)
    }

    pub(super) fn set(&mut self, identity: Identity, progress: Progress) {
        if let Some(tracked) = self.tracked.get_mut(&identity) {
            tracked.progress = progress;
        }
    }
}

/// Restores processes that a killed agent was measuring. They may be measured again.
pub(super) fn settle_measured(
    ledger: &mut Ledger,
    perform: &mut Perform<'_>,
    state: &Path,
    own: Identity,
    report: &mut dyn FnMut(&Action),
) {
    let is_begun = |entry: &&Entry| entry.progress.state == State::Measuring;
    let interrupted: Vec<Entry> = ledger.lifts.iter().filter(is_begun).cloned().collect();
    for entry in interrupted {
        let result = perform(&entry.request(Task::Restore, state, own));
        match result.and_then(|answer| answer.refusal.clone().map_or(Ok(answer), Err)) {
            Ok(answer) => {
                postponed_with(ledger, entry.identity, &answer.forks);
                ledger.lifts.retain(|other| other.identity != entry.identity);
                warn(report, &answer, &entry.named());
            }
            Err(why) => {
                report(&Action::NotRestored { named: entry.named(), why: why.clone() });
                let refusal = Some(Refusal::new(Reason::NotMeasured, why));
                let progress = entry.progress.after(Event::Lifted);
                ledger.put(Entry { progress, refusal, changed: unix_time(), ..entry });
            }
        }
    }
}

#[cfg(test)]
#[path = "measuring_tests.rs"]
mod tests;
