//! A worker that SIGKILL does not end.

use crate::SOON;
use crate::machine::Machine;
use crate::metrics::{scrape, value};
use anyhow::{Context as _, Result, ensure};
use nix::fcntl::{Flock, FlockArg};
use serde_json::Value;
use std::fs::{self, File};
use test_support::{Context, DeepFreezer, poll_until};

/// Holds the lock of workers until it is dropped, so that a worker waits.
fn hold_workers(machine: &Machine<'_>) -> Result<Flock<File>> {
    let file = File::options().write(true).open(machine.state().join("worker.lock"))?;
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error).context("the lock of workers")
}

/// The process number of the agent's worker.
fn worker_of(agent: u32) -> Result<u32> {
    let children = || fs::read_to_string(format!("/proc/{agent}/task/{agent}/children")).unwrap_or_default();
    poll_until(SOON, "a worker", || !children().trim().is_empty())?;
    children().split_whitespace().next().context("no worker")?.parse().context("no number")
}

/// The agent scans, serves metrics and follows the kill switch; other programs are restored, and nothing is lifted. When the
/// worker ends, the agent lifts again.
pub fn worker(t: &Context) -> Result<()> {
    let socket = t.folder().join("metrics");
    let machine = Machine::new(t, "act", &format!("metrics = \"{}\"", socket.display()))?;
    let freezer = DeepFreezer::new()?;
    let lifted = machine.serve(&[], &[])?;
    let agent = machine.agent()?;
    agent.wait_for_stderr(&format!("lifted serves_from_large_code[{}]", lifted.pid()))?;
    let lock = hold_workers(&machine)?;
    let next = machine.serve(&[], &[])?;
    let worker = worker_of(agent.pid())?;
    freezer.freeze(worker)?;
    drop(lock);
    machine.wait_for_scans(3)?;
    ensure!(value(&scrape(&socket)?, "pagelift_stuck_workers") == Some(0.0), "it was not killed yet");

    fs::write(machine.switch(), "restore\n")?;
    agent.wait_for_stderr(&format!("worker {worker} for process {} was killed and does not end", next.pid()))?;
    agent.wait_for_stderr(&format!("restored serves_from_large_code[{}]", lifted.pid()))?;
    ensure!(lifted.huge_bytes()? == 0, "huge pages are left");
    let shown = || machine.status().is_ok_and(|status| status["agent"]["stuck"][0]["worker"] == worker);
    poll_until(SOON, "a status that shows the worker", shown)?;
    let counted = || scrape(&socket).is_ok_and(|text| value(&text, "pagelift_stuck_workers") == Some(1.0));
    poll_until(SOON, "metrics that count the worker", counted)?;

    fs::remove_file(machine.switch())?;
    let third = machine.serve(&[], &[])?;
    machine.wait_for_scans(10)?;
    ensure!(third.huge_bytes()? == 0, "a second worker has lifted");

    freezer.thaw()?;
    agent.wait_for_stderr(&format!("worker {worker} for process {} has ended", next.pid()))?;
    agent.wait_for_stderr(&format!(": lifted serves_from_large_code[{}]", third.pid()))?;
    let is_gone = || machine.status().is_ok_and(|status| status["agent"]["stuck"] == Value::Array(Vec::new()));
    poll_until(SOON, "a status without the worker", is_gone)?;
    machine.stop(agent)?;
    [lifted, next, third].into_iter().try_for_each(crate::machine::Served::end)
}
