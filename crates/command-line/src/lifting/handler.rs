//! Decides at the stops of a start: which programs are lifted, and what is said and written about it.

use super::images::Known;
use super::message;
use super::names::Names;
use super::process::{Started, better_base, choose_and_move, lift};
use super::report::{Base, Report};
use super::table;
use address_space::{Address, LoadedObject, ObjectRole, PageSize};
use by_ptrace::{After, AfterExec, EntryStop, ExecStop, Handler};
use huge_page_pools::{elf_machine, machine_facts_for, usual_huge_page};
use lift_plan::{MachineFacts, Policy};
use observation::{FileIdentity, ObjectReader, ProcessFiles};
use std::collections::HashMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What `pagelift run` was asked for.
#[derive(Clone)]
pub struct Wishes {
    /// What to lift.
    pub policy: Policy,
    /// Only programs of these names.
    pub only: Vec<String>,
    /// Follow lifted programs' descendants too.
    pub follow_lifted: bool,
    /// End the program where anything is missing.
    pub require: bool,
    /// Plan only.
    pub dry_run: bool,
    /// Where the report goes.
    pub report: Option<PathBuf>,
    /// Write a perf map.
    pub perf_map: bool,
    /// Say nothing.
    pub quiet: bool,
    /// Say more.
    pub verbose: bool,
    /// The command, where it is a script: what it starts is another program than the one that was asked for.
    pub script: Option<String>,
}

/// A program between its two stops.
struct InBetween {
    base: Option<Base>,
    stopped: Duration,
}

/// Lifts what a [`by_ptrace::Follower`] brings.
pub struct Lifter {
    wishes: Wishes,
    reader: ObjectReader,
    in_between: HashMap<i32, InBetween>,
    /// The machine's usual huge page, once it has been asked for.
    usual: Option<Option<PageSize>>,
    /// What was found out for one process on its way to its entry.
    ahead: Option<Ahead>,
}

/// Found out while a program runs to its entry, so that it need not stand still for it.
struct Ahead {
    pid: i32,
    machine: MachineFacts,
    known: Known,
}

/// Exit status of a program that was ended because of `--require`.
const REQUIRED: i32 = 125;

impl Lifter {
    /// A lifter for these wishes.
    pub fn new(wishes: Wishes) -> Self {
        Self { wishes, reader: ObjectReader::default(), in_between: HashMap::new(), usual: None, ahead: None }
    }

    /// Reads what the exec stop will ask for, while the program that is to be executed has not been mapped yet.
    pub fn prepare(&mut self, program: &Path) {
        self.usual_huge_page();
        let interpreter = self.reader.read_ahead(program).and_then(|image| image.interpreter.clone());
        if let Some(interpreter) = interpreter {
            self.reader.read_ahead(Path::new(&interpreter));
        }
    }

    fn usual_huge_page(&mut self) -> Option<PageSize> {
        *self.usual.get_or_insert_with(usual_huge_page)
    }

    fn is_wanted(&self, pid: i32) -> bool {
        if self.wishes.only.is_empty() {
            return true;
        }
        let names = Names::of(pid);
        self.wishes.only.iter().any(|only| names.has(only))
    }

    /// The last word on one program: report, line, and whether it goes on.
    fn conclude(&mut self, report: &Report) -> After {
        if let Some(path) = &self.wishes.report
            && let Err(error) = report.write(path, !self.wishes.only.is_empty())
        {
            message::say_to(report.pid, &format!("pagelift: writing {}: {error}\n", path.display()));
        }
        let refused = self.wishes.require && !report.is_complete();
        if !self.wishes.quiet || refused || !report.unexpected.is_empty() {
            let mut text = message::line(report);
            let nothing = report.covered_bytes + report.advised_bytes == 0;
            if let Some(script) = self.wishes.script.as_ref().filter(|_| nothing && self.wishes.only.is_empty()) {
                text += &format!("; {script} is a script: `--only NAME` lifts the program NAME that it starts");
            }
            if refused {
                text += "; --require ends it here";
            }
            text.push('\n');
            if self.wishes.verbose {
                text += &table::outcome(report);
            }
            message::say_to(report.pid, &text);
        }
        if refused {
            return After::Exit(REQUIRED);
        }
        self.after(report)
    }

    /// Descendants are followed on where other names are still to come; a lifted server should not stay traced. What is
    /// meant by a link's name alone may be a front end, which goes on to execute the program of that name.
    fn after(&self, report: &Report) -> After {
        let only = &self.wishes.only;
        if only.is_empty() {
            return After::Release;
        }
        let names = Names::of(report.pid);
        let others = only.iter().any(|name| !names.are_of_file(name));
        if self.wishes.follow_lifted || others || report.ranges.is_empty() { After::Follow } else { After::Release }
    }

    fn unlifted(&mut self, pid: i32, why: String) -> After {
        let mut report = Report::new(pid, program_name(pid));
        report.unlifted = Some(why);
        self.conclude(&report)
    }

    /// The way of a program whose file has been read before and whose base is to stay: its entry is all that is needed.
    fn begin_known(&mut self, stop: &ExecStop) -> Option<AfterExec> {
        let process = ProcessFiles::of(stop.pid());
        let file = std::fs::metadata(process.path("exe")).ok()?;
        let image = self.reader.known(&FileIdentity::of(&file))?;
        let is_ordinary = file.mode() & libc::S_ISUID == 0
            && image.machine == elf_machine()
            && image.interpreter.is_some()
            && !(image.is_static() || image.is_dynamic_linker());
        let entry = process.auxiliary().ok()?.entry().filter(|_| is_ordinary)?;
        let bias = entry.0.wrapping_sub(image.entry.0);
        let base = better_base(image, bias, &self.wishes.policy, self.usual?).err()?;
        self.in_between.insert(stop.pid(), InBetween { base: Some(base), stopped: Duration::ZERO });
        Some(AfterExec::StopAt(entry))
    }

    fn begin(&mut self, stop: &ExecStop) -> anyhow::Result<AfterExec> {
        if let Some(after) = self.begin_known(stop) {
            return Ok(after);
        }
        if let Some(why) = lost_privileges(stop.pid()) {
            anyhow::bail!(why);
        }
        let usual = self.usual_huge_page();
        let started = Started::look(stop.pid(), &mut self.reader)?;
        let Some(executable) = started.objects.iter().find(|object| object.role == ObjectRole::Executable) else {
            let linker = started.objects.iter().any(|object| object.role == ObjectRole::DynamicLinker);
            anyhow::ensure!(linker, "its executable is not among its mappings");
            return Ok(AfterExec::WatchMaps);
        };
        if executable.image.is_dynamic_linker() {
            return Ok(AfterExec::WatchMaps);
        }
        anyhow::ensure!(
            executable.image.machine == elf_machine(),
            "{}",
            lift_plan::Reason::OtherMachine(executable.image.machine)
        );
        let (base, bias) = choose_and_move(stop, &started, executable, &self.wishes.policy, usual);
        self.in_between.insert(stop.pid(), InBetween { base: Some(base), stopped: Duration::ZERO });
        let entry = executable.image.entry + bias;
        Ok(if executable.image.is_static() { AfterExec::AtEntry } else { AfterExec::StopAt(entry) })
    }

    fn lift(&mut self, stop: &EntryStop, report: &mut Report) -> anyhow::Result<Option<lift_plan::Plan>> {
        // The pool is another's too: the next program gets fresh facts.
        let ahead = self.ahead.take().filter(|ahead| ahead.pid == stop.pid());
        let (machine, known) = match ahead {
            Some(ahead) => (ahead.machine, ahead.known),
            None => (machine_facts_for(stop.pid(), &self.wishes.policy), Known::default()),
        };
        let machine = if stop.thp_is_off() { machine.with_thp_off_in_process() } else { machine };
        lift(stop, &mut self.reader, (&machine, known), &self.wishes.policy, report, self.wishes.dry_run)
    }

    fn write_perf_map(&self, report: &Report) {
        if !self.wishes.perf_map || report.covered_bytes == 0 {
            return;
        }
        if let Err(error) = observation::perf_map::write(report.pid) {
            message::say_to(report.pid, &format!("pagelift: no perf map: {error}\n"));
        }
    }
}

impl Handler for Lifter {
    fn at_exec(&mut self, stop: &ExecStop) -> AfterExec {
        let started = Instant::now();
        self.in_between.remove(&stop.pid());
        // Of a program that executed another before its entry.
        self.ahead.take_if(|ahead| ahead.pid == stop.pid());
        if !self.is_wanted(stop.pid()) {
            return AfterExec::Nothing;
        }
        let result = self.begin(stop);
        if let Some(in_between) = self.in_between.get_mut(&stop.pid()) {
            in_between.stopped = started.elapsed();
        }
        match result {
            Ok(after) => after,
            Err(error) => match self.unlifted(stop.pid(), format!("{error:#}")) {
                After::Exit(status) => AfterExec::End(status),
                _ => AfterExec::Nothing,
            },
        }
    }

    fn meanwhile(&mut self, pid: i32) {
        let policy = &self.wishes.policy;
        let machine = machine_facts_for(pid, policy);
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
        let mut report = Report::new(stop.pid(), String::new());
        let before = self.in_between.remove(&stop.pid());
        let lifted = self.lift(stop, &mut report);
        // Mostly its executable has been found by now, whose name is the program's.
        if report.program.is_empty() {
            report.program = program_name(stop.pid());
        }
        match lifted {
            Ok(None) => {}
            Ok(Some(plan)) => {
                message::say_to(stop.pid(), &table::plan(&report.program, &plan));
                return After::Exit(0);
            }
            Err(error) => report.unlifted = Some(format!("{error:#}")),
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
}

/// The program's name for messages: the file's, or where that is hidden the kernel's short one.
pub fn program_name(pid: i32) -> String {
    let process = ProcessFiles::of(pid);
    let exe = std::fs::read_link(process.path("exe")).ok();
    let name = exe.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    name.or_else(|| process.name().ok()).unwrap_or_else(|| "?".to_owned())
}

/// A setuid program that was executed while traced by someone unprivileged has lost its privileges (execve(2)).
fn lost_privileges(pid: i32) -> Option<String> {
    let process = ProcessFiles::of(pid);
    let file = std::fs::metadata(process.path("exe")).ok()?;
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
