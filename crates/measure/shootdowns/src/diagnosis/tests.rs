use super::*;

fn frame(object: &str, function: Option<&str>, index: usize) -> Frame {
    Frame { object: object.to_owned(), function: function.map(str::to_owned), address: 0x1234, index: Some(index) }
}

fn subject(family: Family, place: AllocatorOrigin, object: usize, environment: Environment) -> Subject {
    let settings = ["opt.dirty_decay_ms".to_owned()].into();
    let allocator = Allocator {
        family,
        place,
        preloaded: false,
        runtime: None,
        starts_threads: true,
        evidence: "a test".to_owned(),
        settings,
    };
    Subject {
        start: Some(5),
        allocator: Some(allocator),
        environment,
        words: Vec::new(),
        object: Some(object),
        memory: 0,
    }
}

fn jemalloc(environment: Environment) -> Subject {
    let family = Family::Jemalloc { version: Some("5.3.0".to_owned()), variable: "MALLOC_CONF".to_owned() };
    subject(family, AllocatorOrigin::Library { path: "/lib/libjemalloc.so.2".to_owned() }, 2, environment)
}

fn glibc() -> Subject {
    let place = AllocatorOrigin::Library { path: "/lib/libc.so.6".to_owned() };
    subject(Family::Glibc { minor: Some(36) }, place, 1, Environment::default())
}

#[test]
fn an_allocator_in_its_own_library_needs_no_symbols() {
    let subject = jemalloc(Environment::default());
    let path =
        [frame("libc.so.6", Some("madvise"), 1), frame("libjemalloc.so.2", None, 2), frame("a", Some("main"), 0)];
    assert_eq!(subject.behaviour(Cause::Madvise, &path), Behaviour::Allocator(Returning::Purging));
    assert_eq!(subject.behaviour(Cause::Munmap, &path), Behaviour::Allocator(Returning::Unmapping));
    let calloc = [&path[..2], &[frame("libjemalloc.so.2", Some("calloc"), 2)]].concat();
    assert_eq!(subject.behaviour(Cause::Madvise, &calloc), Behaviour::Allocator(Returning::CallocZeroing));
}

#[test]
fn the_c_library_s_allocator_is_known_by_its_interface() {
    let own = [frame("libc.so.6", Some("__munmap"), 1), frame("a", Some("main"), 0)];
    assert_eq!(glibc().behaviour(Cause::Munmap, &own), Behaviour::Program(Cause::Munmap));
    let freed = [frame("libc.so.6", None, 1), frame("libc.so.6", Some("cfree"), 1), frame("a", Some("main"), 0)];
    assert_eq!(glibc().behaviour(Cause::Munmap, &freed), Behaviour::Allocator(Returning::Unmapping));
    assert_eq!(glibc().behaviour(Cause::Brk, &freed), Behaviour::Allocator(Returning::Trimming));
    let grown = [frame("libc.so.6", Some("mremap"), 1), frame("libc.so.6", Some("realloc"), 1)];
    assert_eq!(glibc().behaviour(Cause::Mremap, &grown), Behaviour::Allocator(Returning::Moving));
    // A thread's stack is unmapped by the C library, but not by its allocator.
    let thread = [frame("libc.so.6", Some("munmap"), 1), frame("libc.so.6", Some("pthread_join"), 1)];
    assert_eq!(glibc().behaviour(Cause::Munmap, &thread), Behaviour::Program(Cause::Munmap));
}

/// Stacks of rustc, whose jemalloc is linked in and optimised together with it.
#[test]
fn a_jemalloc_that_is_linked_in_is_known_by_its_inner_functions() {
    let family = Family::Jemalloc { version: Some("5.3.0".to_owned()), variable: "MALLOC_CONF".to_owned() };
    let rustc = subject(family, AllocatorOrigin::LinkedIn, 0, Environment::default());
    let stack = |names: &[&str]| names.iter().map(|name| frame("rustc", Some(name), 0)).collect::<Vec<_>>();
    let freed =
        stack(&["pac_decay_to_limit.llvm.1930976557498499365", "tcache_bin_flush_small", "free_default", "main"]);
    assert_eq!(rustc.behaviour(Cause::Madvise, &freed), Behaviour::Allocator(Returning::Purging));
    assert_eq!(rustc.behaviour(Cause::Madvise, &stack(&["malloc_default"])), Behaviour::Allocator(Returning::Purging));
    assert_eq!(rustc.behaviour(Cause::Madvise, &stack(&["arena", "main"])), Behaviour::Program(Cause::Madvise));
}

#[test]
fn what_the_program_asks_for_has_no_setting() {
    let trimmed = [frame("libc.so.6", Some("malloc_trim"), 1), frame("a", Some("main"), 0)];
    let behaviour = glibc().behaviour(Cause::Madvise, &trimmed);
    assert_eq!(behaviour, Behaviour::Allocator(Returning::Requested));
    let finding = glibc().finding(behaviour, 1.0);
    assert!(finding.cures.is_empty() && finding.advice.is_some_and(|advice| advice.says.contains("malloc_trim")));
    let go = subject(Family::Go, AllocatorOrigin::LinkedIn, 0, Environment::default());
    let freed = ["runtime.madvise.abi0", "runtime.runtime_debug_freeOSMemory.func1"];
    let freed = freed.map(|function| frame("a", Some(function), 0));
    assert_eq!(go.behaviour(Cause::Madvise, &freed), Behaviour::Allocator(Returning::Requested));
    assert_eq!(go.behaviour(Cause::Madvise, &freed[..1]), Behaviour::Allocator(Returning::Purging));
}

#[test]
fn a_java_virtual_machine_gets_the_cure_of_its_collector() {
    let words = vec!["java".to_owned(), "-XX:+UseZGC".to_owned()];
    let java = Subject { words, ..subject(Family::Jvm, AllocatorOrigin::LinkedIn, 0, Environment::default()) };
    let uncommits = [frame("libc.so.6", Some("mmap"), 1), frame("libjvm.so", Some("ZUncommitter::run_service"), 3)];
    let finding = java.finding(java.behaviour(Cause::Mmap, &uncommits), 1.0);
    assert_eq!(finding.text, "the Java virtual machine changes its own memory");
    let values: Vec<_> = finding.cures.iter().map(|cure| cure.value.as_deref()).collect();
    assert_eq!(values, [Some("-XX:-ZUncommit")]);
}

#[test]
fn the_kernel_s_own_doing_is_the_kernel_s() {
    let path = [frame("libjemalloc.so.2", None, 2)];
    let behaviour = jemalloc(Environment::default()).behaviour(Cause::NumaBalancing, &path);
    assert_eq!(behaviour, Behaviour::Kernel(Cause::NumaBalancing));
    let finding = jemalloc(Environment::default()).finding(behaviour, 1.0);
    assert!(finding.cures.is_empty() && finding.advice.is_some_and(|advice| advice.says.contains("numa_balancing")));
}

#[test]
fn the_cure_has_none_of_what_the_process_has_set() {
    let subject = jemalloc(Environment::default().with("MALLOC_CONF", "narenas:2"));
    let finding = subject.finding(Behaviour::Allocator(Returning::Purging), 0.9);
    assert_eq!(finding.cures.len(), 1);
    assert_eq!(finding.cures[0].value.as_deref(), Some("dirty_decay_ms:-1,muzzy_decay_ms:-1"));
    assert!(finding.cures[0].beside_others);
    assert_eq!(subject.settings(), ["MALLOC_CONF=narenas:2"]);
    let calloc = subject.finding(Behaviour::Allocator(Returning::CallocZeroing), 0.9);
    let last = calloc.cures.last().and_then(|cure| cure.value.as_deref());
    assert_eq!(last, Some("thp:always,dirty_decay_ms:-1,muzzy_decay_ms:-1"));
    let set = jemalloc(Environment::default().with("MALLOC_CONF", "dirty_decay_ms:9;touch x"));
    let finding = set.finding(Behaviour::Allocator(Returning::Purging), 0.9);
    assert_eq!(finding.cures[0].value.as_deref(), Some("muzzy_decay_ms:-1"));
    assert_eq!(finding.cures[0].against, ["dirty_decay_ms"]);
    let alone = jemalloc(Environment::default()).finding(Behaviour::Allocator(Returning::Purging), 0.9);
    assert!(!alone.cures[0].beside_others);
}

#[test]
fn the_settings_of_a_runtime_are_told() {
    let environment = Environment::default().with("GOGC", "50").with("MALLOC_CONF", "narenas:2");
    let go = subject(Family::Go, AllocatorOrigin::LinkedIn, 0, environment);
    assert_eq!(go.settings(), ["GOGC=50"]);
    let words = ["java", "-Xmx1g", "-XX:+UseZGC", "-XX:MaxHeapFreeRatio=40", "-Dpassword=x", "-XX:OnError=x", "Main"];
    let words = words.map(str::to_owned).to_vec();
    let environment = Environment::default().with("JAVA_TOOL_OPTIONS", "-Xms1g");
    let java = Subject { words, ..subject(Family::Jvm, AllocatorOrigin::LinkedIn, 0, environment) };
    let wanted = ["JAVA_TOOL_OPTIONS=-Xms1g", "-Xmx1g", "-XX:+UseZGC", "-XX:MaxHeapFreeRatio=40"];
    assert_eq!(java.settings(), wanted);
}

/// A process with this number of paths of equal weight, alternating between its allocator and the program.
fn process(paths: usize, effective_stacks: f64) -> ProcessSummary {
    let path = |number: usize| {
        let function = if number.is_multiple_of(2) { "cfree" } else { "main" };
        let frame = Frame { address: number as u64, ..frame("libc.so.6", Some(function), 1) };
        crate::summary::PathSummary { share: 1.0 / paths as f64, cause: Cause::Munmap, frames: vec![frame] }
    };
    ProcessSummary { pid: 1, effective_stacks, paths: (0..paths).map(path).collect(), ..ProcessSummary::default() }
}

#[test]
fn shares_are_those_of_all_paths() {
    // Twice the number of paths that were once kept: each has a share below the least share of a finding.
    let findings = glibc().diagnose(&process(200, 1000.0), 1.0).findings;
    let shares: Vec<f64> = findings.iter().map(|finding| (100.0 * finding.share).round()).collect();
    assert_eq!(shares, [50.0, 50.0], "{findings:?}");
    assert!(findings.iter().all(|finding| !finding.uncertain));
}

#[test]
fn findings_from_few_stacks_are_uncertain() {
    assert!(glibc().diagnose(&process(2, 3.0), 1.0).findings.iter().all(|finding| finding.uncertain));
    assert!(glibc().diagnose(&process(2, FEWEST_STACKS), 1.0).findings.iter().all(|finding| !finding.uncertain));
}

#[test]
fn what_is_not_known_is_not_blamed_on_the_program() {
    let ended = Subject { allocator: None, ..glibc() };
    let path = [frame("libc.so.6", Some("__munmap"), 1), frame("a", Some("main"), 0)];
    let behaviour = ended.behaviour(Cause::Munmap, &path);
    assert_eq!(behaviour, Behaviour::Unattributed(Cause::Munmap));
    let finding = ended.finding(behaviour, 1.0);
    assert!(finding.text.contains("it ended before its files were read") && finding.advice.is_none(), "{finding:?}");
    // Neither is a call whose stack could not be read.
    let behaviour = glibc().behaviour(Cause::Munmap, &[]);
    assert_eq!(behaviour, Behaviour::Unattributed(Cause::Munmap));
    assert!(glibc().finding(behaviour, 1.0).text.contains("by whom is not known"));
    assert_eq!(ended.behaviour(Cause::Ksm, &[]), Behaviour::Kernel(Cause::Ksm));
}

/// A later program with the same PID had the cause and the cures of the one that sent the shootdowns.
#[test]
fn a_later_process_with_the_same_pid_is_not_diagnosed() {
    let later = Subject { start: Some(9), ..jemalloc(Environment::default()) };
    let (first, ended) = (glibc(), Subject::default());
    let chosen = |now, then, start| -> Option<Option<u64>> { Some(Subject::choose(now, then, start)?.start) };
    assert_eq!(chosen(&later, Some(&first), Some(5)), Some(Some(5)));
    assert_eq!(chosen(&later, Some(&later), Some(5)), None, "its first stack was after the reuse");
    assert_eq!(chosen(&later, None, Some(5)), None);
    assert_eq!(chosen(&first, Some(&first), Some(5)), Some(Some(5)));
    assert_eq!(chosen(&ended, Some(&first), Some(5)), Some(Some(5)), "it has ended");
    assert_eq!(chosen(&ended, None, Some(5)), Some(None));
    assert_eq!(chosen(&later, None, None), Some(Some(9)));
    let own = std::process::id() as i32;
    assert!(Subject::of(own).start.is_some() && Subject::of(1 << 22).start.is_none());
}
