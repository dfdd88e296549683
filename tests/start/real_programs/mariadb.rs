//! Debian's mariadbd under sysbench: prepare, read and write, point selects, 16 clients, and a clean shutdown.

use crate::{PlainAnswer, both_ways, check_object};
use anyhow::{Result, ensure};
use std::process::Command;
use std::time::Duration;
use test_support::{Context, Kind, MariadbServer, Test, View, sysbench_count};

const POOL: u64 = 160 << 20;
/// Limit for a server, from its start to its end.
const LIFETIME: Duration = Duration::from_secs(600);
const LIMIT: Duration = Duration::from_secs(240);

pub fn tests() -> Vec<Test> {
    let needs = ["command mariadbd", "command sysbench", "command mariadb-install-db"];
    let mut tests = both_ways("mariadbd_under_sysbench", &needs, POOL, under_sysbench);
    tests.extend(both_ways("mariadbd_by_only_through_a_shell", &needs, POOL, through_a_shell));
    tests
}

/// Statements whose answers do not depend on the run: functions, sorting, joins, JSON, regular expressions.
const SAME: &str = "create database same; use same;
    create table a (id int primary key, text varchar(100), number double, key (text)) engine=innodb
        select seq id, concat(md5(seq), sha1(seq * 7)) text, sqrt(seq) * sin(seq) number from seq_1_to_30000;
    checksum table a extended;
    select count(*), sum(crc32(x.text)), round(sum(y.number), 6) from a x join a y on x.id = (y.id * 7919) % 30000;
    select substr(text, 1, 2) head, count(*), min(id), round(avg(number), 6) from a group by head order by 2 desc, 1 limit 9;
    select json_value(json_object('k', regexp_replace(text, '[0-9]+', '-')), '$.k') from a where id between 7 and 9;
    update a set text = reverse(text) where id % 3 = 0; delete from a where id % 5 = 0;
    checksum table a extended;";

/// The answers that must be the same plain and lifted; sysbench's load, too, must finish without errors except its own.
fn load(t: &Context, server: &MariadbServer) -> Result<String> {
    let answers = server.query(SAME)?;
    server.query("create database sbtest")?;
    server.sysbench(LIMIT, &["oltp_read_write", "--threads=1", "prepare"])?;
    for (work, seconds) in [("oltp_read_write", 2), ("oltp_point_select", 2)] {
        let report = server.sysbench(LIMIT, &[work, "--threads=16", &format!("--time={seconds}"), "run"])?;
        let count = |name| sysbench_count(&report, name);
        // sysbench ignores transactions that have locked each other out, which the load causes; it ends at every other
        // error.
        let (done, ignored, lost) = (count("transactions:")?, count("ignored errors:")?, count("reconnects:")?);
        ensure!(done > 100 && lost == 0, "{work}: {done} done, {ignored} ignored, {lost} reconnects");
        t.note(format!("{work}: {done} transactions, {ignored} locked out"));
    }
    Ok(answers + &server.query("select count(*) from sbtest.sbtest1; check table sbtest.sbtest1, same.a extended")?)
}

fn under_sysbench(t: &Context, pages: &str) -> Result<()> {
    static PLAIN: PlainAnswer = PlainAnswer::new();
    let wanted = PLAIN.get(|| {
        let mut plain = MariadbServer::prepare(t, "plain")?;
        plain.start(plain.command(), LIFETIME)?;
        let answer = load(t, &plain)?;
        plain.shut_down()?;
        Ok(answer)
    })?;
    let mut server = MariadbServer::prepare(t, pages)?;
    server.start(t.lifted(&["--pages", pages], &server.command())?, LIFETIME)?;
    ensure!(server.started_pid()? == server.pid()?, "the server is not the process that was started");
    let view = View::of(server.pid()?)?;
    check_object(t, &view, view.executable()?, &[Kind::Text, Kind::Rodata, Kind::Data], pages)?;
    view.check_read_only_contents(view.executable()?)?;
    let found = load(t, &server)?;
    ensure!(found == wanted, "plain answered\n{wanted}\nlifted\n{found}");
    // After sixteen clients the code must still be on its huge pages.
    let view = View::of(server.pid()?)?;
    check_object(t, &view, view.executable()?, &[Kind::Text, Kind::Rodata], pages)?;
    server.shut_down()
}

/// Like `mysqld_safe`: a shell that starts the server and waits for it.
fn through_a_shell(t: &Context, pages: &str) -> Result<()> {
    let mut server = MariadbServer::prepare(t, &format!("shell-{pages}"))?;
    let words: Vec<String> = std::iter::once(server.command().get_program().to_owned())
        .chain(server.command().get_args().map(ToOwned::to_owned))
        .map(|word| format!("'{}'", word.to_string_lossy()))
        .collect();
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("umask 007; true; cat /dev/null; {} & wait $!; exit $?", words.join(" "))]);
    server.start(t.lifted(&["--pages", pages, "--only", "mariadbd"], &shell)?, LIFETIME)?;
    let view = View::of(server.pid()?)?;
    check_object(t, &view, view.executable()?, &[Kind::Text, Kind::Rodata, Kind::Data], pages)?;
    let shell_view = View::of(server.started_pid()?)?;
    ensure!(shell_view.huge_bytes() == 0, "the shell has {} bytes on huge pages", shell_view.huge_bytes());
    ensure!(server.query("select 6 * 7")?.trim() == "42", "a wrong answer");
    server.shut_down()
}
