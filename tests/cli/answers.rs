//! The answers of `status`, `inspect`, `doctor` and a dry run about one process.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::fmt;
use test_support::{Context, mebibytes};

/// Number of times that a process whose memory changes meanwhile is asked.
const MOST_ASKED: u32 = 50;
const HUGE: &str = " resident on huge pages";

/// The answers, each as it is printed.
pub struct Answers {
    status: String,
    inspect: String,
    dry_run: String,
    doctor: String,
    /// The lines of `stat` that name the process and its huge pages.
    stat: [String; 2],
    /// Size on huge pages.
    pub huge: String,
    /// Size that a lift would add.
    pub added: String,
    /// The command that doctor recommends.
    pub run: Option<String>,
    /// The command that measures it.
    pub measure: Option<String>,
}

impl Answers {
    /// Asks until the process is in the same state before and after. Then all answers must agree.
    pub fn that_agree(t: &Context, pid: u32) -> Result<Self> {
        let mut before = state(t, pid)?;
        for _ in 0..MOST_ASKED {
            let answers = Self::of(t, pid, before)?;
            let after = state(t, pid)?;
            if after == (answers.huge.clone(), answers.added.clone()) {
                answers.check().with_context(|| answers.to_string())?;
                return Ok(answers);
            }
            before = after;
        }
        anyhow::bail!("the memory of process {pid} does not come to rest")
    }

    fn of(t: &Context, pid: u32, (huge, added): (String, String)) -> Result<Self> {
        let output = t.run(t.pagelift(&["doctor", "--json", &pid.to_string()])?)?;
        let report: Value = serde_json::from_str(&output.stdout).with_context(|| output.stderr.clone())?;
        let text = |name: &str| report["verdict"][name].as_str().map(str::to_owned);
        Ok(Self {
            status: first_line(t, &["status"], pid)?,
            inspect: first_line(t, &["inspect"], pid)?,
            dry_run: first_line(t, &["attach", "--dry-run"], pid)?,
            doctor: text("summary").context("no verdict")?,
            stat: of_stat(t, pid)?,
            huge,
            added,
            run: text("run"),
            measure: text("measure"),
        })
    }

    fn check(&self) -> Result<()> {
        for answer in [&self.status, &self.inspect, &self.doctor] {
            ensure!(huge_of(answer)? == self.huge, "other bytes on huge pages");
        }
        for answer in [&self.inspect, &self.doctor] {
            ensure!(added_of(answer) == self.added, "a lift would add something else");
        }
        ensure!(self.stat[1].starts_with(&format!("{} of ", self.huge)), "stat has other bytes on huge pages");
        let planned =
            self.dry_run.split_once("]: ").and_then(|(_, plan)| plan.split_once(" of ")).context("no plan")?;
        ensure!(planned.0 == self.added, "the dry run plans something else");
        let name = |answer: &str| answer.split_once("]: ").map(|(name, _)| name.to_owned());
        ensure!(name(&self.status).is_some() && name(&self.status) == name(&self.inspect), "two names");
        ensure!(name(&self.status) == name(&self.dry_run) && name(&self.status) == name(&self.stat[0]), "two names");
        let program = self.status.split_once('[').context("no name")?.0;
        ensure!(self.doctor.trim_start_matches("leave ").starts_with(program), "doctor has another name");
        // Heaps and other memory need an option.
        let run = self.run.as_deref().unwrap_or_default();
        let adds = self.added != "0 B" || run.contains("--heap") || run.contains("--lift");
        // A server that requests pool pages by itself gets those first.
        let by_pool =
            run.starts_with("pagelift pool reserve ") && self.doctor.contains("reserve them, then restart it");
        ensure!(run.is_empty() || by_pool || adds, "a lift of nothing is recommended");
        let lifts = run.starts_with("pagelift ") && run.contains(" attach ");
        ensure!(run.is_empty() || by_pool || lifts, "no lift of a process");
        Ok(())
    }
}

impl fmt::Display for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, inspect, dry_run, doctor, stat, run, measure, .. } = self;
        let [run, measure] = [run, measure].map(|command| command.as_deref().unwrap_or("-"));
        write!(f, "\n  status  {status}\n  inspect {inspect}\n  dry run {dry_run}\n  doctor  {doctor}\n")?;
        writeln!(f, "  stat    {}; {}", stat[0], stat[1])?;
        writeln!(f, "    run     {run}\n    measure {measure}")
    }
}

/// The size on huge pages, and the size that a lift would add.
fn state(t: &Context, pid: u32) -> Result<(String, String)> {
    let inspect = first_line(t, &["inspect"], pid)?;
    let status = first_line(t, &["status"], pid)?;
    Ok((huge_of(&status)?, added_of(&inspect)))
}

/// The name in a short measurement, and what it prints about huge pages.
fn of_stat(t: &Context, pid: u32) -> Result<[String; 2]> {
    let words = ["stat", "--for", "100ms", "--stall", "0", "-p", &pid.to_string()];
    let text = t.run(t.pagelift(&words)?)?.success()?.stdout;
    let huge = text.lines().find_map(|line| line.strip_prefix("on huge pages ")).with_context(|| text.clone())?;
    Ok([text.lines().next().unwrap_or_default().to_owned(), huge.trim_start().to_owned()])
}

fn first_line(t: &Context, words: &[&str], pid: u32) -> Result<String> {
    let output = t.run(t.pagelift(&[words, &[&pid.to_string()]].concat())?)?.success()?;
    Ok(output.stdout.lines().next().unwrap_or_default().to_owned())
}

/// The size in `NAME: SIZE of SIZE resident on huge pages`.
fn huge_of(answer: &str) -> Result<String> {
    let numbers = answer.split_once(HUGE).with_context(|| format!("no numbers: {answer}"))?.0;
    let numbers = numbers.rsplit_once(": ").context("no name")?.1;
    Ok(numbers.split_once(" of ").context("no bytes")?.0.to_owned())
}

fn added_of(answer: &str) -> String {
    let rest = answer.split_once("a lift would add ").map_or("nothing", |(_, rest)| rest);
    match rest.starts_with("nothing") {
        true => "0 B".to_owned(),
        false => rest.split(' ').take(2).collect::<Vec<_>>().join(" ").trim_end_matches([',', '.', ';']).to_owned(),
    }
}

/// MiB of all parts of which a detach reports that they stay on huge pages.
pub fn stays(detached: &str) -> Result<f64> {
    let parts = detached.split("; ").filter(|part| part.contains(" stays on huge pages"));
    parts.map(mebibytes).sum()
}
