//! `pagelift cache prepare` and `status`.

use crate::{cache, held, huge_bytes, large_program, needs, number, prepared, prepared_and_held, started, status};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use test_support::{Context, Ending, Need, Session, Test, copy_program, is_root, make_small, poll_until, test_case};

pub fn tests() -> Vec<Test> {
    let dpkg = || [needs(), vec![Need::Command("dpkg-query".into())]].concat();
    vec![
        test_case("prepare/a_plain_start_is_mapped_by_huge_pages", needs(), plain_start),
        test_case("prepare/what_runs_is_refused_until_it_has_ended", needs(), while_it_runs),
        test_case("prepare/replace_gives_a_copy_to_new_processes", needs(), replaced),
        test_case("prepare/running_names_a_program", needs(), by_name),
        test_case("prepare/package_names_a_package", dpkg(), by_package),
        test_case(
            "prepare/as_an_ordinary_user",
            [needs(), vec![Need::Root, Need::Command("setpriv".into())]].concat(),
            as_a_user,
        ),
        test_case("prepare/what_is_no_file_is_refused", needs(), no_file),
        test_case("drop/ends_huge_folios_of_a_file_that_nothing_maps", needs(), dropped),
        test_case("status/says_who_would_gain_by_another_base", needs(), gain),
        test_case("status/lists_what_runs", needs(), what_runs),
    ]
}

fn plain_start(t: &Context) -> Result<()> {
    let program = large_program(t, "")?;
    let contents = fs::read(&program)?;
    let before = status(t, &program)?;
    ensure!(number(&before, "huge")? == 0 && number(&before, "of")? > 0, "{before}");
    ensure!(huge_bytes(&started(t, &program)?)? == 0, "huge before it was prepared");
    let (_, _held) = prepared_and_held(t, &program)?;
    let after = status(t, &program)?;
    let session = started(t, &program)?;
    let huge = huge_bytes(&session)?;
    ensure!(huge > 0 && huge <= number(&after, "of")?, "{huge} bytes: {after}");
    let user = user_of(t, &program, &session)?;
    ensure!(number(&user, "huge")? == huge, "{user}");
    ensure!(fs::read(&program)? == contents, "the file has changed");
    session.finish()?.success()?;
    Ok(())
}

/// The entry of one process in the status.
fn user_of(t: &Context, program: &Path, session: &Session) -> Result<Value> {
    let found = status(t, program)?;
    let users = found["users"].as_array().into_iter().flatten();
    let own = users.clone().find(|user| user["pid"].as_u64() == Some(u64::from(session.pid())));
    own.cloned().with_context(|| format!("not among the users: {found}"))
}

fn dropped(t: &Context) -> Result<()> {
    let program = large_program(t, "")?;
    let (_, held) = prepared_and_held(t, &program)?;
    let session = started(t, &program)?;
    let output = t.run(cache(t, &["drop"], &program)?)?;
    let pid = session.pid().to_string();
    ensure!(output.ending == Ending::Exit(125) && output.stderr.contains("found mapped by "), "{output:?}");
    ensure!(output.stderr.contains(&pid), "{output:?}");
    session.finish()?.success()?;
    drop(held);
    // The memory of an ended process outlives it while another process reads its mappings.
    let mut output = t.run(cache(t, &["drop"], &program)?)?;
    poll_until(Duration::from_secs(60), "the file to be in no process's memory", || {
        let is_in_use = output.stderr.contains("stay cached: in use");
        if is_in_use && let Ok(again) = cache(t, &["drop"], &program).and_then(|command| t.run(command)) {
            output = again;
        }
        !is_in_use
    })
    .with_context(|| format!("{output:?}"))?;
    let output = output.success()?;
    ensure!(output.stdout.ends_with(": no longer in the page cache\n"), "{output:?}");
    let after = status(t, &program)?;
    ensure!(number(&after, "huge")? == 0, "{after}");
    Ok(())
}

fn while_it_runs(t: &Context) -> Result<()> {
    let program = large_program(t, "")?;
    let session = started(t, &program)?;
    let output = t.run(cache(t, &["prepare"], &program)?)?;
    if output.ending == Ending::Exit(0) {
        // This kernel collapses in place.
        ensure!(output.stdout.contains("collapsed"), "{output:?}");
        return Ok(());
    }
    let pid = session.pid().to_string();
    let is_refused = output.stderr.contains("mapped by 1 process") && output.stderr.contains(&pid);
    ensure!(output.ending == Ending::Exit(125) && (is_refused || !output.stderr.contains("mapped by")), "{output:?}");
    session.finish()?.success()?;
    let (_, _held) = prepared_and_held(t, &program)?;
    ensure!(huge_bytes(&started(t, &program)?)? > 0);
    Ok(())
}

fn replaced(t: &Context) -> Result<()> {
    let program = large_program(t, "")?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o711))?;
    let (contents, before) = (fs::read(&program)?, fs::metadata(&program)?);
    let session = started(t, &program)?;
    let output = t.run(cache(t, &["prepare", "--replace"], &program)?)?;
    if output.stdout.contains("collapsed") || !output.stdout.contains("replaced") {
        // This kernel collapses in place, or the file system has no large folios.
        prepared(t, &program)?;
        return Ok(());
    }
    let pid = session.pid().to_string();
    ensure!(output.ending == Ending::Exit(0) && output.stdout.contains(&pid), "{output:?}");
    let after = fs::metadata(&program)?;
    ensure!(before.ino() != after.ino() && fs::read(&program)? == contents, "not replaced, or by other contents");
    let shown = |m: &fs::Metadata| (m.mode(), m.uid(), m.gid(), m.size(), m.mtime(), m.mtime_nsec());
    ensure!(shown(&before) == shown(&after), "{before:?} {after:?}");
    let (_, _held) = prepared_and_held(t, &program)?;
    ensure!(huge_bytes(&started(t, &program)?)? > 0 && huge_bytes(&session)? == 0, "new and old are not told apart");
    session.finish()?.success()?;
    let left: Vec<_> = fs::read_dir(t.folder())?.flatten().map(|entry| entry.file_name()).collect();
    ensure!(!left.iter().any(|name| name.to_string_lossy().starts_with('.')), "left behind: {left:?}");
    Ok(())
}

fn by_name(t: &Context) -> Result<()> {
    let program = t.folder().join("asked_for_by_name");
    fs::rename(large_program(t, "")?, &program)?;
    prepared(t, &program)?;
    let _session = started(t, &program)?;
    let output = t.run(t.pagelift(&["cache", "prepare", "--running", "asked_for_by_name"])?)?.success()?;
    ensure!(output.stdout.contains(&format!("{}: ", program.display())), "{output:?}");
    let none = t.run(t.pagelift(&["cache", "prepare", "--running", "nobody-is-called-so"])?)?;
    ensure!(none.ending == Ending::Exit(125) && none.stderr.contains("no process runs"), "{none:?}");
    Ok(())
}

fn by_package(t: &Context) -> Result<()> {
    let none = t.run(t.pagelift(&["cache", "prepare", "--package", "no-such-package-at-all"])?)?;
    ensure!(none.ending == Ending::Exit(125) && none.stderr.contains("no installed package"), "{none:?}");
    let option = t.run(t.pagelift(&["cache", "prepare", "--package=--help"])?)?;
    ensure!(option.ending == Ending::Exit(125) && option.stderr.contains("is no name of a package"), "{option:?}");
    // The package of a large program of this machine.
    let find = "for f in /usr/bin/python3.* /usr/bin/perl /usr/bin/node /usr/bin/gdb; do \
                dpkg-query -S \"$f\" 2>/dev/null | cut -d: -f1 && exit; done";
    let mut shell = Command::new("sh");
    shell.args(["-c", find]);
    let package = t.run(shell)?.stdout.lines().next().unwrap_or_default().to_owned();
    if !package.is_empty() {
        let output = t.run(t.pagelift(&["cache", "prepare", "--package", &package])?)?;
        ensure!(output.stdout.contains("in huge folios") || output.stderr.contains("needed"), "{output:?}");
    }
    Ok(())
}

/// The right to read a file suffices, although only its owner or a writer can see which pages are cached.
fn as_a_user(t: &Context) -> Result<()> {
    let program = large_program(t, "")?;
    prepared(t, &program)?;
    make_small(&program)?;
    // In a folder that the other user can reach.
    let folder = std::path::PathBuf::from(format!("/var/tmp/pagelift-page-cache-{}", std::process::id()));
    fs::create_dir(&folder)?;
    let result = (|| {
        fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        let (own, file) = (folder.join("pagelift"), folder.join("file"));
        copy_program(t, &test_support::pagelift_binary()?, &own)?;
        fs::copy(&program, &file)?;
        make_small(&file)?;
        let prepare = || {
            let mut command = Command::new("setpriv");
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(&own);
            command.args(["cache", "prepare"]).arg(&file).env_remove("XDG_RUNTIME_DIR");
            Ok(t.run(command)?.success()?.stdout)
        };
        let (said, _held) = held(t, &file, prepare)?;
        ensure!(said.contains("in huge folios"), "{said}");
        Ok(())
    })();
    fs::remove_dir_all(&folder)?;
    result
}

fn no_file(t: &Context) -> Result<()> {
    for (path, text) in [("/dev/null", "regular file"), ("/nowhere/to/be/found", "No such file"), ("/", "regular file")]
    {
        for command in ["prepare", "status"] {
            let output = t.run(t.pagelift(&["cache", command, path])?)?;
            ensure!(output.ending == Ending::Exit(125) && output.stderr.contains(text), "{command} {path}: {output:?}");
        }
    }
    let small = t.folder().join("small");
    fs::write(&small, "x")?;
    let output = t.run(cache(t, &["prepare"], &small)?)?;
    ensure!(output.stderr.contains("no whole block of"), "{output:?}");
    Ok(())
}

fn gain(t: &Context) -> Result<()> {
    let program = large_program(t, ".pie")?;
    let (_, _held) = prepared_and_held(t, &program)?;
    // The kernel chooses a random address, which may be the best one by chance.
    for _ in 0..10 {
        let session = started(t, &program)?;
        let huge = huge_bytes(&session)?;
        let user = user_of(t, &program, &session)?;
        if huge == 0 {
            ensure!(number(&user, "gain")? > 0 && number(&user, "huge")? == 0, "{user}");
            let text = t.run(cache(t, &["status"], &program)?)?.success()?.stdout;
            ensure!(text.contains("Would gain") && text.contains(&format!("[{}]", session.pid())), "{text}");
            return Ok(());
        }
        session.finish()?.success()?;
    }
    Ok(())
}

fn what_runs(t: &Context) -> Result<()> {
    let program = large_program(t, "")?;
    let session = started(t, &program)?;
    let output = t.run(t.pagelift(&["cache", "status"])?)?.success()?;
    ensure!(output.stdout.contains(&program.display().to_string()), "{output:?}");
    session.finish()?.success()?;
    if is_root() {
        let output = t.run(t.pagelift(&["cache", "status"])?)?.success()?;
        ensure!(!output.stdout.contains(&program.display().to_string()), "{output:?}");
    }
    Ok(())
}
