//! Pool pages that programs request by their own settings.

use super::*;
use crate::own_pages::{Buffer, OwnPages, Request, USUAL};

fn large_pages(request: Request) -> OwnPages {
    let buffers = vec![Buffer::one("innodb_buffer_pool_size", 512 * MIB), Buffer::one("key_buffer_size", 128 * MIB)];
    let source = if request == Request::Off { USUAL } else { "/etc/mysql/my.cnf" }.to_owned();
    OwnPages { request, setting: "large_pages=ON".into(), source, buffers, ..OwnPages::default() }
}

fn server(own: OwnPages) -> impl Fn(&mut Facts) {
    move |f: &mut Facts| {
        program_of(f).known = Known::Mysql;
        program_of(f).own_pages = Some(own.clone());
        running_of(f).anonymous = (100 * MIB, 0);
    }
}

/// The number depends neither on resident memory nor on the pool's pages: the same advice holds until it is followed.
#[test]
fn the_sum_comes_from_settings() {
    use Severity::{Advice, Note};
    for (resident, total, available) in [(20 * MIB, 0, 0), (80 * MIB, 99, 99), (600 * MIB, 330, 10)] {
        let set = move |f: &mut Facts| {
            running_of(f).anonymous = (resident, 0);
            (f.pools[0].total, f.pools[0].available) = (total, available);
        };
        finds(
            "own-pages",
            Note,
            ["large_pages=ON is not set", "pagelift pool reserve 2M:320 then large_pages=ON"],
            |f| {
                server(large_pages(Request::Off))(f);
                set(f);
            },
        );
        finds(
            "own-pages",
            Advice,
            ["fell back to base pages large_pages=ON (/etc/mysql/my.cnf)", "2M:320 then"],
            |f| {
                server(large_pages(Request::IfPossible))(f);
                set(f);
            },
        );
    }
}

#[test]
fn a_server_that_fell_back_is_seen_although_smaller_buffers_are_on_the_pool() {
    let with = |mappings: &[u64]| {
        let mappings = mappings.to_vec();
        move |f: &mut Facts| {
            server(large_pages(Request::IfPossible))(f);
            running_of(f).pool_mappings.clone_from(&mappings);
        }
    };
    // One number, whether it is reserved before the end of the server or after it.
    finds(
        "own-pages",
        Severity::Advice,
        ["128.0 MiB reserved on the pool", "pagelift pool reserve 2M:320 "],
        with(&[128 * MIB]),
    );
    // The pages that it holds are free again once it has ended.
    let enough = |f: &mut Facts| {
        with(&[128 * MIB])(f);
        f.pools[0].available = 256;
    };
    finds("own-pages", Severity::Advice, ["fell back to base pages", "then restart it"], enough);
    let finding = found_with(enough, "own-pages").remove(0);
    assert_eq!(finding.fix.unwrap().commands, [] as [String; 0]);
    assert_eq!(found_with(with(&[512 * MIB, 128 * MIB]), "own-pages"), []);
}

#[test]
fn buffers_on_huge_pages_need_no_setting() {
    let lifted = |f: &mut Facts| {
        server(large_pages(Request::Off))(f);
        running_of(f).anonymous = (100 * MIB, 90 * MIB);
    };
    assert_eq!(found_with(lifted, "own-pages"), []);
}

#[test]
fn a_start_that_would_fall_back_is_announced() {
    use Severity::{Advice, Note, Problem};
    let starts = |own: OwnPages| {
        move |f: &mut Facts| {
            program_of(f).own_pages = Some(own.clone());
            program_of(f).running = None;
        }
    };
    finds(
        "own-pages",
        Advice,
        ["more pages than the pool has", "reserve 2M:320"],
        starts(large_pages(Request::IfPossible)),
    );
    finds("own-pages", Problem, ["64 of 64 pages", "reserve 2M:320"], starts(large_pages(Request::Required)));
    finds("own-pages", Note, ["large_pages=ON is not set", "and a start"], |f| {
        starts(large_pages(Request::Off))(f);
        program_of(f).known = Known::Mysql;
    });
    let enough = |f: &mut Facts| {
        starts(large_pages(Request::IfPossible))(f);
        f.pools[0].available = 320;
    };
    assert_eq!(found_with(enough, "own-pages"), []);
    let command = "postgres -D /d -C shared_memory_size_in_huge_pages";
    let postgres = OwnPages {
        request: Request::IfPossible,
        setting: "huge_pages = try".into(),
        source: USUAL.into(),
        buffers: Vec::new(),
        command: Some(command.into()),
        least: 128 * MIB,
        owned: Some("/d".into()),
        ..OwnPages::default()
    };
    // PostgreSQL does not run as root.
    let by_owner = format!("pagelift pool reserve 2M:$(runuser -u \"$(stat -c %U /d)\" -- {command})");
    finds("own-pages", Note, ["huge_pages = try", &by_owner], starts(postgres.clone()));
    // With `on` it does not start if the pool has too few pages.
    let required = OwnPages { request: Request::Required, setting: "huge_pages = on".into(), ..postgres };
    for (available, severity, title) in
        [(63, Problem, "requests more"), (64, Advice, "may request more"), (80, Note, "takes pool pages")]
    {
        let set = |f: &mut Facts| {
            starts(required.clone())(f);
            f.pools[0].available = available;
        };
        finds("own-pages", severity, [title, &by_owner], set);
    }
    assert_eq!(Fix::root(&by_owner).typed(false), [format!("sudo sh -c '{by_owner}'")]);
}

/// The data directory of PostgreSQL is readable by its owner alone.
#[test]
fn settings_that_cannot_be_read_are_named_with_what_is_assumed() {
    let set = |f: &mut Facts| {
        program_of(f).known = Known::Postgres;
        program_of(f).running = None;
        program_of(f).own_pages = Some(OwnPages {
            request: Request::IfPossible,
            setting: "huge_pages = try".into(),
            source: USUAL.into(),
            command: Some("postgres -D /d -C shared_memory_size_in_huge_pages".into()),
            least: 128 * MIB,
            unread: vec!["/d/postgresql.conf".into()],
            assumed: vec!["huge_pages = try".into(), "shared_buffers = 128MB".into()],
            ..OwnPages::default()
        });
        f.pools[0].available = 0;
    };
    let finding = found_with(set, "own-pages").remove(0);
    assert_eq!(
        finding.found,
        "huge_pages = try (assumed: /d/postgresql.conf cannot be read); 0 of 64 pages of 2 MiB available"
    );
    assert_eq!(finding.wanted, "as many pages as shared_memory_size_in_huge_pages");
    let mut facts = healthy();
    set(&mut facts);
    let report = examine(&facts);
    let missing = report.not_seen.iter().find(|missing| missing.check == "own-pages").unwrap();
    let what = "the settings in /d/postgresql.conf; assumed: huge_pages = try, shared_buffers = 128MB";
    assert_eq!((missing.what.as_str(), missing.root_sees), (what, true));
    assert!(report.verdict.summary.contains("(assumed: 128.0 MiB)"), "{}", report.verdict.summary);
}

#[test]
fn a_java_heap_that_is_larger_than_the_pool_is_seen() {
    let heap = |f: &mut Facts| {
        program_of(f).known = Known::Java;
        let buffers = vec![Buffer::one("-Xmx", 1024 * MIB)];
        let setting = "-XX:+UseLargePages".to_owned();
        let source = "its command line".to_owned();
        let own = OwnPages { request: Request::IfPossible, setting, source, buffers, ..OwnPages::default() };
        program_of(f).own_pages = Some(own);
    };
    finds("own-pages", Severity::Advice, ["-XX:+UseLargePages", "pagelift pool reserve 2M:512"], heap);
    let committed = |f: &mut Facts| {
        heap(f);
        running_of(f).pool_mappings = vec![64 * MIB];
    };
    assert_eq!(found_with(committed, "own-pages"), [], "it commits its heap in parts");
}

/// Besides the pages that the server leaves, pages of other servers can be free.
#[test]
fn pages_that_are_left_are_released_by_number() {
    let rest = "then restart it; it takes at most 320 pages: `pagelift pool show` lists its pages, and `pagelift pool \
                release 2M:N` returns the others";
    finds("own-pages", Severity::Advice, ["fell back", rest], server(large_pages(Request::IfPossible)));
}

/// All advice on one screen names one number.
#[test]
fn one_screen_has_one_sum() {
    let mut facts = healthy();
    server(large_pages(Request::IfPossible))(&mut facts);
    facts.thp.general = Some("never".into());
    (program_of(&mut facts).lifts, program_of(&mut facts).planned) = (Vec::new(), 0);
    let fixes: Vec<String> = examine(&facts)
        .findings
        .iter()
        .filter_map(|finding| finding.fix.as_ref())
        .flat_map(|fix| fix.typed(true))
        .collect();
    let sums: Vec<&String> = fixes.iter().filter(|command| command.contains("pool reserve")).collect();
    assert_eq!(sums, ["pagelift pool reserve 2M:330"], "one command for buffers and code");
    assert!(!fixes.iter().any(|command| command.contains("nr_hugepages")), "{fixes:?}");
}

/// The pages are for the server's buffers: a lift that took them would leave fewer for the start.
#[test]
fn a_server_that_fell_back_is_restarted_with_its_pages() {
    let mut facts = healthy();
    server(large_pages(Request::IfPossible))(&mut facts);
    program_of(&mut facts).lifts = vec![(Source::Thp, 20 * MIB)];
    program_of(&mut facts).pages = Some(lift_plan::Pages::Thp);
    facts.is_root = false;
    let verdict = examine(&facts).verdict;
    assert_eq!(verdict.run.as_deref(), Some("sudo pagelift pool reserve 2M:320"));
    let steps = "its buffers (640.0 MiB) can be on pool pages from its start (large_pages=ON): reserve them, then restart \
                 it; until then `sudo pagelift attach 7 --pages thp` lifts 20.0 MiB of code";
    assert!(verdict.summary.contains(steps), "{}", verdict.summary);
    let measure = "pagelift bench --load LOAD --server 'CMD --skip-large-pages' --against 'CMD --large-pages'";
    assert_eq!(verdict.measure.as_deref(), Some(measure));
    let mut started = facts.clone();
    program_of(&mut started).running = None;
    let summary = examine(&started).verdict.summary;
    let start = "reserve them, then start it; `pagelift run --pages thp -- /usr/sbin/server '--name=a b'` also lifts 20.0 MiB \
                 of code";
    assert!(summary.contains(start), "{summary}");
    facts.pools[0].available = 320;
    let verdict = examine(&facts).verdict;
    assert!(verdict.run.is_none() && verdict.summary.contains("the pool has them: restart it"), "{verdict:?}");
}

/// The verdict about a server is the same before its start and after it.
#[test]
fn buffers_count_before_the_start_and_after_it() {
    let mut facts = healthy();
    let program = program_of(&mut facts);
    (program.known, program.lifts) = (Known::Postgres, vec![(Source::File, 4 * MIB)]);
    program.own_pages = Some(OwnPages {
        request: Request::IfPossible,
        setting: "huge_pages = try".into(),
        source: USUAL.into(),
        buffers: vec![Buffer::one("shared memory", 552 * MIB)],
        ..OwnPages::default()
    });
    (running_of(&mut facts).code, running_of(&mut facts).anonymous) = ((8 * MIB, 0), (10 * MIB, 0));
    let running = examine(&facts).verdict;
    assert_eq!(running.run.as_deref(), Some("pagelift pool reserve 2M:276"));
    let program = program_of(&mut facts);
    (program.running, program.code) = (None, (8 * MIB, 1));
    let own = program.own_pages.as_mut().unwrap();
    (own.buffers, own.command, own.least) = (Vec::new(), Some("postgres -C x".into()), 512 * MIB);
    let started = examine(&facts).verdict;
    assert_eq!(started.run.as_deref(), Some("pagelift pool reserve 2M:$(postgres -C x)"));
    assert!(started.summary.contains("its shared memory (at least 512.0 MiB)"), "{}", started.summary);
    for verdict in [&running, &started] {
        let of = verdict.estimates.iter().map(|estimate| estimate.what).collect::<Vec<_>>();
        assert_eq!(of, ["shared memory", "code"]);
        assert!(!verdict.summary.contains("Leave it"), "{verdict:?}");
    }
    facts.pools[0].available = 300;
    assert!(examine(&facts).verdict.summary.ends_with("Leave it as it is: little gain is likely"));
}
