//! perf on lifted programs: symbols by maps and by the paths of images, and uprobes.

use crate::{Lifted, Way, each_way, gdb, lift, waiting};
use anyhow::{Context as _, Result, bail, ensure};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use test_support::{Context, Ending, Program, Session, Test, copy_program, poll_until};

/// The function of `calls_a_function_often.c`.
const FUNCTION: &str = "ring_the_bell";

pub fn tests() -> Vec<Test> {
    let mut tests = each_way("perf_map_is_demangled", "g++", &Way::BY_COPY, perf_map_demangled);
    tests.extend(each_way("perf_resolves_symbols", "perf", &Way::ALL, perf_report));
    tests.extend(each_way("perf_map_from_separate_debug_file", "objcopy", &Way::BY_COPY, separate_debug_file));
    tests.extend(each_way("uprobe_in_an_image", "perf", &Way::BY_IMAGE, uprobe_in_an_image));
    tests.extend(each_way("uprobe_that_stood_there_before", "perf", &Way::ALL, uprobe_before));
    tests
}

/// Reads the map of a process. It may be written a moment after the program continues.
fn map_of(pid: u32) -> Result<String> {
    poll_until(Duration::from_secs(120), "the perf map", || Path::new(&format!("/tmp/perf-{pid}.map")).exists())?;
    fs::read_to_string(format!("/tmp/perf-{pid}.map")).with_context(|| format!("no /tmp/perf-{pid}.map"))
}

/// Start and size in the map's line whose symbol contains the name.
fn entry_of(map: &str, name: &str) -> Result<(u64, u64)> {
    let line = map.lines().find(|line| line.contains(name)).with_context(|| format!("no {name} in the map"))?;
    let mut fields = line.split(' ');
    let mut number = || Ok::<_, anyhow::Error>(u64::from_str_radix(fields.next().context("a field")?, 16)?);
    Ok((number()?, number()?))
}

/// The option at the start and the later command must write the same map, with demangled names at the right addresses.
fn perf_map_demangled(t: &Context, way: Way) -> Result<()> {
    let Lifted { session, .. } = waiting(t, "start/spins_in_a_named_function.cc", way, &["--perf-map"])?;
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
    let shown = if test_support::command_exists("gdb") { t.run(command)?.stdout } else { format!("{start:#x}") };
    ensure!(shown.contains(&format!("{start:#x}")), "gdb sees it elsewhere than {start:#x}:\n{shown}");
    ensure!(size > 8 && size < 4096, "a size of {size} bytes");
    Ok(())
}

fn perf_report(t: &Context, way: Way) -> Result<()> {
    // An image has its own symbols; a private copy needs the map.
    let options: &[&str] = if way.pages == "image" { &[] } else { &["--perf-map"] };
    let Lifted { mut session, store } = waiting(t, "start/spins_in_a_named_function.cc", way, options)?;
    let pid = session.pid();
    if store.is_none() {
        map_of(pid)?;
    }
    let data = t.folder().join("perf.data");
    let perf = || {
        let mut command = Command::new("perf");
        command.arg("--buildid-dir").arg(t.folder().join("perf-cache"));
        command
    };
    let mut record = perf();
    record
        .args(["record", "-q", "-e", "cpu-clock:u", "-F", "500", "-g", "-o"])
        .arg(&data)
        .args(["-p", &pid.to_string()]);
    record.args(["--", "sleep", "1"]);
    session.send("go on\n")?;
    let recorded = t.run(record)?;
    if recorded.ending != Ending::Exit(0) {
        bail!("perf cannot record here: {}", recorded.stderr);
    }
    let mut report = perf();
    report.args(["report", "--stdio", "--no-children", "-g", "none", "-F", "overhead,dso,symbol", "-i"]).arg(&data);
    let report = t.run(report)?.success()?.stdout;
    let line = report.lines().find(|line| line.contains('%')).with_context(|| format!("no sample:\n{report}"))?;
    ensure!(line.contains("stir_for_a_while"), "the first symbol is `{line}`:\n{report}");
    if store.is_some() {
        ensure!(!line.contains("/tmp/perf-"), "from a map: {line}");
    }
    let share: f64 = line.trim().split('%').next().context("a share")?.trim().parse()?;
    ensure!(share > 90.0, "only {share} % of the samples are resolved:\n{report}");
    drop(session);
    fs::remove_file(format!("/tmp/perf-{pid}.map")).ok();
    Ok(())
}

/// As in distributions: a stripped program, and its symbols in a separate file that is found by the build-id.
fn separate_debug_file(t: &Context, way: Way) -> Result<()> {
    // Both ways of lifting use the same program, and so the same file.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    let original = Program::named("start/spins_in_a_named_function.cc")?.build()?;
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
        ensure!(!test_support::is_root(), "{} cannot be made", folder.display());
        return Ok(());
    }
    let place = folder.join(format!("{}.debug", &id[2..]));
    fs::copy(&debug, &place)?;
    let result = map_of_stripped(t, &stripped, way);
    fs::remove_file(&place)?;
    fs::remove_dir(folder).ok();
    let map = result?;
    entry_of(&map, "kitchen::bowl::stir_for_a_while")?;
    Ok(())
}

fn map_of_stripped(t: &Context, program: &Path, way: Way) -> Result<String> {
    let Lifted { session, .. } = lift(t, &Command::new(program), way, &["--perf-map"])?;
    let map = map_of(session.pid())?;
    fs::remove_file(format!("/tmp/perf-{}.map", session.pid()))?;
    Ok(map)
}

/// A uprobe by `perf probe`; removed when dropped.
struct Probe {
    event: String,
}

impl Probe {
    fn set(t: &Context, file: &Path, function: &str) -> Result<Self> {
        static SET: AtomicU32 = AtomicU32::new(0);
        let number = SET.fetch_add(1, Ordering::Relaxed);
        let event = format!("pagelift_test:bell_{}_{number}", std::process::id());
        let mut perf = Command::new("perf");
        // perf probe identifies programs by build-id, and would use an equal program from the cache instead of the
        // copy.
        perf.env("PERF_BUILDID_DIR", t.folder().join("perf-cache"));
        perf.args(["probe", "-x"]).arg(file).args(["--add", &format!("{event}={function}")]);
        t.run(perf)?.success()?;
        Ok(Self { event })
    }

    /// Starts `perf stat` with the event for all processes; it prints every 100 ms how often the probe fired.
    fn counted(&self, t: &Context) -> Result<Session> {
        let mut perf = Command::new("perf");
        perf.args(["stat", "-a", "-x", ",", "-I", "100", "-e", &self.event, "--", "sleep", "200"]);
        let counting = t.session(perf)?;
        counting.wait_for_stderr(&self.event)?;
        Ok(counting)
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        Command::new("perf").args(["probe", "-q", "-d", &self.event]).output().ok();
    }
}

/// Number of times that the probe fired, from the lines `time,count,unit,event,…`.
fn hits(counting: &Session) -> u64 {
    counting.stderr_so_far().lines().filter_map(|line| line.split(',').nth(1)?.parse::<u64>().ok()).sum()
}

/// A separate copy of the program: a probe in the shared file would disturb other tests.
fn own_copy(t: &Context) -> Result<PathBuf> {
    let copy = t.folder().join("calls_a_function_often");
    copy_program(t, &Program::named("start/calls_a_function_often.c")?.build()?, &copy)?;
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
    Ok(copy)
}

fn end(mut session: Session) -> Result<()> {
    session.send("\n")?;
    let output = session.finish()?.success()?;
    ensure!(output.stdout.ends_with("rang\n") && !output.stdout.contains("differs"), "{}", output.stdout);
    Ok(())
}

/// A probe that is set in the file that the lifted program's map names.
fn uprobe_in_an_image(t: &Context, way: Way) -> Result<()> {
    let Lifted { mut session, store } = lift(t, &Command::new(own_copy(t)?), way, &[])?;
    let store = store.context("a way by image")?;
    let maps = fs::read_to_string(format!("/proc/{}/maps", session.pid()))?;
    let line = maps.lines().find(|line| line.contains("r-xp") && line.contains(&store.text())).context("no code")?;
    let image = PathBuf::from(&line[line.find('/').context("a path")?..]);
    let probe = Probe::set(t, &image, FUNCTION)?;
    let counting = probe.counted(t)?;
    // The program begins after its first line of input, and calls the function until the next line.
    session.send("go on\n")?;
    poll_until(Duration::from_secs(120), "the probe to fire", || hits(&counting) > 10)?;
    drop(counting);
    drop(probe);
    end(session)
}

/// A probe that was set before the lift continues to fire, and its huge page does not change.
fn uprobe_before(t: &Context, way: Way) -> Result<()> {
    let file = own_copy(t)?;
    let probe = Probe::set(t, &file, FUNCTION)?;
    let counting = probe.counted(t)?;
    let Lifted { mut session, .. } = lift(t, &Command::new(&file), way, &[])?;
    session.send("go on\n")?;
    poll_until(Duration::from_secs(120), "the probe to fire", || hits(&counting) > 10)?;
    drop(counting);
    drop(probe);
    end(session)
}
