//! ELF images, reduced to what determines which memory of a process may move (elf(5)).

use crate::{Address, AddressRange, PageSize, Protection};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use object::elf;
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Endianness, ReadRef};
use serde::Serialize;

type Header = elf::FileHeader64<Endianness>;
type Segment = elf::ProgramHeader64<Endianness>;

/// Maximum number of program headers; an image with more counts as damaged, real ones have about ten.
const MOST_SEGMENTS: u32 = 4096;
/// Length of the longest interpreter path that the kernel accepts, in bytes (PATH_MAX).
const LONGEST_INTERPRETER: u64 = 4096;
/// Maximum size of notes and dynamic tables that are read, in bytes: a hostile header must not cause a whole huge file
/// to be read.
const MOST_NOTE_BYTES: u64 = 1 << 20;
const MOST_DYNAMIC_BYTES: u64 = 1 << 20;
/// Length of the longest build ID that is accepted, in bytes. Linkers write 8 to 32.
const LONGEST_BUILD_ID: usize = 64;

/// Why an ELF file cannot be parsed. Its program runs unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ElfError {
    /// No ELF magic number.
    #[error("not an ELF file")]
    NotElf,
    /// 32-bit images cannot be lifted.
    #[error("a 32-bit ELF file; only 64-bit programs can be lifted")]
    ThirtyTwoBit,
    /// Neither an executable nor a shared object.
    #[error("an ELF file of type {0}, neither an executable nor a shared object")]
    NotLoadable(u16),
    /// Headers that contradict themselves or the file's length.
    #[error("a damaged ELF file: {0}")]
    Damaged(&'static str),
}

/// How the image is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ElfKind {
    /// `ET_EXEC`: at the addresses in the file.
    FixedAddress,
    /// `ET_DYN`: position-independent executable or shared object.
    PositionIndependent,
}

/// One `PT_LOAD` program header. Addresses are as in the file, before the bias is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LoadSegment {
    /// `p_vaddr` to `p_vaddr + p_memsz`, to the byte.
    pub memory: AddressRange,
    /// `p_filesz`.
    pub file_size: u64,
    /// `p_offset`.
    pub offset: u64,
    /// Protection asked for.
    pub protection: Protection,
    /// `p_align`, at least 1.
    pub align: u64,
}

impl LoadSegment {
    /// The part of the segment that comes from the file, to the byte.
    pub fn file_memory(&self) -> AddressRange {
        AddressRange::sized(self.memory.start(), self.file_size)
    }
}

/// The loadable shape of one ELF file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ElfImage {
    /// `e_machine`.
    pub machine: u16,
    /// Placement.
    pub kind: ElfKind,
    /// `e_entry`, before the bias.
    pub entry: Address,
    /// The address of the program headers, before the bias, if a segment contains them.
    pub headers: Option<Address>,
    /// `PT_LOAD` segments in the file's order.
    pub segments: Vec<LoadSegment>,
    /// `PT_GNU_RELRO`: becomes read-only once relocated.
    pub relro: Option<AddressRange>,
    /// `PT_INTERP`, the dynamic linker asked for.
    pub interpreter: Option<String>,
    /// Has a `PT_DYNAMIC`.
    pub dynamic: bool,
    /// `DT_TEXTREL` or `DF_TEXTREL`: relocations change read-only segments.
    pub text_relocations: bool,
    /// `DT_SONAME`.
    pub soname: Option<String>,
    /// GNU build-id, in hexadecimal.
    pub build_id: Option<String>,
}

impl ElfImage {
    /// Reads the headers of an ELF file, and no more of the file than is needed.
    ///
    /// # Errors
    /// [`ElfError`] for anything but a sound 64-bit executable or shared object. Hostile input never panics.
    pub fn parse<'data, R: ReadRef<'data>>(data: R) -> Result<Self, ElfError> {
        let ident = data.read_bytes_at(0, 16).map_err(|()| ElfError::NotElf)?;
        if !ident.starts_with(&elf::ELFMAG) {
            return Err(ElfError::NotElf);
        }
        if ident[4] == elf::ELFCLASS32.0 {
            return Err(ElfError::ThirtyTwoBit);
        }
        let header = Header::parse(data).map_err(|_| ElfError::Damaged("its header"))?;
        let endian = header.endian().map_err(|_| ElfError::Damaged("its byte order"))?;
        let kind = match header.e_type(endian) {
            elf::ET_EXEC => ElfKind::FixedAddress,
            elf::ET_DYN => ElfKind::PositionIndependent,
            other => return Err(ElfError::NotLoadable(other.0)),
        };
        let damaged_table = |_| ElfError::Damaged("its program header table");
        if header.phnum(endian, data).map_err(damaged_table)? > MOST_SEGMENTS {
            return Err(ElfError::Damaged("too many program headers"));
        }
        let headers = header.program_headers(endian, data).map_err(damaged_table)?;
        let mut image = Self {
            machine: header.e_machine(endian).0,
            kind,
            entry: Address(header.e_entry(endian)),
            headers: None,
            segments: Vec::new(),
            relro: None,
            interpreter: None,
            dynamic: false,
            text_relocations: false,
            soname: None,
            build_id: None,
        };
        for segment in headers {
            image.take_segment(segment, endian, data)?;
        }
        image.check_segments()?;
        image.headers = image.address_of_offset(header.e_phoff(endian));
        image.read_dynamic(header, endian, data);
        Ok(image)
    }

    fn take_segment<'data, R: ReadRef<'data>>(
        &mut self,
        segment: &Segment,
        endian: Endianness,
        data: R,
    ) -> Result<(), ElfError> {
        let start = segment.p_vaddr(endian);
        let length = segment.p_memsz(endian);
        let end = start.checked_add(length).ok_or(ElfError::Damaged("a segment past the end of memory"))?;
        let memory = AddressRange::new(Address(start), Address(end));
        match segment.p_type(endian) {
            elf::PT_LOAD => self.segments.push(LoadSegment {
                memory,
                file_size: segment.p_filesz(endian),
                offset: segment.p_offset(endian),
                protection: protection_of(segment.p_flags(endian)),
                align: segment.p_align(endian).max(1),
            }),
            elf::PT_GNU_RELRO => self.relro = Some(memory),
            elf::PT_DYNAMIC => self.dynamic = true,
            elf::PT_INTERP if segment.p_filesz(endian) > LONGEST_INTERPRETER => {
                return Err(ElfError::Damaged("an interpreter longer than any path"));
            }
            elf::PT_INTERP => self.interpreter = text_of(segment.data(endian, data).ok()),
            elf::PT_NOTE if self.build_id.is_none() && segment.p_filesz(endian) <= MOST_NOTE_BYTES => {
                self.build_id = segment.notes(endian, data).ok().flatten().and_then(|notes| build_id_in(notes, endian));
            }
            _ => {}
        }
        Ok(())
    }

    fn check_segments(&self) -> Result<(), ElfError> {
        if self.segments.is_empty() {
            return Err(ElfError::Damaged("it has nothing to load"));
        }
        let mut end = Address(0);
        for segment in &self.segments {
            if segment.file_size > segment.memory.len() {
                return Err(ElfError::Damaged("a segment larger in the file than in memory"));
            }
            if segment.offset.checked_add(segment.file_size).is_none() {
                return Err(ElfError::Damaged("a segment past the end of the file"));
            }
            if !segment.align.is_power_of_two() {
                return Err(ElfError::Damaged("a segment whose alignment is no power of two"));
            }
            if segment.memory.start() < end {
                return Err(ElfError::Damaged("segments that overlap or are not in order"));
            }
            end = segment.memory.end();
        }
        Ok(())
    }

    fn read_dynamic<'data, R: ReadRef<'data>>(&mut self, header: &Header, endian: Endianness, data: R) {
        let Ok(headers) = header.program_headers(endian, data) else { return };
        let Some(segment) = headers.iter().find(|h| h.p_type(endian) == elf::PT_DYNAMIC) else { return };
        if segment.p_filesz(endian) > MOST_DYNAMIC_BYTES {
            return;
        }
        let Ok(Some(table)) = segment.dynamic(endian, data) else { return };
        let (mut names, mut soname) = (None, None);
        for entry in table {
            let tag = entry.tag(endian);
            let value = entry.d_val(endian);
            match tag {
                elf::DT_NULL => break,
                elf::DT_TEXTREL => self.text_relocations = true,
                elf::DT_FLAGS if value & elf::DF_TEXTREL.0 != 0 => self.text_relocations = true,
                elf::DT_STRTAB => names = Some(Address(value)),
                elf::DT_SONAME => soname = Some(value),
                _ => {}
            }
        }
        if let (Some(names), Some(soname)) = (names, soname) {
            self.soname = names
                .checked_add(soname)
                .and_then(|address| self.offset_of_address(address))
                .and_then(|offset| data.read_bytes_at(offset, 256.min(data.len().ok()?.checked_sub(offset)?)).ok())
                .and_then(|bytes| text_of(Some(bytes)));
        }
    }

    /// The address of the ELF header (before the bias), if a segment holds it.
    pub fn file_header(&self) -> Option<Address> {
        self.address_of_offset(0)
    }

    fn address_of_offset(&self, offset: u64) -> Option<Address> {
        let holder = self.segments.iter().find(|s| offset >= s.offset && offset - s.offset < s.file_size)?;
        Some(holder.memory.start() + (offset - holder.offset))
    }

    /// Returns the file offset of the byte at this address (before the bias).
    pub fn offset_of_address(&self, address: Address) -> Option<u64> {
        let holder = self.segments.iter().find(|s| s.file_memory().contains(address))?;
        holder.offset.checked_add(address - holder.memory.start())
    }

    /// From the first byte of the first segment to the last of the last, before the bias.
    pub fn extent(&self) -> AddressRange {
        match (self.segments.first(), self.segments.last()) {
            (Some(first), Some(last)) => AddressRange::new(first.memory.start(), last.memory.end()),
            _ => AddressRange::new(Address(0), Address(0)),
        }
    }

    /// The largest alignment that a segment requests, in bytes; a base must be a multiple.
    pub fn largest_alignment(&self, base_page: PageSize) -> PageSize {
        let largest = self.segments.iter().map(|s| s.align).max().unwrap_or(1);
        PageSize::new(largest.max(base_page.bytes())).unwrap_or(base_page)
    }

    /// True for an image that the kernel starts by itself, without a dynamic linker.
    pub fn is_static(&self) -> bool {
        self.interpreter.is_none()
    }

    /// True for the dynamic linker itself, by its soname.
    pub fn is_dynamic_linker(&self) -> bool {
        self.soname
            .as_deref()
            .is_some_and(|name| ["ld-linux", "ld-musl", "ld64.", "ld.so"].iter().any(|prefix| name.starts_with(prefix)))
            || (self.soname.as_deref() == Some("libc.so") && self.entry != Address(0))
    }
}

fn protection_of(flags: elf::ProgramFlags) -> Protection {
    let has = |bit: elf::ProgramFlags| flags.0 & bit.0 != 0;
    Protection { read: has(elf::PF_R), write: has(elf::PF_W), execute: has(elf::PF_X) }
}

/// The text before the first NUL, if it is UTF-8.
fn text_of(bytes: Option<&[u8]>) -> Option<String> {
    let bytes = bytes?;
    let end = bytes.iter().position(|&b| b == 0)?;
    String::from_utf8(bytes[..end].to_vec()).ok()
}

fn build_id_in(mut notes: object::read::elf::NoteIterator<'_, Header>, endian: Endianness) -> Option<String> {
    while let Ok(Some(note)) = notes.next() {
        if note.name() == elf::ELF_NOTE_GNU && note.n_type(endian).0 == elf::NT_GNU_BUILD_ID.0 {
            let id = note.desc();
            return (id.len() <= LONGEST_BUILD_ID).then(|| id.iter().map(|byte| format!("{byte:02x}")).collect());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_id_of_length(length: u32) -> Option<String> {
        let header = [4, length, elf::NT_GNU_BUILD_ID.0].map(u32::to_le_bytes).concat();
        let padded = alloc::vec![0xab; length.next_multiple_of(4) as usize];
        let bytes = [&header[..], b"GNU\0", &padded].concat();
        build_id_in(
            object::read::elf::NoteIterator::new(Endianness::Little, 4_u64, &bytes).unwrap(),
            Endianness::Little,
        )
    }

    /// The length is a number in a file that any user can write.
    #[test]
    fn a_build_id_longer_than_any_linker_writes_is_none() {
        for length in [8, 20, 64] {
            assert_eq!(build_id_of_length(length), Some("ab".repeat(length as usize)));
        }
        for length in [65, 1_000_000] {
            assert_eq!(build_id_of_length(length), None);
        }
    }
}
