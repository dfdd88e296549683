//! MariaDB and redis under load: `pagelift shootdowns` counts the same as perf on the tracepoint tlb:tlb_flush.
//!
//! Both begin before the load and end after it, so that both count the whole load.

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use test_support::{Context, MariadbServer, Need, Session, Test, poll_until, test_case};

const FORMAT: &str = "/sys/kernel/tracing/events/tlb/tlb_flush/format";
/// Shootdowns that a load must send at least: 1 % of fewer would be too small a number to compare.
const ENOUGH: f64 = 300.0;
/// Part by which the counts may differ.
const TOLERANCE: f64 = 0.01;
const BEGINNING: Duration = Duration::from_secs(120);
const LOADS: Duration = Duration::from_secs(240);

pub fn tests(needs: &[Need]) -> Vec<Test> {
    let with = |names: &[&str]| {
        let commands = ["perf"].iter().chain(names).map(|&name| Need::Command(name.to_owned()));
        needs.iter().cloned().chain(commands).chain([Need::File(FORMAT.to_owned())]).collect()
    };
    vec![
        test_case("counts_agree_with_perf/mariadb", with(&["mariadbd", "mariadb-install-db", "mariadb-slap"]), mariadb),
        test_case("counts_agree_with_perf/redis", with(&["redis-server", "redis-benchmark"]), redis),
    ]
}

/// Each block of memory is mapped and unmapped separately, so that all queries send shootdowns.
fn mariadb(t: &Context) -> Result<()> {
    let mut server = MariadbServer::prepare(t, "counts")?;
    let mut command = server.command();
    command.env("MALLOC_MMAP_THRESHOLD_", "131072");
    server.start(command, 2 * LOADS)?;
    // mariadb-slap needs this database, even if its query does not use it.
    server.query("create database mysqlslap")?;
    let socket = server.path("socket");
    agree(t, server.pid()?, |round| {
        let mut slap = Command::new("mariadb-slap");
        slap.args(["--no-defaults", "-u", "root", "-S", &socket, "--concurrency=4"])
            .arg(format!("--number-of-queries={}", 2000 << (2 * round)))
            .arg("--query=select length(concat(repeat('a', 400000), rand()))");
        t.run_within(slap, LOADS)?.success().map(drop)
    })?;
    server.shut_down()
}

/// Another thread frees values while the next ones are set.
const SET_AND_DROP: &str =
    "for i = 1, 2000 do redis.call('set', i, string.rep('x', 16384)) end redis.call('flushall', 'async')";

/// A background thread frees values, and returns their memory to the kernel at once.
fn redis(t: &Context) -> Result<()> {
    let socket = std::env::temp_dir().join(format!("pagelift-counts-{}.socket", std::process::id()));
    let socket = socket.to_string_lossy().into_owned();
    let mut command = Command::new("redis-server");
    command.args(["--port", "0", "--save", "", "--unixsocket", &socket]);
    command.env("MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0").current_dir(t.folder());
    let server = t.session_within(command, 2 * LOADS)?;
    poll_until(BEGINNING, "redis to answer", || UnixStream::connect(&socket).is_ok())?;
    agree(t, server.pid(), |round| {
        let mut benchmark = Command::new("redis-benchmark");
        benchmark.args([
            "-s",
            &socket,
            "-q",
            "-c",
            "1",
            "-n",
            &(2 << (2 * round)).to_string(),
            "eval",
            SET_AND_DROP,
            "0",
        ]);
        t.run_within(benchmark, LOADS)?.success()?;
        // The two counters stop one after the other: later frees would be counted by the second counter only.
        poll_until(LOADS, "redis to free everything", || has_freed(&socket))
    })?;
    server.signal(Signal::SIGTERM)?;
    let output = server.finish()?;
    fs::remove_file(&socket).ok();
    output.success().map(drop)
}

/// True if the background thread has freed all values.
fn has_freed(socket: &str) -> bool {
    let ask = || -> Result<String> {
        let mut connection = UnixStream::connect(socket)?;
        connection.write_all(b"INFO memory\r\nQUIT\r\n")?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.contains("\nlazyfree_pending_objects:0\r"))
}

/// Counts the same load with both. A larger load follows if the threads hardly ran at the same time.
fn agree(t: &Context, pid: u32, load: impl Fn(u32) -> Result<()>) -> Result<()> {
    let mut counts = Vec::new();
    for round in 0..3 {
        let perf = Perf::start(t, pid)?;
        let pagelift = watch(t, pid)?;
        load(round)?;
        let ours = ended(pagelift, pid)?;
        let theirs = perf.counts()?;
        t.note(format!("sent and received: pagelift {ours:?}, perf {theirs:?}"));
        counts = ours.into_iter().zip(theirs).collect();
        if counts[0].1 >= ENOUGH {
            break;
        }
    }
    let [sent, received] = counts[..] else { anyhow::bail!("two counts: {counts:?}") };
    ensure!(sent.1 >= ENOUGH, "the load sends no shootdowns: {counts:?}");
    // If there are few shootdowns, a difference of 3 is more than 1 %.
    let agrees = |(ours, theirs): (f64, f64)| (ours - theirs).abs() <= (TOLERANCE * theirs).max(3.0);
    ensure!(agrees(sent) && agrees(received), "pagelift and perf, sent and received: {counts:?}");
    Ok(())
}

/// Starts `pagelift shootdowns` on the process. Returns once it counts.
fn watch(t: &Context, pid: u32) -> Result<Session> {
    let command = t.pagelift(&["shootdowns", "-p", &pid.to_string(), "--for", "600", "--json"])?;
    let session = t.session_within(command, LOADS)?;
    is_counting(&session)?;
    Ok(session)
}

/// Waits until `pagelift shootdowns` counts: it drops unneeded rights once its counters run.
pub fn is_counting(session: &Session) -> Result<()> {
    let status = format!("/proc/{}/status", session.pid());
    let is_confined = || fs::read_to_string(&status).is_ok_and(|text| text.contains("\nSeccomp:\t2"));
    poll_until(BEGINNING, "pagelift to count", is_confined)
}

/// The counts of the process: sent and received.
fn ended(session: Session, pid: u32) -> Result<[f64; 2]> {
    session.signal(Signal::SIGINT)?;
    let report: Value = serde_json::from_str(&session.finish()?.success()?.stdout)?;
    ensure!(report["evidence"] == "tlb-tracepoint", "{}", report["refused"]);
    let process = &report["processes"][0];
    ensure!(process.is_null() || process["pid"] == pid, "another process: {process:#}");
    Ok(["sent", "received"].map(|name| process[name].as_f64().unwrap_or(0.0)))
}

/// A running `perf stat` on the tracepoint.
struct Perf<'a> {
    t: &'a Context,
    session: Session,
    /// Kept open, since data in a FIFO is lost if no process has it open.
    _control: File,
}

impl<'a> Perf<'a> {
    fn start(t: &'a Context, pid: u32) -> Result<Self> {
        let [control, answer] = ["control", "answer"].map(|name| t.folder().join(name));
        for fifo in [&control, &answer] {
            fs::remove_file(fifo).ok();
            nix::unistd::mkfifo(fifo, Mode::S_IRUSR | Mode::S_IWUSR)?;
        }
        let format = fs::read_to_string(FORMAT)?;
        let mut perf = Command::new("perf");
        perf.args(["stat", "-x", ",", "-D", "-1", "-o"]).arg(t.folder().join("perf.out"));
        perf.arg("--control").arg(format!("fifo:{},{}", control.display(), answer.display()));
        for words in [&["remote IPI send", "remote send IPI"][..], &["remote shootdown"]] {
            let reason = reason(&format, words)?;
            perf.args(["-e", "tlb:tlb_flush", "--filter", &format!("reason == {reason}")]);
        }
        perf.args(["-p", &pid.to_string()]);
        let session = t.session_within(perf, LOADS)?;
        let opened = |path: &Path| {
            // For reading and writing, so that no open waits for the other side.
            File::options().read(true).write(true).custom_flags(nix::fcntl::OFlag::O_NONBLOCK.bits()).open(path)
        };
        let mut control = opened(&control)?;
        control.write_all(b"enable\n")?;
        let mut answer = opened(&answer)?;
        let mut said = [0; 3];
        poll_until(BEGINNING, "perf to count", || answer.read_exact(&mut said).is_ok())
            .with_context(|| session.stderr_so_far())?;
        ensure!(&said == b"ack", "perf says {said:?}");
        Ok(Self { t, session, _control: control })
    }

    /// Ends the counting. Returns the counts: sent and received.
    fn counts(self) -> Result<[f64; 2]> {
        self.session.signal(Signal::SIGINT)?;
        let output = self.session.finish()?;
        let text = fs::read_to_string(self.t.folder().join("perf.out"))?;
        let counts: Vec<f64> = text
            .lines()
            .filter(|line| line.contains("tlb:tlb_flush"))
            .map(|line| line.split(',').next().unwrap_or_default().parse())
            .collect::<Result<_, _>>()
            .with_context(|| format!("{text}{}", output.stderr))?;
        counts.try_into().map_err(|_| anyhow::anyhow!("no two counts in {text}{}", output.stderr))
    }
}

/// The number of the first of these texts that the tracepoint's format has.
fn reason(format: &str, texts: &[&str]) -> Result<u32> {
    let pair = |part: &str| {
        let (number, text) = part.split_once(',')?;
        let text = text.trim().trim_end_matches([' ', '}', ',', ')']).trim_matches('"');
        texts.contains(&text).then(|| number.trim().parse().ok())?
    };
    format
        .split('{')
        .find_map(|part| pair(part.split('}').next()?))
        .with_context(|| format!("no {texts:?} in {format}"))
}
