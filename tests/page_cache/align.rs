//! `pagelift align`.

use crate::{huge_bytes, large_program, needs, prepared, prepared_and_held, started};
use anyhow::{Result, ensure};
use std::fs;
use std::path::Path;
use std::process::Command;
use test_support::{Context, Ending, Need, Output, Test, test_case, workspace};

pub fn tests() -> Vec<Test> {
    let dpkg = || [needs(), vec![Need::Command("dpkg-query".into()), Need::File("/usr/bin/gdb".into())]].concat();
    let cargo = ["cargo", "readelf"].map(|name| Need::Command(name.into())).into();
    vec![
        test_case("align/plain_starts_of_an_aligned_program_are_mapped_by_huge_pages", needs(), aligned),
        test_case("align/undo_gives_the_same_bytes", needs(), undone),
        test_case("align/what_it_cannot_better_is_refused", needs(), refused),
        test_case("align/packages_are_refused", dpkg(), packaged),
        test_case("align/the_flags_that_it_names_do_the_same", needs(), flags),
        test_case("align/the_cargo_example_has_these_flags", cargo, of_cargo),
    ]
}

pub fn align(t: &Context, options: &[&str], path: &Path) -> Result<Output> {
    let mut command = t.pagelift(&["align"])?;
    command.args(options).arg(path);
    t.run(command)
}

/// True if all of several starts have huge pages: the kernel may choose the best address by chance.
pub fn always_huge(t: &Context, program: &Path) -> Result<bool> {
    for _ in 0..8 {
        if huge_bytes(&started(t, program)?)? == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

fn aligned(t: &Context) -> Result<()> {
    let program = large_program(t, ".pie")?;
    prepared(t, &program)?;
    let before = fs::read(&program)?;
    let said = align(t, &["--check"], &program)?.success()?.stdout;
    ensure!(said.contains("would bring huge pages for") && said.contains("max-page-size="), "{said}");
    let fix = format!("; fix: pagelift align {}\n", program.display());
    ensure!(said.contains(": found p_align ") && said.contains(&fix), "{said}");
    ensure!(fs::read(&program)? == before, "--check has changed it");
    ensure!(!always_huge(t, &program)?, "every start was placed well before it was aligned");
    // A running program can be aligned, too.
    let session = started(t, &program)?;
    align(t, &[], &program)?.success()?;
    session.finish()?.success()?;
    let (_, _held) = prepared_and_held(t, &program)?;
    ensure!(always_huge(t, &program)?, "a start was not mapped by huge pages");
    let again = align(t, &[], &program)?.success()?.stdout;
    ensure!(again.contains("already"), "{again}");
    Ok(())
}

fn undone(t: &Context) -> Result<()> {
    let program = large_program(t, ".pie")?;
    let before = fs::read(&program)?;
    let none = align(t, &["--undo"], &program)?;
    ensure!(none.ending == Ending::Exit(125) && none.stderr.contains("no record"), "{none:?}");
    align(t, &[], &program)?.success()?;
    let changed: Vec<usize> =
        fs::read(&program)?.iter().zip(&before).enumerate().filter(|(_, (a, b))| a != b).map(|(at, _)| at).collect();
    ensure!(
        !changed.is_empty() && changed.len() <= 16 && changed.iter().all(|at| *at < 1024),
        "changed at {changed:?}"
    );
    align(t, &["--undo"], &program)?.success()?;
    ensure!(fs::read(&program)? == before, "other bytes after --undo");
    // With several files, each is restored, or named if it cannot be restored.
    align(t, &[], &program)?.success()?;
    let missing = t.folder().join("missing");
    let again = align(t, &["--undo", &missing.to_string_lossy()], &program)?;
    ensure!(again.ending == Ending::Exit(125) && again.stderr.contains("missing"), "{again:?}");
    ensure!(fs::read(&program)? == before, "other bytes after --undo of several files");
    Ok(())
}

fn refused(t: &Context) -> Result<()> {
    let fixed = large_program(t, "")?;
    let text = t.folder().join("text");
    fs::write(&text, "no program")?;
    let before = fs::read(&fixed)?;
    for options in [&[][..], &["--check"], &["--relayout"]] {
        let said = align(t, options, &fixed)?.success()?.stdout;
        ensure!(
            said.contains("agree with huge pages of 2 MiB already") && !said.contains("fix:"),
            "{options:?}: {said}"
        );
    }
    ensure!(fs::read(&fixed)? == before, "changed a program that has nothing to gain");
    let never_aligned = align(t, &["--undo"], &fixed)?;
    ensure!(never_aligned.stderr.contains("found no record") && !never_aligned.stderr.contains("os error"));
    for (path, says) in [(text.as_path(), "no sound 64-bit"), ("/dev/null".as_ref(), "regular file")] {
        let output = align(t, &[], path)?;
        ensure!(output.ending == Ending::Exit(125) && output.stderr.contains(says), "{}: {output:?}", path.display());
    }
    let signed = large_program(t, ".pie")?;
    let mut objcopy = Command::new("objcopy");
    objcopy.arg("--add-section").arg(format!(".signature={}", text.display())).arg(&signed);
    if t.run(objcopy).is_ok_and(|output| output.ending == Ending::Exit(0)) {
        let output = align(t, &[], &signed)?;
        ensure!(output.ending == Ending::Exit(125) && output.stderr.contains("section .signature"), "{output:?}");
        align(t, &["--force"], &signed)?.success()?;
    }
    Ok(())
}

fn packaged(t: &Context) -> Result<()> {
    let before = fs::read("/usr/bin/gdb")?;
    let output = align(t, &[], "/usr/bin/gdb".as_ref())?;
    // If the distribution links gdb differently, another refusal comes first.
    let is_refused = ["belongs to the package gdb", "of a fixed address", "no read-only segment"];
    ensure!(
        output.ending == Ending::Exit(125) && is_refused.iter().any(|text| output.stderr.contains(text)),
        "{output:?}"
    );
    ensure!(fs::read("/usr/bin/gdb")? == before);
    Ok(())
}

fn flags(t: &Context) -> Result<()> {
    let source = test_support::program_source("page_cache/large_code.c")?;
    let said = align(t, &["--check"], &large_program(t, ".pie")?)?.success()?.stdout;
    let flags: Vec<&str> = said.split_whitespace().filter(|word| word.starts_with("-Wl,-z,")).take(2).collect();
    ensure!(flags.len() == 2, "{said}");
    let program = t.folder().join("linked_so");
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-fno-toplevel-reorder", "-fPIE", "-pie"]).args(&flags).arg("-o").arg(&program).arg(source);
    gcc.arg("-I").arg(test_support::shared_folder());
    t.run(gcc)?.success()?;
    let (_, _held) = prepared_and_held(t, &program)?;
    ensure!(always_huge(t, &program)?, "a start was not mapped by huge pages");
    Ok(())
}

fn of_cargo(t: &Context) -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--offline", "--quiet"]).current_dir(workspace().join("examples/cargo"));
    cargo.env("CARGO_TARGET_DIR", t.folder()).env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    t.run(cargo)?.success()?;
    let program = t.folder().join("debug/aligned");
    let said = t.run(Command::new(&program))?.success()?.stdout;
    ensure!(said == "each segment begins on a huge page\n", "{said}");
    let mut readelf = Command::new("readelf");
    readelf.arg("-lW").arg(&program);
    let headers = t.run(readelf)?.success()?.stdout;
    let mut code = headers.lines().filter(|line| line.contains(" R E "));
    ensure!(code.clone().count() > 0 && code.all(|line| line.ends_with(" 0x200000")), "{headers}");
    Ok(())
}
