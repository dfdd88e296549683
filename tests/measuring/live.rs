//! `pagelift bench --toggle -- SERVER` and `--toggle PID --load`: one server under constant load, and the counters of
//! servers.

use crate::servers::{POSTGRES, bench, is_prompt, newest_postgres, nothing_is_left, server, waits_at_least};
use crate::{LONG, blocks_in, huge, work_was_counted};
use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::fs;
use std::path::Path;
use test_support::{Context, Ending, MariadbServer, Need, Output, Program, Test, TestStore, poll_until, test_case};

pub fn tests() -> Vec<Test> {
    let needs = |commands: &[&str]| -> Vec<Need> {
        let commands = commands.iter().map(|name| Need::Command((*name).into()));
        commands.chain([Need::Root, Need::Thp]).collect()
    };
    let mut tests = vec![
        test_case("live/ten_percent_slower_is_found", vec![Need::Command("gcc".into())], known_truth),
        test_case("live/mariadb_by_its_counter", needs(&["mariadbd", "mariadb-install-db"]), mariadb),
        test_case("live/redis_by_its_counter", needs(&["redis-server"]), redis),
        test_case("live/a_running_redis_under_clients", needs(&["redis-server"]), running_redis),
        test_case("live/a_metric_of_http", [needs(&[]), vec![Need::File("/usr/bin/python3".into())]].concat(), http),
        test_case(
            "live/arms_that_lift_nothing_are_left_out",
            [needs(&["gcc"]), vec![Need::Pool(0)]].concat(),
            empty_pool,
        ),
        test_case("live/what_fails_is_said", vec![Need::Command("gcc".into())], failures),
        test_case("live/an_interruption_ends_all", vec![Need::Command("gcc".into())], interrupted),
        test_case("live/an_interruption_ends_what_waits_for_the_server", vec![], interrupted_before),
    ];
    let postgres_needs = [needs(&["setpriv"]), vec![Need::File(POSTGRES.into())]].concat();
    tests.push(test_case("live/postgres_by_its_counter", postgres_needs, postgres));
    let pool = [needs(&["gcc"]), vec![Need::Pool(64 << 20)]].concat();
    tests.push(test_case("live/all_sources_side_by_side", pool, all_sources));
    tests
}

const SHORT: [&str; 4] = ["--window", "30ms", "--for", "4"];
/// Options of a run that switches nothing, for programs without a whole huge page of code.
const BY_NOTHING: [&str; 7] = ["--toggle-with", "true", "true", "--window", "30ms", "--for", "4"];
const REDIS: [&str; 8] = ["--", "redis-server", "--port", "{port}", "--save", "", "--dir", "{dir}"];
const GET: &str = "redis://127.0.0.1:{port}?query=GET key:{1..1000}";

/// Runs a measurement. Returns its output and the lines of its record; the last must say that the time was up.
fn recorded(t: &Context, words: &[&str], server: &[&str]) -> Result<(Output, Vec<Value>)> {
    let record = t.folder().join("record").display().to_string();
    let output = bench(t, &[&["--toggle", "-o", &record][..], words, server].concat())?;
    let output = output.success()?;
    let lines: Vec<Value> = fs::read_to_string(&record)?.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    ensure!(lines.last().is_some_and(|line| line["end"] == "time-is-up"), "{:?}", lines.last());
    work_was_counted(&lines)?;
    Ok((output, lines))
}

/// Checks that the server was lifted, and the unit of work.
fn is_lifted(lines: &[Value], unit: &str) -> Result<()> {
    ensure!(lines[0]["unit"] == unit && lines[0]["design"] == "toggle", "{}", lines[0]);
    let is_lift = |line: &Value| line["switch"]["covered"].as_u64().is_some_and(|bytes| bytes > 0);
    ensure!(lines.iter().any(is_lift), "no lift is in the record");
    Ok(())
}

/// A signal makes each request take exactly 10 % more CPU time. One of three measurements must find this.
fn known_truth(t: &Context) -> Result<()> {
    let program = server(100, 0.0)?;
    let words: Vec<&str> = program.split_whitespace().map(|word| word.trim_matches('\'')).collect();
    let mut missed = Vec::new();
    for seed in ["5", "6", "7"] {
        let switches = ["--toggle", "--steady", "--toggle-with", "kill -USR1 {pid}", "kill -USR2 {pid}"];
        let load = ["--load", "redis://127.0.0.1:{port}?query=PING", "--clients", "2", "--window", "30ms"];
        let more = ["--for", "5", "--seed", seed, "--json", "--"];
        let output = bench(t, &[&switches[..], &load, &more, &words, &["10"]].concat())?.success()?;
        let answer: Value = serde_json::from_str(&output.stdout)?;
        ensure!(answer["header"]["unit"] == "commands" && answer["steady"].is_null(), "{answer}");
        let latency = &answer["latency"]["arms"][0];
        let (plain, slower) = (&latency["plain"], &latency["latency"]);
        waits_at_least(plain, 1e-4)?;
        waits_at_least(slower, 1.1e-4)?;
        let is_prompt = is_prompt(plain, 1e-4).and_then(|()| is_prompt(slower, 1.1e-4));
        let centre = answer["answer"]["arms"][0]["ratio"]["centre"].as_f64().with_context(|| format!("{answer}"))?;
        if is_prompt.is_ok() && (centre - 1.0 / 1.1).abs() < 0.01 && answer["findings"][0] == "worse" {
            return Ok(());
        }
        missed.push((is_prompt, answer["answer"].clone()));
    }
    anyhow::bail!("{missed:?}")
}

fn mariadb(t: &Context) -> Result<()> {
    let prepared = MariadbServer::prepare(t, "live")?;
    let copy = format!("cp -a {} {{dir}}/data && mkdir {{dir}}/tmp", prepared.path("data"));
    let server = [
        "--",
        "/usr/sbin/mariadbd",
        "--no-defaults",
        "--user=root",
        "--skip-networking",
        "--innodb-buffer-pool-size=16M",
        "--innodb-log-file-size=16M",
        "--innodb-flush-method=nosync",
        "--datadir={dir}/data",
        "--socket={dir}/s",
        "--tmpdir={dir}/tmp",
        "--pid-file={dir}/pid",
    ];
    let load = "mysql://root@localhost/made?socket={dir}/s&query=SELECT {1..100} + 1";
    let fill = "mariadb -uroot -S{dir}/s -e 'create database made'";
    let work = "mysql://root@localhost/?socket={dir}/s#Questions";
    let words = ["--prepare", &copy, "--fill", fill, "--load", load, "--clients", "2", "--work", work];
    let (output, lines) = recorded(t, &[&words[..], &["--pages", "thp"], &SHORT].concat(), &server)?;
    is_lifted(&lines, "Questions")?;
    let said = output.stdout;
    ensure!(said.contains("Questions per CPU second, switches counted"), "{said}");
    ensure!(said.contains("thp without the switches that are made here every "), "{said}");
    Ok(())
}

fn redis(t: &Context) -> Result<()> {
    let work = "redis://127.0.0.1:{port}#total_commands_processed";
    let (_, lines) = recorded(t, &[&["--load", GET, "--work", work][..], &BY_NOTHING].concat(), &REDIS)?;
    ensure!(lines[0]["unit"] == "commands" && lines[0]["load"]["clients"] == 4, "{}", lines[0]);
    Ok(())
}

/// All processes of the server are lifted and counted together: the first process does none of the work.
fn postgres(t: &Context) -> Result<()> {
    let bin = newest_postgres().context("no PostgreSQL")?;
    let user = "setpriv --reuid=postgres --regid=postgres --clear-groups";
    let prepare = format!(
        "chown postgres {{dir}} && cd {{dir}} && {user} {bin}/initdb -D {{dir}}/data -A trust -U root --no-sync >&2"
    );
    let server = format!("-- {user} {bin}/postgres -D {{dir}}/data -k {{dir}} -p {{port}} -F -c autovacuum=off");
    let load = "postgres://root@127.0.0.1:{port}/postgres?query=SELECT {1..100} + 1";
    let work = "postgres://root@localhost:{port}/postgres?socket={dir}#xact_commit";
    let server: Vec<&str> = server.split_whitespace().collect();
    let start = ["--prepare", &prepare, "--load", load, "--clients", "2"];
    // A busy backend updates its counters once a second.
    let by_nothing = ["--toggle-with", "true", "true", "--window", "1500ms", "--for", "10"];
    let (_, lines) = recorded(t, &[&start[..], &["--work", work], &by_nothing].concat(), &server)?;
    ensure!(lines[0]["unit"] == "transactions", "{}", lines[0]);
    let lifted = ["--pages", "thp", "--window", "100ms", "--for", "6"];
    let (_, lines) = recorded(t, &[&start[..], &lifted].concat(), &server)?;
    is_lifted(&lines, "queries")?;
    let largest = |name: &str| lines.iter().filter_map(|line| line["switch"][name].as_u64()).max().unwrap_or(0);
    ensure!(largest("covered") > 8 << 20, "{} bytes: only one process was lifted", largest("covered"));
    Ok(())
}

/// A server that the user has started is not ended, and is plain afterwards.
fn running_redis(t: &Context) -> Result<()> {
    let socket = t.folder().join("s").display().to_string();
    let mut command = std::process::Command::new("redis-server");
    command.args(["--port", "0", "--save", "", "--unixsocket", &socket]).arg("--dir").arg(t.folder());
    let session = t.session(command)?;
    poll_until(LONG, "the socket", || fs::metadata(&socket).is_ok())?;
    let pid = session.pid().to_string();
    let load = format!("redis-cli -s {socket} -r 200 ping");
    let words = ["bench", "--toggle", &pid, "--load", &load, "--work"];
    let work = format!("redis-cli -s {socket} info stats | sed -n 's/total_commands_processed:\\([0-9]*\\).*/\\1/p'");
    let output = t.run(t.pagelift(&[&words[..], &[&work, "--json"], &BY_NOTHING].concat())?)?.success()?;
    let answer: Value = serde_json::from_str(&output.stdout)?;
    ensure!(answer["blocks"].as_u64() > Some(0) && answer["header"]["unit"] == "units", "{answer}");
    ensure!(huge(&session)? == 0, "it was left lifted");
    session.signal(Signal::SIGTERM)?;
    ensure!(session.finish()?.ending == Ending::Exit(0), "the server did not end well");
    Ok(())
}

const COUNTING: &str = r##"
import http.server, sys
class Answer(http.server.BaseHTTPRequestHandler):
    count = 0
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        Answer.count += 1
        text = b"# TYPE requests_total counter\nrequests_total %d\n" % Answer.count
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    def log_message(self, *words): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"##;

fn http(t: &Context) -> Result<()> {
    let (load, work) = ("http://127.0.0.1:{port}/", "http://127.0.0.1:{port}/metrics#requests_total");
    let server = ["--", "/usr/bin/python3", "-c", COUNTING, "{port}"];
    let words = ["--load", load, "--work", work, "--clients", "2"];
    let (_, lines) = recorded(t, &[&words[..], &BY_NOTHING].concat(), &server)?;
    ensure!(lines[0]["unit"] == "requests_total", "{}", lines[0]);
    Ok(())
}

/// A command for `--toggle --`: the program works without a load, and its code fills several huge pages.
fn steps(t: &Context) -> Result<Vec<String>> {
    let program = Program::named("measuring/works_in_small_steps.c")?.build()?.display().to_string();
    Ok(vec!["--".to_owned(), program, t.folder().join("steps").display().to_string()])
}

/// Toggles the program with these options.
fn arms_of_steps(t: &Context, words: &[&str], store: Option<&Path>) -> Result<Output> {
    let mut command =
        t.pagelift(&[&["bench", "--toggle", "--steady", "--json", "--window", "20ms"][..], words].concat())?;
    command.args(["--settle", "5ms"]).args(steps(t)?);
    if let Some(store) = store {
        command.env("PAGELIFT_STORE", store);
    }
    let output = t.run(command)?;
    nothing_is_left(t)?;
    Ok(output)
}

/// The pool has no page: this arm is reported with its reason and its fix, and the other arm is measured.
fn empty_pool(t: &Context) -> Result<()> {
    let output = arms_of_steps(t, &["--arms", "hugetlb,thp", "--for", "12"], None)?.success()?;
    let answer: Value = serde_json::from_str(&output.stdout)?;
    let of = |arm: usize| answer["answer"]["arms"][arm]["blocks"].as_u64();
    ensure!(of(0) == Some(0) && of(1) > Some(0), "{answer}");
    ensure!(answer["nothing_lifted"][0].as_str().is_some_and(|why| why.contains("fix: ")), "{answer}");
    ensure!(answer["nothing_lifted"][1].is_null(), "{answer}");
    let alone = arms_of_steps(t, &["--pages", "hugetlb", "--for", "100"], None)?;
    ensure!(alone.ending == Ending::Exit(125), "{alone:?}");
    ensure!(alone.stderr.contains("nothing was lifted: hugetlb: "), "{alone:?}");
    Ok(())
}

/// From the pool, from a store and from transparent huge pages, in one experiment.
fn all_sources(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "256M")?;
    let record = t.folder().join("record").display().to_string();
    // On a busy machine, too, the time is enough for a round of four blocks.
    let words = ["--arms", "thp,image,hugetlb", "--for", "12", "-o", &record];
    let answer: Value = serde_json::from_str(&arms_of_steps(t, &words, Some(&store.path))?.success()?.stdout)?;
    ensure!(answer["header"]["arms"] == serde_json::json!(["thp", "image", "hugetlb"]), "{}", answer["header"]);
    for arm in 0..3 {
        let of_arm = &answer["answer"]["arms"][arm];
        ensure!(of_arm["blocks"].as_u64() > Some(0) && answer["nothing_lifted"][arm].is_null(), "{arm}: {answer}");
    }
    let text = fs::read_to_string(&record)?;
    for source in ["thp", "image", "hugetlb"] {
        ensure!(text.contains(&format!("\"source\":\"{source}\"")), "nothing came from {source}: {text}");
    }
    Ok(())
}

fn failures(t: &Context) -> Result<()> {
    let program = server(10, 0.0)?;
    let words: Vec<&str> = program.split_whitespace().map(|word| word.trim_matches('\'')).collect();
    let own = std::process::id().to_string();
    let switches = ["--toggle-with", "true", "true"];
    let ping = "redis://127.0.0.1:{port}?query=PING";
    let ends = "redis://127.0.0.1:{port}?query=QUIT";
    let cases: [(&[&str], &[&str], &str); 9] = [
        (&["--toggle"], &[], "--toggle needs a process or a server"),
        (&["--toggle", &own], &words, "not both; fix: --toggle -- SERVER"),
        (&["--toggle", &own, "--load", ping], &[], "fix: write the address on which process"),
        (&["--toggle", &own, "--ready", "true"], &[], "--ready needs a server that bench starts"),
        (&["--toggle", "--load", "true"], &["sleep", "100"], "fix: {port} in its command"),
        (&["--toggle"], &["/no/such/server", "{port}"], "cannot be started"),
        (&["--toggle"], &["false", "{port}"], "the server false has ended (exit status: 1)"),
        (&["--toggle", "--load", "sleep 0.3; echo no; exit 3"], &words, "exit status: 3; it printed last: no"),
        (&["--toggle", "--load", ends], &words, "has ended (exit status: 7)"),
    ];
    for (options, server, expected) in cases {
        let command = if server.is_empty() { vec![] } else { [&["--"], server].concat() };
        let output = bench(t, &[options, &switches, &["--window", "10ms", "--for", "100"], &command].concat())?;
        ensure!(output.ending == Ending::Exit(125) && output.stderr.contains(expected), "{options:?}: {output:?}");
    }
    Ok(())
}

fn interrupted(t: &Context) -> Result<()> {
    let record = t.folder().join("record");
    let program = server(10, 0.0)?;
    let words: Vec<&str> = program.split_whitespace().map(|word| word.trim_matches('\'')).collect();
    let options = ["bench", "--toggle", "--toggle-with", "true", "true", "--load", "sleep 1000", "--for", "1h"];
    let mut command = t.pagelift(&[&options[..], &["--work", "date +%s%N", "--window", "20ms", "-o"]].concat())?;
    command.arg(&record).arg("--").args(words);
    let running = t.session(command)?;
    poll_until(LONG, "a block", || blocks_in(&record) >= 1)?;
    running.signal(Signal::SIGINT)?;
    let output = running.finish()?;
    ensure!(output.ending == Ending::Exit(0) && output.stdout.contains("interrupted: the answer so far"), "{output:?}");
    nothing_is_left(t)
}

/// Commands of the user have a separate process group, which a terminal's SIGINT does not reach.
fn interrupted_before(t: &Context) -> Result<()> {
    let begun = t.folder().join("begun");
    let ready = format!("touch {}; exec sleep 1000", begun.display());
    let options = ["bench", "--toggle", "--toggle-with", "true", "true", "--for", "1h", "--ready", &ready];
    let running = t.session(t.pagelift(&[&options[..], &["--", "sleep", "1001"]].concat())?)?;
    poll_until(LONG, "the look at the server", || begun.exists())?;
    running.signal(Signal::SIGINT)?;
    let output = running.finish()?;
    let expected = "interrupted before anything was measured";
    ensure!(output.ending == Ending::Exit(125) && output.stderr.contains(expected), "{output:?}");
    nothing_is_left(t)
}
