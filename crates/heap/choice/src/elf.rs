//! The facts about memory allocation in an ELF file. Only the necessary parts are read.

mod contents;
mod hash;
mod scan;
mod symbols;
mod telling;
mod texts;

use contents::Names;
use linux::bounded::{ALLOCATOR_NAMES, Budget, ELF_HEADERS, SYMBOL_TABLES};
use object::elf::{self, DynamicTag};
use object::read::ReadCache;
use object::read::elf::{Dyn, FileHeader, ProgramHeader, SectionHeader};
use object::{Endianness, ReadRef};
use process_view::symbols::Sections;
use process_view::{BoundedFile, FileIdentity, open_regular_file, printable};
use scan::Source;
use std::cell::{Cell, LazyCell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use symbols::{Reading, place};
use texts::ReadOnlyData;

pub(crate) use telling::{OPERATOR_NEW, STARTS_CPP_THREAD, checker_of_library, checker_of_symbol};

/// Which parts of a file are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reads {
    /// The facts of an executable that identify its allocator. Its own symbol table counts too: a linked-in allocator
    /// may not be exported.
    Executable,
    /// The facts of a shared library: its exports and imports.
    Library,
    /// Those of an executable or a library, and the versions of runtimes, for which all read-only data may be read.
    Versions {
        /// As an executable.
        executable: bool,
    },
}

impl Reads {
    /// The reads for the libraries of an executable that is read so.
    pub(crate) fn of_libraries(self) -> Self {
        match self {
            Self::Executable | Self::Library => Self::Library,
            Self::Versions { .. } => Self::Versions { executable: false },
        }
    }

    fn is_executable(self) -> bool {
        matches!(self, Self::Executable | Self::Versions { executable: true })
    }
}

/// Facts of one ELF file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ElfFacts {
    /// The path.
    pub path: PathBuf,
    /// `e_machine`.
    pub machine: u16,
    /// The dynamic linker that it requests.
    pub interpreter: Option<String>,
    /// It has a dynamic section.
    pub is_dynamic: bool,
    /// DT_NEEDED, in order.
    pub needed: Vec<String>,
    /// DT_RPATH and DT_RUNPATH, undivided.
    pub rpath: Option<String>,
    /// DT_RUNPATH.
    pub runpath: Option<String>,
    /// DT_SONAME.
    pub soname: Option<String>,
    /// Telling symbols that it defines.
    pub defines: BTreeSet<String>,
    /// Telling symbols that its dynamic symbol table defines for all objects of a program.
    pub exports: BTreeSet<String>,
    /// Telling symbols that it imports.
    pub imports: BTreeSet<String>,
    /// It carries Go's build information.
    pub is_go: bool,
    /// The version of Go that built it, if it is stored in place (Go 1.18 and later): `go1.22.4`.
    pub go_version: Option<String>,
    /// The version of the Java virtual machine that it is: `17.0.15+6-Debian-1deb12u1`.
    pub jvm_version: Option<String>,
    /// The highest `GLIBC_2.N` of its version definitions or, in a static program, of the library's banner.
    pub glibc_minor: Option<u32>,
    /// The highest `GLIBC_2.N` that it needs of the C library, if it is not the C library itself.
    pub needed_glibc_minor: Option<u32>,
    /// jemalloc's version, if jemalloc is in it: `5.3.0`.
    pub jemalloc_version: Option<String>,
    /// The variable that its jemalloc reads, `MALLOC_CONF` perhaps with a prefix.
    pub jemalloc_variable: Option<String>,
    /// The version of gperftools whose tcmalloc is in it: `2.10`.
    pub gperftools_version: Option<String>,
    /// The version of V8 that is in it: `11.3.244.8-node.38`.
    pub v8_version: Option<String>,
    /// Settings that its allocator knows, from those that Pagelift knows.
    pub settings: BTreeSet<String>,
}

impl ElfFacts {
    /// Reads a file; `None` if it is no regular file, or no 64-bit little-endian ELF file. Paths also come from foreign
    /// files: no device is opened, and no writer of a pipe is waited for.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn read(path: &Path, reads: Reads) -> io::Result<Option<Self>> {
        match open_regular_file(path)? {
            Some(file) => Self::of_file(path, &file, reads),
            None => Ok(None),
        }
    }

    /// Like [`ElfFacts::read`], for an open file. A file that this thread has read before is not read again as long as its
    /// identity is the same.
    ///
    /// # Errors
    /// The file cannot be read, or not as a whole.
    pub fn of_file(path: &Path, file: &File, reads: Reads) -> io::Result<Option<Self>> {
        let metadata = file.metadata()?;
        let key = (FileIdentity::of(&metadata), reads);
        let facts = match KNOWN.with_borrow(|known| known.get(&key).cloned()) {
            Some(known) => known,
            None => {
                let failed = Cell::new(false);
                let facts = Self::read_from(Source { file, failed: &failed }, metadata.len(), reads);
                if failed.get() {
                    return Err(io::Error::other(format!("{} could not be read", printable(&path.to_string_lossy()))));
                }
                KNOWN.with_borrow_mut(|known| {
                    if known.len() >= MOST_KNOWN {
                        known.clear();
                    }
                    known.insert(key, facts.clone());
                });
                facts
            }
        };
        Ok(facts.map(|facts| Self { path: path.to_owned(), ..facts }))
    }

    fn read_from(source: Source<'_>, length: u64, reads: Reads) -> Option<Self> {
        let bounded = BoundedFile::new(source.file, length, SYMBOL_TABLES.bytes());
        let data = &ReadCache::new(bounded.reporting(source.failed));
        let header = elf::FileHeader64::<Endianness>::parse(data).ok()?;
        let endian = header.endian().ok()?;
        let mut facts = Self { machine: header.e_machine(endian).0, ..Self::default() };
        let mut budget = ALLOCATOR_NAMES.budget();
        facts.take_headers(header, endian, data, &mut budget);
        if let Some(sections) = Sections::parse(data, SYMBOL_TABLES) {
            facts.take_versions_of_symbols(&sections, data);
            facts.take_sections(&sections, &mut Reading { source, endian, budget: &mut budget }, reads);
        }
        Some(facts)
    }

    /// True if it defines this symbol, under exactly this name.
    pub fn defines(&self, symbol: &str) -> bool {
        self.defines.contains(symbol)
    }

    /// True if other objects of the program get this symbol from it.
    pub fn exports(&self, symbol: &str) -> bool {
        self.exports.contains(symbol)
    }

    fn take_headers<'a>(
        &mut self,
        header: &elf::FileHeader64<Endianness>,
        endian: Endianness,
        data: impl ReadRef<'a>,
        budget: &mut Budget,
    ) {
        let Ok(headers) = header.program_headers(endian, data) else { return };
        for header in headers.iter().filter(|header| header.p_filesz(endian) <= ELF_HEADERS.bytes()) {
            if header.p_type(endian) == elf::PT_INTERP
                && let Ok(text) = header.data(endian, data)
            {
                self.interpreter = kept(text, budget);
            }
            if let Ok(Some(entries)) = header.dynamic(endian, data) {
                self.is_dynamic = true;
                self.take_dynamic(entries, endian, headers, data, budget);
            }
        }
    }

    fn take_dynamic<'a>(
        &mut self,
        entries: &[elf::Dyn64<Endianness>],
        endian: Endianness,
        headers: &[elf::ProgramHeader64<Endianness>],
        data: impl ReadRef<'a>,
        budget: &mut Budget,
    ) {
        let value =
            |tag: DynamicTag| entries.iter().find(|entry| entry.d_tag(endian) == tag).map(|entry| entry.d_val(endian));
        let (Some(table), Some(size)) = (value(elf::DT_STRTAB), value(elf::DT_STRSZ)) else { return };
        let Some(offset) = file_offset(headers, endian, table) else { return };
        let strings = Names::at(data, offset, size);
        let mut string = |offset: u64| kept(strings.get(u32::try_from(offset).ok()?)?, budget);
        for entry in entries.iter().take_while(|entry| entry.d_tag(endian) != elf::DT_NULL).take(MOST_ENTRIES) {
            let mut text = || string(entry.d_val(endian));
            match entry.d_tag(endian) {
                elf::DT_NEEDED => self.needed.extend(text()),
                elf::DT_RPATH => self.rpath = text(),
                elf::DT_RUNPATH => self.runpath = text(),
                elf::DT_SONAME => self.soname = text(),
                _ => {}
            }
        }
    }

    /// Takes the highest `GLIBC_2.N` among the versions of symbols.
    fn take_versions_of_symbols<'a>(&mut self, sections: &Sections<'a, impl ReadRef<'a>>, data: impl ReadRef<'a>) {
        let endian = sections.endian;
        let minor = |name: &[u8]| std::str::from_utf8(name.strip_prefix(b"GLIBC_2.")?).ok()?.parse::<u32>().ok();
        let highest = |kind: elf::SectionType| {
            let section = sections.of_type(kind).find(|section| section.sh_size(endian) <= ELF_HEADERS.bytes())?;
            let (start, size) = place(sections.linked(section)?, endian);
            let names = Names::at(data, start, size);
            let mut minors = Vec::new();
            if let Ok(Some((mut definitions, _))) = section.gnu_verdef(endian, data) {
                while let Ok(Some((_, mut parts))) = definitions.next() {
                    minors.extend(
                        parts.next().ok().flatten().and_then(|part| minor(names.get(part.vda_name.get(endian))?)),
                    );
                }
            }
            if let Ok(Some((mut needs, _))) = section.gnu_verneed(endian, data) {
                while let Ok(Some((_, mut parts))) = needs.next() {
                    while let Ok(Some(part)) = parts.next() {
                        minors.extend(names.get(part.vna_name.get(endian)).and_then(minor));
                    }
                }
            }
            minors.into_iter().max()
        };
        match self.soname.as_deref().is_some_and(|name| name.starts_with("libc.so")) {
            true => self.glibc_minor = highest(elf::SHT_GNU_VERDEF),
            false => self.needed_glibc_minor = highest(elf::SHT_GNU_VERNEED),
        }
    }

    fn take_sections<'a>(
        &mut self,
        sections: &Sections<'a, impl ReadRef<'a>>,
        reading: &mut Reading<'_>,
        reads: Reads,
    ) {
        let build = sections.named(".go.buildinfo");
        self.is_go = build.is_some() || sections.named(".note.go.buildid").is_some();
        self.go_version = build.and_then(|section| texts::go_version(sections.bytes(section)?));
        let of_table = reads.is_executable() && !self.is_go;
        let is_static = self.interpreter.is_none() && self.needed.is_empty() && self.soname.is_none();
        let found = symbols::read(sections, of_table.then_some(is_static), reading);
        (self.defines, self.exports, self.imports) = (found.defines, found.exports, found.imports);
        let texts = LazyCell::new(|| read_only_data(sections, reading.source));
        self.take_allocator_texts(&texts);
        if is_static && of_table {
            self.glibc_minor = texts.told(texts::GLIBC, texts::banner_minor);
        }
        if matches!(reads, Reads::Versions { .. }) {
            self.take_versions(&texts);
        }
    }

    fn take_allocator_texts<'f>(&mut self, texts: &impl Deref<Target = ReadOnlyData<'f>>) {
        let ends_with = |ends: &[&str]| self.defines.iter().any(|name| ends.iter().any(|end| name.ends_with(end)));
        let (is_jemalloc, has_settings) = (ends_with(&["mallctl"]), ends_with(&["mallctl", "tc_malloc", "mi_malloc"]));
        if is_jemalloc {
            self.jemalloc_version = texts.told(texts::JEMALLOC, texts::jemalloc_version);
            self.jemalloc_variable = texts.told(texts::JEMALLOC_VARIABLE, texts::jemalloc_variable);
        }
        if has_settings {
            self.settings = texts.settings();
        }
    }

    fn take_versions<'f>(&mut self, texts: &impl Deref<Target = ReadOnlyData<'f>>) {
        if self.soname.as_deref().is_some_and(|name| name.starts_with("libjvm.so")) {
            self.jvm_version = texts.told(texts::JVM, texts::jvm_version);
        }
        if self.defines.contains("tc_version") {
            self.gperftools_version = texts.told(texts::GPERFTOOLS, texts::gperftools_version);
        }
        if self.defines.contains("napi_create_function") {
            self.v8_version = texts.told(texts::V8, texts::v8_version);
        }
    }
}

/// Files whose facts a thread keeps.
const MOST_KNOWN: usize = 4096;
/// Maximum number of entries in a dynamic section. A program with 1,000 libraries has about 1,100 entries.
const MOST_ENTRIES: usize = 1 << 14;

thread_local! {
    /// Facts about files that were read, without their paths.
    static KNOWN: RefCell<HashMap<(FileIdentity, Reads), Option<ElfFacts>>> = RefCell::default();
}

/// The text up to the first NUL; `None` if nothing is left of the budget.
fn kept(bytes: &[u8], budget: &mut Budget) -> Option<String> {
    let text = bytes.split(|&byte| byte == 0).next()?;
    budget.spend(text.len() as u64).then(|| String::from_utf8_lossy(text).into_owned())
}

fn file_offset(headers: &[elf::ProgramHeader64<Endianness>], endian: Endianness, address: u64) -> Option<u64> {
    headers.iter().filter(|header| header.p_type(endian) == elf::PT_LOAD).find_map(|header| {
        let inside = address.checked_sub(header.p_vaddr(endian))?;
        if inside < header.p_filesz(endian) { header.p_offset(endian).checked_add(inside) } else { None }
    })
}

/// The sections named `.rodata` and the like, up to the bound of one file's tables in all.
fn read_only_data<'f, 'a>(sections: &Sections<'a, impl ReadRef<'a>>, source: Source<'f>) -> ReadOnlyData<'f> {
    let is_read_only = |name: Option<&[u8]>| name.is_some_and(|name| name.starts_with(b".rodata"));
    let has_contents = |kind: elf::SectionType| kind != elf::SHT_NOBITS;
    let of_it = sections.all().filter(|section| is_read_only(sections.name(section)));
    let parts = of_it.filter(|section| has_contents(section.sh_type(sections.endian)));
    let mut budget = SYMBOL_TABLES.budget();
    let parts = parts.map(|section| place(section, sections.endian)).filter(|&(_, size)| budget.spend(size));
    ReadOnlyData { source, parts: parts.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_is_a_dynamic_program() {
        let facts = ElfFacts::read(&std::env::current_exe().unwrap(), Reads::Executable).unwrap().unwrap();
        assert!(facts.is_dynamic && facts.interpreter.is_some(), "{facts:?}");
        assert!(facts.needed.iter().any(|name| name.starts_with("libc.so")), "{facts:?}");
        assert!(facts.imports.contains("malloc") && !facts.is_go, "{facts:?}");
        assert!(!facts.exports("malloc"), "{facts:?}");
    }

    /// An ELF file that is nothing but a dynamic table of `entries`, with strings from offset `STRINGS` on.
    fn dynamic_file(entries: &[(u64, u64)]) -> Vec<u8> {
        let table: Vec<u8> =
            entries.iter().flat_map(|(tag, value)| [*tag, *value]).flat_map(u64::to_le_bytes).collect();
        let strings = (STRINGS..).zip(b"\0libx.so\0");
        let length = STRINGS as u64 + 4096 + table.len() as u64;
        let mut file = [&[0x7f, b'E', b'L', b'F', 2, 1, 1][..], &[0; 9], &[3, 0, 62, 0, 1, 0, 0, 0]].concat();
        file.extend([0, 64, 0].iter().flat_map(|word: &u64| word.to_le_bytes()));
        file.extend([0, 0, 0, 0, 64, 0, 56, 0, 2, 0, 64, 0, 0, 0, 0, 0]);
        for (kind, offset, size) in [(1u32, 0, length), (2, STRINGS as u64 + 4096, table.len() as u64)] {
            file.extend([kind.to_le_bytes(), 4u32.to_le_bytes()].concat());
            file.extend([offset, offset, offset, size, size, 1].iter().flat_map(|word| word.to_le_bytes()));
        }
        file.resize(STRINGS + 4096, b'y');
        strings.for_each(|(at, byte)| file[at] = *byte);
        file.extend(table);
        file
    }

    const STRINGS: usize = 0x200;

    fn read_bytes(bytes: &[u8]) -> ElfFacts {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        ElfFacts::read(file.path(), Reads::Executable).unwrap().unwrap()
    }

    #[test]
    fn a_table_at_the_end_of_all_offsets_is_no_overflow() {
        let sound = dynamic_file(&[(5, STRINGS as u64), (10, 4096), (1, 1), (0, 0)]);
        assert_eq!(read_bytes(&sound).needed, ["libx.so"]);
        let mut file = dynamic_file(&[(5, u64::MAX - 1), (10, 4096), (0, 0)]);
        // The first segment: offset, address, size in the file.
        file[64 + 8..64 + 24].copy_from_slice(&[u64::MAX - 8, u64::MAX - 16].map(u64::to_le_bytes).concat());
        file[64 + 32..64 + 40].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(read_bytes(&file).needed, [""; 0]);
    }

    #[test]
    fn a_pipe_is_neither_opened_nor_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("libx.so");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(ElfFacts::read(&pipe, Reads::Library).unwrap().is_none()).ok());
        assert_eq!(receiver.recv_timeout(std::time::Duration::from_secs(20)), Ok(true));
    }

    #[test]
    fn what_is_no_elf_file_is_none() {
        assert_eq!(ElfFacts::read(Path::new("/etc/passwd"), Reads::Library).unwrap(), None);
    }
}
