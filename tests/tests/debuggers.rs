//! gdb, strace, core dumps and perf on lifted programs: what they show of a plain one they show of a lifted one.

use anyhow::{Context as _, Result, bail, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use pagelift_tests::{Context, Ending, Need, Program, Session, main_of, poll_until, process_field, trial};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::time::Duration;

fn main() -> ExitCode {
    type Body = fn(&Context, &str) -> Result<()>;
    let bodies: [(&str, &str, Body); 8] = [
        ("gdb_shows_the_backtrace", "gdb", gdb_backtrace),
        ("gdb_stops_at_a_breakpoint", "gdb", gdb_breakpoint),
        ("gdb_shows_what_it_shows_of_a_plain_program", "gdb", gdb_same_as_plain),
        ("strace_follows", "strace", strace),
        ("core_dump_has_its_backtrace", "gdb", core_dump),
        ("perf_map_is_demangled", "g++", perf_map_demangled),
        ("perf_resolves_symbols", "perf", perf_report),
        ("perf_map_from_separate_debug_file", "objcopy", separate_debug_file),
    ];
    let mut trials: Vec<Trial> = Vec::new();
    for (name, command, body) in bodies {
        let needs = vec![Need::Command(command.into()), Need::Command("gcc".into())];
        let with_pool = [needs.clone(), vec![Need::Pool(96 << 20)]].concat();
        trials.push(trial(format!("{name}/thp"), [needs, vec![Need::Thp]].concat(), move |t| body(t, "thp")));
        trials.push(trial(format!("{name}/hugetlb"), with_pool, move |t| body(t, "hugetlb")));
    }
    main_of(trials)
}

/// A lifted program that waits after `ready`.
fn waiting(t: &Context, name: &str, options: &[&str]) -> Result<Session> {
    let session = t.session(t.lifted(options, &Program::named(name)?.command()?)?)?;
    session.wait_for_line("ready")?;
    session.wait_for_stderr(" MiB on ").context("it is not lifted")?;
    Ok(session)
}

fn gdb(commands: &[&str]) -> Command {
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-ex", "set debuginfod enabled off", "-ex", "set width 0"]);
    for command in commands {
        gdb.args(["-ex", command]);
    }
    gdb
}

fn gdb_backtrace(t: &Context, pages: &str) -> Result<()> {
    let mut session = waiting(t, "crashes_when_told.c", &["--pages", pages])?;
    let mut command = gdb(&["backtrace", "print state_in_data", "print state_in_data.text", "info symbol middle"]);
    command.arg("-p").arg(session.pid().to_string());
    let output = t.run(command)?.success()?;
    for word in ["ready (", "main (", "number = 42", "a text in rodata", "middle in section .text"] {
        ensure!(output.stdout.contains(word), "`{word}` is not shown:\n{}\n{}", output.stdout, output.stderr);
    }
    session.send("go on\n")?;
    ensure!(session.finish()?.ending == Ending::Signal(Signal::SIGABRT as i32), "it did not go on");
    Ok(())
}

/// In private pages of the pool a breakpoint costs one page; the pool has some left.
fn gdb_breakpoint(t: &Context, pages: &str) -> Result<()> {
    let mut session = waiting(t, "crashes_when_told.c", &["--pages", pages])?;
    let mut command = gdb(&["break innermost", "continue", "backtrace", "print words[1]", "delete", "detach"]);
    command.arg("-p").arg(session.pid().to_string());
    let mut gdb = t.session(command)?;
    poll_until(Duration::from_secs(30), "gdb to let it go on", || {
        let runs = process_field(session.pid(), "State").is_some_and(|state| state.starts_with('S'));
        runs && gdb.stdout_so_far().contains("Breakpoint 1 at")
    })?;
    session.send("go on\n")?;
    poll_until(Duration::from_secs(30), "gdb's end", || gdb.has_ended().unwrap_or(true))?;
    let output = gdb.finish()?.success()?;
    t.keep(&output);
    for word in ["Breakpoint 1, innermost (", "middle (argument=7)", "main ("] {
        ensure!(output.stdout.contains(word), "`{word}` is not shown:\n{}\n{}", output.stdout, output.stderr);
    }
    ensure!(session.finish()?.ending == Ending::Signal(Signal::SIGABRT as i32), "it did not go on");
    Ok(())
}

/// Sections, line numbers, disassembly and data, relative to the base.
fn gdb_same_as_plain(t: &Context, pages: &str) -> Result<()> {
    let mut shown = Vec::new();
    for lifted in [false, true] {
        let session = if lifted {
            waiting(t, "crashes_when_told.c", &["--pages", pages])?
        } else {
            let session = t.session(Program::named("crashes_when_told.c")?.command()?)?;
            session.wait_for_line("ready")?;
            session
        };
        let mut command = gdb(&[
            "frame function main",
            "info line middle",
            "x/6i (char*)middle - 0",
            "x/4xg large_data",
            "x/4xg large_rodata",
            "x/2xg large_bss + 1000",
            "print (char*)&large_data - (char*)middle",
        ]);
        command.arg("-p").arg(session.pid().to_string());
        let text = t.run(command)?.success()?.stdout;
        let start = text.find("main (").with_context(|| format!("no frame of main:\n{text}"))?;
        // Addresses differ from run to run; the low twelve bits do not.
        let lines = text[start..].lines().filter(|line| !line.starts_with("[Inferior"));
        shown.push(without_addresses(&lines.collect::<Vec<_>>().join("\n")));
    }
    ensure!(shown[0] == shown[1], "plain\n{}\nlifted\n{}", shown[0], shown[1]);
    ensure!(shown[0].contains("middle") && shown[0].contains("9e3779b97f4a7c15"), "gdb shows nothing:\n{}", shown[0]);
    Ok(())
}

/// Hexadecimal numbers that are user-space addresses, cut to the part within a base page.
fn without_addresses(text: &str) -> String {
    let mut parts = text.split("0x");
    let mut result = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(part.len());
        let value = u64::from_str_radix(&part[..digits], 16).unwrap_or(0);
        let is_address = (0x5000_0000_0000..0x8000_0000_0000).contains(&value);
        result += &if is_address { format!("0x…{:03x}", value & 0xfff) } else { format!("0x{value:x}") };
        result += &part[digits..];
    }
    result
}

fn strace(t: &Context, pages: &str) -> Result<()> {
    let mut session = waiting(t, "pie_by_default.c", &["--pages", pages])?;
    let log = t.folder().join("strace.log");
    let mut command = Command::new("strace");
    command.arg("-o").arg(&log).arg("-p").arg(session.pid().to_string());
    let tracer = t.session(command)?;
    poll_until(Duration::from_secs(10), "strace to attach", || {
        process_field(session.pid(), "TracerPid").is_some_and(|tracer| tracer != "0")
    })?;
    session.send("go on\n")?;
    session.finish()?.success()?;
    tracer.finish()?;
    let log = fs::read_to_string(log)?;
    for word in ["read(0, ", "write(1, \"code sums to", "exit_group(0)", "+++ exited with 0 +++"] {
        ensure!(log.contains(word), "`{word}` is not in the log:\n{log}");
    }
    Ok(())
}

/// The kernel writes the core file into the current folder, if its pattern is the plain one.
fn core_file(folder: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?.flatten();
    entries
        .map(|entry| entry.path())
        .find(|path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("core")))
}

fn core_dump(t: &Context, pages: &str) -> Result<()> {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern")?;
    ensure!(!pattern.starts_with(['|', '/', '@']), "core_pattern is {pattern}: put `core` there for this test");
    let program = Program::named("crashes_when_told.c")?;
    let mut shown = Vec::new();
    for lifted in [false, true] {
        let folder = t.folder().join(if lifted { "lifted" } else { "plain" });
        fs::create_dir(&folder)?;
        let command = program.command()?;
        let start = if lifted { t.lifted(&["-q", "--pages", pages], &command)? } else { command };
        let words: Vec<String> = std::iter::once(start.get_program())
            .chain(start.get_args())
            .map(|word| format!("'{}'", word.to_string_lossy()))
            .collect();
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("ulimit -c unlimited; exec {}", words.join(" "))]).current_dir(&folder);
        let mut session = t.session(shell)?;
        session.wait_for_line("ready")?;
        session.send("crash\n")?;
        ensure!(session.finish()?.ending == Ending::Signal(Signal::SIGABRT as i32), "it did not crash");
        let core = core_file(&folder).context("no core file")?;
        let mut command = gdb(&[
            "backtrace",
            "frame function innermost",
            "print *state",
            "print state->text",
            "x/3xg words",
            "print large_bss[100000]",
        ]);
        command.arg(program.build()?).arg(&core);
        let text = t.run(command)?.success()?.stdout;
        let start = text.find("innermost (").with_context(|| format!("no frame of innermost:\n{text}"))?;
        shown.push(without_addresses(&text[start..]));
        fs::remove_file(core)?;
    }
    for word in ["middle (", "main (", "number = 42", "a text in rodata"] {
        ensure!(shown[1].contains(word), "`{word}` is not shown:\n{}", shown[1]);
    }
    ensure!(shown[0] == shown[1], "plain\n{}\nlifted\n{}", shown[0], shown[1]);
    Ok(())
}

/// The map of a process, which may be written a moment after the program has gone on.
fn map_of(pid: u32) -> Result<String> {
    poll_until(Duration::from_secs(5), "the perf map", || Path::new(&format!("/tmp/perf-{pid}.map")).exists())?;
    fs::read_to_string(format!("/tmp/perf-{pid}.map")).with_context(|| format!("no /tmp/perf-{pid}.map"))
}

/// A line of the map whose symbol contains the name: start, size.
fn entry_of(map: &str, name: &str) -> Result<(u64, u64)> {
    let line = map.lines().find(|line| line.contains(name)).with_context(|| format!("no {name} in the map"))?;
    let mut fields = line.split(' ');
    let mut number = || Ok::<_, anyhow::Error>(u64::from_str_radix(fields.next().context("a field")?, 16)?);
    Ok((number()?, number()?))
}

/// The option at the start and the command later must write the same, with names for people, at the right addresses.
fn perf_map_demangled(t: &Context, pages: &str) -> Result<()> {
    let session = waiting(t, "spins_in_a_named_function.cc", &["--pages", pages, "--perf-map"])?;
    let pid = session.pid();
    let by_option = map_of(pid)?;
    fs::remove_file(format!("/tmp/perf-{pid}.map"))?;
    t.run(t.pagelift(&["perf-map", &pid.to_string()])?)?.success()?;
    let by_command = map_of(pid)?;
    fs::remove_file(format!("/tmp/perf-{pid}.map"))?;
    ensure!(by_option == by_command, "the two maps differ:\n{by_option}\n{by_command}");
    let (start, size) = entry_of(&by_command, "kitchen::bowl::stir_for_a_while")?;
    let mut command = gdb(&["info symbol main", "print/x (long)&'kitchen::bowl::stir_for_a_while'"]);
    command.arg("-p").arg(pid.to_string());
    let shown = if pagelift_tests::command_exists("gdb") { t.run(command)?.stdout } else { format!("{start:#x}") };
    ensure!(shown.contains(&format!("{start:#x}")), "gdb sees it elsewhere than {start:#x}:\n{shown}");
    ensure!(size > 8 && size < 4096, "a size of {size} bytes");
    Ok(())
}

fn perf_report(t: &Context, pages: &str) -> Result<()> {
    let mut session = waiting(t, "spins_in_a_named_function.cc", &["--pages", pages, "--perf-map"])?;
    let pid = session.pid();
    let data = t.folder().join("perf.data");
    let perf = || {
        let mut command = Command::new("perf");
        command.arg("--buildid-dir").arg(t.folder().join("perf-cache"));
        command
    };
    let mut record = perf();
    record.args(["record", "-q", "-e", "cpu-clock", "-F", "500", "-g", "-o"]).arg(&data).args(["-p", &pid.to_string()]);
    record.args(["--", "sleep", "1"]);
    session.send("go on\n")?;
    let recorded = t.run(record)?;
    if recorded.ending != Ending::Exit(0) {
        bail!("perf cannot record here: {}", recorded.stderr);
    }
    let mut report = perf();
    report.args(["report", "--stdio", "--no-children", "-g", "none", "-F", "overhead,symbol", "-i"]).arg(&data);
    let report = t.run(report)?.success()?.stdout;
    let line = report.lines().find(|line| line.contains('%')).with_context(|| format!("no sample:\n{report}"))?;
    ensure!(line.contains("stir_for_a_while"), "the first symbol is `{line}`:\n{report}");
    let share: f64 = line.trim().split('%').next().context("a share")?.trim().parse()?;
    ensure!(share > 90.0, "only {share} % of the samples are resolved:\n{report}");
    drop(session);
    fs::remove_file(format!("/tmp/perf-{pid}.map")).ok();
    Ok(())
}

/// As distributions ship it: the program stripped, its symbols in a file of their own that the build-id leads to.
fn separate_debug_file(t: &Context, pages: &str) -> Result<()> {
    // Both ways of lifting use the same program, and so the same file.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    let original = Program::named("spins_in_a_named_function.cc")?.build()?;
    let (stripped, debug) = (t.folder().join("stripped"), t.folder().join("symbols.debug"));
    let objcopy = |option: &str, to: &Path| -> Result<()> {
        let mut command = Command::new("objcopy");
        command.arg(option).arg(&original).arg(to);
        t.run(command)?.success().map(drop)
    };
    objcopy("--strip-all", &stripped)?;
    objcopy("--only-keep-debug", &debug)?;
    let image = address_space::ElfImage::parse(&*fs::read(&stripped)?)?;
    let id = image.build_id.context("no build-id")?;
    let folder = Path::new("/usr/lib/debug/.build-id").join(&id[..2]);
    if fs::create_dir_all(&folder).is_err() {
        ensure!(!pagelift_tests::is_root(), "{} cannot be made", folder.display());
        return Ok(());
    }
    let place = folder.join(format!("{}.debug", &id[2..]));
    fs::copy(&debug, &place)?;
    let result = map_of_stripped(t, &stripped, pages);
    fs::remove_file(&place)?;
    fs::remove_dir(folder).ok();
    let map = result?;
    entry_of(&map, "kitchen::bowl::stir_for_a_while")?;
    Ok(())
}

fn map_of_stripped(t: &Context, program: &Path, pages: &str) -> Result<String> {
    let session = t.session(t.lifted(&["--pages", pages, "--perf-map"], &Command::new(program))?)?;
    session.wait_for_line("ready")?;
    session.wait_for_stderr(" MiB on ")?;
    let map = map_of(session.pid())?;
    fs::remove_file(format!("/tmp/perf-{}.map", session.pid()))?;
    Ok(map)
}
