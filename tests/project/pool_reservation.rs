//! The tests' own reservation of the pool: given back when dropped, on panic, and after the test that held it was killed.

use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::process::{Command, ExitCode};
use test_support::{Context, Need, PoolReservation, available_pages, default_huge_page, main_of, pool_file, test_case};

/// With this argument the test program only reserves pages, says so, and waits to be killed.
const HOLD: &str = "--hold-the-pool";
const PAGES: u64 = 3;

fn main() -> ExitCode {
    if std::env::args().any(|argument| argument == HOLD) {
        return match hold() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error:#}");
                ExitCode::FAILURE
            }
        };
    }
    let needs = || vec![Need::Root, Need::File("/sys/kernel/mm/hugepages".into())];
    main_of(vec![
        test_case("given_back_when_dropped", needs(), given_back_when_dropped),
        test_case("given_back_on_panic", needs(), given_back_on_panic),
        test_case("put_right_after_a_kill", needs(), put_right_after_a_kill),
        test_case("too_large_a_wish_is_explained", needs(), too_large),
    ])
}

fn hold() -> Result<()> {
    let _pool = PoolReservation::of(default_huge_page()?, PAGES)?;
    println!("ready");
    std::io::stdin().read_line(&mut String::new())?;
    Ok(())
}

/// The pool's size while nobody holds a reservation: seen from inside one, before it changes anything.
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

/// A killed test cannot give back; whoever comes next finds its record and does it.
fn put_right_after_a_kill(t: &Context) -> Result<()> {
    let page = default_huge_page()?;
    let before = size_without_reservation()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(HOLD);
    let holder = t.session(command)?;
    holder.wait_for_line("ready")?;
    holder.signal(nix::sys::signal::Signal::SIGKILL)?;
    holder.finish()?;
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
