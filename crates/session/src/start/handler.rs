//! Decides at the stops of a start which programs are lifted, and reports the outcome.

use super::base::{Placing, Started, better_base, choose_and_move};
use super::companion::Companion;
use super::entry::{Entered, How, lift};
use super::filling::Filling;
use super::postponed::Debtor;
use super::preparation::prepare;
use super::privileges::lost_privileges;
use super::tracers::{Tracers, may_trace_descendants_only};
use super::{ENDED_BY_REQUIRE, Payment, StartEvent, StartOptions};
use crate::facts::ReadAhead;
use crate::files::ProgramPath;
use crate::files::{self, KnownFile};
use crate::growing_files::LiftedFiles;
use crate::heap::heap_at_exec;
use crate::images::OpenedStore;
use crate::names::{Names, program_name};
use crate::{Base, LiftReport, PostponedState, SessionError};
use address_space::{Address, ElfImage, ElfKind, LoadedObject, ObjectRole, PageSize};
use lift_plan::{Costs, Later, MachineFacts, Policy, Terms};
use linux::nodes::has_several_nodes;
use linux::process_handle::ProcessHandle;
use machine_facts::{elf_machine, machine_facts, machine_facts_for, usual_huge_page};
use process_view::{FileIdentity, ObjectReader, ProcessFiles, executed_metadata, open_executed};
use ptrace::{After, AfterExec, EntryStop, ExecStop, Handler, InjectError};
use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Most reasons about heaps that are reported. A build can execute programs of thousands of names.
const MOST_HEAP_NEWS: usize = 1000;

/// A program between its exec stop and its entry stop.
struct InBetween {
    base: Option<Base>,
    stopped: Duration,
    /// The program's name, which can be read as long as it runs.
    name: String,
}

impl InBetween {
    fn of(base: Base) -> Self {
        Self { base: Some(base), stopped: Duration::ZERO, name: String::new() }
    }
}

/// Lifts the programs that a [`ptrace::Follower`] reports.
pub struct Lifter<T> {
    options: StartOptions,
    /// Receives the events.
    tell: T,
    reader: ObjectReader,
    in_between: HashMap<i32, InBetween>,
    /// The machine's usual huge page size, once it has been read.
    usual: Option<Option<PageSize>>,
    /// Facts read for one process on its way to its entry.
    ahead: Option<Ahead>,
    /// The state in the page cache of the started program's file.
    file: Option<KnownFile>,
    /// The program of that file needs only another base.
    moves_only: bool,
    tracers: Tracers,
    /// Costs of this machine, once they have been read.
    costs: Option<Costs>,
    /// Programs that have to pay for the rest of their lift.
    debtors: HashMap<i32, Debtor>,
    /// Programs whose memory is lifted as it fills, until they are released.
    fillings: HashMap<i32, Filling>,
    /// Programs beside which another process lifts memory as it fills.
    accompanied: HashMap<i32, ProcessHandle>,
    /// Followed programs whose heap is short of huge pages, between their exec and their conclusion.
    without_heap: HashSet<i32>,
    accompany: Accompany,
}

/// Lifts the rest of a program later, in another process.
pub type Accompany = fn(Companion, &mut (dyn FnMut(&StartEvent<'_>) + Send));

/// The callbacks of a [`Lifter`].
pub struct Listeners<T> {
    /// Gets the events.
    pub tell: T,
    /// With `--only`, gets the programs of which a part is lifted later.
    pub accompany: Accompany,
}

/// The program that a [`Lifter`] lifts first.
pub struct LiftedProgram {
    /// The known facts about its file.
    pub file: Option<KnownFile>,
    /// It needs only another base.
    pub moves_only: bool,
}

/// Facts that are read while a program runs to its entry, so that it does not wait for them.
struct Ahead {
    pid: i32,
    machine: MachineFacts,
    store: OpenedStore,
}

impl<T: FnMut(&StartEvent<'_>) + Send> Lifter<T> {
    /// Returns a lifter of one program or, with `--only`, of several. `reader` may have read the program's file.
    pub fn new(
        options: StartOptions,
        reader: ObjectReader,
        LiftedProgram { file, moves_only }: LiftedProgram,
        Listeners { tell, accompany }: Listeners<T>,
    ) -> Self {
        Self {
            options,
            tell,
            reader,
            in_between: HashMap::new(),
            usual: None,
            ahead: None,
            file,
            moves_only,
            tracers: Tracers::default(),
            costs: None,
            debtors: HashMap::new(),
            fillings: HashMap::new(),
            accompanied: HashMap::new(),
            without_heap: HashSet::new(),
            accompany,
        }
    }

    /// The options of the start.
    pub fn options(&self) -> &StartOptions {
        &self.options
    }

    /// Ends the lifter. Returns the callback for events.
    pub fn into_tell(self) -> T {
        self.tell
    }

    /// Holds the program's file in a process that was copied from the one which prepared it.
    pub fn hold_again(&self) {
        self.file.iter().for_each(KnownFile::hold_again);
    }

    /// Reports an event other than the stops' events.
    pub fn tell(&mut self, event: &StartEvent<'_>) {
        (self.tell)(event);
    }

    /// Reads facts for the exec stop, before the program that is to be executed is mapped.
    pub fn prepare(&mut self, program: &Path) {
        self.usual_huge_page();
        let interpreter = self.reader.read_ahead(program).and_then(|image| image.interpreter.clone());
        if let Some(interpreter) = interpreter {
            self.reader.read_ahead(Path::new(&interpreter));
        }
    }

    /// Brings the file of a followed program that was unknown before its exec into huge folios: the file has not been
    /// touched yet.
    fn prepare_executed(&mut self, pid: i32) {
        let path = ProcessFiles::of(pid).path("exe");
        let shown = std::fs::read_link(&path).unwrap_or_else(|_| path.clone());
        if let Some(file) = prepare(ProgramPath { opened: &path, shown: &shown }, &mut self.reader, &self.options) {
            self.file = Some(file);
        }
    }

    /// Gives a followed program the variables of its heap: its environment is the first that has them.
    fn prepare_heap(&mut self, stop: &ExecStop) {
        let Some(options) = self.options.heap else { return };
        self.without_heap.insert(stop.pid());
        // All facts are read: the heap may need some that the plan of a lift does not need.
        let machine = machine_facts(stop.pid());
        let Some(heap) = heap_at_exec(&options, stop.pid(), &machine) else { return };
        let mut refusals = heap.refusals;
        if !heap.variables.is_empty() {
            match stop.set_variables(&heap.variables) {
                Ok(true) => {}
                Ok(false) => refusals.push("it has more rights than its user, who may not preload anything".to_owned()),
                Err(error) => refusals.push(format!("its environment cannot be changed: {error}")),
            }
        }
        // Only the process that was started is collapsed from outside.
        if refusals.is_empty() && (!heap.needs_collapse || self.options.collapse_heap.is_some()) {
            self.without_heap.remove(&stop.pid());
        }
        let program = program_name(stop.pid());
        refusals.retain(|why| self.is_heap_news(&program, why));
        if !refusals.is_empty() && !heap.preloads {
            refusals.push("the program keeps its own heap".to_owned());
        }
        refusals.extend(heap.notes.into_iter().filter(|why| self.is_heap_news(&program, why)));
        if !refusals.is_empty() {
            let why = refusals.join("; ");
            (self.tell)(&StartEvent::HeapIsShort { pid: stop.pid(), program: &program, why: &why });
        }
    }

    /// Notes a reason about the heap of a program; false if it was reported before, for an earlier process too.
    fn is_heap_news(&mut self, program: &str, why: &str) -> bool {
        let told = &mut self.options.heap_told;
        let of_program = format!("{program}: {why}");
        let is_known = told.iter().any(|known| known == why || *known == of_program);
        let is_news = !is_known && told.len() < MOST_HEAP_NEWS;
        if is_news {
            told.push(of_program);
        }
        is_news
    }

    fn usual_huge_page(&mut self) -> Option<PageSize> {
        *self.usual.get_or_insert_with(usual_huge_page)
    }

    fn is_wanted(&self, pid: i32) -> bool {
        if self.options.only.is_empty() {
            return true;
        }
        let names = Names::of(pid);
        self.options.only.iter().any(|only| names.has(only))
    }

    /// Reports the outcome for one program and decides whether it continues.
    fn conclude(&mut self, report: &LiftReport) -> After {
        // The program maps its file by now, or does not need it held.
        self.file.iter_mut().for_each(KnownFile::let_go);
        let is_short = self.without_heap.remove(&report.pid);
        let is_complete = match self.options.has_heap && !is_short {
            true => report.is_complete_beside_a_heap(),
            false => report.lift.is_complete(),
        };
        let ended = self.options.require && !self.lifts_nothing() && !is_complete;
        (self.tell)(&StartEvent::Concluded { report, ended });
        let after = if ended { After::Exit(ENDED_BY_REQUIRE) } else { self.after(report) };
        if after != After::Release {
            self.debtors.remove(&report.pid);
        }
        self.begin_filling(report, after);
        after
    }

    /// True if only memory is lifted that the program fills later.
    fn lifts_nothing(&self) -> bool {
        self.options.policy.kinds.is_empty()
    }

    /// Remembers a program whose memory is lifted as it fills. A program that stays traced is accompanied at once.
    fn begin_filling(&mut self, report: &LiftReport, after: After) {
        let Some(mut start) = self.options.in_place.clone().filter(|_| !matches!(after, After::Exit(_))) else {
            return;
        };
        start.most = start.most.map(|most| most.saturating_sub(report.lift.made_resident_bytes));
        if self.accompanied.get(&report.pid).is_some_and(ProcessHandle::is_alive) {
            return;
        }
        // The tracer stays, and the process beside the program could not trace it.
        if after == After::Follow && start.files.take().is_some() {
            let why = "it stays traced for the programs that it starts, and a process has one tracer; fix: --lift files \
                       without other kinds, and --only with the name of its file";
            let lifted = [LiftedFiles { pid: report.pid, outcome: Err(SessionError::Refused(why.to_owned())) }];
            (self.tell)(&StartEvent::FilesLifted { report, lifted: &lifted });
            if start.memory.is_empty() {
                return;
            }
        }
        if let Ok(filling) = Filling::of(report.clone(), start) {
            self.fillings.insert(report.pid, filling);
        }
        if after == After::Follow {
            self.accompany(report.pid);
        }
    }

    /// Has another process lift the rest of a program.
    fn accompany(&mut self, pid: i32) {
        let companion = self.take_companion(pid);
        if companion.filling.is_some() {
            self.accompanied.retain(|_, handle| handle.is_alive());
            self.accompanied.extend(ProcessHandle::open(pid).map(|handle| (pid, handle)));
        }
        if !companion.is_idle() {
            (self.accompany)(companion, &mut self.tell);
        }
    }

    /// Returns whether tracing continues after this program. Descendants are followed if other names are still
    /// expected; a lifted server does not stay traced. A program that is matched by a link's name alone may be a front
    /// end that executes the named program.
    fn after(&mut self, report: &LiftReport) -> After {
        if self.options.only.is_empty() {
            return After::Release;
        }
        if !self.options.follow_lifted && self.tracers.why(report.pid).is_some() {
            return After::Release;
        }
        let in_place = self.options.in_place.as_ref();
        // A lift of mapped data files needs the place of the tracer.
        let has_files_alone = self.lifts_nothing() && in_place.is_some_and(|start| start.files.is_some());
        let is_lifted = !report.lift.ranges.is_empty() || report.postponed.is_some() || has_files_alone;
        if self.awaits_others(report.pid) || !is_lifted { After::Follow } else { After::Release }
    }

    /// True if the descendants of a lifted program are followed.
    fn awaits_others(&self, pid: i32) -> bool {
        let names = Names::of(pid);
        let others = self.options.only.iter().any(|name| !names.are_of_file(name));
        !self.options.only.is_empty() && (self.options.follow_lifted || others)
    }

    /// Returns the permitted cost of a program's lift; `None`: any price, at once.
    fn terms(&mut self, pid: i32) -> Option<Terms> {
        let Payment { allowance, share } = self.options.payment?;
        let costs = *self.costs.get_or_insert_with(|| crate::costs::known().costs);
        let never_later = match self.options.only.is_empty() {
            true => None,
            false if self.awaits_others(pid) => Some("is not made while a tracer follows its descendants"),
            false if may_trace_descendants_only() => Some("kernel.yama.ptrace_scope allows no later one with --only"),
            false => None,
        };
        Some(Terms { costs, allowance, share, never_later })
    }

    /// Remembers a program that has to pay for the rest of its lift.
    fn postpone(&mut self, report: &mut LiftReport, later: &Later) {
        if later.lifts.is_empty() {
            return;
        }
        match Debtor::open(report.clone(), later, &self.options) {
            Ok(debtor) => drop(self.debtors.insert(report.pid, debtor)),
            Err(why) => {
                report.postponed.iter_mut().for_each(|postponed| {
                    postponed.state = PostponedState::Refused { why: why.clone() };
                });
            }
        }
    }

    /// Takes the work that is left for a program.
    pub fn take_companion(&mut self, pid: i32) -> Companion {
        Companion { debtor: self.debtors.remove(&pid), filling: self.fillings.remove(&pid) }
    }

    fn unlifted(&mut self, pid: i32, why: String) -> After {
        let mut report = LiftReport::new(pid, program_name(pid));
        report.lift.unlifted = Some(why);
        self.conclude(&report)
    }

    /// Handles a program whose file has been read before and whose base stays: only its entry is needed.
    fn begin_known(&mut self, stop: &ExecStop) -> Option<AfterExec> {
        let process = ProcessFiles::of(stop.pid());
        let file = executed_metadata(&process)?;
        let image = self.reader.known(&FileIdentity::of(&file)).filter(|_| !self.moves_only)?;
        let is_ordinary = file.mode() & libc::S_ISUID == 0
            && image.machine == elf_machine()
            && image.interpreter.is_some()
            && !(image.is_static() || image.is_dynamic_linker());
        let entry = process.auxiliary().ok()?.entry().filter(|_| is_ordinary)?;
        let bias = entry.0.wrapping_sub(image.entry.0);
        let huge = self.file.as_ref().and_then(|known| known.huge_of(&FileIdentity::of(&file)));
        // The base of a program with whole huge pages may be chosen for its file, which is read first.
        if huge.is_none() && self.may_move_for_file(image, self.usual?) {
            return None;
        }
        let placing = Placing { image, bias, huge: huge.unwrap_or_default(), pid: stop.pid() };
        let base = better_base(&placing, &self.options.policy, self.usual?).err()?;
        self.in_between.insert(stop.pid(), InBetween::of(base));
        Some(AfterExec::StopAt(entry))
    }

    fn begin(&mut self, stop: &ExecStop) -> Result<AfterExec, SessionError> {
        if let Some(after) = self.begin_known(stop) {
            return Ok(after);
        }
        if let Some(why) = lost_privileges(stop.pid()) {
            return Err(SessionError::Refused(why));
        }
        let usual = self.usual_huge_page();
        let started = Started::look(stop.pid(), &mut self.reader)?;
        let Some(executable) = started.objects.iter().find(|object| object.role == ObjectRole::Executable) else {
            let linker = started.objects.iter().any(|object| object.role == ObjectRole::DynamicLinker);
            return match linker {
                true => Ok(AfterExec::WatchMaps),
                false => Err(SessionError::Refused("its executable is not among its mappings".to_owned())),
            };
        };
        if executable.image.is_dynamic_linker() {
            return Ok(AfterExec::WatchMaps);
        }
        if executable.image.machine != elf_machine() {
            let reason = lift_plan::Reason::OtherMachine(executable.image.machine);
            return Err(SessionError::Refused(reason.to_string()));
        }
        let huge = self.huge_parts(stop.pid(), executable, usual);
        let is_last = self.moves_only && self.is_known(stop.pid());
        let (base, bias) = choose_and_move(stop, &started, executable, &huge, &self.options.policy, usual, is_last);
        if is_last {
            return Ok(AfterExec::Nothing);
        }
        self.in_between.insert(stop.pid(), InBetween::of(base));
        let entry = executable.image.entry + bias;
        Ok(if executable.image.is_static() { AfterExec::AtEntry } else { AfterExec::StopAt(entry) })
    }

    /// True for a position-independent program that holds a whole huge page which is never written, if files serve.
    fn may_move_for_file(&self, image: &ElfImage, usual: Option<PageSize>) -> bool {
        let Policy { page_size, .. } = self.options.policy;
        let Some(size) = usual.filter(|usual| page_size.is_none_or(|wanted| wanted == *usual)) else { return false };
        let mut read_only = image.segments.iter().filter(|segment| !segment.protection.write);
        image.kind == ElfKind::PositionIndependent
            && self.options.policy.may_use_files()
            && read_only.any(|segment| segment.memory.len() >= size.bytes())
    }

    /// True if a process runs the file that was read before the exec.
    fn is_known(&self, pid: i32) -> bool {
        let identity = executed_metadata(&ProcessFiles::of(pid)).map(|file| FileIdentity::of(&file));
        identity.is_some_and(|identity| self.file.as_ref().is_some_and(|known| known.huge_of(&identity).is_some()))
    }

    /// Returns the parts of a program's file in huge folios, if its base may be chosen for these.
    fn huge_parts(&self, pid: i32, executable: &LoadedObject, usual: Option<PageSize>) -> Vec<Range<u64>> {
        let Some(size) = usual.filter(|_| self.may_move_for_file(&executable.image, usual)) else { return Vec::new() };
        let Ok(Some((file, identity))) = open_executed(&ProcessFiles::of(pid)) else { return Vec::new() };
        let known = self.file.as_ref().and_then(|known| known.huge_of(&identity));
        known.map_or_else(|| files::huge_parts(&file, size), <[_]>::to_vec)
    }

    fn lift(&mut self, stop: &EntryStop, report: &mut LiftReport) -> Result<Entered, SessionError> {
        let terms = self.terms(stop.pid());
        // Other processes use the pool too, so the next program gets fresh facts.
        let ahead = self.ahead.take().filter(|ahead| ahead.pid == stop.pid());
        let (machine, store) = match ahead {
            Some(ahead) => (ahead.machine, ahead.store),
            None => (machine_facts_for(stop.pid(), &self.options.policy), OpenedStore::default()),
        };
        let machine = if stop.thp_is_off() { machine.with_thp_off_in_process() } else { machine };
        let machine = if self.options.dry_run { self.options.pools.of(machine) } else { machine };
        let ahead = ReadAhead { store, file: self.file.as_ref() };
        let how = How { prepare: self.options.prepare, dry_run: self.options.dry_run, terms: terms.as_ref() };
        lift(stop, &mut self.reader, &machine, ahead, &self.options.policy, report, how)
    }

    fn write_perf_map(&mut self, report: &LiftReport) {
        if !self.options.perf_map || report.lift.covered_bytes == 0 {
            return;
        }
        if let Err(error) = crate::perf_map::write(report.pid) {
            (self.tell)(&StartEvent::NoPerfMap { pid: report.pid, error: &error });
        }
    }
}

impl<T: FnMut(&StartEvent<'_>) + Send> Handler for Lifter<T> {
    fn at_exec(&mut self, stop: &ExecStop) -> AfterExec {
        let started = Instant::now();
        self.in_between.remove(&stop.pid());
        // Left by a program that executed another before its entry.
        self.ahead.take_if(|ahead| ahead.pid == stop.pid());
        if !self.is_wanted(stop.pid()) {
            let Some(why) = self.tracers.why(stop.pid()) else { return AfterExec::Nothing };
            (self.tell)(&StartEvent::LeftAlone { pid: stop.pid(), why });
            return AfterExec::LeaveAlone;
        }
        if !self.options.only.is_empty() {
            self.prepare_executed(stop.pid());
            self.prepare_heap(stop);
        }
        if self.lifts_nothing() {
            let report = LiftReport::new(stop.pid(), program_name(stop.pid()));
            return instead_of_entry(self.conclude(&report));
        }
        let result = self.begin(stop);
        if let Some(in_between) = self.in_between.get_mut(&stop.pid()) {
            in_between.stopped = started.elapsed();
        }
        match result {
            Ok(after) => after,
            Err(error) => instead_of_entry(self.unlifted(stop.pid(), error.in_full())),
        }
    }

    fn while_loading(&mut self, pid: i32) {
        if let Some(program) = self.in_between.get_mut(&pid) {
            program.name = program_name(pid);
        }
        let policy = &self.options.policy;
        let machine = machine_facts_for(pid, policy);
        let _ = has_several_nodes();
        self.ahead = Some(Ahead { pid, machine, store: OpenedStore::of_policy(policy) });
        if self.options.payment.is_some() {
            self.costs.get_or_insert_with(|| crate::costs::known().costs);
        }
    }

    fn mapped(&mut self, stop: &ExecStop) -> Option<Address> {
        let space = ProcessFiles::of(stop.pid()).maps().ok()?;
        let objects = self.reader.load(stop.pid(), &space).ok()?.objects;
        let is_program =
            |object: &&LoadedObject| object.role == ObjectRole::Executable && !object.image.is_dynamic_linker();
        let program = objects.iter().find(is_program)?;
        let base = Base::Kept { why: "started through its dynamic linker, which has placed it already".to_owned() };
        self.in_between.insert(stop.pid(), InBetween::of(base));
        Some(program.entry())
    }

    fn at_entry(&mut self, stop: &EntryStop) -> After {
        let started = Instant::now();
        let mut report = LiftReport::new(stop.pid(), String::new());
        let before = self.in_between.remove(&stop.pid());
        let lifted = self.lift(stop, &mut report);
        // Usually the executable has been found by now, and provides the name.
        if report.program.is_empty() {
            report.program = program_name(stop.pid());
        }
        let mut later = Later::default();
        match lifted {
            Ok(Entered::Lifted(postponed)) => later = postponed,
            Ok(Entered::Planned(plan, later, objects)) => {
                let (program, plan, later) = (report.program.as_str(), &plan, &later);
                (self.tell)(&StartEvent::Planned { pid: stop.pid(), program, plan, later, objects: &objects });
                return After::Exit(0);
            }
            Err(error) => report.lift.unlifted = Some(error.in_full()),
        }
        if let Some(before) = before {
            report.base = before.base;
            report.stopped_microseconds = before.stopped.as_micros() as u64;
        }
        report.stopped_microseconds += started.elapsed().as_micros() as u64;
        self.write_perf_map(&report);
        self.postpone(&mut report, &later);
        self.conclude(&report)
    }

    fn missed(&mut self, pid: i32, why: &io::Error) -> After {
        self.unlifted(pid, format!("it could not be stopped at its entry: {why}"))
    }

    fn ended_unseen(&mut self, pid: i32) {
        self.without_heap.remove(&pid);
        self.file.iter_mut().for_each(KnownFile::let_go);
        let program = self.in_between.remove(&pid).map(|program| program.name).filter(|name| !name.is_empty());
        let mut report = LiftReport::new(pid, program.unwrap_or_else(|| "?".to_owned()));
        report.lift.unlifted = Some("it ended before its entry, or before its helper was scheduled".to_owned());
        (self.tell)(&StartEvent::EndedUnseen { report: &report });
    }

    fn refused(&mut self, pid: i32, why: &str) -> After {
        self.unlifted(pid, why.to_owned())
    }

    fn stays(&self) -> bool {
        self.options.collapse_heap.is_some() || !self.debtors.is_empty() || !self.fillings.is_empty()
    }

    fn ends(&mut self, pid: i32) {
        (self.tell)(&StartEvent::Ends { pid });
    }

    fn released(&mut self, pid: i32) {
        // With --only this process follows the other programs.
        if !self.options.only.is_empty() {
            self.accompany(pid);
        }
    }

    fn killed(&mut self, pid: i32, why: &InjectError) {
        (self.tell)(&StartEvent::Killed { pid, why: why.to_string() });
    }
}

/// The decision at the exec stop for a program whose start is concluded there.
fn instead_of_entry(after: After) -> AfterExec {
    match after {
        After::Exit(status) => AfterExec::End(status),
        After::Release => AfterExec::LeaveAlone,
        After::Follow => AfterExec::Nothing,
    }
}
