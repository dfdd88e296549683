//! gdb, strace, core dumps and perf on lifted programs: they show the same as for a plain program.

mod perf;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;
use test_support::{
    Context, Ending, Need, Program, Session, Test, TestStore, default_huge_page, main_of, poll_until, process_field,
    test_case, tests_folder,
};

fn main() -> ExitCode {
    let gdb_tests: [(&str, Body); 3] = [
        ("gdb_shows_the_backtrace", gdb_backtrace),
        ("gdb_stops_at_a_breakpoint", gdb_breakpoint),
        ("gdb_shows_what_it_shows_of_a_plain_program", gdb_same_as_plain),
    ];
    let mut tests: Vec<Test> = Vec::new();
    for (name, body) in gdb_tests {
        tests.extend(each_way(name, "gdb", &Way::ALL, body));
    }
    tests.extend(each_way("strace_follows", "strace", &Way::ALL, strace));
    tests.extend(each_way("core_dump_has_its_backtrace", "gdb", &Way::AT_START, core_dump));
    tests.extend(perf::tests());
    let needs = ["java", "jhsdb"].map(|command| Need::Command(command.into())).into_iter();
    let needs = needs.chain([Need::Root, Need::Thp, Need::Machine("x86_64".into())]).collect();
    tests.push(test_case("jhsdb_finds_the_virtual_machine", needs, jhsdb));
    main_of(tests)
}

type Body = fn(&Context, Way) -> Result<()>;

/// How a program is lifted.
#[derive(Clone, Copy)]
struct Way {
    name: &'static str,
    pages: &'static str,
    /// The program is lifted while it runs, not at its start.
    attach: bool,
}

impl Way {
    const ALL: [Self; 5] = [
        Self { name: "thp", pages: "thp", attach: false },
        Self { name: "hugetlb", pages: "hugetlb", attach: false },
        Self { name: "image", pages: "image", attach: false },
        Self { name: "attach_thp", pages: "thp", attach: true },
        Self { name: "attach_image", pages: "image", attach: true },
    ];
    const AT_START: [Self; 3] = [Self::ALL[0], Self::ALL[1], Self::ALL[2]];
    const BY_COPY: [Self; 2] = [Self::ALL[0], Self::ALL[1]];
    const BY_IMAGE: [Self; 2] = [Self::ALL[2], Self::ALL[4]];

    fn needs(self, command: &str) -> Vec<Need> {
        let mut needs = vec![Need::Command(command.into()), Need::Command("gcc".into())];
        needs.push(if self.pages == "hugetlb" { Need::Pool(96 << 20) } else { Need::Thp });
        if self.attach || self.pages == "image" {
            needs.push(Need::Root);
        }
        if self.attach {
            // `attach` supports only this architecture so far.
            needs.push(Need::Machine("x86_64".into()));
        }
        needs
    }

    fn store(self, t: &Context) -> Result<Option<TestStore>> {
        (self.pages == "image").then(|| TestStore::of(t, "256M")).transpose()
    }
}

fn each_way(name: &str, command: &str, ways: &[Way], body: Body) -> Vec<Test> {
    let one = |way: &Way| {
        let way = *way;
        test_case(format!("{name}/{}", way.name), way.needs(command), move |t| body(t, way))
    };
    ways.iter().map(one).collect()
}

/// A lifted program, and the store of its images, if there is one.
struct Lifted {
    session: Session,
    store: Option<TestStore>,
}

/// A lifted program that waits after `ready`.
fn waiting(t: &Context, name: &str, way: Way, options: &[&str]) -> Result<Lifted> {
    lift(t, &Program::named(name)?.command()?, way, options)
}

fn lift(t: &Context, program: &Command, way: Way, options: &[&str]) -> Result<Lifted> {
    let store = way.store(t)?;
    let options = [&["--pages", way.pages], options].concat();
    let with_store = |mut command: Command| {
        command.envs(store.iter().map(|store| ("PAGELIFT_STORE", &store.path)));
        command
    };
    let session = if way.attach {
        let mut plain = Command::new(program.get_program());
        plain.args(program.get_args());
        let session = t.session(plain)?;
        session.wait_for_line("ready")?;
        let pid = session.pid().to_string();
        let attach = [&["attach"], &options[..], &[&pid]].concat();
        let said = t.run(with_store(t.pagelift(&attach)?))?.success()?.stderr;
        ensure!(said.contains(" MiB on "), "it is not lifted: {said}");
        session
    } else {
        let session = t.session(with_store(t.lifted(&options, program)?))?;
        session.wait_for_line("ready")?;
        session.wait_for_stderr(" MiB on ").context("it is not lifted")?;
        session
    };
    if let Some(store) = &store {
        let maps = fs::read_to_string(format!("/proc/{}/maps", session.pid()))?;
        ensure!(maps.contains(&store.text()), "nothing is mapped from the store:\n{maps}");
    }
    Ok(Lifted { session, store })
}

fn gdb(commands: &[&str]) -> Command {
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-ex", "set debuginfod enabled off", "-ex", "set width 0"]);
    for command in commands {
        gdb.args(["-ex", command]);
    }
    gdb
}

fn gdb_backtrace(t: &Context, way: Way) -> Result<()> {
    let Lifted { mut session, store: _store } = waiting(t, "start/crashes_when_told.c", way, &[])?;
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

/// In private pages of the pool a breakpoint needs one page; the pool has free pages.
fn gdb_breakpoint(t: &Context, way: Way) -> Result<()> {
    let Lifted { mut session, store: _store } = waiting(t, "start/crashes_when_told.c", way, &[])?;
    let mut command = gdb(&["break innermost", "continue", "backtrace", "print words[1]", "delete", "detach"]);
    command.arg("-p").arg(session.pid().to_string());
    let mut gdb = t.session(command)?;
    poll_until(Duration::from_secs(120), "gdb to let it go on", || {
        let runs = process_field(session.pid(), "State").is_some_and(|state| state.starts_with('S'));
        runs && gdb.stdout_so_far().contains("Breakpoint 1 at")
    })?;
    session.send("go on\n")?;
    poll_until(Duration::from_secs(120), "gdb's end", || gdb.has_ended().unwrap_or(true))?;
    let output = gdb.finish()?.success()?;
    t.keep(&output);
    for word in ["Breakpoint 1, innermost (", "middle (argument=7)", "main ("] {
        ensure!(output.stdout.contains(word), "`{word}` is not shown:\n{}\n{}", output.stdout, output.stderr);
    }
    ensure!(session.finish()?.ending == Ending::Signal(Signal::SIGABRT as i32), "it did not go on");
    Ok(())
}

/// Compares sections, line numbers, disassembly and data, relative to the base.
fn gdb_same_as_plain(t: &Context, way: Way) -> Result<()> {
    let mut shown = Vec::new();
    for lifted in [false, true] {
        let Lifted { session, store: _store } = if lifted {
            waiting(t, "start/crashes_when_told.c", way, &[])?
        } else {
            let session = t.session(Program::named("start/crashes_when_told.c")?.command()?)?;
            session.wait_for_line("ready")?;
            Lifted { session, store: None }
        };
        let mut command = gdb(&[
            "frame function main",
            "info line middle",
            "x/6i middle",
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

/// Cuts hexadecimal numbers that are user-space addresses to the part within a base page.
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

fn strace(t: &Context, way: Way) -> Result<()> {
    let Lifted { mut session, store: _store } = waiting(t, "start/pie_by_default.c", way, &[])?;
    let log = t.folder().join("strace.log");
    let mut command = Command::new("strace");
    command.arg("-o").arg(&log).arg("-p").arg(session.pid().to_string());
    let tracer = t.session(command)?;
    // Waits until strace has stopped the program: a tracer that has only seized it sees no call.
    tracer.wait_for_stderr("attached")?;
    session.send("go on\n")?;
    session.finish()?.success()?;
    tracer.finish()?;
    let log = fs::read_to_string(log)?;
    for word in ["read(0, ", "write(1, \"code sums to", "exit_group(0)", "+++ exited with 0 +++"] {
        ensure!(log.contains(word), "`{word}` is not in the log:\n{log}");
    }
    Ok(())
}

/// The core file. The kernel writes it into the current folder if core_pattern is a plain name.
fn core_file(folder: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?.flatten();
    entries
        .map(|entry| entry.path())
        .find(|path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("core")))
}

fn core_dump(t: &Context, way: Way) -> Result<()> {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern")?;
    ensure!(!pattern.starts_with(['|', '/', '@']), "core_pattern is {pattern}: put `core` there for this test");
    let program = Program::named("start/crashes_when_told.c")?;
    let store = way.store(t)?;
    let (mut shown, mut sizes) = (Vec::new(), Vec::new());
    for lifted in [false, true] {
        let folder = t.folder().join(if lifted { "lifted" } else { "plain" });
        fs::create_dir(&folder)?;
        let command = program.command()?;
        let start = if lifted { t.lifted(&["-q", "--pages", way.pages], &command)? } else { command };
        let words: Vec<String> = std::iter::once(start.get_program())
            .chain(start.get_args())
            .map(|word| format!("'{}'", word.to_string_lossy()))
            .collect();
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("ulimit -c unlimited; exec {}", words.join(" "))]).current_dir(&folder);
        shell.envs(store.iter().map(|store| ("PAGELIFT_STORE", &store.path)));
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
            "x/6i middle",
            "x/4xg large_rodata + 100000",
            "print large_bss[100000]",
        ]);
        command.arg(program.build()?).arg(&core);
        let text = t.run(command)?.success()?.stdout;
        let start = text.find("innermost (").with_context(|| format!("no frame of innermost:\n{text}"))?;
        shown.push(without_addresses(&text[start..]));
        sizes.push(fs::metadata(&core)?.len());
        fs::remove_file(core)?;
    }
    for word in ["middle (", "main (", "number = 42", "a text in rodata"] {
        ensure!(shown[1].contains(word), "`{word}` is not shown:\n{}", shown[1]);
    }
    ensure!(shown[0] == shown[1], "plain\n{}\nlifted\n{}", shown[0], shown[1]);
    // Code and read-only data are in the program's file, but gdb does not read them there for transparent copies, so
    // these are dumped. Of a copy on the pool only the first huge page is dumped, with the file's headers; the ends of
    // mappings may differ, too.
    let most = sizes[0] + 2 * default_huge_page()?.bytes();
    ensure!(
        way.pages == "thp" || sizes[1] <= most,
        "the core file has {} bytes, of the plain program {}",
        sizes[1],
        sizes[0]
    );
    Ok(())
}

/// jhsdb assumes that the first mapping of libjvm.so has its ELF header.
fn jhsdb(t: &Context) -> Result<()> {
    let launcher = fs::canonicalize("/usr/bin/java")?;
    let mut java = Command::new(&launcher);
    java.args(["-Xmx64m", "-XX:+UseSerialGC"]).arg(tests_folder().join("file_source/programs/Waits.java"));
    let mut session = t.session(java)?;
    session.wait_for_line("ready")?;
    let shows = || -> Result<()> {
        let mut jinfo = Command::new(launcher.with_file_name("jhsdb"));
        jinfo.args(["jinfo", "--pid", &session.pid().to_string()]);
        let output = t.run(jinfo)?;
        ensure!(output.stdout.contains("java.vm.name = "), "{}\n{}", output.stdout, output.stderr);
        Ok(())
    };
    shows().context("plain")?;
    let attach = t.run(t.pagelift(&["attach", "--pages", "thp", &session.pid().to_string()])?)?.success()?;
    ensure!(attach.stderr.contains(" MiB on 2 MiB pages (thp)"), "{}", attach.stderr);
    shows().context("lifted")?;
    session.send("go on\n")?;
    session.finish()?.success()?;
    Ok(())
}
