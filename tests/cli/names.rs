//! One program, one name: a file that has two, and the name in the words of each command.

use crate::{alone, needs_thp};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::fs;
use std::path::Path;
use test_support::{Context, Need, Program, Session, Test, mebibytes, test_case};

/// Makes a link to a file.
type Link = fn(&Path, &Path) -> std::io::Result<()>;

/// Name of the file.
const FILE: &str = "the-file";
/// Name by which it is started.
const STARTED: &str = "a-server";

/// Commands, each with the number of the process at its end.
const COMMANDS: [&str; 9] = [
    "status",
    "inspect",
    "attach --dry-run",
    "doctor",
    "stat --for 200ms -p",
    "bench --for 1s --lift text --toggle",
    "attach",
    "status",
    "detach",
];

/// A test for each kind of link.
pub fn tests() -> Vec<Test> {
    let needs = || vec![Need::Root, Need::Pool(0), Need::Command("gcc".into())];
    let links: [(&str, Link); 2] = [
        ("hard", |file, link| fs::hard_link(file, link)),
        ("symbolic", |file, link| std::os::unix::fs::symlink(file, link)),
    ];
    let test =
        |(name, link)| test_case(format!("one_program_has_one_name/{name}_link"), needs(), move |t| named(t, link));
    let of_library = test_case("one_program_has_one_name/in_the_library", needs(), in_the_library);
    links.into_iter().map(test).chain([of_library]).collect()
}

fn named(t: &Context, link: Link) -> Result<()> {
    let _alone = alone();
    needs_thp()?;
    let (file, started) = (t.folder().join(FILE), t.folder().join(STARTED));
    fs::copy(Program::named("cli/has_constants_and_heap.c")?.build()?, &file)?;
    link(&file, &started)?;
    let mut session = t.session(std::process::Command::new(&started))?;
    session.wait_for_line("ready")?;
    let outputs = COMMANDS.iter().map(|words| Ok((*words, run(t, words, &session)?))).collect::<Result<Vec<_>>>()?;
    for (words, output) in &outputs {
        ensure!(output.contains(STARTED) && !output.contains(FILE), "{words}: {output}");
    }
    let status: Value = serde_json::from_str(&run(t, "status --json", &session)?)?;
    ensure!(status["name"] == STARTED && status["objects"][0]["name"] == STARTED, "{status}");
    let plan: Value = serde_json::from_str(&run(t, "inspect --json", &session)?)?;
    let objects: Vec<_> =
        plan["plan"]["lifts"].as_array().context("no plan")?.iter().map(|lift| &lift["object"]).collect();
    ensure!(objects.iter().any(|object| *object == STARTED) && !objects.iter().any(|object| *object == FILE), "{plan}");
    // Both names choose the object.
    for name in [STARTED, FILE].into_iter().filter(|name| *name == STARTED || started.is_symlink()) {
        let dry_run = run(t, &format!("attach --dry-run --objects {name}"), &session)?;
        ensure!(mebibytes(dry_run.split_once(": ").context("no plan")?.1)? > 0.0, "{name}: {dry_run}");
    }
    session.send("\n")?;
    session.finish()?.success().map(drop)
}

/// libpagelift in the program itself.
fn in_the_library(t: &Context) -> Result<()> {
    needs_thp()?;
    let (file, started) = (t.folder().join(FILE), t.folder().join(STARTED));
    fs::copy(Program::named("cli/has_constants_and_heap.c")?.build()?, &file)?;
    std::os::unix::fs::symlink(&file, &started)?;
    let words = ["--via", "preload", "--pages", "thp", "--verbose"];
    let mut session = t.session(t.lifted(&words, &std::process::Command::new(&started))?)?;
    session.wait_for_line("ready")?;
    session.send("\n")?;
    let said = session.finish()?.success()?.stderr;
    ensure!(said.contains(&format!("pagelift: {STARTED}[")) && !said.contains(FILE), "{said}");
    Ok(())
}

/// The output of a command with the number of the process at its end.
fn run(t: &Context, words: &str, session: &Session) -> Result<String> {
    let pid = session.pid().to_string();
    let words: Vec<&str> = words.split(' ').chain([pid.as_str()]).collect();
    let output = t.run(t.pagelift(&words)?)?;
    Ok(output.stdout + &output.stderr)
}
