//! The image's own build-id.
//!
//! An image holds the same bytes as its source at other file offsets. `perf` keeps copies of programs by their build-id
//! and resolves offsets in the copy that it saw first; two files with one build-id and different offsets would be
//! confused. So the notes that carry the build-id are copied into the image's own space and changed there; the source's
//! notes stay untouched among the bytes that processes map.

use super::{Content, Piece, Room};
use crate::Layout;
use object::elf;
use object::read::elf::ProgramHeader;
use object::{Endian, Endianness, ReadRef};
use std::ops::Range;

type Segment = elf::ProgramHeader64<Endianness>;

/// Maximum length of notes, in bytes; a build-id takes a few dozen.
const MOST_NOTE_BYTES: u64 = 1 << 16;

/// Length of a note's header: the lengths of its name and its content, and its type, in 32 bits each (elf(5)).
const NOTE_HEADER: usize = 12;

/// A run of notes with a build-id, and the offset of its changed copy.
#[derive(Clone, Debug)]
pub(super) struct OwnNotes {
    /// Offsets in the source.
    source: Range<u64>,
    /// Offset in the image.
    offset: u64,
}

impl OwnNotes {
    /// Returns the offset of these source bytes in the copy, if it holds them all.
    pub fn moved(&self, offset: u64, length: u64) -> Option<u64> {
        let end = offset.checked_add(length)?;
        (self.source.start <= offset && end <= self.source.end).then(|| self.offset + (offset - self.source.start))
    }
}

/// Copies the notes with a build-id and gives the copies an id of the layout's own.
pub(super) fn place<'data, R: ReadRef<'data>>(
    data: R,
    endian: Endianness,
    segments: &[Segment],
    layout: Layout,
    room: &mut Room,
    pieces: &mut Vec<Piece>,
) -> Option<OwnNotes> {
    let is_small = |s: &&Segment| s.p_type(endian) == elf::PT_NOTE && s.p_filesz(endian) <= MOST_NOTE_BYTES;
    for segment in segments.iter().filter(is_small) {
        let (offset, length) = (segment.p_offset(endian), segment.p_filesz(endian));
        let align = if segment.p_align(endian) == 8 { 8 } else { 4 };
        let Ok(notes) = data.read_bytes_at(offset, length) else { continue };
        let Some(id) = build_id(notes, endian, align) else { continue };
        let mut own = notes.to_vec();
        change(&mut own[id], layout);
        let at = room.take(length, 8)?;
        pieces.push(Piece { offset: at, length, content: Content::Bytes(own) });
        return Some(OwnNotes { source: offset..offset + length, offset: at });
    }
    None
}

/// The range of the build-id in a run of notes.
fn build_id(notes: &[u8], endian: Endianness, align: usize) -> Option<Range<usize>> {
    let word = |at: usize| Some(endian.read_u32(notes.get(at..at + 4)?.try_into().ok()?));
    let mut at = 0;
    while at + NOTE_HEADER <= notes.len() {
        let (name_length, length, kind) = (word(at)? as usize, word(at + 4)? as usize, word(at + 8)?);
        let name = at + NOTE_HEADER;
        let content = name.checked_add(name_length)?.checked_next_multiple_of(align)?;
        let end = content.checked_add(length)?;
        if kind == elf::NT_GNU_BUILD_ID.0 && notes.get(name..name + name_length)? == b"GNU\0" && end <= notes.len() {
            return Some(content..end);
        }
        at = end.checked_next_multiple_of(align)?;
    }
    None
}

/// The id depends on the layout alone.
fn change(id: &mut [u8], layout: Layout) {
    let mut state = layout.base_offset() ^ layout.page_size().bytes().rotate_left(32);
    for chunk in id.chunks_mut(8) {
        state = mixed(state);
        // One bit is always flipped, so the id never equals the source's.
        let mask = (state | 1).to_le_bytes();
        chunk.iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
    }
}

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
fn mixed(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
