//! Programs that can request huge pages by themselves, if that is better.
//!
//! Sources: PostgreSQL's documentation (`huge_pages`, `shared_memory_size_in_huge_pages`), MariaDB's (`large_pages`,
//! `lock_memory`), redis.conf (`disable-thp`, since 6.2) and Redis' page on latency, java(1), node's
//! `--use-largepages`.

use super::{fine, found};
use crate::facts::{Facts, Feature, Known, ProgramFacts, RunningFacts};
use crate::finding::{CheckOutcome, Fix, Severity};
use address_space::format_bytes;
use foreign_text::quoted;
use heap_choice::Family;

/// Huge pages' worth of memory on base pages that is worth a word.
const MANY_PAGES: u64 = 32;

fn command_has(program: &ProgramFacts, words: &[&str]) -> bool {
    let has = |text: &String| words.iter().any(|word| text.contains(word));
    program.command.iter().any(has) || program.environment.iter().any(has)
}

/// Private anonymous memory of a program that runs: the heap, in most.
pub fn heap(facts: &Facts) -> Vec<CheckOutcome> {
    let (Some(program), Some(running), Some(huge)) = (&facts.program, facts.running(), facts.huge_page) else {
        return Vec::new();
    };
    let (resident, on_huge) = running.anonymous;
    let small = resident.saturating_sub(on_huge);
    if small < MANY_PAGES * huge.bytes() || small < resident / 4 {
        let shown = format!("{} of {} anonymous memory on huge pages", format_bytes(on_huge), format_bytes(resident));
        return fine(shown);
    }
    let pid = running.pid;
    let fix = match (program.known, program.allocator.as_ref().map(|(family, _)| family)) {
        // After a fork, each change copies a whole huge page.
        (Known::Redis, _) => return fine("redis keeps its data on base pages, which suits its forks"),
        // The check for Java has more details.
        (Known::Java, _) | (_, Some(Family::Jvm)) => return Vec::new(),
        (known, _) if lifts_in_place(facts, program) => {
            let own =
                if known == Known::Mysql { "; its own large_pages serves the buffers from the start" } else { "" };
            let note = format!("lifts the blocks that are full now, without a restart{own}");
            Fix::root(format!("pagelift attach --lift anon {pid}")).with_note(note)
        }
        _ => Fix::root(format!("pagelift attach {pid} --heap=thp")).with_note(
            "collapses allocated memory, in place; `pagelift run --heap=auto` also serves later allocations",
        ),
    };
    found(
        Severity::Advice,
        format!("the heap of {} is on base pages", program.name),
        format!("{} of {} private anonymous memory", format_bytes(small), format_bytes(resident)),
        "most of it on huge pages, if it is visited at random",
        "each base page takes a separate TLB entry",
        Some(fix),
    )
}

/// True if the heap of a running program is lifted by `--lift anon`, which also suspends the program's own
/// PR_SET_THP_DISABLE.
pub(crate) fn lifts_in_place(facts: &Facts, program: &ProgramFacts) -> bool {
    program.known == Known::Mysql || !facts.process_permits_thp()
}

/// Shared memory: buffers of databases.
pub fn shared_memory(facts: &Facts) -> Vec<CheckOutcome> {
    let (Some(program), Some(running), Some(huge)) = (&facts.program, facts.running(), facts.huge_page) else {
        return Vec::new();
    };
    let (resident, on_huge) = running.shared;
    let small = resident.saturating_sub(on_huge);
    let can_be_lifted = running.shared_is_worth_a_lift() && facts.works(Feature::CollapseOther);
    if can_be_lifted && small >= MANY_PAGES * huge.bytes() / 4 {
        let command = format!("pagelift attach --lift shared {}", lift_target(program, running));
        return found(
            Severity::Advice,
            format!("the shared memory of {} is on base pages", program.name),
            format!("{} resident, {} on huge pages", format_bytes(resident), format_bytes(on_huge)),
            "huge pages, which the kernel can make in place while the program runs",
            "every process has its own page tables for the whole shared memory; huge pages save these and TLB misses",
            Some(Fix::root(command).with_note("nothing is stopped; --dry-run shows what it adds")),
        );
    }
    match program.known {
        Known::Postgres => {
            fine(format!("{} of {} shared memory on huge pages", format_bytes(on_huge), format_bytes(resident)))
        }
        _ => Vec::new(),
    }
}

/// The words by which `attach` finds a process. For PostgreSQL all of its processes.
pub(crate) fn lift_target(program: &ProgramFacts, running: &RunningFacts) -> String {
    match program.known {
        Known::Postgres => format!("--all {}", quoted(&program.name)),
        _ => running.pid.to_string(),
    }
}

/// A Java virtual machine without its flags, or with the flag and without the pages.
pub fn java(facts: &Facts) -> Vec<CheckOutcome> {
    let Some(program) = facts.program.as_ref().filter(|program| program.known == Known::Java) else {
        return Vec::new();
    };
    if command_has(program, &["-XX:+UseTransparentHugePages"]) {
        return fine("Java requests transparent huge pages");
    }
    // The check of pages that programs request has more details.
    if command_has(program, &["-XX:+UseLargePages"]) {
        return Vec::new();
    }
    let Some(command) = by_java(program) else { return Vec::new() };
    found(
        Severity::Advice,
        "Java's heap is on base pages",
        "neither -XX:+UseTransparentHugePages nor -XX:+UseLargePages",
        "one of them",
        "the JVM maps its own heap: its own flag serves it from the start, better than a lift from outside",
        Some(
            Fix::user(command).with_note("with -XX:+AlwaysPreTouch the huge pages are there before the first request"),
        ),
    )
}

/// The command that makes Java use huge pages, if it has no such option yet.
pub(crate) fn by_java(program: &ProgramFacts) -> Option<String> {
    if program.known != Known::Java || command_has(program, &["-XX:+UseTransparentHugePages", "-XX:+UseLargePages"]) {
        return None;
    }
    let flag = "-XX:+UseTransparentHugePages";
    if program.running.is_some() {
        return Some(format!("java {flag} ARGUMENTS"));
    }
    let (first, rest) = program.command.split_first().map_or(("java", &[][..]), |(first, rest)| (first.as_str(), rest));
    Some(foreign_text::words([first, flag].into_iter().chain(rest.iter().map(String::as_str))))
}

/// redis, which forks to save.
pub fn redis(facts: &Facts) -> Vec<CheckOutcome> {
    let Some(program) = facts.program.as_ref().filter(|program| program.known == Known::Redis) else {
        return Vec::new();
    };
    if facts.thp_mode() != Some("always") || facts.thp.switched_off.is_some() || program.running.is_none() {
        return fine("redis' forks copy base pages");
    }
    found(
        Severity::Advice,
        "redis' forks copy whole huge pages",
        "transparent huge pages are always, and redis has not switched them off for itself",
        "disable-thp yes (the default since redis 6.2), or the mode madvise",
        "while a child saves, the first write to each huge page copies all of it: latency and memory",
        Some(
            Fix::write("madvise", format!("{}/enabled", machine_facts::THP))
                .with_note("its code can be lifted all the same; do not use --heap for it"),
        ),
    )
}

/// node with its own remapping.
pub fn node(facts: &Facts) -> Vec<CheckOutcome> {
    let Some(program) = facts.program.as_ref().filter(|program| program.known == Known::Node) else {
        return Vec::new();
    };
    if !command_has(program, &["--use-largepages=on", "--use-largepages=silent"]) {
        return fine("node leaves its code to its file");
    }
    found(
        Severity::Note,
        "node moves its own code",
        "--use-largepages",
        "the file's own pages, by `pagelift run`",
        "its copy is anonymous: it is not shared with other processes, and perf and uprobes lose it",
        Some(Fix::by_hand("leave the option out, and start it by `pagelift run`")),
    )
}
