//! Hostile processes and files of another user.

use anyhow::{Context as _, Result};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, chown, lchown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use test_support::{Context, Program, Session, copy_program, poll_until};

/// The other user.
pub const NOBODY: u32 = 65534;
/// Start of the line that an unquoted line feed in a name would begin.
pub const FORGED: &str = "FORGED";
/// Name of the file that a command creates if it contains a name of [`NAMES`] unquoted.
pub const REACHED: &str = "reached";

/// Names that any user can choose. The first has special characters of the shell, the second control characters of the
/// terminal, the third is not UTF-8.
const NAMES: [(&str, &[u8]); 3] = [
    ("shell", b"x'; touch reached; '$(touch reached)\"; touch reached;\" ;touch reached"),
    ("terminal", "x\u{1b}[31m\nFORGED\r\u{9b}2J\u{202e}\u{200b}\u{7f}".as_bytes()),
    ("bytes", b"x\xff\xfe\x1b[31m\nFORGED"),
];
/// Start of the names of files that are programs.
const A_PROGRAM: &str = "a program with a name for the";
/// A size that is too large to be read in full, in bytes.
const TEBIBYTE: u64 = 1 << 40;
/// Number of mappings of one process.
const MANY: &str = "20000";

/// Something hostile, with a name for messages.
pub struct Thing {
    pub name: String,
    /// It can be executed.
    pub is_program: bool,
    pub what: What,
}

pub enum What {
    Process(Process),
    File(PathBuf),
}

/// A process of the other user.
pub struct Process {
    pub session: Session,
    /// The program's file.
    pub program: PathBuf,
    group: Option<PathBuf>,
}

impl Drop for Process {
    fn drop(&mut self) {
        let Some(group) = &self.group else { return };
        // The group can be removed once it is empty.
        let Some(root) = group.parent() else { return };
        let is_gone = || {
            for pid in fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default().lines() {
                let _ = fs::write(root.join("cgroup.procs"), pid);
            }
            fs::remove_dir(group).is_ok() || !group.exists()
        };
        if let Err(error) = poll_until(Duration::from_secs(10), "the group to be gone", is_gone) {
            eprintln!("{}: {error}", group.display());
        }
    }
}

/// A folder that everyone can reach and that belongs to the other user.
pub fn folder() -> Result<tempfile::TempDir> {
    let folder = tempfile::Builder::new().prefix("pagelift-hostile-").tempdir_in("/var/tmp")?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
    chown(folder.path(), Some(NOBODY), Some(NOBODY))?;
    Ok(folder)
}

/// A command that the other user executes.
pub fn as_nobody(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={NOBODY}"), &format!("--regid={NOBODY}"), "--clear-groups", "--"]).arg(program);
    command
}

fn own(path: &Path) -> Result<()> {
    Ok(chown(path, Some(NOBODY), Some(NOBODY))?)
}

/// A copy of the program with much code, under this name.
fn program(t: &Context, folder: &Path, name: &[u8]) -> Result<PathBuf> {
    let path = folder.join(OsStr::from_bytes(name));
    copy_program(t, &Program::named("page_cache/large_code.c")?.build()?, &path)?;
    own(&path)?;
    Ok(path)
}

fn started(t: &Context, mut command: Command, program: PathBuf, group: Option<PathBuf>) -> Result<Process> {
    command.current_dir("/");
    let session = t.session(command)?;
    session.wait_for_line("ready")?;
    if let Some(group) = &group {
        fs::write(group.join("cgroup.procs"), session.pid().to_string())?;
    }
    Ok(Process { session, program, group })
}

/// A cgroup with the name of a service; `None` if there is no hierarchy for it.
fn group(name: &[u8]) -> Option<PathBuf> {
    let without_line_feed: Vec<u8> = name.iter().copied().filter(|byte| *byte != b'\n').collect();
    let mut name = OsString::from(format!("{}-", std::process::id()));
    name.push(OsStr::from_bytes(&without_line_feed));
    name.push(".service");
    let roots = ["/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
    roots.iter().map(|root| Path::new(root).join(&name)).find(|group| {
        if fs::create_dir(group).is_err() {
            return false;
        }
        // Where no hierarchy is mounted, the folder is an ordinary one.
        let is_group = group.join("cgroup.procs").exists();
        if !is_group {
            let _ = fs::remove_dir(group);
        }
        is_group
    })
}

/// Processes with hostile names everywhere, with a huge file, with many mappings, and with damaged tables.
pub fn processes(t: &Context, folder: &Path) -> Result<Vec<Thing>> {
    let mut found = Vec::new();
    for (what, name) in NAMES {
        let file = program(t, folder, name)?;
        let word = OsStr::from_bytes(name);
        let mut command = as_nobody(&file);
        command.arg(word).env("MALLOC_CONF", word).env("GLIBC_TUNABLES", word).env("JAVA_TOOL_OPTIONS", word);
        let process = started(t, command, file, group(name))?;
        found.push(Thing {
            name: format!("a process with names for the {what}"),
            is_program: false,
            what: What::Process(process),
        });
    }
    let maps = Program::named("cli/maps_a_file.c")?.build()?;
    let copy = folder.join("maps_a_file");
    copy_program(t, &maps, &copy)?;
    let sparse = folder.join("sparse");
    File::create(&sparse)?.set_len(TEBIBYTE)?;
    for (what, file, count) in [("a file of a terabyte", &sparse, "1"), ("many mappings", &copy, MANY)] {
        let mut command = as_nobody(&copy);
        command.arg(file).arg(count);
        let process = started(t, command, copy.clone(), None)?;
        found.push(Thing { name: format!("a process with {what}"), is_program: false, what: What::Process(process) });
    }
    let damaged = program(t, folder, b"damaged")?;
    // The offset of the section headers (ELF-64 object file format, "ELF header").
    File::options().write(true).open(&damaged)?.write_all_at(&(u64::MAX - 64).to_le_bytes(), 0x28)?;
    let process = started(t, as_nobody(&damaged), damaged, None)?;
    found.push(Thing {
        name: "a process with damaged tables".to_owned(),
        is_program: false,
        what: What::Process(process),
    });
    Ok(found)
}

/// Files with hostile names, and files whose headers announce more than they contain.
pub fn files(t: &Context, folder: &Path) -> Result<Vec<Thing>> {
    let mut found: Vec<(String, PathBuf)> = Vec::new();
    for (what, name) in NAMES {
        found.push((format!("{A_PROGRAM} {what}"), program(t, folder, name)?));
    }
    let elf = fs::read(Program::named("page_cache/large_code.c")?.build()?)?;
    let put = |name: &str, bytes: &[u8]| -> Result<PathBuf> {
        let path = folder.join(name);
        fs::write(&path, bytes)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        own(&path)?;
        Ok(path)
    };
    found.push(("a file that is cut off".to_owned(), put("cut-off", &elf[..100])?));
    let mut claims = elf[..4096].to_vec();
    claims[0x38..0x3a].copy_from_slice(&u16::MAX.to_le_bytes());
    found.push(("a file that claims many segments".to_owned(), put("claims", &claims)?));
    let huge = put("huge", &elf[..4096])?;
    let file = File::options().write(true).open(&huge)?;
    let headers = u64::from_le_bytes(elf[0x20..0x28].try_into()?);
    for number in 0..u64::from(u16::from_le_bytes(elf[0x38..0x3a].try_into()?)) {
        // The sizes of each segment in the file and in memory.
        for field in [0x20, 0x28] {
            file.write_all_at(&(TEBIBYTE / 2).to_le_bytes(), headers + number * 56 + field)?;
        }
    }
    file.set_len(TEBIBYTE)?;
    found.push(("a file of a terabyte".to_owned(), huge));
    found.push((
        "a file of terminal sequences".to_owned(),
        put("text", "{\"\u{1b}[31m\u{9b}2J\": 1}\nFORGED\u{1b}\n".as_bytes())?,
    ));
    let pipe = folder.join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::from_bits_truncate(0o644))?;
    found.push(("a pipe that nobody writes to".to_owned(), pipe));
    let missing = folder.join(OsStr::from_bytes(b"missing \x1b[31m\nFORGED"));
    found.push(("a name of nothing".to_owned(), missing));
    Ok(found
        .into_iter()
        .map(|(name, path)| Thing { is_program: name.starts_with(A_PROGRAM), name, what: What::File(path) })
        .collect())
}

/// A link of the other user to a file of root.
pub fn link_to_roots_file(t: &Context, folder: &Path) -> Result<(PathBuf, PathBuf)> {
    let (file, link) = (t.folder().join("of-root"), folder.join("link"));
    fs::write(&file, ROOTS_TEXT)?;
    symlink(&file, &link)?;
    lchown(&link, Some(NOBODY), Some(NOBODY))?;
    Ok((link, file))
}

/// Contents of root's file.
pub const ROOTS_TEXT: &str = "a line of root's\n";

/// Executes a printed command as the other user, with `touch` as the only program in PATH. Returns true if a name has
/// become a command.
pub fn becomes_a_command(command: &str) -> Result<bool> {
    let folder = folder()?;
    let mark = folder.path().join("mark");
    let touch = folder.path().join("touch");
    fs::write(&touch, format!("#!/bin/sh\n: >{}\n", mark.display()))?;
    fs::set_permissions(&touch, fs::Permissions::from_mode(0o755))?;
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", command]).env_clear().env("PATH", folder.path()).current_dir(folder.path());
    shell.uid(NOBODY).gid(NOBODY).stdin(std::process::Stdio::null());
    shell.output().context("a shell")?;
    Ok(mark.exists())
}
