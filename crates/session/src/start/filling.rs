//! Memory that a program and its descendants fill after the start: a helper beside them lifts it in place, as it fills.

use super::StartEvent;
use crate::SessionError;
use crate::growing_files::{FilesStart, GrowingFiles, LiftedFiles};
use crate::report::{LiftReport, Watched, WatchedState};
use crate::running::{Chosen, Descendants};
use crate::shared::{Growing, InPlace, InPlaceOptions, InPlaceReports, Rest, added, newly_huge};
use shared_memory::rest_after;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Interval at which the memory of the processes is glanced at.
const GLANCE_EVERY: Duration = Duration::from_secs(5);
/// First interval at which new processes are searched; it doubles. A parent that ends before the search hides its children.
const FIRST_SEARCH: Duration = Duration::from_millis(10);
/// Longest interval in the first minute.
const EARLY_SEARCH: Duration = Duration::from_millis(250);
/// Longest interval afterwards.
const LATE_SEARCH: Duration = Duration::from_secs(1);
/// End of the first minute.
const EARLY: Duration = Duration::from_secs(60);

/// Memory to lift as it fills.
#[derive(Clone, Debug, Default)]
pub struct InPlaceStart {
    /// Its kinds.
    pub memory: Vec<InPlace>,
    /// Fill blocks however many holes they have.
    pub fill: bool,
    /// Most bytes that are added, by all kinds together.
    pub most: Option<u64>,
    /// Mapped data files, which are lifted as they become resident.
    pub files: Option<FilesStart>,
}

/// A program whose memory is lifted as it fills.
pub struct Filling {
    family: Descendants,
    report: LiftReport,
    start: InPlaceStart,
    watched: Watched,
}

/// The data that the threads of the helper share: the report of the program, and the turn of a lift. Two lifts could
/// trace the same thread.
pub struct SharedReport {
    report: Mutex<LiftReport>,
    turn: Mutex<()>,
}

/// Receives events from several threads.
pub type Tell<'a> = Mutex<&'a mut (dyn FnMut(&StartEvent<'_>) + Send)>;

impl SharedReport {
    /// Begins with the report of the start.
    pub fn new(report: LiftReport) -> Self {
        Self { report: Mutex::new(report), turn: Mutex::new(()) }
    }

    /// Waits until no other thread lifts.
    pub fn turn(&self) -> MutexGuard<'_, ()> {
        lock(&self.turn)
    }

    /// Replaces the outcome of the start by a later one, and returns both together.
    pub fn settle(&self, later: LiftReport) -> LiftReport {
        let mut report = lock(&self.report);
        let (in_place, data_files) = (std::mem::take(&mut report.in_place), report.data_files.take());
        *report = LiftReport { in_place, data_files, watched: report.watched, ..later };
        report.clone()
    }

    fn add_files(&self, lifted: &[LiftedFiles], watched: Watched) -> LiftReport {
        let mut report = lock(&self.report);
        report.data_files.get_or_insert_default().add(lifted);
        report.watched = Some(watched);
        report.clone()
    }

    fn add(&self, looked: InPlaceReports, watched: Watched) -> LiftReport {
        let mut report = lock(&self.report);
        looked.into_all().for_each(|looked| report.in_place.add(looked));
        report.watched = Some(watched);
        report.clone()
    }
}

/// A thread that has panicked leaves a complete value behind.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Filling {
    /// Begins with the program of a report, which is not resumed yet.
    ///
    /// # Errors
    /// The kernel's: there is no such process.
    pub fn of(report: LiftReport, start: InPlaceStart) -> io::Result<Self> {
        Ok(Self { family: Descendants::of(report.pid)?, report, start, watched: Watched::default() })
    }

    /// The outcome of the start.
    pub fn report(&self) -> &LiftReport {
        &self.report
    }

    /// Reports why nothing is lifted.
    pub fn refuse(self, why: &str, tell: &mut (dyn FnMut(&StartEvent<'_>) + Send)) {
        if self.start.files.is_some() {
            let lifted = [LiftedFiles { pid: self.report.pid, outcome: Err(SessionError::Refused(why.to_owned())) }];
            tell(&StartEvent::FilesLifted { report: &self.report, lifted: &lifted });
        }
        if self.start.memory.is_empty() {
            return;
        }
        let errors: Vec<_> = self.start.memory.iter().map(|memory| (*memory, why.to_owned())).collect();
        let (pids, looked) = ([self.report.pid], InPlaceReports::default());
        tell(&StartEvent::Looked { report: &self.report, pids: &pids, looked: &looked, errors: &errors });
    }

    /// Lifts memory as it fills until the program and its descendants have ended.
    pub fn watch(mut self, record: &SharedReport, tell: &Tell<'_>) {
        let pids = self.family.pids();
        let memory = self.start.memory.iter();
        let mut growing: Vec<Growing> = memory.filter_map(|memory| Growing::at_start(*memory, &pids)).collect();
        let mut files = self.start.files.as_ref().and_then(|_| GrowingFiles::at_start());
        let (begin, mut search, mut glanced, mut rest) =
            (Instant::now(), FIRST_SEARCH, Instant::now(), Rest::default());
        while !self.family.end_within(search) {
            let searching = Instant::now();
            self.family.find();
            let longest = if begin.elapsed() < EARLY { EARLY_SEARCH } else { LATE_SEARCH };
            search = (search * 2).min(longest).max(rest_after(searching.elapsed()));
            if glanced.elapsed() >= GLANCE_EVERY && rest.is_over() {
                let before = looking(&growing, files.as_ref());
                self.look(&mut growing, files.as_ref(), record, tell);
                if let Some(files) = &mut files {
                    self.look_at_files(&growing, files, record, tell);
                }
                rest.begin(looking(&growing, files.as_ref()).saturating_sub(before));
                glanced = Instant::now();
            }
        }
        self.watched.state = WatchedState::Ended;
        let report = record.add(InPlaceReports::default(), self.watched);
        (lock(tell))(&StartEvent::FamilyEnded { report: &report });
    }

    /// Lifts mapped data files of all processes if their resident part has grown.
    fn look_at_files(&mut self, growing: &[Growing], files: &mut GrowingFiles, record: &SharedReport, tell: &Tell<'_>) {
        let Self { family, start, watched, .. } = self;
        let pids = family.pids();
        let Some(start) = start.files.as_ref().filter(|_| files.is_due(&pids)) else { return };
        let turn = record.turn();
        let lifted = files.lift(&pids, Chosen::ByDescent(family), start);
        drop(turn);
        watched.looks += 1;
        watched.lifts += u64::from(lifted.iter().any(|lifted| lifted.covered() > 0));
        watched.looking_microseconds = looking(growing, Some(files)).as_micros() as u64;
        watched.most_processes = watched.most_processes.max(pids.len());
        let report = record.add_files(&lifted, *watched);
        (lock(tell))(&StartEvent::FilesLifted { report: &report, lifted: &lifted });
    }

    /// Looks at the kinds of memory that have grown, and lifts them.
    fn look(&mut self, growing: &mut [Growing], files: Option<&GrowingFiles>, record: &SharedReport, tell: &Tell<'_>) {
        let Self { family, start, watched, .. } = self;
        let pids = family.pids();
        let (mut looked, mut errors) = (InPlaceReports::default(), Vec::new());
        for growing in growing.iter_mut() {
            let options = InPlaceOptions {
                chosen: Chosen::ByDescent(family),
                fill: start.fill.into(),
                most: start.most,
                ..InPlaceOptions::of(growing.memory())
            };
            let _turn = record.turn();
            match growing.lift(&pids, options) {
                Some(Ok(report)) => {
                    watched.looks += 1;
                    watched.lifts += u64::from(newly_huge(&report) > 0);
                    // The bound is for all kinds and all lifts together.
                    start.most = start.most.map(|most| most.saturating_sub(added(&report)));
                    looked.add(report);
                }
                Some(Err(error)) => errors.push((growing.memory(), error.in_full())),
                None => {}
            }
        }
        watched.looking_microseconds = looking(growing, files).as_micros() as u64;
        watched.most_processes = watched.most_processes.max(pids.len());
        if looked.all().next().is_some() || !errors.is_empty() {
            let report = record.add(looked.clone(), *watched);
            let errors = &errors;
            (lock(tell))(&StartEvent::Looked { report: &report, pids: &pids, looked: &looked, errors });
        }
    }
}

/// Time that all looks have taken so far.
fn looking(growing: &[Growing], files: Option<&GrowingFiles>) -> Duration {
    growing.iter().map(Growing::looking).chain(files.map(GrowingFiles::looking)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_watch_ends_with_its_program_and_says_so() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id() as i32;
        let start = InPlaceStart { memory: InPlace::ALL.to_vec(), ..InPlaceStart::default() };
        let filling = Filling::of(LiftReport::new(pid, "sleep".to_owned()), start).unwrap();
        let record = SharedReport::new(filling.report().clone());
        child.kill().unwrap();
        child.wait().unwrap();
        let mut states = Vec::new();
        let mut tell = |event: &StartEvent<'_>| match event {
            StartEvent::FamilyEnded { report } => states.extend(report.watched.map(|watched| watched.state)),
            _ => panic!("another event"),
        };
        filling.watch(&record, &Mutex::new(&mut tell));
        assert_eq!(states, [WatchedState::Ended]);
        assert!(Filling::of(record.report.into_inner().unwrap(), InPlaceStart::default()).is_err());
    }

    #[test]
    fn the_reason_is_reported_for_each_requested_memory() {
        let reported = |memory: Vec<InPlace>, files: Option<FilesStart>| {
            let pid = std::process::id() as i32;
            let start = InPlaceStart { memory, files, ..InPlaceStart::default() };
            let filling = Filling::of(LiftReport::new(pid, "x".to_owned()), start).unwrap();
            let mut reported = Vec::new();
            filling.refuse("why", &mut |event: &StartEvent<'_>| match event {
                StartEvent::Looked { errors, .. } => reported.extend(errors.iter().map(|(_, why)| why.clone())),
                StartEvent::FilesLifted { lifted, .. } => {
                    reported.extend(lifted.iter().filter_map(|lifted| Some(lifted.outcome.as_ref().err()?.in_full())));
                }
                _ => panic!("another event"),
            });
            reported
        };
        assert_eq!(reported(Vec::new(), Some(FilesStart::default())), ["why"]);
        assert_eq!(reported(vec![InPlace::Jit], None), ["why"]);
        assert_eq!(reported(vec![InPlace::Jit], Some(FilesStart::default())), ["why", "why"]);
    }

    #[test]
    fn a_later_lift_keeps_what_was_lifted_in_place() {
        let record = SharedReport::new(LiftReport::new(7, "x".to_owned()));
        record.add(InPlaceReports::default(), Watched { looks: 3, ..Watched::default() });
        let later = record.settle(LiftReport { other_threads: 5, ..LiftReport::new(7, "x".to_owned()) });
        assert_eq!((later.other_threads, later.watched.map(|watched| watched.looks)), (5, Some(3)));
        let last = record.add(InPlaceReports::default(), Watched { looks: 4, ..Watched::default() });
        assert_eq!((last.other_threads, last.watched.map(|watched| watched.looks)), (5, Some(4)));
    }
}
