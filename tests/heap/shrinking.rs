//! A pool that becomes smaller while a program's heap is on it.

use crate::{on_pool, operations};
use anyhow::{Result, bail, ensure};
use std::fs;
use std::time::Duration;
use test_support::{Context, Ending, Program, poll_until, pool_file};

/// All free pages leave the pool while a program uses the others.
pub fn a_pool_that_shrinks(t: &Context) -> Result<()> {
    // A program that gets a CPU before the test may have ended before it is seen.
    for _ in 0..5 {
        if shrinks_below_a_program(t)? {
            return Ok(());
        }
        t.pool()?.resize(t.pool()?.pages())?;
    }
    bail!("no program was seen that uses pages of the pool")
}

/// False if the program has ended before.
fn shrinks_below_a_program(t: &Context) -> Result<bool> {
    let mut torture = Program::named("heap/torture.c")?.command()?;
    torture.args([&operations(4000), "2", "3", "4"]);
    let (options, pool) = (on_pool(128)?, t.pool()?);
    let mut session = t.session(t.lifted(&options.each_ref().map(String::as_str), &torture)?)?;
    let is_used = || pool.free().is_ok_and(|free| free < pool.pages());
    let mut was_used = false;
    poll_until(Duration::from_secs(120), "pages in use", || {
        was_used = is_used();
        was_used || session.has_ended().unwrap_or(true)
    })?;
    // The program may return pages meanwhile, so that their number is not asserted.
    fs::write(pool_file(pool.page(), "nr_hugepages"), "0")?;
    let output = session.finish()?;
    ensure!(output.ending == Ending::Exit(0), "{:?}: {}", output.ending, output.stderr);
    Ok(was_used)
}
