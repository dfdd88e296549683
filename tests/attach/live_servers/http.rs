//! node, java and Go under HTTP load.

use crate::{LIFETIME, Lifting, finish, from_each_source, number_after, say};
use anyhow::{Context as _, Result, ensure};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::scope;
use std::time::Duration;
use test_support::{Context, Program, Test, poll_until, tests_folder};

const CLIENTS: u64 = 8;
/// Distance between the numbers that two clients ask for.
const FAR: u64 = 1_000_000_007;

pub fn tests() -> Vec<Test> {
    let mut tests = from_each_source("node", &["node"], |t, by| serves(t, by, interpreted("node", "http_server.js")));
    tests.extend(from_each_source("java", &["java", "javac"], |t, by| {
        serves(t, by, interpreted("java", "HttpAnswers.java"))
    }));
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

/// An HTTP server that answers `GET /N` with `N * 7919 + 1` and ends with its input.
fn serves(t: &Context, by: &Lifting, command: Command) -> Result<()> {
    let session = t.session_within(command, LIFETIME)?;
    poll_until(Duration::from_secs(30), "the server's port", || {
        number_after(&session.stdout_so_far(), "port").is_some()
    })?;
    let port = number_after(&session.stdout_so_far(), "port").context("no port")? as u16;
    let (stop, asked) = (AtomicBool::new(false), AtomicU64::new(0));
    scope(|threads| {
        let (stop, asked) = (&stop, &asked);
        let clients: Vec<_> =
            (1..=CLIENTS).map(|number| threads.spawn(move || client(port, number * FAR, stop, asked))).collect();
        let waited = poll_until(Duration::from_secs(30), "a first answer", || asked.load(Ordering::Relaxed) > 100);
        let alternated = waited.and_then(|()| by.alternate(t, session.pid(), || Ok(true)));
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
        }
        alternated
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
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
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
