//! `pagelift disable` and `pagelift enabled`.

use super::restarted;
use super::systemd::{self, FOLDERS, Unit, service_name};
use crate::text::table::{table, trimmed};
use anyhow::bail;
use clap::Args;
use serde::Serialize;
use service_units::DropIn;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// `pagelift disable`.
#[derive(Args, Clone)]
pub struct DisableArgs {
    /// Restart the service now, if it runs.
    #[arg(long)]
    now: bool,
    /// All services that `pagelift enabled` lists, as before Pagelift is removed.
    #[arg(long, conflicts_with = "unit")]
    all: bool,
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

/// Whether a drop-in file still says what its unit says.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum State {
    Current,
    /// The unit's own ExecStart= has changed since.
    Outdated,
    /// The unit is gone.
    NoUnit,
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
    active: String,
    main_pid: Option<i32>,
}

/// Removes what `enable` has written.
pub fn disable(args: &DisableArgs) -> anyhow::Result<()> {
    // A service is asked for its real name where it still exists.
    let name = match &args.unit {
        Some(unit) => Some(Unit::load(unit).map_or_else(|_| service_name(unit), |unit| Ok(unit.name))?),
        None => None,
    };
    let chosen: Vec<_> = systemd::installed()
        .into_iter()
        .filter(|(_, file)| name.as_ref().is_none_or(|name| *name == file.unit))
        .collect();
    if let (true, Some(name)) = (chosen.is_empty(), &name) {
        bail!("{name} is not enabled; `pagelift enabled` lists the services that are");
    }
    let mut out = io::stdout();
    for (path, file) in &chosen {
        systemd::remove(path, file)?;
        writeln!(out, "removed {}", path.display())?;
    }
    if chosen.is_empty() || !Path::new(FOLDERS[1]).is_dir() {
        return Ok(());
    }
    systemd::control(&["daemon-reload"])?;
    for (_, file) in &chosen {
        let properties = systemd::show(&file.unit.replace("@.", "@pagelift."))?;
        writeln!(out, "{}", restarted(&file.unit, &properties, args.now, false)?)?;
    }
    Ok(())
}

/// Lists the services that are lifted at each start.
pub fn enabled(args: &EnabledArgs) -> anyhow::Result<()> {
    let services: Vec<Row> = systemd::installed().into_iter().map(|(path, file)| row(path, file)).collect();
    let mut out = io::stdout();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &Listing { format: "pagelift-services", version: 1, services })?;
        writeln!(out)?;
        return Ok(());
    }
    if services.is_empty() {
        writeln!(out, "no service; `pagelift enable UNIT` has one lifted at each start")?;
        return Ok(());
    }
    let mut rows = table(&["unit", "active", "pid", "lasts", "way", "state"]);
    for service in &services {
        let fix = format!("outdated: its ExecStart= has changed; fix: pagelift enable {}", service.unit);
        rows.add_row([
            service.unit.clone(),
            service.active.clone(),
            service.main_pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
            if service.until_boot { "until the next boot" } else { "for good" }.to_owned(),
            service.way.clone(),
            match service.state {
                State::Current => "current".to_owned(),
                State::Outdated => fix,
                State::NoUnit => format!("no such unit; fix: pagelift disable {}", service.unit),
            },
        ]);
    }
    writeln!(out, "{}", trimmed(&rows))?;
    Ok(())
}

fn row(path: PathBuf, file: DropIn) -> Row {
    let unit = Unit::load(&file.unit).ok();
    let state = match &unit {
        None => State::NoUnit,
        Some(unit) if unit.commands() == file.commands => State::Current,
        Some(_) => State::Outdated,
    };
    let value = |name: &str| unit.as_ref().map_or("", |unit| unit.properties.value(name));
    let is_template = file.unit.contains("@.");
    Row {
        active: if is_template { "-" } else { value("ActiveState") }.to_owned(),
        main_pid: value("MainPID").parse().ok().filter(|pid| *pid > 0),
        until_boot: path.starts_with(FOLDERS[1]),
        unit: file.unit,
        way: file.way,
        options: file.options,
        path,
        state,
    }
}
