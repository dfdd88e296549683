//! A database of LMDB, which maps its file as shared memory, for reading, and longer than the file.

use crate::files::prepared;
use address_space::MappingUsage;
use anyhow::{Context as _, Result, ensure};
use std::path::{Path, PathBuf};
use std::time::Duration;
use test_support::{
    Context, Need, Output, Program, Session, Test, View, default_huge_page, make_small, poll_until, test_case,
};

/// Sum of the words that the program writes: of 31 * N + AT for 6000 records of 500 words.
const SUM: u64 = 31 * 500 * (6000 * 5999 / 2) + 6000 * (500 * 499 / 2);

pub fn tests(needs: impl Fn() -> Vec<Need>) -> Vec<Test> {
    let needs = || [needs(), vec![Need::File("/usr/include/lmdb.h".into())]].concat();
    vec![
        test_case("lmdb/prepared", needs(), from_huge_folios),
        test_case("lmdb/mapped_in_small_folios", needs(), mapped_small),
    ]
}

fn run(t: &Context, how: &str, path: &Path) -> Result<Output> {
    let mut command = Program::named("file_source/reads_lmdb.c")?.command()?;
    command.arg(how).arg(path);
    t.run(command)?.success()
}

fn database(t: &Context) -> Result<PathBuf> {
    let path = t.folder().join("data.mdb");
    run(t, "fill", &path)?;
    Ok(path)
}

/// Starts a reader, which has read the whole database.
fn reader(t: &Context, path: &Path) -> Result<Session> {
    let mut command = Program::named("file_source/reads_lmdb.c")?.command()?;
    command.arg("read").arg(path);
    let session = t.session(command)?;
    waits_for_sums(&session, &[SUM])?;
    Ok(session)
}

fn waits_for_sums(session: &Session, sums: &[u64]) -> Result<()> {
    let due: String = sums.iter().map(|sum| format!("sum {sum}\n")).collect();
    let found = || session.whole_lines_so_far().lines().count() >= sums.len();
    poll_until(Duration::from_secs(120), "a sum", found)?;
    ensure!(session.stdout_so_far() == due, "{}, due: {due}", session.stdout_so_far());
    Ok(())
}

/// Bytes of the file that a process maps by huge pages, and bytes in whole blocks of the file.
fn huge(session: &Session, path: &Path) -> Result<(u64, u64)> {
    let usages = View::of(session.pid())?.usages;
    let of_file = |usage: &&MappingUsage| usage.mapping.path().map(Path::new) == Some(path);
    let size = default_huge_page()?.bytes();
    Ok((usages.iter().filter(of_file).map(|usage| usage.file_huge).sum(), path.metadata()?.len() / size * size))
}

fn attach(t: &Context, session: &Session) -> Result<Output> {
    t.run(t.pagelift(&["attach", "--lift", "files", "-v", &session.pid().to_string()])?)?.success()
}

/// All whole blocks are huge, the reader finds what it found before, and it sees what another process commits.
fn from_huge_folios(t: &Context) -> Result<()> {
    let path = database(t)?;
    make_small(&path)?;
    let _held = prepared(t, std::slice::from_ref(&path), 100)?;
    let mut session = reader(t, &path)?;
    let said = attach(t, &session)?.stderr;
    let (bytes, whole) = huge(&session, &path)?;
    ensure!(bytes == whole && whole >= 20 << 20, "{bytes} of {whole} bytes are huge: {said}");
    session.send("\n")?;
    waits_for_sums(&session, &[SUM, SUM])?;
    run(t, "change", &path)?;
    session.send("\n")?;
    waits_for_sums(&session, &[SUM, SUM, SUM + 1])?;
    session.finish()?.success().map(drop)
}

/// Mapped pages cannot be evicted: the reason and the fix are printed, and the reader finds the same sum.
fn mapped_small(t: &Context) -> Result<()> {
    let path = database(t)?;
    make_small(&path)?;
    let mut session = reader(t, &path)?;
    let said = attach(t, &session)?.stderr;
    let (bytes, whole) = huge(&session, &path)?;
    ensure!(bytes == whole || said.contains("; fix: "), "{bytes} of {whole} bytes are huge: {said}");
    session.send("\n")?;
    waits_for_sums(&session, &[SUM, SUM]).with_context(|| said)?;
    session.finish()?.success().map(drop)
}
