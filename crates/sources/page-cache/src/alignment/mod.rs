//! The alignment (`p_align`) of the segments that an ELF file loads.
//!
//! The kernel places a position-independent program at a multiple of the largest `p_align` of its segments (Linux 5.10,
//! `maximum_alignment` in `fs/binfmt_elf.c`), and glibc's dynamic linker does the same with a shared object (2.35). If
//! that is the size of a huge page, addresses agree with offsets modulo that size if they do in the file, and huge
//! folios of the page cache are mapped by huge pages. A `p_align` must divide the difference of address and offset
//! (elf(5)); glibc refuses other files. So only segments with that property are changed.
//!
//! The module does no I/O: it reads headers and returns the bytes to write.
#![forbid(unsafe_code)]

mod relayout;

pub use relayout::{Field, Former, Piece, Relayout, RelayoutError};

use address_space::{PageSize, format_bytes};
use object::elf::{self, FileHeader64, ProgramHeader64};
use object::read::elf::{FileHeader as _, ProgramHeader as _};
use object::{LittleEndian, ReadRef};

/// Offset of `p_align` in a program header of 64 bits (elf(5)).
const ALIGN_AT: u64 = 48;
/// Length of a program header of 64 bits.
const HEADER: u64 = 56;
/// The first word of a record.
const FORMAT: &str = "v1";

/// Not a 64-bit little-endian ELF file with program headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("found no sound 64-bit little-endian ELF file, needed a program or shared object")]
pub struct NotElf;

/// Why the segments of a file cannot be aligned.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum AlignError {
    /// A program of a fixed address.
    #[error(
        "found a program of a fixed address, chosen by the linker: {} of {} of its code are in whole huge pages; \
         needed a position-independent program (-fPIE -pie)", format_bytes(*.covered), format_bytes(*.code)
    )]
    Fixed {
        /// Bytes of code in whole huge pages.
        covered: u64,
        /// Bytes of code.
        code: u64,
    },
    /// No segment's address agrees with its offset.
    #[error(
        "found no read-only segment that fills a huge page of {0} at an address that agrees with its offset, needed \
         one"
    )]
    NothingCongruent(PageSize),
    /// Nothing is left to do.
    #[error("its segments are aligned to {0} already")]
    Aligned(PageSize),
    /// The record does not belong to this file.
    #[error("found no sound record of former values for these segments, needed the one that `pagelift align` wrote")]
    NoRecord,
}

/// A segment that is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its number among all program headers.
    pub index: u64,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Address before the bias.
    pub address: u64,
    /// Bytes that come from the file.
    pub length: u64,
    /// `p_align`.
    pub align: u64,
    /// True if it is executable.
    pub executable: bool,
    /// True if it is writable.
    pub writable: bool,
}

impl Segment {
    /// True if its address agrees with its offset modulo `huge`.
    pub fn is_congruent(&self, huge: PageSize) -> bool {
        (self.address ^ self.offset) & (huge.bytes() - 1) == 0
    }

    /// Its bytes in whole huge pages, if it is congruent.
    pub fn covered(&self, huge: PageSize) -> u64 {
        let (start, end) = (self.offset.div_ceil(huge.bytes()), self.offset.saturating_add(self.length) / huge.bytes());
        if self.is_congruent(huge) { end.saturating_sub(start) * huge.bytes() } else { 0 }
    }
}

/// The facts about the segments of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segments {
    headers_at: u64,
    fixed: bool,
    /// The segments, in the file's order.
    pub all: Vec<Segment>,
}

/// The new value of `p_align` of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewAlign {
    /// Number of the program header.
    pub index: u64,
    /// The offset of the value in the file.
    pub at: u64,
    /// The present value.
    pub old: u64,
    /// The value to be written, as eight bytes, the lowest first.
    pub new: u64,
}

impl Segments {
    /// Reads the program headers.
    ///
    /// # Errors
    /// [`NotElf`].
    pub fn read<'data, R: ReadRef<'data>>(data: R) -> Result<Self, NotElf> {
        let not_elf = |_| NotElf;
        let header = FileHeader64::<LittleEndian>::parse(data).map_err(not_elf)?;
        let endian = header.endian().map_err(not_elf)?;
        let headers: &[ProgramHeader64<LittleEndian>] = header.program_headers(endian, data).map_err(not_elf)?;
        let kind = header.e_type(endian);
        if u64::from(header.e_phentsize(endian)) != HEADER || !(kind == elf::ET_EXEC || kind == elf::ET_DYN) {
            return Err(NotElf);
        }
        let loaded = headers.iter().enumerate().filter(|(_, header)| header.p_type(endian) == elf::PT_LOAD);
        let all: Vec<Segment> = loaded
            .map(|(index, header)| Segment {
                index: index as u64,
                offset: header.p_offset(endian),
                address: header.p_vaddr(endian),
                length: header.p_filesz(endian),
                align: header.p_align(endian),
                executable: header.p_flags(endian).0 & elf::PF_X.0 != 0,
                writable: header.p_flags(endian).0 & elf::PF_W.0 != 0,
            })
            .collect();
        match all.is_empty() {
            true => Err(NotElf),
            false => Ok(Self { headers_at: header.e_phoff(endian), fixed: kind == elf::ET_EXEC, all }),
        }
    }

    /// Bytes of code, and of other segments that are never written.
    pub fn read_only(&self) -> (u64, u64) {
        self.sum(|segment| segment.length)
    }

    /// Their bytes in whole huge pages if the base is a multiple of one.
    pub fn covered(&self, huge: PageSize) -> (u64, u64) {
        self.sum(|segment| segment.covered(huge))
    }

    fn sum(&self, bytes: impl Fn(&Segment) -> u64) -> (u64, u64) {
        let of = |code| {
            let some = self.all.iter().filter(|segment| !segment.writable && segment.executable == code);
            some.map(&bytes).fold(0, u64::saturating_add)
        };
        (of(true), of(false))
    }

    /// True if each start maps the file so that its addresses agree with its offsets modulo `huge` in congruent segments:
    /// a program of a fixed address, or one with an alignment of `huge`.
    pub fn is_placed(&self, huge: PageSize) -> bool {
        self.fixed || self.all.iter().any(|segment| segment.align >= huge.bytes())
    }

    /// The values that have the file placed at a multiple of `huge`.
    ///
    /// # Errors
    /// [`AlignError`]: why that brings nothing.
    pub fn align(&self, huge: PageSize) -> Result<Vec<NewAlign>, AlignError> {
        let (code, covered) = (self.read_only().0, self.covered(huge));
        if self.fixed {
            return Err(AlignError::Fixed { covered: covered.0, code });
        }
        if covered == (0, 0) {
            return Err(AlignError::NothingCongruent(huge));
        }
        if self.is_placed(huge) {
            return Err(AlignError::Aligned(huge));
        }
        let congruent = self.all.iter().filter(|segment| segment.is_congruent(huge));
        Ok(congruent.map(|segment| self.value(segment, huge.bytes())).collect())
    }

    fn value(&self, segment: &Segment, new: u64) -> NewAlign {
        let at = self.headers_at + segment.index * HEADER + ALIGN_AT;
        NewAlign { index: segment.index, at, old: segment.align, new }
    }

    /// The values that a record of [`record`] restores.
    ///
    /// # Errors
    /// [`AlignError::NoRecord`] if it is damaged or does not belong to these segments as they are now.
    pub fn undo(&self, record: &str) -> Result<Vec<NewAlign>, AlignError> {
        let mut words = record.split(' ');
        if words.next() != Some(FORMAT) {
            return Err(AlignError::NoRecord);
        }
        let value = |word: &str| {
            let numbers: Option<Vec<u64>> =
                word.split(':').map(|digits| u64::from_str_radix(digits, 16).ok()).collect();
            let [index, old, new] = numbers?[..] else { return None };
            let segment = self.all.iter().find(|segment| segment.index == index && segment.align == new)?;
            let is_sound = old == 0 || old.is_power_of_two() && (segment.address ^ segment.offset) & (old - 1) == 0;
            is_sound.then(|| self.value(segment, old))
        };
        let values: Option<Vec<NewAlign>> = words.map(value).collect();
        values.filter(|values| !values.is_empty()).ok_or(AlignError::NoRecord)
    }
}

/// A text from which [`Segments::undo`] puts the former values back.
pub fn record(values: &[NewAlign]) -> String {
    let value = |value: &NewAlign| format!(" {:x}:{:x}:{:x}", value.index, value.old, value.new);
    FORMAT.to_owned() + &values.iter().map(value).collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HUGE: u64 = 1 << 21;

    fn segment(index: u64, offset: u64, address: u64, length: u64, executable: bool) -> Segment {
        Segment { index, offset, address, length, align: 0x1000, executable, writable: false }
    }

    fn segments(all: Vec<Segment>) -> Segments {
        Segments { headers_at: 64, fixed: false, all }
    }

    fn huge() -> PageSize {
        PageSize::new(HUGE).unwrap()
    }

    #[test]
    fn only_congruent_segments_are_aligned_and_put_back() {
        let mut found = segments(vec![
            segment(2, 0, 0, HUGE / 2, false),
            segment(3, HUGE / 2, HUGE / 2, 3 * HUGE, true),
            segment(4, 5 * HUGE, 5 * HUGE + 0x1000, 4 * HUGE, false),
        ]);
        assert_eq!((found.covered(huge()), found.read_only()), ((2 * HUGE, 0), (3 * HUGE, 4 * HUGE + HUGE / 2)));
        let values = found.align(huge()).unwrap();
        assert_eq!(values.iter().map(|value| value.index).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(values[1], NewAlign { index: 3, at: 64 + 3 * 56 + 48, old: 0x1000, new: HUGE });
        let text = record(&values);
        assert_eq!(found.undo(&text), Err(AlignError::NoRecord));
        found.all.iter_mut().take(2).for_each(|segment| segment.align = HUGE);
        assert_eq!(found.align(huge()), Err(AlignError::Aligned(huge())));
        let back = found.undo(&text).unwrap();
        assert_eq!(back.iter().map(|value| (value.at, value.new)).collect::<Vec<_>>(), [(224, 0x1000), (280, 0x1000)]);
        for damaged in ["", "v1", "v2 2:1000:200000", "v1 2:1000", "v1 9:1000:200000", "v1 2:1001:200000", "v1 x:1:2"] {
            assert_eq!(found.undo(damaged), Err(AlignError::NoRecord), "{damaged}");
        }
    }

    #[test]
    fn what_brings_nothing_is_refused() {
        let small = segments(vec![segment(0, 0x1000, 0x1000, HUGE, true)]);
        assert_eq!(small.align(huge()), Err(AlignError::NothingCongruent(huge())));
        let fixed = Segments { fixed: true, ..segments(vec![segment(0, 0, 0, 3 * HUGE, true)]) };
        assert_eq!(fixed.align(huge()), Err(AlignError::Fixed { covered: 3 * HUGE, code: 3 * HUGE }));
        assert_eq!(Segments::read(&b"\x7fELF\x02\x01"[..]), Err(NotElf));
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let read = Segments::read(&own[..]).unwrap();
        assert!(read.read_only().0 > 0 && read.all.iter().any(|segment| segment.writable));
        for length in (0..own.len().min(2000)).step_by(7) {
            let _ = Segments::read(&own[..length]);
        }
    }
}
