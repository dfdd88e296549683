//! New places for the parts of a file.

use super::headers::{Headers, Program, SECTION_HEADER, is_zero};
use super::refusal::RelayoutError;
use address_space::PageSize;
use object::ReadRef;
use options::Edges;
use std::ops::Range;

/// Bytes that move together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Offset in the file that is read.
    pub from: u64,
    /// Offset in the file that is written.
    pub to: u64,
    /// Length in bytes.
    pub length: u64,
}

impl Piece {
    /// The new offset of `length` bytes at `at`, if this piece holds them all.
    pub fn moved(&self, at: u64, length: u64) -> Option<u64> {
        let inside = at.checked_sub(self.from)?;
        (inside.checked_add(length)? <= self.length).then(|| self.to + inside)
    }
}

/// A segment that is loaded, and its new place.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Number of the program header.
    pub index: usize,
    /// Its present values.
    pub old: Program,
    /// New offset in the file of the bytes that are at its present beginning.
    pub offset: u64,
    /// Its new values.
    pub new: Program,
}

/// The parts of a file, each with its new place.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Length of the new file, in bytes.
    pub length: u64,
    /// The segments, in the order of their offsets.
    pub loads: Vec<Load>,
    /// The bytes to copy: whole pages of segments, so that each page has the same contents as before in memory.
    pub copies: Vec<Piece>,
    /// The parts without overlaps: each byte that is not zero belongs to one.
    pub parts: Vec<Piece>,
    /// Bytes of read-only data that become executable.
    pub widened: u64,
}

impl Layout {
    /// Finds a place for each part.
    ///
    /// # Errors
    /// [`RelayoutError::Unsound`].
    pub fn new<'data, R: ReadRef<'data>>(
        headers: &Headers,
        data: R,
        huge: PageSize,
        page: PageSize,
        edges: Edges,
    ) -> Result<Self, RelayoutError> {
        let mut builder = Builder {
            page: page.bytes(),
            end: 0,
            edges,
            layout: Self { length: 0, loads: Vec::new(), copies: Vec::new(), parts: Vec::new(), widened: 0 },
        };
        let loads = in_order(headers, page)?;
        let with_bytes = loads.iter().find(|(_, load)| load.length > 0);
        builder.keep_beginning(with_bytes.map_or(headers.length, |(_, load)| load.offset));
        for (number, &(index, load)) in loads.iter().enumerate() {
            let next = loads.get(number + 1).map(|(_, next)| next);
            builder.place(index, load, next, huge, headers.length);
        }
        builder.place_the_rest(headers, data, huge);
        Ok(builder.layout)
    }

    /// The new offset of `length` bytes at `at`, if they stay together.
    pub fn moved(&self, at: u64, length: u64) -> Option<u64> {
        self.parts.iter().find_map(|part| part.moved(at, length))
    }
}

/// The segments in the order of their offsets.
fn in_order(headers: &Headers, page: PageSize) -> Result<Vec<(usize, Program)>, RelayoutError> {
    let numbered = headers.programs.iter().copied().enumerate();
    let mut loads: Vec<(usize, Program)> = numbered.filter(|(_, program)| program.is_load).collect();
    if loads.iter().any(|(_, load)| (load.address ^ load.offset) & (page.bytes() - 1) != 0) {
        return Err(RelayoutError::Unsound("a segment with an address that disagrees with its offset within a page"));
    }
    loads.sort_by_key(|(_, load)| load.offset);
    let with_bytes: Vec<&Program> = loads.iter().map(|(_, load)| load).filter(|load| load.length > 0).collect();
    if with_bytes.windows(2).any(|pair| pair[0].offset + pair[0].length > pair[1].offset) {
        return Err(RelayoutError::Unsound("segments that share bytes of the file"));
    }
    Ok(loads)
}

struct Builder {
    page: u64,
    /// End of the parts placed so far, in bytes.
    end: u64,
    edges: Edges,
    layout: Layout,
}

impl Builder {
    /// The file's beginning, if no segment has it: it stays, since the file header is at offset 0.
    fn keep_beginning(&mut self, length: u64) {
        self.add(Piece { from: 0, to: 0, length }, Piece { from: 0, to: 0, length });
    }

    fn add(&mut self, copy: Piece, part: Piece) {
        if copy.length > 0 {
            self.layout.copies.push(copy);
        }
        if part.length > 0 {
            self.layout.parts.push(part);
        }
        self.end = self.end.max(copy.to + copy.length).max(part.to + part.length);
        self.layout.length = self.end;
    }

    fn place(&mut self, index: usize, old: Program, next: Option<&Program>, huge: PageSize, file: u64) {
        let inside = old.offset % self.page;
        let start = old.offset - inside;
        let before = self.layout.loads.last().copied().filter(|before| is_congruent(&before.new, huge));
        let block = before.and_then(|before| self.shared_block(&before.old, &old, huge));
        let has_neighbour = block.is_some() || next.is_some_and(|next| self.shared_block(&old, next, huge).is_some());
        let is_large = old.is_read_only() && whole_pages(old.address, old.length, huge) > 0 || has_neighbour;
        let modulus = old.align.max(self.page).max(if is_large { huge.bytes() } else { 0 });
        let offset = match (old.offset, before.filter(|_| block.is_some())) {
            // The file header is at offset 0.
            (0, _) => 0,
            (_, Some(before)) => before.offset + (old.address - before.old.address),
            (_, None) => {
                let least = self.end.next_multiple_of(self.page) + inside;
                least + (old.address.wrapping_sub(least) & (modulus - 1))
            }
        };
        let mut new = Program { offset, ..old };
        if is_large && is_congruent(&new, huge) {
            new.align = old.align.max(huge.bytes());
        }
        if let (Some(block), Some(before)) = (block, self.layout.loads.last_mut()) {
            self.layout.widened += share(&mut before.new, &mut new, &block);
        }
        self.layout.loads.push(Load { index, old, offset, new });
        let end = (old.offset + old.length).next_multiple_of(self.page).min(file);
        let copy = Piece { from: start, to: offset - inside, length: end.saturating_sub(start) };
        self.add(copy, Piece { from: old.offset, to: offset, length: old.length });
    }

    /// The huge page in which code and read-only data meet, as addresses, if both fill it and it may be executable as a whole.
    fn shared_block(&self, before: &Program, behind: &Program, huge: PageSize) -> Option<Range<u64>> {
        let border = behind.address - behind.address % self.page;
        let start = border - border % huge.bytes();
        let block = start..start.checked_add(huge.bytes())?;
        let end = |program: &Program| (program.address + program.length).next_multiple_of(self.page);
        // Data in code that cannot be read (lld, --execute-only) could not be read either.
        let is_plain = |program: &Program| program.is_read_only() && program.is_readable();
        let is_whole = |program: &Program| is_plain(program) && program.length == program.memory && program.length > 0;
        let is_shared = self.edges == Edges::MergeReadOnly
            && is_whole(before)
            && is_whole(behind)
            && before.is_executable() != behind.is_executable()
            && before.align.max(behind.align) <= huge.bytes()
            && end(before) == border
            && border > block.start
            && before.address - before.address % self.page <= block.start
            && end(behind) >= block.end;
        is_shared.then_some(block)
    }

    /// Moves the bytes between segments and after the last one to the end of the new file.
    fn place_the_rest<'data, R: ReadRef<'data>>(&mut self, headers: &Headers, data: R, huge: PageSize) {
        let mut at = 0;
        let parts = self.layout.parts.clone();
        for part in parts {
            let (gap, from) = (part.from.saturating_sub(at), at);
            at = part.from + part.length;
            if gap == 0 {
                continue;
            }
            let (from, gap) = match holds_section(headers, from, gap) {
                true => (from, gap),
                false => self.extend_to_its_page(from, gap),
            };
            if holds_section(headers, from, gap) || gap >= huge.bytes() || !is_zero(data, from, gap) {
                self.move_behind(from, gap);
            }
        }
        if at < headers.length {
            self.move_behind(at, headers.length - at);
        }
    }

    /// Extends the part that ends at `at` to the end of its page, which is copied with it. Returns the rest of the gap.
    fn extend_to_its_page(&mut self, at: u64, gap: u64) -> (u64, u64) {
        let more = (at.next_multiple_of(self.page) - at).min(gap);
        match self.layout.parts.iter_mut().find(|part| part.from + part.length == at) {
            Some(part) => {
                part.length += more;
                (at + more, gap - more)
            }
            None => (at, gap),
        }
    }

    fn move_behind(&mut self, from: u64, length: u64) {
        let piece = Piece { from, to: self.end.next_multiple_of(self.page) + from % self.page, length };
        self.add(piece, piece);
    }
}

fn is_congruent(program: &Program, huge: PageSize) -> bool {
    (program.address ^ program.offset) & (huge.bytes() - 1) == 0
}

/// Makes the huge page executable that two segments share, which are adjacent in memory and in the file. Returns the number of
/// bytes for which that is new. The border moves to an end of the huge page; if no byte would remain of the data, both segments
/// stay as they are, with the same protection, and the kernel joins them in memory.
fn share(before: &mut Program, behind: &mut Program, block: &Range<u64>) -> u64 {
    let end = before.address + before.length;
    let (border, is_data_first) = (behind.address, behind.is_executable());
    match is_data_first {
        true if before.address >= block.start => {
            before.flags |= behind.flags;
            before.length
        }
        false if behind.address + behind.length <= block.end => {
            behind.flags |= before.flags;
            behind.length
        }
        true => {
            move_beginning(behind, border - block.start, u64::wrapping_sub);
            (before.length, before.memory) = (block.start - before.address, block.start - before.address);
            end - block.start
        }
        false => {
            move_beginning(behind, block.end - border, u64::wrapping_add);
            (before.length, before.memory) = (block.end - before.address, block.end - before.address);
            block.end - border
        }
    }
}

/// Moves the beginning of a segment; its end stays.
fn move_beginning(program: &mut Program, by: u64, to: fn(u64, u64) -> u64) {
    let end = program.address + program.length;
    for start in [&mut program.address, &mut program.physical, &mut program.offset] {
        *start = to(*start, by);
    }
    (program.length, program.memory) = (end - program.address, end - program.address);
}

/// True if a section or the section headers have a byte there.
fn holds_section(headers: &Headers, from: u64, length: u64) -> bool {
    let meets = |at: u64, size: u64| at < from + length && at.saturating_add(size) > from;
    let table = headers.sections.len() as u64 * SECTION_HEADER;
    let mut sections = headers.sections.iter().filter(|section| !section.is_empty && section.size > 0);
    meets(headers.sections_at, table) || sections.any(|section| meets(section.offset, section.size))
}

/// Bytes of a range of addresses in whole huge pages.
pub fn whole_pages(address: u64, length: u64, huge: PageSize) -> u64 {
    let (first, end) = (address.div_ceil(huge.bytes()), (address + length) / huge.bytes());
    end.saturating_sub(first) * huge.bytes()
}
