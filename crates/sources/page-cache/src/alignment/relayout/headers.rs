//! The headers of a file, as numbers.

use super::refusal::RelayoutError;
use crate::alignment::NotElf;
use object::elf::{self, FileHeader64, ProgramHeader64};
use object::read::elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _};
use object::{LittleEndian, ReadRef};

/// Length of the file header, in bytes (elf(5)).
pub const FILE_HEADER: u64 = 64;
/// Length of a program header.
pub const PROGRAM_HEADER: u64 = 56;
/// Length of a section header.
pub const SECTION_HEADER: u64 = 64;
/// The longest file, in bytes: sums of offsets do not overflow.
const LONGEST: u64 = 1 << 50;
/// The largest alignment of a segment, in bytes.
const LARGEST_ALIGN: u64 = 1 << 30;
/// Bytes at the beginning and at the end of a file that name its format.
const ENDS: u64 = 4096;

/// A program header.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    pub is_load: bool,
    /// `p_flags`.
    pub flags: u32,
    pub offset: u64,
    pub address: u64,
    /// `p_paddr`, which nothing on Linux uses.
    pub physical: u64,
    /// Bytes in the file.
    pub length: u64,
    /// Bytes in memory.
    pub memory: u64,
    pub align: u64,
}

impl Program {
    pub fn is_read_only(&self) -> bool {
        self.flags & elf::PF_W.0 == 0
    }

    pub fn is_executable(&self) -> bool {
        self.flags & elf::PF_X.0 != 0
    }

    pub fn is_readable(&self) -> bool {
        self.flags & elf::PF_R.0 != 0
    }
}

/// A section header.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// True if it is a part of the program's memory.
    pub is_allocated: bool,
    /// True if it is thread-local.
    pub is_thread_local: bool,
    /// True if no bytes of the file belong to it.
    pub is_empty: bool,
    pub address: u64,
    pub offset: u64,
    pub size: u64,
}

/// Most program headers of a file. Linkers write some fifteen. A layout compares each with each section, of which a file can have
/// many.
const MOST_PROGRAM_HEADERS: usize = 512;

/// The headers of a file.
#[derive(Clone, Debug)]
pub struct Headers {
    /// Length of the file, in bytes.
    pub length: u64,
    /// True for a program of fixed addresses.
    pub is_fixed: bool,
    /// Offset of the program headers.
    pub programs_at: u64,
    /// Offset of the section headers.
    pub sections_at: u64,
    pub programs: Vec<Program>,
    pub sections: Vec<Section>,
}

impl Headers {
    /// Reads and checks the headers.
    ///
    /// # Errors
    /// [`RelayoutError`] for files of other kinds, packed ones, and headers that contradict each other.
    pub fn read<'data, R: ReadRef<'data>>(data: R) -> Result<Self, RelayoutError> {
        let not_elf = |_| RelayoutError::NotElf(NotElf);
        let header = FileHeader64::<LittleEndian>::parse(data).map_err(not_elf)?;
        let endian = header.endian().map_err(not_elf)?;
        let kind = header.e_type(endian);
        match kind {
            elf::ET_CORE => return Err(RelayoutError::Kind("a core file")),
            elf::ET_REL => return Err(RelayoutError::Kind("an object file or kernel module")),
            elf::ET_EXEC | elf::ET_DYN => {}
            _ => return Err(RelayoutError::NotElf(NotElf)),
        }
        let length = data.len().map_err(|()| RelayoutError::NotElf(NotElf))?;
        if let Some(format) = self_reading(data, length) {
            return Err(RelayoutError::ReadsItself(format));
        }
        let programs: &[ProgramHeader64<LittleEndian>] = header.program_headers(endian, data).map_err(not_elf)?;
        let sections = header.section_headers(endian, data).map_err(not_elf)?;
        if u64::from(header.e_phentsize(endian)) != PROGRAM_HEADER || length > LONGEST {
            return Err(RelayoutError::NotElf(NotElf));
        }
        if sections.is_empty() {
            return Err(RelayoutError::NoSections);
        }
        if programs.len() > MOST_PROGRAM_HEADERS {
            return Err(RelayoutError::Unsound("program headers beyond any that linkers write"));
        }
        let program = |header: &ProgramHeader64<LittleEndian>| Program {
            is_load: header.p_type(endian) == elf::PT_LOAD,
            flags: header.p_flags(endian).0,
            offset: header.p_offset(endian),
            address: header.p_vaddr(endian),
            physical: header.p_paddr(endian),
            length: header.p_filesz(endian),
            memory: header.p_memsz(endian),
            align: header.p_align(endian),
        };
        let section = |header: &elf::SectionHeader64<LittleEndian>| Section {
            is_allocated: header.sh_flags(endian).0 & elf::SHF_ALLOC.0 != 0,
            is_thread_local: header.sh_flags(endian).0 & elf::SHF_TLS.0 != 0,
            is_empty: header.sh_type(endian) == elf::SHT_NOBITS || header.sh_type(endian) == elf::SHT_NULL,
            address: header.sh_addr(endian),
            offset: header.sh_offset(endian),
            size: header.sh_size(endian),
        };
        let headers = Self {
            length,
            is_fixed: kind == elf::ET_EXEC,
            programs_at: header.e_phoff(endian),
            sections_at: header.e_shoff(endian),
            programs: programs.iter().map(program).collect(),
            sections: sections.iter().map(section).collect(),
        };
        headers.check()?;
        Ok(headers)
    }

    fn check(&self) -> Result<(), RelayoutError> {
        let unsound = |what| Err(RelayoutError::Unsound(what));
        let mut end = 0;
        for load in self.programs.iter().filter(|program| program.is_load) {
            let is_inside = |size| load.address.checked_add(size).is_some_and(|end| end <= i64::MAX as u64);
            if load.length > load.memory || !is_inside(load.memory) || load.offset > LONGEST {
                return unsound("a segment with a size that no memory has");
            }
            if load.length > 0 && load.offset.checked_add(load.length).is_none_or(|end| end > self.length) {
                return unsound("a segment that reaches beyond the end of the file");
            }
            if load.align > LARGEST_ALIGN || load.align > 1 && !load.align.is_power_of_two() {
                return unsound("a segment with an alignment that is no power of two, or over 1 GiB");
            }
            if (load.address ^ load.offset) & load.align.saturating_sub(1) != 0 {
                return unsound("a segment with an address that disagrees with its offset modulo its alignment");
            }
            if load.address < end {
                return unsound("segments that are not in the order of their addresses");
            }
            end = load.address + load.memory;
        }
        // Writable ones may: Bun writes out the zeros of a program to which it appends a section.
        let within = |section: &&Section| {
            let is_real = section.is_empty && section.is_allocated && !section.is_thread_local && section.size > 0;
            let mut loads = self.programs.iter().filter(|program| program.is_load && program.is_read_only());
            is_real && loads.any(|load| section.address >= load.address && section.address < load.address + load.length)
        };
        if self.sections.iter().find(within).is_some() {
            return unsound(
                "a section without bytes inside of a read-only segment's bytes, as in a file of debugging information",
            );
        }
        Ok(())
    }

    /// Bytes at the end of the file that belong to no header, section or segment; zeros that fill up less than a page
    /// do not count.
    pub fn trailing<'data, R: ReadRef<'data>>(&self, data: R) -> u64 {
        let table = self.sections_at.saturating_add(self.sections.len() as u64 * SECTION_HEADER);
        let loads = self.programs.iter().filter(|p| p.length > 0).map(|p| p.offset.saturating_add(p.length));
        let sections = self.sections.iter().filter(|s| !s.is_empty).map(|s| s.offset.saturating_add(s.size));
        let end = loads.chain(sections).fold(table, u64::max).min(self.length);
        let rest = self.length - end;
        match rest < ENDS && is_zero(data, end, rest) || counts_from_the_end(data, self.length) {
            true => 0,
            false => rest,
        }
    }
}

/// True if these bytes can be read and are zeros.
pub fn is_zero<'data, R: ReadRef<'data>>(data: R, at: u64, length: u64) -> bool {
    const PIECE: usize = 4096;
    (at..at + length).step_by(PIECE).all(|from| {
        data.read_bytes_at(from, (at + length - from).min(PIECE as u64))
            .is_ok_and(|bytes| bytes.iter().all(|b| *b == 0))
    })
}

/// The format of a file that finds its own contents by offsets from the beginning of the file.
fn self_reading<'data, R: ReadRef<'data>>(data: R, length: u64) -> Option<&'static str> {
    let size = ENDS.min(length);
    let first = data.read_bytes_at(0, size).ok()?;
    let last = data.read_bytes_at(length - size, size).ok()?;
    let holds = |bytes: &[u8], word: &[u8]| bytes.windows(word.len()).any(|part| part == word);
    match () {
        // <https://github.com/AppImage/AppImageSpec>: "AI" and the type at offset 8.
        () if first.get(8..10) == Some(b"AI") => Some("an AppImage"),
        // UPX, `src/stub/src/include/linux.h`: `l_info` follows the program headers.
        () if holds(first, b"UPX!") => Some("a program that UPX has packed"),
        // Linux, `scripts/sign-file.c`.
        () if last.ends_with(b"~Module signature appended~\n") => Some("an appended signature"),
        // Deno up to 1.46, `cli/standalone/binary.rs`: offsets from the beginning in a trailer.
        () if holds(last, b"d3n0l4nd") => Some("a program that `deno compile` made"),
        () => None,
    }
}

/// True if the data behind the last section are of a format that is found from the end of the file.
fn counts_from_the_end<'data, R: ReadRef<'data>>(data: R, length: u64) -> bool {
    let size = ENDS.min(length);
    let Ok(last) = data.read_bytes_at(length - size, size) else { return false };
    // PyInstaller's cookie, and Bun's trailer.
    let marks: [&[u8]; 2] = [b"MEI\x0c\x0b\x0a\x0b\x0e", b"\n---- Bun! ----\n"];
    marks.iter().any(|mark| last.windows(mark.len()).any(|part| part == *mark))
        || archive_directory(last, length)
            .is_some_and(|at| data.read_bytes_at(at, 4).is_ok_and(|mark| mark == b"PK\x01\x02"))
}

/// The place of the directory of a ZIP archive that ends the file, if its offsets count from the archive's own beginning. After
/// `zip -A` they count from the file's, and readers that rely on that would read other bytes after a move. Those of a ZIP64 archive
/// are not read here. An archive in the midst of other data does not count: who reads these may find them from the beginning.
fn archive_directory(last: &[u8], length: u64) -> Option<u64> {
    /// The end record, and its fields (APPNOTE.TXT 4.3.16): size and offset of the directory before it.
    const END: &[u8] = b"PK\x05\x06";
    const SIZE_AT: usize = 12;
    const OFFSET_AT: usize = 16;
    const COMMENT_LENGTH_AT: usize = 20;
    const LENGTH: usize = 22;
    const LOCATOR_OF_ZIP64: &[u8] = b"PK\x06\x07";
    let at = last.windows(END.len()).rposition(|part| part == END)?;
    let record: &[u8; LENGTH] = last.get(at..at + LENGTH)?.first_chunk()?;
    let number = |at: usize| record[at..].first_chunk().map(|word| u64::from(u32::from_le_bytes(*word)));
    let (size, offset) = (number(SIZE_AT)?, number(OFFSET_AT)?);
    let comment = usize::from(u16::from_le_bytes(*record[COMMENT_LENGTH_AT..].first_chunk()?));
    let is_zip64 = last.windows(LOCATOR_OF_ZIP64.len()).any(|part| part == LOCATOR_OF_ZIP64);
    // The end record follows the directory directly, also if the archive is appended to a file.
    let place = length - last.len() as u64 + at as u64;
    let ends_the_file = at + LENGTH + comment == last.len();
    (!is_zip64 && ends_the_file && size + offset < place).then(|| place - size)
}

#[cfg(test)]
mod tests {
    use super::archive_directory;

    #[test]
    fn an_archive_moves_only_if_its_offsets_count_from_its_own_beginning() {
        // A program of 30 bytes, five of an archived file, and the directory in ten bytes.
        let archive = |offset: u32, before: &[u8]| {
            let sizes = [10u32.to_le_bytes(), offset.to_le_bytes()].concat();
            [&[7; 45][..], before, b"PK\x05\x06", &[0; 8], &sizes, &[0; 2]].concat()
        };
        let moves = |file: &[u8]| archive_directory(file, file.len() as u64).is_some();
        assert_eq!(archive_directory(&archive(5, &[]), 67), Some(35));
        let with_more = [&archive(5, &[])[..], &[7; 20]].concat();
        assert!(!moves(&with_more), "other data follow");
        assert!(!moves(&archive(35, &[])), "its offsets count from the file's beginning");
        assert!(!moves(&archive(5, b"PK\x06\x07")), "a ZIP64 archive");
        assert!(!moves(&archive(5, &[])[..60]) && !moves(b"PK\x05\x06"));
    }
}
