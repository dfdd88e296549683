//! Services that a socket starts for each client; the connection is also their standard error.

use crate::container::Container;
use crate::lasting_properties;
use anyhow::{Context as _, Result, ensure};
use std::time::Duration;
use test_support::poll_until;

const CONNECTION_LIMIT: Duration = Duration::from_secs(240);

/// Sends a line to the server, and prints the answer until the connection is closed.
const ASK: &str = "exec 3<>/dev/tcp/127.0.0.1/8043 && echo hello >&3 && cat <&3";

/// A client receives its own bytes, and none from Pagelift, unless the unit's errors go to the journal.
pub fn of_a_socket(machine: &Container) -> Result<()> {
    let (template, instance) = ("echo@.service", "echo@x.service");
    let answers = |why: &str| -> Result<()> {
        let answer = machine.run(&["timeout", "240", "bash", "-c", ASK])?;
        ensure!(answer == "hello\n", "{why}, the client gets {answer:?}");
        Ok(())
    };
    let before = lasting_properties(machine, instance)?;
    machine.run(&["systemctl", "start", "echo.socket"])?;
    answers("plain")?;
    for via in ["ptrace", "preload"] {
        let shown = machine.run(&["pagelift", "enable", "--via", via, template])?;
        ensure!(shown.contains("  --quiet: ") && shown.contains(" --quiet "), "{shown}");
        answers(&format!("by {via}"))?;
    }
    let refused = machine.fail(&["pagelift", "enable", "--require", template])?;
    ensure!(refused.contains("fix: StandardError=journal"), "{refused}");
    machine.run(&["pagelift", "disable", template])?;
    ensure!(lasting_properties(machine, instance)? == before, "disable leaves something");

    let folder = format!("/etc/systemd/system/{template}.d");
    let script = format!("mkdir {folder} && printf '[Service]\\nStandardError=journal\\n' >{folder}/errors.conf");
    machine.run(&["sh", "-c", &script])?;
    let shown = machine.run(&["pagelift", "enable", template])?;
    ensure!(!shown.contains("--quiet"), "{shown}");
    answers("with its errors in the journal")?;
    machine.run(&["journalctl", "--sync"])?;
    let journal = machine.run(&["journalctl", "-o", "cat", "--no-pager", "-t", "head"])?;
    ensure!(journal.matches("pagelift: head[").count() == 1, "not one line of ours is in the journal: {journal}");
    machine.run(&["pagelift", "disable", template])?;
    keeps_a_connection(machine, template, &folder)?;
    machine.run(&["systemctl", "stop", "echo.socket"])?;
    machine.run(&["rm", "-r", &folder])?;
    machine.run(&["systemctl", "daemon-reload"]).map(drop)
}

/// An instance whose connection is not its input but another descriptor is not restarted either.
fn keeps_a_connection(machine: &Container, template: &str, folder: &str) -> Result<()> {
    let settings = "[Service]\\nExecStart=\\nExecStart=/usr/bin/forks stay\\nStandardInput=null\\n";
    machine.run(&["sh", "-c", &format!("printf '{settings}' >{folder}/errors.conf && systemctl daemon-reload")])?;
    let hold = "exec 3<>/dev/tcp/127.0.0.1/8043 && exec sleep 1000";
    machine.run(&["systemd-run", "--quiet", "--unit=client", "bash", "-c", hold])?;
    let served = || -> Result<String> {
        let listed = machine.run(&["systemctl", "list-units", "--plain", "--no-legend", "--state=active", "echo@*"])?;
        let unit = listed.split_whitespace().next().context("no instance runs")?;
        Ok(format!("{unit} {}", machine.main_pid(unit)?))
    };
    poll_until(CONNECTION_LIMIT, "the instance for a client", || served().is_ok())?;
    let before = served()?;
    machine.run(&["pagelift", "enable", "--now", template])?;
    machine.run(&["pagelift", "disable", "--now", template])?;
    ensure!(served()? == before, "the connection of {before} was ended");
    let (unit, _) = before.split_once(' ').context("a unit and its process")?;
    machine.run(&["systemctl", "stop", "client.service", unit]).map(drop)
}
