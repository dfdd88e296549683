//! `pagelift estimate -p PID --again`: starts a process's program once more, if that is permitted.
//!
//! The process determines the executed program, its words, and its environment, which names libraries to load. So
//! nothing is executed unless this command has no more rights than the process.

use super::Started;
use anyhow::{Context, Result, bail, ensure};
use linux::unasked;
use nix::sys::prctl::set_no_new_privs;
use process_view::{ProcessFiles, ProcessRights, RightsDifference};
use session::start::CommandFiles;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

impl Started {
    /// Takes on the folder and `no_new_privs` of a process, and reads its program, words and environment.
    pub(super) fn of_process(pid: i32, again: bool) -> Result<Self> {
        ensure!(
            again,
            "process {pid} runs already, and QEMU can trace only programs that it starts; fix: stop it if two \
             cannot run at a time, and start another under the trace: `pagelift estimate -p {pid} --again` while it runs, or \
             `pagelift estimate -- CMD`"
        );
        let files = ProcessFiles::of(pid);
        let words = words_of(&files, "cmdline")?;
        ensure!(!words.is_empty(), "process {pid} has no command line: it is a kernel thread, or has ended");
        let program = files.bytes("auxv")?;
        check_rights(pid)?;
        let folder = files.path("cwd");
        std::env::set_current_dir(&folder).with_context(|| format!("changing to {}", folder.display()))?;
        let started = Self {
            words: with_program(&files, words_of(&files, "cmdline")?)?,
            process: Some(pid),
            environment: Some(environment_of(&files)?),
        };
        // The kernel writes the vector anew at each exec, with random bytes at a random address: the same vector means
        // that all was read from this program, while it had these rights.
        let rights = check_rights(pid)?;
        ensure!(files.bytes("auxv")? == program, "process {pid} has executed another program; fix: try again");
        if rights.no_new_privileges {
            set_no_new_privs().context("prctl(PR_SET_NO_NEW_PRIVS)")?;
        }
        Ok(started)
    }
}

/// Returns the rights of the process, which this command does not exceed.
fn check_rights(pid: i32) -> Result<ProcessRights> {
    let (own, rights) = (ProcessRights::of(std::process::id() as i32)?, ProcessRights::of(pid)?);
    match own.exceeds(&rights) {
        None => Ok(rights),
        Some(RightsDifference::User) => bail!(
            "the program of process {pid} is not started again: found {} there and {} here, needed the same, since \
             the program of a process is executed only with the rights of the process; fix: as root, `{} setsid --wait pagelift estimate \
             -p {pid} --again`",
            identity(&rights),
            identity(&own),
            as_user(&rights)
        ),
        Some(RightsDifference::Other(what)) => bail!(
            "the program of process {pid} is not started again: found that the process has {what}, needed a command with no \
             more rights than it, since the program of a process is executed only with the rights of the process; fix: \
             `pagelift estimate -- CMD` in its container or sandbox"
        ),
    }
}

/// User and groups in the words of a message. A program with the rights of its file's owner has more than one user.
fn identity(rights: &ProcessRights) -> String {
    let each = |ids: &[u32]| {
        let mut ids = ids.to_vec();
        ids.dedup();
        ids.iter().map(u32::to_string).collect::<Vec<_>>().join("/")
    };
    let groups: Vec<u32> = rights.groups.iter().copied().collect();
    let more = if groups.is_empty() { "no more groups".to_owned() } else { format!("groups {}", each(&groups)) };
    format!("user {}, group {} and {more}", each(&rights.users), each(&rights.group_ids))
}

/// The beginning of a command that takes on user and groups of a process (setpriv(1)).
fn as_user(rights: &ProcessRights) -> String {
    let groups: Vec<String> = rights.groups.iter().map(u32::to_string).collect();
    let groups = if groups.is_empty() { "--clear-groups".to_owned() } else { format!("--groups={}", groups.join(",")) };
    format!("setpriv --reuid={} --regid={} {groups} --inh-caps=-all --reset-env", rights.users[1], rights.group_ids[1])
}

/// The words of a process, the first replaced by a path of the executed file: a process may choose any name.
fn with_program(files: &ProcessFiles, mut words: Vec<OsString>) -> Result<Vec<OsString>> {
    let link = files.path("exe");
    // The kernel knows both files, since one runs: no file system is asked.
    let file = |path: &PathBuf| unasked::place(path).and_then(unasked::of).ok();
    let executed = file(&link).with_context(|| format!("{} leads nowhere", link.display()))?;
    let is_executed = |path: &PathBuf| file(path).is_some_and(|found| found.is_same_file(&executed));
    let Some(name) = words.first_mut() else { bail!("{}: no command line", files.path("cmdline").display()) };
    if CommandFiles::of(name).program().is_some_and(|file| is_executed(&file.to_owned())) {
        return Ok(words);
    }
    let path = fs::read_link(&link).with_context(|| link.display().to_string())?;
    ensure!(
        is_executed(&path),
        "the file that process {} executes has been removed or replaced; fix: restart the process",
        files.pid()
    );
    *name = path.into_os_string();
    Ok(words)
}

fn environment_of(files: &ProcessFiles) -> Result<Vec<(OsString, OsString)>> {
    let pair = |word: OsString| {
        let bytes = word.as_bytes();
        let at = bytes.iter().position(|byte| *byte == b'=')?;
        Some((OsStr::from_bytes(&bytes[..at]).to_owned(), OsStr::from_bytes(&bytes[at + 1..]).to_owned()))
    };
    Ok(words_of(files, "environ")?.into_iter().filter_map(pair).collect())
}

/// The words of a file of `/proc/PID`, each of which ends with NUL.
fn words_of(files: &ProcessFiles, name: &str) -> Result<Vec<OsString>> {
    let text = files.bytes(name)?;
    let words = text.strip_suffix(b"\0").unwrap_or(&text).split(|byte| *byte == 0);
    Ok(words.filter(|_| !text.is_empty()).map(|word| OsStr::from_bytes(word).to_owned()).collect())
}
