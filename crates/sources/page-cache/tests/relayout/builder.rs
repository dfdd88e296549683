//! Random ELF files, as linkers and tools that edit files lay them out.

use proptest::prelude::*;

pub const PAGE: u64 = 1 << 12;
/// Short, so that files of some huge pages are short, too.
pub const HUGE: u64 = 1 << 16;

/// A segment to be made.
#[derive(Clone, Debug)]
pub struct Wish {
    flags: u32,
    length: u64,
    bss: u64,
    /// Bytes outside of segments in front of this one.
    gap: u64,
    /// True if a section is in that gap.
    section_in_gap: bool,
    /// Pages that its address is further on than its offset.
    further: u64,
    align: u64,
}

impl Wish {
    /// True if the file has the bytes of the section without bytes, as in programs that `bun build --compile` makes.
    fn writes_bss(&self) -> bool {
        self.flags & 2 != 0 && self.bss % 3 == 1
    }
}

/// A file to be made.
#[derive(Clone, Debug)]
pub struct Wishes {
    pub segments: Vec<Wish>,
    is_fixed: bool,
    base: u64,
    headers_are_loaded: bool,
    pub programs_at_the_end: bool,
    pub trailing: u64,
}

impl Wishes {
    /// Makes code executable only, as lld does by `--execute-only`.
    pub fn make_code_unreadable(&mut self) {
        self.segments.iter_mut().filter(|segment| segment.flags == 5).for_each(|segment| segment.flags = 1);
    }
}

pub fn wishes() -> impl Strategy<Value = Wishes> {
    let segment = (
        prop_oneof![Just(4), Just(5), Just(6), Just(7)],
        prop_oneof![0..3 * PAGE, HUGE..4 * HUGE],
        prop_oneof![3 => Just(0), 1 => 1..3 * PAGE],
        prop_oneof![3 => Just(0), 2 => 1..2 * PAGE, 1 => HUGE..HUGE + PAGE],
        any::<bool>(),
        prop_oneof![Just(0), 1..20u64],
        prop_oneof![Just(0), Just(1), Just(PAGE), Just(4 * PAGE)],
    );
    let segment = segment.prop_map(|(flags, length, bss, gap, section_in_gap, further, align)| Wish {
        flags,
        length,
        bss,
        gap,
        section_in_gap,
        further,
        align,
    });
    let trailing = prop_oneof![2 => Just(0), 1 => 1..3 * PAGE];
    (prop::collection::vec(segment, 1..6), any::<[bool; 3]>(), trailing).prop_map(|(segments, flags, trailing)| {
        let [is_fixed, headers_are_loaded, programs_at_the_end] = flags;
        let base = if is_fixed { 4 * HUGE + if trailing % 3 == 1 { PAGE } else { 0 } } else { 0 };
        Wishes { segments, is_fixed, base, headers_are_loaded, programs_at_the_end, trailing }
    })
}

/// Files of code and read-only data that are adjacent in memory.
pub fn adjacent_wishes() -> impl Strategy<Value = Wishes> {
    let lengths = prop::collection::vec(prop_oneof![1..3 * PAGE, HUGE / 2..4 * HUGE], 2..6);
    (wishes(), lengths, any::<bool>()).prop_map(|(wishes, lengths, begins_with_code)| {
        let segments = lengths.into_iter().enumerate().map(|(number, length)| {
            let flags = if (number % 2 == 0) == begins_with_code { 5 } else { 4 };
            Wish { flags, length, bss: 0, gap: 0, section_in_gap: false, further: 0, align: PAGE }
        });
        Wishes { segments: segments.collect(), ..wishes }
    })
}

struct Headers {
    programs: Vec<[u64; 8]>,
    sections: Vec<[u64; 10]>,
}

impl Headers {
    /// Type, flags, offset, address, length, memory, alignment.
    fn program(&mut self, kind: u64, flags: u64, [offset, address, length, memory, align]: [u64; 5]) {
        self.programs.push([kind, flags, offset, address, address, length, memory, align]);
    }

    /// Type, flags, address, offset, size.
    fn section(&mut self, kind: u64, flags: u64, address: u64, offset: u64, size: u64) {
        self.sections.push([0, kind, flags, address, offset, size, 0, 0, 1, 0]);
    }
}

/// The file, all of whose bytes outside of headers and gaps without sections are random and not zero.
pub fn build(wishes: &Wishes) -> Vec<u8> {
    let mut headers = Headers { programs: Vec::new(), sections: Vec::new() };
    headers.section(0, 0, 0, 0, 0);
    // Room for all program headers, if they are at the beginning.
    let beginning = 64 + 56 * (2 * wishes.segments.len() as u64 + 3);
    let mut bytes = vec![0; beginning as usize];
    let mut address = wishes.base;
    for (number, wish) in wishes.segments.iter().enumerate() {
        place(&mut headers, &mut bytes, &mut address, wish, number == 0 && wishes.headers_are_loaded, beginning);
    }
    let programs_at = if wishes.programs_at_the_end {
        // As tools do that add program headers: at the end, in a segment of their own.
        bytes.resize(bytes.len().next_multiple_of(PAGE as usize), 0);
        let at = bytes.len() as u64;
        address = (address + 20 * PAGE).next_multiple_of(PAGE);
        let length = 56 * (headers.programs.len() as u64 + 2);
        headers.program(1, 4, [at, address, length, length, PAGE]);
        bytes.resize((at + length) as usize, 0);
        at
    } else {
        64
    };
    headers.program(0x6474_e551, 6, [0, 0, 0, 0, 16]);
    let at = bytes.len() as u64;
    fill(&mut bytes, 100);
    headers.section(1, 0, 0, at, 100);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    let sections_at = bytes.len() as u64;
    write(&mut bytes, programs_at, sections_at, wishes.is_fixed, &headers);
    fill(&mut bytes, wishes.trailing);
    bytes
}

fn place(
    headers: &mut Headers,
    bytes: &mut Vec<u8>,
    address: &mut u64,
    wish: &Wish,
    with_headers: bool,
    beginning: u64,
) {
    if wish.gap > 0 && !with_headers {
        let at = bytes.len() as u64;
        if wish.section_in_gap {
            fill(bytes, wish.gap);
            headers.section(1, 0, 0, at, wish.gap);
        } else {
            bytes.resize(bytes.len() + wish.gap as usize, 0);
        }
    }
    let align = wish.align.max(PAGE);
    let offset = if with_headers { 0 } else { bytes.len() as u64 };
    // The first address at or behind the last one that agrees with the offset, and some pages.
    let from = address.next_multiple_of(align) + wish.further.next_multiple_of(align / PAGE) * PAGE;
    let at = if with_headers { *address } else { from + offset % align };
    let first = bytes.len() as u64;
    fill(bytes, wish.length);
    let length = bytes.len() as u64 - offset;
    let written = if wish.writes_bss() { wish.bss } else { 0 };
    fill(bytes, written);
    let align = if with_headers { PAGE } else { wish.align };
    headers.program(1, u64::from(wish.flags), [offset, at, length + written, length + wish.bss, align]);
    let data = if with_headers { beginning } else { first } - offset;
    if length > data {
        headers.section(1, 2, at + data, offset + data, length - data);
        let half = (length - data) / 2;
        headers.program(4, 4, [offset + data, at + data, half, half, 1]);
    }
    if wish.bss > 0 {
        headers.section(8, 3, at + length, offset + length, wish.bss);
    }
    *address = at + length + wish.bss;
}

/// Bytes that depend on their offset.
fn fill(bytes: &mut Vec<u8>, length: u64) {
    for _ in 0..length {
        let at = bytes.len() as u64;
        bytes.push((at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 | 1);
    }
}

fn write(bytes: &mut Vec<u8>, programs_at: u64, sections_at: u64, is_fixed: bool, headers: &Headers) {
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let mut header = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    header.extend([if is_fixed { 2 } else { 3 }, 0, 62, 0, 1, 0, 0, 0]);
    header.extend(words(&[0, programs_at, sections_at]));
    let (programs, sections) = (headers.programs.len() as u16, headers.sections.len() as u16);
    let halves = [0, 0, 64, 56, programs, 64, sections, 0];
    header.extend(halves.iter().flat_map(|half| half.to_le_bytes()));
    bytes[..64].copy_from_slice(&header);
    let mut table = Vec::new();
    for [kind, flags, rest @ ..] in &headers.programs {
        table.extend(words(&[kind | flags << 32]));
        table.extend(words(rest));
    }
    bytes[programs_at as usize..programs_at as usize + table.len()].copy_from_slice(&table);
    for [name, kind, flags, address, offset, size, link, info, align, entry] in headers.sections.iter().copied() {
        let header = [name | kind << 32, flags, address, offset, size, link | info << 32, align, entry];
        bytes.extend(words(&header));
    }
}
