//! Servers of other kinds: started by a script that leaves them behind (`Type=forking`, a template), behind every
//! setting of a sandbox that a JIT compiler tolerates, and on the bus (`Type=dbus`).

use crate::container::Container;
use crate::lasting_properties;
use anyhow::{Context as _, Result, ensure};
use std::time::Duration;
use test_support::{Context, poll_until};

const ANSWER_LIMIT: Duration = Duration::from_secs(240);

/// Checks that a unit's main process has this name and code on huge pages.
fn is_lifted(t: &Context, machine: &Container, unit: &str, name: &str) -> Result<()> {
    let pid = machine.main_pid(unit)?;
    let found = machine.run(&["cat", &format!("/proc/{pid}/comm")])?;
    ensure!(found.trim() == name, "the main process of {unit} is {found}");
    let huge = machine.huge_code(pid)?;
    ensure!(huge > 0, "no code of {unit} is on huge pages: {}", machine.journal(unit)?);
    t.note(format!("{unit}: {} KiB of code on huge pages", huge >> 10));
    Ok(())
}

/// Debian's unit is a template of `Type=forking` that starts a script.
pub fn with_postgresql(t: &Context, machine: &Container) -> Result<()> {
    let unit = "postgresql@15-main.service";
    let answers = || -> Result<()> {
        let answer = machine.run(&["runuser", "-u", "postgres", "--", "psql", "-tAc", "select 6 * 7"])?;
        ensure!(answer.trim() == "42", "it answers {answer}");
        Ok(())
    };
    answers()?;
    let before = lasting_properties(machine, unit)?;
    ensure!(before.iter().any(|line| line.contains("Type forking")), "it is no longer of Type=forking");
    let planned = machine.run(&["pagelift", "attach", "--lift", "shared", "--dry-run", "--unit", unit])?;
    ensure!(planned.contains(" others: shared memory: "), "the plan has not all processes of the unit: {planned}");
    with_its_buffers(machine, unit, &before).context("its buffers")?;
    let refused = machine.fail(&["pagelift", "enable", "postgresql"])?;
    ensure!(refused.contains(&format!("fix: pagelift enable {unit}")), "{refused}");
    let refused = machine.fail(&["pagelift", "enable", unit])?;
    ensure!(refused.contains("fix: --only NAME"), "{refused}");
    machine.has_no_huge_code(machine.main_pid(unit)?).context("the plain server")?;

    let shown = machine.run(&["pagelift", "enable", "--only", "postgres", "postgresql@"])?;
    ensure!(shown.contains(&format!("these run on as they are: {unit}")), "{shown}");
    let shown = machine.run(&["pagelift", "enable", "--now", "--only", "postgres", "postgresql@"])?;
    ensure!(shown.contains(&format!("restarted lifted: {unit}")), "{shown}");
    is_lifted(t, machine, unit, "postgres")?;
    answers().context("after a restart")?;
    // The server's standard error is a separate log file.
    let (pid, journal) = (machine.main_pid(unit)?, machine.journal(unit)?);
    ensure!(journal.contains(&format!("pagelift: postgres[{pid}]: ")), "the journal has no line of ours: {journal}");
    machine.run(&["systemctl", "reload", unit])?;
    answers().context("after a reload")?;
    machine.run(&["pagelift", "disable", "--now", "postgresql@"])?;
    ensure!(lasting_properties(machine, unit)? == before, "disable leaves something");
    machine.has_no_huge_code(machine.main_pid(unit)?).context("without Pagelift again")?;
    answers()
}

/// The server runs on, with its properties. The unit that lifts its buffers starts and ends with the server.
fn with_its_buffers(machine: &Container, unit: &str, before: &[String]) -> Result<()> {
    let (lifting, first) = (format!("pagelift-memory-{unit}"), machine.main_pid(unit)?);
    let has_looked = || machine.journal(&lifting).is_ok_and(|journal| journal.contains(" others: shared memory: "));
    let shown = machine.run(&["pagelift", "enable", "--shared", "postgresql@"])?;
    ensure!(shown.contains(&format!("{unit} continues; `systemctl start {lifting}` lifts it now")), "{shown}");
    let shown = machine.run(&["pagelift", "enable", "--shared", "--now", "postgresql@"])?;
    ensure!(shown.contains(&format!("{unit} runs on and is lifted now; `journalctl -u {lifting}`")), "{shown}");
    poll_until(ANSWER_LIMIT, "a lift of the buffers", has_looked)?;
    let said = machine.journal(&lifting)?;
    ensure!(
        !said.contains("cannot be counted") && !said.contains("changed"),
        "the buffers could not be opened: {said}"
    );
    ensure!(machine.main_pid(unit)? == first, "the server was restarted");
    let listed = machine.run(&["pagelift", "enabled"])?;
    let words = ["postgresql@.service ", " shared memory while it runs "];
    let is_listed = |line: &str| words.iter().all(|word| line.contains(word));
    ensure!(listed.lines().any(is_listed), "{listed}");
    let watching = machine.main_pid(&lifting)?;
    machine.run(&["systemctl", "restart", unit])?;
    let watches_again = || machine.main_pid(&lifting).is_ok_and(|pid| pid > 0 && pid != watching);
    poll_until(ANSWER_LIMIT, "the lift to start with the server", watches_again)?;
    machine.run(&["systemctl", "stop", unit])?;
    poll_until(ANSWER_LIMIT, "the lift to end with the server", || !machine.is_active(&lifting))?;
    machine.run(&["systemctl", "start", unit])?;
    let removed = machine.run(&["pagelift", "disable", "postgresql@"])?;
    ensure!(removed.contains("memory that is on huge pages stays there") && !machine.is_active(&lifting), "{removed}");
    ensure!(lasting_properties(machine, unit)? == before, "disable leaves something");
    machine.fail(&["systemctl", "cat", &lifting]).map(drop)
}

/// No ptrace, no writable file, a dynamic user; its code is in a library.
pub fn with_node(t: &Context, machine: &Container) -> Result<()> {
    let unit = "answers.service";
    let before = lasting_properties(machine, unit)?;
    let ask = "exec 3<>/dev/tcp/127.0.0.1/8042 && printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3 && tail -n 1 <&3";
    let answers = || machine.run(&["bash", "-c", ask]).is_ok_and(|answer| answer.trim() == "42");
    machine.run(&["systemctl", "start", unit])?;
    poll_until(ANSWER_LIMIT, "the plain server's answer", answers)?;
    machine.has_no_huge_code(machine.main_pid(unit)?).context("the plain server")?;
    let shown = machine.run(&["pagelift", "enable", "--now", unit])?;
    ensure!(shown.contains("way: run, by preload"), "{shown}");
    poll_until(ANSWER_LIMIT, "the lifted server's answer", answers)
        .with_context(|| machine.journal(unit).unwrap_or_default())?;
    is_lifted(t, machine, unit, "node")?;
    let first = machine.main_pid(unit)?;
    ensure!(machine.maps(first)?.contains("/libpagelift.so.0"), "it has not lifted itself");
    machine.run(&["systemctl", "reload", unit])?;
    let reloaded = || machine.journal(unit).is_ok_and(|journal| journal.contains("has reloaded"));
    poll_until(ANSWER_LIMIT, "the lifted server to reload", reloaded)?;
    ensure!(machine.main_pid(unit)? == first && answers(), "it does not run on after the reload");
    machine.run(&["systemctl", "kill", "--kill-whom=main", "-s", "ABRT", unit])?;
    let restarted = || machine.main_pid(unit).is_ok_and(|pid| pid > 0 && pid != first) && machine.is_active(unit);
    poll_until(ANSWER_LIMIT, "the restart after a crash", restarted)?;
    poll_until(ANSWER_LIMIT, "an answer after a crash", answers)?;
    is_lifted(t, machine, unit, "node").context("after a crash")?;
    machine.run(&["pagelift", "disable", "--now", unit])?;
    machine.run(&["systemctl", "stop", unit])?;
    ensure!(lasting_properties(machine, unit)? == before, "disable leaves something");
    Ok(())
}

/// A message to its name starts it, and it has started once it owns the name.
pub fn on_the_bus(machine: &Container) -> Result<()> {
    let unit = "systemd-hostnamed.service";
    let before = lasting_properties(machine, unit)?;
    ensure!(before.iter().any(|line| line.contains("Type dbus")), "it is no longer of Type=dbus");
    let plain = machine.run(&["hostnamectl", "hostname"])?;
    machine.run(&["systemctl", "stop", unit])?;
    machine.run(&["pagelift", "enable", unit])?;
    let name = machine.run(&["hostnamectl", "hostname"])?;
    ensure!(name == plain, "it answers {name} instead of {plain}: {}", machine.journal(unit)?);
    poll_until(ANSWER_LIMIT, "the start to end", || machine.is_active(unit))?;
    let (pid, journal) = (machine.main_pid(unit)?, machine.journal(unit)?);
    // It is too small: the test checks that a lift of the process that owns the name was tried, and harmed nothing.
    ensure!(journal.contains(&format!("[{pid}]: nothing lifted")), "nothing is said of it: {journal}");
    machine.run(&["systemctl", "stop", unit])?;
    machine.run(&["pagelift", "disable", unit])?;
    ensure!(lasting_properties(machine, unit)? == before, "disable leaves something");
    run_on_the_bus(machine, unit, &plain)?;
    ensure!(lasting_properties(machine, unit)? == before, "disable leaves something of `run`");
    Ok(())
}

/// Without its filter it is lifted by `run`, as which the process that owns the name has begun.
fn run_on_the_bus(machine: &Container, unit: &str, plain: &str) -> Result<()> {
    let folder = format!("/etc/systemd/system/{unit}.d");
    let open = format!(
        "mkdir {folder} && printf '[Service]\nSystemCallFilter=\nMemoryDenyWriteExecute=no\nRestrictNamespaces=no\n' >{folder}/open.conf"
    );
    machine.run(&["sh", "-c", &open])?;
    machine.run(&["systemctl", "daemon-reload"])?;
    let shown = machine.run(&["pagelift", "enable", unit])?;
    let is_prefixed =
        |line: &str| line.contains("ExecStart=/usr/bin/pagelift run ") && line.ends_with("/systemd-hostnamed");
    ensure!(shown.lines().any(is_prefixed), "{shown}");
    let name = machine.run(&["hostnamectl", "hostname"])?;
    ensure!(name == plain, "run, it answers {name} instead of {plain}: {}", machine.journal(unit)?);
    poll_until(ANSWER_LIMIT, "the start to end", || machine.is_active(unit))?;
    let (pid, journal) = (machine.main_pid(unit)?, machine.journal(unit)?);
    ensure!(journal.contains(&format!("[{pid}]: nothing lifted")), "nothing is said of it: {journal}");
    machine.run(&["systemctl", "stop", unit])?;
    machine.run(&["pagelift", "disable", unit])?;
    machine.run(&["rm", "-r", &folder])?;
    machine.run(&["systemctl", "daemon-reload"]).map(drop)
}

/// In a root without pagelift: `ExecStartPost=+` sees pagelift only with `RootDirectoryStartOnly=`.
pub fn in_another_root(machine: &Container) -> Result<()> {
    let unit = "rooted.service";
    // Pagelift is outside of the folders that the unit shares with the system.
    machine.run(&["sh", "-c", "mkdir /srv/bound /opt/rooted && cp /usr/bin/pagelift /opt/rooted"])?;
    machine.run(&["systemctl", "start", unit])?;
    let before = lasting_properties(machine, unit)?;
    let refused = machine.fail(&["/opt/rooted/pagelift", "enable", unit])?;
    ensure!(refused.contains("fix: RootDirectoryStartOnly=yes"), "{refused}");
    let after = lasting_properties(machine, unit)?;
    ensure!(after == before, "it was changed from {before:#?} to {after:#?}");
    let folder = format!("/etc/systemd/system/{unit}.d");
    let only = format!("mkdir {folder} && printf '[Service]\nRootDirectoryStartOnly=yes\n' >{folder}/only.conf");
    machine.run(&["sh", "-c", &only])?;
    machine.run(&["systemctl", "daemon-reload"])?;
    machine.run(&["/opt/rooted/pagelift", "enable", "--now", unit])?;
    ensure!(machine.huge_code(machine.main_pid(unit)?)? > 0, "not lifted: {}", machine.journal(unit)?);
    machine.run(&["systemctl", "stop", unit])?;
    machine.run(&["/opt/rooted/pagelift", "disable", unit])?;
    machine.run(&["rm", "-r", &folder, "/opt/rooted"])?;
    machine.run(&["systemctl", "daemon-reload"]).map(drop)
}

/// `Type=forking` without `PIDFile=`: systemd guesses the main process, and must not choose a process of Pagelift.
pub fn that_leaves_its_starter(machine: &Container) -> Result<()> {
    let unit = "forks.service";
    let before = lasting_properties(machine, unit)?;
    let is_main = |why: &str| -> Result<i32> {
        let pid = machine.main_pid(unit)?;
        ensure!(pid > 0, "{why}, systemd knows no main process: {}", machine.journal(unit)?);
        let name = machine.run(&["cat", &format!("/proc/{pid}/comm")])?;
        ensure!(name.trim() == "forks", "{why}, the main process is {name}");
        Ok(pid)
    };
    machine.run(&["systemctl", "start", unit])?;
    machine.has_no_huge_code(is_main("plain")?).context("the plain program")?;
    let refused = machine.fail(&["pagelift", "enable", "--via", "ptrace", "--only", "forks", unit])?;
    ensure!(refused.contains("fix: PIDFile="), "{refused}");
    let shown = machine.run(&["pagelift", "enable", "--now", "--heap=thp", unit])?;
    let reason = "not `run, by ptrace`: Type=forking without PIDFile=";
    ensure!(shown.contains(reason) && shown.contains("way: run, by preload"), "{shown}");
    let first = is_main("lifted")?;
    let lifted = || machine.huge_code(machine.main_pid(unit).unwrap_or_default()).is_ok_and(|huge| huge > 0);
    ensure!(lifted(), "no code is on huge pages: {}", machine.journal(unit)?);
    machine.run(&["systemctl", "kill", "--kill-whom=main", "-s", "SEGV", unit])?;
    let restarted = || machine.main_pid(unit).is_ok_and(|pid| pid > 0 && pid != first) && machine.is_active(unit);
    poll_until(ANSWER_LIMIT, "the restart after a crash", restarted)?;
    is_main("after a crash")?;
    ensure!(lifted(), "after a crash no code is on huge pages: {}", machine.journal(unit)?);
    machine.run(&["pagelift", "disable", unit])?;
    // Without options the helper has ended before the program can leave its starter.
    let shown = machine.run(&["pagelift", "enable", "--now", unit])?;
    ensure!(shown.contains("way: run, by ptrace"), "{shown}");
    is_main("run by ptrace")?;
    ensure!(lifted(), "by ptrace no code is on huge pages: {}", machine.journal(unit)?);
    machine.run(&["pagelift", "disable", "--now", unit])?;
    machine.run(&["systemctl", "stop", unit])?;
    ensure!(lasting_properties(machine, unit)? == before, "disable leaves something");
    Ok(())
}
