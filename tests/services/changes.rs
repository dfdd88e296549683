//! Changes after a service was enabled: of its unit, its sandbox, the program that lifts it.

use crate::container::Container;
use crate::lasting_properties;
use anyhow::{Context as _, Result, ensure};
use std::time::Duration;
use test_support::poll_until;

const START_LIMIT: Duration = Duration::from_secs(240);

/// A template whose instances name the program. Once enabled, its command begins with Pagelift, but a second enable
/// must still judge the program.
pub fn named_by_instances(machine: &Container) -> Result<()> {
    let unit = "named@start-by-script.service";
    let before = lasting_properties(machine, unit)?;
    let refused = machine.fail(&["pagelift", "enable", unit])?;
    ensure!(refused.contains("/usr/bin/start-by-script is a script"), "{refused}");
    machine.run(&["pagelift", "enable", "--only", "sleep", unit])?;
    let again = machine.fail(&["pagelift", "enable", unit])?;
    ensure!(again == refused, "enabled, it is refused for another reason: {again}");
    machine.run(&["pagelift", "disable", unit])?;
    ensure!(lasting_properties(machine, unit)? == before, "disable leaves something");

    let unit = "named@forks.service";
    let before = lasting_properties(machine, unit)?;
    let shown = machine.run(&["pagelift", "enable", "named@"])?;
    ensure!(shown.contains("/named@.service.d/") && shown.contains(" -- /usr/bin/%i stay"), "{shown}");
    machine.run(&["systemctl", "start", unit])?;
    maps_an_image(machine, unit, "/usr/bin/forks")?;
    machine.run(&["systemctl", "stop", unit])?;
    machine.run(&["pagelift", "disable", "named@"])?;
    ensure!(lasting_properties(machine, unit)? == before, "disable of the template leaves something");
    Ok(())
}

/// A program beside the script that starts it, outside of systemd's search path: root makes its image before the start.
pub fn beside_its_script(machine: &Container) -> Result<()> {
    let unit = "beside.service";
    let before = lasting_properties(machine, unit)?;
    machine.run(&["pagelift", "enable", "--now", "--only", "server", unit])?;
    machine.run(&["systemctl", "start", unit])?;
    maps_an_image(machine, unit, "/opt/server/server")?;
    machine.run(&["pagelift", "disable", unit])?;
    let shown = machine.run(&["pagelift", "enable", "--dry-run", "--only", "elsewhere", unit])?;
    ensure!(shown.contains("fix: --only /PATH/OF/elsewhere"), "{shown}");
    machine.run(&["systemctl", "stop", unit])?;
    ensure!(lasting_properties(machine, unit)? == before, "disable leaves something");
    Ok(())
}

/// The program that a shell's words execute is lifted, not the shell: root makes its image before the start.
pub fn by_a_shell(machine: &Container) -> Result<()> {
    let unit = "shell.service";
    let before = lasting_properties(machine, unit)?;
    let shown = machine.run(&["pagelift", "enable", unit])?;
    ensure!(shown.contains("--only /usr/bin/forks: /bin/sh executes /usr/bin/forks"), "{shown}");
    ensure!(shown.contains("ExecStart=/usr/bin/pagelift run --only=/usr/bin/forks -- /bin/sh -c "), "{shown}");
    let current = || -> Result<()> {
        let listed = machine.run(&["pagelift", "enabled"])?;
        ensure!(listed.contains(unit) && listed.trim_end().ends_with(" current"), "it is not current: {listed}");
        Ok(())
    };
    current()?;
    machine.run(&["systemctl", "start", unit])?;
    maps_an_image(machine, unit, "/usr/bin/forks")?;
    machine.run(&["pagelift", "enable", unit])?;
    current().context("enabled once more")?;
    machine.run(&["systemctl", "stop", unit])?;
    machine.run(&["pagelift", "disable", unit])?;
    ensure!(lasting_properties(machine, unit)? == before, "disable leaves something");
    Ok(())
}

/// Waits until the main process of a unit whose user may make no images executes this file from one.
fn maps_an_image(machine: &Container, unit: &str, file: &str) -> Result<()> {
    let lifted = || -> Result<bool> {
        let pid = machine.main_pid(unit)?;
        let executed = machine.run(&["readlink", &format!("/proc/{pid}/exe")])?;
        Ok(executed.trim() == file && machine.huge_code(pid)? > 0 && !machine.images(pid)?.is_empty())
    };
    poll_until(START_LIMIT, "the program with an image", || lifted().unwrap_or(false))
        .with_context(|| machine.journal(unit).unwrap_or_default())
}

/// Checks what `enabled` says of a unit, which is the only one.
fn is_listed(machine: &Container, unit: &str, state: &str) -> Result<()> {
    let listed = machine.run(&["pagelift", "enabled"])?;
    ensure!(listed.contains(unit) && listed.contains(state), "it is not `{state}`: {listed}");
    Ok(())
}

/// Writes settings of a unit like an editor, without systemd's knowledge.
fn write(machine: &Container, unit: &str, text: &str) -> Result<()> {
    let folder = format!("/etc/systemd/system/{unit}.d");
    let script = format!("mkdir -p {folder} && printf '[Service]\\n{text}\\n' >{folder}/change.conf");
    machine.run(&["sh", "-c", &script]).map(drop)
}

/// A later file's settings that Pagelift's file overrides count once Pagelift's file is written again.
pub fn of_what_it_hides(machine: &Container) -> Result<()> {
    let sandbox = "SystemCallFilter=@system-service\\nMemoryDenyWriteExecute=yes";
    for (way, settings, name, set, changed) in [
        ("attach after each start", sandbox, "Type", "exec", "notify"),
        ("run, by ptrace", "", "SyslogIdentifier", "forks", "other"),
    ] {
        let unit = "open.service";
        let is = |value: &str| -> Result<()> {
            let found = machine.run(&["systemctl", "show", unit, "-p", name, "--value"])?;
            ensure!(found.trim() == value, "{name} is {found} instead of {value}");
            Ok(())
        };
        write(machine, unit, settings)?;
        machine.run(&["systemctl", "daemon-reload"])?;
        let shown = machine.run(&["pagelift", "enable", unit])?;
        ensure!(shown.contains(&format!("way: {way}")), "{shown}");
        is(set)?;
        is_listed(machine, unit, " current")?;
        write(machine, unit, &format!("{settings}\\n{name}={changed}"))?;
        machine.run(&["systemctl", "daemon-reload"])?;
        is(set)?;
        is_listed(machine, unit, "outdated: its sandbox, another setting")?;
        machine.run(&["pagelift", "enable", unit])?;
        is(changed)?;
        is_listed(machine, unit, " current")?;
        machine.run(&["pagelift", "disable", unit])?;
        is(changed)?;
        machine.run(&["rm", "-r", &format!("/etc/systemd/system/{unit}.d")])?;
        machine.run(&["systemctl", "daemon-reload"])?;
    }
    Ok(())
}

/// A sandbox in a file that systemd has not read yet: it counts, because it is in force once the service is enabled.
pub fn not_read(machine: &Container) -> Result<()> {
    let unit = "open.service";
    machine.run(&["systemctl", "start", unit])?;
    write(machine, unit, "SystemCallFilter=@system-service")?;
    let refused = machine.fail(&["pagelift", "enable", "--dry-run", unit])?;
    ensure!(refused.contains("fix: systemctl daemon-reload"), "{refused}");
    let shown = machine.run(&["pagelift", "enable", "--now", unit])?;
    ensure!(shown.contains("way: run, by preload"), "{shown}");
    ensure!(machine.is_active(unit), "it does not run: {}", machine.journal(unit)?);
    let lifted = || machine.huge_code(machine.main_pid(unit).unwrap_or_default()).is_ok_and(|huge| huge > 0);
    poll_until(START_LIMIT, "the program that lifts itself", lifted)
        .with_context(|| machine.journal(unit).unwrap_or_default())?;
    is_listed(machine, unit, " current")?;
    write(machine, unit, "SystemCallFilter=")?;
    is_listed(machine, unit, "not known: its files have changed since systemd read them")?;
    machine.run(&["systemctl", "daemon-reload"])?;
    is_listed(machine, unit, "outdated: its sandbox")?;
    // A removed file needs no reload.
    machine.run(&["rm", &format!("/etc/systemd/system/{unit}.d/change.conf")])?;
    let shown = machine.run(&["pagelift", "enable", unit])?;
    ensure!(shown.contains("way: run, by ptrace"), "{shown}");
    is_listed(machine, unit, " current")?;
    machine.run(&["pagelift", "disable", unit])?;
    not_noticed(machine, unit)
}

/// systemd compares dates, and misses changed contents with an old date.
fn not_noticed(machine: &Container, unit: &str) -> Result<()> {
    write(machine, unit, "User=redis")?;
    machine.run(&["systemctl", "daemon-reload"])?;
    write(machine, unit, "SystemCallFilter=@system-service")?;
    machine.run(&["touch", "-d", "1 hour ago", &format!("/etc/systemd/system/{unit}.d/change.conf")])?;
    let asked = machine.run(&["systemctl", "show", unit, "-p", "NeedDaemonReload,User"])?;
    ensure!(asked.contains("=no") && asked.contains("=redis"), "it is noticed, or was read: {asked}");
    let shown = machine.run(&["pagelift", "enable", "--now", unit])?;
    ensure!(
        shown.matches("way: run, by ").eq(["way: run, by "; 2]) && shown.contains("way: run, by preload"),
        "{shown}"
    );
    ensure!(machine.is_active(unit), "it does not run: {}", machine.journal(unit)?);
    is_listed(machine, unit, " current")?;
    machine.run(&["systemctl", "stop", unit])?;
    machine.run(&["pagelift", "disable", unit])?;
    machine.run(&["rm", "-r", &format!("/etc/systemd/system/{unit}.d")])?;
    machine.run(&["systemctl", "daemon-reload"]).map(drop)
}

/// `enabled` reports what would be written differently now.
pub fn noticed(machine: &Container) -> Result<()> {
    let (unit, folder) = ("redis-server.service", "/etc/systemd/system/redis-server.service.d");
    let is = |state: &str| is_listed(machine, unit, state);
    machine.run(&["pagelift", "enable", unit])?;
    is(" current")?;
    let add = |text: &str| -> Result<()> {
        write(machine, unit, text)?;
        machine.run(&["systemctl", "daemon-reload"]).map(drop)
    };
    add("SystemCallFilter=\\nMemoryDenyWriteExecute=no\\nNoExecPaths=")?;
    is("outdated: its sandbox")?;
    let shown = machine.run(&["pagelift", "enable", unit])?;
    ensure!(shown.contains("way: run, by ptrace"), "{shown}");
    is(" current")?;
    add("ExecStart=\\nExecStart=/usr/bin/redis-server --port 0")?;
    is("outdated: its ExecStart= has changed")?;
    machine.run(&["rm", &format!("{folder}/change.conf")])?;
    machine.run(&["systemctl", "daemon-reload"])?;
    is("outdated: its sandbox")?;
    machine.run(&["pagelift", "disable", unit])?;
    Ok(())
}

/// `disable --all --of-this-program` leaves the services of another copy of Pagelift; if that copy is removed,
/// `enabled` reports it.
pub fn of_another_installation(machine: &Container) -> Result<()> {
    let unit = "forks.service";
    machine.run(&["sh", "-c", "mkdir /opt/bin && cp /usr/bin/pagelift /opt/bin"])?;
    machine.run(&["/opt/bin/pagelift", "enable", unit])?;
    let listed = || machine.run(&["pagelift", "enabled"]);
    ensure!(listed()?.trim_end().ends_with(" current"), "{}", listed()?);
    machine.run(&["pagelift", "disable", "--all", "--of-this-program"])?;
    ensure!(listed()?.contains(unit), "what another copy has enabled was taken away");
    machine.run(&["rm", "-r", "/opt/bin"])?;
    ensure!(
        listed()?.contains("the pagelift that it starts is gone; fix: pagelift enable forks.service"),
        "{}",
        listed()?
    );
    machine.run(&["pagelift", "disable", "--all"])?;
    ensure!(listed()?.starts_with("no service"), "{}", listed()?);
    Ok(())
}
