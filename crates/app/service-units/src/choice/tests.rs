use super::*;
use address_space::PageSize;

const FILTER: &str = "SystemCallErrorNumber=2147483646\nSystemCallFilter=clone wait4 pipe2 prctl process_vm_readv mremap \
                      madvise munmap tgkill rt_sigprocmask statx mmap openat";

/// A setting with which only `attach` works.
const FROM_OUTSIDE: &str = "AppArmorProfile=server";

fn here() -> Surroundings {
    Surroundings {
        pagelift: "/usr/bin/pagelift".into(),
        library: Some("/usr/lib/libpagelift.so".into()),
        store: Some("/run/pagelift/images".into()),
        ..Surroundings::default()
    }
}

fn program() -> Program {
    Program { path: "/usr/bin/server".into(), named: "/usr/%i/server".into(), is_large: true, ..Program::default() }
}

fn chosen_with(text: &str, program: Program, wanted: &Wanted, here: &Surroundings) -> Result<Choice, Refusal> {
    choose(&Properties::parse(text), &[program], wanted, here)
}

fn chosen(text: &str) -> Choice {
    chosen_with(text, program(), &Wanted::default(), &here()).unwrap()
}

fn refused(text: &str, program: Program, wanted: &Wanted, here: &Surroundings) -> String {
    chosen_with(text, program, wanted, here).unwrap_err().to_string()
}

#[test]
fn an_open_unit_is_run_as_on_the_command_line() {
    let choice = chosen("Type=simple\nUser=web\nNoNewPrivileges=yes\nProtectSystem=strict\nCapabilityBoundingSet=");
    assert_eq!((choice.way, choice.pages), (Way::Ptrace, None));
    assert_eq!(choice.image_sources, ["/usr/%i/server"]);
    assert!(choice.reasons.len() == 1 && choice.exec_paths.is_empty() && !choice.waits_for_exec);
}

#[test]
fn the_journal_goes_on_naming_the_program() {
    let choice = chosen("");
    assert_eq!(choice.journal_name.as_deref(), Some("server"));
    assert!(choice.reasons[0].starts_with("SyslogIdentifier=server: "), "{:?}", choice.reasons);
    assert_eq!(chosen("SyslogIdentifier=web").journal_name, None);
    assert_eq!(chosen(FROM_OUTSIDE).journal_name, None, "the unit's own command is executed");
    let other = Program { named: "/usr/bin/other".into(), ..program() };
    let both = choose(&Properties::parse(""), &[program(), other], &Wanted::default(), &here()).unwrap();
    assert!(both.journal_name.is_none() && both.reasons[0].ends_with("fix: SyslogIdentifier="), "{both:?}");
}

#[test]
fn yama_leaves_ptrace_to_whom_it_names() {
    let way = |scope: u32, text: &str| {
        let here = Surroundings { ptrace_scope: scope, ..here() };
        chosen_with(text, program(), &Wanted::default(), &here).unwrap().way
    };
    let all = "CapabilityBoundingSet=cap_chown cap_sys_ptrace cap_kill";
    let without = "CapabilityBoundingSet=cap_chown";
    let ambient = format!("{all}\nUser=web\nAmbientCapabilities=cap_sys_ptrace");
    for (scope, unit, expected) in [
        (1, without, Way::Ptrace),
        (2, all, Way::Ptrace),
        (2, without, Way::Preload),
        (2, &format!("{all}\nUser=web"), Way::Preload),
        (2, &format!("{all}\nDynamicUser=yes"), Way::Preload),
        (2, &ambient, Way::Ptrace),
        (2, &format!("{without}\nMemoryDenyWriteExecute=yes"), Way::AfterStart),
        (3, all, Way::Preload),
    ] {
        assert_eq!(way(scope, unit), expected, "{scope} {unit}");
    }
    let here = Surroundings { ptrace_scope: 3, ..here() };
    let text = refused("MemoryDenyWriteExecute=yes", program(), &Wanted::default(), &here);
    assert_eq!(text.matches("kernel.yama.ptrace_scope is 3").count(), 2, "{text}");
}

#[test]
fn a_unit_that_does_nothing_names_those_that_do_the_work() {
    let idle = Program { path: "/bin/true".into(), ..program() };
    let unit = "Id=postgresql.service\nType=oneshot\nConsistsOf=postgresql@15-main.service postgresql@16-main.service";
    let why = refused(unit, idle.clone(), &Wanted::default(), &here());
    assert!(
        why.contains("15-main.service, postgresql@16")
            && why.contains("fix: pagelift enable postgresql@15-main.service"),
        "{why}"
    );
    let why = refused("Id=idle.service", idle.clone(), &Wanted::default(), &here());
    assert!(why.contains("systemctl list-dependencies -- idle.service"), "{why}");
    let both = choose(&Properties::parse(unit), &[idle, program()], &Wanted::default(), &here());
    assert!(both.is_ok(), "{both:?}");
}

#[test]
fn code_comes_from_images_where_copies_are_forbidden() {
    let choice = chosen("MemoryDenyWriteExecute=yes");
    assert_eq!((choice.way, choice.pages), (Way::Ptrace, Some("file+image")));
    let bare = Surroundings { store: None, ..here() };
    let with = |program: Program, here: &Surroundings| {
        chosen_with("MemoryDenyWriteExecute=yes", program, &Wanted::default(), here)
    };
    assert_eq!(with(program(), &bare).unwrap().pages, Some("file"));
    let old = Program { not_in_page_cache: Some("Linux 6.1 is too old".into()), ..program() };
    assert_eq!(with(old.clone(), &here()).unwrap().pages, Some("image"));
    let none = with(old, &bare).unwrap_err().to_string();
    assert!(
        none.contains("needs an image store (not the page cache: Linux 6.1 is too old); fix: pagelift image setup"),
        "{none}"
    );
    let thp = Wanted { pages: Pages::Thp, ..Wanted::default() };
    assert!(refused("MemoryDenyWriteExecute=yes", program(), &thp, &here()).contains("fix: --pages image"));
}

#[test]
fn without_ptrace_the_program_lifts_itself() {
    let choice = chosen(FILTER);
    assert_eq!((choice.way, choice.pages), (Way::Preload, Some("thp")));
    assert!(choice.image_sources.is_empty());
    assert!(choice.reasons[0].contains("kills a process for ptrace, pidfd_getfd"), "{:?}", choice.reasons);
}

#[test]
fn with_ptrace_but_without_cachestat_the_page_cache_is_left_out() {
    let choice = chosen(&format!("{FILTER} ptrace pidfd_getfd"));
    assert_eq!((choice.way, choice.pages), (Way::Ptrace, Some("image")));
    let fails = format!("{FILTER} ptrace pidfd_getfd").replace("2147483646", "1");
    assert_eq!(chosen(&fails).pages, None);
}

#[test]
fn what_nothing_inside_can_do_is_done_from_outside() {
    let hard =
        format!("{FILTER}\nMemoryDenyWriteExecute=yes\nType=simple\nNoExecPaths=/\nExecPaths=/usr/bin/server /usr/lib");
    let choice = chosen(&hard);
    assert_eq!((choice.way, choice.pages, choice.waits_for_exec), (Way::AfterStart, Some("file+image"), true));
    assert_eq!(choice.exec_paths, ["/run/pagelift/images"]);
    assert!(chosen(&hard.replace("simple", "idle")).waits_for_exec);
    let fixed = Program { is_static: true, ..program() };
    assert_eq!(chosen_with(FILTER, fixed, &Wanted::default(), &here()).unwrap().way, Way::AfterStart);
    let text = refused(&hard.replace("simple", "oneshot"), program(), &Wanted::default(), &here());
    assert_eq!(text.lines().count(), 3, "{text}");
}

#[test]
fn a_command_with_full_privileges_has_no_sandbox() {
    let open = Program { is_unconfined: true, ..program() };
    let text = format!("{FILTER}\nMemoryDenyWriteExecute=yes\nNoExecPaths=/");
    let choice = chosen_with(&text, open, &Wanted::default(), &here()).unwrap();
    assert_eq!((choice.way, choice.pages, choice.exec_paths.len()), (Way::Ptrace, None, 0));
}

#[test]
fn pagelift_must_be_seen_from_inside() {
    for text in
        ["RootDirectory=/srv/root\nRootDirectoryStartOnly=yes", "InaccessiblePaths=-/usr/bin", "AppArmorProfile=server"]
    {
        assert_eq!(chosen(text).way, Way::AfterStart, "{text}");
    }
    for (text, why) in [
        (
            "RootDirectory=/srv/root",
            "RootDirectory=/srv/root holds for ExecStartPost=, too, and /usr/bin/pagelift or /proc",
        ),
        ("RootImage=/x\nRootDirectoryStartOnly=no", "is not in there; fix: RootDirectoryStartOnly=yes"),
        ("TemporaryFileSystem=/usr:ro", "TemporaryFileSystem=/usr hides /usr/bin/pagelift from ExecStartPost=, too"),
    ] {
        let refusal = refused(text, program(), &Wanted::default(), &here());
        let last = refusal.lines().last().unwrap();
        assert!(last.trim_start().starts_with("not `attach after each start`: ") && last.contains(why), "{refusal}");
    }
    let built = Surroundings { pagelift: "/root/.cargo/bin/pagelift".into(), ..here() };
    let way = |text: &str, here: &Surroundings| chosen_with(text, program(), &Wanted::default(), here).unwrap().way;
    assert_eq!(way("ProtectHome=yes", &built), Way::AfterStart);
    assert_eq!(way("ProtectHome=read-only", &built), Way::Ptrace);
    assert_eq!(way("ProtectHome=no", &built), Way::Ptrace);
    let closed = Surroundings { not_for_everybody: Some("mode 0700".into()), ..here() };
    assert_eq!(way("User=web", &closed), Way::AfterStart);
    assert_eq!(way("User=root", &closed), Way::Ptrace);
    assert_eq!(way("", &Surroundings { selinux: true, ..here() }), Way::AfterStart);
}

#[test]
fn what_no_way_gets_around_is_refused() {
    let wanted = Wanted::default();
    let script = Program { is_script: true, ..program() };
    assert!(refused("", script.clone(), &wanted, &here()).contains("fix: --only NAME"));
    let choice = chosen_with("", script, &Wanted { only: true, ..Wanted::default() }, &here()).unwrap();
    assert!(choice.image_sources.is_empty(), "a script has no image: {choice:?}");
    assert!(refused("MemoryTHP=disable", program(), &wanted, &here()).contains("MemoryTHP=disable"));
}

#[test]
fn the_way_that_was_asked_for_is_taken_or_refused() {
    let preload = Wanted { via: Some(Way::Preload), ..Wanted::default() };
    assert_eq!(chosen_with("", program(), &preload, &here()).unwrap().way, Way::Preload);
    let text = refused("", program(), &preload, &Surroundings { library: None, ..here() });
    assert_eq!(text, "not `run, by preload`: libpagelift.so is not installed");
    let heap = Wanted { only_by_run: vec!["--calm".into()], ..Wanted::default() };
    assert!(refused(FROM_OUTSIDE, program(), &heap, &here()).contains("attach has no --calm"));
}

/// The result of each value of `--pages` for each way, in a sandbox: the chosen pages, or a part of the reason against
/// them.
#[test]
fn every_source_is_known_by_every_way() {
    const DENY: &str = "MemoryDenyWriteExecute=yes\n";
    // By ptrace, by preload, after the start; first with copies of code allowed, then forbidden.
    let table = [
        (Pages::Auto, ["", "", ""], ["file+image", "!from inside", "file+image"]),
        (Pages::File, ["", "", ""], ["", "", ""]),
        (Pages::FileThenImage, ["", "!from inside", ""], ["", "!from inside", ""]),
        (Pages::Image, ["", "!from inside", ""], ["", "!from inside", ""]),
        (Pages::Hugetlb, ["", "", ""], ["!fix: --pages image"; 3]),
        (Pages::Thp, ["", "", ""], ["!fix: --pages image"; 3]),
    ];
    assert_eq!(table.len(), Pages::ALL.len());
    for (pages, open, forbidden) in table {
        for (text, expected) in [("", open), (DENY, forbidden)] {
            for (way, expected) in [Way::Ptrace, Way::Preload, Way::AfterStart].into_iter().zip(expected) {
                let wanted = Wanted { pages, via: Some(way), ..Wanted::default() };
                let found = match chosen_with(text, program(), &wanted, &here()) {
                    Ok(choice) => choice.pages.unwrap_or_default().to_owned(),
                    Err(refusal) => format!("!{refusal}"),
                };
                match expected.strip_prefix('!') {
                    Some(reason) => {
                        assert!(found.starts_with('!') && found.contains(reason), "{pages:?} {way} {found}")
                    }
                    None => assert_eq!(found, expected, "{pages:?} {way} {text}"),
                }
            }
        }
    }
}

#[test]
fn images_are_made_for_every_source_that_takes_them() {
    for named in Pages::ALL {
        let wanted = Wanted { pages: named.value, ..Wanted::default() };
        let choice = chosen_with("", program(), &wanted, &here()).unwrap();
        assert_eq!(choice.image_sources.is_empty(), !named.value.takes_images(), "{}", named.word);
    }
}

#[test]
fn a_filter_that_kills_for_cachestat_excludes_the_page_cache() {
    let filter = format!("{FILTER} ptrace pidfd_getfd");
    for named in Pages::ALL {
        let wanted = Wanted { pages: named.value, via: Some(Way::Ptrace), ..Wanted::default() };
        let excluded = named.value.only_shows() && named.value.takes_files();
        let found = chosen_with(&filter, program(), &wanted, &here());
        assert_eq!(found.is_err(), excluded, "{}", named.word);
    }
    let denies = format!("{filter}\nMemoryDenyWriteExecute=yes");
    assert_eq!(chosen(&denies).pages, Some("image"));
    let bare = Surroundings { store: None, ..here() };
    let outside = chosen_with(&denies, program(), &Wanted::default(), &bare).unwrap();
    assert_eq!((outside.way, outside.pages), (Way::AfterStart, Some("file")), "the page cache is asked from outside");
}

#[test]
fn systemd_must_not_take_a_helper_for_the_main_process() {
    let heap = Wanted { heap: HeapPages::Thp, ..Wanted::default() };
    let only = Wanted { only: true, only_by_run: vec!["--only".into()], ..Wanted::default() };
    let way = |text: &str, wanted: &Wanted| chosen_with(text, program(), wanted, &here()).map(|choice| choice.way);
    assert_eq!(way("Type=forking", &Wanted::default()), Ok(Way::Ptrace));
    assert_eq!(way("Type=forking\nGuessMainPID=yes", &heap), Ok(Way::Preload));
    let outside = Wanted { only_by_ptrace: vec!["--x".into()], ..heap.clone() };
    assert_eq!(way("Type=forking\nGuessMainPID=yes", &outside), Ok(Way::AfterStart));
    let ptrace = Wanted { via: Some(Way::Ptrace), ..only };
    assert!(refused("Type=forking", program(), &ptrace, &here()).contains("as for --only; fix: PIDFile="));
    for text in ["Type=forking\nPIDFile=/run/x.pid", "Type=forking\nGuessMainPID=no", "Type=notify"] {
        assert_eq!(way(text, &heap), Ok(Way::Ptrace), "{text}");
        assert_eq!(way(text, &ptrace), Ok(Way::Ptrace), "{text}");
    }
}

#[test]
fn a_program_that_gains_privileges_is_lifted_from_outside() {
    let privileged = Program { privileged: Some("it has file capabilities".into()), ..program() };
    let choice = chosen_with("", privileged.clone(), &Wanted::default(), &here()).unwrap();
    assert_eq!(choice.way, Way::AfterStart);
    assert!(choice.reasons[0].ends_with("it has file capabilities"), "{choice:?}");
    assert!(refused("Type=oneshot", privileged, &Wanted::default(), &here()).contains("file capabilities"));
}

#[test]
fn nothing_is_written_to_a_client() {
    let inetd = "Type=simple\nStandardInput=socket\nStandardOutput=inherit\nStandardError=inherit\nUser=web";
    let silent = |reason: &String| reason.starts_with("--quiet: ") && reason.contains("StandardError=journal");
    for via in [None, Some(Way::Ptrace), Some(Way::Preload)] {
        let choice = chosen_with(inetd, program(), &Wanted { via, ..Wanted::default() }, &here()).unwrap();
        assert!(choice.is_silent && choice.reasons.iter().any(silent), "{choice:?}");
        assert!(choice.image_sources.is_empty(), "`image add` writes what fails: {choice:?}");
        let note = "or after each upgrade: pagelift image add /usr/%i/server";
        let is_noted = choice.reasons.iter().any(|reason| reason.ends_with(note));
        assert_eq!(is_noted, via != Some(Way::Preload), "{choice:?}");
    }
    for text in [inetd.replace("Error=inherit", "Error=journal"), inetd.replace("Output=inherit", "Output=journal")] {
        let choice = chosen(&text);
        assert!(!choice.is_silent && !choice.reasons.iter().any(silent), "{choice:?}");
        assert_eq!(choice.image_sources, ["/usr/%i/server"]);
    }
    let why = refused(&format!("{inetd}\n{FROM_OUTSIDE}"), program(), &Wanted::default(), &here());
    assert!(why.contains("not `attach after each start`: attach writes why it fails"), "{why}");
    let loud = Wanted { not_silent: vec!["--require".into(), "--verbose".into()], ..Wanted::default() };
    let why = refused(inetd, program(), &loud, &here());
    assert_eq!(why.matches("which is a socket").count(), 2, "{why}");
    assert!(why.starts_with("--require writes to") && why.ends_with("fix: StandardError=journal"), "{why}");
    assert!(chosen_with("", program(), &loud, &here()).is_ok());
}

/// Images that are made before a start are charged to the service.
#[test]
fn a_service_with_a_limit_of_memory_makes_no_images() {
    for limit in ["MemoryMax=67108864", "MemoryMax=64M", "MemoryHigh=67108864", "MemoryMax=infinity\nMemoryHigh=1"] {
        let choice = chosen(limit);
        assert_eq!((choice.way, &choice.image_sources[..]), (Way::Ptrace, &[][..]), "{limit}");
        let note = choice.reasons.last().unwrap();
        let named = limit.lines().last().unwrap();
        assert!(note.contains(&format!("its memory would count towards {named}; fix: after each upgrade")), "{note}");
        assert!(note.ends_with("pagelift image add /usr/%i/server"), "{note}");
    }
    assert_eq!(chosen("MemoryMax=infinity\nMemoryHigh=infinity").image_sources, ["/usr/%i/server"]);
}

#[test]
fn a_store_that_is_closed_to_the_user_shows_nothing() {
    let closed = Surroundings { store_closed: Some("it has mode 700".into()), ..here() };
    let pages = |text: &str| chosen_with(text, program(), &Wanted::default(), &closed).map(|choice| choice.pages);
    assert_eq!(pages("User=web\nMemoryDenyWriteExecute=yes"), Ok(Some("file")));
    assert_eq!(pages("User=root\nMemoryDenyWriteExecute=yes"), Ok(Some("file+image")));
    let choice = chosen_with("User=web", program(), &Wanted::default(), &closed).unwrap();
    assert!(choice.image_sources.is_empty(), "{choice:?}");
    let image = Wanted { pages: Pages::Image, ..Wanted::default() };
    assert!(refused("User=web", program(), &image, &closed).contains("User= cannot open its images: it has mode 700"));
}

#[test]
fn a_heap_and_its_nodes_need_what_they_call() {
    let two = Surroundings { heap_library: Some("/usr/libexec/heap.so".into()), several_nodes: true, ..here() };
    let all = format!("{FILTER} ptrace pidfd_getfd cachestat");
    let pool = Wanted { heap: HeapPages::Pool(PageSize::new(2 << 20).unwrap()), ..Wanted::default() };
    let with = |text: &str, wanted: &Wanted, here: &Surroundings| chosen_with(text, program(), wanted, here);
    let why = refused(&all, program(), &Wanted { via: Some(Way::Ptrace), ..pool.clone() }, &two);
    assert!(why.contains("kills a process for mbind, by which a heap takes pool pages"), "{why}");
    assert!(with(&all, &pool, &Surroundings { several_nodes: false, ..two.clone() }).is_ok());
    assert!(with(&all.replace("2147483646", "1"), &pool, &two).is_ok(), "the heap goes on without it");
    let numa = Wanted { numa: true, ..Wanted::default() };
    for way in [Way::Ptrace, Way::Preload, Way::AfterStart] {
        let why = refused(&all, program(), &Wanted { via: Some(way), ..numa.clone() }, &two);
        assert!(why.contains("SystemCallFilter= kills a process for mbind"), "{why}");
    }
    assert!(with(&format!("{all} mbind"), &numa, &two).is_ok());

    let closed = "NoExecPaths=/\nExecPaths=/usr/bin /usr/lib /run";
    let paths = |wanted: &Wanted| with(closed, wanted, &two).unwrap().exec_paths;
    assert_eq!(paths(&pool), ["/usr/libexec/heap.so"]);
    assert!(paths(&Wanted::default()).is_empty());
}

#[test]
fn images_are_made_of_what_a_user_may_not_make_itself() {
    let large = Program { libraries: vec!["/lib/large%.so".into(), "/lib/b.so".into()], ..program() };
    let sources = |text: &str, programs: &[Program], wanted: &Wanted| {
        choose(&Properties::parse(text), programs, wanted, &here()).unwrap().image_sources
    };
    assert_eq!(sources("", std::slice::from_ref(&large), &Wanted::default()), ["/usr/%i/server"]);
    let user = sources("User=web", &[large.clone(), program(), large.clone()], &Wanted::default());
    assert_eq!(user, ["/usr/%i/server", "/lib/large%%.so", "/lib/b.so"], "each once");
    let script = Program { is_script: true, ..program() };
    let found = Program { named: "/usr/bin/real".into(), ..large };
    let only = Wanted { only: true, found: vec![found], ..Wanted::default() };
    assert_eq!(
        sources("User=web", std::slice::from_ref(&script), &only),
        ["/usr/bin/real", "/lib/large%%.so", "/lib/b.so"]
    );
    let missing = Wanted { only: true, missing: vec!["server".into()], ..Wanted::default() };
    let is_said = |text: &str, here: &Surroundings| {
        let choice = chosen_with(text, script.clone(), &missing, here).unwrap();
        choice.reasons.iter().any(|reason| reason.ends_with("fix: --only /PATH/OF/server"))
    };
    assert!(is_said("User=web", &here()));
    assert!(!is_said("", &here()), "root makes it at the start");
    assert!(!is_said("User=web", &Surroundings { store: None, ..here() }));
}

/// A large server that the words of a shell execute.
fn server() -> Program {
    let libraries = vec!["/lib/large.so".to_owned()];
    Program { path: "/opt/server".into(), named: "/opt/server".into(), is_large: true, libraries, ..Program::default() }
}

fn shell(programs: Vec<Program>, is_replaced: bool) -> Program {
    let shell = Some(Shell { programs, is_replaced });
    Program { path: "/bin/sh".into(), named: "/bin/sh".into(), shell, ..Program::default() }
}

#[test]
fn a_program_that_a_shell_executes_is_lifted_by_its_path() {
    let unit = "Type=notify\nUser=mysql\nSyslogIdentifier=server";
    let with = |unit: &str, wanted: &Wanted| chosen_with(unit, shell(vec![server()], true), wanted, &here()).unwrap();
    let choice = with(unit, &Wanted::default());
    assert_eq!((choice.way, choice.waits_for_exec), (Way::Ptrace, false));
    assert_eq!(choice.only, [["/opt/server"]]);
    assert_eq!(choice.image_sources, ["/opt/server", "/lib/large.so"]);
    assert_eq!(choice.reasons, ["--only /opt/server: /bin/sh executes /opt/server"]);
    assert_eq!(with("", &Wanted::default()).journal_name.as_deref(), Some("sh"), "as without Pagelift");

    let only = Wanted { only: true, found: vec![program()], only_by_run: vec!["--only".into()], ..Wanted::default() };
    let named = with(unit, &only);
    assert!(named.only.iter().all(Vec::is_empty) && named.reasons.is_empty(), "the user's names count: {named:?}");
    assert_eq!(named.image_sources, ["/usr/%i/server"]);
}

#[test]
fn a_shell_that_names_no_large_program_is_refused() {
    let unknown = shell(Vec::new(), false);
    let why = refused("", unknown.clone(), &Wanted::default(), &here());
    assert_eq!(why, "/bin/sh is a shell; needed: the name of the program that it starts; fix: --only NAME");
    let only = Wanted { only: true, ..Wanted::default() };
    assert!(chosen_with("", unknown.clone(), &only, &here()).is_ok());
    let both = choose(&Properties::parse(""), &[program(), unknown], &Wanted::default(), &here());
    assert_eq!(both.unwrap_err().0, [why]);
}

#[test]
fn each_command_is_lifted_by_the_names_of_its_own_shell() {
    let other = Program { path: "/opt/other".into(), ..server() };
    let programs = [program(), shell(vec![server(), other], false), Program { is_large: false, ..program() }];
    let choice = choose(&Properties::parse("Type=oneshot"), &programs, &Wanted::default(), &here()).unwrap();
    let none: &[&str] = &[];
    assert_eq!(choice.only, [none, &["/opt/server", "/opt/other"], none]);
    assert_eq!(choice.image_sources, ["/usr/%i/server", "/opt/server"]);
    let is_said = |text: &str| choice.reasons.iter().any(|reason| reason.starts_with(text));
    assert!(is_said("--only /opt/server,/opt/other: /bin/sh executes /opt/server or /opt/other"), "{choice:?}");
    assert!(is_said("note: no code of /usr/bin/server") && !is_said("note: no code of /bin/sh"), "{choice:?}");
}

#[test]
fn without_ptrace_a_program_that_a_shell_executes_lifts_itself() {
    let with = |unit: &str, server: Program| chosen_with(unit, shell(vec![server], true), &Wanted::default(), &here());
    let choice = with(FILTER, server()).unwrap();
    assert_eq!((choice.way, choice.pages), (Way::Preload, Some("thp")));
    assert_eq!(choice.only, [["/opt/server"]]);
    let notify = format!("{FILTER}\nType=notify");
    let fixed = Program { is_static: true, ..server() };
    assert_eq!(with(&notify, fixed).unwrap().way, Way::AfterStart);
    let privileged = Program { privileged: Some("it has file capabilities".into()), ..server() };
    assert_eq!(with("Type=notify", privileged).unwrap().way, Way::AfterStart);
    let forks = with("Type=forking", server()).unwrap();
    assert_eq!(forks.way, Way::Preload);
    assert!(forks.reasons[0].contains("as for --only; fix: PIDFile="), "{forks:?}");
}

#[test]
fn attach_must_not_find_the_shell() {
    let choice = |kind: &str, is_replaced| {
        let unit = format!("Type={kind}\n{FROM_OUTSIDE}");
        chosen_with(&unit, shell(vec![server()], is_replaced), &Wanted::default(), &here())
    };
    for (kind, is_replaced) in [("notify", true), ("notify-reload", true), ("dbus", true), ("forking", false)] {
        let choice = choice(kind, is_replaced).unwrap();
        assert!(choice.way == Way::AfterStart && choice.only.is_empty(), "{choice:?}");
        let said = "no --only: /bin/sh executes /opt/server, which is the main process once the service has started";
        assert!(choice.reasons.iter().any(|reason| reason == said), "{choice:?}");
    }
    for (kind, is_replaced, why) in [
        ("notify", false, "attach would find /bin/sh, which starts /opt/server without exec"),
        ("dbus", false, "attach would find /bin/sh"),
        ("simple", true, "attach may find /bin/sh, since Type=simple does not wait"),
        ("exec", true, "since Type=exec does not wait until it has executed /opt/server; fix: Type=notify"),
        ("oneshot", true, "Type=oneshot leaves no process"),
    ] {
        let refusal = choice(kind, is_replaced).unwrap_err().to_string();
        assert!(refusal.contains(why), "{kind}: {refusal}");
        assert_eq!(refusal.lines().count(), 3, "{refusal}");
    }
}
