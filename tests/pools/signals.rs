//! Signals to `pagelift pool reserve`, and its closed output.

use crate::{count, short};
use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use std::io;
use std::process::{Command, Stdio};
use test_support::{Context, Ending, Need, Test, default_huge_page, pagelift_binary, test_case};

pub fn tests() -> Vec<Test> {
    let needs = || vec![Need::Root, Need::Pool(0)];
    vec![
        test_case("held_pages_go_back_when_nobody_reads_the_output", needs(), unread),
        test_case("for_keeps_ignored_signals", needs(), ignored),
        test_case("for_hands_signals_on", needs(), handed_on),
    ]
}

fn unread(t: &Context) -> Result<()> {
    let page = default_huge_page()?;
    let (reader, writer) = io::pipe()?;
    drop(reader);
    let mut command = t.pagelift(&["pool", "reserve", "--add", "--hold", &format!("{}:2", short(page))])?;
    let status = command.stdin(Stdio::null()).stdout(writer).status()?;
    ensure!(count(page, "nr_hugepages")? == 0, "the pages are still reserved: {status:?}");
    ensure!(status.code() == Some(0), "{status:?}");
    Ok(())
}

/// A job that nohup or a shell has started without them.
fn ignored(t: &Context) -> Result<()> {
    const MASK: &str = "grep SigIgn /proc/self/status";
    let with = |script: &str| -> Result<Command> {
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(pagelift_binary()?);
        Ok(command)
    };
    let mask = |before: &str| -> Result<u64> {
        let output = t.run(with(&format!("trap '' HUP INT QUIT; exec {before} {MASK}"))?)?.success()?;
        let mask = output.stdout.trim().rsplit('\t').next().context("no mask")?;
        // glibc's posix_spawn(3) ignores its own signals 32 and 33 in the child.
        Ok(u64::from_str_radix(mask, 16)? & u64::from(u32::MAX >> 1))
    };
    let (plain, lent) = (mask("")?, mask("\"$0\" pool reserve --for --")?);
    ensure!(lent == plain, "ignored are {lent:#x} instead of {plain:#x}");
    let script = "trap '' HUP; exec \"$0\" pool reserve --for -- sh -c 'echo ready; read line; echo $line'";
    let mut session = t.session(with(script)?)?;
    session.wait_for_line("ready")?;
    session.signal(Signal::SIGHUP)?;
    session.send("continued\n")?;
    let output = session.finish()?;
    ensure!(output.ending == Ending::Exit(0) && output.stdout.ends_with("continued\n"), "{output:?}");
    Ok(())
}

/// Only the signals of a terminal reach the program without this.
fn handed_on(t: &Context) -> Result<()> {
    const SCRIPT: &str = "trap 'echo received; exit 9' HUP INT QUIT TERM; echo ready; while :; do sleep 0.05; done";
    for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM] {
        let session = t.session(t.pagelift(&["pool", "reserve", "--for", "--", "sh", "-c", SCRIPT])?)?;
        session.wait_for_line("ready")?;
        session.signal(signal)?;
        let output = session.finish()?;
        ensure!(output.ending == Ending::Exit(9) && output.stdout == "ready\nreceived\n", "{signal}: {output:?}");
    }
    Ok(())
}
