//! The parts of a process, and of an image at one base, that the page cache can show.

use crate::base::{Coverable, pieces_at};
use crate::pieces::file_pages_of;
use crate::{BaseChoice, CachedFile, Kind, Kinds, Piece, ProcessFacts, Reason};
use address_space::{Address, AddressRange, ElfImage, PageSize};
use alloc::vec::Vec;
use core::ops::Range;

/// The place in a file's huge folios that a huge page of a process shows.
pub(crate) struct CachedPlace<'a> {
    pub file: &'a CachedFile,
    /// The mapping that contains it.
    pub mapping: AddressRange,
    /// Address less offset, the same in all of a mapping; wraps.
    pub distance: u64,
}

/// Returns the place in a file's huge folios that a huge page of the process shows, or why it cannot be mapped from
/// there.
pub(crate) fn cached_place(
    process: &ProcessFacts,
    page: AddressRange,
    size: PageSize,
) -> Result<CachedPlace<'_>, Reason> {
    let mapping = process.space.find(page.start()).filter(|mapping| !mapping.shared).ok_or(Reason::NoCachedFile)?;
    // One entry of the page table belongs to one mapping.
    if !mapping.range.covers(page) {
        return Err(Reason::NoCachedFile);
    }
    let file = process.cached.iter().find(|file| file.is_shown_by(mapping)).ok_or(Reason::NoCachedFile)?;
    let distance = mapping.range.start().0.wrapping_sub(mapping.offset);
    let bytes = distance % size.bytes();
    if bytes != 0 {
        // No base was chosen for a file that stayed small: the reason for that is the first.
        return Err(match &file.shortfall {
            Some(shortfall) if file.huge.is_empty() => Reason::SmallFolios(Some(shortfall.clone())),
            _ => Reason::NotCongruent { bytes, size },
        });
    }
    let offset = page.start().0.wrapping_sub(distance);
    if !offset.checked_add(size.bytes()).is_some_and(|end| file.holds(&(offset..end))) {
        return Err(Reason::SmallFolios(file.shortfall.clone()));
    }
    if process.changed.overlaps(page) {
        return Err(Reason::WrittenTo);
    }
    Ok(CachedPlace { file, mapping: mapping.range, distance })
}

/// The parts of the image that huge folios of its file can show if its base is `bias`. `huge` are offsets in the file.
pub fn cached_coverable(
    image: &ElfImage,
    huge: &[Range<u64>],
    bias: u64,
    size: PageSize,
    base_page: PageSize,
    kinds: Kinds,
) -> Coverable {
    let mut covered = Coverable::default();
    for piece in pieces_at(image, bias, base_page, kinds) {
        let Some(offset) = offset_of(image, &piece, bias, base_page) else { continue };
        let distance = piece.range.start().0.wrapping_sub(offset);
        if distance % size.bytes() != 0 {
            continue;
        }
        for folios in huge {
            let end = offset.saturating_add(piece.range.len()).min(folios.end);
            let start = offset.max(folios.start);
            if start < end {
                let shown = AddressRange::sized(Address(distance.wrapping_add(start)), end - start).whole_pages(size);
                covered.add(&Piece { range: shown, ..piece.clone() });
            }
        }
    }
    covered
}

/// The base offset at which huge folios of the file show most: executable bytes first, then all others; the smallest of
/// equally good offsets.
///
/// Each segment has one base at which its addresses agree with its offsets. If segments were linked with different
/// distances between the two, not all can be shown.
pub fn choose_cached_base(
    image: &ElfImage,
    huge: &[Range<u64>],
    size: PageSize,
    base_page: PageSize,
    kinds: Kinds,
) -> BaseChoice {
    let step = image.largest_alignment(base_page);
    let mut all = Coverable::default();
    pieces_at(image, 0, base_page, kinds).iter().for_each(|piece| all.add(piece));
    let read_only = image.segments.iter().filter(|segment| !segment.protection.write);
    let distances = read_only.map(|segment| segment.offset.wrapping_sub(segment.memory.start().0) % size.bytes());
    let mut candidates: Vec<u64> = distances.filter(|offset| offset % step.bytes() == 0).collect();
    candidates.sort_unstable();
    candidates.dedup();
    let mut best = BaseChoice { offset: 0, covered: Coverable::default(), all };
    for offset in candidates {
        let covered = cached_coverable(image, huge, offset, size, base_page, kinds);
        if covered > best.covered {
            best = BaseChoice { offset, covered, all };
        }
    }
    best
}

/// Returns the offset in the file of a piece that is never written and comes from there.
fn offset_of(image: &ElfImage, piece: &Piece, bias: u64, base_page: PageSize) -> Option<u64> {
    let start = Address(piece.range.start().0.wrapping_sub(bias));
    // A page that two segments share shows the later one.
    let segment = image.segments.iter().rfind(|segment| segment.memory.widened(base_page).contains(start))?;
    // RELRO is sealed to another protection than its segment's: it was written to before.
    let as_mapped = segment.protection == piece.protection && matches!(piece.kind, Kind::Text | Kind::Rodata);
    if !as_mapped || !file_pages_of(segment, base_page).contains(start) {
        return None;
    }
    // Addresses and offsets keep one distance in all of a segment.
    start.0.checked_add(segment.offset)?.checked_sub(segment.memory.start().0)
}
