//! Compilers: many short processes, code in the executable (cc1plus) or in one huge shared object (rustc).

use crate::{PlainAnswer, both_ways, check_object};
use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use test_support::{Context, Kind, Session, Test, View, tests_folder, until_scheduled};

pub fn tests() -> Vec<Test> {
    let mut tests = both_ways("cc1plus", &["command g++"], 96 << 20, cc1plus);
    tests.extend(both_ways("cc1plus_by_only_through_its_driver", &["command g++"], 96 << 20, through_the_driver));
    tests.extend(both_ways("rustc_and_its_shared_object", &["command rustc"], 400 << 20, rustc));
    tests
}

fn real(name: &str) -> PathBuf {
    tests_folder().join("start/programs/real").join(name)
}

fn printed(t: &Context, mut command: Command, words: &[&str]) -> Result<String> {
    command.args(words);
    Ok(t.run(command)?.success()?.stdout.trim().to_owned())
}

/// Runs a compiler that reads its source from standard input. It waits for the source with all its code in place, so
/// `look` has time to inspect it on a slow machine, too; a compiler that reads a file may have ended by then.
fn compile(t: &Context, command: Command, source: &Path, look: impl FnOnce(&Session) -> Result<()>) -> Result<()> {
    let mut session = t.session_within(command, Duration::from_secs(400))?;
    look(&session)?;
    session.send(&fs::read_to_string(source)?)?;
    let output = session.finish()?;
    t.keep(&output);
    output.success()?;
    Ok(())
}

fn cc1plus(t: &Context, pages: &str) -> Result<()> {
    let program = printed(t, Command::new("g++"), &["-print-prog-name=cc1plus"])?;
    let preprocessed = t.folder().join("program.ii");
    let mut preprocess = Command::new("g++");
    preprocess.args(["-E", "-std=c++17"]).arg(real("program.cc")).arg("-o").arg(&preprocessed);
    t.run(preprocess)?.success()?;
    let compiler = |out: &str| {
        let mut command = Command::new(&program);
        command.args(["-quiet", "-fpreprocessed", "-O2", "-std=c++17", "-dumpbase", "program.cc", "-"]);
        command.arg("-o").arg(t.folder().join(out));
        command
    };
    static PLAIN: PlainAnswer = PlainAnswer::new();
    let plain = PLAIN.get(|| {
        compile(t, compiler("plain.s"), &preprocessed, |_| Ok(()))?;
        Ok(fs::read_to_string(t.folder().join("plain.s"))?)
    })?;
    compile(t, t.lifted(&["--pages", pages], &compiler("lifted.s"))?, &preprocessed, |session| {
        session.wait_for_stderr("pagelift: ")?;
        let view = View::of(session.pid())?;
        check_object(t, &view, view.executable()?, &[Kind::Text, Kind::Rodata], pages)
    })?;
    same_text(t, &plain, "lifted.s")
}

fn same_files(t: &Context, one: &str, other: &str) -> Result<()> {
    let (one, other) = (fs::read(t.folder().join(one))?, fs::read(t.folder().join(other))?);
    ensure!(!one.is_empty() && one == other, "the outputs differ: {} and {} bytes", one.len(), other.len());
    Ok(())
}

fn same_text(t: &Context, plain: &str, lifted: &str) -> Result<()> {
    let lifted = fs::read_to_string(t.folder().join(lifted))?;
    ensure!(!plain.is_empty() && plain == lifted, "the outputs differ: {} and {} bytes", plain.len(), lifted.len());
    Ok(())
}

fn through_the_driver(t: &Context, pages: &str) -> Result<()> {
    let compile = |out: &str| {
        let mut command = Command::new("g++");
        command.args(["-O1", "-std=c++17", "-c"]).arg(real("program.cc")).arg("-o").arg(t.folder().join(out));
        command
    };
    t.run(compile("plain.o"))?.success()?;
    let options = ["--pages", pages, "--only", "cc1plus"];
    let output = until_scheduled(t, || t.run(t.lifted(&options, &compile("lifted.o"))?)?.success())?;
    let lines = output.own_lines();
    ensure!(lines.iter().filter(|line| line.contains("cc1plus[")).count() == 1, "not one line of cc1plus: {lines:?}");
    ensure!(!lines.iter().any(|line| line.contains("as[") || line.contains("g++[")), "others were lifted: {lines:?}");
    same_files(t, "plain.o", "lifted.o")
}

/// `rustc` in the path may be a proxy that executes the real compiler, so the proxy is asked for its path.
fn rustc(t: &Context, pages: &str) -> Result<()> {
    let program = PathBuf::from(printed(t, Command::new("rustc"), &["--print", "sysroot"])?).join("bin/rustc");
    let compiler = |out: &str| {
        let mut command = Command::new(&program);
        command.args(["-O", "--crate-type=lib", "--crate-name=program", "--emit=asm", "-C", "codegen-units=1", "-"]);
        command.arg("-o").arg(t.folder().join(out));
        command
    };
    static PLAIN: PlainAnswer = PlainAnswer::new();
    let plain = PLAIN.get(|| {
        compile(t, compiler("plain.s"), &real("program.rs"), |_| Ok(()))?;
        Ok(fs::read_to_string(t.folder().join("plain.s"))?)
    })?;
    compile(t, t.lifted(&["--pages", pages], &compiler("lifted.s"))?, &real("program.rs"), |session| {
        session.wait_for_stderr("pagelift: ")?;
        let view = View::of(session.pid())?;
        let object = view.objects.iter().find(|o| o.path.contains("librustc_driver")).context("no librustc_driver")?;
        check_object(t, &view, object, &[Kind::Text, Kind::Rodata], pages)
    })?;
    same_text(t, &plain, "lifted.s")
}
