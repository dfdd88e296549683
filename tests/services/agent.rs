//! `pagelift agent` as administrators use it: the package, rules, systemd, Prometheus, a verdict, upgrades and a reboot.

use crate::container::{Container, add_repack};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use test_support::{Context, DebianRelease, Need, Program, Session, pack_uncompressed, packed_needs, poll_until};

/// The agent waits while programs beside the tests use all CPUs.
const SOON: Duration = Duration::from_secs(240);
/// The longest wait for a measurement, which ends after 12 minutes at the latest.
const LONG: Duration = Duration::from_secs(900);
/// The longest life of Prometheus.
const LIFE: Duration = Duration::from_secs(1800);

const AGENT: &str = "pagelift-agent.service";
const DATABASE: &str = "mariadb.service";
/// The unit of a program that costs less while it is lifted.
const WORK: &str = "work.service";

/// The database is lifted, the other program if a measurement shows that it pays. Other tests cause pressure, and a program
/// has little time to use CPU time.
const RULES: &str = r#"[agent]
mode = "act"
metrics = "127.0.0.1:9273"
scan = "500ms"
settle = "1s"
overhead = "100%"
cpu = "100%"
max_pause = "10s"
max_cpu_pressure = "100%"
max_memory_pressure = "100%"
min_free_memory = "0%"

[[rule]]
name = "databases"
match = { unit = "mariadb.service", min_text = "8M" }
pages = "thp"
keep = "always"

[[rule]]
name = "work"
match = { exe = "/usr/bin/work" }
pages = "thp"
keep = "if it pays"
"#;

/// As the guide has it: units of work are counted by system calls.
const COUNTS_CALLS: &str = "[Service]\nCapabilityBoundingSet=CAP_PERFMON\n";
/// The limit of `systemd-analyze security`, in tenths.
const EXPOSURE: &str = "--threshold=35";

pub fn needs() -> Vec<Need> {
    let commands = ["prometheus", "promtool", "dh"].map(|name| Need::Command(name.into()));
    commands.into_iter().chain(packed_needs()).collect()
}

/// One container for the whole life of an installation.
pub fn of_a_package(t: &Context) -> Result<()> {
    let machine = Container::start_with(t, DebianRelease::BOOKWORM, prepare)?;
    install(&machine, 1)?;
    machine.has_no_huge_code(machine.main_pid(DATABASE)?).context("the plain server: nothing would be shown")?;
    machine.run(&["pagelift", "agent", "check"])?;
    machine.run(&["systemctl", "enable", "--now", AGENT])?;
    let exposure = machine.run(&["systemd-analyze", "security", "--no-pager", EXPOSURE, AGENT])?;
    t.note(exposure.lines().last().unwrap_or_default());

    let monitor = Monitor::start(t, &machine)?;
    let first = database_is_lifted(&machine)?;
    monitor.shows_the_lift(&machine, first)?;
    verdict_is_reached(t, &machine)?;
    machine.upgrade(&[("mariadb-server-core", Some("usr/sbin/mariadbd"))])?;
    machine.run(&["systemctl", "restart", DATABASE])?;
    let second = database_is_lifted(&machine).context("upgraded")?;
    ensure!(second != first, "the server was not restarted");
    agent_is_upgraded(&machine, second)?;
    monitor.shows_the_lift(&machine, second).context("after both upgrades")?;
    drop(monitor);

    let machine = machine.reboot(t)?;
    ensure!(machine.is_active(AGENT), "the agent has not started with the machine");
    database_is_lifted(&machine).context("after the reboot")?;
    ensure!(machine.run(&["pagelift", "agent", "verdicts"])?.contains("work"), "the verdict was lost");
    agent_restores(&machine)?;
    machine.stop()
}

fn prepare(t: &Context, root: &Path) -> Result<()> {
    for revision in ["1", "2"] {
        pack_uncompressed(t, revision, &root.join("packages").join(revision))?;
    }
    add_repack(root)?;
    fs::copy(Program::named("agent/costs_less_when_lifted.c")?.build()?, root.join("usr/bin/work"))?;
    let (rules, drop_in) = (root.join("etc/pagelift/agent.d"), root.join(format!("etc/systemd/system/{AGENT}.d")));
    fs::create_dir_all(&rules)?;
    fs::create_dir_all(&drop_in)?;
    fs::write(rules.join("50-rules.toml"), RULES)?;
    Ok(fs::write(drop_in.join("override.conf"), COUNTS_CALLS)?)
}

/// Installs a revision of the packages.
fn install(machine: &Container, revision: u32) -> Result<()> {
    let script = format!("dpkg -i /packages/{revision}/pagelift_*.deb /packages/{revision}/libpagelift0_*.deb");
    machine.run(&["sh", "-c", &script])?;
    let version = machine.run(&["dpkg-query", "-W", "-f", "${Version}", "pagelift"])?;
    ensure!(version.ends_with(&format!("-{revision}")), "it is version {version}");
    Ok(())
}

/// Waits until the agent has lifted the database by its rule. Returns its main process.
fn database_is_lifted(machine: &Container) -> Result<i32> {
    let pid = machine.main_pid(DATABASE)?;
    let words = format!("lifted mariadbd[{pid}]: ");
    let is_lifted = || machine.journal(AGENT).is_ok_and(|journal| journal.lines().any(|line| line.starts_with(&words)));
    poll_until(SOON, "the lift of the database", is_lifted)
        .with_context(|| machine.journal(AGENT).unwrap_or_default())?;
    ensure!(machine.huge_code(pid)? > 0, "no code of the database is on huge pages");
    let explained = machine.run(&["pagelift", "agent", "explain", &pid.to_string()])?;
    ensure!(explained.contains("state: lifted by rule \"databases\""), "{explained}");
    let answer = machine.run(&["mariadb", "-Ne", "select 6 * 7"])?;
    ensure!(answer.trim() == "42", "the database answers {answer}");
    Ok(pid)
}

/// A program that gains is measured, and lifted if the measurement came to a decision on this machine.
fn verdict_is_reached(t: &Context, machine: &Container) -> Result<()> {
    // Its input stays open, and nobody writes to it.
    let command = "mkfifo /run/work && exec /usr/bin/work 100000 88000 <>/run/work";
    machine.run(&["systemd-run", "--quiet", "--unit", WORK, "--", "/bin/sh", "-c", command])?;
    let pid = machine.main_pid(WORK)?;
    let words = format!("measured work[{pid}]: ");
    let decision = || machine.journal(AGENT).ok()?.lines().find_map(|line| Some(line.strip_prefix(&words)?.to_owned()));
    poll_until(LONG, "a decision", || decision().is_some())
        .with_context(|| machine.journal(AGENT).unwrap_or_default())?;
    let decision = decision().context("no decision")?;
    t.note(&decision);
    let listed = machine.run(&["pagelift", "agent", "verdicts"])?;
    ensure!(listed.contains("work"), "{listed}");
    if decision.starts_with("the lift pays") {
        poll_until(SOON, "the lift", || machine.huge_code(pid).is_ok_and(|bytes| bytes > 0))?;
    } else {
        ensure!(decision.starts_with("undecided"), "it costs 12 % less while it is lifted, but {decision}");
        machine.has_no_huge_code(pid)?;
    }
    machine.run(&["systemctl", "stop", WORK]).map(drop)
}

/// An upgrade of the package restarts the agent. The lifted program keeps its mappings, and is not lifted again.
fn agent_is_upgraded(machine: &Container, pid: i32) -> Result<()> {
    let (agent, maps) = (machine.main_pid(AGENT)?, machine.maps(pid)?);
    install(machine, 2)?;
    let is_another = || machine.main_pid(AGENT).is_ok_and(|now| now > 0 && now != agent) && machine.is_active(AGENT);
    poll_until(SOON, "the restart of the agent", is_another)?;
    let knows = || Ok::<_, anyhow::Error>(machine.journal(AGENT)?.contains("2 rules, 1 process lifted"));
    poll_until(SOON, "an agent that knows the lift", || knows().unwrap_or(false))
        .with_context(|| machine.journal(AGENT).unwrap_or_default())?;
    let scans = || status(machine).ok()?["agent"]["counts"]["scans"].as_u64();
    poll_until(SOON, "three scans of the new agent", || scans() > Some(3))?;
    ensure!(machine.maps(pid)? == maps, "the upgrade has changed the mappings of the database");
    let again = machine.journal(AGENT)?.matches(&format!("lifted mariadbd[{pid}]: ")).count();
    ensure!(again == 1, "it was lifted {again} times");
    Ok(())
}

/// The output of `status --json`.
fn status(machine: &Container) -> Result<Value> {
    Ok(serde_json::from_str(&machine.run(&["pagelift", "agent", "status", "--json"])?)?)
}

/// Ends the agent for good, and undoes the lift.
fn agent_restores(machine: &Container) -> Result<()> {
    let pid = machine.main_pid(DATABASE)?;
    machine.run(&["pagelift", "agent", "stop", "--restore"])?;
    machine.has_no_huge_code(pid).context("after `stop --restore`")?;
    ensure!(machine.main_pid(DATABASE)? == pid, "the database was restarted");
    let state = machine.run(&["systemctl", "show", AGENT, "-p", "ActiveState", "--value"])?;
    ensure!(state.trim() == "inactive", "the unit of the agent is {state}");
    let answer = machine.run(&["mariadb", "-Ne", "select 6 * 7"])?;
    ensure!(answer.trim() == "42", "the database answers {answer}");
    Ok(())
}

/// This machine's Prometheus in the network of the container.
struct Monitor {
    leader: String,
    _prometheus: Session,
}

impl Monitor {
    fn start(t: &Context, machine: &Container) -> Result<Self> {
        let configuration = t.folder().join("prometheus.yml");
        let scrape = "global: {scrape_interval: 1s}\nscrape_configs:\n\
                      - {job_name: pagelift, static_configs: [{targets: ['127.0.0.1:9273']}]}\n";
        fs::write(&configuration, scrape)?;
        let leader = machine.leader().to_string();
        let mut prometheus = in_network(&leader, "prometheus");
        prometheus.arg(format!("--config.file={}", configuration.display()));
        prometheus.arg(format!("--storage.tsdb.path={}", t.folder().join("prometheus").display()));
        prometheus.args(["--web.listen-address=127.0.0.1:9090", "--log.level=warn"]);
        Ok(Self { leader, _prometheus: t.session_within(prometheus, LIFE)? })
    }

    /// Waits until it shows the lifted bytes of the database that the agent has recorded.
    fn shows_the_lift(&self, machine: &Container, pid: i32) -> Result<()> {
        let status = status(machine)?;
        let mut lifts = status["ledger"]["lifts"].as_array().into_iter().flatten();
        let lift = lifts.find(|lift| lift["identity"]["pid"] == pid).context("no lift is recorded")?;
        let covered = lift["covered"].as_u64().context("no bytes are recorded")?;
        ensure!(covered >= machine.huge_code(pid)?, "{lift}");
        self.shows("sum(pagelift_lifted_bytes{program=\"mariadbd\"})", covered)
    }

    /// Waits until an expression has one value.
    fn shows(&self, expression: &str, wanted: u64) -> Result<()> {
        let ask = || -> Result<String> {
            let mut query = in_network(&self.leader, "promtool");
            let output = query.args(["query", "instant", "http://127.0.0.1:9090", expression]).output()?;
            Ok(String::from_utf8(output.stdout)?)
        };
        let has = |text: &str| text.lines().count() == 1 && text.contains(&format!(" => {wanted} @["));
        poll_until(SOON, expression, || ask().is_ok_and(|text| has(&text)))
            .with_context(|| format!("needed {wanted}, found {:?}", ask()))
    }
}

/// A program of this machine in the network of the container.
fn in_network(leader: &str, program: &str) -> Command {
    let mut command = Command::new("nsenter");
    command.args(["-t", leader, "-n", "--", program]);
    command
}
