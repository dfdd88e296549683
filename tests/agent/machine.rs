//! A folder of rules, a state, and programs that meet the rules.

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use test_support::{Context, Ending, Program, Session, View, poll_until};

const PROGRAM: &str = "agent/serves_from_large_code.c";
const SOON: Duration = Duration::from_secs(240);
/// The longest wait for a measurement, which ends after 12 minutes at the latest: a process uses 12 s of CPU time before it, and
/// blocks may be dropped on a busy machine.
pub const LONG: Duration = Duration::from_secs(900);
/// The longest life of an agent and its programs.
const LIFE: Duration = Duration::from_secs(1800);

/// Files of one agent.
pub struct Machine<'a> {
    t: &'a Context,
    folder: PathBuf,
}

impl<'a> Machine<'a> {
    /// An agent that scans ten times a second, and waits for no pressure to end: other tests may cause that.
    pub fn new(t: &'a Context, mode: &str, settings: &str) -> Result<Self> {
        let machine = Self { t, folder: t.folder().to_owned() };
        fs::create_dir(machine.rules())?;
        let usual = "scan = \"100ms\"\nsettle = \"0s\"\noverhead = \"100%\"\nmax_cpu_pressure = \"100%\"\n\
                     max_memory_pressure = \"100%\"";
        let mut lines = format!("[agent]\nmode = \"{mode}\"\n{usual}\n{settings}\n");
        for (name, value) in [("max_pause", "10s"), ("min_free_memory", "0%"), ("cpu", "100%")] {
            if !settings.contains(&format!("{name} =")) {
                lines += &format!("{name} = \"{value}\"\n");
            }
        }
        machine.write("10-agent.toml", &lines)?;
        machine.write_rule("")?;
        Ok(machine)
    }

    fn rules(&self) -> PathBuf {
        self.folder.join("agent.d")
    }

    /// The kill switch.
    pub fn switch(&self) -> PathBuf {
        self.folder.join("agent.off")
    }

    /// The folder of the state.
    pub fn state(&self) -> PathBuf {
        self.folder.join("state")
    }

    /// Writes a file of rules.
    pub fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.rules().join(name);
        fs::write(&path, text)?;
        Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o644))?)
    }

    /// Writes the rule for the program, with more lines.
    pub fn write_rule(&self, more: &str) -> Result<()> {
        self.write_rule_that_keeps("always", more)
    }

    /// Writes the rule for all programs, with more lines. Lifts stay `always`, or `if it pays`.
    pub fn write_rule_that_keeps(&self, keep: &str, more: &str) -> Result<()> {
        let exe = "exe = [\"*/serves_from_large_code\", \"*/costs_less_when_lifted\", \"*/kubelet\"]";
        let rule = format!(
            "[[rule]]\nname = \"code\"\nmatch = {{ {exe} }}\nlift = [\"text\", \"rodata\"]\npages = \"thp\"\nkeep = \"{keep}\"\n{more}\n"
        );
        self.write("50-rules.toml", &rule)
    }

    /// A command of `pagelift agent`.
    pub fn pagelift(&self, words: &[&str]) -> Result<Command> {
        let (rules, state) = (self.rules().display().to_string(), self.state().display().to_string());
        self.t.pagelift(&[&["agent"], words, &["--config", &rules, "--state", &state]].concat())
    }

    /// Starts an agent.
    pub fn agent(&self) -> Result<Session> {
        let command = self.pagelift(&["run", "--verdicts", &self.verdicts().display().to_string()])?;
        self.t.session_within(command, LIFE)
    }

    /// The folder of the verdicts.
    pub fn verdicts(&self) -> PathBuf {
        self.folder.join("verdicts")
    }

    /// Runs a command of `pagelift agent verdicts`.
    pub fn run_verdicts(&self, words: &[&str]) -> Result<String> {
        let folder = self.verdicts().display().to_string();
        let command = self.t.pagelift(&[&["agent", "verdicts"], words, &["--verdicts", &folder]].concat())?;
        Ok(self.t.run(command)?.success()?.stdout)
    }

    /// Ends an agent. Returns its messages.
    pub fn stop(&self, agent: Session) -> Result<String> {
        agent.signal(Signal::SIGTERM)?;
        let output = agent.finish()?;
        self.t.keep(&output);
        ensure!(output.ending == Ending::Exit(0), "{output:?}");
        Ok(output.stderr)
    }

    /// The output of `status --json`.
    pub fn status(&self) -> Result<Value> {
        let output = self.t.run(self.pagelift(&["status", "--json"])?)?.success()?;
        serde_json::from_str(&output.stdout).context("no JSON")
    }

    /// Waits until the agent has scanned this number of times more.
    pub fn wait_for_scans(&self, number: u64) -> Result<()> {
        let scans = || self.status().ok().and_then(|status| status["agent"]["counts"]["scans"].as_u64()).unwrap_or(0);
        let due = scans() + number;
        poll_until(SOON, "scans", || scans() >= due)
    }

    /// The output of `explain`.
    pub fn explain(&self, pid: u32) -> Result<String> {
        let verdicts = self.verdicts().display().to_string();
        Ok(self.t.run(self.pagelift(&["explain", &pid.to_string(), "--verdicts", &verdicts])?)?.success()?.stdout)
    }

    /// Starts the program.
    pub fn serve(&self, words: &[&str], environment: &[(&str, &str)]) -> Result<Served> {
        let mut command: Command = Program::named(PROGRAM)?.command()?;
        command.args(words).envs(environment.iter().copied());
        self.start(command)
    }

    /// Starts a program whose units of work have other prices while it is lifted.
    pub fn work(&self, plain: u32, lifted: u32) -> Result<Served> {
        let mut command = Program::named("agent/costs_less_when_lifted.c")?.command()?;
        command.args([plain, lifted].map(|steps| steps.to_string()));
        self.start(command)
    }

    /// Starts a copy of the program with another name.
    pub fn serve_as(&self, name: &str) -> Result<Served> {
        let copy = self.folder.join(name);
        fs::copy(Program::named(PROGRAM)?.build()?, &copy)?;
        self.start(Command::new(copy))
    }

    fn start(&self, command: Command) -> Result<Served> {
        let session = self.t.session_within(command, LIFE)?;
        session.wait_for_line("ready")?;
        Ok(Served { session, checks: 0 })
    }
}

/// A running program.
pub struct Served {
    session: Session,
    checks: usize,
}

impl Served {
    /// Its number.
    pub fn pid(&self) -> u32 {
        self.session.pid()
    }

    /// Bytes that it has on huge pages.
    pub fn huge_bytes(&self) -> Result<u64> {
        Ok(View::of(self.pid())?.huge_bytes())
    }

    /// Its mappings.
    pub fn maps(&self) -> Result<String> {
        Ok(fs::read_to_string(format!("/proc/{}/maps", self.pid()))?)
    }

    /// Lets it fork. Returns the PID of the fork, which ends with it.
    pub fn fork(&mut self) -> Result<u32> {
        self.fork_by("fork\n")
    }

    /// Lets it fork. Returns the PID of the fork, which lasts until it is killed.
    pub fn daemon(&mut self) -> Result<u32> {
        self.fork_by("daemon\n")
    }

    fn fork_by(&mut self, line: &str) -> Result<u32> {
        let before = self.session.whole_lines_so_far().lines().count();
        self.session.send(line)?;
        poll_until(SOON, "a fork", || self.session.whole_lines_so_far().lines().count() > before)?;
        Ok(self.session.whole_lines_so_far().lines().nth(before).context("no line")?.parse()?)
    }

    /// Lets it check its code and constants.
    pub fn check(&mut self) -> Result<()> {
        self.session.send("\n")?;
        self.checks += 1;
        let checks = self.checks;
        let answers = |text: &str| text.lines().filter(|line| *line == "all right").count();
        let (session, wanted) = (&self.session, checks);
        poll_until(SOON, "an answer", || {
            answers(&session.stdout_so_far()) >= wanted || session.stdout_so_far().contains("wrong")
        })?;
        ensure!(!session.stdout_so_far().contains("wrong"), "its code or constants were wrong");
        Ok(())
    }

    /// Lets it check itself, and end.
    pub fn end(mut self) -> Result<()> {
        self.check()?;
        let output = self.session.finish()?;
        ensure!(output.ending == Ending::Exit(0), "{output:?}");
        Ok(())
    }

    /// Ends it like a crash.
    pub fn crash(self) -> Result<()> {
        self.session.signal(Signal::SIGSEGV)?;
        self.session.finish().map(drop)
    }
}
