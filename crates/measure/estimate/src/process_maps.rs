//! The mappings of the traced process, read again when the trace reaches a new one.

use crate::places::{MappedPlace, Places};
use address_space::{Address, AddressRange, ElfImage, PageSize, RangeSet};
use linux::bounded::ELF_HEADERS;
use object::ReadCache;
use process_view::{BoundedFile, ProcessFiles, open_regular_file};
use std::collections::HashMap;
use std::path::Path;

/// Look-ups of unmapped addresses between two readings of maps: the program may have unmapped memory that is still in
/// the trace.
const UNKNOWN_BETWEEN_READINGS: u64 = 1000;

/// The traced process's maps.
#[derive(Debug)]
pub struct ProcessMaps {
    files: ProcessFiles,
    places: Places,
    images: HashMap<String, Option<ElfImage>>,
    /// The ranges that have been mapped or unmapped since maps was read.
    changed: RangeSet,
    unknown: u64,
    executable: String,
    stack: Address,
}

impl ProcessMaps {
    /// Nothing is read yet.
    pub fn of(pid: i32) -> Self {
        Self {
            files: ProcessFiles::of(pid),
            places: Places::default(),
            images: HashMap::new(),
            changed: RangeSet::new(),
            unknown: 0,
            executable: String::new(),
            stack: Address(0),
        }
    }

    /// Names the executable and an address on the first thread's stack.
    pub fn begin(&mut self, executable: &Path, stack: Address) {
        self.executable = executable.to_string_lossy().into_owned();
        self.stack = stack;
    }

    /// Records that the mapping has changed.
    pub fn change(&mut self, range: AddressRange) {
        self.changed.insert(range);
    }

    /// The contents at an address.
    pub fn at(&mut self, address: Address, base_page: PageSize) -> MappedPlace<'_> {
        let page = AddressRange::sized(address.align_down(base_page), base_page.bytes());
        let is_known = self.places.has(address);
        if self.changed.overlaps(page) || !is_known && self.unknown.is_multiple_of(UNKNOWN_BETWEEN_READINGS) {
            self.read(base_page);
        }
        self.unknown = if is_known { 0 } else { self.unknown + 1 };
        self.places.at(address)
    }

    fn read(&mut self, base_page: PageSize) {
        self.changed = RangeSet::new();
        // A process that has ended has no maps: the last maps are still right for the rest of its trace.
        let Some(space) = self.files.maps().ok().filter(|space| !space.mappings().is_empty()) else { return };
        let images = &mut self.images;
        let image_of = |path: &str| images.entry(path.to_owned()).or_insert_with(|| read_image(path)).clone();
        self.places = Places::new(space, &self.executable, self.stack, base_page, image_of);
    }
}

fn read_image(path: &str) -> Option<ElfImage> {
    let file = open_regular_file(Path::new(path)).ok()??;
    let length = file.metadata().ok()?.len();
    ElfImage::parse(&ReadCache::new(BoundedFile::new(&file, length, ELF_HEADERS.bytes()))).ok()
}
