//! Entry points for the fuzz targets of `hostile-input`: readers that no caller outside of this crate needs.

use crate::recipe::Recipe;
use crate::{Layout, SourceKey, record};
use address_space::{ElfImage, PageSize};
use std::io;
use std::path::Path;

/// Size of a huge page, in bytes; small, so that even a small file has many huge pages.
const HUGE: u64 = 16 << 10;
/// Largest image that is filled, in bytes; larger ones are only planned, to save time.
const LARGEST_FILLED: u64 = 1 << 26;

/// Makes the image of an ELF file in memory, for two bases, and reads back its record. Returns how many of the images
/// there can be.
///
/// # Panics
/// An image holds anything but whole huge pages, or its record cannot be read back.
pub fn make_recipe(bytes: &[u8]) -> usize {
    record::read(bytes);
    SourceKey::of_name(&String::from_utf8_lossy(bytes));
    let (Ok(huge), Ok(base)) = (PageSize::new(HUGE), PageSize::new(HUGE / 4)) else { return 0 };
    let Ok(image) = ElfImage::parse(bytes) else { return 0 };
    let source = Path::new("/usr/bin/hostile");
    let mut made = 0;
    for layout in [Layout::most_likely(&image, huge, base), Layout::at(huge, 0)] {
        let Ok(recipe) = Recipe::new(bytes, bytes.len() as u64, layout, base, record::write(source)) else { continue };
        made += 1;
        assert_eq!(recipe.size() % huge.bytes(), 0, "an image of parts of pages");
        if recipe.memory() <= LARGEST_FILLED {
            fill(&recipe, bytes, huge, source);
        }
    }
    made
}

fn fill(recipe: &Recipe, bytes: &[u8], huge: PageSize, source: &Path) {
    let mut page = vec![0; huge.bytes() as usize];
    let mut read = |offset: u64, into: &mut [u8]| -> io::Result<()> {
        into.fill(0);
        let rest = usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..)).unwrap_or_default();
        let length = rest.len().min(into.len());
        into[..length].copy_from_slice(&rest[..length]);
        Ok(())
    };
    for number in recipe.pages() {
        assert!(number * huge.bytes() < recipe.size(), "a page behind the end");
        let filled = recipe.fill(number, &mut page, &mut read);
        assert!(filled.is_ok(), "reading memory fails");
        if number == 0 {
            let found = record::read(&page[record::OFFSET as usize..]);
            assert_eq!(found.as_deref(), Some(source), "the record is not read as it was written");
        }
    }
}
