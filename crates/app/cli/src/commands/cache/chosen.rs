//! Files that are chosen to be prepared.

use address_space::PageSize;
use page_cache::loaded_offsets;
use std::fs::File;
use std::path::PathBuf;

/// A file to be prepared.
pub struct Chosen {
    /// The path, for messages.
    pub path: PathBuf,
    /// The open file.
    pub file: File,
}

/// True for an ELF file of whose loaded bytes some fill a huge page.
pub fn is_large_program(file: &File, huge: PageSize) -> bool {
    loaded_offsets(file)
        .is_some_and(|offsets| offsets.start.next_multiple_of(huge.bytes()) + huge.bytes() <= offsets.end)
}
