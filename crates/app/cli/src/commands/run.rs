//! `pagelift run`: becomes the program, which a helper lifts on its way.
//!
//! A boundary module: it meets the requirements of [`become_program`] on its caller.
//!
//! In order: the heap is decided, the exec is prepared, and the helper is started, which lifts the program that this
//! process becomes. Where there is no helper, the program lifts itself by preload, or runs unlifted.

use crate::arguments::via::ViaArg;
use crate::definition::RunArgs;
use crate::exit::OWN_FAILURE;
use crate::say;
use crate::text::message::{self, JournalStream};
use crate::text::{heap, table};
use foreign_text::printable;
use linux::bare;
use machine_facts::machine_facts;
use nix::errno::Errno;
use options::{HeapPages, Variable};
use session::LiftReport;
use session::heap::{HeapOptions, HeapStart, calm, prepare_heap, with_variables};
use session::inspect::{Inspection, Pools};
use session::start::{
    CommandFiles, Helper, Program, StartEvent, StartOptions, become_program, preload_environment, prepare_file,
};
use std::ffi::CString;
use std::path::Path;

/// The shell's statuses for a command that is not found and for one that cannot be executed.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

/// Returns only where the program could not be started.
pub fn run(args: &RunArgs) -> u8 {
    let mut heap = decide_heap(args);
    if let Some(decision) = heap.decision.as_ref().filter(|_| !args.outcome.quiet || (args.require && heap.is_short)) {
        say!("{}", heap::decision(decision));
    }
    if args.require && heap.is_short {
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
    match become_lifted(args, &heap, &exec) {
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

/// Becomes the program with a helper that lifts it. Returns only where there is none: the environment with which the
/// program lifts itself, or why it is not lifted.
fn become_lifted(args: &RunArgs, heap: &HeapStart, exec: &ExecPlan<'_>) -> Result<Vec<CString>, String> {
    let files = CommandFiles::of(&args.command[0]);
    if let Some(why) = files.privileged() {
        return Err(why);
    }
    let by_preload = || {
        only_with_ptrace(args)?;
        preload_environment(&variable(args), files.executed(), heap.environment.as_deref())
    };
    if args.via == Some(ViaArg::Preload) {
        // Of programs that lift themselves later on, what will be executed is known by their names alone.
        if let Some(program) = CommandFiles::that_count(&args.command[0], &args.only).executed() {
            prepare_file(program, &start_options(args, heap));
        }
        return by_preload();
    }
    let script = files.is_script().then_some(exec.name.as_str());
    let teller = Teller { args, script, journal: JournalStream::of_this_process() };
    let tell = |event: &StartEvent<'_>| teller.say(event);
    let options = start_options(args, heap);
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

/// Decides how the heap gets huge pages, where that is asked for.
fn decide_heap(args: &RunArgs) -> HeapStart {
    let options = heap_options(args);
    if options.pages == HeapPages::Off {
        return HeapStart::default();
    }
    let files = CommandFiles::that_count(&args.command[0], &args.only);
    match files.executed().filter(|_| files.privileged().is_none()) {
        Some(path) => prepare_heap(&options, &args.only, path, &machine_facts(std::process::id() as i32)),
        None => HeapStart::default(),
    }
}

/// True where followed programs get what their heaps need when they are executed, by the helper: nobody else gets it then.
fn heap_at_exec(args: &RunArgs) -> bool {
    !args.only.is_empty() && args.via != Some(ViaArg::Preload)
}

fn heap_options(args: &RunArgs) -> HeapOptions {
    HeapOptions { numa: args.policy.policy().numa, ..args.heap.options() }
}

/// Adds the settings by which the allocator keeps its memory; false where --require ends the start.
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

fn start_options(args: &RunArgs, heap: &HeapStart) -> StartOptions {
    StartOptions {
        policy: args.policy.policy(),
        prepare: args.prepare,
        only: args.only.clone(),
        follow_lifted: args.follow_lifted,
        require: args.require,
        dry_run: args.dry_run,
        pools: if args.suppose_pool { Pools::Plentiful } else { Pools::AsTheyAre },
        perf_map: args.outcome.perf_map,
        heap: Some(heap_options(args)).filter(|heap| heap.pages != HeapPages::Off && heap_at_exec(args)),
        heap_told: heap.decision.as_ref().map(|decision| decision.notes.clone()).unwrap_or_default(),
        collapse_heap: heap.collapse,
        silent: args.outcome.quiet && args.outcome.report.is_none(),
    }
}

/// The request to the library. Without --only it names this process, which becomes the program, so that no other
/// process acts on it.
fn variable(args: &RunArgs) -> Variable {
    Variable {
        policy: args.policy.policy(),
        only: args.only.clone(),
        pid: args.only.is_empty().then(|| std::process::id().into()),
        require: args.require,
        heap: HeapPages::Off,
        quiet: args.outcome.quiet,
        verbose: args.outcome.verbose,
    }
}

/// Refuses options that only the helper can serve.
fn only_with_ptrace(args: &RunArgs) -> Result<(), String> {
    let options = [
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

/// Says what happens at the program's start, and writes the report.
struct Teller<'a> {
    args: &'a RunArgs,
    /// The script that is executed.
    script: Option<&'a str>,
    journal: Option<JournalStream>,
}

impl Teller<'_> {
    fn say(&self, event: &StartEvent<'_>) {
        match event {
            StartEvent::Planned { pid, program, plan, objects } => {
                if let Some(path) = &self.args.outcome.report {
                    let document = Inspection::of_plan((*program).to_owned(), (*plan).clone()).with_objects(objects);
                    self.say_unwritten(*pid, path, document.write(path, !self.args.only.is_empty()));
                }
                if !self.args.outcome.quiet {
                    self.say_to(*pid, &table::plan(program, plan));
                }
            }
            StartEvent::Concluded { report, ended } => self.conclude(report, *ended),
            StartEvent::HeapIsShort { pid, program, why } if !self.args.outcome.quiet => {
                self.say_line(*pid, &format!("pagelift: {program}[{pid}]: heap: {why}"));
            }
            StartEvent::HeapIsShort { .. } => {}
            StartEvent::NoPerfMap { pid, error } => self.say_line(*pid, &format!("pagelift: no perf map: {error}")),
            StartEvent::LeftAlone { pid, why } if self.args.outcome.verbose => {
                let name = session::process_name(*pid);
                self.say_line(*pid, &format!("pagelift: {name}: not followed, nor what it starts: {why}"));
            }
            StartEvent::LeftAlone { .. } => {}
            StartEvent::Killed { pid, why } => {
                let name = session::process_name(*pid);
                self.say_line(*pid, &format!("pagelift: {name}: killed, since it could not be made to end: {why}"));
            }
            StartEvent::CannotFollow { pid, error } => {
                let what = "pagelift: programs that start from now on are not lifted: waiting for traced threads";
                self.say_line(*pid, &format!("{what}: {error}"));
            }
            StartEvent::HeapNotCollapsed { pid, error } if !self.args.outcome.quiet => {
                let needed = session::heap::COLLAPSE_NEEDS;
                self.say_line(*pid, &format!("pagelift: heap: collapsing is refused ({error}); {needed}"));
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

    /// Says why a report could not be written.
    fn say_unwritten(&self, pid: i32, path: &Path, written: std::io::Result<()>) {
        if let Err(error) = written {
            self.say_line(pid, &format!("pagelift: writing {}: {error}", path.display()));
        }
    }

    fn conclude(&self, report: &LiftReport, ended: bool) {
        let args = self.args;
        if let Some(path) = &args.outcome.report {
            self.say_unwritten(report.pid, path, report.write(path, !args.only.is_empty()));
        }
        if args.outcome.quiet && !ended && report.lift.unexpected.is_empty() {
            return;
        }
        let mut text = report.line();
        let nothing = report.lift.is_nothing();
        if let Some(script) = self.script.filter(|_| nothing && args.only.is_empty()) {
            text += &format!("; {script} is a script: `--only NAME` lifts the program NAME that it starts");
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
