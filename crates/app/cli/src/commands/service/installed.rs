//! `pagelift disable` and `pagelift enabled`.

use super::enable::made;
use super::facts::this_program;
use super::systemd::{self, FOLDERS, Unit, is_changed, look_up, service_name};
use super::{Changed, memory, restarted, words};
use crate::output::{Failures, Output};
use crate::text::table::{table, trimmed};
use anyhow::bail;
use clap::Args;
use foreign_text::quoted;
use serde::Serialize;
use service_units::{DropIn, MemoryUnits};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// `pagelift disable`.
#[derive(Args, Clone)]
pub struct DisableArgs {
    /// Restart the service now, if it runs.
    #[arg(long)]
    now: bool,
    /// All services that `pagelift enabled` lists, for example before Pagelift is removed.
    #[arg(long, conflicts_with = "unit")]
    all: bool,
    /// With --all, only services that use this `pagelift` program, not another installed one.
    #[arg(long, requires = "all")]
    of_this_program: bool,
    /// The service.
    #[arg(value_name = "UNIT", required_unless_present = "all")]
    unit: Option<String>,
}

/// `pagelift enabled`.
#[derive(Args, Clone)]
pub struct EnabledArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Agreement of a drop-in file with its unit.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum State {
    Current,
    /// The unit's own ExecStart= has changed since.
    Outdated,
    /// The sandbox, or a relevant fact about this machine, has changed so that another file would be written now.
    SandboxChanged,
    /// The `pagelift` that it starts is gone.
    NoLauncher,
    /// The unit's files have changed since systemd read them.
    NotRead,
    /// The unit is gone.
    NoUnit,
}

impl State {
    /// The state in words, with the fix. `again` is the command that writes the files anew.
    fn text(self, unit: &str, again: &str) -> String {
        let unit = quoted(unit);
        match self {
            Self::Current => "current".to_owned(),
            Self::Outdated => format!("outdated: its ExecStart= has changed; fix: {again}"),
            Self::SandboxChanged => format!(
                "outdated: its sandbox, another setting, or a fact about this machine has changed; fix: {again}"
            ),
            Self::NoLauncher => format!("the pagelift that it starts is gone; fix: {again}"),
            Self::NotRead => {
                "not known: its files have changed since systemd read them; fix: systemctl daemon-reload".to_owned()
            }
            Self::NoUnit => format!("no such unit; fix: pagelift disable {unit}"),
        }
    }
}

#[derive(Serialize)]
struct Listing {
    format: &'static str,
    version: u32,
    services: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    unit: String,
    way: String,
    options: Vec<String>,
    path: PathBuf,
    until_boot: bool,
    state: State,
    /// The command that writes the files anew.
    #[serde(skip)]
    again: String,
    active: String,
    main_pid: Option<i32>,
}

/// Removes the files that `enable` has written.
pub fn disable(args: &DisableArgs) -> anyhow::Result<()> {
    // systemd gives a service's real name if the service still exists.
    let name = match &args.unit {
        Some(unit) => Some(look_up(unit).map_or_else(|_| service_name(unit), |(name, _)| Ok(name))?),
        None => None,
    };
    let own = args.of_this_program.then(this_program).transpose()?.map(|own| own.display().to_string());
    let is_meant = |file: &DropIn| {
        name.as_ref().is_none_or(|name| *name == file.unit) && (own.is_none() || file.launcher() == own)
    };
    let is_meant_too = |units: &MemoryUnits| {
        name.as_ref().is_none_or(|name| *name == units.unit) && own.as_ref().is_none_or(|own| *own == units.launcher)
    };
    let chosen: Vec<_> = systemd::installed().into_iter().filter(|(_, file)| is_meant(file)).collect();
    let in_place: Vec<_> = memory::installed().into_iter().filter(|(_, units)| is_meant_too(units)).collect();
    if let (true, Some(name)) = (chosen.is_empty() && in_place.is_empty(), &name) {
        bail!("{name} is not enabled; `pagelift enabled` lists the services that are");
    }
    let (gone, mut failed) = memory::remove(&in_place);
    let (removed, not_removed) = remove_all(&chosen);
    failed.extend(not_removed);
    let paths = gone.iter().chain(removed.iter().map(|(path, _)| path));
    let mut said: Vec<String> = paths.map(|path| format!("removed {}", path.display())).collect();
    if !gone.is_empty() && removed.is_empty() && Path::new(FOLDERS[1]).is_dir() {
        systemd::control(&["daemon-reload"])?;
        said.push("memory that is on huge pages stays there".to_owned());
    }
    if !removed.is_empty() && Path::new(FOLDERS[1]).is_dir() {
        match undone(&removed, args.now) {
            Ok(texts) => said.extend(texts),
            Err(error) => failed.push(format!("{error:#}")),
        }
    }
    let out = Output::Standard;
    said.iter().try_for_each(|text| writeln!(out, "{text}"))?;
    if failed.is_empty() { Ok(()) } else { Err(Failures(failed).into()) }
}

/// Removes files independently of each other; returns the removed ones, and why the others remain.
fn remove_all(files: &[(PathBuf, DropIn)]) -> (Vec<&(PathBuf, DropIn)>, Vec<String>) {
    let (mut removed, mut failed) = (Vec::new(), Vec::new());
    for entry in files {
        match systemd::remove(&entry.0, &entry.1) {
            Ok(()) => removed.push(entry),
            Err(error) => failed.push(format!("{error:#}")),
        }
    }
    (removed, failed)
}

/// Makes systemd notice that files are gone; returns the effect that a restart of their services would have, or had.
fn undone(removed: &[&(PathBuf, DropIn)], now: bool) -> anyhow::Result<Vec<String>> {
    systemd::control(&["daemon-reload"])?;
    let services = removed.iter().map(|(_, file)| Changed::look(&file.unit, false)).collect::<Result<Vec<_>, _>>()?;
    restarted(&services, now)
}

/// The text of an empty list, with the command that lifts a program's next starts.
const fn no_service(systemd_runs: bool) -> &'static str {
    match systemd_runs {
        true => "no service; `pagelift enable UNIT` has one lifted at each start",
        false => {
            "no service: systemd does not run here (no /run/systemd/system); `pagelift run -- CMD` starts a program lifted"
        }
    }
}

/// Lists the services that are lifted at each start.
pub fn enabled(args: &EnabledArgs) -> anyhow::Result<()> {
    let at_starts = systemd::installed().into_iter().map(|(path, file)| row(path, file));
    let in_place = memory::installed().into_iter().map(|(folder, units)| memory_row(&folder, units));
    let mut services: Vec<Row> = at_starts.chain(in_place).collect();
    services.sort_by(|a, b| a.unit.cmp(&b.unit));
    let out = Output::Standard;
    if args.json {
        out.print_json(&Listing { format: "pagelift-services", version: 1, services })?;
        return Ok(());
    }
    if services.is_empty() {
        writeln!(out, "{}", no_service(systemd::is_running()))?;
        return Ok(());
    }
    let mut rows = table(&["unit", "active", "pid", "lasts", "way", "state"]);
    for service in &services {
        rows.add_row([
            service.unit.clone(),
            service.active.clone(),
            service.main_pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
            if service.until_boot { "until the next boot" } else { "for good" }.to_owned(),
            service.way.clone(),
            service.state.text(&service.unit, &service.again),
        ]);
    }
    writeln!(out, "{}", trimmed(&rows))?;
    Ok(())
}

fn row(path: PathBuf, file: DropIn) -> Row {
    let found = look_up(&file.unit).ok();
    let state = match found.clone() {
        Some((name, properties)) if is_changed(&name, &properties) => State::NotRead,
        Some((name, properties)) => Unit::of(name, properties).map_or(State::NoUnit, |unit| state_of(&unit, &file)),
        None => State::NoUnit,
    };
    let value = |name: &str| found.as_ref().map_or("", |(_, properties)| properties.value(name));
    let is_template = file.unit.contains("@.");
    Row {
        active: if is_template { "-" } else { value("ActiveState") }.to_owned(),
        main_pid: value("MainPID").parse().ok().filter(|pid| *pid > 0),
        until_boot: path.starts_with(FOLDERS[1]),
        again: format!("pagelift enable {}", quoted(&file.unit)),
        unit: file.unit,
        way: file.way,
        options: file.options,
        path,
        state,
    }
}

/// The row of a service whose memory is lifted while it runs.
fn memory_row(folder: &Path, units: MemoryUnits) -> Row {
    let found = look_up(&units.unit).ok();
    let state = match &found {
        None => State::NoUnit,
        Some((name, properties)) if is_changed(name, properties) => State::NotRead,
        Some(_) if !is_executable(Path::new(&units.launcher)) => State::NoLauncher,
        Some(_) => State::Current,
    };
    let value = |name: &str| found.as_ref().map_or("", |(_, properties)| properties.value(name));
    Row {
        active: if units.unit.contains("@.") { "-" } else { value("ActiveState") }.to_owned(),
        main_pid: value("MainPID").parse().ok().filter(|pid| *pid > 0),
        until_boot: folder.starts_with(FOLDERS[1]),
        way: format!("{} memory while it runs", units.kinds.join(", ")),
        options: Vec::new(),
        path: folder.join(units.name()),
        again: format!("pagelift enable --{} {}", units.kinds.join(" --"), quoted(&units.unit)),
        state,
        unit: units.unit,
    }
}

/// Compares a file with the one that would be written now.
fn state_of(unit: &Unit, file: &DropIn) -> State {
    if unit.commands() != file.commands {
        return State::Outdated;
    }
    let Some(launcher) = file.launcher().map(PathBuf::from).filter(|launcher| is_executable(launcher)) else {
        return State::NoLauncher;
    };
    let now = words::parse(&file.asked).and_then(|lift| made(unit, &lift, &launcher).ok());
    match now {
        Some((_, now)) if now.body == file.body => State::Current,
        _ => State::SandboxChanged,
    }
}

fn is_executable(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enable_is_advised_only_where_systemd_runs() {
        assert_eq!(no_service(true), "no service; `pagelift enable UNIT` has one lifted at each start");
        assert!(!no_service(false).contains("enable") && no_service(false).contains("`pagelift run -- CMD`"));
    }

    #[test]
    fn one_file_that_stays_keeps_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let text = "# Written by `pagelift enable`. `pagelift disable` removes it.\n# Unit: x.service\n# Way: run\n\
                    # Options: run\n# ExecStart=/bin/x\n[Service]\nExecStart=\nExecStart=/usr/bin/pagelift run -- /bin/x\n";
        let file = DropIn::parse(text).unwrap();
        let paths: Vec<PathBuf> = ["a", "b", "c"].iter().map(|name| folder.path().join(name)).collect();
        fs::write(&paths[0], text).unwrap();
        // Nobody removes a folder as a file, root neither.
        fs::create_dir(&paths[1]).unwrap();
        fs::write(&paths[2], text).unwrap();
        let files: Vec<_> = paths.iter().map(|path| (path.clone(), file.clone())).collect();
        let (removed, failed) = remove_all(&files);
        assert_eq!(removed.iter().map(|(path, _)| path).collect::<Vec<_>>(), [&paths[0], &paths[2]]);
        assert!(failed.len() == 1 && failed[0].contains(&paths[1].display().to_string()), "{failed:?}");
        assert!(!paths[0].exists() && !paths[2].exists());
    }
}
