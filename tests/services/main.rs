//! Services of a real systemd: a Debian in a container that `systemd-nspawn --boot` runs, with redis, MariaDB, PostgreSQL,
//! node and a unit whose sandbox refuses nearly everything.

mod agent;
mod changes;
mod clients;
mod container;
mod properties;
mod servers;

use anyhow::{Context as _, Result, ensure};
use container::Container;
use properties::{OF_A_RUN, PARTS_OF_A_RUN};
use std::process::ExitCode;
use std::time::Duration;
use test_support::{Context, DebianRelease, Need, main_of, poll_until, target_folder, test_case};

const RESTART_LIMIT: Duration = Duration::from_secs(240);

fn main() -> ExitCode {
    let mut needs = vec![Need::Root, Need::Thp, Need::Machine("x86_64".into())];
    needs.extend(["systemd-nspawn", "mmdebstrap", "nsenter", "gcc"].map(|name| Need::Command(name.into())));
    let library = target_folder().join("library/libpagelift.so");
    needs.push(Need::File(library.to_string_lossy().into_owned()));
    let of_agent: Vec<Need> = needs.iter().cloned().chain(agent::needs()).collect();
    main_of(vec![
        test_case("services_of_a_real_systemd", needs.clone(), services),
        test_case("an_agent_of_a_package", of_agent, agent::of_a_package),
        test_case("services_of_the_next_release", needs, services_of_the_next_release),
    ])
}

/// One container for all checks, because its start takes longest.
fn services(t: &Context) -> Result<()> {
    let machine = Container::start(t, DebianRelease::BOOKWORM)?;
    machine.run(&["pagelift", "image", "setup", "--size", "256M"])?;
    with_a_database(t, &machine).context("mariadb")?;
    with_full_privileges_refused(&machine).context("hardened")?;
    with_a_filter_that_kills(&machine).context("filtered")?;
    servers::with_postgresql(t, &machine).context("postgresql")?;
    servers::with_node(t, &machine).context("node")?;
    servers::on_the_bus(&machine).context("hostnamed")?;
    words_of_every_kind(&machine).context("words")?;
    what_cannot_be_lifted(&machine).context("refused")?;
    servers::that_leaves_its_starter(&machine).context("forks")?;
    servers::in_another_root(&machine).context("rooted")?;
    changes::named_by_instances(&machine).context("named")?;
    changes::beside_its_script(&machine).context("beside")?;
    changes::by_a_shell(&machine).context("shell")?;
    changes::noticed(&machine).context("changes")?;
    changes::of_what_it_hides(&machine).context("hidden")?;
    changes::not_read(&machine).context("not read")?;
    clients::of_a_socket(&machine).context("socket")?;
    changes::of_another_installation(&machine).context("another installation")?;
    machine.stop()
}

/// The checks that depend on systemd itself, with the systemd of Debian 13.
fn services_of_the_next_release(t: &Context) -> Result<()> {
    let machine = Container::start(t, DebianRelease::TRIXIE)?;
    let version = machine.run(&["systemctl", "--version"])?;
    t.note(version.lines().next().unwrap_or_default());
    machine.run(&["pagelift", "image", "setup", "--size", "64M"])?;
    with_full_privileges_refused(&machine).context("hardened")?;
    with_a_filter_that_kills(&machine).context("filtered")?;
    words_of_every_kind(&machine).context("words")?;
    servers::that_leaves_its_starter(&machine).context("forks")?;
    servers::in_another_root(&machine).context("rooted")?;
    changes::named_by_instances(&machine).context("named")?;
    changes::by_a_shell(&machine).context("shell")?;
    changes::noticed(&machine).context("changes")?;
    changes::of_what_it_hides(&machine).context("hidden")?;
    changes::not_read(&machine).context("not read")?;
    clients::of_a_socket(&machine).context("socket")?;
    machine.stop()
}

/// Start of a line by which root makes an image before a start.
const IMAGE: &str = "ExecStartPre=-+/usr/bin/pagelift image add --quiet --skip-locked -- ";

/// All properties of a unit except those of a single run.
fn lasting_properties(machine: &Container, unit: &str) -> Result<Vec<String>> {
    let text = machine.run(&["systemctl", "show", unit])?;
    let of_a_run = |line: &str| {
        let mut parts = PARTS_OF_A_RUN.iter().chain(&["start_time="]);
        OF_A_RUN.iter().any(|name| line.starts_with(name)) || parts.any(|part| line.contains(part))
    };
    // Dependencies are printed in any order.
    let sorted = |line: &str| {
        let mut words: Vec<&str> = line.split([' ', '=']).collect();
        words.sort_unstable();
        words.join(" ")
    };
    let mut lines: Vec<_> = text.lines().filter(|line| !of_a_run(line)).map(sorted).collect();
    lines.push(machine.run(&["systemctl", "cat", unit])?);
    // Without the times of the last run.
    let commands =
        machine.run(&["systemctl", "show", unit, "-p", "ExecStart,ExecStartPre,ExecStartPost,ExecReload"])?;
    lines.extend(commands.lines().map(|line| line.split(" ; start_time").next().unwrap_or_default().to_owned()));
    Ok(lines)
}

fn with_a_database(t: &Context, machine: &Container) -> Result<()> {
    let unit = "mariadb.service";
    let answers = || -> Result<()> {
        let version = machine.run(&["mariadb", "-Ne", "select 6 * 7"])?;
        ensure!(version.trim() == "42", "it answers {version}");
        Ok(())
    };
    answers()?;
    let before = lasting_properties(machine, unit)?;
    let pid = machine.main_pid(unit)?;
    let shown = machine.run(&["pagelift", "enable", unit])?;
    is_written_for_the_database(machine, unit, &shown)?;
    ensure!(shown.contains("written; mariadb.service runs on as it is"), "{shown}");
    ensure!(machine.main_pid(unit)? == pid, "enable has restarted it");
    machine.has_no_huge_code(pid).context("the plain server: nothing would be shown")?;
    ensure!(machine.run(&["pagelift", "enabled"])?.contains("current"), "it is not listed");

    let lifted = |why: &str| -> Result<i32> {
        let pid = machine.main_pid(unit)?;
        let name = machine.run(&["cat", &format!("/proc/{pid}/comm")])?;
        ensure!(name.trim() == "mariadbd", "after {why} the main process is {name}");
        let huge = machine.huge_code(pid)?;
        ensure!(huge > 0, "after {why} no code is on huge pages: {}", machine.journal(unit)?);
        answers().with_context(|| format!("after {why}"))?;
        t.note(format!("{why}: {} KiB of code on huge pages", huge >> 10));
        Ok(pid)
    };
    machine.run(&["systemctl", "restart", unit])?;
    let first = lifted("a restart")?;
    let lines = machine.journal(unit)?.lines().filter(|line| line.contains("pagelift")).count();
    ensure!(lines == 1, "{lines} lines of ours in the journal instead of one");
    let named = machine.run(&["journalctl", "-o", "cat", "-t", "mariadbd", "-u", unit])?;
    ensure!(named.contains("pagelift: mariadbd["), "the journal has another name than mariadbd: {named}");
    ensure!(machine.maps(first)?.contains("/run/pagelift/images/"), "it maps no image, though it runs as another user");

    machine.run(&["systemctl", "kill", "--kill-whom=main", "-s", "SEGV", unit])?;
    let restarted = || machine.main_pid(unit).is_ok_and(|pid| pid > 0 && pid != first) && machine.is_active(unit);
    poll_until(RESTART_LIMIT, "the restart after a crash", restarted)?;
    let second = lifted("a crash")?;

    // An upgrade of the package replaces the file: running processes keep the old code, new ones have the new code.
    machine.upgrade(&[("mariadb-server-core", Some("usr/sbin/mariadbd"))])?;
    answers()?;
    ensure!(machine.main_pid(unit)? == second, "the upgrade has restarted it");
    ensure!(machine.maps(second)?.contains("/usr/sbin/mariadbd (deleted)"), "the upgrade has not replaced its file");
    let old_images = machine.images(second)?;
    machine.run(&["systemctl", "restart", unit])?;
    let third = lifted("an upgrade")?;
    let new_images = machine.images(third)?;
    ensure!(!new_images.is_empty() && new_images != old_images, "it has the old file's image: {new_images:?}");

    machine.run(&["pagelift", "disable", unit])?;
    ensure!(machine.main_pid(unit)? == third, "disable has restarted it");
    let after = lasting_properties(machine, unit)?;
    let differ: Vec<_> = before.iter().zip(&after).filter(|(before, after)| before != after).collect();
    ensure!(before.len() == after.len() && differ.is_empty(), "disable leaves {differ:?}");
    machine.run(&["systemctl", "restart", unit])?;
    machine.has_no_huge_code(machine.main_pid(unit)?).context("without Pagelift again")?;
    answers()
}

/// Checks all lines that `enable` has written for MariaDB, whose unit executes the server or, since 10.11.19, a shell
/// that becomes the server.
fn is_written_for_the_database(machine: &Container, unit: &str, shown: &str) -> Result<()> {
    let path = machine.run(&["systemctl", "show", unit, "-p", "FragmentPath", "--value"])?;
    let own = machine.run(&["cat", path.trim()])?;
    // A backslash continues a line.
    let own = own.split("\\\n").map(str::trim_start).collect::<Vec<_>>().join(" ");
    let command = own.lines().find_map(|line| line.strip_prefix("ExecStart=")).context("no ExecStart=")?;
    let is_by_shell = command.starts_with("/bin/sh -c ");
    let reason = "--only /usr/sbin/mariadbd: /bin/sh executes /usr/sbin/mariadbd";
    ensure!(shown.contains(reason) == is_by_shell, "{shown}");
    let only = if is_by_shell { " --only=/usr/sbin/mariadbd" } else { "" };
    let name = if own.contains("\nSyslogIdentifier=") { "" } else { "SyslogIdentifier=mariadbd\n" };
    let expected = format!(
        "# Written by `pagelift enable`. `pagelift disable` removes it.\n# Unit: {unit}\n# Way: run, by ptrace\n\
         # Options: run{only}\n# Asked: \n# ExecStart={command}\n# Folder: made\n\
         [Unit]\nAfter=run-pagelift-images.mount\n\n\
         [Service]\n{name}{IMAGE}/usr/sbin/mariadbd\nExecStart=\nExecStart=/usr/bin/pagelift run{only} -- {command}\n"
    );
    let written = machine.run(&["cat", "/etc/systemd/system/mariadb.service.d/zz-pagelift.conf"])?;
    // The set of its large libraries differs between releases.
    let is_of_library = |line: &&str| line.strip_prefix(IMAGE).is_some_and(|file| file.contains(".so"));
    let lines = written.lines().filter(|line| !is_of_library(line));
    let written: String = lines.map(|line| format!("{line}\n")).collect();
    ensure!(written == expected, "written is\n{written}\ninstead of\n{expected}");
    Ok(())
}

/// No ptrace, no copied code, nothing executable but the program itself: it is lifted from outside.
fn with_full_privileges_refused(machine: &Container) -> Result<()> {
    let unit = "hardened@a\\x20b.service";
    let before = lasting_properties(machine, unit)?;
    machine.run(&["systemctl", "start", unit])?;
    let plain = machine.main_pid(unit)?;
    ensure!(
        machine.run(&["systemctl", "show", unit, "-p", "StatusText"])?.contains("a b"),
        "it did not say its argument"
    );
    machine.has_no_huge_code(plain).context("the plain program: nothing would be shown")?;
    machine.run(&["pagelift", "enable", "--runtime", "--now", "hardened@a\\x20b"])?;
    let file = ["cat", "/run/systemd/system/hardened@a\\x20b.service.d/zz-pagelift.conf"];
    let written = machine.run(&file)?;
    machine.run(&["pagelift", "enable", "--runtime", "hardened@a\\x20b"])?;
    ensure!(machine.run(&file)? == written, "enabled once more it has another file than {written}");
    ensure!(machine.run(&["pagelift", "enabled"])?.trim_end().ends_with(" current"), "it is not current");
    let pid = machine.main_pid(unit)?;
    ensure!(pid != plain, "--now has not restarted it");
    ensure!(machine.huge_code(pid)? > 0, "not lifted: {}", machine.journal(unit)?);
    ensure!(
        machine.run(&["systemctl", "show", unit, "-p", "StatusText"])?.contains("a b"),
        "its argument is another one"
    );
    let listed = machine.run(&["pagelift", "enabled", "--json"])?;
    ensure!(listed.contains("\"until_boot\": true") && listed.contains("attach after each start"), "{listed}");
    machine.run(&["systemctl", "reload", unit])?;
    machine.run(&["pagelift", "disable", "--all", "--now"])?;
    machine.run(&["systemctl", "stop", unit])?;
    ensure!(lasting_properties(machine, unit)? == before, "disable leaves something");
    Ok(())
}

/// The filter of redis kills it for each unlisted call: it lifts itself, or is lifted from outside, and survives.
fn with_a_filter_that_kills(machine: &Container) -> Result<()> {
    let unit = "redis-server.service";
    let answers = || -> Result<()> {
        let answer = machine.run(&["redis-cli", "ping"])?;
        ensure!(answer.trim() == "PONG", "it answers {answer}");
        Ok(())
    };
    let shown = machine.run(&["pagelift", "enable", "--now", unit])?;
    ensure!(shown.contains("SystemCallFilter= kills a process for ptrace"), "{shown}");
    answers().with_context(|| machine.journal(unit).unwrap_or_default())?;
    let journal = machine.journal(unit)?;
    let pid = machine.main_pid(unit)?;
    // Its own code fills no huge page, and its libraries differ between releases: the attempt is checked.
    ensure!(journal.contains(&format!("[{pid}]: ")), "nothing is said of it: {journal}");
    ensure!(shown.contains("itself fills a huge page; its libraries, data and heap alone can gain"), "{shown}");
    // The package's own scripts restart it.
    machine.upgrade(&[("redis-tools", Some("usr/bin/redis-check-rdb")), ("redis-server", None)])?;
    let restarted = || machine.main_pid(unit).is_ok_and(|now| now > 0 && now != pid) && machine.is_active(unit);
    poll_until(RESTART_LIMIT, "the restart by an upgrade of the package", restarted)?;
    answers().context("after an upgrade of the package")?;
    let (pid, journal) = (machine.main_pid(unit)?, machine.journal(unit)?);
    ensure!(journal.contains(&format!("[{pid}]: ")), "after the upgrade nothing is said of it: {journal}");
    ensure!(machine.run(&["pagelift", "enabled"])?.trim_end().ends_with(" current"), "the upgrade has outdated it");
    machine.run(&["pagelift", "disable", "--now", unit])?;
    answers()
}

/// Quotes, escapes, variables, specifiers and prefixes: the program gets the same words as without Pagelift.
fn words_of_every_kind(machine: &Container) -> Result<()> {
    const COMMANDS: usize = 7;
    let unit = "odd@prints-words.service";
    let lines = || -> Result<Vec<String>> {
        machine.run(&["journalctl", "--sync"])?;
        let text = machine.journal(unit)?;
        Ok(text.lines().filter(|line| line.starts_with('[')).map(str::to_owned).collect())
    };
    let printed = |count: usize| -> Result<Vec<String>> {
        machine.run(&["systemctl", "start", unit])?;
        // The journal may read the unit's output after the unit has ended.
        poll_until(RESTART_LIMIT, "the journal", || lines().is_ok_and(|lines| lines.len() >= count))?;
        lines()
    };
    let plain = printed(COMMANDS)?;
    ensure!(plain.len() == COMMANDS && plain[0].contains("[a ' b]"), "{plain:?}");
    let shown = machine.run(&["pagelift", "enable", "--quiet", "odd@"])?;
    ensure!(shown.matches("ExecStart=").count() == 2 * COMMANDS, "one line of the unit holds two commands: {shown}");
    let both = printed(2 * COMMANDS)?;
    ensure!(both[COMMANDS..] == plain, "lifted: {:#?}", &both[COMMANDS..]);
    machine.run(&["pagelift", "disable", "odd@"]).map(drop)
}

fn what_cannot_be_lifted(machine: &Container) -> Result<()> {
    let refused = |unit: &str, needle: &str| -> Result<()> {
        let before = lasting_properties(machine, unit)?;
        let text = machine.fail(&["pagelift", "enable", "--now", unit])?;
        ensure!(text.contains(needle) && text.contains("nothing was changed"), "{text}");
        ensure!(lasting_properties(machine, unit)? == before, "{unit} was changed");
        Ok(())
    };
    refused("script.service", "fix: --only NAME")?;
    refused("once.service", "Type=oneshot leaves no process")?;
    ensure!(machine.fail(&["pagelift", "enable", "nothing"])?.contains("not-found"), "a unit that is not there");
    Ok(())
}
