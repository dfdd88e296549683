//! `pagelift enable`, `disable` and `enabled`: systemd services that are lifted at each start.

mod enable;
mod facts;
mod installed;
mod lift_args;
mod systemd;
mod words;

pub use enable::{EnableArgs, enable};
pub use installed::{DisableArgs, EnabledArgs, disable, enabled};

/// What a restart would do now, or what `--now` has done.
fn restarted(unit: &str, properties: &service_units::Properties, now: bool, lifted: bool) -> anyhow::Result<String> {
    let how = if lifted { "lifted" } else { "without Pagelift" };
    if unit.contains("@.") {
        return Ok(format!("each instance starts {how} from its next start on; those that run stay as they are"));
    }
    let pid = properties.value("MainPID");
    let runs = ["active", "activating", "reloading"].contains(&properties.value("ActiveState"));
    if !runs {
        return Ok(format!("{unit} does not run; its next start is {how}"));
    }
    if now {
        systemd::control(&["restart", unit])?;
        return Ok(format!("{unit} was restarted {how}"));
    }
    let process = if pid == "0" { String::new() } else { format!(" (process {pid})") };
    Ok(format!(
        "{unit} runs on as it is{process}; `systemctl restart {unit}` ends it, with its connections, and starts it {how}"
    ))
}
