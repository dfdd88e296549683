//! Debian's mariadbd and sysbench, for tests.

use crate::{Context, Session, poll_until, scratch_folder};
use anyhow::{Context as _, Result, ensure};
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::Signal;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// A mariadbd for one test: its data folder, its socket, and the process. Killed when dropped.
pub struct MariadbServer<'a> {
    t: &'a Context,
    folder: PathBuf,
    session: Option<Session>,
}

impl<'a> MariadbServer<'a> {
    /// Prepares a data folder and a socket without a port, apart from the machine's own server.
    ///
    /// # Errors
    /// MariaDB is not installed completely.
    pub fn prepare(t: &'a Context, name: &str) -> Result<Self> {
        // A socket's path may have only some hundred characters.
        let folder = std::env::temp_dir().join(format!("pagelift-{name}-{}", std::process::id()));
        fs::remove_dir_all(&folder).ok();
        fs::create_dir_all(folder.join("tmp"))?;
        let mut copy = Command::new("cp");
        copy.args(["-a", "--reflink=auto"]).arg(installed_data(t)?).arg(folder.join("data"));
        t.run(copy)?.success()?;
        Ok(Self { t, folder, session: None })
    }

    /// A place in its folder.
    pub fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// The command that starts it.
    pub fn command(&self) -> Command {
        let mut command = Command::new("/usr/sbin/mariadbd");
        command
            .args(["--no-defaults", "--skip-networking", "--user=root", "--innodb-buffer-pool-size=64M"])
            .args(["--innodb-log-file-size=16M", "--innodb-flush-log-at-trx-commit=2", "--table-open-cache=200"])
            // A thread that waits for a slow disk in fsync cannot be stopped until fsync returns.
            .args(["--innodb-flush-method=nosync"])
            .arg(format!("--datadir={}", self.path("data")))
            .arg(format!("--socket={}", self.path("socket")))
            .arg(format!("--tmpdir={}", self.path("tmp")))
            .arg(format!("--pid-file={}", self.path("pid")))
            .arg(format!("--log-error={}", self.path("log.err")));
        command
    }

    /// Starts it by a command and waits until it answers. The process is killed after `lifetime`.
    ///
    /// # Errors
    /// It does not answer in four minutes.
    pub fn start(&mut self, command: Command, lifetime: Duration) -> Result<()> {
        self.session = Some(self.t.session_within(command, lifetime)?);
        let mut ping = Command::new("mariadb-admin");
        ping.args(["--no-defaults", "-u", "root", "-S", &self.path("socket"), "ping"]);
        poll_until(Duration::from_secs(240), "mariadbd's answer", || ping.output().is_ok_and(|o| o.status.success()))
            .with_context(|| format!("its log:\n{}", self.log()))
    }

    /// The process that was started: the server, or the shell that starts it.
    ///
    /// # Errors
    /// No server runs.
    pub fn started_pid(&self) -> Result<u32> {
        Ok(self.session.as_ref().context("no server runs")?.pid())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log.err")).unwrap_or_default()
    }

    /// The server's own process: the started process or a descendant of its shell.
    ///
    /// # Errors
    /// The server has not written its number yet.
    pub fn pid(&self) -> Result<u32> {
        Ok(fs::read_to_string(self.path("pid"))?.trim().parse()?)
    }

    /// The answer to SQL statements.
    ///
    /// # Errors
    /// The server or the client reports one.
    pub fn query(&self, text: &str) -> Result<String> {
        let mut client = Command::new("mariadb");
        client.args(["--no-defaults", "-u", "root", "-S", &self.path("socket"), "-N", "-B", "-e", text]);
        Ok(self.t.run(client)?.success()?.stdout)
    }

    /// The command of a sysbench of eight tables on this server.
    pub fn sysbench_command(&self, words: &[&str]) -> Command {
        let mut sysbench = Command::new("sysbench");
        sysbench
            .args(["--db-driver=mysql", "--mysql-user=root", "--tables=8", "--table-size=30000", "--rand-seed=7"])
            .args(["--rand-type=uniform"])
            .arg(format!("--mysql-socket={}", self.path("socket")))
            .args(words);
        sysbench
    }

    /// Returns the report of sysbench.
    ///
    /// # Errors
    /// It fails or exceeds the limit.
    pub fn sysbench(&self, limit: Duration, words: &[&str]) -> Result<String> {
        Ok(self.t.run_within(self.sysbench_command(words), limit)?.success()?.stdout)
    }

    /// Asks it to end; it must do so by itself, with status 0 and no error in its log.
    ///
    /// # Errors
    /// It does not.
    pub fn shut_down(&mut self) -> Result<()> {
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

impl Drop for MariadbServer<'_> {
    fn drop(&mut self) {
        if self.session.is_some() {
            fs::write(self.t.folder().join("mariadbd.log"), self.log()).ok();
        }
        drop(self.session.take());
        fs::remove_dir_all(&self.folder).ok();
    }
}

const INSTALL: [&str; 6] = [
    "--no-defaults",
    "--auth-root-authentication-method=normal",
    "--skip-test-db",
    "--user=root",
    "--innodb-log-file-size=16M",
    "--skip-name-resolve",
];

/// A data folder without a user's tables, to be copied: made once for each version of the server, in the tests' folder for
/// builds.
fn installed_data(t: &Context) -> Result<PathBuf> {
    let mut version = Command::new("/usr/sbin/mariadbd");
    version.args(["--no-defaults", "--version"]);
    let mut hasher = DefaultHasher::new();
    (t.run(version)?.success()?.stdout, INSTALL).hash(&mut hasher);
    let folder = scratch_folder().join(format!("mariadb/{:016x}", hasher.finish()));
    let (data, part, temporary) = (folder.join("data"), folder.join("part"), folder.join("tmp"));
    fs::create_dir_all(&temporary)?;
    // Other test targets may run at the same time, so the lock is one between processes.
    let lock = fs::File::create(folder.join("lock"))?;
    let _one_at_a_time = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, error)| error)?;
    if !data.exists() {
        fs::remove_dir_all(&part).ok();
        let mut install = Command::new("mariadb-install-db");
        install.args(INSTALL).arg(format!("--datadir={}", part.display()));
        // A server that starts removes temporary tables that it finds, another test's in /tmp too.
        install.env("TMPDIR", &temporary);
        t.run(install)?.success().context("mariadb-install-db")?;
        fs::rename(&part, &data)?;
    }
    Ok(data)
}

/// A count in sysbench's report, by the words before it: `transactions:` for example.
///
/// # Errors
/// The report has no such words.
pub fn sysbench_count(report: &str, name: &str) -> Result<u64> {
    let line = report.lines().find(|line| line.trim_start().starts_with(name)).context("an old sysbench")?;
    let number = line.split_whitespace().nth(name.split(' ').count()).context("a number")?;
    Ok(number.parse()?)
}
