//! `pagelift enable`.

use super::facts::{likely_folders, named_programs, ordered_behind, programs, surroundings, this_program, with_path};
use super::lift_args::LiftArgs;
use super::memory::{self, MemoryArgs, Writing};
use super::systemd::{self, FOLDERS, Unit, counts_before, write};
use super::{Changed, restarted, words};
use crate::output::Output;
use crate::root_program;
use crate::say;
use anyhow::{Context, bail, ensure};
use clap::Args;
use serde::Serialize;
use service_units::{
    Choice, CommandError, DropIn, ExecCommand, LaunchWords, Program, UnitCommands, Way, choose, shows,
};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// `pagelift enable`.
#[derive(Args, Clone)]
pub struct EnableArgs {
    /// Restart the service now, if it runs.
    #[arg(long)]
    now: bool,
    /// Only until the next boot.
    #[arg(long)]
    runtime: bool,
    /// Only show the file and the reasons.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    lift: LiftArgs,
    /// The service; a template's name ends in `@`, and counts for all instances.
    #[arg(value_name = "UNIT")]
    unit: String,
}

#[derive(Serialize)]
struct Document<'a> {
    format: &'static str,
    version: u32,
    unit: &'a str,
    choice: &'a Choice,
    path: &'a Path,
    text: &'a str,
    written: bool,
    restart: Option<String>,
}

/// Writes the drop-in file of a service, or the units that lift its memory while it runs.
pub fn enable(args: &EnableArgs) -> anyhow::Result<()> {
    let kinds = args.memory.kinds();
    if !kinds.is_empty() {
        let EnableArgs { now, runtime, dry_run, json, .. } = *args;
        return memory::enable(&args.unit, kinds, &Writing { now, runtime, dry_run, json });
    }
    let pagelift = this_program()?;
    if !args.dry_run {
        root_program::check(&pagelift)?;
    }
    let unit = load(args)?;
    let decide = |unit: &Unit| made(unit, &args.lift, &pagelift);
    let mut made = decide(&unit)?;
    let [lasting, until_boot] = FOLDERS.map(|folder| unit.drop_in(folder));
    let path = if args.runtime { &until_boot } else { &lasting };
    if args.runtime && lasting.exists() {
        return Err(counts_before(&unit.name, &lasting));
    }
    made.1.made_folder = is_made(path);
    if !args.json {
        show(&made, path)?;
    }
    let mut restart = None;
    if !args.dry_run {
        if let Some(now) = install(&unit, &made.1, path, decide)? {
            made = now;
            if !args.json {
                writeln!(Output::Standard, "otherwise, with the files that systemd has read only now:\n")?;
                show(&made, path)?;
            }
        }
        if !args.runtime && until_boot.exists() {
            take_away(&until_boot)?;
        }
        restart = restarted(&[Changed::look(&unit.name, true)?], args.now)?.pop();
    }
    conclude(args, &unit, &made, path, restart)
}

/// Prints the result; as JSON, with the file.
fn conclude(
    args: &EnableArgs,
    unit: &Unit,
    (choice, file): &Made,
    path: &Path,
    restart: Option<String>,
) -> anyhow::Result<()> {
    let out = Output::Standard;
    if args.json {
        let (unit, text) = (unit.name.as_str(), &file.text());
        let written = !args.dry_run;
        let document = Document { format: "pagelift-service", version: 1, unit, choice, path, text, written, restart };
        out.print_json(&document)?;
    } else {
        let done = restart.map_or_else(|| "nothing was written".to_owned(), |restart| format!("written; {restart}"));
        writeln!(out, "{done}")?;
    }
    Ok(())
}

/// Loads the service with its present files: systemd reads them again first if they have changed since the last time,
/// as it would once the drop-in file is written. A dry run changes no state, and is refused in that case.
fn load(args: &EnableArgs) -> anyhow::Result<Unit> {
    let name = systemd::service_name(&args.unit)?;
    let found = systemd::show(&systemd::instance(&name))?;
    // Files of an alias are not read.
    let real = if name.contains("@.") { &name } else { found.value("Id") };
    if systemd::is_changed(real, &found) {
        ensure!(!args.dry_run, "{name}: its files have changed since systemd read them; fix: systemctl daemon-reload");
        systemd::control(&["daemon-reload"])?;
        say!("pagelift: {name}: its files had changed since systemd read them; now read, by daemon-reload");
    }
    Unit::load(&name)
}

/// The decision, and the file that contains it.
type Made = (Choice, DropIn);

/// Decides, and makes the file.
pub fn made(unit: &Unit, lift: &LiftArgs, pagelift: &Path) -> anyhow::Result<Made> {
    let lines = unit.commands();
    ensure!(!lines.is_empty(), "{} has no ExecStart=; needed: a program that can be lifted", unit.name);
    let search = unit.properties.list("ExecSearchPath");
    let (read, refused) = read(&lines, &search)?;
    let mut programs = programs(unit, &read);
    let named = named_programs(&lift.only, &likely_folders(&search, &programs));
    if let Some(why) = refused {
        programs.push(Program { not_prefixable: Some(why), is_large: true, ..Program::default() });
    }
    let here = surroundings(pagelift);
    let wanted = words::wanted(lift, named);
    let choice = choose(&unit.properties, &programs, &wanted, &here)
        .map_err(|refusal| anyhow::anyhow!("{} cannot be lifted, and nothing was changed:\n  {refusal}", unit.name))?;
    let mut options = words::words(lift, choice.way);
    // The parent of such a service ends before it has paid for its lift, and a helper that waits hides the main process.
    if choice.way == Way::Ptrace && unit.properties.value("Type") == "forking" {
        options.push("--start-cost=any".to_owned());
    }
    let after = ordered_behind(unit);
    let commands: Vec<ExecCommand> = read.into_iter().flatten().flatten().collect();
    let asked = words::asked(lift);
    let words = LaunchWords { pagelift: &here.pagelift, asked: &asked, options: &options };
    let commands = UnitCommands { lines: &lines, parsed: &commands };
    let file = DropIn::new(&unit.name, &choice, commands, words, &after);
    Ok((choice, file))
}

/// The commands of each line, `None` for one that cannot be given again, and the reason.
type Read = (Vec<Option<Vec<ExecCommand>>>, Option<String>);

/// Reads the commands of each line; with the reason if one cannot be repeated, which only matters if it must be.
fn read(lines: &[String], search: &[String]) -> anyhow::Result<Read> {
    let (mut read, mut refused) = (Vec::new(), None);
    for line in lines {
        match ExecCommand::parse_line(line) {
            Ok(found) => {
                let found = found.into_iter().map(|command| with_path(command, search));
                read.push(Some(found.collect::<Result<_, _>>()?));
            }
            Err(error @ CommandError::NotPossible { .. }) => {
                refused = Some(error.to_string());
                read.push(None);
            }
            Err(error) => bail!("{error}"),
        }
    }
    Ok((read, refused))
}

fn show((choice, file): &Made, path: &Path) -> io::Result<()> {
    let out = Output::Standard;
    writeln!(out, "way: {}", choice.way)?;
    choice.reasons.iter().try_for_each(|reason| writeln!(out, "  {reason}"))?;
    writeln!(out, "\n{}:", path.display())?;
    file.text().lines().try_for_each(|line| out.print_whole(&format!("  {line}\n")))?;
    writeln!(out)
}

/// True if the file's folder is made for it, now or by an earlier `enable`.
fn is_made(path: &Path) -> bool {
    let earlier = fs::read_to_string(path).ok().and_then(|text| DropIn::parse(&text));
    earlier.map_or_else(|| path.parent().is_some_and(|folder| !folder.exists()), |earlier| earlier.made_folder)
}

/// Writes the file and makes systemd read it; removes it again if systemd does not apply it. Before this, systemd may
/// have had older contents of a unit file with an old date, which it does not notice (systemd 252,
/// `unit_need_daemon_reload()`): if the new contents lead to another decision, that file is written and returned.
fn install(
    unit: &Unit,
    file: &DropIn,
    path: &PathBuf,
    decide: impl Fn(&Unit) -> anyhow::Result<Made>,
) -> anyhow::Result<Option<Made>> {
    let before = fs::read_to_string(path).ok();
    ensure!(
        before.as_deref().is_none_or(|text| DropIn::parse(text).is_some()),
        "{} was not written by pagelift; fix: give it another name",
        path.display()
    );
    let write_file = |text: &str| write(path, text).with_context(|| format!("writing {}", path.display()));
    let read = |file: &DropIn| systemd::control(&["daemon-reload"]).and_then(|()| check(unit, file, path));
    write_file(&file.text())?;
    let decide_again = || -> anyhow::Result<Option<Made>> {
        read(file)?;
        let mut now = decide(&Unit::load(&unit.name)?)?;
        if now.1.body == file.body {
            return Ok(None);
        }
        now.1.made_folder = file.made_folder;
        write_file(&now.1.text())?;
        read(&now.1)?;
        Ok(Some(now))
    };
    let decided = decide_again();
    if decided.is_err() {
        match before {
            Some(text) => write(path, &text)?,
            None => systemd::remove(path, file)?,
        }
        systemd::control(&["daemon-reload"])?;
    }
    decided.with_context(|| format!("the change of {} was undone", path.display()))
}

/// Compares systemd's properties with the written file.
fn check(unit: &Unit, file: &DropIn, path: &Path) -> anyhow::Result<()> {
    let now = systemd::show(&systemd::instance(&unit.name))?;
    let path = path.display().to_string();
    ensure!(now.list("DropInPaths").contains(&path), "systemd does not read {path}");
    let state = now.value("LoadState");
    ensure!(state == "loaded", "systemd reports `{state}` for the unit with {path}");
    for wanted in file.values("Type") {
        let found = now.value("Type");
        ensure!(found == wanted, "systemd has Type={found} instead of {wanted}");
    }
    let pagelift = this_program()?.display().to_string();
    let (wanted, found) = (file.values("ExecStart"), now.commands("ExecStart"));
    let wanted: Vec<String> = wanted.into_iter().filter(|line| !line.is_empty()).collect();
    ensure!(
        wanted.is_empty() || found.len() == wanted.len(),
        "systemd has {} commands instead of {}",
        found.len(),
        wanted.len()
    );
    for (wanted, found) in wanted.iter().zip(found) {
        let is_wanted = found.path == pagelift && shows(wanted, &found.arguments);
        ensure!(is_wanted, "systemd executes {} by `{}` instead of `{wanted}`", found.path, found.arguments);
    }
    let found = now.commands("ExecStartPost");
    for wanted in file.values("ExecStartPost") {
        let is_there = found.iter().any(|found| found.path == pagelift && shows(&wanted, &found.arguments));
        ensure!(is_there, "systemd does not execute `{wanted}` after a start");
    }
    Ok(())
}

/// Removes an earlier file of Pagelift.
fn take_away(path: &Path) -> anyhow::Result<()> {
    if let Some(file) = DropIn::parse(&fs::read_to_string(path)?) {
        systemd::remove(path, &file)?;
        systemd::control(&["daemon-reload"])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::facts::tests::{LARGE, elf, executable};
    use super::*;
    use service_units::Properties;

    #[test]
    fn a_name_that_a_shell_gives_is_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let server = folder.path().join("server");
        executable(&server, &elf(LARGE));
        let server = server.display();
        let properties = Properties::parse("Id=x.service\nType=notify\nSyslogIdentifier=x\n");
        let text = format!("[Service]\nExecStart=/bin/sh -c \"true; \\\n exec {server} $X\"\n");
        let unit = Unit { name: "x.service".into(), properties, own: None, files: vec![text] };
        let asked = |given: &[&str]| {
            let given: Vec<String> = given.iter().map(|&word| word.to_owned()).collect();
            words::parse(&given).unwrap()
        };
        let pagelift = Path::new("/usr/bin/pagelift");

        let (choice, file) = made(&unit, &asked(&["--require", "--via=ptrace"]), pagelift).unwrap();
        let said = format!("--only {server}: /bin/sh executes {server}");
        assert!(choice.reasons.contains(&said), "{choice:?}");
        let command = format!("--only={server} -- /bin/sh -c \"true;  exec {server} $X\"\n");
        assert!(file.body.ends_with(&command), "{}", file.body);
        assert!(file.options.contains(&format!("--only={server}")), "{file:?}");
        // As `pagelift enabled` and a later `enable` do.
        let read = DropIn::parse(&file.text()).unwrap();
        assert_eq!(read.asked, ["--require", "--via=ptrace"]);
        assert_eq!(made(&unit, &words::parse(&read.asked).unwrap(), pagelift).unwrap().1, file);

        let (_, file) = made(&unit, &asked(&["--only", "other", "--via=ptrace"]), pagelift).unwrap();
        assert!(file.body.contains(" --only=other ") && !file.body.contains(&format!("--only={server}")), "{file:?}");
        fs::remove_file(folder.path().join("server")).unwrap();
        let refusal = made(&unit, &asked(&[]), pagelift).unwrap_err().to_string();
        assert!(refusal.contains("/bin/sh is a shell; needed: the name"), "{refusal}");
    }
}
