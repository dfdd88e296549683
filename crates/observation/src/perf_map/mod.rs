//! Names for perf of code that no longer stands on its file.
//!
//! perf finds the symbols of a mapping through the path in maps. A range that was lifted to anonymous or hugetlb memory
//! has none, and perf falls back to `/tmp/perf-PID.map`, which it otherwise reads for code that a JIT generates.

mod layout;
mod placement;

pub use layout::{NamedObject, render};

use crate::loading::open_object;
use crate::symbols::{Symbol, SymbolSource, read_symbols};
use crate::{ObservationError, ProcessFiles, load_objects};
use address_space::{AddressSpace, LoadedObject, MappingName, PageSize, RangeSet};
use serde::Serialize;
use std::io;
use std::path::PathBuf;

/// Why no perf map was written.
#[derive(Debug, thiserror::Error)]
pub enum PerfMapError {
    /// The process cannot be looked at.
    #[error(transparent)]
    Process(#[from] ObservationError),
    /// The file cannot be written.
    #[error("{path} cannot be written")]
    Write {
        /// Where perf would look for it.
        path: PathBuf,
        /// What the kernel says.
        source: io::Error,
    },
}

/// What was written.
#[derive(Clone, Debug, Serialize)]
pub struct PerfMapSummary {
    /// The file, as seen from here; `None` where every executable range of the process still stands on its file, so
    /// that perf needs no map.
    pub path: Option<PathBuf>,
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

/// Writes the perf map of process `pid` for every executable range of an object that is no file mapping any more.
///
/// # Errors
/// [`PerfMapError`]. An object whose symbols cannot be read is no error: its code is named by offsets.
pub fn write(pid: i32) -> Result<PerfMapSummary, PerfMapError> {
    let process = ProcessFiles::of(pid);
    let space = process.maps()?;
    let base_page = process.page_size()?;
    let loaded = load_objects(pid, &space)?.objects;
    let mut summary = PerfMapSummary { path: None, symbols: 0, ranges: RangeSet::new(), objects: Vec::new() };
    let mut found: Vec<(&LoadedObject, Vec<Symbol>, RangeSet)> = Vec::new();
    for object in &loaded {
        let ranges = lifted_code(object, &space, base_page);
        if ranges.is_empty() {
            continue;
        }
        let (source, symbols) = names_of(&process, &space, object, &ranges);
        let bytes = ranges.bytes();
        summary.objects.push(ObjectNames { path: object.path.clone(), source, symbols: symbols.len(), bytes });
        ranges.iter().for_each(|range| summary.ranges.insert(range));
        found.push((object, symbols, ranges));
    }
    if summary.ranges.is_empty() {
        return Ok(summary);
    }
    let named: Vec<_> = found.iter().map(|(object, symbols, ranges)| NamedObject { object, symbols, ranges }).collect();
    let text = render(&named);
    summary.symbols = text.lines().count();
    summary.path = Some(placement::place(&process, &text, &summary.ranges)?);
    Ok(summary)
}

/// The names of the code in `ranges` of the process; none where the object's file cannot be opened any more.
fn names_of(
    process: &ProcessFiles,
    space: &AddressSpace,
    object: &LoadedObject,
    ranges: &RangeSet,
) -> (SymbolSource, Vec<Symbol>) {
    let Some(file) = open_object(process, space, object) else { return (SymbolSource::Nothing, Vec::new()) };
    let in_file = ranges.iter().map(|range| range.shifted(object.bias.wrapping_neg())).collect();
    read_symbols(process, object, &file, &in_file)
}

/// Executable memory in the object's pages that is no mapping of a file.
fn lifted_code(object: &LoadedObject, space: &AddressSpace, base_page: PageSize) -> RangeSet {
    let pages = object.extent().widened(base_page);
    let without_file = |name: &MappingName| {
        matches!(name, MappingName::Anonymous | MappingName::Named(_) | MappingName::HugetlbAnonymous)
    };
    let mappings = space.overlapping(pages).iter();
    mappings.filter(|m| m.protection.execute && without_file(&m.name)).map(|m| m.range.intersect(pages)).collect()
}
