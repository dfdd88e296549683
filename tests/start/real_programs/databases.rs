//! PostgreSQL, which forks for every connection, and redis.

use crate::{PlainAnswer, both_ways, check_object, soon};
use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use test_support::{Context, Kind, Session, Test, View, is_root};

/// Limit for a server, from its start to its end.
const LIFETIME: Duration = Duration::from_secs(600);

pub fn tests() -> Vec<Test> {
    let mut tests = both_ways("postgres_under_pgbench", &["file /usr/lib/postgresql"], 64 << 20, under_pgbench);
    tests.extend(both_ways("redis_server", &["command redis-server", "command redis-cli"], 64 << 20, redis));
    tests
}

/// The newest of Debian's PostgreSQL versions.
fn postgres_programs() -> Result<PathBuf> {
    let mut versions: Vec<PathBuf> =
        fs::read_dir("/usr/lib/postgresql")?.flatten().map(|entry| entry.path().join("bin")).collect();
    versions.retain(|folder| folder.join("postgres").exists());
    versions.sort();
    versions.pop().context("no server in /usr/lib/postgresql")
}

struct Postgres<'a> {
    t: &'a Context,
    programs: PathBuf,
    folder: PathBuf,
    session: Option<Session>,
}

impl<'a> Postgres<'a> {
    /// The server refuses to run as root, so all its commands run as its ordinary user, lifting included.
    fn as_user(&self, program: &Path) -> Command {
        if !is_root() {
            return Command::new(program);
        }
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]).arg(program);
        command.env("HOME", &self.folder);
        command
    }

    fn tool(&self, name: &str) -> Command {
        let mut command = self.as_user(&self.programs.join(name));
        command.current_dir(&self.folder);
        command
    }

    fn prepare(t: &'a Context, name: &str) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("pagelift-pg-{name}-{}", std::process::id()));
        fs::remove_dir_all(&folder).ok();
        fs::create_dir_all(&folder)?;
        let server = Self { t, programs: postgres_programs()?, folder, session: None };
        if is_root() {
            let owner = nix::unistd::User::from_name("postgres")?.context("no user postgres")?;
            nix::unistd::chown(&server.folder, Some(owner.uid), Some(owner.gid))?;
        }
        let mut initdb = server.tool("initdb");
        initdb
            .args(["-A", "trust", "-U", "postgres", "--no-sync", "--locale=C", "-E", "UTF8", "-D"])
            .arg(server.folder.join("data"));
        t.run_within(initdb, Duration::from_secs(240))?.success().context("initdb")?;
        Ok(server)
    }

    fn server_command(&self, options: Option<&[&str]>) -> Result<Command> {
        let mut server = Command::new(self.programs.join("postgres"));
        server
            .arg("-D")
            .arg(self.folder.join("data"))
            .args(["-c", "listen_addresses=", "-c", "shared_buffers=32MB", "-c", "fsync=off", "-c", "huge_pages=off"])
            .arg("-k")
            .arg(&self.folder);
        let start = match options {
            Some(options) => self.t.lifted(options, &server)?,
            None => server,
        };
        let mut command = self.as_user(Path::new(start.get_program()));
        command.args(start.get_args()).current_dir(&self.folder);
        Ok(command)
    }

    fn start(&mut self, options: Option<&[&str]>) -> Result<u32> {
        let session = self.t.session_within(self.server_command(options)?, LIFETIME)?;
        let pid = session.pid();
        self.session = Some(session);
        soon("PostgreSQL's socket", || {
            let so_far = self.session.as_ref().map(Session::stderr_so_far).unwrap_or_default();
            ensure!(so_far.contains("ready to accept connections"), "not ready: {so_far}");
            Ok(())
        })?;
        Ok(pid)
    }

    fn query(&self, text: &str) -> Result<String> {
        let mut client = self.tool("psql");
        client.args(["-X", "-U", "postgres", "-h"]).arg(&self.folder).args(["-At", "-c", text]);
        Ok(self.t.run(client)?.success()?.stdout)
    }

    fn pgbench(&self, words: &[&str]) -> Result<String> {
        let mut bench = self.tool("pgbench");
        bench.args(["-U", "postgres", "-h"]).arg(&self.folder).args(words).arg("postgres");
        let output = self.t.run_within(bench, Duration::from_secs(240))?.success()?;
        Ok(output.stdout)
    }

    /// The answers that must be the same plain and lifted.
    fn load(&self) -> Result<String> {
        self.pgbench(&["-i", "-q", "-s", "2"])?;
        let report = self.pgbench(&["-c", "8", "-j", "2", "-T", "2", "--random-seed=7"])?;
        ensure!(report.contains("number of failed transactions: 0"), "{report}");
        let same = "select count(*), sum(bid) from pgbench_accounts; \
                    select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history); \
                    select md5(string_agg(md5(a::text || b::text), '' order by a)) from \
                    (select a, (a * 7919) % 10007 as b from generate_series(1, 20000) a) x";
        self.query(same)
    }

    fn shut_down(&mut self) -> Result<()> {
        let session = self.session.take().context("the server runs")?;
        // The regular shutdown: it waits until the last client has left.
        session.signal(Signal::SIGTERM)?;
        let output = session.finish()?;
        self.t.keep(&output);
        let output = output.success()?;
        ensure!(output.stderr.contains("database system is shut down"), "no regular end:\n{}", output.stderr);
        for bad in ["PANIC", "FATAL", "was terminated by signal"] {
            ensure!(!output.stderr.contains(bad), "{bad} in its log:\n{}", output.stderr);
        }
        Ok(())
    }
}

impl Drop for Postgres<'_> {
    fn drop(&mut self) {
        drop(self.session.take());
        fs::remove_dir_all(&self.folder).ok();
    }
}

fn under_pgbench(t: &Context, pages: &str) -> Result<()> {
    static PLAIN: PlainAnswer = PlainAnswer::new();
    let wanted = PLAIN.get(|| {
        let mut plain = Postgres::prepare(t, "plain")?;
        plain.start(None)?;
        let answer = plain.load()?;
        plain.shut_down()?;
        Ok(answer)
    })?;
    let mut server = Postgres::prepare(t, pages)?;
    let pid = server.start(Some(&["--pages", pages]))?;
    let view = View::of(pid)?;
    check_object(t, &view, view.executable()?, &[Kind::Text, Kind::Rodata], pages)?;
    view.check_read_only_contents(view.executable()?)?;
    let found = server.load()?;
    ensure!(found == wanted, "plain answered\n{wanted}\nlifted\n{found}");
    // The processes that run the queries are children of the lifted process, and share its huge pages.
    let mut client = server.tool("psql");
    client.args(["-X", "-U", "postgres", "-h"]).arg(&server.folder).arg("-At");
    // A client has such a process for as long as its input is open.
    let mut client = t.session(client)?;
    client.send("select pg_backend_pid(); select 'it is ' || 'there';\n")?;
    client.wait_for_line("it is there")?;
    let backend = client.stdout_so_far().lines().next().context("no backend")?.parse()?;
    let view = View::of(backend)?;
    check_object(t, &view, view.executable()?, &[Kind::Text, Kind::Rodata], pages)?;
    client.finish()?.success()?;
    server.shut_down()
}

fn redis(t: &Context, pages: &str) -> Result<()> {
    let mut answers = Vec::new();
    for options in [None, Some(["--pages", pages])] {
        let socket = std::env::temp_dir().join(format!("pagelift-redis-{pages}-{}", std::process::id()));
        let mut server = Command::new("redis-server");
        server
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--enable-debug-command", "yes", "--unixsocket"])
            .arg(&socket);
        server.arg("--dir").arg(t.folder());
        let command = match options {
            Some(options) => t.lifted(&options, &server)?,
            None => server,
        };
        let session = t.session(command)?;
        session.wait_for_stderr("").ok();
        let client = |words: &[&str]| {
            let mut client = Command::new("redis-cli");
            client.arg("-s").arg(&socket).args(words);
            client
        };
        soon("redis", || {
            ensure!(String::from_utf8_lossy(&client(&["ping"]).output()?.stdout).contains("PONG"), "no answer");
            Ok(())
        })?;
        if options.is_some() {
            let view = View::of(session.pid())?;
            view.check_read_only_contents(view.executable()?)?;
        }
        let mut answer = String::new();
        for words in [&["debug", "populate", "200000"][..], &["dbsize"], &["debug", "digest"], &["bgsave"]] {
            answer += &t.run(client(words))?.success()?.stdout;
        }
        soon("the saving child's end", || {
            let info = t.run(client(&["info", "persistence"]))?.success()?.stdout;
            ensure!(info.contains("rdb_bgsave_in_progress:0") && info.contains("rdb_last_bgsave_status:ok"), "{info}");
            Ok(())
        })?;
        t.run(client(&["shutdown", "nosave"]))?;
        session.finish()?.success()?;
        answers.push(answer);
    }
    ensure!(answers[0] == answers[1], "plain {}, lifted {}", answers[0], answers[1]);
    Ok(())
}
