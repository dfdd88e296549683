//! Reads from the kernel on which pages an image is.

use crate::{Image, StoreError};
use address_space::{Address, AddressRange, PageSize, RangeSet};
use linux::file_mapping::FileMapping;
use process_view::{ObservationError, ProcessFiles};
use serde::Serialize;
use std::fs::File;

/// What a process that maps an image gets. Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ImageCoverage {
    /// Huge pages that hold nothing but read-only segments.
    pub mappable: u64,
    /// Bytes of these that the kernel maps by huge pages.
    pub huge: u64,
}

impl Image {
    /// Maps the mappable parts of the image and reads in smaps by which pages the kernel maps them.
    ///
    /// # Errors
    /// [`StoreError::Io`], also on Linux before 5.14, where the coverage cannot be determined.
    pub fn coverage(&self) -> Result<ImageCoverage, StoreError> {
        let size = self.layout().page_size();
        let mut coverage = ImageCoverage { mappable: 0, huge: 0 };
        for (offset, length) in runs(self.mappable_pages(), size) {
            let mapping = FileMapping::readable(self.file(), offset, length, size)
                .and_then(|mapping| mapping.populate().map(|()| mapping))
                .map_err(|error| StoreError::io("mapping an image", error))?;
            coverage.mappable += length;
            coverage.huge += huge_bytes(mapping.range(), self.inode)
                .map_err(|error| StoreError::io("reading smaps", std::io::Error::other(error)))?
                .min(length);
        }
        Ok(coverage)
    }

    /// Numbers of the huge pages that lie wholly in read-only segments.
    pub(crate) fn mappable_pages(&self) -> impl Iterator<Item = u64> {
        let size = self.layout().page_size();
        let mut offsets = RangeSet::new();
        for segment in &self.segments {
            offsets.insert(AddressRange::sized(Address(segment.offset), segment.memory.len()));
        }
        let whole: Vec<_> = offsets.iter().map(|range| range.whole_pages(size)).collect();
        whole.into_iter().flat_map(move |range| range.start().0 / size.bytes()..range.end().0 / size.bytes())
    }
}

/// Returns what smaps of this process reports for the mappings of a file in `range`.
fn huge_bytes(range: AddressRange, inode: u64) -> Result<u64, ObservationError> {
    let usages = ProcessFiles::own().smaps()?;
    let of_file = usages.iter().filter(|u| u.mapping.range.overlaps(range) && u.mapping.inode == inode);
    Ok(of_file.map(|usage| usage.huge()).sum())
}

/// Collapses ordinary pages of the image into huge ones. Where that fails the image still serves, and its coverage
/// shows how far.
pub(crate) fn collapse(file: &File, pages: impl Iterator<Item = u64>, size: PageSize) {
    for (offset, length) in runs(pages, size) {
        if let Ok(mapping) = FileMapping::readable(file, offset, length, size) {
            let _ = mapping.collapse();
        }
    }
}

/// Runs of successive pages, as offsets and lengths in bytes.
pub(crate) fn runs(pages: impl Iterator<Item = u64>, size: PageSize) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for page in pages {
        let offset = page * size.bytes();
        match runs.last_mut() {
            Some((start, length)) if *start + *length == offset => *length += size.bytes(),
            _ => runs.push((offset, size.bytes())),
        }
    }
    runs
}
