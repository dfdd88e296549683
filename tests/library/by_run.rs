//! `pagelift run --via preload`, and the fall-back to it if ptrace is refused.

use crate::library_folder;
use anyhow::{Result, ensure};
use std::fs::File;
use std::process::Command;
use std::time::Duration;
use test_support::{Context, Ending, Need, Output, Program, Test, View, copy_program, test_case};

const LIMIT: Duration = Duration::from_secs(240);

pub fn tests() -> Vec<Test> {
    let needs = || vec![Need::Command("gcc".into()), Need::Thp];
    let mut tests = vec![
        test_case("run_via_preload/lifts_the_program", needs(), lifts),
        test_case("run_via_preload/lifts_only_the_program", needs(), lifts_no_descendant),
        test_case("run_via_preload/names_what_it_cannot_do", needs(), names_what_it_cannot_do),
        test_case("run_via_preload/static_program_runs_as_it_is", needs(), static_program),
    ];
    for errno in ["1", "38"] {
        let name = format!("run_falls_back_to_preload/ptrace_refused_by_errno_{errno}");
        tests.push(test_case(name, needs(), move |t| falls_back(t, errno)));
    }
    for refusal in ["process_vm_readv:1", "process_vm_readv:38", "madvise:1", "madvise:22", "mremap:1", "prctl:1"] {
        let name = format!("run_via_preload/refused_{}", refusal.replace(':', "_by_errno_"));
        tests.push(test_case(name, needs(), move |t| survives(t, refusal)));
    }
    tests
}

/// Runs `pie_by_default.c`, started by `starts_another_with.c` with these words if there are any. Returns the huge
/// bytes of its executable while it waits, and its output.
fn lifted(t: &Context, words: &[&str], options: &[&str]) -> Result<(u64, Output)> {
    library_folder()?;
    let run = t.lifted(options, &Program::named("start/pie_by_default.c")?.command()?)?;
    let command = if words.is_empty() {
        run
    } else {
        let mut launcher = Program::named("start/starts_another_with.c")?.command()?;
        launcher.args(words).arg("--").arg(run.get_program()).args(run.get_args());
        launcher
    };
    let mut session = t.session_within(command, LIMIT)?;
    session.wait_for_line("ready")?;
    let view = View::of(session.pid())?;
    view.check_read_only_contents(view.executable()?)?;
    session.send("go on\n")?;
    let output = session.finish()?;
    ensure!(output.ending == Ending::Exit(0), "{:?}: {}", output.ending, output.stderr);
    Ok((view.huge_bytes(), output))
}

/// The output lines of Pagelift and the library.
fn said(output: &Output) -> String {
    output.own_lines().join("\n")
}

fn lifts(t: &Context) -> Result<()> {
    let (huge, output) = lifted(t, &[], &["--via", "preload", "--pages", "thp"])?;
    ensure!(huge > 8 << 20 && output.own_lines().len() == 1, "{huge} bytes: {}", output.stderr);
    let (_, output) = lifted(t, &[], &["--via", "preload", "--pages", "thp", "--verbose"])?;
    ensure!(said(&output).contains("pie_by_default text"), "{}", output.stderr);
    let (huge, output) = lifted(t, &[], &["--via", "preload", "--pages", "thp", "--quiet", "--lift", "rodata"])?;
    ensure!(huge > 0 && huge < 8 << 20 && output.own_lines().is_empty(), "{huge} bytes: {}", output.stderr);
    Ok(())
}

/// No child inherits the variables.
fn lifts_no_descendant(t: &Context) -> Result<()> {
    library_folder()?;
    let mut shell = Command::new("sh");
    shell.args(["-c", "env | grep -c LD_PRELOAD; sh -c 'true'; true"]);
    let output = t.run_within(t.lifted(&["--via", "preload"], &shell)?, LIMIT)?;
    ensure!(output.stdout == "0\n" && output.own_lines().len() == 1, "{}\n{}", output.stdout, output.stderr);
    Ok(())
}

fn names_what_it_cannot_do(t: &Context) -> Result<()> {
    library_folder()?;
    let truth = Command::new("true");
    let cases: [&[&str]; 4] = [&["--report", "report.json"], &["--perf-map"], &["--pages", "image"], &["--dry-run"]];
    for options in cases {
        let all = [&["--via", "preload"], options].concat();
        let output = t.run_within(t.lifted(&all, &truth)?, LIMIT)?;
        let needed = format!("{} needs --via ptrace", options.join(" ").replace(" report.json", ""));
        ensure!(said(&output).contains(&needed), "no `{needed}`: {}", output.stderr);
        let expected = if options.contains(&"--dry-run") { 125 } else { 0 };
        ensure!(output.ending == Ending::Exit(expected), "{:?}: {}", output.ending, output.stderr);
        let required = [&["--require"], all.as_slice()].concat();
        let output = t.run_within(t.lifted(&required, &truth)?, LIMIT)?;
        ensure!(output.ending == Ending::Exit(125), "{:?}: {}", output.ending, output.stderr);
    }
    Ok(())
}

fn static_program(t: &Context) -> Result<()> {
    library_folder()?;
    // A file that is larger than all memory, and almost empty: a reader can read only its headers.
    let (built, large) = (Program::named("start/static_glibc.c")?.build()?, t.folder().join("large"));
    copy_program(t, &built, &large)?;
    File::options().write(true).open(&large)?.set_len(1 << 40)?;
    for program in [built, large] {
        let mut session = t.session_within(t.lifted(&["--via", "preload"], &Command::new(program))?, LIMIT)?;
        session.wait_for_line("ready")?;
        session.send("go on\n")?;
        let output = session.finish()?;
        ensure!(output.ending == Ending::Exit(0), "{:?}: {}", output.ending, output.stderr);
        ensure!(said(&output).contains("linked statically, so that nothing can be preloaded"), "{}", output.stderr);
    }
    Ok(())
}

fn falls_back(t: &Context, errno: &str) -> Result<()> {
    let refuse = format!("refuse=ptrace:{errno}");
    let (huge, output) = lifted(t, &[&refuse], &["--pages", "thp"])?;
    ensure!(huge > 8 << 20, "{huge} bytes: {}", output.stderr);
    for words in ["lifted by preload: ptrace is refused", "on 2 MiB pages"] {
        ensure!(said(&output).contains(words), "no `{words}`: {}", output.stderr);
    }
    let (huge, output) = lifted(t, &[&refuse], &["--pages", "thp", "--quiet"])?;
    ensure!(huge > 8 << 20 && output.own_lines().is_empty(), "{huge} bytes: {}", output.stderr);
    let (huge, output) = lifted(t, &[&refuse], &["--pages", "thp", "--via", "ptrace"])?;
    ensure!(huge == 0 && said(&output).contains("not lifted: ptrace is refused"), "{huge} bytes: {}", output.stderr);
    Ok(())
}

/// A call of the lift is refused: the program continues with its contents, and one line reports the refusal.
fn survives(t: &Context, refusal: &str) -> Result<()> {
    let refuse = format!("refuse={refusal}");
    let (huge, output) = lifted(t, &[&refuse], &["--via", "preload", "--pages", "thp"])?;
    ensure!(output.own_lines().len() == 1, "not one line: {}", output.stderr);
    println!("refused {refusal}: {} KiB huge: {}", huge >> 10, said(&output));
    Ok(())
}
