//! A program's memory with sound records of small blocks, for tests and the fuzz target.

use super::{Memory, NotKnown, SmallBlocks};
use heap_abi::SmallRecords;
use std::cell::Cell;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const SLICE: u64 = 64 << 10;
pub(crate) const CHUNK: u64 = 512 * SLICE;
pub(crate) const RECORDS: u64 = 0x1000;
pub(crate) const TABLE: u64 = 0x2000;
pub(crate) const COUNT: u64 = 0x3000;
pub(crate) const FIRST: u64 = 0x7f00_0000_0000;

/// As mimalloc has it on machines of 64 bits.
pub(crate) const LAYOUT: SmallRecords = SmallRecords {
    arenas: TABLE,
    arena_count: COUNT,
    most_arenas: 160,
    slice: SLICE,
    arena: 832,
    arena_slices: 40,
    arena_pages: 136,
    arena_page_bits: 144,
    bitmap_chunk_count: 0,
    bitmap_chunks: 128,
    chunk_bits: 512,
    page: 112,
    page_used: 16,
    page_capacity: 18,
    page_reserved: 20,
    page_block: 40,
    page_start: 48,
};
/// Their offset in an arena here.
pub(crate) const BITS: u64 = 4096;
pub(crate) const PAGES: u64 = 64 << 10;

/// A program's memory: pieces, and nothing between them.
#[derive(Clone, Default)]
pub(crate) struct Model {
    pub pieces: Vec<(u64, Vec<u8>)>,
    /// Number of reads after which the first piece is valid again.
    pub cure: Cell<Option<(u32, u64, u16)>>,
    pub reads: Cell<u32>,
}

impl Model {
    fn piece(&mut self, address: u64, bytes: usize) {
        self.pieces.push((address, vec![0; bytes]));
    }

    pub fn write(&mut self, address: u64, bytes: &[u8]) {
        let (start, piece) = self
            .pieces
            .iter_mut()
            .find(|(start, piece)| (*start..*start + piece.len() as u64).contains(&address))
            .unwrap();
        let at = (address - *start) as usize;
        piece[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub fn word(&mut self, address: u64, value: u64) {
        self.write(address, &value.to_ne_bytes());
    }

    pub fn new(layout: SmallRecords) -> Self {
        let mut model = Self::default();
        model.piece(RECORDS, SmallRecords::BYTES);
        model.piece(TABLE, 160 * 8);
        model.piece(COUNT, 8);
        model.layout(layout);
        model
    }

    pub fn layout(&mut self, r: SmallRecords) {
        let words = [
            r.arenas,
            r.arena_count,
            r.most_arenas,
            r.slice,
            r.arena,
            r.arena_slices,
            r.arena_pages,
            r.arena_page_bits,
            r.bitmap_chunk_count,
            r.bitmap_chunks,
            r.chunk_bits,
            r.page,
            r.page_used,
            r.page_capacity,
            r.page_reserved,
            r.page_block,
            r.page_start,
        ];
        (RECORDS..).step_by(8).zip(words).for_each(|(at, word)| self.word(at, word));
    }

    pub fn arena(&mut self, index: u64, start: u64, chunks: u64) {
        self.piece(start, (PAGES + chunks * 512 * LAYOUT.page) as usize);
        self.word(start + LAYOUT.arena_slices, chunks * 512);
        self.word(start + LAYOUT.arena_pages, start + PAGES);
        self.word(start + LAYOUT.arena_page_bits, start + BITS);
        self.word(start + BITS, chunks);
        self.word(TABLE + index * 8, start);
        self.word(COUNT, index + 1);
    }

    /// A page that begins with a slice of an arena.
    pub fn page(&mut self, arena: u64, slice: u64, [used, capacity, reserved]: [u16; 3], block: u64) {
        let bits = arena + BITS + LAYOUT.bitmap_chunks + slice / 64 * 8;
        let mut word = [0; 8];
        Memory::read(self, bits, &mut word).unwrap();
        self.word(bits, u64::from_ne_bytes(word) | 1 << (slice % 64));
        let record = arena + PAGES + slice * LAYOUT.page;
        self.write(record + LAYOUT.page_used, &used.to_ne_bytes());
        self.write(record + LAYOUT.page_capacity, &capacity.to_ne_bytes());
        self.write(record + LAYOUT.page_reserved, &reserved.to_ne_bytes());
        self.word(record + LAYOUT.page_block, block);
        self.word(record + LAYOUT.page_start, arena + slice * SLICE);
    }

    pub fn live(&self, arenas: u64) -> Result<u64, NotKnown> {
        SmallBlocks::read(self, RECORDS, || Some(arenas)).map(|small| small.live)
    }
}

impl Memory for Model {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), NotKnown> {
        assert!(into.len() <= 8 << 20, "{} bytes at once", into.len());
        self.reads.set(self.reads.get() + 1);
        let outside = NotKnown::Outside;
        let (start, piece) = self
            .pieces
            .iter()
            .find(|(start, piece)| address >= *start && address - start < piece.len() as u64)
            .ok_or(outside)?;
        let at = (address - start) as usize;
        into.copy_from_slice(piece.get(at..at + into.len()).ok_or(outside)?);
        if let Some((after, cured, used)) = self.cure.get()
            && self.reads.get() > after
            && (address..address + into.len() as u64).contains(&cured)
        {
            let at = (cured - address) as usize;
            into[at..at + 2].copy_from_slice(&used.to_ne_bytes());
        }
        Ok(())
    }
}

/// Two arenas, with 8 pages in which something is used.
pub(crate) fn model() -> (Model, u64) {
    let (mut model, second) = (Model::new(LAYOUT), FIRST + 16 * CHUNK);
    model.arena(0, second, 1);
    model.arena(1, FIRST, 3);
    model.page(second, 3, [1024, 1024, 1024], 64);
    model.page(FIRST, 7, [10, 100, 500], 112);
    model.page(FIRST, 511, [3, 3, 63], 1024);
    // A block that has a page to itself, across the ends of chunks.
    model.page(FIRST, 512, [1, 1, 1], 7 * MIB);
    model.page(FIRST, 1535, [1, 1, 1], SLICE);
    // Retired, and new.
    model.page(FIRST, 900, [0, 50, 500], 112);
    model.page(FIRST, 901, [0, 0, 0], 0);
    (model, 1024 * 64 + 10 * 112 + 3 * 1024 + 7 * MIB + SLICE)
}
