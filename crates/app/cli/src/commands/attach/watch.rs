//! `pagelift attach --watch`: objects that are loaded later, and memory that fills later.

use super::{Lifts, MemoryLeft, NOT_AS_IT_WAS, State, tell, write_alone};
use crate::definition::AttachArgs;
use crate::say;
use crate::text::data_files::ToldFiles;
use crate::text::in_place::Told;
use session::running::{Chosen, Members, Watches};
use session::shared::{Growing, InPlaceOptions, InPlaceReport, InPlaceReports, Rest, added, newly_huge};
use session::{FilesStart, GrowingFiles, LiftReport};
use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

/// Interval of the search for new objects, and of the check whether the processes have ended.
const EVERY: Duration = Duration::from_secs(1);
/// Interval at which the family is listed anew and its memory glanced at.
const GLANCE_EVERY: Duration = Duration::from_secs(5);

/// Memory of one kind that is lifted as it fills.
pub struct GrowingMemory<'a> {
    /// The memory, and the times of its lifts.
    pub growing: Growing,
    /// Options of each lift.
    pub options: InPlaceOptions<'a>,
    /// Printed reasons and errors.
    pub told: Told,
}

impl GrowingMemory<'_> {
    /// Lifts what has filled since the last look.
    fn lift(&mut self, args: &AttachArgs, pids: &[i32], left: &mut MemoryLeft) -> Option<InPlaceReport> {
        match self.growing.lift(pids, InPlaceOptions { most: left.0, ..self.options })? {
            Ok(report) => {
                left.spend(added(&report));
                if !args.outcome.quiet {
                    tell(pids, &report, newly_huge(&report) > 0, &mut self.told);
                }
                Some(report)
            }
            Err(error) => {
                if let Some(line) = self.told.once(format!("pagelift: {}", error.in_full())) {
                    say!("{line}");
                }
                None
            }
        }
    }
}

/// Data files that are lifted as they become resident.
pub struct WatchedFiles<'a> {
    growing: GrowingFiles,
    chosen: Chosen<'a>,
    start: FilesStart,
    told: ToldFiles,
}

impl<'a> WatchedFiles<'a> {
    /// Begins to watch mapped data files. `None` if the machine has no huge pages.
    pub fn new(args: &AttachArgs, pids: &[i32], chosen: Chosen<'a>) -> Option<Self> {
        let growing = GrowingFiles::begin(pids)?;
        let start = FilesStart { policy: args.policy.policy(), prepare: args.prepare };
        Some(Self { growing, chosen, start, told: ToldFiles::default() })
    }

    /// Lifts the files if their resident part has grown. Returns the faults. Adds processes that do not answer to `silent`;
    /// those that it contains have been named.
    fn lift(
        &mut self,
        args: &AttachArgs,
        pids: &[i32],
        left: &mut MemoryLeft,
        silent: &mut BTreeSet<i32>,
    ) -> Vec<String> {
        if !self.growing.is_due(pids) {
            return Vec::new();
        }
        self.start.policy.max_memory = left.0;
        let lifted = self.growing.lift(pids, self.chosen, &self.start);
        for attached in lifted.iter().filter_map(|lifted| lifted.outcome.as_ref().ok()) {
            left.spend(attached.report.lift.made_resident_bytes);
            let path = args.outcome.report.as_ref().filter(|_| attached.report.lift.covered_bytes > 0);
            if let Some(path) = path
                && let Err(error) = attached.report.write(path, args.pid.is_none())
            {
                say!("pagelift: writing {}: {error}", path.display());
            }
        }
        for (lifted, line) in self.told.lines(&lifted, args.outcome.verbose) {
            if lifted.is_silent() && !silent.insert(lifted.pid) {
                continue;
            }
            if !args.outcome.quiet || lifted.outcome.is_err() || lifted.has_fault() {
                say!("pagelift: {line}");
            }
        }
        let faulty =
            lifted.iter().filter(|lifted| lifted.has_fault()).filter_map(|lifted| lifted.outcome.as_ref().ok());
        let fault = |report: &LiftReport| format!("{}[{}]: {NOT_AS_IT_WAS}", report.program, report.pid);
        faulty.map(|attached| fault(&attached.report)).collect()
    }
}

/// A family of processes, and its memory that is lifted as it fills.
pub struct GrowingFamily<'a> {
    members: Members<'a>,
    memory: Vec<GrowingMemory<'a>>,
    files: Option<WatchedFiles<'a>>,
    glanced: Instant,
    rest: Rest,
    /// Lifts that have left memory that is not as it was before, each process once.
    faults: BTreeSet<String>,
}

impl<'a> GrowingFamily<'a> {
    /// The family after the first lift.
    pub fn new(members: Members<'a>, memory: Vec<GrowingMemory<'a>>, files: Option<WatchedFiles<'a>>) -> Self {
        Self { members, memory, files, glanced: Instant::now(), rest: Rest::default(), faults: BTreeSet::new() }
    }

    /// Counts the growth of mapped data files from now on. The first lift unmaps pages: without a new count, growth up to
    /// their number would be found only after minutes.
    pub fn files_were_lifted(&mut self) {
        let Some(files) = &mut self.files else { return };
        if let Some(growing) = GrowingFiles::begin(&self.members.now()) {
            files.growing = growing;
        }
    }

    /// True if the family has ended.
    fn has_ended(&self) -> bool {
        self.members.have_ended()
    }

    /// Time that all looks have taken so far.
    fn looking(&self) -> Duration {
        let files = self.files.as_ref().map(|files| files.growing.looking());
        self.memory.iter().map(|memory| memory.growing.looking()).chain(files).sum()
    }

    /// Lifts what has filled since the last look.
    fn lift(&mut self, args: &AttachArgs, left: &mut MemoryLeft, silent: &mut BTreeSet<i32>) {
        if self.glanced.elapsed() < GLANCE_EVERY || !self.rest.is_over() {
            return;
        }
        self.glanced = Instant::now();
        let pids = self.members.now();
        if pids.is_empty() {
            return;
        }
        let (mut reports, before) = (InPlaceReports::default(), self.looking());
        let looked = self.memory.iter_mut().filter_map(|memory| memory.lift(args, &pids, left));
        looked.for_each(|report| reports.add(report));
        if let Some(files) = &mut self.files {
            self.faults.extend(files.lift(args, &pids, left, silent));
        }
        self.rest.begin(self.looking().saturating_sub(before));
        let has_lifted = reports.all().any(|report| newly_huge(report) > 0);
        if has_lifted
            && is_alone(args)
            && let Err(error) = write_alone(args, pids[0], reports)
        {
            say!("pagelift: {error:#}");
        }
    }
}

/// True if only memory that is lifted in place was chosen.
fn is_alone(args: &AttachArgs) -> bool {
    args.policy.policy().kinds.planned().is_empty()
}

/// Lifts loaded objects and filled memory until all watched processes have ended. Returns the faults of mapped data files.
pub fn watch(
    lifts: &mut Lifts,
    (mut objects, mut family): (Watches, Option<GrowingFamily<'_>>),
    state: &mut State,
) -> BTreeSet<String> {
    let mut faults = BTreeSet::new();
    while !objects.is_empty() || family.is_some() {
        thread::sleep(EVERY);
        let (loaded, silent) = objects.look();
        let unnamed = silent.iter().filter(|process| !lifts.silent.contains(&process.pid));
        unnamed.for_each(|process| say!("pagelift: {process}"));
        for (pid, handle) in loaded {
            if let Some(failed) = lifts.lift(pid, Some(handle), state) {
                say!("pagelift: {failed}");
            }
        }
        if let Some(family) = &mut family {
            family.lift(&lifts.args, &mut state.memory, &mut lifts.silent);
            faults.append(&mut family.faults);
        }
        family = family.filter(|family| !family.has_ended());
    }
    faults
}
