//! Reports with which pages the kernel backs a process's memory, by object and part.
//!
//! smaps counts whole mappings. Where the kernel keeps several parts in one mapping, as it does for data and bss on the
//! same huge page, they are reported together: a division of such a count would be a guess.

mod lost;
mod parts;
mod processes;
mod ranges;
mod usage;

pub use lost::LostContents;
pub use parts::Part;
pub use processes::{HugeProcess, HugeProcesses, UnreadableProcess, processes_with_huge_pages};
pub use ranges::{RangeCoverage, Shown};
pub use usage::{HugeBytes, HugeKind, Usage};

use crate::{LoadedObjects, ObjectReader, ObservationError, ProcessFiles};
use address_space::{AddressSpace, MappingName, MappingUsage, ObjectRole, PageSize, Protection, RangeSet};
use linux::pages::transparent_huge_page;
use parts::ObjectParts;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// Looks up which parts of an object a mapping shows.
#[cfg(feature = "fuzzing")]
pub(crate) fn parts_shown(object: &address_space::LoadedObject, base_page: PageSize, mapping: &address_space::Mapping) {
    ObjectParts::of(object, base_page).shown_by(mapping);
}

/// Version of the form in which [`Coverage`] and [`HugeProcesses`] are written; grows when a field changes its meaning.
pub const COVERAGE_VERSION: u32 = 1;

/// A process's memory as read at one moment.
#[derive(Clone, Debug)]
pub struct ProcessMemory {
    /// The process.
    pub pid: i32,
    /// The name the kernel knows it by (`/proc/PID/comm`).
    pub name: String,
    /// Every mapping with its smaps entry.
    pub usages: Vec<MappingUsage>,
    /// The objects in it.
    pub objects: LoadedObjects,
    /// The base page of the process.
    pub base_page: PageSize,
    /// The size of transparent huge pages, where the kernel has them.
    pub thp: Option<PageSize>,
}

impl ProcessMemory {
    /// Reads the kernel's report about process `pid`.
    ///
    /// # Errors
    /// [`ObservationError`].
    pub fn read(pid: i32) -> Result<Self, ObservationError> {
        Self::read_by(&mut ObjectReader::new(), pid)
    }

    /// As [`Self::read`], with a reader that keeps the objects of other processes.
    ///
    /// # Errors
    /// [`ObservationError`].
    pub fn read_by(reader: &mut ObjectReader, pid: i32) -> Result<Self, ObservationError> {
        let process = ProcessFiles::of(pid);
        let usages = process.smaps()?;
        let space = AddressSpace::from_mappings(usages.iter().map(|usage| usage.mapping.clone()).collect());
        Ok(Self {
            pid,
            name: process.name()?,
            usages,
            objects: reader.load(pid, &space)?,
            base_page: process.page_size()?,
            thp: transparent_huge_page(),
        })
    }

    /// Returns the mappings that belong to no object, with their kinds.
    pub fn besides_objects(&self) -> impl Iterator<Item = (MemoryKind, &MappingUsage)> {
        let parts: Vec<_> = self.objects.objects.iter().map(|o| ObjectParts::of(o, self.base_page)).collect();
        let others = self.usages.iter().filter(move |usage| owner(&parts, usage).is_none());
        others.map(|usage| (MemoryKind::of(usage).0, usage))
    }

    /// Returns the coverage of this memory by object and part.
    pub fn coverage(&self) -> Coverage {
        let mut coverage = Coverage {
            version: COVERAGE_VERSION,
            pid: self.pid,
            name: self.name.clone(),
            total: Usage::default(),
            objects: Vec::new(),
            memory: Vec::new(),
            not_understood: self.objects.not_understood.iter().map(Into::into).collect(),
        };
        let parts: Vec<_> = self.objects.objects.iter().map(|o| ObjectParts::of(o, self.base_page)).collect();
        let mut of_objects: Vec<BTreeMap<(Vec<Part>, Protection), PartCoverage>> = vec![BTreeMap::new(); parts.len()];
        let mut of_others: BTreeMap<(MemoryKind, Option<String>), Usage> = BTreeMap::new();
        for mapping in &self.usages {
            let usage = Usage::of(mapping, self.thp);
            coverage.total += &usage;
            let Some((index, shown)) = owner(&parts, mapping) else {
                *of_others.entry(MemoryKind::of(mapping)).or_default() += &usage;
                continue;
            };
            let protection = mapping.mapping.protection;
            let part = of_objects[index]
                .entry((shown.clone(), protection))
                .or_insert_with(|| PartCoverage::empty(shown, protection));
            part.ranges.insert(mapping.mapping.range);
            part.usage += &usage;
        }
        coverage.objects = self
            .objects
            .objects
            .iter()
            .zip(of_objects)
            .map(|(object, parts)| {
                let parts: Vec<_> = parts.into_values().collect();
                let mut total = Usage::default();
                parts.iter().for_each(|part| total += &part.usage);
                ObjectCoverage {
                    name: object.name().to_owned(),
                    path: object.path.clone(),
                    role: object.role,
                    total,
                    parts,
                }
            })
            .collect();
        coverage.memory =
            of_others.into_iter().map(|((kind, path), usage)| MemoryCoverage { kind, path, usage }).collect();
        coverage
    }
}

/// The number of the object that a mapping belongs to, and the parts of the object that the mapping shows.
fn owner(objects: &[ObjectParts<'_>], mapping: &MappingUsage) -> Option<(usize, Vec<Part>)> {
    objects.iter().enumerate().find_map(|(index, parts)| Some((index, parts.shown_by(&mapping.mapping)?)))
}

/// The pages that back a process's memory, by object and part. Byte counts are the kernel's.
#[derive(Clone, Debug, Serialize)]
pub struct Coverage {
    /// [`COVERAGE_VERSION`].
    pub version: u32,
    /// The process.
    pub pid: i32,
    /// Its name.
    pub name: String,
    /// All of its memory.
    pub total: Usage,
    /// Its ELF objects, the executable first.
    pub objects: Vec<ObjectCoverage>,
    /// All other memory.
    pub memory: Vec<MemoryCoverage>,
    /// Mapped files that may be objects and could not be read; their memory is counted with the files.
    pub not_understood: Vec<UnknownFile>,
}

/// The pages that back one object.
#[derive(Clone, Debug, Serialize)]
pub struct ObjectCoverage {
    /// Name of the link by which the executable was started, or of the file.
    pub name: String,
    /// Path as maps shows it.
    pub path: String,
    /// Role in the process.
    pub role: ObjectRole,
    /// The whole object.
    pub total: Usage,
    /// Its parts.
    pub parts: Vec<PartCoverage>,
}

/// The pages that back the mappings that show the same parts of an object with the same protection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PartCoverage {
    /// The parts; more than one if the kernel counts them together.
    pub parts: Vec<Part>,
    /// Protection now.
    pub protection: Protection,
    /// Addresses.
    pub ranges: RangeSet,
    /// The kernel's counts.
    pub usage: Usage,
}

impl PartCoverage {
    fn empty(parts: Vec<Part>, protection: Protection) -> Self {
        Self { parts, protection, ranges: RangeSet::new(), usage: Usage::default() }
    }
}

/// The kind of memory that belongs to no object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryKind {
    /// The brk area.
    Heap,
    /// The first thread's stack; stacks of other threads are anonymous memory.
    Stack,
    /// Anonymous memory.
    Anonymous,
    /// Executable anonymous memory: code that the program has generated.
    Jit,
    /// Memory shared by `MAP_SHARED`, System V or memfd.
    Shared,
    /// A file.
    File,
    /// The kernel's own, `[vdso]` for example.
    Kernel,
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Heap => "heap",
            Self::Stack => "stack",
            Self::Anonymous => "anonymous",
            Self::Jit => "jit",
            Self::Shared => "shared",
            Self::File => "file",
            Self::Kernel => "kernel",
        })
    }
}

impl MemoryKind {
    /// The kind of a mapping, and the path if it is a file.
    fn of(usage: &MappingUsage) -> (Self, Option<String>) {
        let mapping = &usage.mapping;
        match &mapping.name {
            MappingName::Heap => (Self::Heap, None),
            MappingName::Stack => (Self::Stack, None),
            MappingName::Special(_) => (Self::Kernel, None),
            MappingName::File { path, deleted } => {
                let nameless = ["/memfd:", "/SYSV", "/dev/zero"].iter().any(|prefix| path.starts_with(prefix));
                if nameless && (*deleted || mapping.shared) {
                    (Self::Shared, None)
                } else {
                    (Self::File, Some(path.clone()))
                }
            }
            _ if mapping.shared => (Self::Shared, None),
            _ if mapping.protection.execute => (Self::Jit, None),
            _ => (Self::Anonymous, None),
        }
    }
}

/// The pages that back memory outside of all objects.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryCoverage {
    /// Its kind.
    pub kind: MemoryKind,
    /// The path of a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The kernel's counts.
    pub usage: Usage,
}

/// A mapped file that could not be read as an object, in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnknownFile {
    /// Path as maps shows it.
    pub path: String,
    /// Has an executable mapping.
    pub executable: bool,
    /// Why.
    pub reason: String,
}

impl From<&crate::NotUnderstood> for UnknownFile {
    fn from(file: &crate::NotUnderstood) -> Self {
        Self { path: file.path.clone(), executable: file.executable, reason: file.reason.to_string() }
    }
}
