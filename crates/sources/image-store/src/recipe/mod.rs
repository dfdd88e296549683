//! Decides the content of an image at each offset, purely from the source's headers.
//!
//! Segments keep their order, each in whole base pages, at the first free offset that agrees with its address modulo
//! the huge page size. So segments that are near each other in memory keep their distance, and distant ones are packed.
//! The space below the first segment holds the image's own headers: the source's headers are part of the mapped bytes
//! and stay unchanged. Bytes that no segment loads, mainly symbols, fill the space that is left there, or follow at the
//! end.

mod headers;
mod identity;
mod sections;
#[cfg(test)]
mod tests;

use crate::image::mappable_segments;
use crate::{Layout, StoreError, record};
use address_space::{ElfError, ElfImage, LoadSegment, PageSize, RangeSet};
use object::ReadRef;
use sections::Sections;
use std::io;
use std::ops::Range;

/// Bound on a segment's length, below which the sum over a few thousand segments cannot overflow.
const MOST_SEGMENT_BYTES: u64 = 1 << 44;

/// One part of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    offset: u64,
    length: u64,
    content: Content,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Content {
    Bytes(Vec<u8>),
    /// Copied from the source at this offset, with zeros behind its end.
    Source(u64),
}

/// A segment of the source and its place in the image.
#[derive(Clone, Copy, Debug)]
struct Placed {
    segment: LoadSegment,
    /// `p_offset` in the image.
    offset: u64,
}

/// An image that could be made.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    page_size: PageSize,
    size: u64,
    pieces: Vec<Piece>,
}

impl Recipe {
    /// The recipe for a source of `length` bytes, whose path was `source`.
    ///
    /// # Errors
    /// The source cannot be mapped from an image: see [`StoreError`].
    pub fn new<'data, R: ReadRef<'data>>(
        data: R,
        length: u64,
        layout: Layout,
        base_page: PageSize,
        record: Vec<u8>,
    ) -> Result<Self, StoreError> {
        let image = ElfImage::parse(data)?;
        check(&image, length, layout, base_page)?;
        let old = headers::Headers::read(data)?;
        let headers_end = record::OFFSET + record.len() as u64;
        let table_offset = headers_end.next_multiple_of(8);
        let first_free = table_offset + old.table_bytes();
        let placed = place(&image, first_free, layout, base_page);
        let mut pieces = Vec::new();
        let mut end = first_free;
        for Placed { segment, offset } in placed.iter().filter(|placed| placed.segment.file_size > 0) {
            let pages = segment.file_memory().widened(base_page);
            let before = segment.memory.start() - pages.start();
            let content = Content::Source(segment.offset - before);
            pieces.push(Piece { offset: offset - before, length: pages.len(), content });
            end = offset - before + pages.len();
        }
        let first_segment = pieces.first().map_or(end, |piece| piece.offset);
        let mut room = Room { gap: first_free..first_segment, tail: end };
        let notes = identity::place(data, old.endian, &old.segments, layout, &mut room, &mut pieces);
        let sections = Sections::read(data, length)
            .and_then(|sections| sections.place(&placed, notes.as_ref(), &mut room, &mut pieces));
        let (header, table) = old.rewritten(table_offset, &placed, notes.as_ref(), sections.as_ref());
        if let Some(sections) = sections {
            pieces.push(bytes(sections.offset, sections.table));
        }
        pieces.extend([bytes(0, header), bytes(record::OFFSET, record), bytes(table_offset, table)]);
        pieces.sort_by_key(|piece| piece.offset);
        let page_size = layout.page_size();
        let size = room.tail.checked_next_multiple_of(page_size.bytes()).ok_or(ElfError::Damaged("its size"))?;
        Ok(Self { page_size, size, pieces })
    }

    /// Length of the image, in bytes: whole huge pages.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The huge pages that hold anything, as runs of their numbers.
    fn runs(&self) -> Vec<Range<u64>> {
        let page = self.page_size.bytes();
        let mut runs: Vec<Range<u64>> = Vec::new();
        for piece in self.pieces.iter().filter(|piece| piece.length > 0) {
            let pages = piece.offset / page..(piece.offset + piece.length).div_ceil(page);
            match runs.last_mut() {
                Some(last) if pages.start <= last.end => last.end = last.end.max(pages.end),
                _ => runs.push(pages),
            }
        }
        runs
    }

    /// The huge pages that hold anything, by their numbers.
    pub fn pages(&self) -> impl Iterator<Item = u64> {
        self.runs().into_iter().flatten()
    }

    /// Bytes that the image takes in memory.
    pub fn memory(&self) -> u64 {
        self.runs().iter().map(|run| run.end - run.start).sum::<u64>().saturating_mul(self.page_size.bytes())
    }

    /// Fills `buffer`, one huge page long, with the contents of the image's huge page `number`. `read` reads the source
    /// at an offset, and gives zeros behind its end.
    pub fn fill(
        &self,
        number: u64,
        buffer: &mut [u8],
        read: &mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        buffer.fill(0);
        let start = number * self.page_size.bytes();
        let end = start + buffer.len() as u64;
        for piece in &self.pieces {
            let (from, to) = (piece.offset.max(start), (piece.offset + piece.length).min(end));
            if from >= to {
                continue;
            }
            let into = &mut buffer[(from - start) as usize..(to - start) as usize];
            let skipped = from - piece.offset;
            match &piece.content {
                Content::Bytes(bytes) => into.copy_from_slice(&bytes[skipped as usize..skipped as usize + into.len()]),
                Content::Source(offset) => read(offset + skipped, into)?,
            }
        }
        Ok(())
    }
}

fn bytes(offset: u64, bytes: Vec<u8>) -> Piece {
    Piece { offset, length: bytes.len() as u64, content: Content::Bytes(bytes) }
}

/// Free space for bytes that no segment loads.
struct Room {
    /// Between the headers and the first segment.
    gap: Range<u64>,
    /// Behind everything.
    tail: u64,
}

impl Room {
    /// Takes `length` bytes at a multiple of `align`; `None` past the end of all offsets.
    fn take(&mut self, length: u64, align: u64) -> Option<u64> {
        let in_gap = self.gap.start.checked_next_multiple_of(align)?;
        if in_gap.checked_add(length)? <= self.gap.end {
            self.gap.start = in_gap + length;
            return Some(in_gap);
        }
        let behind = self.tail.checked_next_multiple_of(align)?;
        self.tail = behind.checked_add(length)?;
        Some(behind)
    }
}

fn check(image: &ElfImage, length: u64, layout: Layout, base_page: PageSize) -> Result<(), StoreError> {
    if image.text_relocations {
        return Err(StoreError::TextRelocations);
    }
    let needed = image.segments.iter().map(|segment| segment.offset + segment.file_size).max().unwrap_or(0);
    if needed > length {
        return Err(StoreError::CutOff { found: length, needed });
    }
    let page = base_page.bytes();
    if image.segments.iter().any(|segment| segment.file_size > MOST_SEGMENT_BYTES) {
        return Err(ElfError::Damaged("a segment of more than 16 TiB").into());
    }
    if image.segments.iter().any(|s| s.file_size > 0 && s.offset % page != s.memory.start().0 % page) {
        return Err(ElfError::Damaged("a segment whose offset does not agree with its address").into());
    }
    // If merging is requested, segments that touch may share huge pages.
    let mut read_only = RangeSet::new();
    mappable_segments(image, base_page).iter().for_each(|s| read_only.insert(s.memory.shifted(layout.base_offset())));
    if read_only.iter().all(|range| range.whole_pages(layout.page_size()).is_empty()) {
        return Err(StoreError::NothingToMap);
    }
    Ok(())
}

fn place(image: &ElfImage, first_free: u64, layout: Layout, base_page: PageSize) -> Vec<Placed> {
    let huge = layout.page_size().bytes();
    let mut free = first_free;
    let mut placed = Vec::new();
    for &segment in &image.segments {
        let start = segment.memory.start().align_down(base_page);
        let wanted = start.0.wrapping_add(layout.base_offset()) % huge;
        let offset = free + (wanted.wrapping_sub(free) & (huge - 1));
        placed.push(Placed { segment, offset: offset + (segment.memory.start() - start) });
        if segment.file_size > 0 {
            free = offset + segment.file_memory().widened(base_page).len();
        }
    }
    placed
}

/// Returns the image's offset of `length` bytes of the source at `offset`, shown at `address`; `None` if no segment
/// holds them all.
fn moved(placed: &[Placed], offset: u64, length: u64, address: u64) -> Option<u64> {
    let holds = |p: &&Placed| {
        let into = offset.checked_sub(p.segment.offset);
        into.and_then(|into| into.checked_add(length)).is_some_and(|end| end <= p.segment.file_size)
    };
    // An empty section at a border belongs to both segments; its address identifies one.
    let agrees = |p: &&Placed| {
        p.segment.offset.wrapping_sub(p.segment.memory.start().0) == offset.wrapping_sub(address)
            && address.wrapping_sub(p.segment.memory.start().0) <= p.segment.memory.len()
    };
    let holders = || placed.iter().filter(holds);
    let holder = holders().find(agrees).or_else(|| holders().next())?;
    Some(holder.offset + (offset - holder.segment.offset))
}
