//! The command to run, and its likely gain.
//!
//! The estimate compares an upper bound of the memory in use with the reach of a TLB. It rests on published and own
//! measurements that [`Estimate::based_on`] names, and is never more than a reason to measure.

mod measure;
mod own_pages;

use crate::checks::{by_glibc, by_java, lift_target, lifts_in_place};
use crate::facts::{Facts, Feature, Known, ProgramFacts, RunningFacts};
use crate::finding::{Finding, Severity};
use crate::standing::State;
use address_space::{counted, format_bytes};
use foreign_text::quoted;
use lift_plan::Source;
use measure::{Measure, of_code, of_heap, of_lift, of_own_setting, of_worker};
use options::Choice;
use own_pages::{is_explicit, of_own_pages};
use serde::Serialize;
use translation::working_set::{Part, PartVerdict, ReachVerdict as InUse};

/// Entries that the second-level TLBs of the last ten years hold at least and at most: 512 for code on Zen 3 and 4, 4,096
/// for data on Zen 5.
const ENTRIES: (u64, u64) = (512, 4096);
/// The check that finds a heap worth lifting.
const HEAP_CHECK: &str = "heap";
/// The check that finds shared memory worth lifting.
const SHARED_CHECK: &str = "shared-memory";
/// The check of mapped data files.
const DATA_FILES_CHECK: &str = "data-files";

/// A likely effect. Not a measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Estimate {
    /// Code or heap.
    pub what: &'static str,
    /// The effect in words.
    pub likely: String,
    /// The basis of the estimate.
    pub based_on: String,
    /// The effect may be worth a lift.
    pub is_worthwhile: bool,
}

/// The advice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// In a sentence.
    pub summary: String,
    /// The command that lifts; `None` if there is nothing to lift or the fixes come first.
    pub run: Option<String>,
    /// The command that measures whether it pays.
    pub measure: Option<String>,
    /// Restrictions on that command, and values for its placeholders.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measure_note: Option<String>,
    /// The likely gain.
    pub estimates: Vec<Estimate>,
}

impl Verdict {
    pub(crate) fn of(facts: &Facts, findings: &[Finding]) -> Self {
        let problems = findings.iter().filter(|finding| finding.severity == Severity::Problem).count();
        let before = match problems {
            0 => "",
            1 => ", once the problem above is fixed",
            _ => ", once the problems above are fixed",
        };
        let Some(program) = &facts.program else { return of_machine(problems) };
        if let (Some(running), None) = (&program.running, program.is_static) {
            let (summary, run) = match facts.is_root {
                false => {
                    let summary = format!("only root, or its own user, may look into {}", program.name);
                    (summary, Some(format!("sudo pagelift doctor {}", running.pid)))
                }
                true => {
                    let why = "it belongs to another container, or a security module protects it";
                    (format!("not even this root may look into {}: {why}; the host's root may", program.name), None)
                }
            };
            return Self { summary, run, ..Self::default() };
        }
        if let Some(advice) = by_worker(program).or_else(|| by_build_tool(program)).or_else(|| by_itself(program)) {
            return advice;
        }
        let heap = findings.iter().any(|finding| finding.check == HEAP_CHECK);
        let by_own_pages = || of_own_pages(facts, program, findings, before);
        if let Some(advice) = is_explicit(program).then(by_own_pages).flatten() {
            return advice;
        }
        let in_place = findings.iter().any(|finding| finding.check == SHARED_CHECK);
        if let Some(running) = program.running.as_ref().filter(|running| in_place && running.shared_is_worth_a_lift()) {
            return of_shared(facts, program, running, before);
        }
        // Shared memory that the kernel can lift in place needs no restart.
        if let Some(advice) = by_own_pages() {
            return advice;
        }
        let files = findings.iter().any(|finding| finding.check == DATA_FILES_CHECK);
        if let Some(running) = program.running.as_ref().filter(|running| files && running.data_files_are_worth_a_lift())
        {
            return of_data_files(facts, program, running, before);
        }
        if program.planned == 0 && program.postponed.is_none() && !heap {
            return nothing_to_lift(facts, program);
        }
        let has_code = !program.lifts.is_empty() || program.postponed.is_some();
        let estimates = estimates(facts, program, has_code, heap);
        let Measure { command: measure, note: measure_note } = of_lift(facts, program, has_code, heap);
        let summary = format!("{} ({})", head(program, before), what(program));
        if !estimates.is_empty() && estimates.iter().all(|estimate| !estimate.is_worthwhile) {
            let summary = format!("{summary}. Leave it as it is: little gain is likely");
            return Self { summary, run: None, measure, measure_note, estimates };
        }
        Self { summary, run: Some(run_command(facts, program, heap)), measure, measure_note, estimates }
    }
}

/// The beginning of the advice to lift: the numbers of a process.
fn head(program: &ProgramFacts, before: &str) -> String {
    match program.standing() {
        Some(standing) => format!("{}: {}{before}", program.name, standing.in_words()),
        None => format!("{} can be lifted{before}", program.name),
    }
}

/// The lift of shared memory that is the largest part of a program's memory.
fn of_shared(facts: &Facts, program: &ProgramFacts, running: &RunningFacts, before: &str) -> Verdict {
    let bytes = format_bytes(running.in_place.shared);
    let head = head(program, before);
    let summary = format!("{head} ({bytes} of shared memory, in place, for all processes that share it)");
    let sudo = if facts.is_root { "" } else { "sudo " };
    let run = Some(format!("{sudo}pagelift attach --lift shared {}", lift_target(program, running)));
    let measure = of_own_setting(program);
    let measure_note = Some(match measure {
        Some(_) => "by its own setting, from its start: a lift in place cannot be taken back for a comparison",
        None => {
            "no command measures it, as a lift in place cannot be taken back: compare your figures before and after it"
        }
    });
    let measure_note = measure_note.map(str::to_owned);
    Verdict { summary, run, measure, measure_note, estimates: vec![of_buffers(&bytes)] }
}

/// The likely effect on shared memory of a server.
fn of_buffers(bytes: &str) -> Estimate {
    Estimate {
        what: "shared memory",
        likely: "smaller page tables, and fewer page faults of new processes; 0 to 21 % more work".to_owned(),
        based_on: format!(
            "{bytes} on base pages; seen before: PostgreSQL with 1.5 GB of buffers on huge pages from its start did 1.21 times the work \
             with short connections, and about the same with long ones"
        ),
        is_worthwhile: true,
    }
}

/// The lift of the program that does the work of a driver.
fn by_worker(program: &ProgramFacts) -> Option<Verdict> {
    let worker = program.worker.as_ref()?;
    let (name, words) = (&program.name, words(program));
    Some(Verdict {
        summary: match name == worker {
            // rustup's front end has the name of the compiler that it starts.
            true => format!("this {name} starts the {name} of a toolchain, which does the work: lift that"),
            false => format!("{name} leaves the work to {worker}: lift that"),
        },
        run: Some(format!("pagelift run --only {} -- {words}", quoted(worker))),
        measure: Some(of_worker(worker, &words)),
        ..Verdict::default()
    })
}

/// Build tools, which start compilers.
const BUILD_TOOLS: [&str; 4] = ["make", "gmake", "ninja", "cmake"];

/// The lift of the compilers that a build tool starts.
fn by_build_tool(program: &ProgramFacts) -> Option<Verdict> {
    let (name, words) = (&program.name, words(program));
    let is_build = program.running.is_none() && BUILD_TOOLS.contains(&name.as_str());
    is_build.then(|| Verdict {
        summary: format!(
            "{name} leaves the work to programs that it starts: lift those, cc1 and cc1plus of GCC for example"
        ),
        run: Some(format!("pagelift run --only cc1,cc1plus -- {words}")),
        measure: Some(format!("pagelift bench --only cc1,cc1plus -- {words}")),
        ..Verdict::default()
    })
}

/// The lift of mapped data files that are the largest part of a program's memory.
fn of_data_files(facts: &Facts, program: &ProgramFacts, running: &RunningFacts, before: &str) -> Verdict {
    let bytes = format_bytes(running.data_files.liftable);
    let summary = format!("{} ({bytes} of mapped data files, from the page cache)", head(program, before));
    let sudo = if facts.is_root { "" } else { "sudo " };
    let run = Some(format!("{sudo}pagelift attach --lift files {}", running.pid));
    let estimate = Estimate {
        what: "mapped data files",
        likely: "fewer TLB misses, if they are visited at random, and smaller page tables".to_owned(),
        based_on: format!("{bytes} on base pages in huge folios of the page cache"),
        is_worthwhile: true,
    };
    Verdict { summary, run, estimates: vec![estimate], ..Verdict::default() }
}

/// The program's own way to huge pages, if a start needs no other: glibc's for code that the page cache contains in
/// huge folios, Java's for its heap.
fn by_itself(program: &ProgramFacts) -> Option<Verdict> {
    if program.running.is_some() {
        return None;
    }
    let name = &program.name;
    if let Some(command) = by_java(program) {
        let summary = format!(
            "{name} puts its heap on huge pages by its own flag, from its start; `pagelift run --via preload` also \
             lifts its code (libjvm.so)"
        );
        return Some(Verdict { summary, run: Some(command), ..Verdict::default() });
    }
    let is_of_file = |(source, _): &(Source, u64)| *source == Source::File;
    let in_cache = program.small_folios.is_empty()
        && program.to_prepare == 0
        && !program.lifts.is_empty()
        && program.lifts.iter().all(is_of_file);
    let command = by_glibc(program).filter(|_| in_cache)?;
    let summary = format!("glibc maps the code of {name} by huge pages of the page cache itself, at every start");
    let measure = Some(format!("pagelift bench --against {} -- {}", quoted(format!("env {command}")), words(program)));
    Some(Verdict { summary, run: Some(command), measure, ..Verdict::default() })
}

fn of_machine(problems: usize) -> Verdict {
    let summary = match problems {
        0 => "this machine is ready for huge pages; name a program or a process to show its gain",
        _ => "fix the problems above first; then name a program or a process",
    };
    let run = Some("pagelift doctor -- CMD".to_owned());
    Verdict { summary: summary.to_owned(), run, ..Verdict::default() }
}

/// The parts that would be lifted, and their sources.
fn what(program: &ProgramFacts) -> String {
    let read_only: u64 = program.lifts.iter().map(|(_, bytes)| bytes).sum();
    let written = program.planned.saturating_sub(read_only);
    let by = |(source, bytes): &(Source, u64)| format!("{} by {source}", format_bytes(*bytes));
    let mut parts = match (read_only, program.lifts.as_slice()) {
        (0, _) => Vec::new(),
        (bytes, lifts) => {
            let all = format!("{} of code and read-only data", format_bytes(bytes));
            vec![match lifts {
                [(source, _)] => format!("{all}, by {source}"),
                lifts => format!("{all}: {}", lifts.iter().map(by).collect::<Vec<_>>().join(", ")),
            }]
        }
    };
    parts.extend((written > 0).then(|| format!("{} of written memory, in place", format_bytes(written))));
    parts.extend(program.postponed.as_ref().map(|postponed| {
        let due = postponed.due_microseconds as f64 / 1e6;
        format!("{} more when it has used {due:.1} s of CPU time", format_bytes(postponed.bytes))
    }));
    if program.to_prepare > 0 {
        parts.push(format!("`run` brings {} of the file into huge folios first", format_bytes(program.to_prepare)));
    }
    if parts.is_empty() { "its heap".to_owned() } else { parts.join("; ") }
}

/// Why nothing is lifted, and the alternative.
fn nothing_to_lift(facts: &Facts, program: &ProgramFacts) -> Verdict {
    let name = &program.name;
    let later = "pagelift doctor PID, once it runs".to_owned();
    let verdict = |summary: String, run, measure| Verdict { summary, run, measure, ..Verdict::default() };
    if let Some(standing) = program.standing() {
        let (words, code) = (standing.in_words(), program.running.as_ref().map_or(0, |running| running.code.1));
        return match standing.state() {
            State::Lifted => {
                let measure = (code > 0).then(|| of_code(facts, program).command).flatten();
                verdict(format!("{name}: {words}"), None, measure)
            }
            _ if standing.on_request().is_some() => verdict(format!("{name}: {words}"), None, None),
            _ => verdict(format!("leave {name} as it is: {words}"), None, None),
        };
    }
    match (&program.interpreter, program.known) {
        (Some(interpreter), _) => {
            let summary = format!("{name} is a script that {interpreter} runs; the programs that it starts count");
            verdict(summary, Some(later), None)
        }
        (None, Known::Java) => {
            let summary = format!("{name} loads its code (libjvm.so) when it runs, and --via preload lifts it then");
            verdict(summary, Some(format!("pagelift run --via preload -- {}", words(program))), None)
        }
        (None, _) if program.serves_heap => of_heap_alone(facts, program),
        (None, _) if program.code.1 > 0 => {
            let summary = format!(
                "{name} by itself fills no huge page that could be lifted; a dry run loads its libraries and shows theirs"
            );
            verdict(summary, Some(format!("pagelift run --dry-run -- {}", words(program))), None)
        }
        (None, _) => {
            let summary = format!(
                "{name} by itself fills no huge page that could be lifted; a running process shows its libraries and \
                 programs"
            );
            verdict(summary, Some(later), None)
        }
    }
}

/// The advice to a program without code to lift, whose heap a start can put on huge pages.
fn of_heap_alone(facts: &Facts, program: &ProgramFacts) -> Verdict {
    let (name, words) = (&program.name, words(program));
    let heap = match program.known {
        Known::Redis => "--heap=auto puts its data on huge pages, but each fork to save then copies more memory",
        _ => "--heap=auto puts its heap on huge pages, if it fills a large one",
    };
    let libraries = match program.code.1 {
        0 => "",
        _ => "; a dry run (`run --dry-run`) loads its libraries and shows theirs",
    };
    let Measure { command: measure, note: measure_note } = of_heap(facts, program);
    Verdict {
        summary: format!("the code of {name} by itself fills no huge page that could be lifted; {heap}{libraries}"),
        run: Some(format!("pagelift run --heap=auto -- {words}")),
        measure,
        measure_note,
        estimates: Vec::new(),
    }
}

/// The option by which a lift leaves the pool to the program, if it needs one.
fn option_of_pages(program: &ProgramFacts) -> String {
    program.pages.map_or_else(String::new, |pages| format!(" --pages {}", pages.word()))
}

fn words(program: &ProgramFacts) -> String {
    program.typed()
}

fn run_command(facts: &Facts, program: &ProgramFacts, heap: bool) -> String {
    let pages = option_of_pages(program);
    let Some(running) = &program.running else { return format!("pagelift run{pages} -- {}", words(program)) };
    // `process_madvise` in another process, and processes of others, are for root.
    let asks_root = running.foreign || heap || facts.permission.ptrace_scope.unwrap_or(0) > 0;
    let sudo = if asks_root && !facts.is_root { "sudo " } else { "" };
    let heap = match (heap && facts.thp.size.is_some(), program.planned) {
        (false, _) => String::new(),
        (true, _) if !lifts_in_place(facts, program) => " --heap=thp".to_owned(),
        (true, 0) => " --lift anon".to_owned(),
        (true, _) => " --lift text,rodata,data,bss,heap,anon".to_owned(),
    };
    format!("{sudo}pagelift attach {}{pages}{heap}", running.pid)
}

/// The accesses that a TLB translates.
#[derive(Clone, Copy)]
enum For {
    Code,
    Data,
}

/// Bytes that a TLB reaches with base pages.
enum TlbReach {
    /// The reach on this machine, at least and at most, and its source.
    Known { least: u64, most: u64, how: &'static str },
    /// The reach of TLBs of the last ten years.
    Usual { least: u64, most: u64 },
}

impl TlbReach {
    fn of(facts: &Facts, what: For) -> Self {
        let base = facts.base_page.bytes();
        let told = facts.host.entries.map(|(code, data)| match what {
            For::Code => code * base,
            For::Data => data * base,
        });
        let measured = facts.host.measured.and_then(|measured| match what {
            For::Code => measured.code_reach,
            For::Data => measured.reach,
        });
        match (measured, told) {
            (Some((least, most)), _) => Self::Known { least, most, how: "measured" },
            (None, Some(told)) => Self::Known { least: told, most: told, how: "from CPUID" },
            (None, None) => Self::Usual { least: ENTRIES.0 * base, most: ENTRIES.1 * base },
        }
    }

    fn least(&self) -> u64 {
        let (Self::Known { least: bytes, .. } | Self::Usual { least: bytes, .. }) = self;
        *bytes
    }

    fn most(&self) -> u64 {
        let (Self::Known { most: bytes, .. } | Self::Usual { most: bytes, .. }) = self;
        *bytes
    }

    fn in_words(&self, facts: &Facts) -> String {
        let page = facts.base_page;
        match self {
            Self::Known { least, most, how } => {
                let most = if most > least { format!(" to {}", format_bytes(*most)) } else { String::new() };
                format!("the TLB's reach with {page} pages, {}{most} ({how})", format_bytes(*least))
            }
            Self::Usual { least, most } => format!(
                "the {} to {} that TLBs of the last ten years reach with {page} pages (--probe measures this one)",
                format_bytes(*least),
                format_bytes(*most)
            ),
        }
    }
}

/// The result of the accessed marks for a kind of memory, if they were counted and the size of the TLB is known.
fn in_use(program: &ProgramFacts, is_meant: impl Fn(Part) -> bool) -> Option<&PartVerdict> {
    let used = &program.running.as_ref()?.used;
    let known = used.iter().filter(|used| is_meant(used.part) && used.verdict != InUse::Unknown);
    known.max_by_key(|used| used.last)
}

/// The effect on memory that was watched.
fn of_use(what: &'static str, used: &PartVerdict, exceeds: &str) -> Estimate {
    let likely = match used.verdict {
        InUse::Fits => "hardly any gain: the TLB holds all pages in use",
        InUse::FitsAlone => "little: the TLB holds all pages in use, but other memory competes for it",
        InUse::SeldomWalked => "hardly any gain: more pages are in use than the TLB holds, but page walks are rare",
        InUse::Huge => "hardly any gain: most memory in use is on huge pages already",
        InUse::Exceeds | InUse::Unknown => exceeds,
    };
    let entries = used.entries.unwrap_or_default();
    let tlb = match used.is_measured {
        true => format!("{entries} pages that the TLB was measured to hold"),
        false => format!("{entries} entries of the TLB"),
    };
    let based_on = format!(
        "{} walked to within {:.0} ms, {} within {:.0} ms, beside {tlb} (accessed marks; pagelift stat shows more)",
        counted(used.first, "page"),
        1e3 * used.first_within,
        used.last,
        1e3 * used.last_within
    );
    let is_worthwhile = matches!(used.verdict, InUse::Exceeds | InUse::Unknown);
    Estimate { what, likely: likely.to_owned(), based_on, is_worthwhile }
}

fn estimates(facts: &Facts, program: &ProgramFacts, has_code: bool, has_heap: bool) -> Vec<Estimate> {
    let mut estimates: Vec<Estimate> = code(facts, program).filter(|_| has_code).into_iter().collect();
    estimates.extend(heap(facts, program).filter(|_| has_heap));
    if facts.host.measured.is_some_and(|measured| measured.splintered == Some(true)) {
        for estimate in &mut estimates {
            estimate.based_on += "; the host splits huge pages (measured), so expect the lower end";
        }
    }
    estimates
}

fn code(facts: &Facts, program: &ProgramFacts) -> Option<Estimate> {
    let resident = program.running.as_ref().map(|running| running.code.0.saturating_sub(running.code.1));
    let (bytes, how) = match resident {
        Some(bytes) => (bytes, "resident code on base pages"),
        None => (program.code.0, "code"),
    };
    if bytes == 0 {
        return None;
    }
    const UP_TO_TEN: &str = "0 to 10 %, depending on the part in use";
    if let Some(used) = in_use(program, |part| part == Part::Code) {
        return Some(of_use("code", used, UP_TO_TEN));
    }
    let reach = TlbReach::of(facts, For::Code);
    let (likely, source) = match bytes {
        bytes if bytes <= reach.least() => ("no gain: all code fits the TLB", ""),
        // An upper bound of the code in use: slightly more than the reach is no different from slightly less.
        bytes if bytes <= reach.most().max(2 * reach.least()) => {
            ("0 to 2 %", "; seen before: MariaDB, with 9 MiB of code, 0 to 2 % in a virtual machine")
        }
        _ => (
            UP_TO_TEN,
            "; seen before: MariaDB 0 to 2 % in a virtual machine; published: MySQL 10 % on bare metal, with its data",
        ),
    };
    let based_on = format!(
        "{} of {how}, of which a part is in use, against {}{source}",
        format_bytes(bytes),
        reach.in_words(facts)
    );
    Some(Estimate { what: "code", likely: likely.to_owned(), based_on, is_worthwhile: bytes > reach.least() })
}

fn heap(facts: &Facts, program: &ProgramFacts) -> Option<Estimate> {
    let running = program.running.as_ref()?;
    let small = running.anonymous.0.saturating_sub(running.anonymous.1);
    let estimate = by_data(facts, &format!("{} of private anonymous memory", format_bytes(small)));
    if let Some(used) = in_use(program, |part| matches!(part, Part::Heap | Part::Anonymous)) {
        return Some(of_use("heap", used, &estimate.likely));
    }
    Some(estimate)
}

/// The likely effect on data, from its bytes and their description.
fn by_data(facts: &Facts, bytes: &str) -> Estimate {
    let likely = match facts.works(Feature::CollapseOther) || facts.thp.size.is_some() {
        true => "no gain for sequential access, up to a third less time for random access",
        false => "needs the pool here (--heap=2M), for this kernel has no transparent huge pages",
    };
    let based_on = format!(
        "{bytes} on base pages against {}; seen before: random lookups in 4 GB took 267 ns instead of 390, g++ gained nothing",
        TlbReach::of(facts, For::Data).in_words(facts)
    );
    Estimate { what: "heap", likely: likely.to_owned(), based_on, is_worthwhile: true }
}
