//! Services that a socket starts for each client, whose connection is their standard error, too.

use crate::container::Container;
use crate::lasting_properties;
use anyhow::{Result, ensure};

/// Says a line to the server, and prints all that comes back until it closes the connection.
const ASK: &str = "exec 3<>/dev/tcp/127.0.0.1/8043 && echo hello >&3 && cat <&3";

/// A client gets back what it has sent, and nothing of Pagelift, unless the unit has its errors in the journal.
pub fn of_a_socket(machine: &Container) -> Result<()> {
    let (template, instance) = ("echo@.service", "echo@x.service");
    let answers = |why: &str| -> Result<()> {
        let answer = machine.run(&["timeout", "60", "bash", "-c", ASK])?;
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
    machine.run(&["systemctl", "stop", "echo.socket"])?;
    machine.run(&["rm", "-r", &folder])?;
    machine.run(&["systemctl", "daemon-reload"]).map(drop)
}
