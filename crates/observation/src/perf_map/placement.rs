//! Puts a perf map where perf looks for it.
//!
//! perf reads `/tmp/perf-PID.map` in the target's mount namespace, with the PID that the target has in its own
//! innermost PID namespace, and only if the file belongs to root or to the user who runs perf. `/tmp` is a place where
//! anybody can put anything, so no symbolic link is followed and nothing is written to another user's file.

use super::PerfMapError;
use crate::ProcessFiles;
use address_space::{Address, AddressRange, RangeSet};
use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A map of the program's own that is larger than this is not read but only appended to.
const MOST_OLD_BYTES: u64 = 1 << 28;

/// Writes the map of a process and returns the path by which perf finds it, as seen from here.
///
/// A map that the program itself keeps for its generated code stays: lines are added to it. Any other is replaced.
pub(crate) fn place(process: &ProcessFiles, text: &str, ranges: &RangeSet) -> Result<PathBuf, PerfMapError> {
    let directory = Directory::of(process)?;
    let name = format!("perf-{}.map", innermost_pid(process));
    let shown = directory.shown.join(&name);
    let error = |source| PerfMapError::Write { path: shown.clone(), source };
    match own_map_of_program(process, &directory.entry(&name), ranges) {
        Some(own) => own.append(text).map_err(error)?,
        None => replace(&directory, &name, text).map_err(error)?,
    }
    Ok(shown)
}

/// The target's `/tmp`, held open so that it cannot be exchanged for another directory meanwhile.
struct Directory {
    open: File,
    shown: PathBuf,
}

impl Directory {
    fn of(process: &ProcessFiles) -> Result<Self, PerfMapError> {
        let root = process.path("root");
        let there = identity(&root, &process.path("ns/mnt")).map_err(|source| process.explain(&root, source))?;
        let foreign = identity(Path::new("/"), Path::new("/proc/self/ns/mnt")).ok() != Some(there);
        // In another root a symbolic link would lead to a place of this one. Ours is the administrator's business.
        let (path, flags) = if foreign { (root.join("tmp"), libc::O_NOFOLLOW) } else { ("/tmp".into(), 0) };
        let open = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | flags).open(&path);
        let open = open.map_err(|source| PerfMapError::Write { path: path.clone(), source })?;
        Ok(Self { open, shown: path })
    }

    fn entry(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.open.as_raw_fd()))
    }
}

/// A root directory's device and inode, and the mount namespace: one directory may be the root in several of them.
fn identity(root: &Path, namespace: &Path) -> io::Result<(u64, u64, PathBuf)> {
    let metadata = fs::metadata(root)?;
    Ok((metadata.dev(), metadata.ino(), fs::read_link(namespace)?))
}

/// The number of the process in its own PID namespace: the last of `NStgid` (Linux 4.1).
fn innermost_pid(process: &ProcessFiles) -> i32 {
    let status = process.text("status").unwrap_or_default();
    let field = status.lines().find_map(|line| line.strip_prefix("NStgid:"));
    field.and_then(|numbers| numbers.split_whitespace().last()?.parse().ok()).unwrap_or(process.pid())
}

/// A map that the running program keeps for code it generates.
struct OwnMap {
    file: File,
    /// Lines in it that name the ranges already.
    known: HashSet<String>,
}

impl OwnMap {
    fn append(mut self, text: &str) -> io::Result<()> {
        let new: String =
            text.lines().filter(|line| !self.known.contains(*line)).flat_map(|line| [line, "\n"]).collect();
        self.file.write_all(new.as_bytes())
    }
}

/// Recognised by lines for addresses outside of `ranges`, by its owner, and by being younger than the process.
fn own_map_of_program(process: &ProcessFiles, path: &Path, ranges: &RangeSet) -> Option<OwnMap> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).append(true).custom_flags(flags).open(path).ok()?;
    let metadata = file.metadata().ok()?;
    let owner = fs::metadata(process.path("")).ok()?.uid();
    let trusted = metadata.is_file() && metadata.nlink() == 1 && (metadata.uid() == owner || metadata.uid() == 0);
    let written = UNIX_EPOCH + Duration::from_secs(u64::try_from(metadata.mtime()).ok()?);
    if !trusted || written < start_of(process)? {
        return None;
    }
    let mut old = Vec::new();
    (&file).take(MOST_OLD_BYTES).read_to_end(&mut old).ok()?;
    let old = String::from_utf8_lossy(&old);
    let inside = |line: &str| {
        let start = line.split(' ').next().and_then(|start| u64::from_str_radix(start, 16).ok());
        start.is_some_and(|start| ranges.overlaps(AddressRange::sized(Address(start), 1)))
    };
    let (known, others): (Vec<_>, Vec<_>) = old.lines().partition(|line| inside(line));
    let known = known.into_iter().map(str::to_owned).collect();
    (!others.is_empty()).then_some(OwnMap { file, known })
}

/// When the process started, a second or so early: field 22 of `/proc/PID/stat` counts clock ticks since boot.
fn start_of(process: &ProcessFiles) -> Option<SystemTime> {
    let stat = process.text("stat").ok()?;
    // The name, in parentheses, may hold anything; the fields behind it begin with the third.
    let ticks: u64 = stat.rsplit_once(')')?.1.split_whitespace().nth(22 - 3)?.parse().ok()?;
    let per_second = process.auxiliary().ok()?.clock_ticks()?;
    let system = fs::read_to_string("/proc/stat").ok()?;
    let boot: u64 = system.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    let seconds = boot.checked_add(ticks / per_second)?.saturating_sub(1);
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

/// Writes under a name of its own and renames, so that perf never sees half a map.
fn replace(directory: &Directory, name: &str, text: &str) -> io::Result<()> {
    let temporary = directory.entry(&format!("{name}.{}.new", std::process::id()));
    // What an interrupted run of the same number has left; a symbolic link is removed, not followed.
    let _ = fs::remove_file(&temporary);
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&temporary)?;
        file.write_all(text.as_bytes())?;
        fs::rename(&temporary, directory.entry(name))
    };
    write().inspect_err(|_| drop(fs::remove_file(&temporary)))
}
