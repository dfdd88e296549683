//! Entry points for the fuzz targets of `hostile-input`: readers that no caller outside of this crate needs.

use crate::coverage::parts_shown;
use crate::perf_map::{NamedObject, render};
use crate::symbols;
use address_space::{AddressRange, AddressSpace, ElfImage, LoadedObject, ObjectRole, PageSize, RangeSet};
use linux::bounded::PERF_MAP;

/// Reads all parts of an ELF file that [`crate::perf_map::write`] reads, and assigns the names to `range`. Addresses
/// are as in the file. Returns the number of names.
///
/// # Panics
/// A line of the map cannot be read by perf.
pub fn read_symbols(bytes: &[u8], range: AddressRange) -> usize {
    let ranges: RangeSet = [range].into_iter().collect();
    let found = symbols::read_everything(bytes, &ranges);
    let Ok(image) = ElfImage::parse(bytes) else { return found.len() };
    let object = loaded(&image, 0);
    let text = render(&[NamedObject { object: &object, symbols: &found, ranges: &ranges }], PERF_MAP);
    assert!(
        text.iter().flat_map(|text| text.lines()).all(|line| line.split(' ').count() >= 3),
        "a line that perf cannot read"
    );
    found.len()
}

/// Compares an image at `bias` with the mappings of a process, as [`crate::load_objects`] and [`crate::Coverage`] do.
pub fn place(image: &ElfImage, bias: u64, space: &AddressSpace, base_page: PageSize) {
    let object = loaded(image, bias);
    if object.is_whole(space) {
        space.mappings().iter().for_each(|mapping| parts_shown(&object, base_page, mapping));
    }
}

fn loaded(image: &ElfImage, bias: u64) -> LoadedObject {
    LoadedObject { path: "/hostile".to_owned(), link: None, role: ObjectRole::SharedObject, bias, image: image.clone() }
}
