//! The turn of one process: the last checks, the worker, and the entries before and after.

use super::action::Action;
use super::checks::LastChecks;
use super::ending::{Recent, WATCHED, crash, killed_by_lift};
use super::examination::{Examined, examine};
use super::ledger::{Block, Entry};
use super::restore::warn;
use super::switch::Switch;
use super::{Agent, Candidate, unix_time};
use crate::decision::{Course, Event, Progress, Reason, Refusal, State};
use crate::discovery::{Sampler, executed_file};
use crate::rules::{Mode, Settings};
use crate::worker::{Answer, Request, Task};
use linux::process_handle::ProcessHandle;
use options::Choice;
use std::io;
use std::time::{Duration, Instant};

impl Agent<'_> {
    /// Lifts a process, or plans its lift in observe mode. Returns true if a worker was started.
    pub(super) fn turn_of(&mut self, candidate: &Candidate) -> io::Result<bool> {
        if self.has_worker() {
            return Ok(false);
        }
        if let Some(refusal) = self.forbids(candidate) {
            self.refuse(&candidate.named, &refusal);
            return Ok(false);
        }
        let has_worked = match self.configuration.settings.mode {
            Mode::Observe => self.observe(candidate),
            Mode::Act if self.course_of(candidate) == Course::Measure => return self.measure(candidate),
            Mode::Act => self.lift(candidate)?,
        };
        self.advance_budget();
        Ok(has_worked)
    }

    /// Returns the reason against a lift of this process now, from facts that are read at the last moment.
    fn forbids(&self, candidate: &Candidate) -> Option<Refusal> {
        let acts = self.configuration.settings.mode == Mode::Act;
        let tracked = self.tracked.get(&candidate.sample.identity)?;
        let program = tracked.program.as_ref()?;
        if Switch::read(&self.paths.switch) != Switch::Off {
            return Some(Refusal::new(
                Reason::KillSwitch,
                format!("the kill switch {} is on", self.paths.switch.display()),
            ));
        }
        let checks = LastChecks {
            settings: &self.configuration.settings,
            ledger: &self.ledger,
            budget: Some(&self.budget),
            sample: candidate.sample,
            program,
            order: Some(&candidate.order),
            cost: candidate.cost,
            measurement: self.paid_for_measurement(candidate).filter(|_| acts),
        };
        checks.refusals().next()
    }

    /// Most bytes that a lift may make resident by its rule and by both budgets of memory.
    pub(super) fn most_of(&self, candidate: &Candidate) -> Option<u64> {
        let tracked = self.tracked.get(&candidate.sample.identity);
        let cgroup = tracked.and_then(|tracked| tracked.program.as_ref()).map_or("", |program| &program.cgroup);
        let (all, of_cgroup) = self.ledger.resident_of_lifts(cgroup);
        let Settings { max_memory, max_memory_per_cgroup, .. } = self.configuration.settings;
        let left = |most: Option<u64>, used: u64| most.map(|most| most.saturating_sub(used));
        let limits = [candidate.order.max_memory, left(max_memory, all), left(max_memory_per_cgroup, of_cgroup)];
        limits.into_iter().flatten().min()
    }

    fn request(&self, candidate: &Candidate, task: Task) -> Request {
        let order = &candidate.order;
        Request {
            task,
            identity: candidate.sample.identity,
            file: self.tracked.get(&candidate.sample.identity).and_then(|tracked| tracked.file),
            kinds: order.kind_words().into_iter().map(str::to_owned).collect(),
            pages: order.pages.word().to_owned(),
            max_memory: self.most_of(candidate),
            state: self.paths.state.clone(),
            supervisor: self.own,
            beside: false,
            fork_seconds: 0,
            tried: Vec::new(),
        }
    }

    /// Plans the lift of a process. Returns true if a worker was started.
    fn observe(&mut self, candidate: &Candidate) -> bool {
        let answer = self.perform(&self.request(candidate, Task::Plan));
        let named = candidate.named.clone();
        if let Some(tracked) = self.tracked.get_mut(&named.identity) {
            tracked.is_observed = !answer.as_ref().is_ok_and(|answer| answer.not_started);
        }
        let refusal = match answer {
            Ok(answer) if answer.gone => {
                self.forget(named.identity);
                return true;
            }
            Ok(answer) if answer.not_started => {
                let why = answer.refusal.unwrap_or_default();
                self.refuse(&named, &Refusal::new(Reason::WorkerFailed, why));
                return false;
            }
            Ok(Answer { refusal: None, covered, .. }) => {
                let kinds = candidate.order.kind_words().join(", ");
                let is_measured = self.course_of(candidate) == Course::Measure;
                let cost = if is_measured { self.estimate(candidate) } else { candidate.cost };
                let used = candidate.sample.usage.cpu;
                self.ledger.counts.observed += 1;
                (self.report)(&Action::WouldLift { named, kinds, bytes: covered, cost, used, is_measured });
                return true;
            }
            Ok(Answer { refusal: Some(why), .. }) => Refusal::new(Reason::LiftRefused, why),
            Err(why) => Refusal::new(Reason::WorkerFailed, why),
        };
        self.ledger.count(refusal.reason);
        (self.report)(&Action::Refused { named, refusal, last: true });
        true
    }

    /// Lifts, and writes the entries before and after. Returns true if a worker was started.
    fn lift(&mut self, candidate: &Candidate) -> io::Result<bool> {
        let identity = candidate.sample.identity;
        // The handle keeps referring to this process.
        let handle = ProcessHandle::open(identity.pid).ok();
        let is_same = Sampler::now()?.sample(identity.pid).is_some_and(|sample| sample.identity == identity);
        let tracked = self.tracked.get_mut(&identity);
        // The next scan forgets a process that has ended.
        let (Some(handle), Some(tracked), true) = (handle, tracked, is_same) else { return Ok(false) };
        let (Some(file), Some(program)) = (tracked.file, &tracked.program) else { return Ok(false) };
        if executed_file(identity.pid) != Some(file) {
            return Ok(false);
        }
        tracked.progress = tracked.progress.after(Event::Begun);
        if tracked.progress.state != State::Lifting {
            return Ok(false);
        }
        let earlier = self.ledger.lifts.iter().find(|entry| entry.identity == identity).cloned();
        let (rule, kinds) = (&candidate.named.rule, candidate.order.kind_words());
        let entry = Entry {
            options: self.known.key(program, &candidate.order).options,
            covered: earlier.as_ref().map_or(0, |entry| entry.covered),
            resident: earlier.as_ref().map_or(0, |entry| entry.resident),
            lasting: earlier.as_ref().map(|entry| entry.lasting).unwrap_or_default(),
            sources: earlier.as_ref().map(|entry| entry.sources.clone()).unwrap_or_default(),
            ..Entry::new(identity, file, program, rule, &kinds, tracked.progress, unix_time())
        };
        let read_only = program.read_only;
        let mut request = self.request(candidate, Task::Lift);
        // Memory of an earlier lift counts against the rule, too.
        let left = candidate.order.max_memory.map(|most| most.saturating_sub(entry.resident));
        request.max_memory = request.max_memory.into_iter().chain(left).min();
        let begun = entry.clone().begun(request.max_memory.unwrap_or(read_only));
        self.ledger.put(begun.clone());
        self.ledger.save(&self.paths.state)?;
        let (before, beside) = (self.cpu_time(), self.last_scan.cost_beside);
        let answer = self.perform(&request);
        let scans = self.last_scan.cost_beside.saturating_sub(beside);
        let cost = self.cpu_time().saturating_sub(before).saturating_sub(scans);
        let named = candidate.named.clone();
        let lifted = Recent {
            named,
            build: entry.build.clone(),
            owner: entry.owner,
            user: entry.user,
            handle,
            at: Instant::now(),
        };
        if let Ok(status) = lifted.ended() {
            return self.ended_in_lift(&entry, killed_by_lift(status)).map(|()| true);
        }
        let done = match answer {
            Ok(answer) if answer.not_started => return self.not_begun(candidate, earlier, answer).map(|()| false),
            Ok(answer) if answer.gone => {
                self.forget(identity);
                self.ledger.save(&self.paths.state)
            }
            Ok(answer @ Answer { refusal: None, .. }) => self.lifted(candidate, entry, &answer, lifted, cost),
            Ok(answer) => {
                let why = Refusal::new(Reason::LiftRefused, answer.refusal.clone().unwrap_or_default());
                self.account(&answer);
                match answer.covered > answer.lasting.covered {
                    true => self.partly_lifted(candidate, entry.with(&answer), why),
                    false => self.refused(candidate, entry.with(&answer), why),
                }
            }
            Err(why) => self.unanswered(candidate, begun, Refusal::new(Reason::WorkerFailed, why)),
        };
        done.map(|()| true)
    }

    /// No worker could be started: the process is tried again, and its earlier entry is restored.
    fn not_begun(&mut self, candidate: &Candidate, earlier: Option<Entry>, answer: Answer) -> io::Result<()> {
        let identity = candidate.sample.identity;
        if let Some(tracked) = self.tracked.get_mut(&identity) {
            tracked.progress = tracked.progress.after(Event::Postponed);
        }
        self.ledger.lifts.retain(|entry| entry.identity != identity);
        self.ledger.lifts.extend(earlier);
        let why = answer.refusal.unwrap_or_default();
        self.refuse(&candidate.named, &Refusal::new(Reason::WorkerFailed, why));
        self.ledger.save(&self.paths.state)
    }

    /// Forgets a process that has ended while it was lifted or measured, and blocks its build if there is a reason.
    pub(super) fn ended_in_lift(&mut self, entry: &Entry, why: Option<String>) -> io::Result<()> {
        if let Some(why) = why {
            self.ledger.counts.crashes += 1;
            self.must_be_undone(entry.identity, Reason::Blocked, &why);
            self.block(entry, why)?;
        }
        // Its end is known: it counts once.
        self.recent.retain(|recent| recent.named.identity != entry.identity);
        self.forget(entry.identity);
        self.ledger.save(&self.paths.state)
    }

    /// Examines a process whose worker gave no answer: the worker may have lifted a part before it ended.
    fn unanswered(&mut self, candidate: &Candidate, begun: Entry, refusal: Refusal) -> io::Result<()> {
        let (identity, progress) = (begun.identity, begun.progress);
        let (state, own) = (self.paths.state.clone(), self.own);
        match examine(begun, &mut |request| self.perform(request), &state, own) {
            Examined::Gone => {
                self.forget(identity);
                self.ledger.save(&self.paths.state)
            }
            Examined::Entry(entry) if entry.progress.state == State::Refused => {
                self.refused(candidate, Entry { progress, ..*entry }, refusal)
            }
            Examined::Entry(entry) => self.settled(candidate, *entry, refusal),
        }
    }

    /// Writes the entry after a refusal.
    fn refused(&mut self, candidate: &Candidate, entry: Entry, refusal: Refusal) -> io::Result<()> {
        let progress = entry.progress.after(Event::Refused);
        self.set_progress(&entry, progress);
        self.ledger.count(refusal.reason);
        self.ledger.put(Entry { progress, changed: unix_time(), refusal: Some(refusal.clone()), ..entry });
        self.ledger.save(&self.paths.state)?;
        let named = candidate.named.clone();
        (self.report)(&Action::Refused { named, refusal, last: progress.is_final() });
        Ok(())
    }

    /// Writes the entry after a lift that an error has ended.
    fn partly_lifted(&mut self, candidate: &Candidate, entry: Entry, refusal: Refusal) -> io::Result<()> {
        let progress = entry.progress.after(Event::Lifted);
        self.settled(candidate, Entry { progress, changed: unix_time(), ..entry }, refusal)
    }

    /// Writes an entry whose process is not tried again.
    fn settled(&mut self, candidate: &Candidate, entry: Entry, refusal: Refusal) -> io::Result<()> {
        self.set_progress(&entry, entry.progress);
        self.ledger.count(refusal.reason);
        self.ledger.put(Entry { refusal: Some(refusal.clone()), ..entry });
        self.ledger.save(&self.paths.state)?;
        (self.report)(&Action::Refused { named: candidate.named.clone(), refusal, last: true });
        Ok(())
    }

    /// Adds a pause to the budget and to the metrics.
    pub(super) fn account(&mut self, answer: &Answer) {
        let pause = Duration::from_micros(answer.pause_microseconds);
        if pause > Duration::ZERO {
            self.pauses += pause;
            self.pause_histogram.add(pause);
        }
    }

    /// Writes the entry after a lift, and undoes the lift if the pause was too long or the mappings are not as planned.
    fn lifted(
        &mut self,
        candidate: &Candidate,
        entry: Entry,
        answer: &Answer,
        lifted: Recent,
        cost: Duration,
    ) -> io::Result<()> {
        let progress = entry.progress.after(Event::Lifted);
        self.set_progress(&entry, progress);
        self.account(answer);
        let entry = Entry {
            progress,
            pause_microseconds: answer.pause_microseconds,
            changed: unix_time(),
            ..entry.with(answer)
        };
        self.ledger.counts.lifts += 1;
        self.ledger.put(entry.clone());
        self.ledger.save(&self.paths.state)?;
        let named = candidate.named.clone();
        let kinds = candidate.order.kind_words().join(", ");
        let (bytes, pause) = (answer.covered, answer.pause_microseconds);
        (self.report)(&Action::Lifted { named: named.clone(), kinds, bytes, pause, cost });
        warn(self.report, answer, &named);
        let (pause, most) = (Duration::from_micros(pause), self.configuration.settings.max_pause);
        if let Some(why) = answer.fault.clone() {
            return self.undo(entry, why);
        }
        if pause > most {
            return self.undo(
                entry,
                format!(
                    "the pause was {:.1} ms; needed: at most {} ms (max_pause)",
                    pause.as_secs_f64() * 1e3,
                    most.as_millis()
                ),
            );
        }
        self.watch(lifted);
        Ok(())
    }

    /// Blocks the build and undoes the lift.
    fn undo(&mut self, entry: Entry, why: String) -> io::Result<()> {
        self.block(&entry, why.clone())?;
        self.undo_now(entry, why)
    }

    fn block(&mut self, entry: &Entry, why: String) -> io::Result<()> {
        let Entry { owner, user, .. } = *entry;
        self.ledger.block(Block {
            build: entry.build.clone(),
            owner,
            user,
            program: entry.program.clone(),
            why: why.clone(),
        });
        (self.report)(&Action::Blocked { named: entry.named(), build: entry.build.clone(), why });
        self.ledger.save(&self.paths.state)
    }

    fn set_progress(&mut self, entry: &Entry, progress: Progress) {
        if let Some(tracked) = self.tracked.get_mut(&entry.identity) {
            tracked.progress = progress;
        }
    }

    /// Watches a process for a minute, and no longer since an earlier lift or measurement: a crash counts once.
    pub(super) fn watch(&mut self, process: Recent) {
        self.recent.retain(|recent| recent.named.identity != process.named.identity);
        self.recent.push(process);
    }

    /// Blocks the builds of programs that have crashed soon after their lift.
    pub(super) fn watch_recent(&mut self) -> io::Result<()> {
        let (ended, running): (Vec<Recent>, Vec<Recent>) =
            std::mem::take(&mut self.recent).into_iter().partition(|recent| recent.ended().is_ok());
        self.recent = running;
        self.recent.retain(|recent| recent.at.elapsed() < WATCHED);
        for recent in ended {
            let after = recent.at.elapsed();
            let status = recent.ended().unwrap_or_default();
            let Some(why) = crash(status, after).filter(|_| after < WATCHED + self.configuration.settings.scan * 2)
            else {
                continue;
            };
            self.ledger.counts.crashes += 1;
            self.ledger.block(Block {
                build: recent.build.clone(),
                owner: recent.owner,
                user: recent.user,
                program: recent.named.program.clone(),
                why: why.clone(),
            });
            self.ledger.save(&self.paths.state)?;
            (self.report)(&Action::Blocked { named: recent.named, build: recent.build, why });
        }
        Ok(())
    }
}
