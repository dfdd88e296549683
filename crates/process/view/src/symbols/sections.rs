//! The sections of an ELF file, each read only when asked for and only up to a bound. Their contents and sizes are the
//! file's, which may be hostile: a size is checked before memory is allocated for it.

use linux::bounded::MemoryBound;
use object::read::elf::{FileHeader, SectionHeader};
use object::{Endianness, Pod, ReadRef, elf, slice_from_all_bytes};

/// Maximum number of sections; a file with more counts as damaged.
const MOST_SECTIONS: u32 = 1 << 16;
/// Names of sections together; real ones have some hundred bytes.
const MOST_NAME_BYTES: u64 = 1 << 24;

/// A section's header.
pub type Section = elf::SectionHeader64<Endianness>;

/// The section table of one file.
#[derive(Clone, Copy)]
pub struct Sections<'data, R: ReadRef<'data>> {
    /// Byte order.
    pub endian: Endianness,
    /// `e_machine`.
    pub machine: elf::Machine,
    data: R,
    headers: &'data [Section],
    names: &'data [u8],
    bound: MemoryBound,
}

impl<'data, R: ReadRef<'data>> Sections<'data, R> {
    /// `None` for a file without sections or with damaged ones. No section larger than `bound` is read.
    pub fn parse(data: R, bound: MemoryBound) -> Option<Self> {
        let header = elf::FileHeader64::<Endianness>::parse(data).ok()?;
        let endian = header.endian().ok()?;
        if header.shnum(endian, data).ok()? > MOST_SECTIONS {
            return None;
        }
        let headers = header.section_headers(endian, data).ok()?;
        let index = header.shstrndx(endian, data).ok()?;
        let names = headers.get(index as usize)?;
        let small = names.sh_size(endian) <= MOST_NAME_BYTES;
        let names = if small { names.data(endian, data).ok()? } else { return None };
        Some(Self { endian, machine: header.e_machine(endian), data, headers, names, bound })
    }

    /// The file's bytes.
    pub fn data(&self) -> R {
        self.data
    }

    /// The section with this name.
    pub fn named(&self, name: &str) -> Option<&'data Section> {
        self.headers.iter().find(|section| {
            let start = self.names.get(section.sh_name(self.endian) as usize..);
            // Compared before the name's end is searched: few sections have it.
            start.is_some_and(|start| start.starts_with(name.as_bytes())) && self.name(section) == Some(name.as_bytes())
        })
    }

    /// All sections.
    pub fn all(&self) -> impl Iterator<Item = &'data Section> {
        self.headers.iter()
    }

    /// A section's name.
    pub fn name(&self, section: &Section) -> Option<&'data [u8]> {
        text_at(self.names, section.sh_name(self.endian))
    }

    /// A symbol table's entries and the string table that belongs to it.
    pub fn symbols(&self, table: &Section) -> Option<(&'data [elf::Sym64<Endianness>], &'data [u8])> {
        let names = self.linked(table).filter(|section| section.sh_type(self.endian) == elf::SHT_STRTAB)?;
        Some((self.entries(table)?, self.bytes(names)?))
    }

    /// The sections of this type.
    pub fn of_type(&self, kind: elf::SectionType) -> impl Iterator<Item = &'data Section> {
        let endian = self.endian;
        self.headers.iter().filter(move |s| s.sh_type(endian) == kind)
    }

    /// The section that another one refers to by `sh_link`.
    pub fn linked(&self, section: &Section) -> Option<&'data Section> {
        self.headers.get(section.sh_link(self.endian) as usize)
    }

    /// The first address behind a section.
    pub fn end_of(&self, index: usize) -> Option<u64> {
        let section = self.headers.get(index)?;
        section.sh_addr(self.endian).checked_add(section.sh_size(self.endian))
    }

    /// Offset and size of a section in the file; `None` for one without contents or too large.
    pub fn place(&self, section: &Section) -> Option<(u64, u64)> {
        let has_contents = section.sh_type(self.endian) != elf::SHT_NOBITS;
        let compressed = section.sh_flags(self.endian).0 & elf::SHF_COMPRESSED.0 != 0;
        let (offset, size) = (section.sh_offset(self.endian), section.sh_size(self.endian));
        (has_contents && !compressed && size <= self.bound.bytes()).then_some((offset, size))
    }

    /// A section's bytes; `None` for one without contents, out of the file, or too large.
    pub fn bytes(&self, section: &Section) -> Option<&'data [u8]> {
        let (offset, size) = self.place(section)?;
        self.data.read_bytes_at(offset, size).ok()
    }

    /// A section's bytes as entries; bytes behind the last whole entry do not count.
    pub fn entries<T: Pod>(&self, section: &Section) -> Option<&'data [T]> {
        let bytes = self.bytes(section)?;
        let whole = bytes.len() - bytes.len() % size_of::<T>();
        slice_from_all_bytes(&bytes[..whole]).ok()
    }

    /// The GNU build-id that a note section holds, in hexadecimal.
    pub fn build_id(&self) -> Option<String> {
        self.of_type(elf::SHT_NOTE).filter(|s| s.sh_size(self.endian) <= MOST_NAME_BYTES).find_map(|section| {
            let mut notes = section.notes(self.endian, self.data).ok()??;
            while let Ok(Some(note)) = notes.next() {
                if note.name() == elf::ELF_NOTE_GNU && note.n_type(self.endian).0 == elf::NT_GNU_BUILD_ID.0 {
                    return Some(note.desc().iter().map(|byte| format!("{byte:02x}")).collect());
                }
            }
            None
        })
    }
}

/// The NUL-terminated text at an offset of a string table.
pub fn text_at(table: &[u8], offset: u32) -> Option<&[u8]> {
    let text = table.get(offset as usize..)?;
    Some(&text[..memchr::memchr(0, text)?])
}
