//! `pagelift agent run`, and the workers that it starts.

use crate::commands::reading::limit_reads;
use crate::output::Output;
use crate::say;
use agent::journal::Journal;
use agent::rules::Configuration;
use agent::supervisor::{Action, Agent, Message, Paths, WorkerProcess};
use agent::worker::{Request, perform};
use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::{Read, stdin};
use std::sync::mpsc;
use std::thread;

/// Longest request in bytes.
const LONGEST_REQUEST: u64 = 1 << 20;

/// Runs the agent until a signal ends it.
pub fn run(paths: Paths, configuration: Configuration) -> anyhow::Result<()> {
    // Before the first lift, so that no signal ends the agent in the middle of one.
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).context("handling signals")?;
    let (say, heard) = mpsc::channel();
    thread::spawn(move || {
        for signal in &mut signals {
            let message = if signal == SIGHUP { Message::Reload } else { Message::Stop };
            if say.send(message).is_err() {
                return;
            }
        }
    });
    let program = std::env::current_exe().context("finding the own program")?;
    let journal = Journal::of_standard_error();
    let mut report = |action: &Action| {
        if journal.as_ref().is_none_or(|journal| journal.send(action).is_err()) {
            say!("pagelift-agent: {action}");
        }
    };
    let worker = Box::new(WorkerProcess::of(&program));
    let mut agent = Agent::start(paths, configuration, worker, &mut report).context("starting the agent")?;
    agent.run(&heard).context("running the agent")
}

/// Performs the requests of a supervisor.
pub fn worker() -> anyhow::Result<()> {
    limit_reads();
    let mut text = Vec::new();
    stdin().take(LONGEST_REQUEST).read_to_end(&mut text).context("reading the request")?;
    let request: Request = serde_json::from_slice(&text).context("understanding the request")?;
    Output::Standard.print_json(&perform(&request))
}
