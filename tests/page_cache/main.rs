//! Files in huge folios of the page cache: `pagelift cache` and `pagelift align`.

mod align;
mod commands;
mod hostile;
mod keeping;
mod layouts;
mod relayout;
mod tools;
mod untouched;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use test_support::{Context, Need, Program, Session, Skipped, View, copy_program, hold, main_of, make_small};

fn main() -> ExitCode {
    let mut tests = commands::tests();
    tests.extend(keeping::tests());
    tests.extend(layouts::tests());
    tests.extend(align::tests());
    tests.extend(relayout::tests());
    tests.extend(tools::tests());
    tests.extend(untouched::tests());
    tests.extend(hostile::tests());
    main_of(tests)
}

/// Needs of all tests here. [`prepared`] checks the file system.
fn needs() -> Vec<Need> {
    vec![Need::Thp, Need::Command("gcc".into()), Need::Kernel(5, 18)]
}

/// A copy of the program with more than three huge pages of code, in small pages of the page cache.
fn large_program(t: &Context, suffix: &str) -> Result<PathBuf> {
    let built = Program::named("page_cache/large_code.c")?.build()?;
    let copy = t.folder().join(format!("large_code{suffix}"));
    copy_program(t, &PathBuf::from(format!("{}{suffix}", built.display())), &copy)?;
    make_small(&copy)?;
    Ok(copy)
}

/// Prepares a file; skips the test if its file system has no large folios.
fn prepared(t: &Context, path: &Path) -> Result<String> {
    let output = t.run(cache(t, &["prepare"], path)?)?;
    let unable = ["has no large folios", "for large folios", "that makes large folios", "with which ext4 has no"];
    if unable.iter().any(|text| output.stderr.contains(text)) {
        return Err(Skipped(output.stderr).into());
    }
    Ok(output.success()?.stdout)
}

/// Limit of preparations if reclaim drops the file before it is held.
const MOST_PREPARATIONS: usize = 5;

/// Prepares a file until it is entirely in huge folios and a process holds it there. Returns the output, too.
fn held(t: &Context, path: &Path, prepare: impl Fn() -> Result<String>) -> Result<(String, Session)> {
    for _ in 0..MOST_PREPARATIONS {
        let (said, held) = (prepare()?, hold(t, path)?);
        let found = status(t, path)?;
        if number(&found, "huge")? == number(&found, "of")? {
            return Ok((said, held));
        }
    }
    bail!("{}: not all of it lies in huge folios, {MOST_PREPARATIONS} times in a row", path.display())
}

/// Prepares a file by [`prepared`] until it is [`held`].
fn prepared_and_held(t: &Context, path: &Path) -> Result<(String, Session)> {
    held(t, path, || prepared(t, path))
}

fn cache(t: &Context, words: &[&str], path: &Path) -> Result<Command> {
    let mut command = t.pagelift(&["cache"])?;
    command.args(words).arg(path);
    Ok(command)
}

/// The entry of one file in `cache status --json`.
fn status(t: &Context, path: &Path) -> Result<Value> {
    let output = t.run(cache(t, &["status", "--json"], path)?)?.success()?;
    let listing: Value = serde_json::from_str(&output.stdout)?;
    ensure!(listing["files"].as_array().is_some_and(|files| files.len() == 1), "{listing}");
    Ok(listing["files"][0].clone())
}

fn number(value: &Value, field: &str) -> Result<u64> {
    value[field].as_u64().with_context(|| format!("no {field} in {value}"))
}

/// Starts the program, which waits after it has touched its code.
fn started(t: &Context, program: &Path) -> Result<Session> {
    let session = t.session(Command::new(program))?;
    session.wait_for_line("ready")?;
    Ok(session)
}

/// Bytes that a process maps by huge pages, from smaps.
fn huge_bytes(session: &Session) -> Result<u64> {
    Ok(View::of(session.pid())?.huge_bytes())
}
