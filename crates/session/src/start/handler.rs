//! Decides at the stops of a start which programs are lifted, and reports the outcome.

use super::base::{Placing, Started, better_base, choose_and_move};
use super::entry::{PlannedLift, lift};
use super::preparation::prepare;
use super::tracers::Tracers;
use super::{ENDED_BY_REQUIRE, StartEvent, StartOptions};
use crate::files::{self, KnownFile};
use crate::heap::heap_at_exec;
use crate::images::Known;
use crate::names::{Names, program_name};
use crate::{Base, LiftReport, SessionError};
use address_space::{Address, ElfImage, ElfKind, LoadedObject, ObjectRole, PageSize};
use lift_plan::{MachineFacts, Policy};
use linux::nodes::has_several_nodes;
use machine_facts::{elf_machine, machine_facts, machine_facts_for, usual_huge_page};
use process_view::{FileIdentity, ObjectReader, ProcessFiles, executed_metadata, open_executed};
use ptrace::{After, AfterExec, EntryStop, ExecStop, Handler, InjectError};
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// A program between its exec stop and its entry stop.
struct InBetween {
    base: Option<Base>,
    stopped: Duration,
}

/// Lifts what a [`ptrace::Follower`] brings.
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
    /// How the file of the program that is started lies in the page cache.
    file: Option<KnownFile>,
    /// The program of that file needs no more than another base.
    moves_only: bool,
    tracers: Tracers,
}

/// Facts that are read while a program runs to its entry, so that it does not wait for them.
struct Ahead {
    pid: i32,
    machine: MachineFacts,
    known: Known,
}

impl<T: FnMut(&StartEvent<'_>)> Lifter<T> {
    /// Returns a lifter that reports events to `tell`. `reader` may have read the program's file, and `file` is what is known
    /// of it; the program needs no more than another base if it `moves_only`.
    pub fn new(
        options: StartOptions,
        reader: ObjectReader,
        (file, moves_only): (Option<KnownFile>, bool),
        tell: T,
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
        }
    }

    /// The options of the start.
    pub fn options(&self) -> &StartOptions {
        &self.options
    }

    /// Holds the program's file in a process that was copied from the one which prepared it.
    pub fn hold_again(&self) {
        self.file.iter().for_each(KnownFile::hold_again);
    }

    /// Reports an event other than those of the stops.
    pub fn tell(&mut self, event: &StartEvent<'_>) {
        (self.tell)(event);
    }

    /// Reads what the exec stop will need, before the program that is to be executed is mapped.
    pub fn prepare(&mut self, program: &Path) {
        self.usual_huge_page();
        let interpreter = self.reader.read_ahead(program).and_then(|image| image.interpreter.clone());
        if let Some(interpreter) = interpreter {
            self.reader.read_ahead(Path::new(&interpreter));
        }
    }

    /// Brings the file of a program into huge folios that is followed and was not known before its exec: nothing of it has
    /// been touched yet.
    fn prepare_executed(&mut self, pid: i32) {
        let path = ProcessFiles::of(pid).path("exe");
        let shown = std::fs::read_link(&path).unwrap_or_else(|_| path.clone());
        if let Some(file) = prepare((&path, &shown), &mut self.reader, &self.options) {
            self.file = Some(file);
        }
    }

    /// Gives a followed program what its heap needs: its environment is the first that has it.
    fn prepare_heap(&mut self, stop: &ExecStop) {
        let Some(options) = self.options.heap else { return };
        // All facts are read: the heap may need some that the plan of a lift does not need.
        let machine = machine_facts(stop.pid());
        let Some(heap) = heap_at_exec(&options, stop.pid(), &machine) else { return };
        let mut refusals = heap.refusals;
        refusals.retain(|why| !self.options.heap_told.contains(why));
        if !heap.variables.is_empty() {
            match stop.set_variables(&heap.variables) {
                Ok(true) => {}
                Ok(false) => refusals.push("it has more rights than its user, who may not preload anything".to_owned()),
                Err(error) => refusals.push(format!("its environment cannot be changed: {error}")),
            }
        }
        if !refusals.is_empty() {
            let keeps = if heap.preloads { "" } else { "; the program keeps its own heap" };
            let (program, why) = (program_name(stop.pid()), refusals.join("; ") + keeps);
            (self.tell)(&StartEvent::HeapIsShort { pid: stop.pid(), program: &program, why: &why });
        }
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

    /// Reports the outcome for one program and decides whether it goes on.
    fn conclude(&mut self, report: &LiftReport) -> After {
        // The program maps its file by now, or does not need it held.
        self.file.iter_mut().for_each(KnownFile::let_go);
        let ended = self.options.require && !report.lift.is_complete();
        (self.tell)(&StartEvent::Concluded { report, ended });
        if ended { After::Exit(ENDED_BY_REQUIRE) } else { self.after(report) }
    }

    /// Returns whether tracing goes on after this program. Descendants are followed where other names are still
    /// expected; a lifted server does not stay traced. A program that is meant by a link's name alone may be a front
    /// end that executes the program of that name.
    fn after(&mut self, report: &LiftReport) -> After {
        if self.options.only.is_empty() {
            return After::Release;
        }
        if !self.options.follow_lifted && self.tracers.why(report.pid).is_some() {
            return After::Release;
        }
        let names = Names::of(report.pid);
        let others = self.options.only.iter().any(|name| !names.are_of_file(name));
        if self.options.follow_lifted || others || report.lift.ranges.is_empty() {
            After::Follow
        } else {
            After::Release
        }
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
        // The base of a program that holds whole huge pages may be chosen for its file, which is looked at first.
        if huge.is_none() && self.may_move_for_file(image, self.usual?) {
            return None;
        }
        let placing = Placing { image, bias, huge: huge.unwrap_or_default(), pid: stop.pid() };
        let base = better_base(&placing, &self.options.policy, self.usual?).err()?;
        self.in_between.insert(stop.pid(), InBetween { base: Some(base), stopped: Duration::ZERO });
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
        let (base, bias) = choose_and_move(stop, &started, executable, &huge, (&self.options.policy, usual), is_last);
        if is_last {
            return Ok(AfterExec::Nothing);
        }
        self.in_between.insert(stop.pid(), InBetween { base: Some(base), stopped: Duration::ZERO });
        let entry = executable.image.entry + bias;
        Ok(if executable.image.is_static() { AfterExec::AtEntry } else { AfterExec::StopAt(entry) })
    }

    /// True for a position-independent program that holds a whole huge page which is never written, where files serve.
    fn may_move_for_file(&self, image: &ElfImage, usual: Option<PageSize>) -> bool {
        let Policy { page_size, .. } = self.options.policy;
        let Some(size) = usual.filter(|usual| page_size.is_none_or(|wanted| wanted == *usual)) else { return false };
        let mut read_only = image.segments.iter().filter(|segment| !segment.protection.write);
        image.kind == ElfKind::PositionIndependent
            && self.options.policy.may_use_files()
            && read_only.any(|segment| segment.memory.len() >= size.bytes())
    }

    /// True where a process runs the file that was looked at before the exec.
    fn is_known(&self, pid: i32) -> bool {
        let identity = executed_metadata(&ProcessFiles::of(pid)).map(|file| FileIdentity::of(&file));
        identity.is_some_and(|identity| self.file.as_ref().is_some_and(|known| known.huge_of(&identity).is_some()))
    }

    /// Returns the parts of a program's file that lie in huge folios, where its base may be chosen for these.
    fn huge_parts(&self, pid: i32, executable: &LoadedObject, usual: Option<PageSize>) -> Vec<Range<u64>> {
        let Some(size) = usual.filter(|_| self.may_move_for_file(&executable.image, usual)) else { return Vec::new() };
        let Ok(Some((file, identity))) = open_executed(&ProcessFiles::of(pid)) else { return Vec::new() };
        let known = self.file.as_ref().and_then(|known| known.huge_of(&identity));
        known.map_or_else(|| files::huge_parts(&file, size), <[_]>::to_vec)
    }

    fn lift(&mut self, stop: &EntryStop, report: &mut LiftReport) -> Result<Option<PlannedLift>, SessionError> {
        // Other processes use the pool too, so the next program gets fresh facts.
        let ahead = self.ahead.take().filter(|ahead| ahead.pid == stop.pid());
        let (machine, known) = match ahead {
            Some(ahead) => (ahead.machine, ahead.known),
            None => (machine_facts_for(stop.pid(), &self.options.policy), Known::default()),
        };
        let machine = if stop.thp_is_off() { machine.with_thp_off_in_process() } else { machine };
        let machine = if self.options.dry_run { self.options.pools.of(machine) } else { machine };
        let known = (known, self.file.as_ref());
        let how = (self.options.prepare, self.options.dry_run);
        lift(stop, &mut self.reader, (&machine, known), &self.options.policy, report, how)
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

impl<T: FnMut(&StartEvent<'_>)> Handler for Lifter<T> {
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
        let result = self.begin(stop);
        if let Some(in_between) = self.in_between.get_mut(&stop.pid()) {
            in_between.stopped = started.elapsed();
        }
        match result {
            Ok(after) => after,
            Err(error) => match self.unlifted(stop.pid(), error.in_full()) {
                After::Exit(status) => AfterExec::End(status),
                After::Release => AfterExec::LeaveAlone,
                _ => AfterExec::Nothing,
            },
        }
    }

    fn while_loading(&mut self, pid: i32) {
        let policy = &self.options.policy;
        let machine = machine_facts_for(pid, policy);
        let _ = has_several_nodes();
        self.ahead = Some(Ahead { pid, machine, known: Known::of_store(policy) });
    }

    fn mapped(&mut self, stop: &ExecStop) -> Option<Address> {
        let space = ProcessFiles::of(stop.pid()).maps().ok()?;
        let objects = self.reader.load(stop.pid(), &space).ok()?.objects;
        let is_program =
            |object: &&LoadedObject| object.role == ObjectRole::Executable && !object.image.is_dynamic_linker();
        let program = objects.iter().find(is_program)?;
        let base = Base::Kept { why: "started through its dynamic linker, which has placed it already".to_owned() };
        self.in_between.insert(stop.pid(), InBetween { base: Some(base), stopped: Duration::ZERO });
        Some(program.entry())
    }

    fn at_entry(&mut self, stop: &EntryStop) -> After {
        let started = Instant::now();
        let mut report = LiftReport::new(stop.pid(), String::new());
        let before = self.in_between.remove(&stop.pid());
        let lifted = self.lift(stop, &mut report);
        // In most cases the executable has been found by now, and gives the name.
        if report.program.is_empty() {
            report.program = program_name(stop.pid());
        }
        match lifted {
            Ok(None) => {}
            Ok(Some((plan, objects))) => {
                let (program, plan, objects) = (report.program.as_str(), &plan, objects.as_slice());
                (self.tell)(&StartEvent::Planned { pid: stop.pid(), program, plan, objects });
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
        self.conclude(&report)
    }

    fn missed(&mut self, pid: i32, why: &io::Error) -> After {
        self.unlifted(pid, format!("it could not be stopped at its entry: {why}"))
    }

    fn refused(&mut self, pid: i32, why: &str) -> After {
        self.unlifted(pid, why.to_owned())
    }

    fn killed(&mut self, pid: i32, why: &InjectError) {
        (self.tell)(&StartEvent::Killed { pid, why: why.to_string() });
    }
}

/// Returns the reason where a set-user-ID program has lost its privileges because an unprivileged process traced its
/// exec (execve(2)).
fn lost_privileges(pid: i32) -> Option<String> {
    let process = ProcessFiles::of(pid);
    let file = executed_metadata(&process)?;
    let owner = (file.mode() & libc::S_ISUID != 0).then_some(file.uid())?;
    let status = process.text("status").ok()?;
    let effective: u32 =
        status.lines().find_map(|l| l.strip_prefix("Uid:"))?.split_whitespace().nth(1)?.parse().ok()?;
    (effective != owner).then(|| {
        format!(
            "it is set-user-ID but runs without those rights, since an unprivileged tracer follows it; \
             needed: root, or a start outside of `pagelift run --only` (uid {owner} wanted, {effective} found)"
        )
    })
}
