//! Writes symbol names for perf, of code that is no longer mapped from its file.
//!
//! perf finds the symbols of a mapping through the path in maps. A range that was lifted to anonymous or hugetlb memory
//! has none, and perf falls back to `/tmp/perf-PID.map`, which it otherwise reads for code that a JIT generates.

mod directory;
mod layout;
mod placement;

pub(crate) use layout::named_ranges;
pub use layout::{NamedObject, render};

use crate::loading::open_object;
use crate::symbols::{Symbol, SymbolFiles, SymbolSource, read_symbols};
use crate::{ObservationError, ProcessFiles, Served, load_objects};
use address_space::{AddressSpace, LoadedObject, MappingName, PageSize, RangeSet};
use linux::bounded::{Budget, PERF_MAP, SYMBOLS};
use serde::Serialize;
use std::io;
use std::path::PathBuf;

/// Why no perf map was written.
#[derive(Debug, thiserror::Error)]
pub enum PerfMapError {
    /// The process cannot be read.
    #[error(transparent)]
    Process(#[from] ObservationError),
    /// The file cannot be written.
    #[error("{path} cannot be written")]
    Write {
        /// The path at which perf reads the map.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel does not report the process's rights.
    #[error("/proc/{pid}/status does not show the user and groups of the process")]
    Rights {
        /// The process.
        pid: i32,
    },
    /// The directory is on a file system that a user's program serves.
    #[error("{path}: {served}")]
    Served {
        /// The process's `/tmp`.
        path: PathBuf,
        /// The server.
        served: Served,
    },
    /// The directory is not one that users share safely, which each process may choose for itself.
    #[error("{path} is not a sticky directory, as /tmp is everywhere (`chmod 1777`); nothing is written there")]
    NotSticky {
        /// The process's `/tmp`.
        path: PathBuf,
    },
    /// Another user's file is at the map's path.
    #[error("{path} belongs to user {owner} and not to the process's; remove it")]
    OthersFile {
        /// The path at which perf reads the map.
        path: PathBuf,
        /// The file's owner.
        owner: u32,
    },
    /// The file system does not answer.
    #[error("{path} could not be written within {seconds} s")]
    TookTooLong {
        /// The path at which perf reads the map.
        path: PathBuf,
        /// The bound.
        seconds: u64,
    },
    /// The symbols do not belong to a sound program.
    #[error("the names of the process's code take more than {} MiB; no map is written", PERF_MAP.bytes() >> 20)]
    TooLarge,
    /// The kernel gives no thread for reading the symbols.
    #[error("no thread could be started that reads the symbols")]
    NoThread(#[source] io::Error),
    /// The thread that reads the symbols has panicked.
    #[error("the symbols could not be read")]
    ReaderEnded,
}

/// The written map.
#[derive(Clone, Debug, Serialize)]
pub struct PerfMapSummary {
    /// The file, as seen from this process; `None` where every executable range of the process is still mapped from its
    /// file, so that perf needs no map.
    pub path: Option<PathBuf>,
    /// The user whom the file belongs to, the one of the process: perf reads the map of another user than its own or root
    /// only with `--force`.
    pub owner: Option<u32>,
    /// Lines written.
    pub symbols: usize,
    /// The executable ranges that have no file.
    pub ranges: RangeSet,
    /// The objects that they belong to.
    pub objects: Vec<ObjectNames>,
}

/// Where one object's names come from.
#[derive(Clone, Debug, Serialize)]
pub struct ObjectNames {
    /// Path as maps shows it.
    pub path: String,
    /// The source of the names.
    pub source: SymbolSource,
    /// Names found, before those for the same code are joined.
    pub symbols: usize,
    /// Bytes of code to be named.
    pub bytes: u64,
}

/// Where the perf map of a process goes. Opening it needs the right to act as the user of the process. Reading the
/// process and writing the map afterwards do not: the calling thread may give that right up in between. The process can read
/// the map, so that only names are in it which the process itself can read.
#[derive(Debug)]
pub struct Destination {
    process: ProcessFiles,
    place: Result<placement::MapPlace, PerfMapError>,
}

impl Destination {
    /// The destination of the map of process `pid`. An obstacle is an error only if there is a map to write.
    pub fn of(pid: i32) -> Self {
        let process = ProcessFiles::of(pid);
        let place = placement::MapPlace::of(&process);
        Self { process, place }
    }

    /// Writes the perf map for every executable range of an object that is no longer a file mapping.
    ///
    /// # Errors
    /// [`PerfMapError`]. An object whose symbols cannot be read is no error: its code is named by offsets.
    pub fn write(self) -> Result<PerfMapSummary, PerfMapError> {
        let files = self.place.as_ref().ok().map(|place| place.symbol_files(&self.process));
        let (mut summary, text) = name_lifted_code(&self.process, files.as_ref())?;
        if let Some(text) = text {
            let placed = self.place?.put(&self.process, text, &summary.ranges)?;
            (summary.path, summary.owner) = (Some(placed.path), Some(placed.owner));
        }
        Ok(summary)
    }
}

/// The summary without a path, and the text of the map; `None` where no map is needed.
/// Where there is no place for the map, no names are read.
fn name_lifted_code(
    process: &ProcessFiles,
    files: Option<&SymbolFiles>,
) -> Result<(PerfMapSummary, Option<String>), PerfMapError> {
    let space = process.maps()?;
    let base_page = process.page_size()?;
    let loaded = load_objects(process.pid(), &space)?.objects;
    let mut summary =
        PerfMapSummary { path: None, owner: None, symbols: 0, ranges: RangeSet::new(), objects: Vec::new() };
    let mut found: Vec<(&LoadedObject, Vec<Symbol>, RangeSet)> = Vec::new();
    let mut budget = SYMBOLS.budget();
    for object in &loaded {
        let ranges = lifted_code(object, &space, base_page);
        if ranges.is_empty() {
            continue;
        }
        let names = files.map(|files| names_of(process, files, &space, object, &ranges, &mut budget));
        let (source, symbols) = names.unwrap_or((SymbolSource::Nothing, Vec::new()));
        let bytes = ranges.bytes();
        summary.objects.push(ObjectNames { path: object.path.clone(), source, symbols: symbols.len(), bytes });
        ranges.iter().for_each(|range| summary.ranges.insert(range));
        found.push((object, symbols, ranges));
    }
    if summary.ranges.is_empty() {
        return Ok((summary, None));
    }
    let named: Vec<_> = found.iter().map(|(object, symbols, ranges)| NamedObject { object, symbols, ranges }).collect();
    let text = render(&named, PERF_MAP).ok_or(PerfMapError::TooLarge)?;
    summary.symbols = text.lines().count();
    Ok((summary, Some(text)))
}

/// The names of the code in `ranges` of the process; none if the object's file can no longer be opened.
fn names_of(
    process: &ProcessFiles,
    files: &SymbolFiles,
    space: &AddressSpace,
    object: &LoadedObject,
    ranges: &RangeSet,
    budget: &mut Budget,
) -> (SymbolSource, Vec<Symbol>) {
    let Some(file) = open_object(process, space, object) else { return (SymbolSource::Nothing, Vec::new()) };
    let in_file = ranges.iter().map(|range| range.shifted(object.bias.wrapping_neg())).collect();
    read_symbols(files, object, &file, &in_file, budget)
}

/// Executable memory in the object's pages that is not a mapping of a file.
fn lifted_code(object: &LoadedObject, space: &AddressSpace, base_page: PageSize) -> RangeSet {
    let pages = object.extent().widened(base_page);
    let without_file = |name: &MappingName| {
        matches!(name, MappingName::Anonymous | MappingName::Named(_) | MappingName::HugetlbAnonymous)
    };
    let mappings = space.overlapping(pages).iter();
    mappings.filter(|m| m.protection.execute && without_file(&m.name)).map(|m| m.range.intersect(pages)).collect()
}
