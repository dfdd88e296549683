//! Programs that run in other namespaces, below another root, in vfork, under seccomp, or as another user: lifted, or
//! refused with the reason, and unharmed.

use address_space::{Address, ElfImage, MappingUsage, Protection};
use anyhow::{Context as _, Result, ensure};
use std::fs::{self, File};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant, SystemTime};
use test_support::{
    Context, Ending, Freezer, InstalledFolder, Kind, Need, Output, Program, Session, Setting, TestStore, Uprobe, View,
    check_lifted, check_unlifted, copy_program, default_huge_page, main_of, make_small, poll_until, process_field,
    source_of, test_case,
};

/// Number of the user and the group `nobody`.
const NOBODY: u32 = 65534;
/// Lifts of a program that exchanges its library; before copies came from files, it failed in every second run of as many.
const EXCHANGES: u32 = 200;
/// Lifts while a probe is set. Before copies were searched for probes, one in six killed the program.
const PROBED_LIFTS: u64 = 30;
/// The page of the probed function in its program's large code.
const PROBED_FUNCTION: u64 = 1280;

fn main() -> ExitCode {
    let needs = || vec![Need::Root, Need::Thp, Need::Command("gcc".into()), Need::Machine("x86_64".into())];
    // Enough pages for the code of the program or of its library, and too few for both.
    let with_pool = || [needs(), vec![Need::Pool(6 << 20)]].concat();
    let with_unshare = || [needs(), vec![Need::Command("unshare".into())]].concat();
    main_of(vec![
        test_case("in_other_namespaces", with_unshare(), other_namespaces),
        test_case("in_a_user_namespace", with_unshare(), user_namespace),
        test_case("below_another_root", [needs(), vec![Need::Command("chroot".into())]].concat(), other_root),
        test_case("in_vfork", needs(), in_vfork),
        test_case("watched_in_vfork", needs(), watched_in_vfork),
        test_case("asleep_until_another_wakes_it", needs(), asleep_until_woken),
        test_case("under_a_seccomp_filter", needs(), seccomp_filter),
        test_case("under_a_filter_that_refuses", needs(), strict_filter),
        test_case("with_one_thread_under_a_filter", needs(), one_confined_thread),
        test_case("in_seccomps_strict_mode", needs(), strict_mode),
        test_case("of_another_user", needs(), another_user),
        test_case("heap_of_an_ordinary_user", needs(), heap_not_permitted),
        test_case("in_a_frozen_cgroup", needs(), frozen),
        test_case("whose_elf_header_lies_among_large_data", needs(), header_among_data),
        test_case("whose_short_name_is_cut_inside_a_letter", needs(), cut_name),
        test_case("two_processes_below_one_limit_of_memory", needs(), one_limit),
        test_case("with_its_file_outside_of_its_new_root", needs(), locked_in_by_chroot),
        test_case(
            "with_its_file_forbidden_by_landlock",
            [needs(), vec![Need::Kernel(5, 13)]].concat(),
            locked_in_by_landlock,
        ),
        test_case("with_a_breakpoint_in_what_only_the_last_plan_lifts", with_pool(), breakpoint_in_library),
        test_case("with_attributes_set_since_the_lift", needs(), attributes_since_lift),
        test_case("whose_library_is_exchanged_meanwhile", needs(), exchanged_library),
        test_case("in_which_a_probe_is_set_meanwhile", needs(), probe_set_meanwhile),
    ])
}

fn pagelift(t: &Context, words: &[&str], store: Option<&TestStore>) -> Result<Output> {
    let mut command = t.pagelift(words)?;
    command.envs(store.iter().map(|store| ("PAGELIFT_STORE", &store.path)));
    t.run(command)
}

/// Lifts and restores, and checks the program each time.
fn back_and_forth(t: &Context, pid: u32, pages: &str, store: Option<&TestStore>) -> Result<()> {
    let number = pid.to_string();
    pagelift(t, &["attach", "--pages", pages, &number], store)?.success()?;
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    match store {
        Some(store) => ensure!(maps.contains(&store.text()), "nothing is mapped from the store:\n{maps}"),
        None => {
            let view = View::of(pid)?;
            let of_copy = |writable| source_of(pages, writable);
            check_lifted(&view, view.executable()?, &[Kind::Text], default_huge_page()?, of_copy)?;
        }
    }
    let detached = pagelift(t, &["detach", &number], None)?.success()?;
    ensure!(detached.stderr.contains("back on the pages of their files"), "{}", detached.stderr);
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    ensure!(store.is_none_or(|store| !maps.contains(&store.text())), "still mapped from the store:\n{maps}");
    Ok(())
}

/// The child of a process.
fn child_of(pid: u32) -> Result<u32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let mut child = None;
    poll_until(Duration::from_secs(120), "a child", || {
        let text = fs::read_to_string(&path).unwrap_or_default();
        child = text.split_whitespace().next().and_then(|number| number.parse().ok());
        child.is_some()
    })?;
    child.context("no child")
}

/// True also if its parent has not waited for it yet.
fn has_ended(pid: u32) -> bool {
    process_field(pid, "State").is_none_or(|state| state.starts_with(['Z', 'X']))
}

fn end(mut session: Session) -> Result<()> {
    session.send("\n")?;
    let output = session.finish()?.success()?;
    ensure!(!output.stdout.contains("differs"), "{}", output.stdout);
    Ok(())
}

fn unshared(t: &Context, options: &[&str]) -> Result<Session> {
    let mut unshare = Command::new("unshare");
    unshare.args(options).arg("--").arg(Program::named("start/pie_by_default.c")?.build()?);
    let session = t.session(unshare)?;
    session.wait_for_line("ready")?;
    Ok(session)
}

fn other_namespaces(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "256M")?;
    // The child has its own mounts by now, including the store's.
    let session = unshared(t, &["--pid", "--mount", "--fork", "--mount-proc"])?;
    let pid = child_of(session.pid())?;
    back_and_forth(t, pid, "thp", None)?;
    back_and_forth(t, pid, "image", Some(&store))?;
    end(session)
}

fn user_namespace(t: &Context) -> Result<()> {
    let session = unshared(t, &["--user", "--map-root-user"])?;
    back_and_forth(t, session.pid(), "thp", None)?;
    end(session)
}

/// The other root has neither /proc nor a store, so a copy is made.
fn other_root(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "256M")?;
    // `auto` makes images only of installed programs.
    let installed = InstalledFolder::of(t)?;
    let root = installed.path.join("root");
    fs::create_dir(&root)?;
    copy_program(t, &Program::named("start/static_pie.c")?.build()?, &root.join("program"))?;
    // `auto` would take the file itself before an image.
    make_small(&root.join("program"))?;
    // It makes images by itself only of files that were written a day ago.
    File::open(root.join("program"))?.set_modified(SystemTime::now() - Duration::from_secs(2 * 24 * 60 * 60))?;
    let mut chroot = Command::new("chroot");
    chroot.arg(&root).arg("/program");
    let session = t.session(chroot)?;
    session.wait_for_line("ready")?;
    back_and_forth(t, session.pid(), "thp", None)?;
    let pid = session.pid().to_string();
    let attach = pagelift(t, &["attach", "-v", "--pages", "auto", &pid], Some(&store))?.success()?;
    for word in [" MiB on ", "image: the kernel refused openat"] {
        ensure!(attach.stderr.contains(word), "`{word}` is missing in\n{}", attach.stderr);
    }
    pagelift(t, &["detach", &pid], None)?.success()?;
    end(session)?;
    drop(installed);
    Ok(())
}

/// The parent cannot be stopped while its child uses its memory; the child can.
fn in_vfork(t: &Context) -> Result<()> {
    let mut session = t.session(Program::named("attach/vforks.c")?.command()?)?;
    session.wait_for_line("ready")?;
    session.send("go on\n")?;
    let (pid, child) = (session.pid(), child_of(session.pid())?);
    let attach = pagelift(t, &["attach", "--pages", "thp", &pid.to_string()], None)?;
    // On a busy machine the child may have ended before its parent was inspected; then the parent is lifted.
    let refused = attach.ending != Ending::Exit(0) && attach.stderr.contains("it is in vfork");
    let lifted = attach.ending == Ending::Exit(0) && has_ended(child);
    ensure!(refused || lifted, "{:?}: {}", attach.ending, attach.stderr);
    let child = child_of(pid)?;
    let attach = pagelift(t, &["attach", "--pages", "thp", &child.to_string()], None)?;
    ensure!(attach.ending == Ending::Exit(0) || has_ended(child), "{}", attach.stderr);
    session.send("\n")?;
    let output = session.finish()?.success()?;
    ensure!(output.stdout.ends_with("all right\n"), "{}", output.stdout);
    Ok(())
}

/// After a refusal, `--watch` keeps running but releases the program.
fn watched_in_vfork(t: &Context) -> Result<()> {
    let mut session = t.session(Program::named("attach/vforks.c")?.command()?)?;
    session.wait_for_line("ready")?;
    session.send("go on\n")?;
    child_of(session.pid())?;
    let watcher = t.session(t.pagelift(&["attach", "--watch", "--pages", "thp", &session.pid().to_string()])?)?;
    // Refused, or lifted if the machine is so busy that the child had ended.
    watcher.wait_for_stderr("pagelift: ")?;
    session.send("\n")?;
    let output = session.finish()?.success()?;
    ensure!(output.stdout.ends_with("all right\n"), "{}", output.stdout);
    watcher.finish()?;
    Ok(())
}

/// While one thread sleeps where it cannot be stopped, all others continue, since one of them may have to wake it.
fn asleep_until_woken(t: &Context) -> Result<()> {
    let mut session = t.session(Program::named("attach/is_woken_by_another.c")?.command()?)?;
    session.wait_for_line("ready")?;
    session.send("go on\n")?;
    back_and_forth(t, session.pid(), "thp", None)?;
    let output = session.finish()?.success()?;
    ensure!(output.stdout.ends_with("all right\n"), "{}", output.stdout);
    Ok(())
}

fn confined(t: &Context, words: &[&str]) -> Result<Session> {
    let mut command = Program::named("attach/under_seccomp.c")?.command()?;
    command.args(words);
    let session = t.session(command)?;
    session.wait_for_line("ready")?;
    Ok(session)
}

fn seccomp_filter(t: &Context) -> Result<()> {
    let session = confined(t, &["lift"])?;
    ensure!(process_field(session.pid(), "Seccomp").as_deref() == Some("2"), "it has no filter");
    back_and_forth(t, session.pid(), "thp", None)?;
    end_confined(session)
}

/// The filter would kill the program for Pagelift's calls: none is made.
fn strict_filter(t: &Context) -> Result<()> {
    let session = confined(t, &[])?;
    let attach = pagelift(t, &["attach", "--pages", "thp", &session.pid().to_string()], None)?;
    let refused = attach.ending == Ending::Exit(125) && attach.stderr.contains("does not let it call munmap");
    ensure!(refused, "{:?}: {}", attach.ending, attach.stderr);
    let view = View::of(session.pid())?;
    check_unlifted(&view, view.executable()?)?;
    end_confined(session)
}

/// Another thread makes the calls, although the confined one is the first and sleeps.
fn one_confined_thread(t: &Context) -> Result<()> {
    let session = confined(t, &["one"])?;
    let seccomp = process_field(session.pid(), "Seccomp");
    ensure!(seccomp.as_deref() == Some("2"), "its first thread has no filter");
    back_and_forth(t, session.pid(), "thp", None)?;
    end_confined(session)
}

fn strict_mode(t: &Context) -> Result<()> {
    let session = confined(t, &["strict"])?;
    ensure!(process_field(session.pid(), "Seccomp").as_deref() == Some("1"), "it is in no strict mode");
    let attach = pagelift(t, &["attach", "--pages", "thp", &session.pid().to_string()], None)?;
    ensure!(attach.ending == Ending::Exit(125) && attach.stderr.contains("strict mode"), "{}", attach.stderr);
    let view = View::of(session.pid())?;
    check_unlifted(&view, view.executable()?)?;
    end_confined(session)
}

fn end_confined(mut session: Session) -> Result<()> {
    session.send("\n")?;
    let output = session.finish()?.success()?;
    ensure!(output.stdout.ends_with("all right\n"), "{}", output.stdout);
    Ok(())
}

/// User `nobody` cannot lift a program of root; root can lift a program of `nobody`.
fn another_user(t: &Context) -> Result<()> {
    let program = Program::named("start/pie_by_default.c")?;
    let session = t.session(program.command()?)?;
    session.wait_for_line("ready")?;
    let mut attach = t.pagelift(&["attach", "--pages", "thp", &session.pid().to_string()])?;
    attach.uid(NOBODY).gid(NOBODY).current_dir("/");
    let attach = t.run(attach)?;
    let fix = format!("fix: `sudo pagelift attach {}`", session.pid());
    ensure!(attach.ending == Ending::Exit(125) && attach.stderr.contains(&fix), "{}", attach.stderr);
    end(session)?;
    let mut command = program.command()?;
    command.uid(NOBODY).gid(NOBODY).current_dir("/");
    let session = t.session(command)?;
    session.wait_for_line("ready")?;
    back_and_forth(t, session.pid(), "thp", None)?;
    end(session)
}

/// The lifted ranges are reported, although collapsing the heap is not permitted.
fn heap_not_permitted(t: &Context) -> Result<()> {
    let _at_rest = Setting::khugepaged_at_rest()?;
    let mut command = Program::named("attach/holds_a_block_beside_large_code.c")?.command()?;
    command.uid(NOBODY).gid(NOBODY).current_dir("/");
    let session = t.session(command)?;
    session.wait_for_line("ready")?;
    let folder = t.folder().join("nobodys");
    fs::create_dir(&folder)?;
    chown(&folder, Some(NOBODY), Some(NOBODY))?;
    let (pid, report) = (session.pid().to_string(), folder.join("report.json"));
    let mut attach =
        t.pagelift(&["attach", "--pages", "thp", "--heap=thp", "--report", &report.to_string_lossy(), &pid])?;
    attach.uid(NOBODY).gid(NOBODY).current_dir("/");
    let attach = t.run(attach)?;
    ensure!(attach.ending == Ending::Exit(125), "{:?}: {}", attach.ending, attach.stderr);
    for words in ["2 MiB pages (thp)", "heap: collapsing is refused", "CAP_SYS_NICE"] {
        ensure!(attach.stderr.contains(words), "`{words}` is missing in\n{}", attach.stderr);
    }
    let json: serde_json::Value = serde_json::from_str(&fs::read_to_string(&report)?)?;
    ensure!(json["heap"].is_null() && json["pid"].as_u64() == Some(session.pid().into()), "{json}");
    let view = View::of(session.pid())?;
    let of_copy = |writable| source_of("thp", writable);
    check_lifted(&view, view.executable()?, &[Kind::Text], default_huge_page()?, of_copy)?;
    end(session)
}

/// A frozen program makes no calls until it is thawed: the lift is refused at once, and the program is unchanged.
fn frozen(t: &Context) -> Result<()> {
    let group = Freezer::new()?;
    let session = t.session(Program::named("start/pie_by_default.c")?.command()?)?;
    session.wait_for_line("ready")?;
    let maps = || fs::read_to_string(format!("/proc/{}/maps", session.pid()));
    let before = maps()?;
    group.take(session.pid())?;
    group.freeze(true)?;
    let started = Instant::now();
    let attach = pagelift(t, &["attach", "--pages", "thp", &session.pid().to_string()], None)?;
    // A wait for a call would take 30 s.
    ensure!(started.elapsed() < Duration::from_secs(28), "{:?}", started.elapsed());
    for words in ["it is frozen by its cgroup", "fix: thaw it"] {
        ensure!(attach.ending == Ending::Exit(125) && attach.stderr.contains(words), "{}", attach.stderr);
    }
    group.freeze(false)?;
    ensure!(maps()? == before, "its mappings have changed from\n{before}to\n{}", maps()?);
    back_and_forth(t, session.pid(), "thp", None)?;
    end(session)
}

/// The kernel cuts the name of the file after 15 bytes, and shows the rest among other fields.
fn cut_name(t: &Context) -> Result<()> {
    let path = t.folder().join("prozesswächteä");
    copy_program(t, &Program::named("start/pie_by_default.c")?.build()?, &path)?;
    let session = t.session(Command::new(&path))?;
    session.wait_for_line("ready")?;
    let name = fs::read(format!("/proc/{}/comm", session.pid()))?;
    ensure!(String::from_utf8(name).is_err(), "its short name is UTF-8");
    back_and_forth(t, session.pid(), "thp", None)?;
    end(session)?;
    let session = t.session(t.lifted(&["--pages", "thp"], &Command::new(&path))?)?;
    session.wait_for_line("ready")?;
    let view = View::of(session.pid())?;
    let of_copy = |writable| source_of("thp", writable);
    check_lifted(&view, view.executable()?, &[Kind::Text], default_huge_page()?, of_copy)?;
    end(session)
}

/// The program is lifted, then gives up access to its own file; `detach` reports what is needed.
fn locked_in(t: &Context, words: &[&str], needed: &[&str]) -> Result<()> {
    let mut command = Program::named("attach/locks_itself_in.c")?.command()?;
    command.args(words);
    let mut session = t.session(command)?;
    session.wait_for_line("ready")?;
    let pid = session.pid().to_string();
    pagelift(t, &["attach", "--pages", "thp", &pid], None)?.success()?;
    session.send("\n")?;
    session.wait_for_line("locked in")?;
    let detach = pagelift(t, &["detach", &pid], None)?;
    for words in needed {
        ensure!(detach.ending == Ending::Exit(125) && detach.stderr.contains(words), "{words}: {}", detach.stderr);
    }
    ensure!(!detach.stderr.contains("is gone"), "{}", detach.stderr);
    session.send("\n")?;
    session.finish()?.success()?;
    Ok(())
}

fn locked_in_by_chroot(t: &Context) -> Result<()> {
    let root = t.folder().join("root");
    fs::create_dir(&root)?;
    let root = root.to_string_lossy();
    locked_in(t, &["chroot", &root], &["is not in its root directory", &root, "a bind mount, or a restart"])
}

fn locked_in_by_landlock(t: &Context) -> Result<()> {
    locked_in(t, &["landlock"], &["Permission denied", "Landlock", "fix: restart the program"])
}

/// The program's code is planned first, but cannot be copied: its pages are then available to the library.
fn breakpoint_in_library(t: &Context) -> Result<()> {
    let mut session = t.session(Program::named("attach/holds_a_breakpoint.c")?.command()?)?;
    session.wait_for_line("ready")?;
    let options = ["attach", "-v", "--pages", "hugetlb", "--lift", "text", &session.pid().to_string()];
    let attach = pagelift(t, &options, None)?.success()?;
    for words in ["libholds.so", "kept out of core dumps", "a breakpoint or a uprobe"] {
        ensure!(attach.stderr.contains(words), "`{words}` is missing in\n{}", attach.stderr);
    }
    session.send("\n")?;
    let output = session.finish()?.success()?;
    ensure!(output.stdout.ends_with("the breakpoint is in its file\n"), "{}", output.stdout);
    Ok(())
}

/// A mapping of the file is locked like the copy, and lacks other attributes.
fn attributes_since_lift(t: &Context) -> Result<()> {
    let mut session = t.session(Program::named("attach/sets_attributes.c")?.command()?)?;
    session.wait_for_line("ready")?;
    let number = session.pid().to_string();
    let attach = || pagelift(t, &["attach", "--pages", "thp", "--lift", "text", "--objects", "exe", &number], None);
    let detach = || pagelift(t, &["detach", &number], None);
    let mut set = |attribute: &str| {
        session.send(&format!("{attribute}\n"))?;
        session.wait_for_line(&format!("{attribute}: set"))
    };
    // The code's flags, while it is on huge pages of a copy or not.
    let flags = |lifted: bool| -> Result<Vec<String>> {
        let view = View::of(number.parse()?)?;
        let program = view.executable()?;
        let code = program.image.segments.iter().find(|segment| segment.protection.execute).context("no code")?;
        let code = code.memory.shifted(program.bias);
        let usages: Vec<_> = view.usages.iter().filter(|usage| usage.mapping.range.overlaps(code)).collect();
        let is_huge = |usage: &&MappingUsage| usage.anonymous_huge > 0 && usage.mapping.protection.execute;
        ensure!(usages.iter().any(is_huge) == lifted, "{usages:?}");
        Ok(usages.into_iter().map(|usage| usage.flags.clone()).collect())
    };
    let has = |flags: &[String], flag: &str| flags.iter().all(|flags| flags.split(' ').any(|found| found == flag));
    attach()?.success()?;
    set("lock")?;
    ensure!(has(&flags(true)?, "lo"), "not locked: {:?}", flags(true)?);
    detach()?.success()?;
    ensure!(has(&flags(false)?, "lo"), "no longer locked: {:?}", flags(false)?);
    set("unlock")?;
    attach()?.success()?;
    set("dontfork")?;
    let refused = detach()?;
    let why = "not inherited by children (MADV_DONTFORK) since the lift";
    ensure!(refused.ending != Ending::Exit(0) && refused.stderr.contains(why), "{}", refused.stderr);
    ensure!(has(&flags(true)?, "dc"), "{:?}", flags(true)?);
    set("dofork")?;
    detach()?.success()?;
    ensure!(!has(&flags(false)?, "dc"), "{:?}", flags(false)?);
    session.send("end\n")?;
    session.finish()?.success()?;
    Ok(())
}

/// Tools assume that the first mapping of a file contains its header.
fn header_among_data(t: &Context) -> Result<()> {
    let path = Program::named("attach/has_large_notes.c")?.build()?;
    let check = |session: &Session, least: u64| -> Result<()> {
        let maps = fs::read_to_string(format!("/proc/{}/maps", session.pid()))?;
        let first = maps.lines().find(|line| line.ends_with(path.to_string_lossy().as_ref()));
        let offset = first.and_then(|line| line.split(' ').nth(2));
        ensure!(offset == Some("00000000"), "the file's first line is {first:?} in\n{maps}");
        let view = View::of(session.pid())?;
        let data = view.usages.iter().filter(|usage| usage.mapping.protection == Protection::READ);
        let huge: u64 = data.map(|usage| usage.anonymous_huge).sum();
        ensure!(huge >= least, "{huge} bytes of read-only data are on huge pages in\n{maps}");
        Ok(())
    };
    for lifts_at_start in [true, false] {
        let (plain, words) = (Command::new(&path), ["--pages", "thp", "--lift", "rodata", "--objects", "exe"]);
        let command = if lifts_at_start { t.lifted(&words, &plain)? } else { plain };
        let session = t.session(command)?;
        session.wait_for_line("ready")?;
        if !lifts_at_start {
            let number = session.pid().to_string();
            pagelift(t, &[&["attach"], &words[..], &[&number]].concat(), None)?.success()?;
        }
        check(&session, 2 << 20)?;
        if !lifts_at_start {
            pagelift(t, &["detach", &session.pid().to_string()], None)?.success()?;
            check(&session, 0)?;
        }
        end(session)?;
    }
    Ok(())
}

/// `--max-memory` limits all processes of a command together; here it suffices for the constants of one.
fn one_limit(t: &Context) -> Result<()> {
    let name = "limited_twins";
    let program = t.folder().join(name);
    copy_program(t, &Program::named("start/computes_until_told.c")?.build()?, &program)?;
    let twins = [t.session(Command::new(&program))?, t.session(Command::new(&program))?];
    for twin in &twins {
        twin.wait_for_line("ready")?;
    }
    let most = 16_u64 << 20;
    let words = ["attach", "--pages", "thp", "--lift", "rodata", "--max-memory", "16M", "--all", name];
    let output = pagelift(t, &words, None)?.success()?;
    let huge = twins.iter().map(|twin| Ok(View::of(twin.pid())?.huge_bytes())).collect::<Result<Vec<u64>>>()?;
    ensure!(huge.iter().sum::<u64>() <= most, "{huge:?} bytes are huge: {}", output.stderr);
    ensure!(huge.iter().any(|bytes| *bytes > 0), "{huge:?} bytes are huge: {}", output.stderr);
    for mut twin in twins {
        twin.send("\n")?;
        twin.finish()?.success()?;
    }
    Ok(())
}

/// While a lift copies a library, the program unloads it, maps something else at its addresses, and loads it again.
fn exchanged_library(t: &Context) -> Result<()> {
    let mut session = t.session(Program::named("attach/exchanges_its_library.c")?.command()?)?;
    session.wait_for_line("ready")?;
    let number = session.pid().to_string();
    for _ in 0..EXCHANGES {
        // The library may not be there, or be gone at the swap.
        pagelift(t, &["attach", "--pages", "thp", &number], None)?;
        pagelift(t, &["detach", &number], None)?;
        ensure!(!session.has_ended()?, "the program found other memory than its own: {:?}", session.finish()?);
    }
    session.send("\n")?;
    let output = session.finish()?.success()?;
    ensure!(output.stdout.ends_with("right\n"), "{output:?}");
    Ok(())
}

/// Somebody sets a uprobe at any moment of a lift. A copy must not hold it: nobody would handle the breakpoint.
fn probe_set_meanwhile(t: &Context) -> Result<()> {
    let program = Program::named("attach/is_probed_in_large_code.c")?;
    let path = program.build()?;
    let image = ElfImage::parse(&fs::read(&path)?[..])?;
    let symbols = Command::new("nm").arg(&path).output()?;
    let symbols = String::from_utf8(symbols.stdout)?;
    let place = symbols.lines().find_map(|line| line.strip_suffix(" scattered_code")).context("no such symbol")?;
    let place = place.split(' ').next().unwrap_or_default();
    let place = Address(u64::from_str_radix(place, 16)?) + 4096 * PROBED_FUNCTION;
    let place = image.offset_of_address(place).context("it is not in the file")?;
    let probe = Uprobe::new(t, &path, place)?;
    probe.switch(false)?;
    let mut session = t.session(Command::new(&path))?;
    session.wait_for_line("ready")?;
    let number = session.pid().to_string();
    for round in 0..PROBED_LIFTS {
        let mut lift = t.session(t.pagelift(&["attach", "--pages", "thp", &number])?)?;
        // The moments of one lift, one after the other: it takes some 50 ms.
        let begun = Instant::now();
        let moment = Duration::from_millis(3 * (round % PROBED_LIFTS));
        poll_until(Duration::from_secs(120), "the moment", || begun.elapsed() >= moment)?;
        probe.switch(true)?;
        poll_until(Duration::from_secs(120), "the end of the lift", || lift.has_ended().unwrap_or(true))?;
        ensure!(!session.has_ended()?, "after {moment:?} of {:?}: {:?}", lift.finish()?, session.finish()?);
        probe.switch(false)?;
        pagelift(t, &["detach", &number], None)?;
    }
    session.send("\n")?;
    let output = session.finish()?.success()?;
    ensure!(output.stdout.ends_with("right\n"), "{output:?}");
    Ok(())
}
