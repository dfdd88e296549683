//! What to run, and what that is likely to bring.
//!
//! The estimate compares an upper bound of the memory in use with the reach of a TLB. It rests on published and own
//! measurements that [`Estimate::based_on`] names, and is never more than a reason to measure.

use crate::checks::{by_glibc, by_java, lift_target};
use crate::facts::{Facts, Feature, Known, ProgramFacts, RunningFacts};
use crate::finding::{Finding, Severity};
use address_space::format_bytes;
use foreign_text::quoted;
use lift_plan::Source;
use serde::Serialize;
use working_set::{Part, PartVerdict, Verdict as InUse};

/// Entries that the second-level TLBs of the last ten years hold at least and at most: 512 for code on Zen 3 and 4, 4,096
/// for data on Zen 5.
const ENTRIES: (u64, u64) = (512, 4096);
/// The check that finds a heap worth lifting.
const HEAP_CHECK: &str = "heap";
/// The check that finds shared memory worth lifting.
const SHARED_CHECK: &str = "shared-memory";

/// A likely effect. Not a measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Estimate {
    /// Code or heap.
    pub what: &'static str,
    /// The effect in words.
    pub likely: String,
    /// What that rests on.
    pub based_on: String,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// In a sentence.
    pub summary: String,
    /// The command that lifts; `None` where there is nothing to lift or the fixes come first.
    pub run: Option<String>,
    /// The command that measures whether it pays.
    pub measure: Option<String>,
    /// What it is likely to bring.
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
            let summary = format!("only root, or its own user, may look into {}", program.name);
            let run = Some(format!("sudo pagelift doctor {}", running.pid));
            return Self { summary, run, measure: None, estimates: Vec::new() };
        }
        if let Some(native) = by_itself(program) {
            return native;
        }
        let lifted: u64 = program.lifts.iter().map(|(_, bytes)| bytes).sum();
        let heap = facts.process_permits_thp() && findings.iter().any(|finding| finding.check == HEAP_CHECK);
        let in_place = findings.iter().any(|finding| finding.check == SHARED_CHECK);
        if let Some(running) = program.running.as_ref().filter(|running| in_place && running.shared_is_worth_a_lift()) {
            return of_shared(facts, program, running, before);
        }
        if lifted == 0 && !heap {
            let (summary, run) = nothing_to_lift(program);
            return Self { summary, run, measure: None, estimates: Vec::new() };
        }
        let estimates = estimates(facts, program, lifted > 0, heap);
        let summary = format!("{} can be lifted{before} ({})", program.name, what(program, lifted));
        let run = Some(run_command(facts, program, heap));
        Self { summary, run, measure: (lifted > 0).then(|| measure_command(facts, program)), estimates }
    }
}

/// The lift of shared memory that is the largest part of a program's memory.
fn of_shared(facts: &Facts, program: &ProgramFacts, running: &RunningFacts, before: &str) -> Verdict {
    let (name, bytes) = (&program.name, format_bytes(running.liftable_shared));
    let summary =
        format!("{name} can be lifted{before} ({bytes} of shared memory, in place, for all processes that share it)");
    let sudo = if facts.is_root { "" } else { "sudo " };
    let run = Some(format!("{sudo}pagelift attach --lift shared {}", lift_target(program, running)));
    let estimate = Estimate {
        what: "shared memory",
        likely: "smaller page tables, and fewer page faults of new processes; 0 to 21 % more work".to_owned(),
        based_on: format!(
            "{bytes} on base pages; seen before: PostgreSQL with 1.5 GB of buffers on huge pages from its start did 1.21 times the work \
             with short connections, and about the same with long ones"
        ),
    };
    Verdict { summary, run, measure: None, estimates: vec![estimate] }
}

/// The program's own way to huge pages, where a start of it needs no other: glibc's for code that the page cache holds in
/// huge folios, Java's for its heap.
fn by_itself(program: &ProgramFacts) -> Option<Verdict> {
    if program.running.is_some() {
        return None;
    }
    let name = &program.name;
    if let Some(command) = by_java(program) {
        let summary = format!(
            "{name} puts its heap on huge pages by its own flag, from its start; `pagelift run --via preload` beside it lifts \
             its code (libjvm.so)"
        );
        return Some(Verdict { summary, run: Some(command), measure: None, estimates: Vec::new() });
    }
    let is_of_file = |(source, _): &(Source, u64)| *source == Source::File;
    let in_cache = program.small_folios.is_empty() && !program.lifts.is_empty() && program.lifts.iter().all(is_of_file);
    let command = by_glibc(program).filter(|_| in_cache)?;
    let summary = format!("glibc maps the code of {name} by huge pages of the page cache itself, at every start");
    let measure = Some(format!("pagelift bench --against {} -- {}", quoted(format!("env {command}")), words(program)));
    Some(Verdict { summary, run: Some(command), measure, estimates: Vec::new() })
}

fn of_machine(problems: usize) -> Verdict {
    let summary = match problems {
        0 => "this machine is ready for huge pages; name a program or a process to learn what they bring it",
        _ => "fix the problems above first; then name a program or a process",
    };
    let run = Some("pagelift doctor -- CMD".to_owned());
    Verdict { summary: summary.to_owned(), run, measure: None, estimates: Vec::new() }
}

/// What would be lifted, and from where.
fn what(program: &ProgramFacts, lifted: u64) -> String {
    if lifted == 0 {
        return "its heap".to_owned();
    }
    let all = format!("{} of code and read-only data", format_bytes(lifted));
    let by_run = program.running.is_none() && program.small_folios.is_empty();
    let by = |(source, bytes): &(Source, u64)| format!("{} by {source}", format_bytes(*bytes));
    match program.lifts.as_slice() {
        _ if by_run => format!("{all}, from the page cache, which `run` prepares, else as they are"),
        [(source, _)] => format!("{all}, by {source}"),
        lifts => format!("{all}: {}", lifts.iter().map(by).collect::<Vec<_>>().join(", ")),
    }
}

/// Why nothing is lifted, and what to do instead.
fn nothing_to_lift(program: &ProgramFacts) -> (String, Option<String>) {
    let name = &program.name;
    let later = "pagelift doctor PID, once it runs".to_owned();
    match (&program.running, &program.interpreter, program.known) {
        (Some(_), ..) if already_huge(program) => (format!("{name} already has its code on huge pages"), None),
        (Some(_), ..) => (format!("leave {name} as it is: nothing of it fills a huge page that could be lifted"), None),
        (None, Some(interpreter), _) => {
            (format!("{name} is a script that {interpreter} runs; what counts is what it starts"), Some(later))
        }
        (None, None, Known::Java) => (
            format!("{name} loads its code (libjvm.so) when it runs, and --via preload lifts it then"),
            Some(format!("pagelift run --via preload -- {}", words(program))),
        ),
        (None, None, _) => (
            format!("{name} by itself fills no huge page that could be lifted; what it loads or starts is seen then"),
            Some(later),
        ),
    }
}

fn already_huge(program: &ProgramFacts) -> bool {
    program.running.as_ref().is_some_and(|running| running.code.1 > 0 && running.code.1 >= running.code.0 / 2)
}

fn words(program: &ProgramFacts) -> String {
    program.typed()
}

fn run_command(facts: &Facts, program: &ProgramFacts, heap: bool) -> String {
    let Some(running) = &program.running else { return format!("pagelift run -- {}", words(program)) };
    // `process_madvise` in another process, and processes of others, are for root.
    let asks_root = running.foreign || heap || facts.permission.ptrace_scope.unwrap_or(0) > 0;
    let sudo = if asks_root && !facts.is_root { "sudo " } else { "" };
    let heap = if heap && facts.thp.size.is_some() { " --heap=thp" } else { "" };
    format!("{sudo}pagelift attach {}{heap}", running.pid)
}

fn measure_command(facts: &Facts, program: &ProgramFacts) -> String {
    match &program.running {
        Some(running) => {
            let sudo = if running.foreign && !facts.is_root { "sudo " } else { "" };
            format!("{sudo}pagelift bench --toggle {} --lift text,rodata", running.pid)
        }
        None => format!("pagelift bench -- {}", words(program)),
    }
}

/// What a TLB translates for.
#[derive(Clone, Copy)]
enum For {
    Code,
    Data,
}

/// Bytes that a TLB reaches with base pages, at least and at most, and how that is known: measured, from CPUID, or not.
fn reach(facts: &Facts, what: For) -> (u64, u64, &'static str) {
    let told = facts.host.entries.map(|(code, data)| match what {
        For::Code => code * facts.base_page.bytes(),
        For::Data => data * facts.base_page.bytes(),
    });
    let measured = facts.host.measured.and_then(|measured| match what {
        For::Code => measured.code_reach,
        For::Data => measured.reach,
    });
    match (measured, told) {
        (Some(measured), _) => (measured, measured, "measured"),
        (None, Some(told)) => (told, told, "from CPUID"),
        (None, None) => (ENTRIES.0 * facts.base_page.bytes(), ENTRIES.1 * facts.base_page.bytes(), ""),
    }
}

fn reach_in_words(facts: &Facts, what: For) -> String {
    match reach(facts, what) {
        (least, most, "") => format!(
            "the {} to {} that TLBs of the last ten years reach with {} pages (--probe measures this one)",
            format_bytes(least),
            format_bytes(most),
            facts.base_page
        ),
        (reach, _, how) => {
            format!("the TLB's reach with {} pages, {} ({how})", facts.base_page, format_bytes(reach))
        }
    }
}

/// What the accessed marks say of a kind of memory, where they were counted and the size of the TLB is known.
fn in_use(program: &ProgramFacts, is_meant: impl Fn(Part) -> bool) -> Option<&PartVerdict> {
    let used = &program.running.as_ref()?.used;
    let known = used.iter().filter(|used| is_meant(used.part) && used.verdict != InUse::Unknown);
    known.max_by_key(|used| used.last)
}

/// The effect on memory that was watched.
fn of_use(used: &PartVerdict, exceeds: &'static str) -> (&'static str, String) {
    let likely = match used.verdict {
        InUse::Fits => "hardly any gain: the TLB holds all that is in use",
        InUse::FitsAlone => "little: the TLB holds all that is in use, but other memory competes for it",
        InUse::SeldomWalked => "hardly any gain: more is in use than the TLB holds, but it is seldom walked to",
        InUse::Huge => "hardly any gain: most of what is in use lies on huge pages already",
        InUse::Exceeds | InUse::Unknown => exceeds,
    };
    let entries = used.entries.unwrap_or_default();
    let tlb = match used.is_measured {
        true => format!("{entries} pages that the TLB was measured to hold"),
        false => format!("{entries} entries of the TLB"),
    };
    let based_on = format!(
        "{} pages walked to within {:.0} ms, {} within {:.0} ms, beside {tlb} (accessed marks; pagelift stat shows more)",
        used.first,
        1e3 * used.first_within,
        used.last,
        1e3 * used.last_within
    );
    (likely, based_on)
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
    const UP_TO_TEN: &str = "0 to 10 %, by how much of it is in use";
    if let Some(used) = in_use(program, |part| part == Part::Code) {
        let (likely, based_on) = of_use(used, UP_TO_TEN);
        return Some(Estimate { what: "code", likely: likely.to_owned(), based_on });
    }
    let (least, most, _) = reach(facts, For::Code);
    let (likely, source) = match bytes {
        bytes if bytes <= least => ("no gain: all of it fits the TLB", ""),
        bytes if bytes <= most => {
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
        reach_in_words(facts, For::Code)
    );
    Some(Estimate { what: "code", likely: likely.to_owned(), based_on })
}

fn heap(facts: &Facts, program: &ProgramFacts) -> Option<Estimate> {
    let running = program.running.as_ref()?;
    let small = running.anonymous.0.saturating_sub(running.anonymous.1);
    let likely = match facts.works(Feature::CollapseOther) || facts.thp.size.is_some() {
        true => "nothing where it is read in order, up to a third less time where it is visited at random",
        false => "needs the pool here (--heap=2M), for this kernel has no transparent huge pages",
    };
    if let Some(used) = in_use(program, |part| matches!(part, Part::Heap | Part::Anonymous)) {
        let (likely, based_on) = of_use(used, likely);
        return Some(Estimate { what: "heap", likely: likely.to_owned(), based_on });
    }
    let based_on = format!(
        "{} of private anonymous memory on base pages against {}; seen before: random lookups in 4 GB took 267 ns instead of 390, g++ gained \
         nothing",
        format_bytes(small),
        reach_in_words(facts, For::Data)
    );
    Some(Estimate { what: "heap", likely: likely.to_owned(), based_on })
}
