//! Writes a perf map to the path at which perf reads it.
//!
//! perf reads `/tmp/perf-PID.map` in the target's mount namespace, with the PID that the target has in its own
//! innermost PID namespace, and only if the file belongs to root or to the user who runs perf (or with `--force`).
//!
//! The target chooses its `/tmp`, by a separate mount namespace, and the names of its symbols. So the map is written
//! with the target's own rights to files and without any capability, in a sticky directory only: only files that the
//! target itself could write are created, replaced or extended. No request is sent to a file system that may be a
//! program of the target's (FUSE). A thread waits for other file systems that do not answer, at most for [`LIMIT`].

use super::PerfMapError;
use super::directory::{TemporaryDirectory, descriptor_of_root};
use crate::ProcessFiles;
use crate::owner::Owner;
use crate::served::Servers;
use crate::symbols::SymbolFiles;
use address_space::{Address, AddressRange, ProcessStat, RangeSet};
use linux::bounded::{LineReader, PERF_MAP_OF_PROGRAM};
use linux::file_rights::FileRights;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The longest time that writing a map may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Where a map was written.
#[derive(Debug)]
pub(crate) struct Placed {
    /// The path by which perf finds it, as seen from here.
    pub path: PathBuf,
    /// The user it belongs to.
    pub owner: u32,
}

/// The place for the map of one process, and a thread that has taken on the process's rights. This program can give up
/// every right to write before it reads the process.
#[derive(Debug)]
pub(crate) struct MapPlace {
    /// `/proc/PID`, held open: a later process with the same PID is not reached by it.
    files: File,
    path: PathBuf,
    owner: Owner,
    writer: Writer,
}

/// A map for a [`MapPlace`].
#[derive(Debug)]
struct Map {
    /// When the target started, where that is known.
    started: Option<SystemTime>,
    ranges: RangeSet,
    text: String,
}

/// Data of the writing thread.
#[derive(Debug)]
struct Writer {
    root: OwnedFd,
    is_own_namespace: bool,
    servers: Servers,
    /// The target's directory of temporary files, as messages show it.
    shown: PathBuf,
    name: String,
    user: u32,
}

impl MapPlace {
    /// Finds the place and starts the thread.
    pub fn of(process: &ProcessFiles) -> Result<Self, PerfMapError> {
        let files = File::open(process.path("")).map_err(|error| process.explain(&process.path(""), error))?;
        let (root, status) =
            descriptor_of_root(&files).map_err(|error| process.explain(&process.path("root"), error))?;
        let namespace = |path: &Path| fs::read_link(path).ok();
        let own = namespace(Path::new("/proc/self/ns/mnt"));
        let rights = FileRights::of_status(&status).ok_or(PerfMapError::Rights { pid: process.pid() })?;
        let servers = Servers::of(process);
        servers.read();
        let writer = Writer {
            root,
            is_own_namespace: own.is_some() && namespace(&process.path("ns/mnt")) == own,
            servers,
            shown: process.path("root").join("tmp"),
            name: format!("perf-{}.map", innermost_pid(&status).unwrap_or(process.pid())),
            user: rights.user,
        };
        let path = writer.shown.join(&writer.name);
        let refused = |source| PerfMapError::Write { path: writer.shown.clone(), source };
        let owner = Owner::with(rights).map_err(refused)?;
        Ok(Self { files, path, owner, writer })
    }

    /// The files of symbols that the process may read.
    pub fn symbol_files(&self, process: &ProcessFiles) -> SymbolFiles {
        SymbolFiles::for_process(process, self.owner.clone())
    }

    /// Writes the map of the process.
    ///
    /// A map that the program itself keeps for its generated code stays: lines are added. Any other file of the
    /// program's is replaced.
    pub fn put(self, process: &ProcessFiles, text: String, ranges: &RangeSet) -> Result<Placed, PerfMapError> {
        // The data are this process's only if it has existed all the time.
        descriptor_of_root(&self.files).map_err(|error| process.explain(&process.path("root"), error))?;
        let map = Map { started: start_of(process), ranges: ranges.clone(), text };
        let (writer, path) = (self.writer, self.path);
        let written = self.owner.act(LIMIT, move || writer.write(&map));
        written.unwrap_or(Err(PerfMapError::TookTooLong { path, seconds: LIMIT.as_secs() }))
    }
}

impl Writer {
    fn write(&self, map: &Map) -> Result<Placed, PerfMapError> {
        let directory = TemporaryDirectory::open(&self.root, self.is_own_namespace, &self.shown, &self.servers)?;
        let path = directory.shown.join(&self.name);
        let error = |source| PerfMapError::Write { path: path.clone(), source };
        let owner = self.user;
        match self.own_map_of_program(&directory, map) {
            Some((mut file, more)) => file.write_all(more.as_bytes()).map_err(error)?,
            None => {
                if let Some(other) = directory.owner_of(&self.name).filter(|&other| other != owner) {
                    return Err(PerfMapError::OthersFile { path, owner: other });
                }
                directory.replace(&self.name, map.text.as_bytes()).map_err(error)?;
            }
        }
        Ok(Placed { path, owner })
    }

    /// The map that the running program keeps for code it generates, and the lines that are to be added to it. It is
    /// recognised by lines for addresses outside of the ranges, by its owner, and by being younger than the process.
    fn own_map_of_program(&self, directory: &TemporaryDirectory, map: &Map) -> Option<(File, String)> {
        let file = directory.open_to_add(&self.name)?;
        let metadata = file.metadata().ok()?;
        let is_its_own = metadata.is_file() && metadata.nlink() == 1 && metadata.uid() == self.user;
        let written = UNIX_EPOCH + Duration::from_secs(u64::try_from(metadata.mtime()).ok()?);
        if !is_its_own || written < map.started? {
            return None;
        }
        let mut missing: HashSet<&str> = map.text.lines().collect();
        let mut has_others = false;
        let mut lines = LineReader::new(&file, PERF_MAP_OF_PROGRAM);
        while let Some(line) = lines.next_line().ok()? {
            let line = String::from_utf8_lossy(line);
            match map.is_of_ranges(&line) {
                true => drop(missing.remove(line.as_ref())),
                false => has_others = true,
            }
        }
        let more = || map.text.lines().filter(|line| missing.contains(line)).flat_map(|line| [line, "\n"]).collect();
        has_others.then(|| (file.try_clone().ok(), more())).and_then(|(file, more)| Some((file?, more)))
    }
}

impl Map {
    /// True for a line that begins with an address of the ranges.
    fn is_of_ranges(&self, line: &str) -> bool {
        let start = line.split(' ').next().and_then(|start| u64::from_str_radix(start, 16).ok());
        start.is_some_and(|start| self.ranges.overlaps(AddressRange::sized(Address(start), 1)))
    }
}

/// The number of the process in its own PID namespace: the last of `NStgid` (Linux 4.1).
fn innermost_pid(status: &str) -> Option<i32> {
    status.lines().find_map(|line| line.strip_prefix("NStgid:"))?.split_whitespace().last()?.parse().ok()
}

/// When the process started, a second or so early.
fn start_of(process: &ProcessFiles) -> Option<SystemTime> {
    let stat = process.text("stat").ok()?;
    let ticks = ProcessStat::parse(&stat)?.start_time()?;
    let per_second = process.auxiliary().ok()?.clock_ticks()?;
    let system = fs::read_to_string("/proc/stat").ok()?;
    let boot: u64 = system.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    let seconds = boot.checked_add(ticks / per_second)?.saturating_sub(1);
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}
