//! `pagelift bench --server`: servers side by side, and their loads.

use crate::{LONG, blocks_in, work_was_counted};
use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::fs;
use test_support::{Context, Ending, MariadbServer, Need, Output, Program, Test, poll_until, test_case};

pub fn tests() -> Vec<Test> {
    let needs =
        |commands: &[&str]| -> Vec<Need> { commands.iter().map(|name| Need::Command((*name).into())).collect() };
    let with_root = |commands: &[&str]| [needs(commands), vec![Need::Root, Need::Thp]].concat();
    vec![
        test_case("servers/three_percent_slower_is_found", needs(&["gcc"]), |t| known_truth(t, 3.0)),
        test_case("servers/ten_percent_slower_is_found", needs(&["gcc"]), |t| known_truth(t, 10.0)),
        test_case("servers/redis_by_clients", needs(&["redis-server"]), redis),
        test_case("servers/heap_of_redis", needs(&["redis-server"]), redis_heap),
        test_case("servers/redis_by_its_benchmark", needs(&["redis-server", "redis-benchmark"]), redis_benchmark),
        test_case("servers/mariadb_lifted", with_root(&["mariadbd", "mariadb-install-db"]), mariadb),
        test_case(
            "servers/postgres_lifted",
            [with_root(&["setpriv"]), vec![Need::File(POSTGRES.into())]].concat(),
            postgres,
        ),
        test_case("servers/http", vec![Need::File("/usr/bin/python3".into())], http),
        test_case("servers/what_fails_is_said", needs(&["gcc"]), failures),
        test_case("servers/an_interruption_ends_all", needs(&["gcc"]), interrupted),
    ]
}

pub const POSTGRES: &str = "/usr/lib/postgresql";

/// The test's own server, on `{port}`.
pub fn server(microseconds: u32, percent: f64) -> Result<String> {
    let program = Program::named("measuring/answers_at_a_price.c")?.build()?;
    Ok(format!("'{}' {{port}} {microseconds} {percent}", program.display()))
}

pub fn bench(t: &Context, words: &[&str]) -> Result<Output> {
    let output = t.run(t.pagelift(&[&["bench", "--settle", "5ms"], words].concat())?)?;
    nothing_is_left(t)?;
    Ok(output)
}

/// Checks that no process of the measurement runs after its end.
pub fn nothing_is_left(t: &Context) -> Result<()> {
    let left = t.own_processes();
    ensure!(left.is_empty(), "{left:?} run on");
    Ok(())
}

fn answer(output: Output) -> Result<Value> {
    Ok(serde_json::from_str(&output.success()?.stdout)?)
}

/// Each request takes a fixed CPU time, so that work per CPU second hardly depends on other processes. The confidence
/// interval of four starts in seven seconds is wide if others use the CPUs: one of three measurements must succeed.
fn known_truth(t: &Context, percent: f64) -> Result<()> {
    let (plain, slower) = (server(100, 0.0)?, server(100, percent)?);
    let words = ["--server", &plain, "--against", &slower, "--load", "redis://127.0.0.1:{port}?query=PING"];
    let truth = 1.0 / (1.0 + percent / 100.0);
    let mut missed = Vec::new();
    for seed in ["5", "6", "7"] {
        let more = ["--clients", "2", "--window", "60ms", "--starts", "4", "--for", "7", "--seed", seed, "--json"];
        let answer = answer(bench(t, &[&words[..], &more].concat())?)?;
        let latency = &answer["latency"];
        let (plain, slower) = (&latency["arms"][0]["plain"], &latency["arms"][0]["latency"]);
        waits_at_least(plain, 1e-4)?;
        waits_at_least(slower, 1e-4 / truth)?;
        let is_found = is_prompt(plain, 1e-4).and_then(|()| is_prompt(slower, 1e-4 / truth));
        match is_found.and_then(|()| finds(&answer, truth)) {
            Ok(()) => return Ok(()),
            Err(error) => missed.push(error),
        }
    }
    bail!("{missed:?}")
}

/// Checks that no request is answered before the server has done its work.
pub fn waits_at_least(latency: &Value, seconds: f64) -> Result<()> {
    let [median, p99] = ["median", "p99"].map(|name| latency[name].as_f64().unwrap_or_default());
    ensure!(median >= seconds && p99 >= median, "{seconds} s of work: {latency}");
    Ok(())
}

/// Fails with the reason if the median is 100 times the server's work or more, or if there are few requests, as beside other
/// processes.
pub fn is_prompt(latency: &Value, seconds: f64) -> Result<()> {
    let median = latency["median"].as_f64().unwrap_or(f64::INFINITY);
    ensure!(median < 100.0 * seconds && latency["requests"].as_u64() > Some(100), "{seconds} s of work: {latency}");
    Ok(())
}

/// Fails with the reason if an answer does not report a loss within 0.01 of this ratio.
fn finds(answer: &Value, truth: f64) -> Result<()> {
    let ratio = &answer["answer"]["arms"][0]["ratio"];
    let value = |name: &str| ratio[name].as_f64().with_context(|| format!("{answer}"));
    ensure!((value("centre")? - truth).abs() < 0.01 && value("high")? < 1.0, "{truth}: {answer}");
    ensure!(ratio["generations"] == 4 && ratio["method"] == "generations-t", "{ratio}");
    ensure!(answer["findings"][0] == "worse", "{answer}");
    Ok(())
}

const REDIS: &str = "redis-server --port {port} --save '' --dir {dir}";

fn redis(t: &Context) -> Result<()> {
    let record = t.folder().join("record").display().to_string();
    let load = "redis://127.0.0.1:{port}?query=SET key:{1..1000} value";
    let words =
        ["--server", REDIS, "--against", REDIS, "--load", load, "--window", "30ms", "--starts", "2", "--for", "2"];
    let output = bench(t, &[&words[..], &["-o", &record, "--per", "time"]].concat())?.success()?;
    ensure!(output.stdout.contains("commands per second"), "{output:?}");
    ensure!(output.stdout.contains(" (plain "), "{output:?}");
    let record_text = fs::read_to_string(&record)?;
    ensure!(record_text.contains("\"start\":1") && record_text.contains("\"design\":\"servers\""), "{record_text}");
    let again = t.run(t.pagelift(&["bench", "--from", &record])?)?.success()?;
    ensure!(output.stdout == again.stdout, "{}\n{}", output.stdout, again.stdout);
    let page = t.run(t.pagelift(&["report", &record, "--markdown"])?)?.success()?.stdout;
    ensure!(page.contains("Servers side by side") && page.contains("SET key:"), "{page}");
    Ok(())
}

/// The heap of a server is a lift, although its code fills no huge page.
fn redis_heap(t: &Context) -> Result<()> {
    let load = "redis://127.0.0.1:{port}?query=SET key:{1..1000} value";
    let words = ["--heap=auto", "--server", REDIS, "--load", load, "--window", "30ms", "--starts", "1", "--for", "1"];
    let output = bench(t, &words)?.success()?;
    ensure!(output.stdout.contains("lifted: ") && !output.stdout.contains("0 blocks of four"), "{output:?}");
    Ok(())
}

/// The answers of redis are checked: they contain the data that the clients have written.
fn redis_benchmark(t: &Context) -> Result<()> {
    let load = "redis-benchmark -p {port} -n 2000 -t get -q";
    let metric = r"([0-9.]+) requests per second";
    let fill = "redis-cli -p {port} set key:__rand_int__ 1";
    let words = ["--server", REDIS, "--against", REDIS, "--load", load, "--metric", metric, "--fill", fill];
    let answer = answer(bench(t, &[&words[..], &["--starts", "1", "--for", "3", "--json"]].concat())?)?;
    ensure!(answer["header"]["unit"] == "operations" && answer["blocks"].as_u64() > Some(0), "{answer}");
    Ok(())
}

/// The lifted server is lifted, and both servers do the work.
fn lifted(t: &Context, words: &[&str]) -> Result<()> {
    let record = t.folder().join("record").display().to_string();
    let more = ["--pages", "thp", "--window", "30ms", "--starts", "1", "--for", "3", "-o", &record];
    bench(t, &[words, &more].concat())?.success()?;
    let lines = fs::read_to_string(&record)?.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    let lift = lines.iter().find_map(|line| line["observed"]["lift"]["covered"].as_u64()).context("no lift")?;
    ensure!(lift > 2 << 20, "{lift} bytes were lifted");
    let plain = lines.iter().filter(|line| line["observed"].is_object() && line["observed"]["arm"].is_null());
    ensure!(plain.count() == 1, "the plain server was not looked at");
    work_was_counted(&lines)?;
    Ok(())
}

fn mariadb(t: &Context) -> Result<()> {
    let prepared = MariadbServer::prepare(t, "servers")?;
    let copy = format!("cp -a {} {{dir}}/data && mkdir {{dir}}/tmp", prepared.path("data"));
    let server = "/usr/sbin/mariadbd --no-defaults --user=root --skip-networking --innodb-buffer-pool-size=16M \
                  --innodb-log-file-size=16M --innodb-flush-method=nosync --datadir={dir}/data --socket={dir}/s --tmpdir={dir}/tmp \
                  --pid-file={dir}/pid";
    // The database is made once the server is ready.
    let load = "mysql://root@localhost/made?socket={dir}/s&query=SELECT {1..100} + 1";
    let fill = "mariadb -uroot -S{dir}/s -e 'create database if not exists made'";
    lifted(t, &["--server", server, "--prepare", &copy, "--load", load, "--fill", fill, "--clients", "2"])
}

/// The folder of the newest PostgreSQL's programs.
pub fn newest_postgres() -> Option<String> {
    let newest = fs::read_dir(POSTGRES).ok()?.flatten().map(|entry| entry.path()).max()?;
    Some(newest.join("bin").display().to_string())
}

/// PostgreSQL's connections are separate processes, whose CPU time counts.
fn postgres(t: &Context) -> Result<()> {
    let newest = newest_postgres().context("no PostgreSQL")?;
    let user = "setpriv --reuid=postgres --regid=postgres --clear-groups";
    let prepare = format!(
        "chown postgres {{dir}} && cd {{dir}} && {user} {newest}/initdb -D {{dir}}/data -A trust -U root --no-sync >&2"
    );
    let server = format!("{user} {newest}/postgres -D {{dir}}/data -k '' -p {{port}} -F");
    let load = "postgres://root@127.0.0.1:{port}/postgres?query=SELECT {1..100} + 1";
    lifted(t, &["--server", &server, "--prepare", &prepare, "--load", load, "--only", "postgres", "--clients", "2"])
}

fn http(t: &Context) -> Result<()> {
    let server = "/usr/bin/python3 -m http.server -b 127.0.0.1 -d {dir} {port}";
    let load = "http://127.0.0.1:{port}/file";
    let words = ["--server", server, "--against", server, "--load", load, "--prepare", "echo text > {dir}/file"];
    let answer =
        answer(bench(t, &[&words[..], &["--starts", "1", "--for", "2", "--window", "30ms", "--json"]].concat())?)?;
    ensure!(answer["header"]["unit"] == "requests" && answer["blocks"].as_u64() > Some(0), "{answer}");
    Ok(())
}

fn failures(t: &Context) -> Result<()> {
    let plain = server(10, 0.0)?;
    let record = t.folder().join("record").display().to_string();
    let good = "redis://127.0.0.1:{port}?query=PING";
    // The load ends the server after some blocks.
    let count = t.folder().join("count").display().to_string();
    let ends = format!(
        "echo >> {count}; test $(wc -l < {count}) -lt 20 && echo n: 5 && exit; bash -c 'exec 3<>/dev/tcp/127.0.0.1/{{port}}; \
         printf \"*1\\r\\n\\$4\\r\\nQUIT\\r\\n\" >&3; cat <&3'; exit 1"
    );
    let cases: [(&[&str], &str); 10] = [
        (&["--server", "false {port}", "--load", "true"], "has ended (exit status: 1)"),
        (&["--server", "/no/such/server {port}", "--load", "true"], "cannot be started"),
        (&["--server", "sleep 100", "--load", "true"], "fix: {port} in its command"),
        (&["--server", &plain, "--load", "echo no; exit 3"], "exit status: 3; it printed last: no"),
        (
            &["--server", &plain, "--load", "echo done", "--metric", "n: ([0-9]+)"],
            "is not in its output, which ends with: done",
        ),
        (&["--server", &plain, "--load", "true", "--metric", "n: "], "fix: parentheses around it"),
        (&["--server", &plain, "--load", "redis://127.0.0.1:{port}"], "found no query"),
        (&["--server", &plain, "--load", "redis://127.0.0.1:{port}?query=FAIL"], "told to fail"),
        (
            &["--server", &plain, "--load", good, "--prepare", "exit 5"],
            "--prepare for the server plain failed: exit status: 5",
        ),
        (
            &["--server", &plain, "--load", &ends, "--metric", "n: ([0-9]+)", "-o", &record],
            "has ended (exit status: 7); it printed last: listening on",
        ),
    ];
    for (words, expected) in cases {
        // A second server of the same kind: this test does not depend on a lift.
        let words = [words, &["--against", words[1], "--window", "10ms", "--for", "100"]].concat();
        let output = bench(t, &words)?;
        ensure!(output.ending == Ending::Exit(125) && output.stderr.contains(expected), "{words:?}: {output:?}");
    }
    let text = fs::read_to_string(&record)?;
    ensure!(text.contains("{\"block\"") && text.contains("\"failed\""), "samples are lost: {text}");
    Ok(())
}

/// Interrupts in the middle of a long burst of load.
fn interrupted(t: &Context) -> Result<()> {
    let plain = server(10, 0.0)?;
    let record = t.folder().join("record");
    let count = t.folder().join("count").display().to_string();
    let load = format!("echo >> {count}; test $(wc -l < {count}) -lt 12 || sleep 1000 & wait");
    let words = ["bench", "--server", &plain, "--against", &plain, "--load", &load, "--for", "1h", "-o"];
    let mut command = t.pagelift(&words)?;
    command.arg(&record);
    let running = t.session(command)?;
    poll_until(LONG, "a block", || blocks_in(&record) >= 1)?;
    let waits = || fs::read_to_string(&count).is_ok_and(|text| text.lines().count() >= 12);
    poll_until(LONG, "the load that lasts", waits)?;
    running.signal(Signal::SIGINT)?;
    let output = running.finish()?;
    ensure!(output.ending == Ending::Exit(0) && output.stdout.contains("interrupted: the answer so far"), "{output:?}");
    nothing_is_left(t)
}
