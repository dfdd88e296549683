//! Programs on shared images: lifted at the start and while they run, shared between processes, never stale.

use crate::safety::NOBODY;
use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use test_support::{
    Context, Need, Output, Program, Session, Setting, Test, TestStore, View, copy_of_a_program, copy_program,
    program_source, test_case,
};

pub fn tests() -> Vec<Test> {
    let needs = || vec![Need::Root, Need::Thp, Need::Command("gcc".into())];
    let with_gdb = [needs(), vec![Need::Command("gdb".into())]].concat();
    vec![
        test_case("run_maps_the_image", needs(), run_maps_the_image),
        test_case("any_base_is_left_for_the_image", needs(), any_base),
        test_case("processes_share_one_image", needs(), processes_share),
        test_case("attach_and_detach", needs(), attach_and_detach),
        test_case("a_changed_program_never_meets_an_old_image", needs(), changed_program),
        test_case("without_a_store_the_next_source_serves", needs(), no_store),
        test_case("what_has_no_image_says_why", needs(), says_why),
        test_case("merged_edges_are_shown_by_an_image_of_their_base", needs(), merged_edges),
        test_case("gdb_finds_symbols_through_the_path", with_gdb, symbols),
    ]
}

/// With `auto`, a program's file is mapped by itself if it can be brought into huge folios. That depends on whether the file
/// has been written to the disk since it was made, which any process can cause; so it is not prepared here.
pub const NOT_FROM_THE_FILE: [&str; 2] = ["--prepare", "never"];

pub fn start(t: &Context, store: &Path, program: &Command, pages: &str) -> Result<Session> {
    let mut command = t.lifted(&[&["--pages", pages], &NOT_FROM_THE_FILE[..]].concat(), program)?;
    command.env("PAGELIFT_STORE", store);
    let session = t.session(command)?;
    session.wait_for_line("ready")?;
    Ok(session)
}

pub fn end(mut session: Session) -> Result<Output> {
    session.send("\n")?;
    let output = session.finish()?.success()?;
    ensure!(!output.stdout.contains("differs"), "{}", output.stdout);
    Ok(output)
}

/// Bytes that the process maps from the store, and the part of those on huge pages.
fn from_store(view: &View, store: &Path) -> (u64, u64) {
    let of_store = |path: Option<&str>| path.is_some_and(|path| Path::new(path).starts_with(store));
    let usages = view.usages.iter().filter(|usage| of_store(usage.mapping.path()));
    usages.fold((0, 0), |(all, huge), usage| (all + usage.mapping.range.len(), huge + usage.shmem_huge))
}

/// Six or seven MiB of code and of constants each have at least four MiB of whole huge pages.
const AT_LEAST: u64 = 8 << 20;

pub fn check(session: &Session, store: &Path) -> Result<()> {
    let view = View::of(session.pid())?;
    let (all, huge) = from_store(&view, store);
    ensure!(all >= AT_LEAST && huge == all, "{all} bytes from the store, {huge} of them huge");
    view.check_read_only_contents(view.executable()?)
}

fn run_maps_the_image(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "256M")?;
    let at = PathBuf::from(store.text());
    for program in ["start/pie_by_default.c", "start/fixed_address_executable.c", "start/static_pie.c"] {
        let command = Program::named(program)?.command()?;
        for _ in 0..2 {
            let session = start(t, &at, &command, "image")?;
            check(&session, &at)?;
            end(session)?;
        }
    }
    Ok(())
}

/// Other bases would suit copies equally, but a start uses the base of the image.
fn any_base(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "64M")?;
    let file = t.folder().join("program");
    let mut build = Command::new("gcc");
    build.args(["-O1", "-pie", "-fPIE", "-o"]).arg(&file).arg(program_source("images/covered_at_any_base.c")?);
    t.run(build)?.success()?;
    store.add(t, &file)?;
    for _ in 0..5 {
        let session = start(t, &store.path, &Command::new(&file), "auto")?;
        let (all, huge) = from_store(&View::of(session.pid())?, &store.path);
        ensure!(all >= 2 << 20 && huge == all, "{all} bytes from the store, {huge} of them huge");
        end(session)?;
    }
    let images = store.images(t)?;
    ensure!(images.len() == 1, "images of more than one base were made: {images:?}");
    Ok(())
}

fn processes_share(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "256M")?;
    let at = PathBuf::from(store.text());
    let command = Program::named("start/pie_by_default.c")?.command()?;
    let sessions: Vec<Session> = (0..8).map(|_| start(t, &at, &command, "image")).collect::<Result<_>>()?;
    let mut inodes: Vec<u64> = Vec::new();
    for session in &sessions {
        check(session, &at)?;
        let view = View::of(session.pid())?;
        let of_store = view.space.mappings().iter().filter(|m| m.path().is_some_and(|p| Path::new(p).starts_with(&at)));
        inodes.extend(of_store.map(|mapping| mapping.inode));
    }
    inodes.dedup();
    ensure!(inodes.len() == 1, "more than one image: {inodes:?}");
    sessions.into_iter().try_for_each(|session| end(session).map(drop))
}

fn attach_and_detach(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "256M")?;
    let at = PathBuf::from(store.text());
    let session = t.session(Program::named("start/pie_by_default.c")?.command()?)?;
    session.wait_for_line("ready")?;
    let pid = session.pid().to_string();
    for _ in 0..5 {
        let mut attach = t.pagelift(&["attach", "--pages", "image", &pid])?;
        attach.env("PAGELIFT_STORE", &at);
        t.run(attach)?.success()?;
        let view = View::of(session.pid())?;
        let (all, huge) = from_store(&view, &at);
        ensure!(all >= 6 << 20 && huge == all, "{all} bytes from the store, {huge} of them huge");
        t.run(t.pagelift(&["detach", &pid])?)?.success()?;
        let view = View::of(session.pid())?;
        ensure!(from_store(&view, &at) == (0, 0), "something is still mapped from the store");
        view.check_read_only_contents(view.executable()?)?;
    }
    end(session).map(drop)
}

/// Another program under the same name, as after an upgrade.
fn changed_program(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "256M")?;
    let at = PathBuf::from(store.text());
    let path = t.folder().join("program");
    for name in ["start/pie_by_default.c", "start/many_segments.c"] {
        let built = Program::named(name)?.build()?;
        copy_program(t, &built, &t.folder().join("new"))?;
        fs::rename(t.folder().join("new"), &path)?;
        let session = start(t, &at, &Command::new(&path), "image")?;
        let view = View::of(session.pid())?;
        view.check_read_only_contents(view.executable()?)?;
        end(session)?;
    }
    Ok(())
}

fn no_store(t: &Context) -> Result<()> {
    let command = Program::named("start/pie_by_default.c")?.command()?;
    for (pages, says) in [("auto", " MiB on "), ("image", "pagelift image setup")] {
        let session = start(t, &t.folder().join("no-such-store"), &command, pages)?;
        session.wait_for_stderr(says)?;
        end(session)?;
    }
    Ok(())
}

/// An ordinary user cannot make a missing image: the next source is used, and the reason names the command.
fn says_why(t: &Context) -> Result<()> {
    let _at_rest = Setting::khugepaged_at_rest()?;
    let store = TestStore::of(t, "256M")?;
    let file = copy_of_a_program(t, "program")?;
    let start = || -> Result<Session> {
        let words = [&["-v", "--pages", "auto"], &NOT_FROM_THE_FILE[..]].concat();
        let mut command = t.lifted(&words, &Command::new(&file))?;
        command.env("PAGELIFT_STORE", &store.path).uid(NOBODY).gid(NOBODY).current_dir("/");
        let session = t.session(command)?;
        session.wait_for_line("ready")?;
        session.wait_for_stderr("edges ")?;
        Ok(session)
    };
    let session = start()?;
    let why = format!(
        "no image: program: the store has none for this base; fix, as root: pagelift image add {}",
        file.display()
    );
    session.wait_for_stderr(&why)?;
    let said = end(session)?.stderr;
    ensure!(said.contains(" MiB on ") && !said.contains("(image"), "{said}");
    store.add(t, &file)?;
    let session = start()?;
    check(&session, &store.path)?;
    let said = end(session)?.stderr;
    ensure!(!said.contains("no image: "), "{said}");
    Ok(())
}

/// A huge page with code and read-only data is mapped from an image. `image add` without options makes one for another
/// base; the message names the option.
fn merged_edges(t: &Context) -> Result<()> {
    let _at_rest = Setting::khugepaged_at_rest()?;
    let store = TestStore::of(t, "256M")?;
    let file = copy_of_a_program(t, "program")?;
    let start = || -> Result<Session> {
        let words = ["-v", "--pages", "image", "--edges", "merge-read-only"];
        let mut command = t.lifted(&words, &Command::new(&file))?;
        command.env("PAGELIFT_STORE", &store.path).uid(NOBODY).gid(NOBODY).current_dir("/");
        let session = t.session(command)?;
        session.wait_for_line("ready")?;
        session.wait_for_stderr("edges ")?;
        Ok(session)
    };
    store.add(t, &file)?;
    let said = end(start()?)?.stderr;
    let fix = "fix, as root: pagelift image add --base-offset ";
    let base = said.split_once(fix).and_then(|(_, rest)| rest.split(' ').next());
    let base = base.with_context(|| format!("no base is named: {said}"))?;
    store.image(t, "add", &["--base-offset", base, &file.to_string_lossy()])?.success()?;
    let session = start()?;
    check(&session, &store.path)?;
    let said = end(session)?.stderr;
    ensure!(!said.contains("shared image") && said.contains("rodata+text   r-x"), "{said}");
    Ok(())
}

/// The maps name the image, which is an ELF file with the program's symbols.
fn symbols(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "256M")?;
    let at = PathBuf::from(store.text());
    let command = Program::named("start/crashes_when_told.c")?.command()?;
    let session = start(t, &at, &command, "image")?;
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-ex", "set debuginfod enabled off", "-ex", "backtrace", "-ex", "info symbol middle"]);
    gdb.arg("-p").arg(session.pid().to_string());
    let output = t.run(gdb)?.success()?;
    for word in ["ready (", "main (", "middle in section .text"] {
        ensure!(output.stdout.contains(word), "`{word}` is not shown:\n{}\n{}", output.stdout, output.stderr);
    }
    drop(session);
    Ok(())
}
