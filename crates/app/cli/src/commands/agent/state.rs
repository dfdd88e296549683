//! `pagelift agent status` and `pagelift agent stop`.

use crate::output::Output;
use crate::say;
use crate::text::agent as text;
use agent::discovery::{Machine, Sampler};
use agent::supervisor::{Action, Ledger, Paths, Status, WorkerProcess, forget_ended, lock_agent, restore_all};
use anyhow::Context;
use machine_facts::System;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;
use std::time::Duration;

/// Time within which an agent ends: a lift that has begun is finished first.
const LONGEST_END: Duration = Duration::from_secs(15 * 60);
/// Exit status if a lift could not be undone.
const NOT_RESTORED: u8 = 1;

/// The JSON of `status`.
#[derive(Serialize)]
struct Document<'a> {
    format: &'static str,
    version: u32,
    running: bool,
    agent: Option<&'a Status>,
    ledger: &'a Ledger,
}

fn ledger(paths: &Paths) -> anyhow::Result<Ledger> {
    let mut ledger = Ledger::load(&paths.state, &Machine::read(&System).boot)
        .with_context(|| format!("reading the state in {}; fix: start the agent again", paths.state.display()))?;
    forget_ended(&mut ledger);
    Ok(ledger)
}

/// The status that an agent has written, and whether that agent is running.
fn running(paths: &Paths) -> anyhow::Result<(Option<Status>, bool)> {
    let status =
        Status::load(&paths.state).with_context(|| format!("reading the state in {}", paths.state.display()))?;
    let sampler = Sampler::now().context("reading the time")?;
    let is_alive = |status: &Status| sampler.sample(status.agent.pid).is_some_and(|now| now.identity == status.agent);
    let runs = status.as_ref().is_some_and(is_alive);
    Ok((status, runs))
}

/// Shows the lifted processes.
pub fn status(paths: &Paths, json: bool) -> anyhow::Result<()> {
    let (status, running) = running(paths)?;
    let ledger = ledger(paths)?;
    if json {
        let agent = status.as_ref();
        return Output::Standard.print_json(&Document {
            format: "pagelift-agent-status",
            version: 1,
            running,
            agent,
            ledger: &ledger,
        });
    }
    Ok(Output::Standard.print(&text::status(status.as_ref(), running, &ledger))?)
}

/// Ends the running agent.
pub fn stop(paths: &Paths, restore: bool) -> anyhow::Result<u8> {
    let (status, running) = running(paths)?;
    if let Some(status) = status.filter(|_| running) {
        kill(Pid::from_raw(status.agent.pid), Signal::SIGTERM).context("ending the agent")?;
    } else if !restore {
        say!("pagelift: no agent runs with the state in {}", paths.state.display());
        return Ok(0);
    }
    let _lock = lock_agent(&paths.state, LONGEST_END).context("waiting for the agent's end")?;
    if !restore {
        return Ok(0);
    }
    let (mut ledger, aside) = Ledger::load_or_move_aside(&paths.state, &Machine::read(&System).boot)
        .with_context(|| format!("reading the state in {}", paths.state.display()))?;
    if let Some(what) = aside {
        say!("pagelift: {what}");
        return Ok(NOT_RESTORED);
    }
    forget_ended(&mut ledger);
    let program = std::env::current_exe().context("finding the own program")?;
    let mut report = |action: &Action| say!("pagelift: {action}");
    let mut worker = WorkerProcess::of(&program);
    let failed = restore_all(&mut ledger, &mut worker, &paths.state, &mut report, "pagelift agent stop --restore")?;
    Ok(if failed.is_empty() { 0 } else { NOT_RESTORED })
}
