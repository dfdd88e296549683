//! Programs on huge folios of their own file: they discard memory, fork, are probed and debugged, and real programs
//! work.

use crate::files::{own_copy_of, prepared};
use crate::{from_file, prepare, start};
use address_space::{Address, ElfImage};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};
use test_support::{
    Context, LATE_HELPER, MariadbServer, Need, Program, Session, Test, Uprobe, View, default_huge_page, make_small,
    repeat_upon, test_case, tests_folder, until_scheduled,
};

const FUNCTION: &str = "spin_amid_code";
const MARIADBD: &str = "/usr/sbin/mariadbd";
const CHROMIUM: &str = "/usr/lib/chromium";
const POSTGRES: &str = "/usr/lib/postgresql";
const LONG: Duration = Duration::from_secs(300);

/// Options of every start here.
const FROM_THE_FILE: [&str; 4] = ["--pages", "file", "--lift", "text,rodata"];

pub fn tests(needs: fn() -> Vec<Need>) -> Vec<Test> {
    let with = |command: &str| [needs(), vec![Need::Command(command.to_owned())]].concat();
    vec![
        test_case("what_is_discarded_comes_back", needs(), discarded),
        test_case("its_mappings_are_changed_as_those_of_a_plain_program", needs(), changed),
        test_case("children_share_it", needs(), children),
        test_case("uprobes_fire_in_it", with("nm"), probed),
        test_case("probes_with_semaphores_fire_in_it", with("nm"), semaphores),
        test_case("gdb_stops_in_it", with("gdb"), debugged),
        test_case("real/node", with("node"), node),
        test_case("real/java", with("java"), java),
        test_case("followed_programs_are_prepared_when_they_are_executed", with("g++"), followed),
        test_case("real/rustc", with("rustc"), rustc),
        test_case("real/chromium", with("chromium"), chromium),
        test_case("real/postgres", [needs(), vec![Need::File(POSTGRES.into())]].concat(), postgres),
        test_case("real/mariadbd", [needs(), vec![Need::File(MARIADBD.into())]].concat(), mariadbd),
    ]
}

/// A copy of a program, in huge folios as long as reclaim leaves them.
fn built(t: &Context, source: &str) -> Result<PathBuf> {
    let program = Program::named(source)?;
    let path = own_copy_of(t, &program.build()?, &program.name())?;
    prepare(t, &path)?;
    Ok(path)
}

/// Checks that a command's output is the same plain and lifted, and that all possible parts are on huge pages of the
/// file.
fn works_as_plain(t: &Context, command: &Command, input: &str) -> Result<()> {
    works_as_plain_on(t, command, input, None)
}

/// Like [`works_as_plain`], but checks the pages of a library if one is given.
fn works_as_plain_on(t: &Context, command: &Command, input: &str, library: Option<&Path>) -> Result<()> {
    let run = |command: Command, look: bool| -> Result<String> {
        let mut session = t.session_within(command, LONG)?;
        session.wait_for_line("ready")?;
        match library.filter(|_| look) {
            Some(library) => is_on_once_read(&session, library)?,
            None if look => is_on_its_file(&session)?,
            None => {}
        }
        session.send(input)?;
        let output = session.finish()?;
        t.keep(&output);
        Ok(output.success()?.stdout)
    };
    let lifted = run(t.lifted(&FROM_THE_FILE, command)?, true)?;
    let mut again = Command::new(command.get_program());
    again.args(command.get_args());
    let plain = run(again, false)?;
    ensure!(lifted == plain, "lifted it printed\n{lifted}\nplain\n{plain}");
    Ok(())
}

/// Checks that all whole blocks of the executable are on huge pages of its file.
fn is_on_its_file(session: &Session) -> Result<()> {
    let view = View::of(session.pid())?;
    let object = view.executable()?;
    is_on(&view, Path::new(&object.path), session)?;
    view.check_read_only_contents(object)
}

/// Like [`is_on`], after a read from outside, which maps the pages, too.
fn is_on_once_read(session: &Session, path: &Path) -> Result<()> {
    let view = View::of(session.pid())?;
    let object = view.objects.iter().find(|object| Path::new(&object.path) == path).context("not loaded")?;
    view.check_read_only_contents(object)?;
    is_on(&View::of(session.pid())?, path, session)
}

fn is_on(view: &View, path: &Path, session: &Session) -> Result<()> {
    let (huge, whole) = from_file(view, path, default_huge_page()?);
    ensure!(huge == whole && whole > 0, "{huge} of {whole} bytes are huge: {}", session.stderr_so_far());
    Ok(())
}

/// A discarded page is read from the page cache again, as in a plain program.
fn discarded(t: &Context) -> Result<()> {
    let path = built(t, "attach/discards_read_only_data.c")?;
    let mut session = start(t, &FROM_THE_FILE, &path)?;
    is_on_its_file(&session)?;
    for _ in 0..3 {
        session.send("discard\n")?;
        session.wait_for_line("discarded, the same")?;
    }
    session.send("end\n")?;
    session.finish()?.success()?;
    Ok(())
}

/// madvise, mlock and mprotect have the same results as in a plain program, and discarded pages have the file's
/// contents.
fn changed(t: &Context) -> Result<()> {
    works_as_plain(t, &Command::new(built(t, "file_source/changes_its_own_mappings.c")?), "go on\n")
}

fn children(t: &Context) -> Result<()> {
    works_as_plain(t, &Command::new(built(t, "start/fork_and_write.c")?), "\n")
}

/// A symbol of a program, as an offset in its file.
fn offset_of(path: &Path, symbol: &str) -> Result<u64> {
    let output = Command::new("nm").arg(path).output()?;
    let text = String::from_utf8(output.stdout)?;
    let line = text.lines().find(|line| line.ends_with(&format!(" {symbol}"))).context("no such symbol")?;
    let address = u64::from_str_radix(line.split(' ').next().unwrap_or_default(), 16)?;
    let file = fs::read(path)?;
    ElfImage::parse(&file[..])?.offset_of_address(Address(address)).context("the symbol is not in the file")
}

/// Starts the program that calls the function, on huge pages of its file.
fn spinning(t: &Context) -> Result<(PathBuf, Session)> {
    let path = built(t, "file_source/spins_in_large_code.c")?;
    let session = start(t, &FROM_THE_FILE, &path)?;
    is_on_its_file(&session)?;
    Ok((path, session))
}

fn done(session: Session) -> Result<()> {
    let output = session.finish()?.success()?;
    ensure!(output.stdout.ends_with("done 1\n"), "{}", output.stdout);
    Ok(())
}

/// A page with a probe is private to the process: the kernel splits only that huge page.
fn probed(t: &Context) -> Result<()> {
    let (path, mut session) = spinning(t)?;
    let probe = Uprobe::new(t, &path, offset_of(&path, FUNCTION)?)?;
    session.send("go on\n")?;
    done(session)?;
    let hits = probe.hits()?;
    ensure!(hits > 3, "{hits} hits");
    Ok(())
}

/// All huge pages of data are copies except for the one with the semaphore.
fn semaphores(t: &Context) -> Result<()> {
    let path = built(t, "file_source/has_probes_with_semaphores.c")?;
    let mut session = start(t, &["--pages", "file", "-v"], &path)?;
    is_on_its_file(&session)?;
    let view = View::of(session.pid())?;
    let copied: u64 = view.usages.iter().map(|usage| usage.anonymous_huge).sum();
    ensure!(copied >= 6 << 20, "only {copied} bytes of data are on huge pages: {}", session.stderr_so_far());
    let (place, semaphore) = (offset_of(&path, "place_of_probe")?, offset_of(&path, "place_semaphore")?);
    let probe = Uprobe::with_semaphore(t, &path, place, semaphore)?;
    session.send("go on\n")?;
    session.wait_for_line("10 in round 1")?;
    let hits = probe.hits()?;
    session.send("go on\n")?;
    session.wait_for_line("10 in round 2")?;
    let output = session.finish()?.success()?;
    let counted = output.stdout.contains("semaphore 1\n10 in round 1\nsemaphore 0\n10 in round 2\n");
    ensure!(hits == 10 && counted && !output.stdout.contains("differs"), "{hits} hits; {}", output.stdout);
    Ok(())
}

fn debugged(t: &Context) -> Result<()> {
    let (_, mut session) = spinning(t)?;
    session.send("go on\n")?;
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-ex", "set debuginfod enabled off", "-ex", &format!("break {FUNCTION}")]);
    gdb.args(["-ex", "continue", "-ex", "backtrace", "-ex", "delete", "-ex", "detach", "-p"]);
    gdb.arg(session.pid().to_string());
    let output = t.run(gdb)?.success()?;
    ensure!(output.stdout.contains(&format!("Breakpoint 1, {FUNCTION} (n=")), "{}", output.stdout);
    done(session)
}

fn node(t: &Context) -> Result<()> {
    let printed = Command::new("node").args(["-p", "process.execPath"]).output()?;
    let original = PathBuf::from(String::from_utf8(printed.stdout)?.trim());
    let copy = own_copy_of(t, &original, "node")?;
    let _held = prepared(t, std::slice::from_ref(&copy), 100)?;
    let mut command = Command::new(copy);
    command.arg(tests_folder().join("start/programs/real/node.js"));
    works_as_plain(t, &command, "go on\n")
}

/// The launcher loads the virtual machine after its entry: only the dynamic linker chooses its address.
fn java(t: &Context) -> Result<()> {
    let launcher = fs::canonicalize("/usr/bin/java")?;
    let home = launcher.parent().and_then(Path::parent).context("no folder")?;
    let library = home.join("lib/server/libjvm.so");
    let _held = prepared(t, std::slice::from_ref(&library), 100)?;
    let mut command = Command::new(launcher);
    command.args(["-Xmx64m", "-XX:+UseSerialGC"]).arg(tests_folder().join("file_source/programs/Waits.java"));
    works_as_plain_on(t, &command, "go on\n", Some(&library))
}

/// Checks that a command that ends by itself has the same output plain and lifted, with at least this many bytes on
/// huge pages of files.
fn ends_as_plain(t: &Context, command: &Command, least: u64) -> Result<()> {
    let report = t.folder().join("report");
    let path = report.to_string_lossy();
    let mut plain = Command::new(command.get_program());
    plain.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => plain.env(name, value),
            None => plain.env_remove(name),
        };
    }
    let plain = t.run_within(plain, LONG)?.success()?;
    let options = [&FROM_THE_FILE[..], &["--report", &path]].concat();
    let lifted = t.run_within(t.lifted(&options, command)?, LONG)?.success()?;
    ensure!(lifted.stdout == plain.stdout && !plain.stdout.is_empty(), "lifted it printed\n{}", lifted.stdout);
    let report: Value = serde_json::from_str(&fs::read_to_string(&report)?)?;
    let ranges = report["ranges"].as_array().context("the report has no ranges")?;
    let of_file = ranges.iter().filter(|range| range["source"] == "file");
    let address = |text: &Value| u64::from_str_radix(text.as_str()?.trim_start_matches("0x"), 16).ok();
    let covered = of_file.filter_map(|range| range["covered"].as_array()).flatten();
    let huge: u64 = covered.filter_map(|part| Some(address(&part["end"])? - address(&part["start"])?)).sum();
    let others: Vec<_> = ranges.iter().filter(|range| range["source"] != "file").collect();
    ensure!(huge >= least, "{huge} bytes are on huge pages of files, not so: {others:#?}\nof {report:#}");
    Ok(())
}

/// Nearly all code is in two libraries, whose addresses the dynamic linker chooses.
fn rustc(t: &Context) -> Result<()> {
    let printed = Command::new("rustc").args(["--print", "sysroot"]).output()?;
    let sysroot = PathBuf::from(String::from_utf8(printed.stdout)?.trim());
    // Other compilations map the toolchain's own files.
    let home = t.folder().join("toolchain");
    fs::create_dir_all(home.join("bin"))?;
    let mut copy = Command::new("sh");
    copy.args(["-c", "mkdir lib && cp -a \"$1\"/lib/*.so* lib && cp \"$1\"/bin/rustc bin && sync lib/*", "sh"]);
    copy.arg(&sysroot).current_dir(&home);
    t.run_within(copy, LONG)?.success()?;
    let is_library = |path: &PathBuf| path.metadata().is_ok_and(|file| file.is_file() && file.len() >= 4 << 20);
    let libraries = fs::read_dir(home.join("lib"))?.filter_map(|entry| Some(entry.ok()?.path())).filter(is_library);
    let libraries: Vec<PathBuf> = libraries.collect();
    let _held = prepared(t, &libraries, 50)?;
    let mut command = Command::new(home.join("bin/rustc"));
    // cargo sets this to the toolchain's own libraries.
    command.arg("-vV").env_remove("LD_LIBRARY_PATH");
    ends_as_plain(t, &command, 64 << 20)
}

/// No base suits both Chromium's code and its read-only data: the base suits the code. Its children are forks of a
/// process that it executes, and it has sandboxes, threads and its own allocator.
fn chromium(t: &Context) -> Result<()> {
    let home = t.folder().join("chromium");
    let mut copy = Command::new("cp");
    copy.args(["-a", CHROMIUM]).arg(&home);
    t.run_within(copy, LONG)?.success()?;
    let program = home.join("chromium");
    File::open(&program)?.sync_all()?;
    let _held = prepared(t, std::slice::from_ref(&program), 90)?;
    let shows = |profile: &str| {
        let mut command = Command::new(&program);
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]);
        command.arg(format!("--user-data-dir={}", t.folder().join(profile).display()));
        command.arg(format!("file://{}", tests_folder().join("suites/page.html").display()));
        command
    };
    let plain = t.run_within(shows("plain"), LONG)?.success()?;
    ensure!(plain.stdout.contains(">148933 primes<"), "{}", plain.stdout);
    let options = [&FROM_THE_FILE[..], &["--only", "chromium", "--follow-lifted", "--each"]].concat();
    let lifted = until_scheduled(t, || t.run_within(t.lifted(&options, &shows("lifted"))?, LONG)?.success())?;
    ensure!(lifted.stdout == plain.stdout, "lifted it printed\n{}\nplain\n{}", lifted.stdout, plain.stdout);
    let said = lifted.own_lines();
    let are_on_file = said.iter().all(|line| line.contains("chromium[") && line.contains("(file)"));
    ensure!(said.len() > 2 && are_on_file, "{said:#?}");
    Ok(())
}

fn postgres(t: &Context) -> Result<()> {
    let versions = fs::read_dir(POSTGRES)?.filter_map(|entry| Some(entry.ok()?.path().join("bin/postgres")));
    let original = versions.filter(|path| path.exists()).max().context("no postgres")?;
    let program = own_copy_of(t, &original, "postgres")?;
    prepare(t, &program)?;
    let mut command = Command::new(program);
    command.arg("--describe-config");
    ends_as_plain(t, &command, 2 << 20)
}

/// A copy of a compiler, in small folios of the page cache, and a source file.
fn compiler(t: &Context) -> Result<(PathBuf, PathBuf)> {
    let printed = Command::new("g++").arg("-print-prog-name=cc1plus").output()?;
    let original = PathBuf::from(String::from_utf8(printed.stdout)?.trim());
    let compiler = own_copy_of(t, &original, "cc1plus")?;
    make_small(&compiler)?;
    let source = t.folder().join("source.cc");
    fs::copy(tests_folder().join("start/programs/real/program.cc"), &source)?;
    Ok((compiler, source))
}

/// The driver, which executes this compiler.
fn driver(compiler: &Path, source: &Path, out: &Path) -> Command {
    let mut command = Command::new("g++");
    command.arg("-B").arg(compiler.parent().unwrap_or(Path::new("/"))).args(["-O1", "-std=c++17", "-S", "-o"]);
    command.arg(out).arg(source);
    command
}

fn same(t: &Context, one: &str, other: &str) -> Result<()> {
    let (one, other) = (fs::read(t.folder().join(one))?, fs::read(t.folder().join(other))?);
    ensure!(!one.is_empty() && one == other, "the outputs differ: {} and {} bytes", one.len(), other.len());
    Ok(())
}

/// The executed program is not known at the start, and its file is in small folios until then.
fn followed(t: &Context) -> Result<()> {
    let (compiler, source) = compiler(t)?;
    let plain = driver(&compiler, &source, &t.folder().join("plain.s"));
    t.run_within(plain, LONG)?.success()?;
    let options = [&FROM_THE_FILE[..], &["--only", "cc1plus"]].concat();
    // A busy disk or another preparation may take the whole time of the preparation.
    let reasons = [&LATE_HELPER[..], &["found the budget of", "that prepares the file for"]].concat();
    let output = repeat_upon(t, &reasons, || {
        make_small(&compiler)?;
        // The record of a failed attempt does not count for a file that was written since.
        File::open(&compiler)?.set_modified(SystemTime::now())?;
        let lifted = t.lifted(&options, &driver(&compiler, &source, &t.folder().join("lifted.s")))?;
        t.run_within(lifted, LONG)?.success()
    })?;
    let said = output.own_lines();
    ensure!(said.len() == 1 && said[0].contains("cc1plus[") && said[0].contains("(file)"), "{said:?}");
    same(t, "lifted.s", "plain.s")
}

fn mariadbd(t: &Context) -> Result<()> {
    let mut server = MariadbServer::prepare(t, "file")?;
    let program = own_copy_of(t, Path::new(MARIADBD), "mariadbd")?;
    prepare(t, &program)?;
    let mut command = Command::new(program);
    command.args(server.command().get_args());
    server.start(t.lifted(&FROM_THE_FILE, &command)?, LONG)?;
    let view = View::of(server.pid()?)?;
    let (huge, whole) = from_file(&view, Path::new(command.get_program()), default_huge_page()?);
    ensure!(huge == whole && whole >= 8 << 20, "{huge} of {whole} bytes are on the file");
    server.query("CREATE DATABASE d; USE d; CREATE TABLE t (a INT); INSERT INTO t SELECT seq FROM seq_1_to_1000")?;
    let sum = server.query("SELECT SUM(a) FROM d.t")?;
    ensure!(sum.trim() == "500500", "{sum}");
    server.shut_down()
}
