//! Rights of Pagelift itself: commands that only read drop all other rights before they read data of other users, and
//! installed files are linked so that their memory cannot be changed into other code.

use anyhow::{Context as _, Result, ensure};
use nix::fcntl::OFlag;
use nix::unistd::{pipe2, read, write};
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;
use test_support::{
    Context, Ending, Need, Output, Program, Session, Test, main_of, pagelift_binary, poll_until, process_field,
    target_folder, test_case,
};

/// The capabilities that reading may need, by the numbers in linux/capability.h: DAC_READ_SEARCH, SYS_PTRACE,
/// CHECKPOINT_RESTORE, and SYS_ADMIN, which kernels before 5.9 require instead of CHECKPOINT_RESTORE.
const READING: u64 = 1 << 2 | 1 << 19 | 1 << 40 | 1 << 21;
/// Limit of a wait that only a hang reaches.
const LONG: Duration = Duration::from_secs(240);

fn main() -> ExitCode {
    let readelf = || vec![Need::Command("readelf".into())];
    let traced = || vec![Need::Command("strace".into())];
    let symbols = || [traced(), vec![Need::Root, Need::Command("gcc".into())]].concat();
    let mut tests: Vec<Test> = vec![
        test_case("confined/inspect_of_a_file", vec![], |t| {
            confined(t, 0, |_| vec!["inspect".into(), "/bin/sh".into()])
        }),
        test_case("confined/inspect_of_a_process", vec![], |t| confined(t, READING, |pid| vec!["inspect".into(), pid])),
        test_case("confined/doctor_of_a_command", vec![], |t| {
            confined(t, 0, |_| ["doctor", "--json", "--", "/bin/sh"].map(str::to_owned).to_vec())
        }),
        test_case("confined/doctor_of_a_process", vec![], |t| {
            confined(t, READING, |pid| ["doctor", "--json", &pid].map(str::to_owned).to_vec())
        }),
        test_case("confined/status_of_a_process", vec![], |t| confined(t, READING, |pid| vec!["status".into(), pid])),
        test_case("confined/status_of_all", vec![], |t| {
            confined(t, READING, |_| vec!["status".into(), "--json".into()])
        }),
        test_case("confined/cache_status", vec![Need::Thp], |t| {
            confined(t, READING, |_| vec!["cache".into(), "status".into(), "--json".into()])
        }),
        test_case("confined/perf_map_of_a_process", vec![], |t| {
            confined(t, READING, |pid| vec!["perf-map".into(), pid])
        }),
        test_case("confined/before_a_file_is_read", traced(), before_a_file_is_read),
        test_case("confined/before_symbols_are_read", symbols(), before_symbols_are_read),
        test_case("confined/before_symbols_are_read_for_attach", symbols(), before_symbols_are_read_for_attach),
        test_case("confined/works_on_a_user_s_private_file", vec![Need::Root], private_file),
        test_case("hardened/pagelift_is_position_independent", static_program(), position_independent),
    ];
    let files = [
        "release/pagelift",
        "release/pagelift-measure",
        "release/pagelift-demo-program",
        "release/libpagelift_heap.so",
        "release/libpagelift_trace.so",
        "library/libpagelift.so",
    ];
    for file in files {
        let path = target_folder().join(file);
        let needs = [readelf(), vec![Need::File(path.to_string_lossy().into_owned())]].concat();
        let name = format!("hardened/{}", file.rsplit('/').next().unwrap_or(file));
        tests.push(test_case(name, needs, move |t| hardened(t, &path)));
    }
    main_of(tests)
}

/// Needs of tests of the statically linked program, if `make` could link one.
fn static_program() -> Vec<Need> {
    let built = target_folder().join(format!("{}-unknown-linux-musl/program/pagelift", std::env::consts::ARCH));
    let release = target_folder().join("release/pagelift");
    let files = [built, release].map(|path| Need::File(path.to_string_lossy().into_owned()));
    [vec![Need::Command("readelf".into())], files.to_vec()].concat()
}

/// A full pipe: its writer is blocked until the pipe is read.
struct FullPipe {
    reader: OwnedFd,
    writer: Option<OwnedFd>,
    /// Bytes in the pipe.
    filled: usize,
}

impl FullPipe {
    fn new() -> Result<Self> {
        let (reader, writer) = pipe2(OFlag::O_CLOEXEC)?;
        // A separate open file of the same pipe: only this one is non-blocking.
        let own = fs::OpenOptions::new()
            .write(true)
            .open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&writer)))?;
        nix::fcntl::fcntl(&own, nix::fcntl::FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let mut filled = 0;
        loop {
            match write(&own, &[b'\n'; 4096]) {
                Ok(count) => filled += count,
                Err(nix::Error::EAGAIN) => break,
                Err(error) => return Err(error).context("filling a pipe"),
            }
        }
        Ok(Self { reader, writer: Some(writer), filled })
    }

    fn writer(&mut self) -> Result<Stdio> {
        Ok(self.writer.take().context("the pipe has been given away")?.into())
    }

    /// The bytes that were written after the filling, up to the end.
    fn rest(self) -> Result<String> {
        let mut all = Vec::new();
        let mut block = [0; 65536];
        loop {
            match read(self.reader.as_fd(), &mut block)? {
                0 => break,
                count => all.extend_from_slice(&block[..count]),
            }
        }
        Ok(String::from_utf8(all.split_off(self.filled))?)
    }
}

/// Ends a process when a test is over.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// While the command is blocked in its output, `/proc` shows its remaining rights.
fn confined(t: &Context, most: u64, arguments: impl Fn(String) -> Vec<String>) -> Result<()> {
    let mut sleeper = Command::new("sleep");
    sleeper.arg("1000");
    t.mark(&mut sleeper);
    let sleeper = Guard(sleeper.spawn()?);
    let mut pipe = FullPipe::new()?;
    let mut command = Command::new(pagelift_binary()?);
    command.args(arguments(sleeper.0.id().to_string())).stdout(pipe.writer()?).stderr(Stdio::piped());
    t.mark(&mut command);
    let mut running = Guard(command.spawn()?);
    drop(command);
    let pid = running.0.id();
    poll_until(LONG, "pagelift to wait for its reader", || waits_to_write(pid))?;
    let number = |field: &str| -> Result<u64> {
        let text = process_field(pid, field).with_context(|| format!("no {field}"))?;
        u64::from_str_radix(&text, 16).with_context(|| format!("{field}: {text}"))
    };
    for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
        let held = number(set)?;
        ensure!(held & !most == 0, "{set} is {held:#x}, of which {:#x} is not needed", held & !most);
    }
    ensure!(number("NoNewPrivs")? == 1, "it could get new privileges");
    ensure!(number("Seccomp")? == 2, "it has no filter");
    let printed = pipe.rest()?;
    let status = running.0.wait()?;
    ensure!(Ending::from(status) == Ending::Exit(0) && printed.len() > 20, "{status}: {printed}");
    Ok(())
}

/// True while the process is in write(2) or writev(2) to its standard output.
fn waits_to_write(pid: u32) -> bool {
    let text = fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    let mut words = text.split(' ');
    let call = words.next().and_then(|word| word.parse::<i64>().ok());
    [number_of_write(), number_of_writev()].map(Some).contains(&call) && words.next() == Some("0x1")
}

/// The number of write(2) (asm/unistd.h) on this machine.
fn number_of_write() -> i64 {
    if cfg!(target_arch = "x86_64") { 1 } else { 64 }
}

fn number_of_writev() -> i64 {
    if cfg!(target_arch = "x86_64") { 20 } else { 66 }
}

/// The filter is active before the first byte of a file of another user is read.
fn before_a_file_is_read(t: &Context) -> Result<()> {
    let file = t.folder().join("hostile");
    fs::copy("/bin/sh", &file)?;
    let trace = t.folder().join("trace");
    let mut command = Command::new("strace");
    command.args(["-f", "-o"]).arg(&trace).arg(pagelift_binary()?).arg("inspect").arg(&file);
    t.run(command)?.success()?;
    let text = fs::read_to_string(&trace)?;
    let lines: Vec<&str> = text.lines().collect();
    let name = format!("\"{}\"", file.display());
    let opened = lines.iter().position(|line| line.contains("open") && line.contains(&name) && !line.contains("= -1"));
    let opened = opened.context("the file was not opened")?;
    let descriptor_of = |line: &str| line.rsplit("= ").next().unwrap_or_default().trim().to_owned();
    // The path is opened first, and the file by its descriptor.
    let by_descriptor = format!("/proc/self/fd/{}\"", descriptor_of(lines[opened]));
    let opened = lines[opened..].iter().position(|line| line.contains(&by_descriptor)).map_or(opened, |at| opened + at);
    let descriptor = &descriptor_of(lines[opened]);
    let reads =
        |line: &&str| ["pread64", "read", "readv", "mmap"].iter().any(|call| is_call_on(line, call, descriptor));
    let first = lines[opened..].iter().position(reads).context("the file was not read")? + opened;
    ensure!(lines[..first].iter().any(|line| installs_filter(line)), "read before it was confined: {}", lines[first]);
    let reopened = lines[opened + 1..].iter().any(|line| line.contains("open") && line.contains(&name));
    ensure!(!reopened, "the file is opened twice: it may be another one then");
    Ok(())
}

fn installs_filter(line: &str) -> bool {
    (line.contains("seccomp(") || line.contains("PR_SET_SECCOMP")) && line.ends_with("= 0")
}

/// The thread that reads symbols from a program's file has a filter, and the thread that writes the map has the rights
/// of the program's user.
fn before_symbols_are_read(t: &Context) -> Result<()> {
    let mut session = with_code_that_has_no_file(t)?;
    let pid = session.pid().to_string();
    let Traced { output, threads } = traced(t, &["perf-map", &pid])?;
    let readers: Vec<&String> = threads.iter().filter(|trace| trace.lines().any(opens_the_program)).collect();
    ensure!(!readers.is_empty(), "no file of the program is opened");
    for trace in readers {
        ensure!(confined_before_it_opens(trace), "opened by a thread without a filter:\n{trace}");
    }
    writer_has_no_capabilities(&threads)?;
    let map = output.stdout.split(':').next().context("no map is named")?;
    fs::remove_file(map)?;
    session.send("go on\n")?;
    ensure!(session.finish()?.ending == Ending::Exit(0), "the program did not go on");
    Ok(())
}

/// `attach` itself needs its rights to lift: another thread reads the symbols.
fn before_symbols_are_read_for_attach(t: &Context) -> Result<()> {
    let session = t.session(Program::named("start/spins_in_a_named_function.cc")?.command()?)?;
    session.wait_for_line("ready")?;
    let pid = session.pid().to_string();
    let Traced { threads, .. } = traced(t, &["attach", "--pages", "thp", "--perf-map", &pid])?;
    let confined = |trace: &&String| trace.lines().any(opens_the_program) && confined_before_it_opens(trace);
    ensure!(threads.iter().any(|trace| confined(&trace)), "no thread with a filter opens the program");
    writer_has_no_capabilities(&threads)?;
    fs::remove_file(format!("/tmp/perf-{pid}.map"))?;
    session.signal(nix::sys::signal::Signal::SIGKILL)?;
    session.finish()?;
    Ok(())
}

/// Starts a program that has replaced some of its code by a copy. It waits for a line.
fn with_code_that_has_no_file(t: &Context) -> Result<Session> {
    let mut command = Program::named("cli/maps_a_file.c")?.command()?;
    command.args(["/dev/null", "0", "without"]);
    let session = t.session(command)?;
    session.wait_for_line("ready")?;
    Ok(session)
}

/// The result of a command, and the system calls of each thread.
struct Traced {
    output: Output,
    threads: Vec<String>,
}

fn traced(t: &Context, arguments: &[&str]) -> Result<Traced> {
    let mut command = Command::new("strace");
    // A file for each thread, in which no call is divided.
    command.args(["-ff", "-o"]).arg(t.folder().join("trace")).arg(pagelift_binary()?).args(arguments);
    let output = t.run(command)?.success()?;
    let is_trace = |path: &Path| path.file_stem().is_some_and(|stem| stem == "trace");
    let paths = fs::read_dir(t.folder())?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let threads = paths.iter().filter(|path| is_trace(path)).map(fs::read_to_string).collect::<Result<_, _>>()?;
    Ok(Traced { output, threads })
}

/// O_PATH opens nothing that could be read.
fn opens_the_program(line: &str) -> bool {
    let is_named = ["/map_files/", "/exe\"", "/smaps\"", "/maps\""].iter().any(|file| line.contains(file));
    is_named && line.contains("open") && !line.contains("O_PATH")
}

fn confined_before_it_opens(trace: &str) -> bool {
    trace.lines().take_while(|line| !opens_the_program(line)).any(installs_filter)
}

fn writer_has_no_capabilities(threads: &[String]) -> Result<()> {
    let writer = threads.iter().find(|trace| trace.contains("renameat")).context("no map is written")?;
    let before: Vec<&str> = writer.lines().take_while(|line| !line.contains("openat2(")).collect();
    let dropped = |line: &&str| line.contains("capset(") && line.contains("permitted=0") && line.ends_with("= 0");
    ensure!(before.iter().any(dropped), "the thread that writes has kept its capabilities:\n{writer}");
    Ok(())
}

fn is_call_on(line: &str, call: &str, descriptor: &str) -> bool {
    let rest = line.split_once(&format!(" {call}(")).map(|(_, rest)| rest);
    rest.is_some_and(|rest| rest.starts_with(&format!("{descriptor},")))
}

/// Root may read a program in a folder that only its owner may enter, and drops that right only afterwards.
fn private_file(t: &Context) -> Result<()> {
    let folder = t.folder().join("private");
    fs::create_dir(&folder)?;
    let file = folder.join("program");
    fs::copy("/bin/sh", &file)?;
    for path in [&file, &folder] {
        std::os::unix::fs::chown(path, Some(65534), Some(65534))?;
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
    }
    let output = t.run(t.pagelift(&["inspect", &file.to_string_lossy()])?)?.success()?;
    ensure!(output.stdout.contains("Heap: "), "{}", output.stdout);
    ensure!(output.stderr.is_empty(), "{}", output.stderr);
    Ok(())
}

fn readelf(t: &Context, file: &Path) -> Result<String> {
    let mut command = Command::new("readelf");
    command.args(["-hldW"]).arg(file);
    Ok(t.run(command)?.success()?.stdout)
}

fn position_independent(t: &Context) -> Result<()> {
    let text = readelf(t, &target_folder().join("release/pagelift"))?;
    ensure!(text.contains("DYN (Position-Independent Executable file)"), "{text}");
    ensure!(!text.contains("INTERP"), "it is not static: {text}");
    Ok(())
}

/// Relocated data is read-only at once (RELRO, BIND_NOW), the stack is not executable, and no segment is both writable
/// and executable.
fn hardened(t: &Context, file: &Path) -> Result<()> {
    let text = readelf(t, file)?;
    let segments: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    let flags = |kind: &str| -> Vec<String> {
        // Type, offset, two addresses, two sizes, flags (with blanks between), alignment.
        let of_kind = segments.iter().filter(|words| words.len() > 7 && words[0] == kind);
        of_kind.map(|words| words[6..words.len() - 1].concat()).collect()
    };
    ensure!(flags("GNU_RELRO") == ["R"], "RELRO is {:?} in {text}", flags("GNU_RELRO"));
    ensure!(flags("GNU_STACK") == ["RW"], "the stack is {:?} in {text}", flags("GNU_STACK"));
    let loaded = flags("LOAD");
    ensure!(loaded.iter().any(|flags| flags == "RE") && !loaded.iter().any(|flags| flags.contains("WE")), "{loaded:?}");
    let dynamic = |word: &str| text.lines().any(|line| line.contains("(FLAGS") && line.contains(word));
    ensure!(dynamic("NOW"), "it is not bound at once: {text}");
    ensure!(!text.contains("TEXTREL"), "{text}");
    Ok(())
}
