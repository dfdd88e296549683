//! `pagelift run`: becomes the program, which a helper lifts at its start.
//!
//! A boundary module: it meets the requirements of [`become_program`] on its caller.
//!
//! It decides the heap, prepares the exec, and starts the helper, which lifts the program that this process becomes.
//! Without a helper, the program lifts itself by preload, or runs unlifted.

mod in_place;

use crate::arguments::process::refuse_process;
use crate::arguments::via::ViaArg;
use crate::definition::RunArgs;
use crate::exit::OWN_FAILURE;
use crate::output::Output;
use crate::say;
use crate::text::message::{self, JournalStream, StandardError};
use crate::text::sum::Sum;
use crate::text::{heap, pause::pause, table, worker};
use foreign_text::printable;
use in_place::{ToldOfRun, Wanted};
use linux::bare;
use linux::descriptors::duplicate_of;
use linux::written_file::is_standard_output;
use machine_facts::machine_facts;
use nix::errno::Errno;
use options::{HeapPages, Pages, Policy, Variable};
use process_view::ProcessFiles;
use session::heap::{Anonymous, HeapOptions, HeapStart, calm, prepare_heap, with_variables};
use session::inspect::{Inspection, PlanCost, Pools};
use session::running::Pause;
use session::start::{
    CommandFiles, Helper, Program, StartEvent, StartOptions, become_program, preload_environment, prepare_file,
};
use session::{LiftReport, Postponed, PostponedState};
use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The shell's statuses for a command that is not found and for one that cannot be executed.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

/// Returns only if the program could not be started.
pub fn run(args: &RunArgs) -> u8 {
    if let Err(why) = refuse_process(&args.command, "pagelift attach") {
        say!("pagelift: {why}");
        return NOT_FOUND;
    }
    let mut heap = decide_heap(args);
    if let Some(decision) = heap.decision.as_ref().filter(|_| !args.outcome.quiet || (args.require && heap.is_short)) {
        say!("{}", heap::decision(decision, heap.is_short));
    }
    if args.require && heap.is_short {
        return OWN_FAILURE;
    }
    let wanted = Wanted::of(args);
    if let Some(why) = wanted.refused(args).or_else(|| report_of_several(args)) {
        say!("pagelift: {why}");
        return OWN_FAILURE;
    }
    if args.calm && !calm_down(args, &mut heap) {
        return OWN_FAILURE;
    }
    let environment = if heap_at_exec(args) { heap.without_heap.clone() } else { heap.environment.clone() };
    let mut exec = match ExecPlan::prepare(args, environment) {
        Ok(exec) => exec,
        Err(why) => {
            say!("pagelift: {why}");
            return OWN_FAILURE;
        }
    };
    if wanted.is_all_refused(args) {
        exec.execute();
    }
    match become_lifted(args, (&heap, &wanted), &exec) {
        Ok(environment) => exec.program.set_environment(environment),
        Err(why) => {
            if args.require {
                say!("pagelift: {why}; --require ends it here");
                return OWN_FAILURE;
            }
            if !args.outcome.quiet {
                say!("pagelift: {}: not lifted: {why}", exec.name);
            }
            if args.dry_run {
                return OWN_FAILURE;
            }
        }
    }
    exec.execute()
}

/// Becomes the program with a helper that lifts it. Returns only if there is none: the environment with which the
/// program lifts itself, or the reason why it is not lifted.
fn become_lifted(
    args: &RunArgs,
    (heap, wanted): (&HeapStart, &Wanted),
    exec: &ExecPlan<'_>,
) -> Result<Vec<CString>, String> {
    let files = CommandFiles::of(&args.command[0]);
    if let Some(why) = files.privileged() {
        return Err(why);
    }
    let by_preload = || {
        only_with_ptrace(args, wanted)?;
        preload_environment(&variable(args), files.executed(), heap.environment.as_deref())
    };
    if args.via == Some(ViaArg::Preload) {
        // Programs that lift themselves later are known only by their names.
        if let Some(program) = CommandFiles::that_count(&args.command[0], &args.only).executed() {
            prepare_file(program, &start_options(args, heap, wanted));
        }
        return by_preload();
    }
    let script = files.is_script().then_some(exec.name.as_str());
    // The program's standard output may be anything once it runs.
    let file = args.outcome.report.as_ref().filter(|path| !is_standard_output(path));
    let later_report = file.map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone()));
    let teller = Teller::new(args, (later_report, script), heap.collapse.is_some(), wanted.note());
    let tell = |event: &StartEvent<'_>| teller.say(event);
    let options = start_options(args, heap, wanted);
    // SAFETY:
    // - `pagelift run` starts no thread.
    // - `execute_with` only makes calls of `bare`, with words that were made before, and ends by one.
    let refused = unsafe { become_program(options, files.executed(), tell, |helper| exec.execute_with(helper)) };
    if args.via == Some(ViaArg::Ptrace) {
        return Err(refused);
    }
    let environment = by_preload().map_err(|why| format!("{refused}; by preload: {why}"))?;
    if !args.outcome.quiet {
        say!("pagelift: {}: lifted by preload: {refused}", exec.name);
    }
    Ok(environment)
}

/// `--heap-reserve` without a heap.
const RESERVE_ALONE: &str =
    "--heap-reserve has no effect: found no --heap, needed a heap on pool pages; fix: --heap=2M beside it";

/// Decides how the heap gets huge pages, if requested.
fn decide_heap(args: &RunArgs) -> HeapStart {
    let options = heap_options(args);
    if options.pages == HeapPages::Off {
        if options.reserve.is_some() && !args.outcome.quiet {
            say!("pagelift: {RESERVE_ALONE}");
        }
        return HeapStart::default();
    }
    let files = CommandFiles::that_count(&args.command[0], &args.only);
    match files.executed().filter(|_| files.privileged().is_none()) {
        Some(path) => prepare_heap(&options, &args.only, path, &machine_facts(std::process::id() as i32)),
        None => HeapStart::default(),
    }
}

/// True if the helper gives followed programs the settings of their heaps when they are executed; other programs do not
/// get them.
fn heap_at_exec(args: &RunArgs) -> bool {
    !args.only.is_empty() && args.via != Some(ViaArg::Preload)
}

fn heap_options(args: &RunArgs) -> HeapOptions {
    HeapOptions { numa: args.policy.policy().numa, ..args.heap.options() }
}

/// Adds the settings by which the allocator keeps its memory; false if --require ends the start.
fn calm_down(args: &RunArgs, heap: &mut HeapStart) -> bool {
    let files = CommandFiles::that_count(&args.command[0], &args.only);
    let Some(path) = files.executed().filter(|_| files.privileged().is_none()) else { return true };
    let start = calm(path, &args.command, heap);
    let is_short = start.is_short && args.require;
    if !args.outcome.quiet || is_short {
        say!("{}", heap::calm(&start));
    }
    if let Some(environment) = start.environment {
        heap.environment = Some(environment);
        heap.without_heap = Some(with_variables(None, &start.variables));
    }
    !is_short
}

fn start_options(args: &RunArgs, heap: &HeapStart, wanted: &Wanted) -> StartOptions {
    StartOptions {
        policy: usual_policy(args),
        in_place: wanted.start(args),
        prepare: args.prepare,
        only: args.only.clone(),
        follow_lifted: args.follow_lifted,
        require: args.require,
        // With --only, the heap of each followed program is decided when it is executed.
        has_heap: args.heap.heap != HeapPages::Off && (heap.decision.is_some() || !args.only.is_empty()),
        dry_run: args.dry_run,
        payment: args.cost.payment(args.policy.pages, args.require),
        pools: if args.suppose_pool { Pools::Plentiful } else { Pools::AsTheyAre },
        perf_map: args.outcome.perf_map,
        heap: Some(heap_options(args)).filter(|heap| heap.pages != HeapPages::Off && heap_at_exec(args)),
        heap_told: heap.decision.as_ref().map(|decision| decision.notes.clone()).unwrap_or_default(),
        collapse_heap: heap.collapse,
        silent: args.outcome.quiet && args.outcome.report.is_none(),
    }
}

/// The policy for memory that the program has at its start.
fn usual_policy(args: &RunArgs) -> Policy {
    let policy = args.policy.policy();
    Policy { kinds: policy.kinds.usual(), ..policy }
}

/// The request to the library. Without --only it names this process, which becomes the program, so that no other
/// process acts on it.
fn variable(args: &RunArgs) -> Variable {
    Variable {
        policy: usual_policy(args),
        only: args.only.clone(),
        pid: args.only.is_empty().then(|| std::process::id().into()),
        require: args.require,
        heap: HeapPages::Off,
        quiet: args.outcome.quiet,
        verbose: args.outcome.verbose,
    }
}

/// Refuses options that only the helper can serve.
fn only_with_ptrace(args: &RunArgs, wanted: &Wanted) -> Result<(), String> {
    let options = [
        (!wanted.is_empty(), "--lift shared, anon, jit or files"),
        (args.dry_run, "--dry-run"),
        (args.outcome.report.is_some() && !args.report_if_possible, "--report"),
        (args.outcome.perf_map, "--perf-map"),
        (args.follow_lifted, "--follow-lifted"),
    ];
    match options.into_iter().find(|(given, _)| *given) {
        Some((_, option)) => Err(format!("{option} needs --via ptrace")),
        None => Ok(()),
    }
}

/// A thread that has panicked leaves a complete value behind.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prints the messages about the program's start, and writes the report.
struct Teller<'a> {
    args: &'a RunArgs,
    /// The path of the report for a helper that has left the folder of its start.
    later_report: Option<PathBuf>,
    /// The script that is executed.
    script: Option<&'a str>,
    journal: Option<JournalStream>,
    /// Standard error of each program at its start, for programs that later messages may concern.
    at_start: Mutex<BTreeMap<i32, StandardError>>,
    /// A sentence about memory that is lifted as it fills.
    later: Option<String>,
    /// Printed lines about such memory.
    told: Mutex<ToldOfRun>,
    /// The sum of outcomes, with --only and without --each.
    sum: Mutex<Sum>,
}

impl<'a> Teller<'a> {
    /// Reports on the program that this process becomes, and on the programs that it starts.
    fn new(
        args: &'a RunArgs,
        (later_report, script): (Option<PathBuf>, Option<&'a str>),
        is_long: bool,
        later: Option<String>,
    ) -> Self {
        let teller = Self {
            args,
            later_report,
            script,
            journal: JournalStream::of_this_process(),
            at_start: Mutex::default(),
            later,
            told: Mutex::default(),
            sum: Mutex::default(),
        };
        if is_long || !args.only.is_empty() {
            teller.note_standard_error(std::process::id() as i32);
        }
        teller
    }

    fn note_standard_error(&self, pid: i32) {
        lock(&self.at_start).extend(StandardError::of(pid).map(|found| (pid, found)));
    }

    fn say(&self, event: &StartEvent<'_>) {
        match event {
            StartEvent::Planned { pid, program, plan, later, objects } => {
                if let Some(path) = &self.args.outcome.report {
                    let document = Inspection::of_plan((*program).to_owned(), (*plan).clone()).with_later(later);
                    let document = document.with_objects(objects);
                    let written = match program_output(*pid, path) {
                        Some(output) => output.and_then(|file| document.write_to(file)),
                        None => document.write(path, !self.args.only.is_empty()),
                    };
                    self.say_unwritten(*pid, path, written);
                }
                if !self.args.outcome.quiet {
                    // The helper's standard output is not the program's.
                    let width = Output::Error.width();
                    self.say_to(*pid, &table::plan(program, plan, Postponed::of(later).as_ref(), width));
                    if !plan.lifts.is_empty() {
                        self.say_line(*pid, message::plan_cost(&PlanCost::of(plan)).trim_end());
                    }
                }
            }
            StartEvent::Concluded { report, ended } => self.conclude(report, *ended),
            StartEvent::EndedUnseen { report } => self.note_unseen(report),
            StartEvent::Ends { pid } => self.end_sum(*pid),
            StartEvent::Settled { report, pause, no_perf_map } => {
                self.settle(report, *pause);
                if let Some(error) = no_perf_map {
                    self.say_later(report.pid, &format!("pagelift: no perf map: {error}"), "");
                }
            }
            StartEvent::Looked { report, pids, looked, errors } => self.looked(report, pids, looked, errors),
            StartEvent::FilesLifted { report, lifted } => self.files_lifted(report, lifted),
            StartEvent::FamilyEnded { report } => self.write_later(report),
            StartEvent::HeapIsShort { pid, program, why } if !self.args.outcome.quiet => {
                self.say_line(*pid, &format!("pagelift: {program}[{pid}]: heap: {why}"));
            }
            StartEvent::HeapIsShort { .. } => {}
            StartEvent::NoPerfMap { pid, error } => self.say_line(*pid, &format!("pagelift: no perf map: {error}")),
            StartEvent::LeftAlone { pid, why } if self.args.outcome.verbose => {
                let name = session::process_name(*pid);
                self.say_line(*pid, &format!("pagelift: {name}: not followed, nor the programs that it starts: {why}"));
            }
            StartEvent::LeftAlone { .. } => {}
            StartEvent::Killed { pid, why } => {
                let name = session::process_name(*pid);
                self.say_line(*pid, &format!("pagelift: {name}: killed, since it could not be made to end: {why}"));
            }
            StartEvent::CannotFollow { pid, error } => {
                let what = "pagelift: programs that start from now on are not lifted: waiting for traced threads";
                self.say_later(*pid, &format!("{what}: {error}"), "");
            }
            StartEvent::HeapCollapsed { pid, now } => self.say_heap(*pid, *now),
            StartEvent::HeapNotCollapsed { pid, why } if !self.args.outcome.quiet => {
                self.say_later(*pid, &format!("pagelift: heap: {why}"), "");
            }
            StartEvent::HeapNotCollapsed { .. } => {}
        }
    }

    /// Says a text of several lines, of which each name in it is a part of one.
    fn say_to(&self, pid: i32, text: &str) {
        message::say_to(pid, text, self.journal);
    }

    /// Says one line.
    fn say_line(&self, pid: i32, line: &str) {
        self.say_to(pid, &(printable(line) + "\n"));
    }

    /// Says one line, and then a text like [`Self::say_to`], while the program runs.
    fn say_later(&self, pid: i32, line: &str, text: &str) {
        self.say_later_by(pid, pid, &format!("{}\n{text}", printable(line)));
    }

    /// Says a text like [`Self::say_to`] while the program runs, by the standard error of one of its descendants.
    fn say_later_by(&self, speaker: i32, program: i32, text: &str) {
        let at_start = lock(&self.at_start).get(&program).copied();
        if let Some(at_start) = at_start {
            message::say_later(speaker, text, self.journal, at_start);
        }
    }

    /// Reports a heap that the helper has collapsed. A program with a terminal may be drawing on it by then.
    fn say_heap(&self, pid: i32, now: Anonymous) {
        let outcome = &self.args.outcome;
        if !outcome.quiet && (outcome.verbose || !message::writes_to_terminal(pid)) {
            self.say_later(pid, &heap::collapsed(&session::process_name(pid), pid, now), "");
        }
    }

    /// Says why a report could not be written.
    fn say_unwritten(&self, pid: i32, path: &Path, written: io::Result<()>) {
        if let Err(error) = written {
            self.say_line(pid, &unwritten(path, &error));
        }
    }

    /// True if lines of several processes are replaced by a sum. A service has few, and each has its line in the journal.
    fn sums_up(&self) -> bool {
        let Self { args, journal, .. } = self;
        let names_each = args.each || args.outcome.verbose || journal.is_some();
        !(args.only.is_empty() || names_each || args.dry_run || args.outcome.quiet)
    }

    fn end_sum(&self, pid: i32) {
        let line = self.sums_up().then(|| lock(&self.sum).end(&self.args.only)).flatten();
        if let Some(line) = line {
            self.say_later(pid, &line, "");
        }
    }

    /// Counts and reports a program that has ended, whose standard error is closed.
    fn note_unseen(&self, report: &LiftReport) {
        if self.sums_up() {
            lock(&self.sum).add_unseen(report, ProcessFiles::of(report.pid).start_time());
        }
        if let Some(path) = self.args.outcome.report.as_ref().filter(|path| !is_standard_output(path)) {
            let _ = report.write(path, !self.args.only.is_empty());
        }
    }

    fn conclude(&self, report: &LiftReport, ended: bool) {
        let args = self.args;
        let is_held = self.sums_up() && lock(&self.sum).add(report, ProcessFiles::of(report.pid).start_time());
        if report.postponed.is_some() || self.later.is_some() {
            self.note_standard_error(report.pid);
        }
        if let Some(path) = &args.outcome.report {
            let written = match program_output(report.pid, path) {
                Some(output) => output.and_then(|file| report.write_to(file)),
                None => report.write(path, !args.only.is_empty()),
            };
            self.say_unwritten(report.pid, path, written);
        }
        if (args.outcome.quiet || is_held) && !ended && report.lift.unexpected.is_empty() {
            return;
        }
        let mut text = self.line_of_start(report);
        let nothing = report.lift.is_nothing();
        if let Some(script) = self.script.filter(|_| nothing && args.only.is_empty()) {
            text += &format!("; {script} is a script: `--only NAME` lifts the program NAME that it starts");
        }
        text += &self.worker_hint(report).unwrap_or_default();
        // A source that the user names is taken at any price.
        if matches!(args.policy.pages, Pages::Thp | Pages::Hugetlb) && report.lift.made_resident_bytes > 0 {
            text += &message::price(report);
        }
        if ended {
            text += "; --require ends it here";
        }
        text = printable(&text) + "\n";
        if args.outcome.verbose {
            text += &table::outcome(report);
        }
        self.say_to(report.pid, &text);
    }

    fn worker_hint(&self, report: &LiftReport) -> Option<String> {
        match self.args.only.as_slice() {
            [] => worker::of_run(self.args.command.first()?),
            only => worker::of_followed(OsStr::new(&report.program), only),
        }
    }

    /// The line about a start, without its end.
    fn line_of_start(&self, report: &LiftReport) -> String {
        let has_usual = !usual_policy(self.args).kinds.is_empty() || report.lift.unlifted.is_some();
        // The line about the heap precedes this one.
        let line = match self.args.heap.heap {
            HeapPages::Off => report.line(),
            _ => report.line().replacen("]: nothing lifted", "]: code and data: nothing lifted", 1),
        };
        match &self.later {
            None => line,
            Some(later) if has_usual => format!("{line}; {later}"),
            Some(later) => format!("pagelift: {}[{}]: {later}", report.program, report.pid),
        }
    }

    /// Prints the result of the part of a lift that the program has paid for. A program with a terminal may be drawing
    /// on it by then.
    fn settle(&self, report: &LiftReport, paused: Option<Pause>) {
        let args = self.args;
        let state = report.postponed.as_ref().map(|postponed| &postponed.state);
        let is_over = matches!(state, Some(PostponedState::Lifted { .. } | PostponedState::Refused { .. }));
        if is_over {
            self.write_later(report);
        }
        let is_held = lock(&self.sum).holds(report.pid);
        let is_quiet =
            args.outcome.quiet || is_held || !args.outcome.verbose && message::writes_to_terminal(report.pid);
        let line = match state {
            Some(PostponedState::Lifted { used_microseconds }) => {
                let paused = paused.map(|paused| format!("; {}", pause(paused))).unwrap_or_default();
                message::later_line(report, *used_microseconds) + &paused
            }
            Some(PostponedState::Refused { why }) => {
                format!("pagelift: {}[{}]: the rest is not lifted: {why}", report.program, report.pid)
            }
            _ => return,
        };
        if is_quiet && report.lift.unexpected.is_empty() {
            return;
        }
        let table = if args.outcome.verbose { table::outcome(report) } else { String::new() };
        self.say_later(report.pid, &line, &table);
    }
}

/// Why there is no report on the standard output, if several programs would write there.
fn report_of_several(args: &RunArgs) -> Option<String> {
    let is_output = args.outcome.report.as_deref().is_some_and(is_standard_output);
    (is_output && !args.only.is_empty()).then(|| {
        "--report - is for one program: found --only, needed a file for its programs; fix: --report FILE".to_owned()
    })
}

/// Returns the standard output of a program that has not begun, if the report goes there.
fn program_output(pid: i32, path: &Path) -> Option<io::Result<File>> {
    is_standard_output(path).then(|| duplicate_of(pid, libc::STDOUT_FILENO))
}

fn unwritten(path: &Path, error: &io::Error) -> String {
    format!("pagelift: writing {}: {error}", path.display())
}

/// The exec of the program, with all memory that it needs: see [`become_program`] for the reason.
struct ExecPlan<'a> {
    args: &'a RunArgs,
    program: Program,
    /// The program's name in messages.
    name: String,
}

impl<'a> ExecPlan<'a> {
    fn prepare(args: &'a RunArgs, environment: Option<Vec<CString>>) -> Result<Self, &'static str> {
        let words: Result<Vec<_>, _> = args.command.iter().map(|word| CString::new(word.as_encoded_bytes())).collect();
        let has_nul = |_| "an argument holds a NUL byte";
        let argv0 =
            args.argv0.as_ref().map(|name| CString::new(name.as_encoded_bytes())).transpose().map_err(has_nul)?;
        let mut program = Program::called(argv0, words.map_err(has_nul)?);
        if let Some(environment) = environment {
            program.set_environment(environment);
        }
        Ok(Self { args, program, name: printable(&Path::new(&args.command[0]).display().to_string()) })
    }

    /// Becomes the program while the helper shares this memory. Where the helper is gone the program runs unlifted, if
    /// that is permitted.
    fn execute_with(&self, helper: Helper) -> ! {
        if helper == Helper::WasKilled {
            let why: &[u8] = b"the helper process was killed";
            if self.args.require {
                bare::write(libc::STDERR_FILENO, [b"pagelift: ", why, b"; --require ends it here\n"]);
                bare::exit(OWN_FAILURE.into());
            }
            if !self.args.outcome.quiet {
                let pieces = [b"pagelift: ", self.name.as_bytes(), b": not lifted: ", why, b"\n"];
                bare::write(libc::STDERR_FILENO, pieces);
            }
            if self.args.dry_run {
                bare::exit(OWN_FAILURE.into());
            }
        }
        self.execute()
    }

    /// Becomes the program, or exits with a shell's message and status; touches neither the heap nor `errno`.
    fn execute(&self) -> ! {
        // SAFETY:
        // - `pagelift run` starts no thread, and neither it nor the helper, which may share this memory, changes the
        //   environment.
        let (status, why) = match Errno::from_raw(unsafe { self.program.execute() }) {
            Errno::ENOENT => (NOT_FOUND, "not found"),
            other => (NOT_EXECUTABLE, other.desc()),
        };
        bare::write(libc::STDERR_FILENO, [b"pagelift: ", self.name.as_bytes(), b": ", why.as_bytes(), b"\n"]);
        bare::exit(status.into())
    }
}
