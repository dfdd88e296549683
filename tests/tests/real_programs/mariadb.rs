//! Debian's mariadbd under sysbench: prepare, read and write, point selects, 16 clients, and a clean shutdown.

use crate::{both_ways, check_object, soon};
use anyhow::{Context as _, Result, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use pagelift_tests::{Context, Kind, Session, View};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

const POOL: u64 = 160 << 20;

pub fn trials() -> Vec<Trial> {
    let needs = ["command mariadbd", "command sysbench", "command mariadb-install-db"];
    let mut trials = both_ways("mariadbd_under_sysbench", &needs, POOL, under_sysbench);
    trials.extend(both_ways("mariadbd_by_only_through_a_shell", &needs, POOL, through_a_shell));
    trials
}

struct Server<'a> {
    t: &'a Context,
    folder: PathBuf,
    session: Option<Session>,
}

impl<'a> Server<'a> {
    /// A data folder and a socket of its own; no port, nothing of the machine's own server.
    fn prepare(t: &'a Context, name: &str) -> Result<Self> {
        // A socket's path may have only some hundred characters.
        let folder = std::env::temp_dir().join(format!("pagelift-{name}-{}", std::process::id()));
        fs::remove_dir_all(&folder).ok();
        fs::create_dir_all(folder.join("tmp"))?;
        let mut install = Command::new("mariadb-install-db");
        install
            .args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db", "--user=root"])
            .args(["--innodb-log-file-size=16M", "--skip-name-resolve"])
            .arg(format!("--datadir={}", folder.join("data").display()));
        t.run(install)?.success().context("mariadb-install-db")?;
        Ok(Self { t, folder, session: None })
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    fn command(&self) -> Command {
        let mut command = Command::new("/usr/sbin/mariadbd");
        command
            .args(["--no-defaults", "--skip-networking", "--user=root", "--innodb-buffer-pool-size=64M"])
            .args(["--innodb-log-file-size=16M", "--innodb-flush-log-at-trx-commit=2", "--table-open-cache=200"])
            .arg(format!("--datadir={}", self.path("data")))
            .arg(format!("--socket={}", self.path("socket")))
            .arg(format!("--tmpdir={}", self.path("tmp")))
            .arg(format!("--pid-file={}", self.path("pid")))
            .arg(format!("--log-error={}", self.path("log.err")));
        command
    }

    fn start(&mut self, command: Command) -> Result<()> {
        self.session = Some(self.t.session_within(command, Duration::from_secs(150))?);
        soon("mariadbd's socket", || {
            let mut ping = Command::new("mariadb-admin");
            ping.args(["--no-defaults", "-u", "root", "-S", &self.path("socket"), "ping"]);
            ensure!(ping.output()?.status.success(), "no answer; its log:\n{}", self.log());
            Ok(())
        })
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log.err")).unwrap_or_default()
    }

    /// The server's own process, which is a descendant where it was started by a shell.
    fn pid(&self) -> Result<u32> {
        Ok(fs::read_to_string(self.path("pid"))?.trim().parse()?)
    }

    fn query(&self, text: &str) -> Result<String> {
        let mut client = Command::new("mariadb");
        client.args(["--no-defaults", "-u", "root", "-S", &self.path("socket"), "-N", "-B", "-e", text]);
        Ok(self.t.run(client)?.success()?.stdout)
    }

    fn sysbench(&self, words: &[&str]) -> Result<String> {
        let mut sysbench = Command::new("sysbench");
        sysbench
            .args(["--db-driver=mysql", "--mysql-user=root", "--tables=8", "--table-size=30000", "--rand-seed=7"])
            .args(["--rand-type=uniform"])
            .arg(format!("--mysql-socket={}", self.path("socket")))
            .args(words);
        Ok(self.t.run_within(sysbench, Duration::from_secs(100))?.success()?.stdout)
    }

    /// Asks it to end; it must do so by itself, with status 0 and no error in its log.
    fn shut_down(&mut self) -> Result<()> {
        let session = self.session.take().context("the server runs")?;
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.pid()? as i32), Signal::SIGTERM)?;
        let output = session.finish()?;
        self.t.keep(&output);
        output.success()?;
        let log = self.log();
        fs::write(self.t.folder().join("mariadbd.log"), &log)?;
        ensure!(log.contains("Shutdown complete"), "no regular end:\n{log}");
        let errors: Vec<&str> =
            log.lines().filter(|line| line.contains("[ERROR]") || line.contains("InnoDB: Assertion")).collect();
        ensure!(errors.is_empty(), "{errors:?}");
        Ok(())
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        if self.session.is_some() {
            fs::write(self.t.folder().join("mariadbd.log"), self.log()).ok();
        }
        drop(self.session.take());
        fs::remove_dir_all(&self.folder).ok();
    }
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

/// The answers that must be the same plain and lifted; sysbench's load, too, must go by without any error.
fn load(server: &Server) -> Result<String> {
    let answers = server.query(SAME)?;
    server.query("create database sbtest")?;
    server.sysbench(&["oltp_read_write", "--threads=1", "prepare"])?;
    for (work, seconds) in [("oltp_read_write", 5), ("oltp_point_select", 3)] {
        let report = server.sysbench(&[work, "--threads=16", &format!("--time={seconds}"), "run"])?;
        let count = |name: &str| -> Result<u64> {
            let line = report.lines().find(|line| line.trim_start().starts_with(name)).context("an old sysbench")?;
            let number = line.split_whitespace().nth(name.split(' ').count()).context("a number")?;
            Ok(number.parse()?)
        };
        let (done, errors, lost) = (count("transactions:")?, count("ignored errors:")?, count("reconnects:")?);
        ensure!(done > 100 && errors == 0 && lost == 0, "{work}: {done} done, {errors} errors, {lost} reconnects");
        server.t.note(format!("{work}: {done} transactions"));
    }
    Ok(answers + &server.query("select count(*) from sbtest.sbtest1; check table sbtest.sbtest1, same.a extended")?)
}

fn under_sysbench(t: &Context, pages: &str) -> Result<()> {
    let mut plain = Server::prepare(t, &format!("plain-{pages}"))?;
    plain.start(plain.command())?;
    let wanted = load(&plain)?;
    plain.shut_down()?;

    let mut server = Server::prepare(t, pages)?;
    server.start(t.lifted(&["--pages", pages], &server.command())?)?;
    let session_pid = server.session.as_ref().map(Session::pid);
    ensure!(session_pid == Some(server.pid()?), "the server is not the process that was started");
    let view = View::of(server.pid()?)?;
    check_object(t, &view, view.executable()?, &[Kind::Text, Kind::Rodata, Kind::Data], pages)?;
    view.check_read_only_contents(view.executable()?)?;
    let found = load(&server)?;
    ensure!(found == wanted, "plain answered\n{wanted}\nlifted\n{found}");
    // Sixteen clients later the code must still be where it was put.
    let view = View::of(server.pid()?)?;
    check_object(t, &view, view.executable()?, &[Kind::Text, Kind::Rodata], pages)?;
    server.shut_down()
}

/// As `mysqld_safe` does it: a shell that starts the server and waits for it.
fn through_a_shell(t: &Context, pages: &str) -> Result<()> {
    let mut server = Server::prepare(t, &format!("shell-{pages}"))?;
    let words: Vec<String> = std::iter::once(server.command().get_program().to_owned())
        .chain(server.command().get_args().map(ToOwned::to_owned))
        .map(|word| format!("'{}'", word.to_string_lossy()))
        .collect();
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("umask 007; true; cat /dev/null; {} & wait $!; exit $?", words.join(" "))]);
    server.start(t.lifted(&["--pages", pages, "--only", "mariadbd"], &shell)?)?;
    let shell_pid = server.session.as_ref().map(Session::pid).context("the shell runs")?;
    let view = View::of(server.pid()?)?;
    check_object(t, &view, view.executable()?, &[Kind::Text, Kind::Rodata, Kind::Data], pages)?;
    let shell_view = View::of(shell_pid)?;
    ensure!(shell_view.huge_bytes() == 0, "the shell has {} bytes on huge pages", shell_view.huge_bytes());
    ensure!(server.query("select 6 * 7")?.trim() == "42", "a wrong answer");
    server.shut_down()
}
