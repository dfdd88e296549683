//! Positions of mimalloc's records about small blocks in a program's memory, for `pagelift status`.

/// The data to find the pages (mimalloc's term: slices with blocks of one size) of all arenas, and to read how many
/// blocks of each page are in use. Addresses are the process's. Sizes and offsets are bytes unless the field says
/// otherwise.
///
/// `crates/heap/allocator/src/mimalloc.c` fills one with values known to its compiler, and names the fields in this
/// order. In a page `used`, `capacity` and `reserved` have 2 bytes each; all other values have 8.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SmallRecords {
    /// Address of the table of arenas' addresses.
    pub arenas: u64,
    /// Address of the number of entries in use in that table.
    pub arena_count: u64,
    /// The most entries it can have.
    pub most_arenas: u64,
    /// A slice, the unit of arenas.
    pub slice: u64,
    /// Fields of the record at the beginning of an arena.
    pub arena: u64,
    /// Offset in it: number of slices of the arena.
    pub arena_slices: u64,
    /// Offset in it: the address of the records of pages, one for each slice.
    pub arena_pages: u64,
    /// Offset in it: the address of the bitmap of slices at which a page begins.
    pub arena_page_bits: u64,
    /// Offset in a bitmap: number of its chunks.
    pub bitmap_chunk_count: u64,
    /// Offset in a bitmap: its chunks.
    pub bitmap_chunks: u64,
    /// Bits of a chunk; also the most chunks a bitmap can have.
    pub chunk_bits: u64,
    /// The record of a page.
    pub page: u64,
    /// Offset in it: blocks in use.
    pub page_used: u64,
    /// Offset in it: blocks of memory that was handed out before.
    pub page_capacity: u64,
    /// Offset in it: blocks there is room for.
    pub page_reserved: u64,
    /// Offset in it: bytes of a block.
    pub page_block: u64,
    /// Offset in it: the address of its first block.
    pub page_start: u64,
}

const FIELDS: usize = 17;

impl SmallRecords {
    /// Size of the record in memory, in bytes.
    pub const BYTES: usize = FIELDS * 8;

    /// From the bytes of another process of the same machine; the values are not checked.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let mut words = bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()));
        let mut next = || words.next().unwrap_or_default();
        Self {
            arenas: next(),
            arena_count: next(),
            most_arenas: next(),
            slice: next(),
            arena: next(),
            arena_slices: next(),
            arena_pages: next(),
            arena_page_bits: next(),
            bitmap_chunk_count: next(),
            bitmap_chunks: next(),
            chunk_bits: next(),
            page: next(),
            page_used: next(),
            page_capacity: next(),
            page_reserved: next(),
            page_block: next(),
            page_start: next(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_is_read_from_its_place() {
        assert_eq!(size_of::<SmallRecords>(), SmallRecords::BYTES);
        let mut bytes = [0; SmallRecords::BYTES];
        for (index, word) in bytes.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&(index as u64 * 8).to_ne_bytes());
        }
        let read = SmallRecords::from_bytes(&bytes);
        // Each word contains its own offset.
        assert_eq!(read.arenas as usize, core::mem::offset_of!(SmallRecords, arenas));
        assert_eq!(read.slice as usize, core::mem::offset_of!(SmallRecords, slice));
        assert_eq!(read.arena_page_bits as usize, core::mem::offset_of!(SmallRecords, arena_page_bits));
        assert_eq!(read.chunk_bits as usize, core::mem::offset_of!(SmallRecords, chunk_bits));
        assert_eq!(read.page_used as usize, core::mem::offset_of!(SmallRecords, page_used));
        assert_eq!(read.page_start as usize, core::mem::offset_of!(SmallRecords, page_start));
    }
}
