//! The program, from its files and, if it runs, from /proc.

use super::leaving_pool::{is_of_source, leave_pool};
use super::listening::listens;
use super::own_settings::{Observed, Release, of_java, own_pages, release_in};
use super::process::{field, field_bytes};
use crate::facts::{DataFileFacts, Known, ProgramFacts, RunningFacts};
use address_space::{ElfImage, ElfKind, MappingName, MappingUsage, PageSize};
use heap_choice::{Environment, HeapChoice, Program};
use lift_plan::{CacheShortfall, Kind, Kinds, Pages, Plan, Policy, Reason, Shortfall, Source};
use linux::pages::{base_page, transparent_huge_page};
use machine_facts::{Files, System};
use process_view::coverage::MemoryKind;
use process_view::{
    ObjectReader, ObservationError, ProcessFiles, ProcessMemory, open_executed, open_in_root, open_regular_file,
    printable,
};
use session::heap::HeapPlan;
use session::inspect::{FileLift, KnownFile, Pools, inspect_file, inspect_process};
use session::shared::InPlaceAmounts;
use session::start::{Payment, worker_of};
use session::status::far_pages_of;
use session::{SessionError, program_name};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Shared objects that are examined besides a program that does not run yet.
const MOST_OBJECTS: usize = 16;
/// Longest command that is shown whole, in bytes.
const LONGEST_COMMAND: usize = 4096;
/// Longest file of settings that is read, in bytes.
const LONGEST_SETTINGS: u64 = 1 << 20;
/// Bytes of a program's file that are searched for its release.
const LONGEST_PROGRAM: u64 = 64 << 20;
/// Variables that request huge pages.
const VARIABLES: [&str; 5] =
    ["JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "NODE_OPTIONS", "GLIBC_TUNABLES"];

type WithMappings = (ProgramFacts, Option<u64>);

/// The program of a process. Facts that this user may not read are omitted.
pub fn of_process(pid: i32, huge: Option<PageSize>) -> Result<WithMappings, SessionError> {
    let command = command_of(&ProcessFiles::of(pid));
    let file_name = program_name(pid);
    let mut facts = empty(printable(&file_name), String::new(), command);
    if facts.known == Known::Other {
        let comm = ProcessFiles::of(pid).name().unwrap_or_default();
        facts.known = known(&comm, "");
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
        let why = format!("{}[{pid}] has no user memory: it is a kernel thread, or has ended", facts.name);
        return Err(SessionError::Refused(why));
    }
    let (far_pages, in_place) = (far_pages_of(&memory), InPlaceAmounts::of(&memory));
    let data_files = data_files(pid, &memory);
    let running = with_segments(running(pid, &memory.usages), in_place);
    facts.running = Some(RunningFacts { far_pages, data_files, ..running });
    facts.environment = environment_of(&ProcessFiles::of(pid));
    let process = ProcessFiles::of(pid);
    let words = server_command(facts.known, &facts.command, pid);
    let opened = || open_executed(&process).ok().flatten().map(|(file, _)| file);
    let observed = Observed { mariadb: mariadb(facts.known, opened), ..observed(&memory.usages) };
    facts.own_pages = own_pages(facts.known, &words, &RootOf::of(&process, pid), observed);
    take_java(&mut facts);
    let inspection = inspect_process(pid, &Policy::default(), Pools::AsTheyAre)?;
    // The numbers are the ones of `inspect`.
    facts.planned = inspection.adds();
    let of = |pages| inspect_process(pid, &Policy { pages, ..Policy::default() }, Pools::AsTheyAre);
    let inspection = leave_pool(&mut facts, inspection, of)?;
    take_plan(&mut facts, &inspection.plan, huge);
    if facts.lifts.is_empty() {
        facts.pool_pages = pool_pages(&inspect_process(pid, &Policy::default(), Pools::Plentiful)?.plan, huge);
    }
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
    (file, known): (&File, Option<&KnownFile>),
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
    facts.worker = words.first().and_then(|word| worker_of(OsStr::new(word)));
    let environment = Environment::of_this_process();
    facts.environment = VARIABLES.iter().filter_map(|name| environment.get(name)).map(str::to_owned).collect();
    let observed = Observed { mariadb: mariadb(facts.known, || file.try_clone().ok()), ..Observed::default() };
    facts.own_pages = own_pages(facts.known, words, &OwnFiles, observed);
    take_java(&mut facts);
    let of = |pages| {
        let start = FileLift { known, payment: Payment::usual(pages), pools: Pools::AsTheyAre };
        inspect_file(path, file, &Policy { pages, ..Policy::default() }, start)
    };
    let inspection = of(Pages::default())?;
    take_heap(&mut facts, inspection.heap.as_ref());
    let mut reader = ObjectReader::new();
    let program = Program::of_file(path, file, &environment).ok().flatten().unwrap_or_default();
    if let Some(image) = reader.read_ahead(path) {
        take_image(&mut facts, image);
    }
    let libraries = program.libraries.iter().map(|library| library.path.as_path()).take(MOST_OBJECTS);
    for object in std::iter::once(path).chain(libraries) {
        let code = reader.read_ahead(object).map_or(0, code_of);
        if !is_large(code, huge) {
            continue;
        }
        facts.code = (facts.code.0 + code, facts.code.1 + 1);
        take_folios(&mut facts, &object.display().to_string(), open_regular_file(object).ok().flatten());
    }
    // The addresses of libraries are not known before the start.
    facts.planned = inspection.plan.planned();
    let inspection = leave_pool(&mut facts, inspection, of)?;
    take_plan(&mut facts, &inspection.plan, huge);
    facts.to_prepare = inspection.to_prepare;
    facts.postponed = inspection.postponed;
    Ok((facts, None))
}

fn empty(name: String, path: String, command: Vec<String>) -> ProgramFacts {
    ProgramFacts {
        known: known_by_words(&name, &command),
        name,
        path,
        command,
        interpreter: None,
        worker: None,
        is_static: None,
        fixed_base: false,
        allocator: None,
        heap_choice: None,
        serves_heap: false,
        code: (0, 0),
        lifts: Vec::new(),
        pages: None,
        pool_pages: 0,
        small_folios: Vec::new(),
        refused: None,
        running: None,
        environment: Vec::new(),
        own_pages: None,
        planned: 0,
        postponed: None,
        to_prepare: 0,
    }
}

/// The facts about a program, by the name of its file or of its call: on Debian redis-server is a link to
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

/// As [`known`]. A copy of MariaDB or MySQL by another name is known by options that only these servers, and programs that back
/// up their data, have.
fn known_by_words(file: &str, command: &[String]) -> Known {
    let is_innodb = |word: &String| word.starts_with("--innodb-") || word.starts_with("--innodb_");
    match known(file, command.first().map_or("", String::as_str)) {
        Known::Other if command.iter().any(is_innodb) && !file.contains("backup") => Known::Mysql,
        known => known,
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

fn take_java(facts: &mut ProgramFacts) {
    if facts.known == Known::Java {
        let environment = facts.environment.iter().flat_map(|value| value.split_whitespace());
        facts.own_pages = of_java(environment.chain(facts.command.iter().map(String::as_str)));
    }
}

fn take_heap(facts: &mut ProgramFacts, plan: Option<&HeapPlan>) {
    let Some(plan) = plan else { return };
    let text = plan.allocator.to_string();
    let name = text.split(" (").next().unwrap_or(&text).to_owned();
    facts.allocator = Some((plan.allocator.family.clone(), name));
    facts.heap_choice = Some(plan.line());
    let HeapChoice { variables, preload, collapse, .. } = &plan.choice;
    facts.serves_heap = !variables.is_empty() || preload.is_some() || *collapse;
}

/// The parts that are never written and would be lifted, and the main reason for the rest.
fn take_plan(facts: &mut ProgramFacts, plan: &Plan, huge: Option<PageSize>) {
    let mut by_source: BTreeMap<Source, u64> = BTreeMap::new();
    for lift in plan.lifts.iter().filter(|lift| !lift.protection.write) {
        *by_source.entry(lift.attempts[0].source).or_default() += lift.range.len();
    }
    facts.pool_pages = pool_pages(plan, huge);
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
                | Reason::FileStays(_)
                | Reason::FileWritable
                | Reason::FileMisplaced { .. }
                | Reason::PoolTooSmall { .. }
                | Reason::PoolLimited { .. }
                | Reason::Mappings { .. }
                | Reason::Unpaid { .. }
        )
    };
    // Sources that are left out for the program's own pages are no shortfall.
    let is_left_out = |reason: &Reason| facts.pages.is_some() && is_of_source(reason);
    let refusals = plan.refusals.iter().filter(|refusal| counts(&refusal.reason) && !is_left_out(&refusal.reason));
    let shortfall = Shortfall::weightiest(refusals.map(|refusal| (refusal.range.len(), &refusal.reason)));
    facts.refused = shortfall
        .filter(|shortfall| is_large(shortfall.bytes, huge))
        .map(|shortfall| (shortfall.bytes, shortfall.reason.to_string(), shortfall.reason.fix()));
}

/// Pages that all read-only memory of a plan would take from the pool.
fn pool_pages(plan: &Plan, huge: Option<PageSize>) -> u64 {
    let read_only = plan.lifts.iter().filter(|lift| !lift.protection.write);
    huge.map_or(0, |huge| read_only.map(|lift| huge.pages_for(lift.range.len())).sum())
}

/// Adds the reason why a file gets no large folios, if that is known without trying.
fn take_folios(facts: &mut ProgramFacts, name: &str, file: Option<File>) {
    let Some(refusal) = file.and_then(|file| page_cache::unfit(&file)) else { return };
    let text = refusal.to_string();
    let (why, fix) = text.split_once("; fix: ").map_or((text.as_str(), None), |(why, fix)| (why, Some(fix.to_owned())));
    facts.small_folios.push((printable(name), CacheShortfall { why: why.to_owned(), fix }));
}

/// The facts about a process, from smaps and from files that every user may read.
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
    RunningFacts {
        pid,
        foreign: owner.is_some_and(|owner| owner != nix::unistd::geteuid().as_raw()),
        is_server: listens(pid),
        code: sum(&is_code),
        anonymous: sum(&|usage| {
            let private = !usage.mapping.shared && !usage.mapping.protection.execute;
            private && is_memory(usage) && usage.mapping.path().is_none()
        }),
        shared: sum(&is_shared),
        data_files: DataFileFacts::default(),
        in_place: InPlaceAmounts::default(),
        all: sum(&|_| true),
        pool_mappings: pool_mappings(usages),
        swapped: field_bytes(&status, "VmSwap").unwrap_or(0),
        merged: merged.saturating_mul(base_page().bytes()),
        far_pages: Vec::new(),
        used: Vec::new(),
    }
}

/// Adds the memory that lifts in place can add. Its segments count as resident in full: the first process of a server maps few
/// pages of the buffers that its other processes use.
fn with_segments(mut running: RunningFacts, in_place: InPlaceAmounts) -> RunningFacts {
    let (resident, huge) = running.shared;
    running.shared.0 = resident.max(huge.saturating_add(in_place.shared));
    RunningFacts { in_place, ..running }
}

/// Mapped data files, if the process has any that can hold a huge page. Files that cannot be read are left out.
fn data_files(pid: i32, memory: &ProcessMemory) -> DataFileFacts {
    let Some(huge) = transparent_huge_page() else { return DataFileFacts::default() };
    let is_large =
        |(kind, usage): (MemoryKind, &MappingUsage)| kind == MemoryKind::File && usage.resident >= huge.bytes();
    if !memory.besides_objects().any(is_large) {
        return DataFileFacts::default();
    }
    let policy = Policy { kinds: Kinds::from(Kind::Files), ..Policy::default() };
    let Ok(inspection) = inspect_process(pid, &policy, Pools::AsTheyAre) else { return DataFileFacts::default() };
    let files = &inspection.data_files;
    let mut in_small_folios: BTreeMap<&str, u64> = BTreeMap::new();
    let refused = inspection.plan.refusals.iter();
    for refusal in refused.filter(|refusal| matches!(refusal.reason, Reason::SmallFolios(_))) {
        *in_small_folios.entry(&refusal.object).or_default() += refusal.range.len();
    }
    let largest = in_small_folios.iter().max_by_key(|(_, bytes)| **bytes);
    DataFileFacts {
        resident: files.iter().map(|file| file.resident).sum(),
        huge: files.iter().map(|file| file.huge).sum(),
        liftable: inspection.plan.lifts.iter().map(|lift| lift.range.len()).sum(),
        in_small_folios: in_small_folios.values().sum(),
        largest: largest.map(|(path, _)| (*path).to_owned()).unwrap_or_default(),
    }
}

/// Lengths of mappings of data on the pool. Code on the pool is there by a lift.
fn pool_mappings(usages: &[MappingUsage]) -> Vec<u64> {
    let is_data = |usage: &&MappingUsage| usage.has_flag("ht") && usage.mapping.protection.write;
    usages.iter().filter(is_data).map(|usage| usage.mapping.range.len()).collect()
}

/// Returns facts about a running server's buffers from its mappings.
fn observed(usages: &[MappingUsage]) -> Observed {
    let longest = |fits: &dyn Fn(&MappingUsage) -> bool| {
        usages.iter().filter(|usage| fits(usage)).map(|usage| usage.mapping.range.len()).max().unwrap_or(0)
    };
    let is_shared = |usage: &MappingUsage| {
        usage.mapping.shared && usage.mapping.protection.write && (usage.has_flag("ht") || is_anonymous_shared(usage))
    };
    Observed { shared: longest(&is_shared), mariadb: None, runs: true }
}

/// The release of MariaDB, from the file that is executed.
fn mariadb(known: Known, open: impl FnOnce() -> Option<File>) -> Option<Release> {
    if known != Known::Mysql {
        return None;
    }
    let file = open()?;
    let length = file.metadata().ok()?.len().min(LONGEST_PROGRAM);
    let mut bytes = vec![0; usize::try_from(length).ok()?];
    file.read_exact_at(&mut bytes, 0).ok()?;
    release_in(&bytes)
}

/// True for shared memory without a file: `mmap` with MAP_SHARED and MAP_ANONYMOUS, and System V segments.
fn is_anonymous_shared(usage: &MappingUsage) -> bool {
    usage.mapping.path().is_some_and(|path| path.starts_with("/dev/zero") || path.starts_with("/SYSV"))
}

/// The files below a process's root.
struct RootOf<'a> {
    process: &'a ProcessFiles,
    /// Directories can be listed: the process is in this mount namespace.
    is_here: bool,
}

impl<'a> RootOf<'a> {
    fn of(process: &'a ProcessFiles, pid: i32) -> Self {
        let link = |path: String| std::fs::read_link(path).ok();
        let namespace = link(format!("/proc/{pid}/ns/mnt"));
        let root = link(format!("/proc/{pid}/root"));
        let is_here = namespace.is_some()
            && namespace == link("/proc/self/ns/mnt".to_owned())
            && root.is_some_and(|root| root == Path::new("/"));
        Self { process, is_here }
    }
}

impl Files for RootOf<'_> {
    fn text(&self, path: &str) -> Option<String> {
        let (file, _) = open_in_root(self.process, path).ok()??;
        settings_text(file)
    }

    fn names_in(&self, path: &str) -> Vec<String> {
        // Folders of other places may be served by a user's program.
        let may_be_listed = self.is_here && path.starts_with("/etc/") && !path.contains("/../");
        if may_be_listed { System.names_in(path) } else { Vec::new() }
    }
}

/// The files that a command of this process reads.
struct OwnFiles;

impl Files for OwnFiles {
    fn text(&self, path: &str) -> Option<String> {
        settings_text(open_regular_file(Path::new(path)).ok()??)
    }

    fn names_in(&self, path: &str) -> Vec<String> {
        System.names_in(path)
    }
}

/// The text of a file of settings, if it is not too long for one.
fn settings_text(file: File) -> Option<String> {
    let mut bytes = Vec::new();
    file.take(LONGEST_SETTINGS + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= LONGEST_SETTINGS).then(|| String::from_utf8_lossy(&bytes).into_owned())
}

/// The words of the process that started PostgreSQL: its children show titles in their place.
fn server_command(known: Known, command: &[String], pid: i32) -> Vec<String> {
    let is_title = known == Known::Postgres && command.first().is_some_and(|word| word.starts_with("postgres:"));
    let parent = || super::process::parent(&System, pid);
    match is_title.then(parent).flatten() {
        Some(parent) => command_of(&ProcessFiles::of(parent)),
        None => command.to_vec(),
    }
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
    use super::super::leaving_pool::has_copy;
    use super::*;
    use crate::own_pages::Request;

    #[test]
    fn programs_are_known_by_file_or_call() {
        assert_eq!(known("redis-check-rdb", "/usr/bin/redis-server *:6379"), Known::Redis);
        assert_eq!(known("postgres", "postgres: checkpointer "), Known::Postgres);
        assert_eq!(known("mariadbd", "mysqld"), Known::Mysql);
        let of_words = |file: &str, option: &str| known_by_words(file, &[format!("./{file}"), option.to_owned()]);
        assert_eq!(of_words("ourdb", "--innodb-buffer-pool-size=512M"), Known::Mysql);
        assert_eq!(of_words("mariadb-backup", "--innodb_page_size=4k"), Known::Other);
        assert_eq!(of_words("ourdb", "--verbose"), Known::Other);
        assert_eq!(
            [known("node", ""), known("java", ""), known("bash", "-java")],
            [Known::Node, Known::Java, Known::Other]
        );
    }

    #[test]
    fn shared_memory_that_other_processes_map_counts() {
        let of = |mapped: (u64, u64), shared: u64| {
            let running = RunningFacts { shared: mapped, ..RunningFacts::default() };
            with_segments(running, InPlaceAmounts { shared, ..InPlaceAmounts::default() }).shared
        };
        assert_eq!(of((30 << 20, 2 << 20), 348 << 20), (350 << 20, 2 << 20));
        assert_eq!(of((30 << 20, 30 << 20), 0), (30 << 20, 30 << 20));
    }

    #[test]
    fn a_command_that_does_not_run_has_a_shape() {
        let path = std::env::current_exe().unwrap();
        let file = File::open(&path).unwrap();
        let words = ["test".to_owned()];
        let (facts, mappings) =
            of_command(&words, &path, (&file, None), false, machine_facts::usual_huge_page()).unwrap();
        assert_eq!((facts.is_static, mappings), (Some(false), None));
        assert!(facts.allocator.is_some() && facts.running.is_none());
        assert!(
            of_command(&words, Path::new("/etc/passwd"), (&File::open("/etc/passwd").unwrap(), None), false, None)
                .is_err()
        );
    }

    /// A lift at the start would take pages of the pool before the server's buffers do.
    #[test]
    fn a_start_leaves_the_pool_to_a_server_that_requests_it() {
        let path = std::env::current_exe().unwrap();
        let file = File::open(&path).unwrap();
        let of = |option: &str| {
            let words = ["test", "--innodb-buffer-pool-size=512M", option].map(str::to_owned);
            of_command(&words, &path, (&file, None), false, machine_facts::usual_huge_page()).unwrap().0
        };
        let start = FileLift { known: None, payment: Payment::usual(Pages::Auto), pools: Pools::AsTheyAre };
        let usual = inspect_file(&path, &file, &Policy::default(), start).unwrap();
        let requests = of("--large-pages");
        assert_eq!(requests.own_pages.unwrap().request, Request::IfPossible);
        assert_eq!(requests.pages.is_some(), has_copy(&usual));
        assert_eq!(of("--skip-large-pages").pages, None);
    }
}
