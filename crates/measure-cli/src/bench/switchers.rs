//! What switches a live program for `bench --toggle`: a lift and its way back, or the user's own commands.

use cli::commands::lift_switcher::LiftSwitcher;
use cli::text::message;
use experiment::record::Lift;
use experiment::toggle::{Done, Switcher};
use experiment::work::shell as shell_command;
use session::running::Attached;

/// A lift, and the way back.
pub(super) struct Lifts(pub(super) LiftSwitcher);

impl Switcher for Lifts {
    fn to(&mut self, arm: usize) -> Result<Done, String> {
        let Attached { report, pause } = self.0.lift(arm)?;
        if report.covered_bytes == 0 {
            return Err(format!("nothing was lifted: {}", message::line(&report)));
        }
        let lift = serde_json::to_string(&report).and_then(|json| Lift::from_report(&json)).ok();
        Ok(Done { pause: pause.longest, covered: Some(report.covered_bytes), lift })
    }

    fn back(&mut self) -> Result<Done, String> {
        let detached = self.0.back()?;
        Ok(Done { pause: detached.pause.longest, covered: Some(0), lift: None })
    }
}

/// Runs the user's commands.
pub(super) struct CommandSwitcher {
    on: String,
    off: String,
}

impl CommandSwitcher {
    pub(super) fn new(on: &str, off: &str) -> Self {
        Self { on: on.to_owned(), off: off.to_owned() }
    }
}

impl Switcher for CommandSwitcher {
    fn to(&mut self, _arm: usize) -> Result<Done, String> {
        shell(&self.on)
    }

    fn back(&mut self) -> Result<Done, String> {
        shell(&self.off)
    }
}

fn shell(command: &str) -> Result<Done, String> {
    match shell_command(command).map(|output| output.status) {
        Ok(status) if status.success() => Ok(Done::default()),
        Ok(status) => Err(format!("{command}: {status}")),
        Err(error) => Err(format!("sh cannot be executed: {error}")),
    }
}
