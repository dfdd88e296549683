//! The tests restore the machine: their pool when dropped, on panic, and after the test that held it was killed; and
//! the kernel's settings. Their sum names each test binary that died.

use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::process::{Command, ExitCode};
use test_support::{
    Context, Ending, Need, PoolReservation, Setting, available_pages, default_huge_page, main_of_one_at_a_time,
    pool_file, test_case, workspace,
};

/// With this argument the test program only reserves pages, reports that, and waits to be killed.
const HOLD: &str = "--hold-the-pool";
/// With this argument it changes a setting instead.
const CHANGE: &str = "--change-a-setting";
/// Time that khugepaged waits after it has found no huge page, in milliseconds: a short change does no harm.
const HARMLESS: &str = "/sys/kernel/mm/transparent_hugepage/khugepaged/alloc_sleep_millisecs";
const PAGES: u64 = 3;

fn main() -> ExitCode {
    let asked = |what: &str| std::env::args().any(|argument| argument == what);
    if asked(HOLD) {
        return exit_code(hold(|| PoolReservation::of(default_huge_page()?, PAGES)));
    }
    if asked(CHANGE) {
        return exit_code(hold(|| Setting::change(HARMLESS, &other_value()?)));
    }
    let needs = || vec![Need::Root, Need::File("/sys/kernel/mm/hugepages".into())];
    let setting = || vec![Need::Root, Need::File(HARMLESS.into())];
    main_of_one_at_a_time(vec![
        test_case("given_back_when_dropped", needs(), given_back_when_dropped),
        test_case("given_back_on_panic", needs(), given_back_on_panic),
        test_case("put_right_after_a_kill", needs(), put_right_after_a_kill),
        test_case("too_large_a_wish_is_explained", needs(), too_large),
        test_case("settings_are_put_back", setting(), settings_put_back),
        test_case("settings_are_put_right_after_a_kill", setting(), settings_after_a_kill),
        test_case("a_binary_that_dies_is_named", vec![], death_is_named),
    ])
}

fn exit_code(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn hold<T>(take: impl FnOnce() -> Result<T>) -> Result<()> {
    let _held = take()?;
    println!("ready");
    std::io::stdin().read_line(&mut String::new())?;
    Ok(())
}

/// The pool's size without reservations, read inside of an empty reservation.
fn size_without_reservation() -> Result<u64> {
    let _turn = PoolReservation::of(default_huge_page()?, 0)?;
    let text = fs::read_to_string("/run/lock/pagelift-pool.before-tests")?;
    let line = text.lines().find(|line| line.contains("nr_hugepages")).context("no record")?;
    Ok(line.rsplit(' ').next().context("no value")?.parse()?)
}

fn given_back_when_dropped(_: &Context) -> Result<()> {
    let page = default_huge_page()?;
    let before = size_without_reservation()?;
    let pool = PoolReservation::of(page, PAGES)?;
    ensure!(available_pages(page)? == PAGES && pool.free()? == PAGES, "{} pages", available_pages(page)?);
    drop(pool);
    ensure!(size_without_reservation()? == before, "{before} pages before, another number after");
    Ok(())
}

fn given_back_on_panic(_: &Context) -> Result<()> {
    let before = size_without_reservation()?;
    let panicked = std::thread::spawn(|| {
        let _pool = default_huge_page().and_then(|page| PoolReservation::of(page, PAGES));
        panic!("on purpose");
    })
    .join();
    ensure!(panicked.is_err() && size_without_reservation()? == before, "the pool was not given back");
    Ok(())
}

fn kill_a_holder(t: &Context, of: &str) -> Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(of);
    let holder = t.session(command)?;
    holder.wait_for_line("ready")?;
    holder.signal(nix::sys::signal::Signal::SIGKILL)?;
    holder.finish()?;
    Ok(())
}

/// A killed test cannot restore the pool; the next one finds its record and does so.
fn put_right_after_a_kill(t: &Context) -> Result<()> {
    let page = default_huge_page()?;
    let before = size_without_reservation()?;
    kill_a_holder(t, HOLD)?;
    ensure!(size_without_reservation()? == before, "{before} pages before the kill, another number after");
    let now: u64 = fs::read_to_string(pool_file(page, "nr_hugepages"))?.trim().parse()?;
    t.note(format!("{before} pages before, {now} now"));
    Ok(())
}

fn too_large(_: &Context) -> Result<()> {
    let before = size_without_reservation()?;
    let error = PoolReservation::of(default_huge_page()?, 1 << 40).err().context("a petabyte was granted")?;
    ensure!(format!("{error:#}").contains("MiB of memory are available"), "not explained: {error:#}");
    ensure!(size_without_reservation()? == before, "the pool was touched");
    Ok(())
}

fn value() -> Result<String> {
    Ok(fs::read_to_string(HARMLESS)?.trim().to_owned())
}

fn other_value() -> Result<String> {
    Ok((value()?.parse::<u32>()? + 1).to_string())
}

fn settings_put_back(_: &Context) -> Result<()> {
    let (before, other) = (value()?, other_value()?);
    let setting = Setting::change(HARMLESS, &other)?;
    ensure!(value()? == other, "{} instead of {other}", value()?);
    drop(setting);
    ensure!(value()? == before, "{} instead of {before}", value()?);
    Ok(())
}

/// Each test program first restores the changes of killed tests, and so does each later change of the same setting.
fn settings_after_a_kill(t: &Context) -> Result<()> {
    let (before, other) = (value()?, other_value()?);
    kill_a_holder(t, CHANGE)?;
    ensure!(value()? == other, "{} instead of {other}", value()?);
    let mut next = Command::new(std::env::current_exe()?);
    next.arg("--list");
    let said = t.run(next)?.success()?.stderr;
    ensure!(value()? == before && said.contains("is put back to"), "{} instead of {before}: {said}", value()?);
    kill_a_holder(t, CHANGE)?;
    drop(Setting::keep(HARMLESS)?);
    ensure!(value()? == before, "{} instead of {before}", value()?);
    Ok(())
}

/// A binary that died has no `test result`: its own lines are then the only ones that say which test it was in.
fn death_is_named(t: &Context) -> Result<()> {
    let log = t.folder().join("log");
    fs::write(
        &log,
        "     Running a.rs (a-1)\ntest one ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured\n\
         \x20    Running b.rs (b-1)\ntest two ... ok\ntest three ... error: test failed, to rerun pass `--test b`\n\n\
         Caused by:\n  process didn't exit successfully: `b-1` (signal: 11, SIGSEGV: invalid memory reference)\n\
         \x20    Running beside.rs (beside-1)\n     Running c.rs (c-1)\ntest four ... FAILED\n\n---- four ----\nno page\n\nfailures:\n    four\n\n\
         test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured\n",
    )?;
    let mut sum = Command::new(workspace().join("scripts/sum-tests"));
    sum.arg(&log).arg("101");
    let outcome = t.run(sum)?;
    ensure!(outcome.ending == Ending::Exit(1), "{outcome:?}");
    for part in
        ["died: Running b.rs (b-1)", "test three ...", "SIGSEGV", "---- four ----", "1 passed, 2 failed, 0 skipped"]
    {
        ensure!(outcome.stdout.contains(part), "no '{part}': {}", outcome.stdout);
    }
    ensure!(!outcome.stdout.contains("test one"), "of a binary that ended well: {}", outcome.stdout);
    Ok(())
}
