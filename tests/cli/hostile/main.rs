//! Every command that reads a process or a file, against every hostile process and file: its output, time and memory,
//! and the files that it writes. The list of commands is read from the command line's own definition.

mod table;
mod things;

use anyhow::{Context as _, Result, ensure};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;
use table::{ALONE, Alone, Leaf, USES, Use, Value, differences, leaves};
use test_support::{Context, ControlGroup, Ending, Limit, Need, Output, Session, Test, main_of_waiting, test_case};
use things::{FORGED, Process, REACHED, ROOTS_TEXT, Thing, What, becomes_a_command};

/// Memory limit of a command, or of commands that run at the same time, in bytes.
const MOST_MEMORY: u64 = 640 << 20;
/// Time limit of a command.
const MOST_TIME: Duration = Duration::from_secs(180);

fn main() -> ExitCode {
    let needs = || vec![Need::Root, Need::Command("gcc".into()), Need::Command("setpriv".into())];
    let mut tests: Vec<Test> = vec![
        test_case("hostile/every_argument_is_known", Vec::new(), |_| {
            let found = differences(&leaves());
            ensure!(found.is_empty(), "{}", found.join("\n"));
            Ok(())
        }),
        test_case("hostile/a_name_that_is_not_quoted_is_found", needs(), |_| {
            let unquoted = "pagelift cache prepare 'x'; touch reached; ''";
            ensure!(becomes_a_command(unquoted)? && !becomes_a_command("pagelift \"x'; touch reached; '\"")?);
            Ok(())
        }),
        test_case("hostile/report/a_link_under_the_fixed_name", needs(), fixed_name),
        test_case("hostile/units/a_program_of_a_user", needs(), program_of_a_user),
        test_case("hostile/image_add/a_link_of_a_user", [needs(), vec![Need::Thp]].concat(), image_of_a_link),
    ];
    for leaf in leaves() {
        let name = format!("hostile/every_command/{}", leaf.name.replace(' ', "_"));
        let looks = USES.iter().any(|entry| entry.command == leaf.name && !matches!(entry.value, Value::Own));
        let around = ALONE.iter().any(|(name, alone)| *name == leaf.name && matches!(alone, Alone::LooksAround(_)));
        if looks || around {
            tests.push(test_case(name, needs(), move |t| every_thing(t, &leaf)));
        }
    }
    main_of_waiting(tests)
}

/// Runs one command against all hostile things.
fn every_thing(t: &Context, leaf: &Leaf) -> Result<()> {
    let (folder, others) = (things::folder()?, things::folder()?);
    let files = things::files(t, folder.path())?;
    let processes = things::processes(t, others.path())?;
    let all: Vec<&Thing> = processes.iter().chain(&files).collect();
    let some = all.iter().find_map(|thing| process_of(thing)).context("no process")?;
    let run = Run { t, leaf, group: ControlGroup::with(t, Limit::Memory, MOST_MEMORY)?, pid: some.session.pid() };
    let mut count = 0;
    if let Some((_, Alone::LooksAround(words))) = ALONE.iter().find(|(name, _)| *name == leaf.name) {
        run.both(words, &[(OsString::new(), "nothing")])?;
        count += 1;
    }
    for entry in USES.iter().filter(|entry| entry.command == leaf.name) {
        let values: Vec<(OsString, &str)> =
            all.iter().filter_map(|thing| Some((value_of(entry, thing)?, thing.name.as_str()))).collect();
        // A command that measures waits most of the time: it is run on all things at once.
        let at_once = if entry.words.contains(&"--for") { values.len().max(1) } else { 1 };
        for values in values.chunks(at_once) {
            run.both(entry.words, values)?;
        }
        count += values.len();
        if matches!(entry.value, Value::Written) {
            run.written(entry, folder.path())?;
            count += 1;
        }
    }
    ensure!(count > 0, "nothing was run");
    for Thing { name, what, .. } in processes {
        if let What::Process(mut process) = what {
            ensure!(!process.session.has_ended()?, "{name} has ended");
            process.session.send("go on\n")?;
        }
    }
    Ok(())
}

fn process_of(thing: &Thing) -> Option<&Process> {
    match &thing.what {
        What::Process(process) => Some(process),
        What::File(_) => None,
    }
}

/// The value of an argument that names a thing; `None` if no value does.
fn value_of(entry: &Use, thing: &Thing) -> Option<OsString> {
    match (entry.value, &thing.what) {
        (Value::Process, What::Process(process)) => Some(process.session.pid().to_string().into()),
        (Value::Name, What::Process(process)) => Some(process.program.file_name()?.to_owned()),
        (Value::File | Value::Program, What::File(path)) => Some(path.clone().into()),
        // Other files are executed by a shell, whose output is arbitrary.
        (Value::Started, What::File(path)) if thing.is_program => Some(path.clone().into()),
        _ => None,
    }
}

/// One command with little memory.
struct Run<'a> {
    t: &'a Context,
    leaf: &'a Leaf,
    group: ControlGroup,
    /// A process of the other user.
    pid: u32,
}

impl Run<'_> {
    /// Runs it on these things at once, with text output and, if it has `--json`, with JSON output.
    fn both(&self, words: &[&str], values: &[(OsString, &str)]) -> Result<()> {
        self.each(words, values)?;
        if self.leaf.has_json {
            for (output, what) in self.each(&[&["--json"], words].concat(), values)? {
                let is_json = serde_json::from_str::<serde_json::Value>(&output.stdout).is_ok();
                ensure!(output.stdout.is_empty() || is_json, "{what}: {output:?}");
            }
        }
        Ok(())
    }

    /// Runs it on these things at once. Returns each output, and the description of the run.
    fn each(&self, words: &[&str], values: &[(OsString, &str)]) -> Result<Vec<(Output, String)>> {
        let mut runs = Vec::new();
        for (value, thing) in values {
            let words: Vec<OsString> = words.iter().map(|word| self.word(word, value)).collect();
            runs.push(self.start(&words, thing)?);
        }
        runs.into_iter().map(|run| self.end(run)).collect()
    }

    fn word(&self, word: &str, value: &OsStr) -> OsString {
        match word {
            "{}" => value.to_owned(),
            "{pid}" => self.pid.to_string().into(),
            "{folder}" => self.t.folder().into(),
            word => word.into(),
        }
    }

    fn start(&self, words: &[OsString], thing: &str) -> Result<(Session, String)> {
        let mut command = self.t.pagelift(&self.leaf.name.split(' ').collect::<Vec<_>>())?;
        command.args(words);
        let what = format!("{} {words:?}, {thing}", self.leaf.name);
        Ok((self.t.session_within(self.group.around(&command), MOST_TIME)?, what))
    }

    fn end(&self, (session, what): (Session, String)) -> Result<(Output, String)> {
        let output = session.finish().with_context(|| what.clone())?;
        self.t.keep(&output);
        ensure!(matches!(output.ending, Ending::Exit(_)), "{what}: {output:?}");
        check(&output).with_context(|| what.clone())?;
        Ok((output, what))
    }

    /// Makes the command write to a path that is a link of the other user to a file of root.
    fn written(&self, entry: &Use, folder: &Path) -> Result<()> {
        let (link, file) = things::link_to_roots_file(self.t, folder)?;
        let record = self.t.folder().join("record");
        if entry.words.contains(&"{record}") {
            make_record(self.t, &record)?;
        }
        let word = |word: &&str| {
            if *word == "{record}" { record.clone().into() } else { self.word(word, link.as_os_str()) }
        };
        let words: Vec<OsString> = entry.words.iter().map(word).collect();
        self.end(self.start(&words, "a link")?)?;
        let text = fs::read_to_string(&file)?;
        ensure!(text == ROOTS_TEXT, "{}: root's file has become\n{text}", entry.command);
        fs::remove_file(link)?;
        Ok(())
    }
}

fn make_record(t: &Context, path: &Path) -> Result<()> {
    let mut command = t.pagelift(&["bench", "--for", "1s", "--output"])?;
    command.arg(path).args(["--", "true"]);
    t.run(command)?;
    ensure!(path.exists(), "no record");
    Ok(())
}

/// Checks the output.
fn check(output: &Output) -> Result<()> {
    for text in [&output.stdout, &output.stderr] {
        let acts = text.chars().find(|c| *c != '\n' && foreign_text::acts_on_reader(*c));
        ensure!(acts.is_none(), "{acts:?} was printed: {text:?}");
        let forged = text.lines().find(|line| line.trim_start_matches(['|', ' ']).starts_with(FORGED));
        ensure!(forged.is_none(), "a line of another's making: {text}");
        for command in commands_in(text).filter(|command| command.contains(REACHED)) {
            ensure!(!becomes_a_command(command)?, "`{command}` would execute what a name says, in {text}");
        }
    }
    Ok(())
}

/// Commands in the output for the user to run: between backticks, and after words that announce a command.
fn commands_in(text: &str) -> impl Iterator<Item = &str> {
    const BEFORE: [&str; 11] = [
        "fix: ",
        "fix, as root: ",
        "start it again: ",
        "undo: ",
        "now: ",
        "then ",
        "run ",
        "  run ",
        "  measure ",
        "  fix ",
        "as root, ",
    ];
    text.lines().flat_map(|line| {
        let announced =
            BEFORE.iter().filter_map(move |before| line.split_once(before).map(|(_, command)| command.trim()));
        announced.chain(line.split('`').skip(1).step_by(2))
    })
}

/// The page has a fixed name in the working folder, which belongs to the other user.
fn fixed_name(t: &Context) -> Result<()> {
    let folder = things::folder()?;
    let (link, file) = things::link_to_roots_file(t, folder.path())?;
    let page = folder.path().join("pagelift-report.html");
    fs::rename(link, &page)?;
    let record = t.folder().join("record");
    make_record(t, &record)?;
    let mut command = t.pagelift(&["report"])?;
    command.arg(&record).current_dir(folder.path());
    t.run(command)?.success()?;
    let text = fs::read_to_string(&file)?;
    ensure!(text == ROOTS_TEXT, "root's file has become\n{text}");
    ensure!(page.symlink_metadata()?.is_file() && fs::read_to_string(&page)?.contains("<html"), "no page");
    Ok(())
}

/// Units of root do not execute programs that a user can replace.
fn program_of_a_user(t: &Context) -> Result<()> {
    let folder = things::folder()?;
    let own = folder.path().join("pagelift");
    test_support::copy_program(t, &test_support::pagelift_binary()?, &own)?;
    ensure!(fs::metadata(&own)?.uid() == 0);
    let units = t.folder().join("units");
    let mut pool = Command::new(&own);
    pool.args(["pool", "plan", "--install", "systemd", "--name", "pagelift-test-of-hostile"]);
    pool.args(["--pages", "hugetlb", "--", "/bin/true"]);
    let mut image = Command::new(&own);
    image
        .args(["image", "setup", "--install", "systemd", "--store", "/run/pagelift-test-of-hostile", "--unit-folder"])
        .arg(&units);
    let mut enable = Command::new(&own);
    enable.args(["enable", "no-such-unit-at-all"]);
    for command in [image, pool, enable] {
        let output = t.run(command)?;
        ensure!(output.ending != Ending::Exit(0), "{output:?}");
        let is_other = output.stderr.contains("needs no pages of a pool");
        let is_refused = output.stderr.contains("would be executed by root, but ") && output.stderr.contains("fix: ");
        ensure!(is_refused || is_other, "{output:?}");
    }
    ensure!(!units.exists() && !Path::new("/run/pagelift-test-of-hostile").exists(), "something was written");
    Ok(())
}

/// Root opens a path of the other user with that user's rights.
fn image_of_a_link(t: &Context) -> Result<()> {
    let folder = things::folder()?;
    let (link, file) = things::link_to_roots_file(t, folder.path())?;
    test_support::copy_program(t, Path::new("/bin/sh"), &file)?;
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
    let store = test_support::TestStore::of(t, "64M")?;
    let output = store.image(t, "add", &["--", &link.to_string_lossy()])?;
    ensure!(output.ending != Ending::Exit(0) && output.stderr.contains("Permission denied"), "{output:?}");
    Ok(())
}
