//! The program, from its files and, where it runs, from /proc.

use super::process::{field, field_bytes};
use crate::facts::{Known, ProgramFacts, RunningFacts};
use address_space::{ElfImage, ElfKind, MappingName, MappingUsage, PageSize};
use heap_choice::{Environment, Program};
use lift_plan::{CacheShortfall, Plan, Policy, Reason, Shortfall, Source};
use linux::pages::{base_page, transparent_huge_page};
use machine_facts::{Files, System};
use process_view::{
    ObjectReader, ObservationError, ProcessFiles, ProcessMemory, open_in_root, open_regular_file, printable,
};
use session::heap::HeapPlan;
use session::inspect::{Inspection, Pools, inspect_file, inspect_process};
use session::status::far_pages_of;
use session::{SessionError, program_name};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

/// Shared objects that are looked at beside a program that does not run yet.
const MOST_OBJECTS: usize = 16;
/// Longest command that is shown whole, in bytes.
const LONGEST_COMMAND: usize = 4096;
/// Variables that ask for huge pages.
const VARIABLES: [&str; 5] =
    ["JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "NODE_OPTIONS", "GLIBC_TUNABLES"];

type WithMappings = (ProgramFacts, Option<u64>);

/// The program of a process. What this user may not see of it is left out.
pub fn of_process(pid: i32, huge: Option<PageSize>) -> Result<WithMappings, SessionError> {
    let command = command_of(&ProcessFiles::of(pid));
    let file_name = program_name(pid);
    let mut facts = empty(ProcessFiles::of(pid).name().unwrap_or_else(|_| file_name.clone()), String::new(), command);
    if facts.known == Known::Other {
        facts.known = known(&file_name, "");
    }
    let memory = match ProcessMemory::read(pid) {
        Ok(memory) => memory,
        Err(ObservationError::NotPermitted { .. }) => {
            facts.running = Some(running(pid, &[]));
            return Ok((facts, None));
        }
        Err(error) => return Err(error.into()),
    };
    if memory.usages.is_empty() {
        let why = format!("{}[{pid}] has no memory of its own: it is a kernel thread, or has ended", facts.name);
        return Err(SessionError::Refused(why));
    }
    facts.running = Some(RunningFacts { far_pages: far_pages_of(&memory), ..running(pid, &memory.usages) });
    facts.environment = environment_of(&ProcessFiles::of(pid));
    let inspection = inspect_process(pid, &Policy::default(), Pools::AsTheyAre)?;
    take_plan(&mut facts, &inspection.plan, huge);
    take_heap(&mut facts, inspection.heap.as_ref());
    let objects = &memory.objects.objects;
    if let Some(executable) = memory.objects.executable() {
        take_image(&mut facts, &executable.image);
        facts.path.clone_from(&executable.path);
    }
    let codes = objects.iter().map(|object| code_of(&object.image)).filter(|bytes| is_large(*bytes, huge));
    facts.code = codes.fold((0, 0), |(sum, count), bytes| (sum + bytes, count + 1));
    let large = objects.iter().filter(|object| is_large(code_of(&object.image), huge));
    for object in large.take(MOST_OBJECTS) {
        let file = open_in_root(&ProcessFiles::of(pid), &object.path).ok().flatten();
        take_folios(&mut facts, &object.path, file.map(|(file, _)| file));
    }
    Ok((facts, Some(memory.usages.len() as u64)))
}

/// The program of a command that does not run.
pub fn of_command(
    words: &[String],
    path: &Path,
    file: &File,
    is_script: bool,
    huge: Option<PageSize>,
) -> Result<WithMappings, SessionError> {
    let file_name = |path: &Path| path.file_name().unwrap_or(path.as_os_str()).display().to_string();
    let executed = file_name(path);
    let mut facts = empty(executed.clone(), path.display().to_string(), words.to_vec());
    if is_script {
        facts.name = file_name(Path::new(words.first().map_or("", String::as_str)));
        facts.interpreter = Some(executed);
    }
    let environment = Environment::of_this_process();
    facts.environment = VARIABLES.iter().filter_map(|name| environment.get(name)).map(str::to_owned).collect();
    let inspection = inspect_file(path, file, &Policy::default(), Pools::AsTheyAre)?;
    take_heap(&mut facts, inspection.heap.as_ref());
    let mut reader = ObjectReader::new();
    let program = Program::of_file(path, file, &environment).ok().flatten().unwrap_or_default();
    if let Some(image) = reader.read_ahead(path) {
        take_image(&mut facts, image);
    }
    let libraries = program.libraries.iter().map(|library| library.path.as_path()).take(MOST_OBJECTS);
    let mut plan = Plan::default();
    for object in std::iter::once(path).chain(libraries) {
        let code = reader.read_ahead(object).map_or(0, code_of);
        if !is_large(code, huge) {
            continue;
        }
        facts.code = (facts.code.0 + code, facts.code.1 + 1);
        take_folios(&mut facts, &object.display().to_string(), open_regular_file(object).ok().flatten());
        if let Some(inspection) = inspect(object) {
            plan.lifts.extend(inspection.plan.lifts);
            plan.refusals.extend(inspection.plan.refusals);
        }
    }
    take_plan(&mut facts, &plan, huge);
    Ok((facts, None))
}

fn inspect(path: &Path) -> Option<Inspection> {
    let file = open_regular_file(path).ok()??;
    inspect_file(path, &file, &Policy::default(), Pools::AsTheyAre).ok()
}

fn empty(name: String, path: String, command: Vec<String>) -> ProgramFacts {
    ProgramFacts {
        known: known(&name, command.first().map_or("", String::as_str)),
        name,
        path,
        command,
        interpreter: None,
        is_static: None,
        fixed_base: false,
        allocator: None,
        code: (0, 0),
        lifts: Vec::new(),
        pool_pages: 0,
        small_folios: Vec::new(),
        refused: None,
        running: None,
        environment: Vec::new(),
    }
}

/// What is known of a program, by the name of its file or of its call: on Debian redis-server is a link to
/// redis-check-rdb.
fn known(file: &str, called: &str) -> Known {
    let called = called.split(' ').next().unwrap_or_default();
    let called = called.rsplit('/').next().unwrap_or_default();
    let is = |names: &[&str]| names.contains(&file) || names.contains(&called);
    match () {
        () if is(&["postgres", "postmaster"]) => Known::Postgres,
        () if is(&["mariadbd", "mysqld"]) => Known::Mysql,
        () if is(&["redis-server", "valkey-server"]) => Known::Redis,
        () if is(&["node", "nodejs"]) => Known::Node,
        () if is(&["java"]) => Known::Java,
        () => Known::Other,
    }
}

fn is_large(bytes: u64, huge: Option<PageSize>) -> bool {
    huge.is_some_and(|huge| bytes >= huge.bytes())
}

fn code_of(image: &ElfImage) -> u64 {
    image.segments.iter().filter(|segment| segment.protection.execute).map(|segment| segment.memory.len()).sum()
}

fn take_image(facts: &mut ProgramFacts, image: &ElfImage) {
    facts.is_static = Some(image.interpreter.is_none());
    facts.fixed_base = image.kind == ElfKind::FixedAddress;
}

fn take_heap(facts: &mut ProgramFacts, plan: Option<&HeapPlan>) {
    let Some(plan) = plan else { return };
    let text = plan.allocator.to_string();
    let name = text.split(" (").next().unwrap_or(&text).to_owned();
    facts.allocator = Some((plan.allocator.family.clone(), name));
}

/// What would be lifted of what is never written, and what most of it stays for.
fn take_plan(facts: &mut ProgramFacts, plan: &Plan, huge: Option<PageSize>) {
    let mut by_source: BTreeMap<Source, u64> = BTreeMap::new();
    for lift in plan.lifts.iter().filter(|lift| !lift.protection.write) {
        *by_source.entry(lift.attempts[0].source).or_default() += lift.range.len();
        facts.pool_pages += huge.map_or(0, |huge| huge.pages_for(lift.range.len()));
    }
    facts.lifts = by_source.into_iter().collect();
    let counts = |reason: &Reason| {
        // The first belong to every program; the others have checks of their own.
        !matches!(
            reason,
            Reason::NoWholePage { .. }
                | Reason::RunningAndWritable
                | Reason::OtherThreadsWrite
                | Reason::ThpOff
                | Reason::ThpOffInProcess
                | Reason::NoThp
                | Reason::SmallFolios(_)
                | Reason::PoolTooSmall { .. }
                | Reason::PoolLimited { .. }
                | Reason::Mappings { .. }
        )
    };
    let refusals = plan.refusals.iter().filter(|refusal| counts(&refusal.reason));
    let shortfall = Shortfall::weightiest(refusals.map(|refusal| (refusal.range.len(), &refusal.reason)));
    facts.refused = shortfall
        .filter(|shortfall| is_large(shortfall.bytes, huge))
        .map(|shortfall| (shortfall.bytes, shortfall.reason.to_string(), shortfall.reason.fix()));
}

/// Why a file does not come into large folios, where that is known without trying.
fn take_folios(facts: &mut ProgramFacts, name: &str, file: Option<File>) {
    let Some(refusal) = file.and_then(|file| page_cache::unfit(&file)) else { return };
    let text = refusal.to_string();
    let (why, fix) = text.split_once("; fix: ").map_or((text.as_str(), None), |(why, fix)| (why, Some(fix.to_owned())));
    facts.small_folios.push((printable(name), CacheShortfall { why: why.to_owned(), fix }));
}

/// What is seen of a process, from smaps and what every user may read.
fn running(pid: i32, usages: &[MappingUsage]) -> RunningFacts {
    let status = System.text(&format!("/proc/{pid}/status")).unwrap_or_default();
    let owner = field(&status, "Uid").and_then(|ids| ids.split_whitespace().next()?.parse::<u32>().ok());
    let merged = System.number(&format!("/proc/{pid}/ksm_merging_pages")).unwrap_or(0);
    let sum = |fits: &dyn Fn(&MappingUsage) -> bool| {
        let usages = usages.iter().filter(|usage| fits(usage));
        usages.fold((0, 0), |(resident, huge), usage| (resident + usage.resident_with_hugetlb(), huge + usage.huge()))
    };
    let is_memory = |usage: &MappingUsage| !matches!(usage.mapping.name, MappingName::Special(_) | MappingName::Stack);
    let is_code = |usage: &MappingUsage| usage.mapping.protection.execute && is_memory(usage);
    let in_file = |usage: &MappingUsage| {
        let in_memory = |path: &str| ["/dev/zero", "/dev/shm/", "/SYSV", "/memfd:"].iter().any(|p| path.starts_with(p));
        usage.mapping.path().is_some_and(|path| !in_memory(path))
    };
    let is_shared = |usage: &MappingUsage| usage.mapping.shared && is_memory(usage) && !in_file(usage);
    let (of_liftable, on_huge) = sum(&|usage| is_shared(usage) && may_be_lifted(usage));
    RunningFacts {
        pid,
        foreign: owner.is_some_and(|owner| owner != nix::unistd::geteuid().as_raw()),
        code: sum(&is_code),
        anonymous: sum(&|usage| {
            let private = !usage.mapping.shared && !usage.mapping.protection.execute;
            private && is_memory(usage) && usage.mapping.path().is_none()
        }),
        shared: sum(&is_shared),
        liftable_shared: of_liftable.saturating_sub(on_huge),
        swapped: field_bytes(&status, "VmSwap").unwrap_or(0),
        merged: merged.saturating_mul(base_page().bytes()),
        far_pages: Vec::new(),
        used: Vec::new(),
    }
}

/// True if blocks of a shared mapping can be collapsed in place: addresses agree with offsets, and neither the pool nor the program
/// is in the way.
fn may_be_lifted(usage: &MappingUsage) -> bool {
    let mapping = &usage.mapping;
    let agrees = |huge: PageSize| mapping.range.start().0.wrapping_sub(mapping.offset).is_multiple_of(huge.bytes());
    let is_large = |huge: &PageSize| mapping.range.len() >= huge.bytes();
    transparent_huge_page().filter(is_large).is_some_and(agrees)
        && !["ht", "nh", "um"].iter().any(|flag| usage.has_flag(flag))
}

/// The words of a process's command, fit to be printed.
fn command_of(process: &ProcessFiles) -> Vec<String> {
    let bytes = process.bytes("cmdline").unwrap_or_default();
    let words = bytes.split(|byte| *byte == 0).map(|word| printable(&String::from_utf8_lossy(word)));
    let mut words: Vec<String> = words.collect();
    // A zero follows the last word too; a title that the program has set is filled up with them.
    while words.last().is_some_and(String::is_empty) {
        words.pop();
    }
    if bytes.len() > LONGEST_COMMAND {
        words.truncate(1);
        words.push("ARGUMENTS".to_owned());
    }
    words
}

fn environment_of(process: &ProcessFiles) -> Vec<String> {
    let bytes = process.bytes("environ").unwrap_or_default();
    let variable = |variable: &[u8]| {
        let text = String::from_utf8_lossy(variable).into_owned();
        let (name, value) = text.split_once('=')?;
        VARIABLES.contains(&name).then(|| value.to_owned())
    };
    bytes.split(|byte| *byte == 0).filter_map(variable).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_known_by_file_or_call() {
        assert_eq!(known("redis-check-rdb", "/usr/bin/redis-server *:6379"), Known::Redis);
        assert_eq!(known("postgres", "postgres: checkpointer "), Known::Postgres);
        assert_eq!(known("mariadbd", "mysqld"), Known::Mysql);
        assert_eq!(
            [known("node", ""), known("java", ""), known("bash", "-java")],
            [Known::Node, Known::Java, Known::Other]
        );
    }

    #[test]
    fn a_command_that_does_not_run_has_a_shape() {
        let path = std::env::current_exe().unwrap();
        let file = File::open(&path).unwrap();
        let words = ["test".to_owned()];
        let (facts, mappings) = of_command(&words, &path, &file, false, machine_facts::usual_huge_page()).unwrap();
        assert_eq!((facts.is_static, mappings), (Some(false), None));
        assert!(facts.allocator.is_some() && facts.running.is_none());
        assert!(
            of_command(&words, Path::new("/etc/passwd"), &File::open("/etc/passwd").unwrap(), false, None).is_err()
        );
    }
}
