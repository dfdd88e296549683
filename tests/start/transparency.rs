//! `pagelift run` must be equivalent to exec for the program, its parent and its terminal.

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use test_support::{
    Context, Ending, Need, Output, Program, Session, Test, exchange_text, main_of, pagelift_binary, poll_until,
    process_field, process_state, test_case, write_script,
};

fn main() -> ExitCode {
    let mut tests = environments();
    tests.extend(endings());
    tests.extend(starts());
    tests.extend(signals());
    main_of(tests)
}

fn gcc() -> Vec<Need> {
    vec![Need::Command("gcc".into()), Need::Thp]
}

fn environments() -> Vec<Test> {
    let conditions: [(&str, &[&str]); 15] = [
        ("as_it_is", &[]),
        ("closed_stdin", &["closed=0"]),
        ("closed_stdout", &["closed=1"]),
        ("closed_stderr", &["closed=2"]),
        ("all_streams_closed", &["closed=0", "closed=1", "closed=2"]),
        ("more_open_files", &["open=3", "open=4", "open=9", "open=200"]),
        ("blocked_signals", &["block=2", "block=10", "block=15", "block=17", "block=40"]),
        ("ignored_signals", &["ignore=1", "ignore=10", "ignore=13", "ignore=17", "ignore=18", "ignore=21"]),
        ("umask_and_limits", &["umask=027", "limit=7:64:128", "limit=3:16777216:33554432", "limit=4:0:0", "nice=5"]),
        ("alarm_is_running", &["alarm=100"]),
        ("new_session", &["new-session"]),
        ("subreaper", &["subreaper"]),
        ("no_new_privileges", &["no-new-privileges"]),
        ("parent_death_signal", &["death-signal=10"]),
        ("no_thp", &["no-thp"]),
    ];
    let mut tests = Vec::new();
    for (condition, words) in conditions {
        tests.extend(each_way(condition, move |t, pages| same_environment(t, words, pages)));
    }
    tests.extend(each_way("without_randomisation", |t, pages| {
        same_environment_behind(t, &["setarch".into(), "-R".into()], pages)
    }));
    tests.extend(each_way("empty_environment", |t, pages| {
        same_environment_behind(t, &["env".into(), "-i".into()], pages)
    }));
    tests.push(test_case("environment/found_by_path", gcc(), found_by_path));
    tests.push(test_case(
        "environment/terminal",
        [gcc(), vec![Need::Command("script".into())]].concat(),
        on_a_terminal,
    ));
    tests
}

/// A test for each source of pages; only a test that has reserved a pool may use it. A start from the file alone needs
/// no stop at the entry.
fn each_way(name: &str, body: impl Fn(&Context, &str) -> Result<()> + Clone + Send + 'static) -> [Test; 3] {
    let (other, third) = (body.clone(), body.clone());
    let pool = [gcc(), vec![Need::Pool(32 << 20)]].concat();
    [
        test_case(format!("environment/{name}/thp"), gcc(), move |t| body(t, "thp")),
        test_case(format!("environment/{name}/hugetlb"), pool, move |t| other(t, "hugetlb")),
        test_case(format!("environment/{name}/file"), gcc(), move |t| third(t, "file")),
    ]
}

fn same_environment(t: &Context, words: &[&str], pages: &str) -> Result<()> {
    let launcher = Program::named("start/starts_another_with.c")?.build()?.to_string_lossy().into_owned();
    let words = words.iter().map(|word| (*word).to_owned());
    let launcher: Vec<String> = [launcher].into_iter().chain(words).chain(["--".to_owned()]).collect();
    same_environment_behind(t, &launcher, pages)
}

/// Starts the printing program with these words before it, once plain and once through `pagelift run`.
fn same_environment_behind(t: &Context, launcher: &[String], pages: &str) -> Result<()> {
    let program = Program::named("start/prints_its_environment.c")?.build()?;
    let file = t.folder().join("printed");
    let mut printed = Vec::new();
    for lifted in [false, true] {
        fs::remove_file(&file).ok();
        let mut words = launcher.to_vec();
        if lifted {
            words.push(pagelift_binary()?.to_string_lossy().into_owned());
            let kinds = if pages == "file" { "text,rodata" } else { "text,rodata,data,bss,heap" };
            words.extend(["run", "-q", "--pages", pages, "--lift", kinds, "--"].map(str::to_owned));
        }
        words.extend([program.to_string_lossy().into_owned(), file.to_string_lossy().into_owned()]);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        let output = t.run(command)?.success()?;
        let text = fs::read_to_string(&file).context("the program has printed nothing")?;
        printed.push((exchange_text(&text, output.pid, "PID"), output.stdout, output.stderr));
    }
    ensure!(printed[0].0.contains("pid PID ppid"), "the plain program is not the process that was started");
    ensure!(printed[0] == printed[1], "{}", difference(&printed[0].0, &printed[1].0));
    Ok(())
}

fn difference(plain: &str, lifted: &str) -> String {
    let only = |of: &str, not: &str| -> String {
        of.lines().filter(|line| !not.lines().any(|l| l == *line)).map(|line| format!("  {line}\n")).collect()
    };
    format!("only plain:\n{}only lifted:\n{}", only(plain, lifted), only(lifted, plain))
}

fn found_by_path(t: &Context) -> Result<()> {
    let program = Program::named("start/prints_its_environment.c")?.build()?;
    let folder = program.parent().context("a folder")?.to_string_lossy().into_owned();
    let name = program.file_name().context("a name")?.to_string_lossy().into_owned();
    let mut texts = Vec::new();
    for start in [String::new(), format!("{} run -q --pages thp -- ", pagelift_binary()?.display())] {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("exec {start}{name}")]).env("PATH", format!("/nowhere:{folder}:/usr/bin:/bin"));
        let output = t.run(shell)?.success()?;
        texts.push(exchange_text(&output.stdout, output.pid, "PID"));
    }
    ensure!(texts[0] == texts[1], "{}", difference(&texts[0], &texts[1]));
    Ok(())
}

fn on_a_terminal(t: &Context) -> Result<()> {
    let program = Program::named("start/prints_its_environment.c")?.build()?;
    let file = t.folder().join("printed");
    let mut texts = Vec::new();
    for lifted in [false, true] {
        let start =
            if lifted { format!("{} run -q --pages thp -- ", pagelift_binary()?.display()) } else { String::new() };
        let mut command = Command::new("script");
        let line = format!("exec {start}{} {}", program.display(), file.display());
        command.args(["-qec", &line, "/dev/null"]);
        t.run(command)?.success()?;
        let text = fs::read_to_string(&file)?;
        let field = |word: &str| {
            let mut words = text.split_whitespace().skip_while(|w| *w != word);
            words.nth(1).and_then(|w| w.parse::<u32>().ok()).with_context(|| format!("no {word} in\n{text}"))
        };
        let (pid, parent) = (field("pid")?, field("ppid")?);
        let text = exchange_text(&exchange_text(&text, pid, "PID"), parent, "PARENT");
        // Each run has a separate terminal, so its device number may differ.
        let stable = |line: &&str| !line.starts_with("fd ");
        texts.push(text.lines().filter(stable).map(|l| format!("{l}\n")).collect::<String>());
    }
    ensure!(texts[0].contains("tty group PID"), "the plain program is not in the foreground:\n{}", texts[0]);
    ensure!(texts[0] == texts[1], "{}", difference(&texts[0], &texts[1]));
    Ok(())
}

fn endings() -> Vec<Test> {
    vec![
        test_case("ending/exit_status", vec![], |t| {
            for status in [0, 1, 2, 77, 124, 125, 126, 127, 128, 255] {
                same_shell_ending(t, &format!("exit {status}"), Ending::Exit(status))?;
            }
            Ok(())
        }),
        test_case("ending/death_by_signal", vec![], |t| {
            for signal in [1, 2, 3, 6, 8, 9, 10, 13, 14, 15, 31] {
                same_shell_ending(t, &format!("ulimit -c 0; kill -{signal} $$"), Ending::Signal(signal))?;
            }
            Ok(())
        }),
        test_case("ending/not_found_is_127", vec![], |t| {
            for missing in ["/no/such/program", "no-such-program-anywhere", "./not-here", ""] {
                let output = t.run(t.lifted(&[], &Command::new(missing))?)?;
                ensure!(output.ending == Ending::Exit(127), "{missing}: {output:?}");
                ensure!(!output.own_lines().is_empty(), "{missing}: no line says so: {output:?}");
            }
            Ok(())
        }),
        test_case("ending/not_executable_is_126", vec![], not_executable),
        test_case("ending/own_error_is_125", vec![], |t| {
            for arguments in [&["run", "--no-such-option", "--", "true"][..], &["run", "--pages", "wood", "--", "true"]]
            {
                let output = t.run(t.pagelift(arguments)?)?;
                ensure!(output.ending == Ending::Exit(125), "{arguments:?}: {output:?}");
            }
            Ok(())
        }),
    ]
}

fn same_shell_ending(t: &Context, script: &str, wanted: Ending) -> Result<()> {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    let output = t.run(t.lifted(&[], &command)?)?;
    ensure!(output.ending == wanted, "`{script}`: {output:?}");
    Ok(())
}

fn not_executable(t: &Context) -> Result<()> {
    let file = t.folder().join("file");
    fs::write(&file, "no program\n")?;
    // A shell reports a path through a file as "not a directory": not executable, not missing.
    for path in [file, t.folder().to_owned(), PathBuf::from("/etc/passwd/x")] {
        let output = t.run(t.lifted(&[], &Command::new(&path))?)?;
        ensure!(output.ending == Ending::Exit(126), "{}: {output:?}", path.display());
        ensure!(!output.own_lines().is_empty(), "{}: no line says so: {output:?}", path.display());
    }
    // A file in a format that the kernel does not know is a shell script to execvp, and so to every launcher.
    let script = t.folder().join("script");
    write_script(t, &script, "echo $1; exit 5\n")?;
    let mut command = Command::new(&script);
    command.arg("word");
    let output = t.run(t.lifted(&["-q"], &command)?)?;
    ensure!(output.ending == Ending::Exit(5) && output.stdout == "word\n", "{output:?}");
    Ok(())
}

fn starts() -> Vec<Test> {
    vec![
        test_case("start/pipes_carry_everything", vec![], pipes_carry_everything),
        test_case("start/nobody_else_is_there", gcc(), nobody_else_is_there),
        test_case("start/many_at_once", gcc(), many_at_once),
        test_case("start/the_parent_has_one_child", gcc(), the_parent_has_one_child),
        test_case("start/small_programs_start_at_once", vec![], small_programs_start_at_once),
        test_case("start/small_programs_say_why_they_stay", vec![], |t| {
            let output = t.run(t.lifted(&[], &Command::new("true"))?)?.success()?;
            ensure!(output.own_lines().len() == 1, "not one line: {output:?}");
            let quiet = t.run(t.lifted(&["-q"], &Command::new("true"))?)?.success()?;
            ensure!(quiet.stderr.is_empty() && quiet.stdout.is_empty(), "not quiet: {quiet:?}");
            Ok(())
        }),
    ]
}

fn pipes_carry_everything(t: &Context) -> Result<()> {
    let mut command = t.lifted(&["-q"], &Command::new("md5sum"))?;
    let input = t.folder().join("input");
    fs::write(&input, vec![7; 10 << 20])?;
    command.stdin(fs::File::open(&input)?).stdout(Stdio::piped()).stderr(Stdio::piped());
    t.mark(&mut command);
    let output = Session::start_as_is(command, Duration::from_secs(240))?.finish()?.success()?;
    let mut plain = Command::new("md5sum");
    plain.stdin(fs::File::open(&input)?);
    let plain = plain.output()?;
    ensure!(output.stdout.as_bytes() == plain.stdout, "another sum: {output:?}");
    Ok(())
}

/// While the program runs, it has no tracer and no child, and no process of Pagelift is left.
fn nobody_else_is_there(t: &Context) -> Result<()> {
    let command = Program::named("start/pie_by_default.c")?.command()?;
    let mut session = t.session(t.lifted(&["--pages", "thp"], &command)?)?;
    session.wait_for_line("ready")?;
    let pid = session.pid();
    poll_until(Duration::from_secs(120), "the helper to be gone", || t.own_processes().len() == 1)?;
    ensure!(process_field(pid, "TracerPid").as_deref() == Some("0"), "it is still traced");
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    ensure!(children.is_empty(), "it has children: {children}");
    session.send("go on\n")?;
    session.finish()?.success()?;
    Ok(())
}

fn many_at_once(t: &Context) -> Result<()> {
    let command = Program::named("start/pie_by_default.c")?.command()?;
    let plain = t.run(command)?.success()?;
    let command = Program::named("start/pie_by_default.c")?.command()?;
    let sessions = (0..12).map(|_| t.session(t.lifted(&["--pages", "thp"], &command)?)).collect::<Result<Vec<_>>>()?;
    for session in sessions {
        let output = session.finish()?.success()?;
        ensure!(output.stdout == plain.stdout, "another output: {output:?}");
    }
    Ok(())
}

/// A shell that waits for all its children has just one, and then none.
fn the_parent_has_one_child(t: &Context) -> Result<()> {
    let program = Program::named("start/pie_by_default.c")?.build()?;
    let start = format!("{} run -q --pages thp -- {} </dev/null", pagelift_binary()?.display(), program.display());
    let count = "read children </proc/$$/task/$$/children; echo children: $children.";
    let script = format!("{start} & {start} & wait; {count}; {start}; echo status $?; {count}");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]);
    let output = t.run(shell)?.success()?;
    ensure!(output.stdout.matches("children: .\n").count() == 2, "{}", output.stdout);
    ensure!(output.stdout.contains("status 0\n"), "{}", output.stdout);
    Ok(())
}

fn small_programs_start_at_once(t: &Context) -> Result<()> {
    let median = |command: &dyn Fn() -> Result<Command>| -> Result<Duration> {
        let mut times = Vec::new();
        for _ in 0..15 {
            let started = Instant::now();
            command()?.stdin(Stdio::null()).stderr(Stdio::null()).status()?;
            times.push(started.elapsed());
        }
        times.sort();
        Ok(times[times.len() / 2])
    };
    // Benchmarks measure the exact cost; here a delay that a person could notice is an error. A delay caused by
    // Pagelift recurs at every attempt, one of a busy machine does not.
    let mut last = Ok((Duration::ZERO, Duration::MAX));
    let waited = poll_until(Duration::from_secs(240), "starts without a delay", || {
        let plain = median(&|| Ok(Command::new("/bin/true")));
        let lifted = median(&|| t.lifted(&["-q"], &Command::new("/bin/true")));
        last = plain.and_then(|plain| Ok((plain, lifted?)));
        last.as_ref().map_or(true, |(plain, lifted)| *lifted < *plain + Duration::from_millis(30))
    });
    let (plain, lifted) = last?;
    waited.with_context(|| format!("median of 15 starts: plain {plain:?}, through pagelift {lifted:?}"))
}

fn signals() -> Vec<Test> {
    vec![
        test_case("signal/sigterm_at_any_moment", gcc(), |t| dies_at_any_moment(t, Signal::SIGTERM)),
        test_case("signal/sigint_at_any_moment", gcc(), |t| dies_at_any_moment(t, Signal::SIGINT)),
        test_case("signal/sigkill_at_any_moment", gcc(), |t| dies_at_any_moment(t, Signal::SIGKILL)),
        test_case("signal/stop_and_continue_at_any_moment", gcc(), stops_and_continues),
        test_case("signal/ignored_ones_do_not_matter", gcc(), harmless_signals),
        test_case("signal/parent_sees_stops", gcc(), parent_sees_stops),
    ]
}

/// Moments from the very start on, spread over the duration of a start.
fn moments() -> impl Iterator<Item = Duration> {
    (0..40).map(|i| Duration::from_micros(i * 400))
}

fn session_of(t: &Context, name: &str) -> Result<Session> {
    t.session(t.lifted(&["--pages", "thp"], &Program::named(name)?.command()?)?)
}

fn dies_at_any_moment(t: &Context, signal: Signal) -> Result<()> {
    for moment in moments() {
        let mut session = session_of(t, "start/pie_by_default.c")?;
        std::thread::sleep(moment);
        session.signal(signal)?;
        poll_until(Duration::from_secs(120), &format!("the end {moment:?} after the start"), || {
            session.has_ended().unwrap_or(true)
        })?;
        let output = session.finish()?;
        ensure!(output.ending == Ending::Signal(signal as i32), "{moment:?} after the start: {output:?}");
    }
    Ok(())
}

fn plain_output(t: &Context, name: &str) -> Result<Output> {
    t.run(Program::named(name)?.command()?)?.success()
}

/// If the program is stopped at any moment, during Pagelift's work or after it, its parent sees the stop, and the
/// program continues to the same output.
fn stops_and_continues(t: &Context) -> Result<()> {
    let plain = plain_output(t, "start/pie_by_default.c")?;
    for moment in moments() {
        let when = || format!("{moment:?} after the start");
        let session = session_of(t, "start/pie_by_default.c")?;
        std::thread::sleep(moment);
        session.signal(Signal::SIGSTOP)?;
        let pid = Pid::from_raw(session.pid() as i32);
        let mut stopped = false;
        poll_until(Duration::from_secs(120), &format!("the stop {}", when()), || {
            let status = waitpid(pid, Some(WaitPidFlag::WUNTRACED | WaitPidFlag::WNOHANG));
            stopped |= matches!(status, Ok(WaitStatus::Stopped(_, Signal::SIGSTOP)));
            stopped
        })?;
        process_state(session.pid(), "Tt").with_context(when)?;
        session.signal(Signal::SIGCONT)?;
        let output = session.finish().with_context(when)?.success()?;
        ensure!(output.stdout == plain.stdout, "{}: {output:?}", when());
    }
    Ok(())
}

fn harmless_signals(t: &Context) -> Result<()> {
    let plain = plain_output(t, "start/pie_by_default.c")?;
    for moment in moments() {
        let session = session_of(t, "start/pie_by_default.c")?;
        for signal in [Signal::SIGWINCH, Signal::SIGCHLD, Signal::SIGURG, Signal::SIGCONT] {
            std::thread::sleep(moment / 4);
            session.signal(signal)?;
        }
        let output = session.finish()?.success()?;
        ensure!(output.stdout == plain.stdout, "{moment:?} after the start: {output:?}");
    }
    Ok(())
}

/// Shells' job control needs this: the parent sees each stop and each continuation.
fn parent_sees_stops(t: &Context) -> Result<()> {
    let mut session = session_of(t, "start/pie_by_default.c")?;
    session.wait_for_line("ready")?;
    let pid = Pid::from_raw(session.pid() as i32);
    for (signal, stop) in
        [(Signal::SIGSTOP, true), (Signal::SIGCONT, false), (Signal::SIGTSTP, true), (Signal::SIGCONT, false)]
    {
        session.signal(signal)?;
        match waitpid(pid, Some(WaitPidFlag::WUNTRACED | WaitPidFlag::WCONTINUED))? {
            WaitStatus::Stopped(_, seen) if stop && seen == signal => {}
            WaitStatus::Continued(_) if !stop => {}
            other => bail!("{signal}: {other:?}"),
        }
    }
    session.send("go on\n")?;
    session.finish()?.success()?;
    Ok(())
}
