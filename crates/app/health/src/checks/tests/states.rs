//! One state, one verdict: a table of states, and the words in which each command describes them.

use super::*;
use crate::standing::{Standing, State};
use session::shared::InPlaceAmounts;

/// Facts of a process with so many bytes on huge pages, of which `code` is code, and so many more to be lifted.
fn facts_of(huge: u64, code: u64, more: u64) -> Facts {
    let mut facts = healthy();
    let program = program_of(&mut facts);
    (program.planned, program.lifts) = (more, Vec::new());
    if more > 0 {
        program.lifts.push((Source::Thp, more));
    }
    let running = running_of(&mut facts);
    (running.all, running.code) = ((130 * MIB, huge), (20 * MIB, code));
    facts
}

#[test]
fn doctor_status_and_inspect_agree_on_each_state() {
    let attach = Some("pagelift attach 7");
    let toggle = Some("pagelift bench --toggle 7 --lift text,rodata");
    let table = [
        (0, 0, 0, State::Unliftable, None, None),
        (0, 0, 20 * MIB, State::Liftable, attach, toggle),
        (36 * MIB, 8 * MIB, 10 * MIB, State::PartlyLifted, attach, toggle),
        (36 * MIB, 18 * MIB, 0, State::Lifted, None, toggle),
        // No command is suggested if only the heap is on huge pages: a measurement cannot switch it.
        (36 * MIB, 0, 0, State::Lifted, None, None),
    ];
    for (huge, code, more, state, run, measure) in table {
        let facts = facts_of(huge, code, more);
        let verdict = examine(&facts).verdict;
        let inspect = Standing { huge, resident: 130 * MIB, more: Some(more), ..Standing::default() };
        let status = Standing { more: None, ..inspect };
        assert_eq!(inspect.state(), state);
        assert!(inspect.in_words().starts_with(&status.in_words()), "status and inspect: {state:?}");
        assert!(verdict.summary.contains(&inspect.in_words()), "doctor and inspect: {verdict:?}");
        assert_eq!((verdict.run.as_deref(), verdict.measure.as_deref()), (run, measure), "{state:?}");
        let nothing_fills = verdict.summary.contains("no part of its code, data or heap fills a huge page");
        assert_eq!(nothing_fills, state == State::Unliftable, "{verdict:?}");
    }
}

#[test]
fn numbers_of_each_state_in_words() {
    let standing = |huge, more| Standing { huge: huge * MIB, resident: 100 * MIB, more, ..Standing::default() };
    let words = |huge, more| standing(huge, more).in_words();
    assert_eq!(words(0, None), "0 B of 100.0 MiB resident on huge pages");
    assert_eq!(words(36, Some(0)), "36.0 MiB of 100.0 MiB resident on huge pages; a lift would add nothing");
    assert_eq!(words(36, Some(4 * MIB)), "36.0 MiB of 100.0 MiB resident on huge pages; a lift would add 4.0 MiB");
    assert!(words(0, Some(0)).ends_with("; no part of its code, data or heap fills a huge page that could be lifted"));
    let in_place = InPlaceAmounts { anonymous: 40 * MIB, jit: 4 * MIB, ..InPlaceAmounts::default() };
    let besides = |huge, more| Standing { in_place, ..standing(huge, Some(more)) }.in_words();
    let options = ", `--lift anon` up to 40.0 MiB, `--lift jit` up to 4.0 MiB";
    assert!(besides(0, 0).ends_with(&format!("; a lift would add nothing{options}")));
    assert!(besides(36, 4 * MIB).ends_with(&format!("; a lift would add 4.0 MiB{options}")));
}

/// A small heap fills no huge page, but `attach --heap=thp` fills a block that is half full.
#[test]
fn a_small_heap_that_a_lift_fills_is_named() {
    let mut facts = facts_of(0, 0, 0);
    let running = running_of(&mut facts);
    (running.code, running.anonymous, running.in_place.heap) = ((MIB, 0), (2 * MIB + MIB / 2, 0), 2 * MIB);
    let summary = examine(&facts).verdict.summary;
    assert!(summary.ends_with("; a lift would add nothing, `--heap=thp` up to 2.0 MiB"), "{summary}");
}

/// A lift of shared memory in place is no reason for more advice: the pool that a server requests is no longer needed.
#[test]
fn a_lift_makes_no_verdict_worse() {
    let status = |huge: u64| {
        let mut facts = healthy();
        let program = program_of(&mut facts);
        program.known = Known::Postgres;
        let buffers = vec![crate::Buffer::one("shared memory", 256 * MIB)];
        let setting = "huge_pages = try".to_owned();
        let request = crate::Request::IfPossible;
        let source = crate::own_pages::USUAL.to_owned();
        program.own_pages = Some(crate::OwnPages { request, setting, source, buffers, ..crate::OwnPages::default() });
        // smaps counts the mapped part of a huge page, and the touched base pages.
        running_of(&mut facts).shared = (huge.max(17 * MIB), huge);
        examine(&facts).exit_status()
    };
    assert_eq!((status(0), status(208 * MIB)), (0, 0));
}

/// "Little gain" beside "run attach" is no advice.
#[test]
fn a_lift_that_gains_little_is_measured_at_most() {
    let mut facts = facts_of(0, 0, 4 * MIB);
    running_of(&mut facts).code = (4 * MIB, 0);
    let verdict = examine(&facts).verdict;
    assert!(verdict.estimates[0].likely.starts_with("no gain") && verdict.run.is_none(), "{verdict:?}");
    assert!(verdict.summary.ends_with("Leave it as it is: little gain is likely") && verdict.measure.is_some());
}

/// Code slightly above the reach of the TLB gains no more than code slightly below it: only a part is in use.
#[test]
fn code_near_the_reach_gains_little() {
    let likely = |bytes: u64| {
        let mut facts = facts_of(0, 0, 4 * MIB);
        running_of(&mut facts).code = (bytes, 0);
        examine(&facts).verdict.estimates.remove(0).likely
    };
    assert!(likely(8 * MIB).starts_with("no gain"));
    assert_eq!([likely(9 * MIB), likely(16 * MIB)], ["0 to 2 %"; 2]);
    assert!(likely(17 * MIB).starts_with("0 to 10 %"));
}

/// The verdict about each kind of memory begins with the numbers of `status`; a heap is measured by starts.
#[test]
fn advice_to_lift_any_memory_begins_with_the_numbers() {
    let verdict = |change: fn(&mut RunningFacts)| {
        let mut facts = facts_of(0, 0, 0);
        let running = running_of(&mut facts);
        running.code = (MIB, 0);
        change(running);
        examine(&facts).verdict
    };
    let heap = verdict(|running| running.anonymous = (100 * MIB, 0));
    let shared = verdict(|running| (running.shared, running.in_place.shared) = ((100 * MIB, 0), 100 * MIB));
    let files = verdict(|running| {
        running.data_files = DataFileFacts { resident: 100 * MIB, liftable: 100 * MIB, ..DataFileFacts::default() };
    });
    for verdict in [&heap, &shared, &files] {
        assert!(verdict.run.is_some(), "{verdict:?}");
        assert!(verdict.summary.starts_with("server: 0 B of 130.0 MiB resident on huge pages; "), "{verdict:?}");
    }
    // The process is a service's.
    assert_eq!(heap.measure.as_deref(), Some("pagelift bench --heap=auto --load LOAD --server CMD"));
}

/// A server does not end by itself: its heap is measured by servers that `bench` starts.
#[test]
fn the_measurement_of_a_servers_heap_ends() {
    let (server, command) = ("--load LOAD --server CMD", "-- CMD");
    for (known, unit, accepts, expected) in [
        (Known::Postgres, None, false, server),
        (Known::Other, Some("cache.service"), false, server),
        (Known::Other, Some("user@1000.service"), false, command),
        (Known::Other, Some("user@1000.service"), true, server),
        (Known::Other, None, true, server),
        (Known::Other, None, false, command),
    ] {
        let mut facts = facts_of(0, 0, 0);
        let running = running_of(&mut facts);
        (running.code, running.anonymous, running.is_server) = ((MIB, 0), (100 * MIB, 0), accepts);
        program_of(&mut facts).known = known;
        facts.permission.unit = unit.map(str::to_owned);
        let measure = examine(&facts).verdict.measure;
        assert_eq!(measure, Some(format!("pagelift bench --heap=auto {expected}")), "{known:?} {unit:?}");
    }
}

#[test]
fn mapped_files_are_recommended_only_if_they_are_the_largest_part_and_can_be_lifted() {
    let lifts_files = |anonymous: u64, resident: u64, liftable: u64| {
        let mut facts = healthy();
        let running = running_of(&mut facts);
        (running.code, running.anonymous) = ((MIB, 0), (anonymous, 0));
        running.data_files = DataFileFacts { resident, liftable, ..DataFileFacts::default() };
        examine(&facts).verdict.run.is_some_and(|run| run.ends_with("pagelift attach --lift files 7"))
    };
    assert!(lifts_files(50 * MIB, 100 * MIB, 80 * MIB));
    assert!(!lifts_files(200 * MIB, 100 * MIB, 80 * MIB) && !lifts_files(50 * MIB, 100 * MIB, 40 * MIB));
    // Few pages are not worth it, even if they are the most.
    assert!(!lifts_files(MIB, 2 * MIB, 2 * MIB));
}

/// A claim about a heap is measured, or the measurement names what it leaves out.
#[test]
fn the_measurement_fits_the_claim() {
    let measure = |known: Known, accepts: bool| {
        let mut facts = healthy();
        facts.permission.unit = None;
        program_of(&mut facts).known = known;
        let running = running_of(&mut facts);
        (running.anonymous, running.is_server) = ((500 * MIB, 0), accepts);
        let verdict = examine(&facts).verdict;
        assert_eq!(verdict.estimates.iter().map(|estimate| estimate.what).collect::<Vec<_>>(), ["code", "heap"]);
        (verdict.measure.unwrap(), verdict.measure_note.unwrap_or_default())
    };
    let toggle = "pagelift bench --toggle 7 --lift text,rodata".to_owned();
    assert_eq!(measure(Known::Other, false), ("pagelift bench --heap=auto -- CMD".to_owned(), String::new()));
    let heap = "of its code only; of its heap: `pagelift bench --heap=auto --load LOAD --server CMD`";
    assert_eq!(measure(Known::Other, true), (toggle.clone(), heap.to_owned()));
    let own = "of its code only; of its heap: `pagelift bench --load LOAD --server 'CMD --skip-large-pages' --against 'CMD \
               --large-pages'`";
    assert_eq!(measure(Known::Mysql, false), (toggle, own.to_owned()));
    // It cannot be known whether a program ends.
    let mut facts = healthy();
    program_of(&mut facts).running = None;
    let verdict = examine(&facts).verdict;
    assert_eq!(verdict.measure.as_deref(), Some("pagelift bench -- /usr/sbin/server '--name=a b'"));
    assert!(
        verdict.measure_note.unwrap().starts_with("if it ends by itself; of a server: `pagelift bench --toggle PID")
    );
}

/// A program without code to lift gets the commands for its heap.
#[test]
fn a_heap_without_liftable_code_gets_a_command() {
    let verdict = |known: Known, serves_heap: bool| {
        let mut facts = healthy();
        let program = program_of(&mut facts);
        (program.running, program.lifts, program.planned) = (None, Vec::new(), 0);
        (program.code, program.known, program.serves_heap) = ((0, 0), known, serves_heap);
        examine(&facts).verdict
    };
    let words = "/usr/sbin/server '--name=a b'";
    let any = verdict(Known::Other, true);
    assert_eq!(any.run, Some(format!("pagelift run --heap=auto -- {words}")));
    assert_eq!(any.measure, Some(format!("pagelift bench --heap=auto -- {words}")));
    let redis = verdict(Known::Redis, true);
    assert!(redis.summary.contains("each fork to save"), "{redis:?}");
    assert_eq!(redis.measure.as_deref(), Some("pagelift bench --heap=auto --load LOAD --server CMD"));
    assert_eq!(verdict(Known::Other, false).run.as_deref(), Some("pagelift doctor PID, once it runs"));
}

/// A server is not measured by the time of its runs, which do not end.
#[test]
fn servers_are_measured_under_load() {
    for known in [Known::Redis, Known::Mysql, Known::Postgres] {
        let mut facts = healthy();
        (program_of(&mut facts).running, program_of(&mut facts).known) = (None, known);
        let measure = examine(&facts).verdict.measure.unwrap();
        assert!(measure.starts_with("pagelift bench --toggle "), "{measure}");
    }
}

/// The code of a driver does not count.
#[test]
fn a_driver_s_worker_is_lifted() {
    let mut facts = healthy();
    let program = program_of(&mut facts);
    (program.running, program.worker) = (None, Some("cc1plus".to_owned()));
    let verdict = examine(&facts).verdict;
    assert!(verdict.run.unwrap().starts_with("pagelift run --only cc1plus -- /usr/sbin/server "));
    assert!(verdict.measure.unwrap().starts_with("pagelift bench --only cc1plus -- /usr/sbin/server "));
    // rustup's front end has the name of the compiler.
    program_of(&mut facts).worker = Some("server".to_owned());
    let summary = examine(&facts).verdict.summary;
    assert!(summary.starts_with("this server starts the server of a toolchain"), "{summary}");
}

/// A build tool is known by its name; its compilers are not.
#[test]
fn the_compilers_of_a_build_tool_are_lifted() {
    let mut facts = healthy();
    let program = program_of(&mut facts);
    (program.running, program.name, program.command) =
        (None, "make".to_owned(), vec!["make".to_owned(), "-B".to_owned()]);
    let verdict = examine(&facts).verdict;
    assert_eq!(verdict.run.unwrap(), "pagelift run --only cc1,cc1plus -- make -B");
    assert_eq!(verdict.measure.unwrap(), "pagelift bench --only cc1,cc1plus -- make -B");
}

#[test]
fn shared_memory_is_recommended_only_if_it_is_the_largest_part_and_can_be_lifted() {
    let verdict = |anonymous: u64, liftable: u64| {
        let mut facts = healthy();
        let running = running_of(&mut facts);
        (running.code, running.anonymous) = ((MIB, 0), (anonymous, 0));
        (running.shared, running.in_place.shared) = ((100 * MIB, 0), liftable);
        let pid = running.pid;
        (examine(&facts).verdict.run.unwrap_or_default(), format!("pagelift attach --lift shared {pid}"))
    };
    let (run, expected) = verdict(50 * MIB, 80 * MIB);
    assert_eq!(run.trim_start_matches("sudo "), expected);
    for (anonymous, liftable) in [(200 * MIB, 80 * MIB), (50 * MIB, 40 * MIB)] {
        let (run, expected) = verdict(anonymous, liftable);
        assert_ne!(run.trim_start_matches("sudo "), expected);
    }
}

#[test]
fn where_nothing_can_be_lifted_no_gain_is_promised() {
    let without = |change: &dyn Fn(&mut ProgramFacts)| {
        let mut facts = healthy();
        (program_of(&mut facts).lifts, program_of(&mut facts).planned) = (Vec::new(), 0);
        running_of(&mut facts).all.1 = 0;
        change(program_of(&mut facts));
        let verdict = examine(&facts).verdict;
        assert_eq!((&verdict.estimates, &verdict.measure), (&Vec::new(), &None));
        (verdict.summary, verdict.run.unwrap_or_default())
    };
    assert!(without(&|_| {}).0.starts_with("leave server as it is"));
    let script = |program: &mut ProgramFacts| (program.running, program.interpreter) = (None, Some("env".to_owned()));
    assert!(without(&script).0.contains("a script that env runs"));
    let java = |program: &mut ProgramFacts| {
        (program.running, program.known) = (None, Known::Java);
        program.environment = vec!["JAVA_TOOL_OPTIONS=-XX:+UseLargePages".to_owned()];
    };
    assert_eq!(without(&java).1, "pagelift run --via preload -- /usr/sbin/server '--name=a b'");
}
