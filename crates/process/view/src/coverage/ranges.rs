//! The pages that back each mapping of a process, in the order of addresses.

use super::{MemoryKind, ObjectParts, Part, ProcessMemory, Usage, owner};
use address_space::{AddressRange, Protection};

/// The pages that back one mapping.
#[derive(Clone, Debug)]
pub struct RangeCoverage {
    /// Its addresses.
    pub range: AddressRange,
    /// Its protection.
    pub protection: Protection,
    /// The contents.
    pub shown: Shown,
    /// The kernel's counts.
    pub usage: Usage,
}

/// The contents of a mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// Parts of an ELF object.
    Object {
        /// Name of the link by which the executable was started, or of the file.
        name: String,
        /// Path of the object as maps shows it.
        path: String,
        /// The parts; more than one if the kernel counts them together.
        parts: Vec<Part>,
    },
    /// Memory that belongs to no object.
    Memory {
        /// Its kind.
        kind: MemoryKind,
        /// The path of a file.
        path: Option<String>,
    },
}

impl ProcessMemory {
    /// Returns what backs each mapping.
    pub fn ranges(&self) -> Vec<RangeCoverage> {
        let objects = &self.objects.objects;
        let parts: Vec<_> = objects.iter().map(|object| ObjectParts::of(object, self.base_page)).collect();
        let range = |mapping| {
            let shown = match owner(&parts, mapping) {
                Some((index, parts)) => {
                    Shown::Object { name: objects[index].name().to_owned(), path: objects[index].path.clone(), parts }
                }
                None => {
                    let (kind, path) = MemoryKind::of(mapping);
                    Shown::Memory { kind, path }
                }
            };
            let usage = Usage::of(mapping, self.thp);
            RangeCoverage { range: mapping.mapping.range, protection: mapping.mapping.protection, shown, usage }
        };
        self.usages.iter().map(range).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mapping_of_this_process_shows_something() {
        let memory = ProcessMemory::read(std::process::id() as i32).unwrap();
        let ranges = memory.ranges();
        let shows = |part: Part| {
            let program = std::env::current_exe().unwrap();
            ranges.iter().any(|range| match &range.shown {
                Shown::Object { path, parts, .. } => Some(path.as_str()) == program.to_str() && parts.contains(&part),
                Shown::Memory { .. } => false,
            })
        };
        assert!(shows(Part::Text) && shows(Part::Rodata));
        let is_stack = |range: &RangeCoverage| {
            matches!(range.shown, Shown::Memory { kind: MemoryKind::Stack, .. }) && range.usage.resident > 0
        };
        assert!(ranges.iter().any(is_stack));
        let mut total = Usage::default();
        ranges.iter().for_each(|range| total += &range.usage);
        assert_eq!(total, memory.coverage().total);
    }
}
