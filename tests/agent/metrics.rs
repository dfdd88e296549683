//! Metrics of a running agent.

use crate::machine::Machine;
use anyhow::{Context as _, Result, ensure};
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use test_support::{Context, Ending, poll_until};

const SOON: Duration = Duration::from_secs(240);
const MOST_SERIES: usize = 200;

/// The body of `GET /metrics`.
pub fn scrape(socket: &Path) -> Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").context("no head")?;
    ensure!(head.starts_with("HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text"), "{head}");
    Ok(body.to_owned())
}

fn samples(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.starts_with('#'))
}

/// The value of a sample without its timestamp.
pub fn value(text: &str, name: &str) -> Option<f64> {
    samples(text).find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

/// A program is lifted and restored; a scrape and a textfile show both.
pub fn scraped(t: &Context) -> Result<()> {
    let (socket, file) = (t.folder().join("metrics"), t.folder().join("pagelift.prom"));
    let settings = format!("metrics = \"{}\"\ntextfile = \"{}\"", socket.display(), file.display());
    let machine = Machine::new(t, "act", &settings)?;
    let served = machine.serve(&[], &[])?;
    let agent = machine.agent()?;
    let has = |name: &str, wanted: f64| {
        poll_until(SOON, name, || scrape(&socket).is_ok_and(|text| value(&text, name) == Some(wanted)))
    };
    has("pagelift_lifts_total{result=\"lifted\"}", 1.0)?;
    let text = scrape(&socket)?;
    ensure!(text.ends_with("# EOF\n"), "{text}");
    let number = samples(&text).count();
    ensure!((40..=MOST_SERIES).contains(&number), "{number} series");
    let bytes = "pagelift_lifted_bytes{program=\"serves_from_large_code\",source=\"thp\",page_size=\"2097152\"}";
    ensure!(value(&text, bytes).is_some_and(|bytes| bytes as u64 == served.huge_bytes().unwrap_or(0)), "{text}");
    for name in ["pagelift_pause_seconds_count", "pagelift_processes{state=\"kept\"}"] {
        ensure!(value(&text, name) == Some(1.0), "{name} in {text}");
    }
    for name in ["process_resident_memory_bytes", "pagelift_budget_cpu_seconds_total{by=\"worker\"}"] {
        ensure!(value(&text, name).is_some_and(|value| value > 0.0), "{name} in {text}");
    }
    ensure!(!text.contains(&t.folder().display().to_string()) && !text.contains("rule"), "{text}");
    let first = File::open(&file)?;
    let is_replaced = || fs::metadata(&file).is_ok_and(|now| first.metadata().is_ok_and(|old| now.ino() != old.ino()));
    poll_until(SOON, "another file", is_replaced)?;
    let of_file = fs::read_to_string(&file)?;
    ensure!(value(&of_file, bytes) == value(&text, bytes) && !of_file.contains("# EOF"), "{of_file}");
    fs::write(machine.switch(), "restore\n")?;
    has("pagelift_kill_switch", 1.0)?;
    has("pagelift_lifts_total{result=\"put-back\"}", 1.0)?;
    ensure!(value(&scrape(&socket)?, bytes).is_none(), "nothing is lifted any more");
    machine.stop(agent)?;
    ensure!(!socket.exists(), "the socket is left");
    served.end()
}

/// An occupied address ends the agent with the reason; the command line has precedence over the rules.
pub fn taken(t: &Context) -> Result<()> {
    let other = TcpListener::bind("127.0.0.1:0")?;
    let address = other.local_addr()?.to_string();
    let machine = Machine::new(t, "observe", "metrics = \"127.0.0.1:1\"")?;
    let output = t.run(machine.pagelift(&["run", "--metrics", &address])?)?;
    ensure!(output.ending == Ending::Exit(125), "{output:?}");
    let expected = format!("the metrics cannot be served at {address}: another program listens there");
    ensure!(output.stderr.contains(&expected), "{}", output.stderr);
    Ok(())
}
