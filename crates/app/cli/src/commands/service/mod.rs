//! `pagelift enable`, `disable` and `enabled`: systemd services that are lifted at each start.

mod enable;
mod facts;
mod installed;
mod lift_args;
mod memory;
pub mod systemd;
mod words;

pub use enable::{EnableArgs, enable};
pub use installed::{DisableArgs, EnabledArgs, disable, enabled};
pub use systemd::control_group;

/// A service whose file was changed.
struct Changed {
    unit: String,
    /// The service, or the instances of the template, if they run.
    running: Vec<String>,
    /// Number of its main process, if it has one.
    pid: Option<String>,
    lifted: bool,
}

impl Changed {
    fn look(unit: &str, lifted: bool) -> anyhow::Result<Self> {
        let properties = systemd::show(&systemd::instance(unit))?;
        let runs = ["active", "activating", "reloading"].contains(&properties.value("ActiveState"));
        let running = match unit {
            template if template.contains("@.") => systemd::running_instances(template)?,
            _ => runs.then(|| unit.to_owned()).into_iter().collect(),
        };
        let pid = Some(properties.value("MainPID").to_owned()).filter(|pid| !["", "0"].contains(&pid.as_str()));
        Ok(Self { unit: unit.to_owned(), running, pid, lifted })
    }

    /// The effect of a restart, in the future or in the past.
    fn text(&self, restarted: bool) -> String {
        let (unit, names) = (&self.unit, self.running.join(", "));
        let how = if self.lifted { "lifted" } else { "without Pagelift" };
        match (unit.contains("@."), self.running.is_empty(), restarted) {
            (true, true, _) => format!("no instance of {unit} runs; each starts {how} from its next start on"),
            (true, false, true) => format!("restarted {how}: {names}"),
            (true, false, false) => {
                format!("each instance starts {how} from its next start on; these run on as they are: {names}")
            }
            (false, true, _) => format!("{unit} does not run; its next start is {how}"),
            (false, false, true) => format!("{unit} was restarted {how}"),
            (false, false, false) => {
                let process = self.pid.as_ref().map(|pid| format!(" (process {pid})")).unwrap_or_default();
                format!(
                    "{unit} runs on as it is{process}; `systemctl restart {}` ends it, with its connections, and \
                     starts it {how}",
                    foreign_text::quoted(unit)
                )
            }
        }
    }
}

/// Restarts the running services, all at once so that one failure does not prevent the others, if `now` is set. Returns
/// the effect on each, or the effect that a restart would have.
fn restarted(services: &[Changed], now: bool) -> anyhow::Result<Vec<String>> {
    let running: Vec<&str> = services.iter().flat_map(|service| &service.running).map(String::as_str).collect();
    if now && !running.is_empty() {
        systemd::control(&[&["restart", "--"], running.as_slice()].concat())?;
    }
    Ok(services.iter().map(|service| service.text(now)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_of_a_restart_has_its_words() {
        let changed = |unit: &str, running: &[&str], lifted| Changed {
            unit: unit.to_owned(),
            running: running.iter().map(|&name| name.to_owned()).collect(),
            pid: Some("7".to_owned()),
            lifted,
        };
        let (plain, template) =
            (changed("a.service", &["a.service"], true), changed("a@.service", &["a@1.service"], false));
        assert_eq!(plain.text(true), "a.service was restarted lifted");
        assert!(
            plain.text(false).starts_with("a.service runs on as it is (process 7); `systemctl restart a.service` ends")
        );
        assert_eq!(template.text(true), "restarted without Pagelift: a@1.service");
        assert!(template.text(false).ends_with("these run on as they are: a@1.service"));
        assert_eq!(changed("a.service", &[], true).text(true), "a.service does not run; its next start is lifted");
        assert!(changed("a@.service", &[], true).text(true).starts_with("no instance of a@.service runs"));
        assert_eq!(restarted(&[changed("a.service", &[], true)], true).unwrap().len(), 1, "nothing is restarted");
    }
}
