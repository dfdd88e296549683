//! The administrator of a PostgreSQL server: the answers about its first process, before and after a lift, and restored.

use crate::{Answers, shell, starts_small, typed};
use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use test_support::{Context, Need, Test, test_case};

const VERSIONS: &str = "/usr/lib/postgresql";
/// PostgreSQL refuses to run as root.
const USER: &str = "setpriv --reuid=postgres --regid=postgres --clear-groups";

pub fn test() -> Test {
    let needs = [Need::Root, Need::Thp, Need::Pool(0), Need::File(VERSIONS.into()), Need::Command("setpriv".into())];
    test_case("administrator_of_postgresql", needs.to_vec(), administrator)
}

/// A folder for the data and the socket, whose path may have only some hundred characters. Removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self> {
        let folder = Self(std::env::temp_dir().join(format!("pagelift-postgresql-{}", std::process::id())));
        fs::remove_dir_all(&folder.0).ok();
        fs::create_dir(&folder.0)?;
        Ok(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

fn programs() -> Result<PathBuf> {
    let newest = fs::read_dir(VERSIONS)?.flatten().map(|entry| entry.path()).max();
    Ok(newest.context("no version of PostgreSQL")?.join("bin"))
}

fn administrator(t: &Context) -> Result<()> {
    starts_small()?;
    let (folder, programs) = (Folder::new()?, programs()?);
    let (data, programs) = (folder.0.display(), programs.display());
    typed(t, &format!("chown postgres {data}"))?;
    typed(t, &format!("cd {data} && {USER} {programs}/initdb -D {data}/data -A trust -U root --no-sync"))?;
    let words = format!("-D {data}/data -k {data} -c listen_addresses= -F");
    let server = t.session(shell(t, &format!("cd {data} && exec {USER} {programs}/postgres {words}"))?)?;
    server.wait_for_stderr("ready to accept connections")?;
    let pid = server.pid();
    let plain = Answers::that_agree(t, pid)?;
    // Pool pages from its start come first; its memory is lifted as it is here.
    let recommended = plain.run.clone().filter(|run| run.contains(" attach "));
    let lift = recommended.unwrap_or_else(|| format!("pagelift attach {pid} --pages thp"));
    typed(t, &lift)?;
    let lifted = Answers::that_agree(t, pid)?;
    ensure!(lifted.huge != "0 B" || plain.added == "0 B", "{plain}{lifted}");
    for answers in [&plain, &lifted] {
        let measure = answers.measure.as_deref().unwrap_or("--server");
        ensure!(measure.contains(" --toggle ") || measure.contains("--server"), "does not end: {answers}");
    }
    answers_query(t, &programs.to_string(), &folder.0)?;
    typed(t, &format!("pagelift detach {pid}"))?;
    Answers::that_agree(t, pid)?;
    answers_query(t, &programs.to_string(), &folder.0)?;
    // A fast shutdown.
    server.signal(Signal::SIGINT)?;
    server.finish()?.success().map(drop)
}

fn answers_query(t: &Context, programs: &str, folder: &Path) -> Result<()> {
    let query = format!("{programs}/psql -h {} -U root -Atc 'SELECT 6 * 7' postgres", folder.display());
    let answer = typed(t, &query)?.stdout;
    ensure!(answer.trim() == "42", "{answer}");
    Ok(())
}
