//! Tools that read or write ELF files agree on a file before and after `pagelift align --relayout`.

use crate::align::align;
use crate::relayout::{OTHER_ADDRESS, disagreeing, relayout};
use crate::{needs, prepared_and_held};
use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use test_support::{Context, Ending, Need, Output, Test, copy_program, test_case};

pub fn tests() -> Vec<Test> {
    let with = |commands: &[&str]| {
        let commands = commands.iter().map(|command| Need::Command((*command).into())).collect();
        [needs(), commands].concat()
    };
    let binaries = ["readelf", "nm", "addr2line", "ldd"];
    vec![
        test_case("relayout/binutils_find_the_same", with(&binaries), binutils),
        test_case("relayout/elfutils_find_the_same", with(&["eu-elflint", "eu-addr2line"]), elfutils),
        test_case("relayout/strip_and_objcopy_keep_the_layout", with(&["strip", "objcopy"]), stripped),
        test_case("relayout/patchelf_writes_programs_that_start", with(&["patchelf"]), patchelf),
        test_case("relayout/gdb_finds_the_same", with(&["gdb"]), debugger),
        test_case("relayout/separate_debugging_information_is_found", with(&["gdb", "objcopy"]), separate),
        test_case("relayout/perf_names_the_same_function", with(&["perf"]), perf),
    ]
}

/// Flags of a program of a fixed address.
const FIXED: &[&str] = &["-no-pie", "-Wl,-Ttext=0x1001000"];

fn output(t: &Context, program: &str, options: &[&str], path: &Path) -> Result<Output> {
    let mut command = Command::new(program);
    command.args(options).arg(path).stdin(Stdio::null());
    t.run(command)
}

fn said(t: &Context, program: &str, options: &[&str], path: &Path) -> Result<String> {
    let output = output(t, program, options, path)?.success().with_context(|| format!("{program} {options:?}"))?;
    ensure!(output.stderr.is_empty(), "{program} {options:?}: {}", output.stderr);
    Ok(output.stdout)
}

/// Copies of a program in its first and its second layout.
fn both(t: &Context, flags: &[&str]) -> Result<[PathBuf; 2]> {
    both_of(t, &disagreeing(t, flags)?)
}

fn both_of(t: &Context, program: &Path) -> Result<[PathBuf; 2]> {
    let folders = ["before", "after"].map(|name| t.folder().join(name));
    for folder in &folders {
        fs::create_dir(folder)?;
        copy_program(t, program, &folder.join("disagreeing"))?;
    }
    let both = folders.map(|folder| folder.join("disagreeing"));
    relayout(t, &[], &both[1])?;
    Ok(both)
}

/// Compares the lines that a program prints about both files, except headings, which name the file and offsets.
fn same(t: &Context, both: &[PathBuf; 2], program: &str, options: &[&str]) -> Result<()> {
    let lines = |path: &Path| -> Result<Vec<String>> {
        let text = said(t, program, options, path)?;
        let lines = text.lines().filter(|line| !line.contains(" at offset 0x"));
        Ok(lines.map(|line| line.replace("/before/", "/").replace("/after/", "/")).collect())
    };
    let before = lines(&both[0])?;
    ensure!(before == lines(&both[1])? && !before.is_empty(), "{program} {options:?} differ");
    Ok(())
}

fn binutils(t: &Context) -> Result<()> {
    let both = both(t, OTHER_ADDRESS)?;
    same(t, &both, "nm", &["-a"])?;
    same(t, &both, "readelf", &["-nsdrVW"])?;
    same(t, &both, "readelf", &["--debug-dump=info"])?;
    same(t, &both, "readelf", &["--debug-dump=frames"])?;
    same(t, &both, "addr2line", &["-f", "0x1801010", "-e"])?;
    for path in &both {
        for (program, options) in [("readelf", vec!["-lSW"]), ("ldd", vec![])] {
            said(t, program, &options, path)?;
        }
    }
    Ok(())
}

fn elfutils(t: &Context) -> Result<()> {
    for flags in [OTHER_ADDRESS, FIXED] {
        let both = both(t, flags)?;
        // It complains about some files of every linker.
        let [before, after] = [&both[0], &both[1]].map(|path| output(t, "eu-elflint", &["--gnu-ld"], path));
        let (before, after) = (before?, after?);
        ensure!(before.stdout == after.stdout && before.ending == after.ending, "{before:?}, {after:?}");
        same(t, &both, "eu-addr2line", &["-f", "0x1801010", "-e"])?;
        for folder in ["before", "after"] {
            fs::remove_dir_all(t.folder().join(folder))?;
        }
    }
    Ok(())
}

/// True if a layout is what `align --relayout` would make.
fn is_laid_out(t: &Context, path: &Path) -> Result<bool> {
    Ok(relayout(t, &["--check"], path)?.contains("already"))
}

fn starts(t: &Context, path: &Path) -> Result<()> {
    crate::started(t, path)?.finish()?.success().map(drop)
}

fn stripped(t: &Context) -> Result<()> {
    for flags in [OTHER_ADDRESS, FIXED] {
        let program = disagreeing(t, flags)?;
        relayout(t, &[], &program)?;
        for words in [&["strip", "-o"][..], &["strip", "-g", "-o"], &["objcopy"]] {
            let out = t.folder().join("edited");
            let mut command = Command::new(words[0]);
            command.args(&words[1..]);
            match words[0] {
                "strip" => command.arg(&out).arg(&program),
                _ => command.arg(&program).arg(&out),
            };
            t.run(command)?.success()?;
            starts(t, &out)?;
            ensure!(is_laid_out(t, &out)?, "{words:?} has given it another layout");
            fs::remove_file(out)?;
        }
        // In its own place the file keeps the record of a layout that it no longer has.
        said(t, "strip", &[], &program)?;
        let undone = align(t, &["--undo"], &program)?;
        ensure!(undone.ending == Ending::Exit(125) && undone.stderr.contains("no sound record"), "{undone:?}");
        starts(t, &program)?;
        fs::remove_file(program)?;
    }
    Ok(())
}

/// patchelf makes room in a program of a fixed address by moving all of its contents a page; it keeps other layouts.
fn patchelf(t: &Context) -> Result<()> {
    let own = said(t, "patchelf", &["--print-interpreter"], &disagreeing(t, FIXED)?)?;
    let longer = format!("/proc/self/root{}", own.trim());
    let edits: [(&[&str], &[&str]); 2] =
        [(OTHER_ADDRESS, &["--set-interpreter", &longer]), (FIXED, &["--set-rpath", "/nowhere"])];
    for (flags, edit) in edits {
        let program = disagreeing(t, flags)?;
        relayout(t, &[], &program)?;
        said(t, "patchelf", edit, &program)?;
        starts(t, &program)?;
        let undone = align(t, &["--undo"], &program)?;
        ensure!(undone.ending == Ending::Exit(125) && undone.stderr.contains("no sound record"), "{undone:?}");
        ensure!(is_laid_out(t, &program)? == (flags == OTHER_ADDRESS), "{edit:?}");
        relayout(t, &[], &program)?;
        let (_, _held) = prepared_and_held(t, &program)?;
        ensure!(crate::huge_bytes(&crate::started(t, &program)?)? > 0, "{edit:?}: no huge page");
        fs::remove_file(program)?;
    }
    Ok(())
}

/// The stack at a breakpoint and the line of a function, without addresses: the base differs.
fn shown_by_gdb(t: &Context, path: &Path) -> Result<Vec<String>> {
    let commands = ["-nx", "-batch", "-ex", "break ready", "-ex", "run", "-ex", "backtrace", "-ex", "info line main"];
    let output = output(t, "gdb", &commands, path)?;
    let without_addresses = |line: &str| {
        let words = line.split_whitespace().filter(|word| !word.starts_with("0x"));
        words.collect::<Vec<_>>().join(" ")
    };
    let is_shown = |line: &&str| line.starts_with(['#', 'L']);
    let lines: Vec<String> = output.stdout.lines().filter(is_shown).map(without_addresses).collect();
    let finds = |text: &str| lines.iter().any(|line| line.contains(text));
    ensure!(finds("#1 ") && finds("large_code.c:") && finds("Line "), "no backtrace with lines: {output:?}");
    Ok(lines)
}

fn debugger(t: &Context) -> Result<()> {
    let both = both(t, OTHER_ADDRESS)?;
    ensure!(shown_by_gdb(t, &both[0])? == shown_by_gdb(t, &both[1])?, "gdb shows something else");
    Ok(())
}

/// Debugging information in another file, as packages have it, belongs to both layouts.
fn separate(t: &Context) -> Result<()> {
    let program = disagreeing(t, OTHER_ADDRESS)?;
    let file = t.folder().join("disagreeing.debug");
    let mut objcopy = Command::new("objcopy");
    objcopy.arg("--only-keep-debug").arg(&program).arg(&file);
    t.run(objcopy)?.success()?;
    let mut objcopy = Command::new("objcopy");
    objcopy.arg("--strip-debug").arg(format!("--add-gnu-debuglink={}", file.display())).arg(&program);
    t.run(objcopy)?.success()?;
    let both = both_of(t, &program)?;
    for path in &both {
        fs::copy(&file, path.with_file_name("disagreeing.debug"))?;
    }
    let before = shown_by_gdb(t, &both[0])?;
    ensure!(before == shown_by_gdb(t, &both[1])?, "gdb shows something else");
    same(t, &both, "addr2line", &["-f", "0x1801010", "-e"])
}

fn perf(t: &Context) -> Result<()> {
    let source = t.folder().join("spins.c");
    let text = "__attribute__((constructor)) void spins(void) { for (volatile long i = 0; i < 300000000; i++); }\n";
    fs::write(&source, text)?;
    let both = both(t, &[OTHER_ADDRESS[0], &source.to_string_lossy()])?;
    for (path, cache) in both.iter().zip(["cache-before", "cache-after"]) {
        let data = t.folder().join("perf.data");
        let perf = || {
            let mut command = Command::new("perf");
            command.arg("--buildid-dir").arg(t.folder().join(cache));
            command
        };
        let mut record = perf();
        record.args(["record", "-q", "-e", "cpu-clock:u", "-o"]).arg(&data).arg("--").arg(path).stdin(Stdio::null());
        t.run(record)?.success()?;
        let mut report = perf();
        report.args(["report", "--stdio", "--sort", "symbol", "-i"]).arg(&data);
        let text = t.run(report)?.success()?.stdout;
        let line =
            text.lines().find(|line| line.contains("] spins ")).with_context(|| format!("no function:\n{text}"))?;
        let share: f64 = line.trim().split('%').next().unwrap_or_default().parse()?;
        ensure!(share > 50.0, "{}: {line}", path.display());
    }
    Ok(())
}
