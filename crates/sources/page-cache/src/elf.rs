//! The parts of an ELF file that are mapped.

use address_space::ElfImage;
use linux::bounded::ELF_HEADERS;
use object::ReadCache;
use process_view::BoundedFile;
use std::fs::File;
use std::ops::Range;

/// The offsets from the first to the last byte of an ELF file that its segments load; `None` for other files. Debug
/// information, which can be much larger, is after them.
pub fn loaded_offsets(file: &File) -> Option<Range<u64>> {
    let length = file.metadata().ok()?.len();
    let image = ElfImage::parse(&ReadCache::new(BoundedFile::new(file, length, ELF_HEADERS.bytes()))).ok()?;
    let loaded = image.segments.iter().filter(|segment| segment.file_size > 0);
    let start = loaded.clone().map(|segment| segment.offset).min()?;
    let end = loaded.map(|segment| segment.offset.saturating_add(segment.file_size)).max()?;
    Some(start..end.min(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_lie_in_the_file_and_other_files_have_none() {
        let own = File::open(std::env::current_exe().unwrap()).unwrap();
        let found = loaded_offsets(&own).unwrap();
        assert!(found.start == 0 && found.end < own.metadata().unwrap().len(), "{found:?}");
        assert_eq!(loaded_offsets(&File::open("/proc/self/status").unwrap()), None);
    }
}
