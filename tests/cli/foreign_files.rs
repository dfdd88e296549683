//! Files that a user's process names or maps, when root reads them: root reads only files that the user could read, and
//! does not wait for a file system that the user serves.

use anyhow::{Context as _, Result, ensure};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};
use test_support::{Context, Ending, Need, Program, SilentServer, Test, copy_program, main_of, poll_until, test_case};

/// The user that the hostile program runs as.
const NOBODY: u32 = 65534;
/// Longer than the time limit of any single read.
const PATIENCE: Duration = Duration::from_secs(120);
/// A function of the program that only its symbol table names.
const FUNCTION: &str = "code";

fn main() -> ExitCode {
    let root = || vec![Need::Root, Need::Command("gcc".into())];
    let objcopy = || [root(), vec![Need::Command("objcopy".into())]].concat();
    let fuse =
        || [root(), vec![Need::File("/dev/fuse".into()), Need::File("/usr/include/linux/fuse.h".into())]].concat();
    let commands: &[(&str, &[&str])] = &[
        ("status", &["status", "PID"]),
        ("status_of_all", &["status"]),
        ("inspect", &["inspect", "PID"]),
        ("doctor", &["doctor", "PID"]),
        ("perf-map", &["perf-map", "PID"]),
        ("attach", &["attach", "PID"]),
        ("detach", &["detach", "PID"]),
        ("stat", &["stat", "-p", "PID", "--for", "1"]),
        ("cache_status", &["cache", "status"]),
        ("cache_status_of_the_file", &["cache", "status", "FILE"]),
        ("cache_prepare", &["cache", "prepare", "FILE"]),
        ("cache_keep", &["cache", "keep", "--once", "--config", "LIST"]),
        ("inspect_of_the_file", &["inspect", "FILE"]),
        ("align", &["align", "FILE"]),
        ("shootdowns", &["shootdowns", "-p", "PID", "--for", "1"]),
    ];
    let silent = |&(name, words): &(&str, &'static [&'static str])| {
        test_case(format!("silent_server/{name}"), fuse(), move |t| silent_server(t, words))
    };
    let of_processes = commands.iter().filter(|(_, words)| words.contains(&"PID"));
    let again: (&str, &'static [&'static str]) = ("estimate", &["estimate", "-p", "PID", "--again"]);
    let silent_root = |&(name, words): &(&str, &'static [&'static str])| {
        test_case(format!("silent_root/{name}"), fuse(), move |t| silent_root(t, words))
    };
    let roots: Vec<Test> = of_processes.chain([&again]).map(silent_root).collect();
    let symbols: Vec<Test> = vec![
        test_case("symbols/a_debug_file_that_the_user_may_read", objcopy(), |t| symbols(t, 0o644, Place::Beside, true)),
        test_case("symbols/a_debug_file_of_roots_own", objcopy(), |t| symbols(t, 0o600, Place::Beside, false)),
        test_case("symbols/a_link_to_a_debug_file_of_roots_own", objcopy(), |t| {
            symbols(t, 0o600, Place::Linked, false)
        }),
        test_case("symbols/a_link_out_of_the_root_folder", objcopy(), |t| symbols(t, 0o600, Place::OutOfRoot, false)),
        test_case("symbols/a_link_of_proc_out_of_the_root_folder", objcopy(), |t| {
            symbols(t, 0o644, Place::ThroughProc, false)
        }),
        test_case("symbols/a_program_that_may_only_be_executed", objcopy(), unreadable_program),
    ];
    let numbers = test_case("numbers_of_another_namespace", vec![Need::Root], numbers_of_another_namespace);
    main_of(symbols.into_iter().chain([numbers]).chain(commands.iter().map(silent)).chain(roots).collect())
}

/// Location of the debug file.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Beside,
    Linked,
    /// The program has a separate root folder, and an absolute link in that folder names a file outside.
    OutOfRoot,
    /// As before, with the machine's `/proc` mounted in the root folder: the link leads through `/proc/self/root`,
    /// which is the reader's own root for each reader.
    ThroughProc,
}

fn objcopy(arguments: &[&str], files: &[&Path]) -> Result<()> {
    let mut command = Command::new("objcopy");
    ensure!(command.args(arguments).args(files).status()?.success(), "objcopy {arguments:?}");
    Ok(())
}

/// A program without symbols, and its debug file.
fn stripped(t: &Context) -> Result<(PathBuf, PathBuf)> {
    let whole = Program::named("cli/maps_a_file.c")?.build()?;
    let folder = t.folder().join("programs");
    fs::create_dir(&folder)?;
    let (program, debug) = (folder.join("program"), folder.join("program.debug"));
    objcopy(&["--only-keep-debug"], &[&whole, &debug])?;
    copy_program(t, &whole, &program)?;
    objcopy(&["--strip-all", &format!("--add-gnu-debuglink={}", debug.display())], &[&program])?;
    fs::set_permissions(&program, Permissions::from_mode(0o755))?;
    Ok((program, debug))
}

/// Starts the program as a user, in the root folder if one is given. Returns the map that root writes for the program.
fn map_of(t: &Context, program: &Path, root: Option<&Path>) -> Result<String> {
    let mut command = match root {
        Some(root) => {
            // The mount disappears with the program.
            let mut command = Command::new("unshare");
            let script = "mount --bind /proc \"$1/proc\" && user=$2 root=$1 && shift 2 && \
                          exec chroot --userspec=\"$user\" \"$root\" \"$@\"";
            command.args(["--mount", "sh", "-c", script, "sh"]).arg(root).arg(format!("{NOBODY}:{NOBODY}"));
            command
        }
        None => {
            let mut command = Command::new("setpriv");
            command.args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"), "--clear-groups".to_owned()]);
            command
        }
    };
    command.arg(program).args(["/dev/null", "0", "without"]);
    let mut session = t.session(command)?;
    session.wait_for_line("ready")?;
    let pid = session.pid();
    let output = t.run(t.pagelift(&["perf-map", &pid.to_string()])?)?.success()?;
    let place = root.unwrap_or(Path::new("/")).join(format!("tmp/perf-{pid}.map"));
    let map = fs::read_to_string(&place).with_context(|| format!("{}: {output:?}", place.display()))?;
    fs::remove_file(&place)?;
    session.send("go on\n")?;
    ensure!(session.finish()?.ending == Ending::Exit(0), "the program did not go on");
    Ok(map)
}

fn has_function(map: &str) -> bool {
    map.lines().any(|line| line.split(' ').nth(2) == Some(FUNCTION))
}

fn symbols(t: &Context, mode: u32, place: Place, may: bool) -> Result<()> {
    let (program, debug) = stripped(t)?;
    fs::set_permissions(&debug, Permissions::from_mode(mode))?;
    let hidden = t.folder().join("hidden");
    if place != Place::Beside {
        fs::rename(&debug, &hidden)?;
        symlink(&hidden, &debug)?;
    }
    let map = if matches!(place, Place::OutOfRoot | Place::ThroughProc) {
        // The root folder holds everything that the program needs; the link leads outside.
        let root = t.folder().join("root");
        for folder in ["tmp", "dev", "lib", "proc"] {
            fs::create_dir_all(root.join(folder))?;
        }
        fs::set_permissions(root.join("tmp"), Permissions::from_mode(0o1777))?;
        fs::write(root.join("dev/null"), "")?;
        let inside = root.join("program");
        let source = tests_source("cli/programs/maps_a_file.c");
        let headers = tests_source("support/programs");
        let mut gcc = Command::new("gcc");
        gcc.args(["-O1", "-static", "-o"]).arg(&inside).arg("-I").arg(headers).arg(source);
        ensure!(gcc.status()?.success(), "gcc");
        objcopy(&["--only-keep-debug"], &[&inside, &hidden])?;
        fs::set_permissions(&hidden, Permissions::from_mode(0o644))?;
        fs::write(root.join("program.debug"), "")?;
        fs::copy(&hidden, root.join("program.debug"))?;
        let link = format!("--add-gnu-debuglink={}", root.join("program.debug").display());
        objcopy(&["--strip-all", &link], &[&inside])?;
        fs::set_permissions(&inside, Permissions::from_mode(0o755))?;
        fs::remove_file(root.join("program.debug"))?;
        let leads_to = if place == Place::ThroughProc { Path::new("/proc/self/root") } else { Path::new("/") };
        symlink(leads_to.join(hidden.strip_prefix("/")?), root.join("program.debug"))?;
        map_of(t, Path::new("/program"), Some(&root))?
    } else {
        map_of(t, &program, None)?
    };
    ensure!(has_function(&map) == may, "names of root's file, wanted {may}:\n{map}");
    Ok(())
}

fn tests_source(path: &str) -> PathBuf {
    test_support::workspace().join("tests").join(path)
}

/// If the user may only execute a file, its symbols are not read.
fn unreadable_program(t: &Context) -> Result<()> {
    let program = t.folder().join("program");
    copy_program(t, &Program::named("cli/maps_a_file.c")?.build()?, &program)?;
    fs::set_permissions(&program, Permissions::from_mode(0o711))?;
    let map = map_of(t, &program, None)?;
    ensure!(!has_function(&map), "names of a file that the user may not read:\n{map}");
    Ok(())
}

/// `unshare --pid` keeps the old /proc, which has other processes under the same PIDs. No message names one of these.
fn numbers_of_another_namespace(t: &Context) -> Result<()> {
    for words in [&["run", "--", "/bin/true"][..], &["attach", "1"], &["status", "1"], &["status"]] {
        let pagelift = t.pagelift(words)?;
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork"]).arg(pagelift.get_program()).args(pagelift.get_args());
        let output = t.run(command)?;
        let first = fs::read_to_string("/proc/1/comm")?;
        ensure!(output.stderr.contains("/proc shows another PID namespace"), "{words:?}: {output:?}");
        ensure!(!output.stderr.contains(first.trim()), "{words:?} names another process: {output:?}");
        ensure!(words[0] != "run" || output.ending == Ending::Exit(0), "{words:?}: {output:?}");
    }
    Ok(())
}

/// Mounts a file system that the other user serves; its file is a program.
fn mount(t: &Context) -> Result<SilentServer> {
    SilentServer::mount(t, &Program::named("cli/maps_a_file.c")?.build()?)
}

/// A user's program has mapped a file from a file system that the user serves, and its list of objects points into that
/// file. Then the file system stops answering.
fn silent_server(t: &Context, words: &[&str]) -> Result<()> {
    let served = mount(t)?;
    let mut program = Program::named("cli/names_what_never_comes.c")?.command()?;
    program.arg(served.folder().join("file")).uid(NOBODY).gid(NOBODY).current_dir("/");
    no_wait_for(t, served, program, words)
}

/// The root folder of a user's process is a file system that the user serves.
fn silent_root(t: &Context, words: &[&str]) -> Result<()> {
    let served = mount(t)?;
    let mut program = Program::named("cli/has_a_root_folder.c")?.command()?;
    program.arg(served.folder()).arg(NOBODY.to_string()).current_dir("/");
    no_wait_for(t, served, program, words)
}

/// Runs a command after the file system of a hostile program has stopped answering.
fn no_wait_for(t: &Context, mut served: SilentServer, program: Command, words: &[&str]) -> Result<()> {
    let hostile = t.session(program)?;
    hostile.wait_for_line("ready")?;
    let file = served.folder().join("file");
    let list = t.folder().join("list");
    fs::write(&list, format!("{}\n", file.display()))?;
    served.be_silent()?;
    let pid = hostile.pid().to_string();
    let named = |word: &&str| match *word {
        "PID" => pid.clone(),
        "FILE" => file.display().to_string(),
        "LIST" => list.display().to_string(),
        word => word.to_owned(),
    };
    let words: Vec<String> = words.iter().map(named).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let begun = Instant::now();
    let mut command = t.session_within(t.pagelift(&words)?, 3 * PATIENCE)?;
    let ended = poll_until(PATIENCE, "the command to end", || command.has_ended().unwrap_or(true));
    served.end();
    let output = command.finish()?;
    drop(hostile);
    t.keep(&output);
    ensure!(ended.is_ok(), "it waits for the file system: {output:?}");
    ensure!(!output.stderr.contains("Usage:"), "no such command: {}", output.stderr);
    ensure!(!output.stderr.contains("was given up"), "it waited {:?}: {}", begun.elapsed(), output.stderr);
    Ok(())
}
