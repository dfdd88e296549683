//! Reads the sizes of an image's pages from the kernel.

use crate::{Image, StoreError};
use address_space::{Address, AddressRange, PageSize, RangeSet};
use linux::file_mapping::FileMapping;
use process_view::{ObservationError, ProcessFiles};
use serde::Serialize;
use std::fs::File;

/// Huge pages of a process that maps an image, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ImageCoverage {
    /// Huge pages that hold nothing but read-only segments.
    pub mappable: u64,
    /// The part of `mappable` that the kernel maps by huge pages.
    pub huge: u64,
}

impl Image {
    /// Maps the mappable parts of the image and reads from smaps the size of the pages that map them.
    ///
    /// # Errors
    /// [`StoreError::Io`], also on Linux before 5.14, which does not show the coverage.
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

    /// Numbers of the huge pages that contain only read-only segments.
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

/// Returns the huge bytes that smaps of this process reports for a file's mappings in `range`.
fn huge_bytes(range: AddressRange, inode: u64) -> Result<u64, ObservationError> {
    let usages = ProcessFiles::own().smaps()?;
    let of_file = usages.iter().filter(|u| u.mapping.range.overlaps(range) && u.mapping.inode == inode);
    Ok(of_file.map(|usage| usage.huge()).sum())
}

/// Collapses ordinary pages of the image into huge ones. If that fails, the image is still usable, and its coverage
/// shows the result.
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
