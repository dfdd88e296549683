//! Servers under load are lifted and put back over and over: every answer is right, no connection is lost, and they end
//! as they would have ended.
//!
//! `PAGELIFT_ROUNDS` sets how often, for long runs.

use anyhow::{Context as _, Result, ensure};
use pagelift_tests::{Context, Need, Output, Program, Session, View, main_of, poll_until, tests_folder, trial};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::scope;
use std::time::Duration;

const CLIENTS: u64 = 8;
/// So that each client asks with numbers of its own.
const FAR: u64 = 1_000_000_007;
const LIMIT: Duration = Duration::from_secs(3600);

fn main() -> ExitCode {
    let needs = |commands: &[&str]| {
        let mut needs = vec![Need::Root, Need::Thp];
        needs.extend(commands.iter().map(|name| Need::Command((*name).to_owned())));
        needs
    };
    main_of(vec![
        trial("node", needs(&["node"]), |t| serves(t, interpreted("node", "http_server.js"))),
        trial("java", needs(&["java", "javac"]), |t| serves(t, interpreted("java", "HttpAnswers.java"))),
        trial("go", needs(&["go"]), |t| serves(t, Program::named("live/http_server.go")?.command()?)),
        trial("redis", needs(&["redis-server", "redis-benchmark", "redis-cli"]), redis),
        trial("a_thousand_threads", needs(&["gcc"]), thousand_threads),
        trial("watch_lifts_what_is_loaded_later", needs(&["gcc", "python3"]), watch),
    ])
}

fn interpreted(command: &str, source: &str) -> Command {
    let mut command = Command::new(command);
    command.arg(tests_folder().join("programs/live").join(source));
    command
}

fn rounds() -> Result<u32> {
    std::env::var("PAGELIFT_ROUNDS").map_or(Ok(15), |text| text.parse().context("PAGELIFT_ROUNDS is no number"))
}

/// Lifts and puts back, so many times; the figures of the longest pause are kept as notes.
fn alternate(t: &Context, pid: u32, lifts_something: bool) -> Result<()> {
    let pid = pid.to_string();
    let mut longest: f64 = 0.0;
    let rounds = rounds()?;
    for round in 0..rounds {
        let attach = quietly(t.pagelift(&["attach", "--pages", "thp", &pid])?)?;
        ensure!(!lifts_something || attach.contains(" MiB on "), "round {round}: {attach}");
        let pause = attach.split("paused ").nth(1).and_then(|text| text.split(' ').next()).context("no pause")?;
        longest = longest.max(pause.parse()?);
        let detach = quietly(t.pagelift(&["detach", &pid])?)?;
        ensure!(!lifts_something || detach.contains("back on the pages of their files"), "round {round}: {detach}");
    }
    t.note(format!("{rounds} rounds, the longest pause {longest} ms"));
    Ok(())
}

/// What it wrote to standard error; nothing is kept, for there may be very many of them.
fn quietly(command: Command) -> Result<String> {
    Ok(Session::start(command, Duration::from_secs(60))?.finish()?.success()?.stderr)
}

/// The number behind a word at the beginning of a line.
fn number_after(text: &str, word: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(word)?.trim().parse().ok())
}

/// An HTTP server that answers `GET /N` with `N * 7919 + 1` and ends with its input.
fn serves(t: &Context, command: Command) -> Result<()> {
    let session = t.session_within(command, LIMIT)?;
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
        let alternated = waited.and_then(|()| alternate(t, session.pid(), true));
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
    t.note(format!("{asked} requests"));
    Ok(())
}

/// Asks over one connection until it is told to stop. An error is a lost connection.
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

/// The body of a response, by its length or in chunks.
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

fn finish(t: &Context, session: Session) -> Result<Output> {
    let output = session.finish()?;
    t.keep(&output);
    output.success()
}

/// Debian's redis-server under its own benchmark; what was stored before is there afterwards.
fn redis(t: &Context) -> Result<()> {
    let socket = std::env::temp_dir().join(format!("pagelift-redis-{}", std::process::id())).display().to_string();
    let mut server = Command::new("redis-server");
    server.args(["--port", "0", "--save", "", "--unixsocket", &socket]);
    let session = t.session_within(server, LIMIT)?;
    let cli = |words: &[&str]| -> Result<String> {
        let mut cli = Command::new("redis-cli");
        cli.args(["-s", &socket]).args(words);
        Ok(t.run(cli)?.success()?.stdout)
    };
    poll_until(Duration::from_secs(20), "redis", || cli(&["ping"]).is_ok_and(|answer| answer.trim() == "PONG"))?;
    let digest = "local t = {} for i = 1, 50000 do redis.call('set', 'own' .. i, i * 7919) end return 1";
    cli(&["eval", digest, "0"])?;
    let sum = "local s = 0 for i = 1, 50000 do s = s + redis.call('get', 'own' .. i) end return tostring(s)";
    let before = cli(&["eval", sum, "0"])?;
    let mut load = Command::new("redis-benchmark");
    load.args(["-s", &socket, "-q", "-l", "-c", "32", "-r", "100000", "-t", "set,get,lpush,lpop"]);
    let load = t.session_within(load, LIMIT)?;
    alternate(t, session.pid(), false)?;
    ensure!(load.stderr_so_far().is_empty(), "redis-benchmark: {}", load.stderr_so_far());
    drop(load);
    ensure!(cli(&["eval", sum, "0"])? == before, "another sum afterwards");
    cli(&["shutdown", "nosave"])?;
    finish(t, session).map(drop)
}

fn thousand_threads(t: &Context) -> Result<()> {
    let mut session = t.session(Program::named("live/thousand_threads.c")?.command()?)?;
    session.wait_for_line("ready")?;
    for _ in 0..3 {
        let pid = session.pid().to_string();
        let attach = quietly(t.pagelift(&["attach", "--pages", "thp", &pid])?)?;
        ensure!(attach.contains(" MiB on ") && attach.contains("all 1001 threads"), "{attach}");
        t.note(attach.trim());
        t.note(quietly(t.pagelift(&["detach", &pid])?)?.trim());
    }
    session.send("\n")?;
    let output = finish(t, session)?;
    ensure!(output.stdout.ends_with("0 left, all went on\n"), "{}", output.stdout);
    Ok(())
}

/// A library of several huge pages that Python loads after the watch has begun.
fn watch(t: &Context) -> Result<()> {
    let library = t.folder().join("large.so");
    let mut compiler = Command::new("gcc");
    compiler.args(["-shared", "-fPIC", "-O1", "-DCODE_PAGES=1700", "-o"]).arg(&library);
    compiler.arg("-I").arg(tests_folder().join("programs/support"));
    let source = t.folder().join("large.c");
    std::fs::write(
        &source,
        "#include \"ranges.h\"\nvoid check(void) { check_ranges(0); }\nlong sum(void) { return run_code(); }\n",
    )?;
    compiler.arg(&source);
    t.run(compiler)?.success()?;
    let mut python = Command::new("python3");
    let text = "import ctypes, sys\nprint('ready', flush=True)\nsys.stdin.readline()\nlarge = ctypes.CDLL(sys.argv[1])\n\
                first = large.sum()\nprint('loaded', flush=True)\nsys.stdin.readline()\nassert large.sum() == first\n";
    python.args(["-c", text]).arg(&library);
    let mut session = t.session(python)?;
    session.wait_for_line("ready")?;
    let watcher = t.session(t.pagelift(&["attach", "--pages", "thp", "--watch", &session.pid().to_string()])?)?;
    watcher.wait_for_stderr("pagelift: ")?;
    session.send("\n")?;
    session.wait_for_line("loaded")?;
    let text = |view: &View| -> (u64, bool) {
        let own = view.usages.iter().filter(|u| u.mapping.path() == library.to_str());
        let rest: u64 = own.filter(|u| u.mapping.protection.execute).map(|u| u.mapping.range.len()).sum();
        (rest, view.huge_bytes() > 0)
    };
    poll_until(Duration::from_secs(15), "the library to be lifted", || {
        // Nearly all of its seven MiB of code no longer show the file.
        View::of(session.pid()).is_ok_and(|view| matches!(text(&view), (rest, true) if rest > 0 && rest < 4 << 20))
    })?;
    session.send("\n")?;
    finish(t, session)?;
    // It ends with the program that it watches.
    finish(t, watcher).map(drop)
}
