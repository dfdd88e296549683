//! Data files that a running program maps.

use crate::files::prepared;
use address_space::{MappingUsage, format_bytes};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use test_support::{
    Context, Need, Output, Program, Session, Test, View, default_huge_page, hold, make_small, poll_until, test_case,
};

/// Blocks of the file.
const BLOCKS: u64 = 6;
const SMALL: &str = "its file is not in huge folios of the page cache";
/// Number of times that a file is prepared which reclaim drops before it is held.
const MOST_TIMES: usize = 5;

pub fn tests(needs: impl Fn() -> Vec<Need>) -> Vec<Test> {
    vec![
        test_case("data_files/lifted", needs(), lifted),
        test_case("data_files/shorter_than_their_mapping", needs(), shorter),
        test_case("data_files/in_small_folios", needs(), in_small_folios),
        test_case("data_files/run", needs(), |t| as_they_become_resident(t, true)),
        test_case("data_files/watch", needs(), |t| as_they_become_resident(t, false)),
        test_case("data_files/doctor", needs(), advised),
    ]
}

fn data_file(t: &Context) -> Result<PathBuf> {
    // The file needs free memory in blocks of the size of a huge page.
    fs::write("/proc/sys/vm/compact_memory", "1")?;
    let path = t.folder().join("data");
    let bytes: Vec<u8> = (0..BLOCKS * default_huge_page()?.bytes()).map(|at| (at / 512 + at) as u8).collect();
    fs::write(&path, bytes)?;
    Ok(path)
}

fn start(t: &Context, path: &Path) -> Result<Session> {
    let mut command = Program::named("file_source/maps_data.c")?.command()?;
    command.arg(path);
    let session = t.session(command)?;
    session.wait_for_line("ready")?;
    ensure!(mappings(&session, path)?.iter().all(|usage| usage.huge() == 0), "on huge pages without any help");
    Ok(session)
}

/// The mappings of the file, in the order of the program: the kernel places each below the previous one.
fn mappings(session: &Session, path: &Path) -> Result<Vec<MappingUsage>> {
    let mut all = View::of(session.pid())?.usages;
    all.retain(|usage| usage.mapping.path().map(Path::new) == Some(path));
    all.sort_by_key(|usage| (usage.mapping.protection.write, usage.mapping.range.start().0 % (2 << 20)));
    Ok(all)
}

fn end(mut session: Session) -> Result<()> {
    session.send("\n")?;
    let output = session.finish()?.success()?;
    ensure!(output.stdout.ends_with("the same\n"), "{}", output.stdout);
    Ok(())
}

fn pagelift(t: &Context, words: &[&str]) -> Result<Output> {
    t.run(t.pagelift(words)?)?.success()
}

/// Bytes on huge pages: of the shared mapping for reading, of the private one, and of all others.
fn huge(session: &Session, path: &Path) -> Result<[u64; 3]> {
    let mut found = [0; 3];
    for usage in mappings(session, path)? {
        let mapping = &usage.mapping;
        let is_placed = mapping.range.start().0 % default_huge_page()?.bytes() == 0;
        let way = if mapping.protection.write || !is_placed { 2 } else { usize::from(!mapping.shared) };
        found[way] += usage.file_huge;
    }
    Ok(found)
}

/// A block with a page that a debugger has written is not changed, and all others are huge.
fn lifted(t: &Context) -> Result<()> {
    let (path, size) = (data_file(t)?, default_huge_page()?.bytes());
    let (name, whole) = (path.display().to_string(), BLOCKS * size);
    let said = pagelift(t, &["cache", "prepare", &name])?;
    ensure!(said.stdout.contains(&format_bytes(whole)) || said.stderr.contains(&format_bytes(whole)), "{said:?}");
    let _held = prepared(t, std::slice::from_ref(&path), 100)?;
    let session = start(t, &path)?;
    let pid = session.pid().to_string();
    let inspected = pagelift(t, &["inspect", "--json", "--lift", "files", &pid])?.stdout;
    let json: Value = serde_json::from_str(&inspected)?;
    let all = json["data_files"].as_array().context("no data files")?;
    let own = all.iter().find(|file| file["path"] == *name).with_context(|| inspected.clone())?;
    let found = ["mapped", "congruent", "resident", "huge", "cached", "cached_huge"].map(|field| own[field].as_u64());
    ensure!(found == [4 * whole, 3 * whole, 4 * whole, 0, whole, whole].map(Some), "{own}");
    let shown = pagelift(t, &["inspect", "--lift", "files", &pid])?.stdout;
    ensure!(shown.contains("Mapped files\n") && shown.contains(&name), "{shown}");

    let is_private = |usage: &&MappingUsage| !usage.mapping.shared;
    let private = mappings(&session, &path)?.iter().find(is_private).context("no private mapping")?.mapping.range;
    let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
    let (at, mut before) = (private.start().0 + size + 0x1234, [0]);
    memory.read_exact_at(&mut before, at)?;
    memory.write_all_at(&[!before[0]], at)?;
    let report = t.folder().join("report");
    let lift = |words: &[&str]| {
        let file = report.display().to_string();
        t.run(t.pagelift(&[&["attach", "--lift", "files", "-v", "--report", &file, &pid], words].concat())?)
    };
    let planned = lift(&["--dry-run"])?.success()?.stdout;
    ensure!(planned.contains("map anew") && huge(&session, &path)? == [0; 3], "{planned}");
    let said = lift(&[])?.success()?.stderr;
    ensure!(huge(&session, &path)? == [whole, whole - size, 0], "{:?}: {said}", huge(&session, &path)?);
    for reason in ["may write to it through this mapping", "disagree by 4 KiB", "has written to it"] {
        ensure!(said.contains(reason), "{reason} is not in {said}");
    }
    let json: Value = serde_json::from_str(&fs::read_to_string(&report)?)?;
    ensure!(json["covered_bytes"] == 2 * whole - size, "{json}");
    let mut now = [0];
    memory.read_exact_at(&mut now, at)?;
    ensure!(now[0] == !before[0], "what was written is lost");
    let again = lift(&[])?.success()?.stderr;
    ensure!(again.contains("on huge pages before, nothing new"), "{again}");
    ensure!(pagelift(t, &["status", &pid])?.stdout.contains("data"), "status does not show the file");
    memory.write_all_at(&before, at)?;
    end(session)
}

/// LMDB maps more than its file holds. Addresses beyond the end of the file are not reported as left alone.
fn shorter(t: &Context) -> Result<()> {
    let (path, _held) = held(t)?;
    let mut command = Program::named("file_source/maps_data.c")?.command()?;
    command.arg(&path).arg("longer");
    let session = t.session(command)?;
    session.wait_for_line("ready")?;
    let whole = BLOCKS * default_huge_page()?.bytes();
    let said = pagelift(t, &["attach", "--lift", "files", &session.pid().to_string()])?.stderr;
    ensure!(huge(&session, &path)? == [whole, whole, 0], "{said}");
    ensure!(!said.contains(SMALL), "{said}");
    end(session)
}

/// A prepared file that is held in huge folios.
fn held(t: &Context) -> Result<(PathBuf, Vec<Session>)> {
    let path = data_file(t)?;
    pagelift(t, &["cache", "prepare", &path.display().to_string()])?;
    let held = prepared(t, std::slice::from_ref(&path), 100)?;
    Ok((path, held))
}

/// The file is lifted by the helper of a start, or by a watch, after the program has made it resident.
fn as_they_become_resident(t: &Context, by_run: bool) -> Result<()> {
    let (path, _held) = held(t)?;
    let (whole, report) = (BLOCKS * default_huge_page()?.bytes(), t.folder().join("report"));
    let (file, written) = (path.display().to_string(), report.display().to_string());
    let program = Program::named("file_source/maps_data.c")?.build()?;
    let program = program.display().to_string();
    let mut command = match by_run {
        true => t.pagelift(&["run", "--lift", "files", "--report", &written, "--", &program, &file])?,
        false => Command::new(&program),
    };
    if !by_run {
        command.arg(&file);
    }
    let session = t.session(command)?;
    session.wait_for_line("ready")?;
    let pid = session.pid().to_string();
    let watch = (!by_run)
        .then(|| t.session(t.pagelift(&["attach", "--watch", "--lift", "files", "--report", &written, &pid])?));
    let watch = watch.transpose()?;
    poll_until(Duration::from_secs(120), "the lift", || {
        huge(&session, &path).is_ok_and(|found| found == [whole, whole, 0])
    })?;
    if !by_run {
        return end(session).and_then(|()| watch.map_or(Ok(()), |watch| watch.finish()?.success().map(drop)));
    }
    let said = || session.stderr_so_far();
    poll_until(Duration::from_secs(120), "the line", || said().lines().any(|line| line.contains("MiB pages (file)")))
        .with_context(said)?;
    ensure!(said().contains("mapped data files are lifted as they become resident"), "{}", said());
    end(session)?;
    let ended = || -> Result<Value> { Ok(serde_json::from_str(&fs::read_to_string(&report)?)?) };
    poll_until(Duration::from_secs(120), "the report", || {
        ended().is_ok_and(|json| json["watched"]["state"] == "ended")
    })?;
    let json = ended()?;
    ensure!(json["data_files"]["covered_bytes"] == 2 * whole, "{json}");
    ensure!(json["data_files"]["refusals"].as_array().is_some_and(|all| !all.is_empty()), "{json}");
    Ok(())
}

fn advised(t: &Context) -> Result<()> {
    let path = t.folder().join("large");
    fs::write("/proc/sys/vm/compact_memory", "1")?;
    fs::write(&path, vec![1; 96 << 20])?;
    let name = path.display().to_string();
    let session = start(t, &path)?;
    let doctor = |words: &[&str]| t.run(t.pagelift(&[&["doctor"], words, &[&session.pid().to_string()]].concat())?);
    let said = doctor(&[])?.stdout;
    ensure!(said.contains("mapped data files of ") && said.contains("MiB resident, 0 B on huge"), "{said}");
    ensure!(said.contains("pagelift attach --lift files") || said.contains(&format!("cache prepare {name}")), "{said}");
    end(session)
}

fn in_small_folios(t: &Context) -> Result<()> {
    let path = data_file(t)?;
    make_small(&path)?;
    let session = start(t, &path)?;
    let words = ["attach", "--lift", "files", "--prepare", "never", &session.pid().to_string()];
    let said = pagelift(t, &words)?.stderr;
    ensure!(said.contains(SMALL) && said.contains("fix: pagelift cache prepare"), "{said}");
    end(session)?;
    let (list, name) = (t.folder().join("cache.conf"), path.display().to_string());
    fs::write(&list, format!("{name}\n"))?;
    let (list, whole) = (list.display().to_string(), BLOCKS * default_huge_page()?.bytes());
    let mut found = Value::Null;
    for _ in 0..MOST_TIMES {
        pagelift(t, &["cache", "keep", "--once", "--config", &list])?;
        let _held = hold(t, &path)?;
        let json: Value = serde_json::from_str(&pagelift(t, &["cache", "status", "--json", &name])?.stdout)?;
        found = json["files"][0].clone();
        if found["huge"] == whole {
            break;
        }
    }
    ensure!(found["huge"] == whole && found["of"] == whole, "{found}");
    Ok(())
}
