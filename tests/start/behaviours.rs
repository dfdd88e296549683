//! Every program in `tests/start/programs` with expectations, plain and lifted in each of its ways: same output, same
//! ending, same protections, same read-only bytes, and the due memory on huge pages.

use anyhow::{Context as _, Result, bail, ensure};
use std::process::{Command, ExitCode};
use std::time::Duration;
use test_support::{
    Context, Ending, Kind, Need, Output, PoolReservation, Program, Test, View, check_lifted, check_unlifted,
    default_huge_page, main_of, program_files, source_of, test_case,
};

const LIMIT: Duration = Duration::from_secs(300);

fn main() -> ExitCode {
    let programs = program_files().and_then(|files| files.into_iter().map(Program::of).collect::<Result<Vec<_>>>());
    match programs.and_then(|programs| programs.iter().map(tests_of).collect::<Result<Vec<_>>>()) {
        Ok(tests) => main_of(tests.into_iter().flatten().collect()),
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn tests_of(program: &Program) -> Result<Vec<Test>> {
    if program.directives("expect").is_empty() {
        return Ok(Vec::new());
    }
    let pages = program.directive("pages").unwrap_or_else(|| "hugetlb thp".to_owned());
    let mut tests = Vec::new();
    for pages in pages.split_whitespace().map(str::to_owned) {
        let mut needs = program.needs()?;
        if pages == "thp" {
            needs.retain(|need| !matches!(need, Need::Pool(_)));
            needs.push(Need::Thp);
        }
        let program = program.clone();
        tests.push(test_case(format!("{}/{pages}", program.name()), needs, move |t| compare(t, &program, &pages)));
    }
    Ok(tests)
}

fn compare(t: &Context, program: &Program, pages: &str) -> Result<()> {
    let command = program.command()?;
    let mut plain_view = None;
    let plain = watch(t, program, launched(program, &command)?, |view| {
        plain_view = Some(view);
        Ok(())
    })?;
    check_ending(program, &plain)?;
    let lifted = t.lifted(&options_of(program, pages).iter().map(String::as_str).collect::<Vec<_>>(), &command)?;
    let lifted = watch(t, program, launched(program, &lifted)?, |view| {
        compare_protections(plain_view.as_ref().context("no view of the plain program")?, &view)?;
        check_view(program, pages, &view)
    })?;

    ensure!(plain.ending == lifted.ending, "plain {:?}, lifted {:?}:\n{}", plain.ending, lifted.ending, lifted.stderr);
    ensure!(plain.stdout == lifted.stdout, "plain printed\n{}\nlifted\n{}", plain.stdout, lifted.stdout);
    ensure!(plain.stderr == lifted.foreign_stderr(), "plain said\n{}\nlifted\n{}", plain.stderr, lifted.stderr);
    for text in program.expectations("says").iter().chain(&program.expectations("unlifted")) {
        ensure!(lifted.own_lines().iter().any(|l| l.contains(text)), "it does not say `{text}`:\n{}", lifted.stderr);
    }
    t.pool().map_or(Ok(()), PoolReservation::wait_until_all_free)
}

fn options_of(program: &Program, pages: &str) -> Vec<String> {
    let mut options = vec!["--pages".to_owned(), pages.split('-').next().unwrap_or(pages).to_owned()];
    if pages.ends_with("-writable") {
        options.extend(["--writable-pages".to_owned(), "hugetlb".to_owned()]);
    }
    options.extend(program.directive("options").unwrap_or_default().split_whitespace().map(str::to_owned));
    options
}

/// The command with the program's `launch:` words before it.
fn launched(program: &Program, command: &Command) -> Result<Command> {
    let Some(words) = program.directive("launch") else { return copy(command) };
    let mut words = words.split_whitespace();
    let mut launcher = Command::new(words.next().context("an empty `launch:`")?);
    launcher.args(words).arg(command.get_program()).args(command.get_args());
    Ok(launcher)
}

fn copy(command: &Command) -> Result<Command> {
    let mut copy = Command::new(command.get_program());
    copy.args(command.get_args());
    Ok(copy)
}

/// Runs it to the end, and inspects it while it waits after `ready`.
fn watch(t: &Context, program: &Program, command: Command, look: impl FnOnce(View) -> Result<()>) -> Result<Output> {
    let looked_at =
        ["lifted", "lifted-object", "unlifted", "unlifted-object"].iter().any(|w| !program.expectations(w).is_empty());
    let mut session = t.session_within(command, LIMIT)?;
    if looked_at {
        session.wait_for_line("ready")?;
        look(View::of(session.pid())?).with_context(|| format!("it said {}", session.stderr_so_far().trim()))?;
        session.send("go on\n")?;
    }
    let output = session.finish()?;
    t.keep(&output);
    Ok(output)
}

fn check_ending(program: &Program, plain: &Output) -> Result<()> {
    for wanted in program.expectations("exit") {
        ensure!(plain.ending == Ending::Exit(wanted.parse()?), "the plain program ended with {:?}", plain.ending);
    }
    for wanted in program.expectations("signal") {
        ensure!(plain.ending == Ending::Signal(wanted.parse()?), "the plain program ended with {:?}", plain.ending);
    }
    Ok(())
}

/// Each object of the plain process must have the same protections, page by page, in the lifted process.
fn compare_protections(plain: &View, lifted: &View) -> Result<()> {
    for object in &plain.objects {
        let other = lifted.object(&object.path)?;
        let (before, after) = (plain.protections(object), lifted.protections(other));
        ensure!(before == after, "protections of {}, plain\n{before}lifted\n{after}", object.path);
    }
    Ok(())
}

fn check_view(program: &Program, pages: &str, view: &View) -> Result<()> {
    let huge = default_huge_page()?;
    let executable = view.executable()?;
    if !executable.image.text_relocations {
        view.check_read_only_contents(executable)?;
    }
    let kinds = |words: &mut dyn Iterator<Item = &str>| words.map(Kind::parse).collect::<Result<Vec<_>>>();
    for words in program.expectations("lifted") {
        let kinds = kinds(&mut words.split_whitespace())?;
        check_lifted(view, executable, &kinds, huge, |writable| source_of(pages, writable))?;
    }
    for words in program.expectations("lifted-object") {
        let mut words = words.split_whitespace();
        let Some(name) = words.next() else { bail!("an object's name is missing") };
        let kinds = kinds(&mut words)?;
        check_lifted(view, view.object(name)?, &kinds, huge, |writable| source_of(pages, writable))?;
    }
    if !program.expectations("unlifted").is_empty() {
        check_unlifted(view, executable)?;
    }
    for name in program.expectations("unlifted-object") {
        check_unlifted(view, view.object(&name)?)?;
    }
    Ok(())
}
