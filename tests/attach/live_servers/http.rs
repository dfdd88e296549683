//! node, java and Go under HTTP load.

use crate::{LIFETIME, Lifting, finish, from_each_source, number_after, quietly, say};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::scope;
use std::time::Duration;
use test_support::{Context, Need, Program, Skipped, Test, poll_until, test_case, tests_folder};

const CLIENTS: u64 = 8;
/// Size of the heap of a Java server.
const HEAP: u64 = 96 << 20;
/// Distance between the numbers that two clients ask for.
const FAR: u64 = 1_000_000_007;

pub fn tests() -> Vec<Test> {
    let mut tests = from_each_source("node", &["node"], |t, by| serves(t, by, interpreted("node", "http_server.js")));
    tests.extend(from_each_source("java", &["java", "javac"], |t, by| {
        serves(t, by, interpreted("java", "HttpAnswers.java"))
    }));
    for collector in ["G1", "Z"] {
        let needs = [crate::needs(&["java", "javac"]), vec![Need::Kernel(6, 1)]].concat();
        tests.push(test_case(format!("java/in_place/{collector}"), needs, move |t| java_in_place(t, collector)));
    }
    tests.extend(from_each_source("go", &["go"], |t, by| {
        serves(t, by, Program::named("attach/http_server.go")?.command()?)
    }));
    tests
}

fn interpreted(command: &str, source: &str) -> Command {
    let mut command = Command::new(command);
    command.arg(tests_folder().join("attach/programs").join(source));
    command
}

/// Heap, code heap, and shared memory of a Java server: its Z collector maps the heap several times.
fn java_in_place(t: &Context, collector: &str) -> Result<()> {
    let chosen = format!("-XX:+Use{collector}GC");
    let mut has_collector = Command::new("java");
    has_collector.args([&chosen, "-version"]);
    if t.run(has_collector)?.success().is_err() {
        return Err(Skipped(format!("this java has no collector {collector}")).into());
    }
    let denies = |mode: String| mode.contains("[deny]");
    if fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled").is_ok_and(denies) {
        return Err(Skipped("shmem_enabled is deny, and the Z collector's heap is shared memory".to_owned()).into());
    }
    let mut command = Command::new("java");
    command.args([&chosen, "-Xms96m", "-Xmx96m", "-XX:+AlwaysPreTouch", "-XX:InitialCodeCacheSize=16m"]);
    command.arg(tests_folder().join("attach/programs/HttpAnswers.java"));
    answers_during(t, command, |pid| {
        let report = t.folder().join("report.json");
        let words =
            ["attach", "--lift", "anon,jit,shared", "--report", &report.display().to_string(), &pid.to_string()];
        let (mut rounds, mut lifted) = (0, 0);
        while rounds < 5 || (lifted < HEAP / 2 && rounds < 50) {
            quietly(t.pagelift(&words)?)?;
            let json: Value = serde_json::from_str(&fs::read_to_string(&report)?)?;
            lifted = 0;
            for segment in
                ["anon", "jit", "shared"].iter().flat_map(|kind| json[*kind]["segments"].as_array()).flatten()
            {
                let of = |name: &str| segment[name].as_u64().unwrap_or(0);
                // The heap of the Z collector is mapped thrice.
                ensure!(of("huge_after") <= of("length"), "more is huge than there is: {segment}");
                lifted += of("huge_after");
            }
            rounds += 1;
        }
        ensure!(lifted >= HEAP / 2, "only {lifted} bytes are huge after {rounds} lifts");
        Ok(())
    })
}

/// An HTTP server that answers `GET /N` with `N * 7919 + 1` and ends with its input.
fn serves(t: &Context, by: &Lifting, command: Command) -> Result<()> {
    answers_during(t, command, |pid| by.alternate(t, pid, || Ok(true)))
}

/// Starts such a server, and checks its answers during some work.
fn answers_during(t: &Context, command: Command, work: impl FnOnce(u32) -> Result<()>) -> Result<()> {
    let session = t.session_within(command, LIFETIME)?;
    poll_until(Duration::from_secs(120), "the server's port", || {
        number_after(&session.whole_lines_so_far(), "port").is_some()
    })?;
    let port = number_after(&session.whole_lines_so_far(), "port").context("no port")? as u16;
    let (stop, asked) = (AtomicBool::new(false), AtomicU64::new(0));
    scope(|threads| {
        let (stop, asked) = (&stop, &asked);
        let clients: Vec<_> =
            (1..=CLIENTS).map(|number| threads.spawn(move || client(port, number * FAR, stop, asked))).collect();
        let waited = poll_until(Duration::from_secs(120), "a first answer", || asked.load(Ordering::Relaxed) > 100);
        let worked = waited.and_then(|()| work(session.pid()));
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
        }
        worked
    })?;
    let output = finish(t, session)?;
    let asked = asked.load(Ordering::Relaxed);
    let served = number_after(&output.stdout, "served").context("it does not say how many it served")?;
    ensure!(served == asked, "{asked} requests were answered, and it has served {served}");
    say(t, &format!("{asked} requests, {CLIENTS} connections, none lost, 0 wrong answers"));
    Ok(())
}

/// Sends requests over one connection until `stop` is set. An error is a lost connection.
fn client(port: u16, first: u64, stop: &AtomicBool, asked: &AtomicU64) -> Result<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(120)))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    for n in first.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        stream.write_all(format!("GET /{n} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes())?;
        let answer = answer_of(&mut reader).with_context(|| format!("request {n}"))?;
        ensure!(answer == (n * 7919 + 1).to_string(), "GET /{n} was answered with {answer}");
        asked.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Reads the body of a response, by its length or in chunks.
fn answer_of(reader: &mut impl BufRead) -> Result<String> {
    let mut length = None;
    let mut line = String::new();
    reader.read_line(&mut line)?;
    ensure!(line.starts_with("HTTP/1.1 200"), "`{line}` instead of 200");
    loop {
        line.clear();
        ensure!(reader.read_line(&mut line)? > 0, "the connection was closed");
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = Some(value.trim().parse::<usize>()?);
        }
    }
    let mut body = Vec::new();
    match length {
        Some(length) => drop(reader.take(length as u64).read_to_end(&mut body)?),
        None => loop {
            line.clear();
            reader.read_line(&mut line)?;
            let chunk = usize::from_str_radix(line.trim(), 16).with_context(|| format!("no chunk: {line:?}"))?;
            reader.by_ref().take(chunk as u64).read_to_end(&mut body)?;
            reader.read_line(&mut line)?;
            if chunk == 0 {
                break;
            }
        },
    }
    Ok(String::from_utf8(body)?)
}
