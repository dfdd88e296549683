//! redis under redis-benchmark, MariaDB under sysbench.

use crate::{LIFETIME, Lifting, POOL, finish, from_each_source, needs, rounds, say};
use anyhow::{Result, ensure};
use std::process::Command;
use std::time::Duration;
use test_support::{
    Context, MariadbServer, Need, Program, Test, TestStore, poll_until, process_field, sysbench_count, test_case,
};

pub fn tests() -> Vec<Test> {
    let mariadb = || needs(&["mariadbd", "sysbench", "mariadb-install-db"]);
    let with_pool = || [mariadb(), vec![Need::Pool(POOL)]].concat();
    let mut tests = from_each_source("redis", &["gcc", "redis-server", "redis-benchmark", "redis-cli"], redis);
    tests.extend([
        test_case("mariadb/hugetlb", with_pool(), |t| under_sysbench(t, &Lifting::by("hugetlb"))),
        // Debian's mariadbd disables transparent huge pages for itself, so it needs a store on hugetlbfs.
        test_case("mariadb/image", with_pool(), |t| {
            let store = TestStore::with(t, &["--hugetlbfs"])?;
            under_sysbench(t, &Lifting { pages: "image", store: Some(&store) })
        }),
    ]);
    tests
}

/// Statements that do not wait for each other's locks, so that sysbench counts only errors caused by Pagelift.
const WORK: [&str; 5] =
    ["oltp_read_write", "--threads=32", "--skip-trx=on", "--delete-inserts=0", "--report-interval=0"];

/// Runs 32 clients all the time; the reports of sysbench and the server, and the server's log, show no error.
fn under_sysbench(t: &Context, by: &Lifting) -> Result<()> {
    let mut server = MariadbServer::prepare(t, &format!("live-{}", by.pages))?;
    server.start(server.command(), LIFETIME)?;
    server.query("create database sbtest")?;
    server.sysbench(Duration::from_secs(240), &["oltp_read_write", "--threads=1", "prepare"])?;
    // An upper estimate for the rounds; rounds continue until the load ends.
    let seconds = 4 + rounds()? / 4;
    let time = format!("--time={seconds}");
    let mut load = t.session_within(server.sysbench_command(&[&WORK[..], &[&time, "run"]].concat()), LIFETIME)?;
    let pid = server.pid()?;
    poll_until(Duration::from_secs(120), "the clients", || {
        process_field(pid, "Threads").and_then(|n| n.parse().ok()).is_some_and(|threads: u32| threads > 32)
    })?;
    by.alternate(t, pid, || load.has_ended())?;
    let report = load.finish()?.success()?.stdout;
    let count = |name| sysbench_count(&report, name);
    let (done, errors, lost) = (count("transactions:")?, count("ignored errors:")?, count("reconnects:")?);
    let aborted = server.query("show global status where variable_name in ('Aborted_clients', 'Aborted_connects')")?;
    ensure!(done > 100 && errors == 0 && lost == 0, "{done} done, {errors} errors, {lost} lost connections");
    ensure!(aborted.split_whitespace().filter(|&word| word == "0").count() == 2, "{aborted}");
    say(t, &format!("{done} transactions in {seconds} s, {errors} errors, {lost} lost connections"));
    // InnoDB's own check reports rows that are not purged yet as faults, also on an untouched server.
    server.query("set global innodb_max_purge_lag_wait = 0")?;
    let check = server.query("check table sbtest.sbtest1, sbtest.sbtest5 extended")?;
    ensure!(check.lines().all(|line| line.ends_with("OK")) && !check.is_empty(), "{check}");
    server.shut_down()
}

/// Debian's redis-server under its own benchmark; stored data is unchanged afterwards. Its code is smaller than a huge
/// page, so each of its answers goes through a large library.
fn redis(t: &Context, by: &Lifting) -> Result<()> {
    let socket =
        std::env::temp_dir().join(format!("pagelift-redis-{}-{}", by.pages, std::process::id())).display().to_string();
    let mut server = Command::new("redis-server");
    server.args(["--port", "0", "--save", "", "--unixsocket", &socket]);
    server.env("LD_PRELOAD", Program::named("attach/writes_through_a_large_library.c")?.build()?);
    let session = t.session_within(server, LIFETIME)?;
    let cli = |words: &[&str]| -> Result<String> {
        let mut cli = Command::new("redis-cli");
        cli.args(["-s", &socket]).args(words);
        Ok(t.run(cli)?.success()?.stdout)
    };
    poll_until(Duration::from_secs(120), "redis", || cli(&["ping"]).is_ok_and(|answer| answer.trim() == "PONG"))?;
    let digest = "local t = {} for i = 1, 50000 do redis.call('set', 'own' .. i, i * 7919) end return 1";
    cli(&["eval", digest, "0"])?;
    let sum = "local s = 0 for i = 1, 50000 do s = s + redis.call('get', 'own' .. i) end return tostring(s)";
    let before = cli(&["eval", sum, "0"])?;
    let mut load = Command::new("redis-benchmark");
    load.args(["-s", &socket, "-q", "-l", "-c", "32", "-r", "100000", "-t", "set,get,lpush,lpop"]);
    let mut load = t.session_within(load, LIFETIME)?;
    by.alternate(t, session.pid(), || Ok(true))?;
    ensure!(!load.has_ended()?, "redis-benchmark has ended: {}", load.stdout_so_far());
    ensure!(load.stderr_so_far().is_empty(), "redis-benchmark: {}", load.stderr_so_far());
    drop(load);
    ensure!(cli(&["eval", sum, "0"])? == before, "another sum afterwards");
    let served = cli(&["info", "stats"])?;
    let commands = served.lines().find(|line| line.starts_with("total_commands_processed")).unwrap_or_default();
    say(t, &format!("{}, no error of redis-benchmark", commands.trim()));
    cli(&["shutdown", "nosave"])?;
    finish(t, session).map(drop)
}
