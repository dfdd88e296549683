//! `pagelift cache keep`, and the units that run it.

use crate::{held, huge_bytes, large_program, needs, number, prepared, prepared_and_held, started, status};
use anyhow::{Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use test_support::{Context, Ending, Need, Session, Test, make_small, poll_until, process_field, test_case, workspace};

const LIMIT: Duration = Duration::from_secs(120);

pub fn tests() -> Vec<Test> {
    let systemd = vec![Need::Command("systemd-analyze".into()), Need::Root];
    let capabilities = [needs(), vec![Need::Command("setpriv".into()), Need::Root]].concat();
    vec![
        test_case("keep/once_prepares_what_is_listed", needs(), once),
        test_case("keep/prepares_again_what_was_replaced", needs(), again),
        test_case("keep/lock_holds_within_the_budget", [needs(), vec![Need::Root]].concat(), lock),
        test_case("keep/lock_uses_what_becomes_free", [needs(), vec![Need::Root]].concat(), lock_more),
        test_case("keep/says_once_what_stays_as_it_is", [needs(), vec![Need::Root]].concat(), said_once),
        test_case("keep/lists_that_say_nothing", vec![Need::Thp], lists),
        test_case("keep/units_are_sound", systemd, units),
        test_case("keep/units_leave_the_capabilities_that_it_needs", capabilities, with_few_capabilities),
    ]
}

pub fn list(t: &Context, text: &str) -> Result<PathBuf> {
    let (path, new) = (t.folder().join("cache.conf"), t.folder().join("cache.conf.new"));
    fs::write(&new, text)?;
    // A reader sees the old list or the new one.
    fs::rename(new, &path)?;
    Ok(path)
}

pub fn keep(t: &Context, list: &Path, options: &[&str]) -> Result<Command> {
    let mut command = t.pagelift(&["cache", "keep", "--config"])?;
    command.arg(list).args(options);
    Ok(command)
}

fn is_huge(t: &Context, path: &Path) -> Result<bool> {
    let found = status(t, path)?;
    Ok(number(&found, "huge")? == number(&found, "of")?)
}

fn once(t: &Context) -> Result<()> {
    let program = large_program(t, "")?;
    prepared(t, &program)?;
    make_small(&program)?;
    ensure!(!is_huge(t, &program)?, "not made small");
    let named = list(t, &format!("# a program\n{}\nrunning nobody-is-called-so\n", program.display()))?;
    let (_, _held) = held(t, &program, || Ok(t.run(keep(t, &named, &["--once"])?)?.success()?.stdout))?;
    ensure!(huge_bytes(&started(t, &program)?)? > 0);
    // A missing file is an error.
    let missing = list(t, &format!("{}\n/nowhere/to/be/found\n", program.display()))?;
    let output = t.run(keep(t, &missing, &["--once"])?)?;
    let says =
        output.stderr.contains("/nowhere/to/be/found: No such file") && output.stderr.contains("1 of 2 listed files");
    ensure!(output.ending == Ending::Exit(125) && says, "{output:?}");
    Ok(())
}

/// Like [`is_huge`], after a pause: the check maps the file for a moment, and a keeper that sees the mapping assumes
/// that the file is in use, and leaves it alone for a while.
fn is_huge_now_and_then(t: &Context, path: &Path) -> bool {
    std::thread::sleep(Duration::from_secs(1));
    is_huge(t, path).unwrap_or(false)
}

fn again(t: &Context) -> Result<()> {
    let program = large_program(t, "")?;
    prepared(t, &program)?;
    let session = t.session(keep(t, &list(t, &program.display().to_string())?, &["--interval", "1"])?)?;
    poll_until(LIMIT, "the first round", || session.stdout_so_far().contains("in huge folios"))?;
    let other = large_program(t, ".pie")?;
    fs::rename(&other, &program)?;
    poll_until(LIMIT, "the file to be prepared after it was replaced", || is_huge_now_and_then(t, &program))?;
    // Drops the pages, as reclaim does.
    make_small(&program)?;
    poll_until(LIMIT, "the file to be prepared after it was dropped", || is_huge_now_and_then(t, &program))?;
    session.signal(nix::sys::signal::Signal::SIGTERM)?;
    session.finish()?;
    Ok(())
}

fn lock(t: &Context) -> Result<()> {
    let program = large_program(t, "")?;
    prepared(t, &program)?;
    let command = keep(t, &list(t, &program.display().to_string())?, &["--lock", "--budget", "4M"])?;
    let session = t.session(command)?;
    session.wait_for_stderr("of the budget left for it")?;
    ensure!(locked_kib(&session) == "4096", "VmLck: {}", locked_kib(&session));
    // Pages that are mapped as huge pages cannot be evicted, the rest can.
    make_small(&program)?;
    let found = status(t, &program)?;
    ensure!(number(&found, "huge")? == 4 << 20, "{found}");
    session.signal(nix::sys::signal::Signal::SIGTERM)?;
    session.finish()?;
    let output = t.run(t.pagelift(&["cache", "keep", "--lock"])?)?;
    ensure!(output.ending == Ending::Exit(125) && output.stderr.contains("--budget"), "{output:?}");
    Ok(())
}

fn locked_kib(session: &Session) -> String {
    let locked = process_field(session.pid(), "VmLck").unwrap_or_default();
    locked.trim_end_matches(" kB").trim().to_owned()
}

/// Two files, held so that they stay in huge folios. The budget has room for the first and `part` bytes of the second.
struct Budgeted {
    first: PathBuf,
    second: PathBuf,
    keeper: Session,
    _held: [Session; 2],
}

impl Budgeted {
    fn new(t: &Context, part: u64) -> Result<Self> {
        let (first, second) = (large_program(t, "")?, large_program(t, ".pie")?);
        let held = [prepared_and_held(t, &first)?.1, prepared_and_held(t, &second)?.1];
        let budget = (number(&status(t, &first)?, "of")? + part).to_string();
        let listed = list(t, &format!("{}\n{}\n", first.display(), second.display()))?;
        let keeper = t.session(keep(t, &listed, &["--interval", "1", "--lock", "--budget", &budget])?)?;
        keeper.wait_for_stderr("of the budget left for it")?;
        Ok(Self { first, second, keeper, _held: held })
    }

    /// Number of times that the keeper reported the whole file as locked.
    fn said_locked(&self, path: &Path) -> usize {
        let (text, name) = (self.keeper.stdout_so_far(), format!("{}: ", path.display()));
        text.lines().filter(|line| line.starts_with(&name) && line.ends_with(" locked")).count()
    }

    fn end(self) -> Result<()> {
        self.keeper.signal(nix::sys::signal::Signal::SIGTERM)?;
        self.keeper.finish().map(drop)
    }
}

fn lock_more(t: &Context) -> Result<()> {
    let files = Budgeted::new(t, 2 << 20)?;
    let said = files.keeper.stderr_so_far();
    ensure!(said.contains("found 2.0 MiB of the budget left for it"), "{said}");
    list(t, &files.second.display().to_string())?;
    let all = (number(&status(t, &files.second)?, "of")? >> 10).to_string();
    poll_until(LIMIT, "the second file to be locked", || locked_kib(&files.keeper) == all)?;
    poll_until(LIMIT, "that to be said", || files.said_locked(&files.second) == 1)?;
    ensure!(files.said_locked(&files.first) == 1, "{}", files.keeper.stdout_so_far());
    files.end()
}

fn said_once(t: &Context) -> Result<()> {
    let files = Budgeted::new(t, 0)?;
    let mut lines = format!("{}\n{}\n", files.first.display(), files.second.display());
    // The keeper reports each missing file in a separate round, after its lines about the others.
    for absent in ["/nowhere/first", "/nowhere/second"] {
        lines += &format!("{absent}\n");
        list(t, &lines)?;
        files.keeper.wait_for_stderr(absent)?;
    }
    let said = files.keeper.stderr_so_far();
    for part in ["of the budget left for it", "/nowhere/first"] {
        ensure!(said.matches(part).count() == 1, "{part} was said again: {said}");
    }
    files.end()
}

fn lists(t: &Context) -> Result<()> {
    for (text, says) in [
        ("", "found no entry, needed at least one, for example: /"),
        ("/a\nrelative\n", "line 2: found `relative`"),
        ("package\n", "line 1"),
    ] {
        let output = t.run(keep(t, &list(t, text)?, &["--once"])?)?;
        ensure!(output.ending == Ending::Exit(125) && output.stderr.contains(says), "{text}: {output:?}");
    }
    let output = t.run(keep(t, Path::new("/nowhere/to/be/found"), &["--once"])?)?;
    ensure!(output.ending == Ending::Exit(125) && output.stderr.contains("found no such file"), "{output:?}");
    let fix = "fix, for example: mkdir -p /nowhere/to/be && echo /usr/sbin/mariadbd > /nowhere/to/be/found";
    ensure!(output.stderr.contains(fix), "{output:?}");
    Ok(())
}

fn units(t: &Context) -> Result<()> {
    let folder = workspace().join("packaging/systemd");
    let mut units = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let unit = t.folder().join(name.trim_end_matches(".in"));
        // An existing program, so that only the unit itself is checked.
        let text = fs::read_to_string(&path)?.replace("@PREFIX@/bin/pagelift", "/bin/true");
        ensure!(!text.contains("@PREFIX"), "{text}");
        fs::write(&unit, text)?;
        units.push(unit);
    }
    ensure!(units.len() == 4, "{units:?}");
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no"]).args(&units);
    let output = t.run(verify)?.success()?;
    ensure!(!output.stderr.contains("pagelift-"), "{output:?}");
    Ok(())
}

/// As started by a unit: the remaining capabilities suffice to read files and processes of other users.
fn with_few_capabilities(t: &Context) -> Result<()> {
    // A name that no other test has: the keeper prepares the files of all programs with that name.
    let name = "kept_by_its_unit";
    let program = t.folder().join(name);
    fs::rename(large_program(t, "")?, &program)?;
    prepared(t, &program)?;
    make_small(&program)?;
    for unit in ["pagelift-cache.service.in", "pagelift-cache-lock.service.in"] {
        let text = fs::read_to_string(workspace().join("packaging/systemd").join(unit))?;
        let kept = text.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
        let kept: Vec<String> =
            kept.unwrap_or_default().split(' ').map(|name| name.trim_start_matches("CAP_").to_lowercase()).collect();
        ensure!(kept.len() > 2 && text.contains("\nMemoryMax=") && text.contains("\nSystemCallFilter="), "{text}");
        let bound = kept.iter().fold("-all".to_owned(), |bound, name| format!("{bound},+{name}"));
        // A service without User= has exactly the capabilities of its bounding set.
        let other = started(t, &program)?;
        let list = list(t, &format!("{}\nrunning {name}\n", program.display()))?;
        let keep = keep(t, &list, &["--once"])?;
        let mut command = Command::new("setpriv");
        command.args(["--inh-caps=-all", &format!("--bounding-set={bound}"), "--"]);
        command.arg(keep.get_program()).args(keep.get_args());
        let output = t.run(command)?;
        let said = format!("{}{}", output.stdout, output.stderr);
        ensure!(said.contains(&*program.to_string_lossy()) && !said.contains("ermi"), "{unit}: {output:?}");
        other.finish()?.success()?;
    }
    Ok(())
}
