//! Data files that running programs map: lifted again when their resident part has grown, with checks that cost little.

use crate::SessionError;
use crate::report::DataFilesLifted;
use crate::running::{AttachOptions, Attached, Chosen, Selected, attach, with_process};
use address_space::PageSize;
use lift_plan::{Kind, Policy};
use linux::pages::transparent_huge_page;
use linux::process_handle::ProcessHandle;
use machine_facts::{machine_facts, meminfo_bytes};
use options::{Kinds, Prepare};
use process_view::{ObjectReader, OneByOne, ProcessFiles};
use shared_memory::{Glance, Rhythm};
use std::time::{Duration, Instant};

/// Returns why the mapped data files of a program that is about to start will not be lifted, with the fix.
pub fn files_are_refused() -> Option<String> {
    let machine = machine_facts(std::process::id() as i32);
    let why = match () {
        () if machine.thp.is_none() => "this kernel has no transparent huge pages; fix: a kernel with them",
        () if !machine.refaults_huge => {
            "until Linux 6.18 the kernel keeps page tables of ordinary pages; fix: `pagelift cache prepare FILE` before the start, \
             and the kernel maps the file by huge pages without a lift"
        }
        () => return None,
    };
    Some(why.to_owned())
}

/// Options of the lifts of data files.
#[derive(Clone, Debug, Default)]
pub struct FilesStart {
    /// Page size and limits.
    pub policy: Policy,
    /// The effort to bring files into huge folios of the page cache first.
    pub prepare: Prepare,
}

impl FilesStart {
    fn options(&self) -> AttachOptions {
        let policy = Policy { kinds: Kinds::from(Kind::Files), ..self.policy.clone() };
        AttachOptions { policy, prepare: self.prepare, heap: false, paid: None }
    }
}

/// The outcome of a check of one process.
pub struct LiftedFiles {
    /// The process.
    pub pid: i32,
    /// The lift, or why the process could not be lifted.
    pub outcome: Result<Attached, SessionError>,
}

impl LiftedFiles {
    /// Bytes that this lift has put on huge pages.
    pub fn covered(&self) -> u64 {
        self.outcome.as_ref().map_or(0, |attached| attached.report.lift.covered_bytes)
    }

    /// True if the process did not answer.
    pub fn is_silent(&self) -> bool {
        matches!(self.outcome, Err(SessionError::Silent(_)))
    }

    /// True if this lift has left memory that is not as it was before.
    pub fn has_fault(&self) -> bool {
        self.outcome.as_ref().is_ok_and(|attached| !attached.report.lift.unexpected.is_empty())
    }
}

impl DataFilesLifted {
    /// Adds the outcome of a check.
    pub fn add(&mut self, lifted: &[LiftedFiles]) {
        self.refusals.clear();
        for lifted in lifted {
            let Ok(Attached { report, pause, .. }) = &lifted.outcome else { continue };
            self.lifts += u64::from(lifted.covered() > 0);
            self.covered_bytes += lifted.covered();
            self.longest_stop_microseconds = self.longest_stop_microseconds.max(pause.longest.as_micros() as u64);
            self.refusals.extend_from_slice(&report.lift.refusals);
        }
    }
}

/// Data files of some processes that are lifted as they become resident.
pub struct GrowingFiles {
    huge: PageSize,
    rhythm: Rhythm,
    last: Instant,
    /// Time that all checks have taken without their lifts.
    looking: Duration,
    threads: OneByOne,
    reader: ObjectReader,
}

impl GrowingFiles {
    /// Begins with the files that the processes map now. `None` if the machine has no huge pages.
    pub fn begin(pids: &[i32]) -> Option<Self> {
        Self::after(glance(pids))
    }

    /// Begins with processes that have just started: files that they have mapped already count as growth. `None` if the machine
    /// has no huge pages.
    pub fn at_start() -> Option<Self> {
        Self::after(Glance::default())
    }

    fn after(glance: Glance) -> Option<Self> {
        Some(Self {
            huge: transparent_huge_page()?,
            rhythm: Rhythm::at_start(glance),
            last: Instant::now(),
            looking: Duration::ZERO,
            threads: OneByOne::default(),
            reader: ObjectReader::new(),
        })
    }

    /// Time that all checks have taken without their lifts.
    pub const fn looking(&self) -> Duration {
        self.looking
    }

    /// True if a check is due: the resident part of mapped files has grown since the last check, or that was long ago.
    pub fn is_due(&self, pids: &[i32]) -> bool {
        self.rhythm.is_due(self.last.elapsed(), glance(pids), self.huge)
    }

    /// Lifts the data files of each process. A process without files to lift is not stopped. Processes that have ended or lost
    /// the property are left out.
    pub fn lift(&mut self, pids: &[i32], chosen: Chosen<'_>, start: &FilesStart) -> Vec<LiftedFiles> {
        let begin = Instant::now();
        let lifted: Vec<_> = pids.iter().filter_map(|pid| self.lift_one(*pid, chosen, start)).collect();
        let covered = lifted.iter().map(LiftedFiles::covered).sum();
        let stopped = |lifted: &LiftedFiles| lifted.outcome.as_ref().map_or(Duration::ZERO, |done| done.pause.total);
        let looking = begin.elapsed().saturating_sub(lifted.iter().map(stopped).sum());
        self.rhythm.looked(looking, covered, glance(pids));
        self.looking += looking;
        self.last = Instant::now();
        lifted
    }

    fn lift_one(&mut self, pid: i32, chosen: Chosen<'_>, start: &FilesStart) -> Option<LiftedFiles> {
        // Opened before the property is checked, so that it is the same process.
        let handle = ProcessHandle::open(pid).ok()?;
        if !chosen.includes(pid) {
            return None;
        }
        let (options, mut reader) = (start.options(), std::mem::take(&mut self.reader));
        let work = move || {
            let process = Selected { handle: Some(&handle), ..Selected::by_number(pid) };
            let attached = attach(&process, &options, &mut reader).transpose();
            (attached.filter(|_| handle.is_alive()), reader)
        };
        let outcome = match with_process(&mut self.threads, pid, work) {
            Ok((attached, reader)) => {
                self.reader = reader;
                attached?
            }
            Err(silent) => Err(SessionError::Silent(silent)),
        };
        Some(LiftedFiles { pid, outcome })
    }
}

/// Resident bytes of mapped files. They include programs and libraries.
fn glance(pids: &[i32]) -> Glance {
    let of = |pid: &i32| meminfo_bytes(&ProcessFiles::of(*pid).text("status").ok()?, "RssFile");
    Glance { machine: 0, processes: pids.iter().filter_map(of).sum() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LiftReport;
    use crate::running::Pause;

    fn lifted(covered: u64, milliseconds: u64) -> LiftedFiles {
        let mut report = LiftReport::new(7, "x".to_owned());
        report.lift.covered_bytes = covered;
        let pause = Pause { longest: Duration::from_millis(milliseconds), ..Pause::default() };
        let outcome =
            Ok(Attached { report, pause, is_cut_short: false, price: lift_plan::Price::default(), heap_refused: None });
        LiftedFiles { pid: 7, outcome }
    }

    #[test]
    fn the_lifts_of_all_checks_are_added() {
        let mut sum = DataFilesLifted::default();
        let failed = LiftedFiles { pid: 8, outcome: Err(SessionError::Refused("why".to_owned())) };
        sum.add(&[lifted(4 << 20, 3), failed]);
        sum.add(&[lifted(0, 0), lifted(2 << 20, 1)]);
        assert_eq!((sum.lifts, sum.covered_bytes, sum.longest_stop_microseconds), (2, 6 << 20, 3000));
    }

    #[test]
    fn a_lift_with_a_difference_has_a_fault() {
        let mut lifted = lifted(2 << 20, 1);
        assert!(!lifted.has_fault());
        let range = address_space::AddressRange::new(address_space::Address(0), address_space::Address(4096));
        let difference = lift_execution::Difference { range, expected: None, found: None };
        lifted.outcome.as_mut().unwrap().report.lift.unexpected.push(difference);
        assert!(lifted.has_fault());
    }

    #[test]
    fn a_check_is_due_only_after_growth() {
        let own = [std::process::id() as i32];
        assert!(glance(&own).processes > 0);
        assert_eq!(glance(&[]), Glance::default());
        assert!(GrowingFiles::begin(&own).is_none_or(|files| !files.is_due(&own)));
    }

    #[test]
    fn a_process_that_has_ended_is_left_out() {
        let Some(mut files) = GrowingFiles::begin(&[]) else { return };
        assert!(files.lift(&[i32::MAX], Chosen::ByNumber, &FilesStart::default()).is_empty());
    }
}
