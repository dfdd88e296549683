//! Copies of read-only memory that have lost contents.
//!
//! A program may discard memory of a file by `madvise(MADV_DONTNEED)`, or move it away by `mremap(MREMAP_DONTUNMAP)`; when it
//! touches it again, the contents come from the file. A lifted copy has no file behind it and reads as zeros then, without an error (madvise(2)).

use super::ProcessMemory;
use crate::ProcessFiles;
use crate::loading::open_object;
use crate::opening::MappedFile;
use address_space::{AddressRange, AddressSpace, LoadSegment, LoadedObject, MappingUsage, RangeSet};
use linux::pagemap::Pagemap;
use serde::Serialize;
use std::os::unix::fs::FileExt;

/// Memory of an object that no longer has the contents of its file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LostContents {
    /// Path of the object as maps shows it.
    pub path: String,
    /// Addresses.
    pub ranges: RangeSet,
}

impl ProcessMemory {
    /// Returns the contents that copies of the objects' read-only memory have lost: pages that are not present,
    /// although the file has other bytes than zeros. Also empty if the kernel does not report which pages are present.
    pub fn lost(&self) -> Vec<LostContents> {
        let Ok(pagemap) = Pagemap::open(self.pid, self.base_page) else { return Vec::new() };
        let process = ProcessFiles::of(self.pid);
        let space = AddressSpace::from_mappings(self.usages.iter().map(|usage| usage.mapping.clone()).collect());
        let mut lost = Vec::new();
        for object in &self.objects.objects {
            let missing = self.missing(object, &pagemap);
            let file = (!missing.is_empty()).then(|| open_object(&process, &space, object)).flatten();
            let Some(file) = file else { continue };
            let ranges: RangeSet =
                missing.iter().flat_map(|(segment, range)| self.not_zero(&file, object, segment, *range)).collect();
            if !ranges.is_empty() {
                lost.push(LostContents { path: object.path.clone(), ranges });
            }
        }
        lost
    }

    /// The parts of an object's copies that no page backs, each with its segment.
    fn missing<'a>(&self, object: &'a LoadedObject, pagemap: &Pagemap) -> Vec<(&'a LoadSegment, AddressRange)> {
        let mut missing = Vec::new();
        for segment in object.image.segments.iter().filter(|segment| !segment.protection.write) {
            let in_file = segment.file_memory().shifted(object.bias);
            for usage in self.usages.iter().filter(|usage| is_copy(usage) && usage.mapping.range.overlaps(in_file)) {
                let copy = usage.mapping.range.intersect(in_file.widened(self.base_page));
                // A copy is made with all its pages: if all are still present, no contents are lost.
                if usage.resident_with_hugetlb() >= usage.mapping.range.len() {
                    continue;
                }
                let Ok(there) = pagemap.with_contents(copy) else { continue };
                let mut gaps = RangeSet::from_iter([copy]);
                there.iter().for_each(|range| gaps.remove(range));
                missing.extend(gaps.iter().map(|range| (segment, range)));
            }
        }
        missing
    }

    /// The base pages of `range` that hold anything but zeros in the file.
    fn not_zero(
        &self,
        file: &MappedFile,
        object: &LoadedObject,
        segment: &LoadSegment,
        range: AddressRange,
    ) -> Vec<AddressRange> {
        let in_file = segment.file_memory().shifted(object.bias);
        let mut page = vec![0; self.base_page.bytes() as usize];
        let mut holds_something = |range: AddressRange| {
            let shown = range.intersect(in_file);
            let bytes = &mut page[..shown.len() as usize];
            let offset = segment.offset + (shown.start() - in_file.start());
            file.file.read_exact_at(bytes, offset).is_ok() && bytes.iter().any(|&byte| byte != 0)
        };
        range.pages(self.base_page).filter(|&page| holds_something(page)).collect()
    }
}

/// True for memory that is mapped from no file, and only read.
fn is_copy(usage: &MappingUsage) -> bool {
    let mapping = &usage.mapping;
    let no_file = mapping.is_plain_anonymous() || mapping.name == address_space::MappingName::HugetlbAnonymous;
    no_file && !mapping.shared && mapping.protection.read && !mapping.protection.write
}
