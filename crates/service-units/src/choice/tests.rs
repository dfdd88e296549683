use super::*;

const FILTER: &str = "SystemCallErrorNumber=2147483646\nSystemCallFilter=clone wait4 pipe2 prctl process_vm_readv mremap \
                      madvise munmap tgkill rt_sigprocmask statx mmap openat";

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
    assert!(choice.reasons.is_empty() && choice.exec_paths.is_empty() && !choice.waits_for_exec);
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
    assert!(why.contains("systemctl list-dependencies idle.service"), "{why}");
    let both = choose(&Properties::parse(unit), &[idle, program()], &Wanted::default(), &here());
    assert!(both.is_ok(), "{both:?}");
}

#[test]
fn code_comes_from_images_where_copies_are_forbidden() {
    let choice = chosen("MemoryDenyWriteExecute=yes");
    assert_eq!((choice.way, choice.pages), (Way::Ptrace, Some("image")));
    let bare = Surroundings { store: None, ..here() };
    let none = refused("MemoryDenyWriteExecute=yes", program(), &Wanted::default(), &bare);
    assert!(none.contains("needs an image store; fix: pagelift image setup"), "{none}");
    let thp = Wanted { pages: Some("thp".into()), ..Wanted::default() };
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
    assert_eq!((choice.way, choice.pages, choice.waits_for_exec), (Way::AfterStart, Some("image"), true));
    assert_eq!(choice.exec_paths, ["/run/pagelift/images"]);
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
    for text in [
        "RootDirectory=/srv/root",
        "InaccessiblePaths=-/usr/bin",
        "TemporaryFileSystem=/usr:ro",
        "AppArmorProfile=server",
    ] {
        assert_eq!(chosen(text).way, Way::AfterStart, "{text}");
    }
    let built = Surroundings { pagelift: "/root/.cargo/bin/pagelift".into(), ..here() };
    let way = |text: &str, here: &Surroundings| chosen_with(text, program(), &Wanted::default(), here).unwrap().way;
    assert_eq!(way("ProtectHome=read-only", &built), Way::AfterStart);
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
    assert!(chosen_with("", script, &Wanted { only: true, ..Wanted::default() }, &here()).is_ok());
    let privileged = Program { privileged: Some("set-user-ID".into()), ..program() };
    assert_eq!(refused("", privileged, &wanted, &here()), "set-user-ID");
    assert!(refused("MemoryTHP=disable", program(), &wanted, &here()).contains("MemoryTHP=disable"));
}

#[test]
fn the_way_that_was_asked_for_is_taken_or_refused() {
    let preload = Wanted { via: Some(Way::Preload), ..Wanted::default() };
    assert_eq!(chosen_with("", program(), &preload, &here()).unwrap().way, Way::Preload);
    let text = refused("", program(), &preload, &Surroundings { library: None, ..here() });
    assert_eq!(text, "not `run, by preload`: libpagelift.so is not installed");
    let heap = Wanted { only_by_run: vec!["--calm".into()], ..Wanted::default() };
    assert!(refused("RootDirectory=/x", program(), &heap, &here()).contains("attach has no --calm"));
}
