//! `pagelift enable`.

use super::facts::{likely_folders, named_programs, ordered_behind, programs, surroundings, this_program, with_path};
use super::lift_args::LiftArgs;
use super::systemd::{self, FOLDERS, Unit};
use super::{Changed, restarted, words};
use anyhow::{Context, bail, ensure};
use clap::Args;
use serde::Serialize;
use service_units::{Choice, CommandError, DropIn, ExecCommand, Program, Way, choose, shows};
use std::fs;
use std::io::{self, Write};
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

/// Writes the drop-in file of a service.
pub fn enable(args: &EnableArgs) -> anyhow::Result<()> {
    let unit = Unit::load(&args.unit)?;
    let pagelift = this_program()?;
    let (choice, mut file) = made(&unit, &args.lift, &pagelift)?;
    let [lasting, until_boot] = FOLDERS.map(|folder| unit.drop_in(folder));
    let path = if args.runtime { &until_boot } else { &lasting };
    ensure!(
        !args.runtime || !lasting.exists(),
        "{} has {} already, which counts before one until the next boot; fix: pagelift disable {}",
        unit.name,
        lasting.display(),
        unit.name
    );
    file.made_folder = is_made(path);
    let text = file.text();
    if !args.json {
        show(&choice, path, &text)?;
    }
    let mut restart = None;
    if !args.dry_run {
        install(&unit, &file, path, choice.way)?;
        if !args.runtime && until_boot.exists() {
            take_away(&until_boot)?;
        }
        restart = restarted(&[Changed::look(&unit.name, true)?], args.now)?.pop();
    }
    let mut out = io::stdout();
    if args.json {
        let (unit, choice, text) = (unit.name.as_str(), &choice, text.as_str());
        let written = !args.dry_run;
        let document = Document { format: "pagelift-service", version: 1, unit, choice, path, text, written, restart };
        serde_json::to_writer_pretty(&mut out, &document)?;
        writeln!(out)?;
    } else {
        let done = restart.map_or_else(|| "nothing was written".to_owned(), |restart| format!("written; {restart}"));
        writeln!(out, "{done}")?;
    }
    Ok(())
}

/// Decides, and makes the file.
pub fn made(unit: &Unit, lift: &LiftArgs, pagelift: &Path) -> anyhow::Result<(Choice, DropIn)> {
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
    let options = words::words(lift, choice.way);
    let after = ordered_behind(unit);
    let commands: Vec<ExecCommand> = read.into_iter().flatten().flatten().collect();
    let asked = words::asked(lift);
    let words = (here.pagelift.as_str(), asked.as_slice(), options.as_slice());
    let file = DropIn::new(&unit.name, &choice, (&lines, &commands), words, &after);
    Ok((choice, file))
}

/// The commands of each line, `None` for one that cannot be given again, and the reason.
type Read = (Vec<Option<Vec<ExecCommand>>>, Option<String>);

/// Reads the commands of each line; with the reason where one cannot be given again, which only matters if it has to be.
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

fn show(choice: &Choice, path: &Path, text: &str) -> io::Result<()> {
    let mut out = io::stdout();
    writeln!(out, "way: {}", choice.way)?;
    choice.reasons.iter().try_for_each(|reason| writeln!(out, "  {reason}"))?;
    writeln!(out, "\n{}:", path.display())?;
    text.lines().try_for_each(|line| writeln!(out, "  {line}").map(drop))?;
    writeln!(out)
}

/// True where the file's folder is made for it, now or by an earlier `enable`.
fn is_made(path: &Path) -> bool {
    let earlier = fs::read_to_string(path).ok().and_then(|text| DropIn::parse(&text));
    earlier.map_or_else(|| path.parent().is_some_and(|folder| !folder.exists()), |earlier| earlier.made_folder)
}

/// Writes the file and has systemd read it; takes it away again where systemd does not do what it says.
fn install(unit: &Unit, file: &DropIn, path: &PathBuf, way: Way) -> anyhow::Result<()> {
    let before = fs::read_to_string(path).ok();
    ensure!(
        before.as_deref().is_none_or(|text| DropIn::parse(text).is_some()),
        "{} was not written by pagelift; fix: give it another name",
        path.display()
    );
    write(path, &file.text()).with_context(|| format!("writing {}", path.display()))?;
    let checked = systemd::control(&["daemon-reload"]).and_then(|()| check(unit, file, path, way));
    if checked.is_err() {
        match before {
            Some(text) => write(path, &text)?,
            None => systemd::remove(path, file)?,
        }
        systemd::control(&["daemon-reload"])?;
    }
    checked.with_context(|| format!("{} was taken back", path.display()))
}

/// Writes a file whole or not at all.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder)?;
    // systemd reads only what ends in `.conf`.
    let mut file = tempfile::Builder::new().prefix(".pagelift").suffix(".new").tempfile_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.as_file().set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

/// Compares what systemd has read with what was written.
fn check(unit: &Unit, file: &DropIn, path: &Path, way: Way) -> anyhow::Result<()> {
    let now = systemd::show(&unit.name.replace("@.", "@pagelift."))?;
    let path = path.display().to_string();
    ensure!(now.list("DropInPaths").contains(&path), "systemd does not read {path}");
    let state = now.value("LoadState");
    ensure!(state == "loaded", "systemd says `{state}` of the unit with {path}");
    if way == Way::AfterStart {
        return Ok(());
    }
    let wanted = service_units::exec_start([file.text().as_str()]);
    let found = now.commands();
    ensure!(found.len() == wanted.len(), "systemd has {} commands instead of {}", found.len(), wanted.len());
    let pagelift = this_program()?.display().to_string();
    for (wanted, found) in wanted.iter().zip(found) {
        let is_wanted = found.path == pagelift && shows(wanted, &found.arguments);
        ensure!(is_wanted, "systemd executes {} by `{}` instead of `{wanted}`", found.path, found.arguments);
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
