//! Which part of an object a mapping shows.

use address_space::{AddressRange, LoadedObject, Mapping, MappingName, PageSize, Protection};
use serde::Serialize;
use std::fmt;

/// A part of an object, in the usual order in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Read-only data and headers.
    Rodata,
    /// Executable code.
    Text,
    /// Data that is read-only once relocated (`PT_GNU_RELRO`).
    Relro,
    /// Initialised writable data.
    Data,
    /// Zero-initialised writable data behind the last page of data.
    Bss,
    /// Addresses between segments that the object keeps for itself.
    Gap,
    /// The brk area, where the kernel keeps it in one mapping with the object's end.
    Heap,
    /// Other memory that the kernel keeps in one mapping with the object's.
    Beyond,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rodata => "rodata",
            Self::Text => "text",
            Self::Relro => "relro",
            Self::Data => "data",
            Self::Bss => "bss",
            Self::Gap => "gap",
            Self::Heap => "heap",
            Self::Beyond => "beyond",
        })
    }
}

/// An object's parts in whole base pages, at their addresses in the process.
#[derive(Debug)]
pub(crate) struct ObjectParts<'a> {
    object: &'a LoadedObject,
    extent: AddressRange,
    parts: Vec<(Part, AddressRange)>,
}

impl<'a> ObjectParts<'a> {
    pub fn of(object: &'a LoadedObject, base_page: PageSize) -> Self {
        let mut parts = Vec::new();
        for segment in &object.image.segments {
            let all = segment.memory.shifted(object.bias).widened(base_page);
            if segment.protection.execute || !segment.protection.write {
                let part = if segment.protection.execute { Part::Text } else { Part::Rodata };
                parts.push((part, all));
                continue;
            }
            // In a segment with bss, the page that contains both is a page of the file.
            let from_file = match segment.file_size {
                0 => AddressRange::new(all.start(), all.start()),
                _ => segment.file_memory().shifted(object.bias).widened(base_page),
            };
            let relro =
                object.relro(base_page).map_or(AddressRange::new(all.start(), all.start()), |r| r.intersect(all));
            parts.push((Part::Relro, relro));
            parts.extend(from_file.without(relro).map(|range| (Part::Data, range)));
            let bss = AddressRange::new(from_file.end(), all.end());
            parts.extend(bss.without(relro).map(|range| (Part::Bss, range)));
        }
        parts.retain(|(_, range)| !range.is_empty());
        Self { object, extent: object.extent().widened(base_page), parts }
    }

    /// The parts that `mapping` shows, if most of its bytes belong to this object.
    pub fn shown_by(&self, mapping: &Mapping) -> Option<Vec<Part>> {
        let inside = self.extent.intersect(mapping.range).len();
        if inside == 0 || inside <= mapping.range.len() / 2 {
            return None;
        }
        let mut shown: Vec<Part> =
            self.parts.iter().filter(|(_, range)| range.overlaps(mapping.range)).map(|&(part, _)| part).collect();
        if shown.is_empty() {
            let own = mapping.path() == Some(self.object.path.as_str()) || mapping.protection == Protection::NONE;
            return own.then(|| vec![Part::Gap]);
        }
        if inside < mapping.range.len() {
            shown.push(if mapping.name == MappingName::Heap { Part::Heap } else { Part::Beyond });
        }
        shown.sort_unstable();
        shown.dedup();
        Some(shown)
    }
}
