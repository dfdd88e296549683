//! The program's own shape, and properties that keep its memory off huge pages.

use super::{fine, found};
use crate::facts::{Facts, ProgramFacts};
use crate::finding::{CheckOutcome, Fix, Severity};
use address_space::format_bytes;
use heap_choice::Family;

/// The first glibc 2.N with the tunable `glibc.elf.thp`.
const ELF_THP: u32 = 44;

/// The first glibc 2.N whose heaps request huge pages without a tunable.
const HEAPS_ASK: u32 = 43;

/// The files' folios.
pub fn large_folios(facts: &Facts) -> Vec<CheckOutcome> {
    let Some(program) = &facts.program else { return Vec::new() };
    // `pagelift run` prepares the file by itself.
    let starts = program.running.is_none();
    let by_run = |fix: &Option<String>| starts && fix.as_deref().is_some_and(|fix| fix.starts_with("pagelift cache"));
    let outcomes: Vec<CheckOutcome> = program
        .small_folios
        .iter()
        .filter(|(_, shortfall)| !by_run(&shortfall.fix))
        .flat_map(|(path, shortfall)| {
            let fix = shortfall.fix.as_ref().map(|fix| match fix.starts_with("pagelift ") && !fix.contains(", ") {
                true => Fix::user(fix),
                false => Fix::by_hand(fix),
            });
            found(
                Severity::Advice,
                "a file cannot be mapped by huge pages from the page cache",
                format!("{path}: {}", shortfall.why.trim_start_matches("found ")),
                "the file in huge folios",
                "that is the best source of code: no copy, shared by all processes, with its name and symbols",
                fix,
            )
        })
        .collect();
    if outcomes.is_empty() && !program.lifts.is_empty() { fine("the files' place in the page cache") } else { outcomes }
}

/// Huge pages of files and images on other NUMA nodes than the process's own.
pub fn far_pages(facts: &Facts) -> Vec<CheckOutcome> {
    let Some(running) = facts.program.as_ref().and_then(|program| program.running.as_ref()) else { return Vec::new() };
    let outcomes = running.far_pages.iter().flat_map(|far| {
        found(
            Severity::Advice,
            "huge pages of a file are on another NUMA node",
            far.place(),
            format!("all on node {}, where the process runs", far.home),
            "cache misses, also for code, read the other node's memory",
            Some(Fix::root(far.command()).with_note("and then start the program again")),
        )
    });
    outcomes.collect()
}

/// The reason why most of the memory stays on base pages.
pub fn refused(facts: &Facts) -> Vec<CheckOutcome> {
    let Some((bytes, reason, fix)) = facts.program.as_ref().and_then(|program| program.refused.as_ref()) else {
        return Vec::new();
    };
    found(
        Severity::Advice,
        format!("{} would not be lifted", format_bytes(*bytes)),
        reason,
        "memory that can be lifted",
        "`pagelift inspect` lists each range with its reason",
        fix.as_ref().map(|fix| match fix.starts_with("echo ") || fix.starts_with("sysctl ") {
            true => Fix::root(fix),
            false => Fix::by_hand(fix),
        }),
    )
}

/// The glibc 2.N that loads the program, if it knows `glibc.elf.thp`.
fn with_elf_thp(program: &ProgramFacts) -> Option<u32> {
    match &program.allocator {
        Some((Family::Glibc { minor: Some(minor) }, _)) if program.is_static == Some(false) => {
            Some(*minor).filter(|minor| *minor >= ELF_THP)
        }
        _ => None,
    }
}

fn sets_elf_thp(program: &ProgramFacts) -> bool {
    program.environment.iter().any(|text| text.contains("glibc.elf.thp=1"))
}

/// The command that makes glibc put the program's code on huge pages, if it can and has no such setting yet.
pub(crate) fn by_glibc(program: &ProgramFacts) -> Option<String> {
    with_elf_thp(program).filter(|_| !sets_elf_thp(program))?;
    Some(format!("GLIBC_TUNABLES=glibc.elf.thp=1 {}", program.typed()))
}

/// glibc's own way.
pub fn elf_thp(facts: &Facts) -> Vec<CheckOutcome> {
    let Some(program) = facts.program.as_ref().filter(|program| program.code.0 > 0) else { return Vec::new() };
    let Some(minor) = with_elf_thp(program) else { return Vec::new() };
    let Some(command) = by_glibc(program) else { return fine("glibc.elf.thp=1 is set") };
    found(
        Severity::Note,
        "glibc can align and advise the program's code by itself",
        format!("glibc 2.{minor}, without glibc.elf.thp=1 in GLIBC_TUNABLES"),
        "glibc.elf.thp=1, if the file is in huge folios",
        "shared objects get huge pages from the page cache at every plain start, without any tool",
        Some(Fix::user(command)),
    )
}

/// glibc's heaps, which request huge pages by themselves since 2.43 in the mode `madvise`.
pub fn glibc_heap(facts: &Facts) -> Vec<CheckOutcome> {
    let Some(program) = &facts.program else { return Vec::new() };
    let Some((Family::Glibc { minor: Some(minor @ HEAPS_ASK..) }, _)) = &program.allocator else { return Vec::new() };
    let is_set = program.environment.iter().any(|text| text.contains("glibc.malloc.hugetlb="));
    if is_set || facts.thp_mode() != Some("madvise") {
        return fine(format!("the heaps of glibc 2.{minor} do not request huge pages here"));
    }
    found(
        Severity::Note,
        "glibc's heaps request huge pages",
        format!("glibc 2.{minor} in the mode madvise, without glibc.malloc.hugetlb in GLIBC_TUNABLES"),
        "nothing for a large heap; glibc.malloc.hugetlb=0 for a small daemon",
        "each arena fills whole huge pages: 22 to 28 MB more for a small daemon",
        Some(Fix::by_hand("for a small daemon GLIBC_TUNABLES=glibc.malloc.hugetlb=0 in its environment")),
    )
}

/// The program's linking, its code and its allocator.
pub fn shape(facts: &Facts) -> Vec<CheckOutcome> {
    let Some(program) = &facts.program else { return Vec::new() };
    let Some(is_static) = program.is_static else {
        return vec![CheckOutcome::for_root(format!("the file of {}, its linkage and its allocator", program.name))];
    };
    let linkage = match (is_static, program.fixed_base) {
        (true, true) => "static",
        (true, false) => "static-PIE",
        (false, true) => "dynamic, fixed base",
        (false, false) => "dynamic PIE",
    };
    let (bytes, objects) = program.code;
    let plural = if objects == 1 { "" } else { "s" };
    let allocator = program.allocator.as_ref().map(|(_, name)| format!(", malloc from {name}")).unwrap_or_default();
    fine(format!("{linkage}, {} of code in {objects} large object{plural}{allocator}", format_bytes(bytes)))
}
