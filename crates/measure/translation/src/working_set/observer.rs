//! Clears the marks of a process, waits, and counts.

use crate::working_set::clearing::{Resident, Scope, scope};
use crate::working_set::part::count;
use crate::working_set::result::{Reading, Round, WorkingSet, pages_per_fault, seconds};
use address_space::PageSize;
use linux::pages::transparent_huge_page;
use linux::process_handle::ProcessHandle;
use machine_facts::{System, THP, largest_below};
use nix::time::{ClockId, clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use process_view::{ObservationError, ProcessFiles, page_faults};
use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

/// Why the marks of a process cannot be counted.
#[derive(Debug, thiserror::Error)]
pub enum WorkingSetError {
    /// It cannot be read.
    #[error(transparent)]
    Process(#[from] ObservationError),
    /// Its marks cannot be cleared.
    #[error(
        "/proc/{pid}/clear_refs cannot be written: {source}; needed: a process of the same user that is not setuid, or \
             root, and a kernel with CONFIG_PROC_PAGE_MONITOR"
    )]
    NotCleared {
        /// The process.
        pid: i32,
        /// The kernel's error.
        source: io::Error,
    },
    /// It has no memory.
    #[error("process {pid} has no user memory: it is a kernel thread, or has ended")]
    NoMemory {
        /// The process.
        pid: i32,
    },
}

/// The parameters of an observation.
#[derive(Clone, Debug)]
pub struct Options {
    /// Times after a clear at which marks are counted, rising.
    pub points: Vec<Duration>,
    /// The longest time for which its map may be held at once. Memory that would take longer is left out.
    pub longest_hold: Duration,
    /// The moment from which rounds are dated.
    pub since: Instant,
    /// The process has just been started: of several rounds, the first is not the one that is shown.
    pub is_starting: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            points: [1, 10, 100, 500].map(Duration::from_millis).to_vec(),
            longest_hold: Duration::from_millis(50),
            since: Instant::now(),
            is_starting: false,
        }
    }
}

/// Observes one process. The files that change it are opened at once, so that the rest can be done with rights to read
/// only.
#[derive(Debug)]
pub struct Observer {
    pid: i32,
    process: ProcessFiles,
    handle: ProcessHandle,
    clear_refs: File,
    clock: Option<ClockId>,
    base: PageSize,
    huge: Option<PageSize>,
    pages_per_fault: u64,
    scope: Scope,
    options: Options,
    rounds: Vec<Round>,
    too_long: bool,
}

impl Observer {
    /// Opens a process.
    ///
    /// # Errors
    /// [`WorkingSetError`].
    pub fn open(pid: i32, options: Options) -> Result<Self, WorkingSetError> {
        let process = ProcessFiles::of(pid);
        let space = process.maps()?;
        if space.mappings().is_empty() {
            return Err(WorkingSetError::NoMemory { pid });
        }
        let not_cleared = |source| WorkingSetError::NotCleared { pid, source };
        let handle = ProcessHandle::open(pid).map_err(not_cleared)?;
        let clear_refs = File::options().write(true).open(process.path("clear_refs")).map_err(not_cleared)?;
        let base = process.page_size()?;
        let scope = scope(Resident::read(&process)?, &space, base, options.longest_hold);
        let clock = clock_getcpuclockid(Pid::from_raw(pid)).ok();
        let huge = transparent_huge_page();
        let pages_per_fault = pages_per_fault(huge.and_then(|huge| largest_below(&System, THP, huge)), base);
        Ok(Self {
            pid,
            process,
            handle,
            clear_refs,
            clock,
            base,
            huge,
            pages_per_fault,
            scope,
            options,
            rounds: Vec::new(),
            too_long: false,
        })
    }

    /// The time of one round, without the time for clearing and reading.
    pub fn round_time(&self) -> Duration {
        self.options.points.last().copied().unwrap_or_default()
    }

    /// Rounds that have a reading at every point.
    pub fn whole_rounds(&self) -> usize {
        self.rounds.iter().filter(|round| round.readings.len() == self.options.points.len()).count()
    }

    /// True if the last clear held the map for longer than permitted, so that no other should be made.
    pub fn took_too_long(&self) -> bool {
        self.too_long
    }

    /// Clears the marks and counts them at each point. A process that ends ends the round.
    ///
    /// # Errors
    /// [`WorkingSetError`] if not even the first point could be counted.
    pub fn round(&mut self) -> Result<(), WorkingSetError> {
        self.round_within(Duration::MAX)
    }

    /// Like [`Observer::round`], with the first point and those up to `longest`.
    ///
    /// # Errors
    /// As [`Observer::round`].
    pub fn round_within(&mut self, longest: Duration) -> Result<(), WorkingSetError> {
        self.choose_scope()?;
        let cpu_before = self.cpu();
        let faults_before = page_faults(&self.process);
        let start = Instant::now();
        let not_cleared = |source| WorkingSetError::NotCleared { pid: self.pid, source };
        self.scope.cleared.clear(&self.clear_refs).map_err(not_cleared)?;
        let cleared = Instant::now();
        self.too_long |= cleared - start > self.options.longest_hold;
        let begun = seconds(start.saturating_duration_since(self.options.since));
        let mut round = Round { begun, clear: seconds(cleared - start), reads: Vec::new(), readings: Vec::new() };
        let points = self.options.points.iter().enumerate();
        for (_, &after) in points.filter(|&(index, &after)| index == 0 || after <= longest) {
            if self.handle.ends_within(after.saturating_sub(cleared.elapsed())) {
                break;
            }
            let begun = Instant::now();
            let usages = match self.process.smaps_below(self.scope.end) {
                Ok(usages) if !usages.is_empty() && self.handle.is_alive() => usages,
                Err(error) if round.readings.is_empty() => return Err(error.into()),
                _ => break,
            };
            let ended = Instant::now();
            let cpu = self.cpu().zip(cpu_before).map(|(now, before)| seconds(now.saturating_sub(before)));
            let faults = page_faults(&self.process)
                .zip(faults_before)
                .map_or(u64::MAX, |(now, before)| now.saturating_sub(before));
            let mut parts = count(&usages, self.base, self.huge);
            if self.scope.left_out.is_some_and(|left_out| left_out.anonymous > 0) {
                parts.retain(|part, _| !part.is_private_anonymous());
            }
            round.reads.push(seconds(ended - begun));
            round.readings.push(Reading {
                after: seconds(after),
                shortest: seconds(begun - cleared),
                longest: seconds(ended - start),
                cpu,
                faults,
                pages_per_fault: self.pages_per_fault,
                parts,
            });
        }
        if round.readings.is_empty() {
            return Err(WorkingSetError::NoMemory { pid: self.pid });
        }
        self.rounds.push(round);
        Ok(())
    }

    /// The process may have grown. Rounds of another scope cannot be compared with the next ones.
    fn choose_scope(&mut self) -> Result<(), WorkingSetError> {
        let resident = Resident::read(&self.process)?;
        let scope = scope(resident, &self.process.maps()?, self.base, self.options.longest_hold);
        if (scope.cleared, scope.end) != (self.scope.cleared, self.scope.end) {
            self.rounds.clear();
        }
        self.scope = scope;
        Ok(())
    }

    /// The result of all rounds; `None` before the first.
    pub fn finish(self) -> Option<WorkingSet> {
        let Self { scope, rounds, options, .. } = self;
        let skipped = usize::from(options.is_starting);
        (!rounds.is_empty()).then(|| WorkingSet::new(scope.cleared, scope.left_out, rounds, skipped))
    }

    fn cpu(&self) -> Option<Duration> {
        Some(clock_gettime(self.clock?).ok()?.into())
    }
}
