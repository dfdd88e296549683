//! Files that are only partly in huge folios, or not for long: after direct writes, after reclaim, and with many
//! compilers at once.

use crate::files::{own_copy, own_copy_of};
use crate::{MOST_COPIES, check_all_from_file, end, from_file, prepare, start, start_that_prepares};
use anyhow::{Context as _, Result, bail, ensure};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use serde_json::Value;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};
use test_support::{
    Context, InstalledFolder, Need, Session, Test, TestStore, View, default_huge_page, hold, make_small, test_case,
};

const LONG: Duration = Duration::from_secs(300);
const COMPILERS: usize = 200;

pub fn tests(needs: fn() -> Vec<Need>) -> Vec<Test> {
    let with = |command: &str| [needs(), vec![Need::Command(command.into())]].concat();
    vec![
        test_case("an_image_shows_what_the_file_leaves_over", with("dd"), with_image),
        test_case("no_image_is_made_of_what_the_file_shows", needs(), without_image),
        test_case("what_is_reclaimed_comes_back", with("python3"), reclaimed),
        test_case("many_compilers_share_one_file", with("xargs"), compilers),
    ]
}

/// Writes the same contents past the page cache, which puts that block of the file into small folios.
fn write_directly(t: &Context, path: &Path, offset: u64) -> Result<()> {
    let block = t.folder().join("block");
    let at = |name: &str| format!("{name}={}", offset >> 12);
    for (from, to, word, flags) in
        [(path, block.as_path(), at("skip"), "conv=fsync"), (&block, path, at("seek"), "oflag=direct")]
    {
        let mut dd = Command::new("dd");
        dd.arg(format!("if={}", from.display())).arg(format!("of={}", to.display()));
        dd.args(["bs=4096", "count=1", "conv=notrunc", &word, flags]);
        t.run(dd)?.success()?;
    }
    // The kernel reads the block again into small folios.
    let file = File::open(path)?;
    posix_fadvise(&file, offset as i64, 4096, PosixFadviseAdvice::POSIX_FADV_WILLNEED)?;
    Ok(())
}

/// The sources of the lifted ranges in a report.
fn sources(report: &Path) -> Result<Vec<String>> {
    let report: Value = serde_json::from_str(&fs::read_to_string(report)?)?;
    let ranges = report["ranges"].as_array().with_context(|| format!("no ranges in {report}"))?;
    let mut sources: Vec<_> = ranges.iter().filter_map(|range| range["source"].as_str().map(str::to_owned)).collect();
    sources.sort();
    sources.dedup();
    Ok(sources)
}

/// Blocks that a direct write has made small come from an image, the others from the file.
fn with_image(t: &Context) -> Result<()> {
    let (path, store) = (own_copy(t, "fixed_address_executable")?, TestStore::of(t, "128M")?);
    prepare(t, &path)?;
    let first = start(t, &["--pages", "file"], &path)?;
    let _held = hold(t, &path)?;
    end(first)?;
    let size = default_huge_page()?.bytes();
    write_directly(t, &path, size)?;
    let report = t.folder().join("report");
    for (pages, due) in [("file", &["file"][..]), ("file+image", &["file", "image"])] {
        let options = ["--prepare", "never", "--pages", pages, "--lift", "text,rodata", "--report"];
        let mut command = t.lifted(&[&options[..], &[&report.to_string_lossy()]].concat(), &Command::new(&path))?;
        command.env("PAGELIFT_STORE", &store.path);
        let session = t.session(command)?;
        session.wait_for_line("ready")?;
        let view = View::of(session.pid())?;
        view.check_read_only_contents(view.executable()?)?;
        let found = sources(&report)?;
        ensure!(found == due, "--pages {pages}: from {found:?}, due are {due:?}");
        end(session)?;
    }
    Ok(())
}

/// An image is made only for the parts of the file in small folios, since it takes memory and time.
fn without_image(t: &Context) -> Result<()> {
    let (copy, store) = (own_copy(t, "fixed_address_executable")?, TestStore::of(t, "128M")?);
    // By itself, images are made only of installed files that were written a day ago.
    let installed = InstalledFolder::of(t)?;
    let path = installed.path.join(copy.file_name().context("no name")?);
    File::open(&path)?.set_modified(SystemTime::now() - Duration::from_secs(2 * 24 * 60 * 60))?;
    for (prepare, source) in [("always", "file"), ("never", "image")] {
        if prepare == "never" {
            make_small(&path)?;
        }
        let report = t.folder().join(format!("report-{prepare}"));
        let options = ["--prepare", prepare, "--lift", "text,rodata", "--report", &report.to_string_lossy()];
        let mut command = t.lifted(&options, &Command::new(&path))?;
        command.env("PAGELIFT_STORE", &store.path);
        let session = t.session(command)?;
        session.wait_for_line("ready")?;
        end(session)?;
        let found = sources(&report)?;
        ensure!(found == [source], "--prepare {prepare}: from {found:?}, due is {source}");
        let images = fs::read_dir(&store.path)?.flatten().filter(|entry| entry.path().is_dir()).count();
        ensure!((images > 0) == (source == "image"), "--prepare {prepare}: {images} folders in the store");
    }
    Ok(())
}

const RECLAIM: &str = "import ctypes, os, sys
descriptor = os.pidfd_open(int(sys.argv[1]))
part = (ctypes.c_ulong * 2)(int(sys.argv[2]), int(sys.argv[3]))
MADV_PAGEOUT = 21
result = ctypes.CDLL(None, use_errno=True).syscall(440, descriptor, part, ctypes.c_ulong(1), MADV_PAGEOUT, 0)
assert result == int(sys.argv[3]), os.strerror(ctypes.get_errno())";

/// Reclaims the read-only memory of a process, as under a shortage of memory.
fn reclaim(t: &Context, session: &Session, path: &Path) -> Result<()> {
    for usage in &View::of(session.pid())?.usages {
        let mapping = &usage.mapping;
        if mapping.path().map(Path::new) != Some(path) || mapping.protection.write {
            continue;
        }
        let mut python = Command::new("python3");
        python.args(["-c", RECLAIM, &session.pid().to_string()]);
        python.args([mapping.range.start().0, mapping.range.len()].map(|number| number.to_string()));
        t.run(python)?.success()?;
    }
    Ok(())
}

/// The program reads its file again, and works; the next start prepares the file again.
fn reclaimed(t: &Context) -> Result<()> {
    let options = ["--pages", "file", "--lift", "text,rodata"];
    let (path, session) = start_that_prepares(t, "fixed_address_executable", &options)?;
    check_all_from_file(&session, &path)?;
    reclaim(t, &session, &path)?;
    let (huge, whole) = from_file(&View::of(session.pid())?, &path, default_huge_page()?);
    ensure!(huge < whole, "all {whole} bytes are huge pages still: nothing was reclaimed");
    let view = View::of(session.pid())?;
    view.check_read_only_contents(view.executable()?)?;
    end(session)?;
    let mut next = start(t, &options, &path)?;
    // A busy disk may need more than the half second for which a start prepares.
    for _ in 1..MOST_COPIES {
        let (huge, whole) = from_file(&View::of(next.pid())?, &path, default_huge_page()?);
        if huge >= whole {
            break;
        }
        end(next)?;
        next = start(t, &options, &path)?;
    }
    check_all_from_file(&next, &path)?;
    end(next)
}

/// Runs eight compilers at a time from one file, which the first prepares; each output equals that of a plain run.
fn compilers(t: &Context) -> Result<()> {
    let found = t.run({
        let mut gcc = Command::new("gcc");
        gcc.arg("-print-prog-name=cc1");
        gcc
    })?;
    let compiler = own_copy_of(t, &PathBuf::from(found.success()?.stdout.trim()), "cc1")?;
    let source = t.folder().join("source.c");
    fs::write(&source, "int twice(int number) { return 2 * number; }\n")?;
    let compile = |output: &str| {
        let mut command = Command::new(&compiler);
        command.args(["-quiet", "-o"]).arg(t.folder().join(output)).arg(&source);
        command
    };
    t.run(compile("plain.s"))?.success()?;
    let due = fs::read(t.folder().join("plain.s"))?;
    let lifted = t.lifted(&["--pages", "file", "--lift", "text,rodata"], &compile("{}.s"))?;
    let script = format!("seq {COMPILERS} | xargs -P 8 -I '{{}}' \"$@\"");
    for _ in 0..MOST_COPIES {
        make_small(&compiler)?;
        // The record of a failed attempt does not count for a file that was written since.
        File::open(&compiler)?.set_modified(SystemTime::now())?;
        let mut many = Command::new("sh");
        many.args(["-c", &script, "sh"]).arg(lifted.get_program()).args(lifted.get_args());
        let said = t.run_within(many, LONG)?.success()?.stderr;
        for number in 1..=COMPILERS {
            ensure!(fs::read(t.folder().join(format!("{number}.s")))? == due, "compiler {number} wrote something else");
        }
        let lines = said.lines().filter(|line| line.contains("cc1[")).count();
        ensure!(lines == COMPILERS, "{lines} lines of {COMPILERS} compilers: {said}");
        let from_file = said.lines().filter(|line| line.contains("(file)")).count();
        if from_file == COMPILERS {
            return Ok(());
        }
        let is_late = |line: &str| line.contains("found the budget of") || line.contains("that prepares the file for");
        let of_other_reasons = said.lines().any(|line| line.contains("nothing lifted") && !is_late(line));
        ensure!(!of_other_reasons, "{from_file} of {COMPILERS} have said that they were lifted: {said}");
    }
    bail!("the disk was busy during {MOST_COPIES} attempts")
}
