//! What an ELF file tells about memory allocation. Only the parts needed are read.

use heap_abi::ACCOUNT_SYMBOL;
use linux::bounded::{ALLOCATOR_NAMES, Budget, ELF_HEADERS, SYMBOL_TABLES};
use object::elf::{self, DynamicTag};
use object::read::ReadCache;
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Endianness, ReadRef};
use process_view::symbols::{Sections, text_at};
use process_view::{BoundedFile, open_regular_file};
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Symbols that tell allocators and runtimes apart, by the end of their name: allocators are often built with a prefix.
const TELLING: [&str; 23] = [
    ACCOUNT_SYMBOL,
    "mallctl",
    "tc_malloc",
    "tc_version",
    "TCMallocInternalMalloc",
    "mi_malloc",
    "mi_version",
    "malloc",
    "calloc",
    "free",
    "pthread_create",
    "fork",
    "Py_BytesMain",
    "Py_Main",
    "_Py_DecRefShared",
    "napi_create_function",
    "__libc_start_main",
    "__libc_malloc",
    "__malloc_replaced",
    "__malloc_allzerop",
    "_ZN2v87Isolate3NewERKNS0_12CreateParamsE",
    "JLI_Launch",
    "runtime.mallocgc",
];

/// Stands in [`ElfFacts::exports`] for each of C++'s operators new, in [`ElfFacts::imports`] for each operator new or delete.
pub(crate) const OPERATOR_NEW: &str = "operator new";
/// Beginnings of the names of C++'s global operators new, on machines of 64 bits (Itanium C++ ABI, 5.1.5).
const NEW: [&str; 2] = ["_Znwm", "_Znam"];
/// Beginnings of the names of global operators delete.
const DELETE: [&str; 2] = ["_ZdlPv", "_ZdaPv"];

/// Names of settings by which allocators of different versions are told apart: texts by which the allocator looks for them in
/// its variable, or that it shows them by.
const SETTINGS: [&str; 10] = [
    "opt.dirty_decay_ms",
    "opt.calloc_madvise_threshold",
    "opt.decay_time",
    "opt.purge",
    "opt.lg_dirty_mult",
    "purge_delay",
    "allow_decommit",
    "page_reset",
    "TCMALLOC_RELEASE_RATE",
    "TCMALLOC_DISABLE_MEMORY_RELEASE",
];

/// Facts of one ELF file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ElfFacts {
    /// Where it lies.
    pub path: PathBuf,
    /// `e_machine`.
    pub machine: u16,
    /// The dynamic linker it asks for.
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
    /// The version of Go that built it, where that is stored in place (Go 1.18 and later): `go1.22.4`.
    pub go_version: Option<String>,
    /// The version of the Java virtual machine that it is: `17.0.15+6-Debian-1deb12u1`.
    pub jvm_version: Option<String>,
    /// The highest `GLIBC_2.N` of its version definitions or, in a static program, of the library's banner.
    pub glibc_minor: Option<u32>,
    /// The highest `GLIBC_2.N` that it needs of the C library, where it is not that itself.
    pub needed_glibc_minor: Option<u32>,
    /// jemalloc's version, where jemalloc is in it: `5.3.0`.
    pub jemalloc_version: Option<String>,
    /// The variable that its jemalloc reads, `MALLOC_CONF` perhaps with a prefix.
    pub jemalloc_variable: Option<String>,
    /// The version of gperftools whose tcmalloc is in it: `2.10`.
    pub gperftools_version: Option<String>,
    /// The version of V8 that is in it: `11.3.244.8-node.38`.
    pub v8_version: Option<String>,
    /// Settings that its allocator knows, of those that Pagelift knows.
    pub settings: BTreeSet<String>,
}

impl ElfFacts {
    /// Reads a file; `None` where it is no regular file, or no 64-bit little-endian ELF file. Paths come from files that
    /// others wrote, too: no device is opened, and no writer of a pipe is waited for.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn read(path: &Path) -> io::Result<Option<Self>> {
        match open_regular_file(path)? {
            Some(file) => Self::of_file(path, &file),
            None => Ok(None),
        }
    }

    /// Like [`ElfFacts::read`], of a file that is open.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn of_file(path: &Path, file: &File) -> io::Result<Option<Self>> {
        let data = &ReadCache::new(BoundedFile::new(file, file.metadata()?.len(), SYMBOL_TABLES.bytes()));
        let Ok(header) = elf::FileHeader64::<Endianness>::parse(data) else { return Ok(None) };
        let Ok(endian) = header.endian() else { return Ok(None) };
        let mut facts = Self { path: path.to_owned(), machine: header.e_machine(endian).0, ..Self::default() };
        let mut budget = ALLOCATOR_NAMES.budget();
        facts.take_headers(header, endian, data, &mut budget);
        if let Some(sections) = Sections::parse(data, SYMBOL_TABLES) {
            facts.take_sections(&sections, &mut budget);
        }
        Ok(Some(facts))
    }

    /// True where it defines this symbol, under exactly this name.
    pub fn defines(&self, symbol: &str) -> bool {
        self.defines.contains(symbol)
    }

    /// True where other objects of the program get this symbol from it.
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
        if size > SYMBOL_TABLES.bytes() {
            return;
        }
        let Ok(strings) = data.read_bytes_at(offset, size) else { return };
        let mut string = |offset: u64| kept(strings.get(usize::try_from(offset).ok()?..)?, budget);
        for entry in entries.iter().take_while(|entry| entry.d_tag(endian) != elf::DT_NULL) {
            let mut text = || string(entry.d_val(endian));
            match entry.d_tag(endian) {
                elf::DT_NEEDED => self.needed.extend(text()),
                elf::DT_RPATH => self.rpath = text(),
                elf::DT_RUNPATH => self.runpath = text(),
                elf::DT_SONAME => self.soname = text(),
                _ => {}
            }
        }
        let versions = strings
            .split(|&byte| byte == 0)
            .filter_map(|text| std::str::from_utf8(text.strip_prefix(b"GLIBC_2.")?).ok()?.parse::<u32>().ok());
        match self.soname.as_deref().is_some_and(|name| name.starts_with("libc.so")) {
            true => self.glibc_minor = versions.max(),
            false => self.needed_glibc_minor = versions.max(),
        }
    }

    fn take_sections<'a>(&mut self, sections: &Sections<'a, impl ReadRef<'a>>, budget: &mut Budget) {
        for kind in [elf::SHT_DYNSYM, elf::SHT_SYMTAB] {
            for (symbols, names) in sections.of_type(kind).filter_map(|table| sections.symbols(table)) {
                self.take_symbols(symbols, names, sections.endian, kind == elf::SHT_DYNSYM, budget);
            }
        }
        let build = sections.named(".go.buildinfo");
        self.is_go = build.is_some() || sections.named(".note.go.buildid").is_some();
        self.go_version = build.and_then(|section| go_version(sections.bytes(section)?));
        if self.soname.as_deref().is_some_and(|name| name.starts_with("libjvm.so")) {
            self.jvm_version = read_only_data(sections).find_map(jvm_version);
        }
        if self.defines.iter().any(|symbol| symbol.ends_with("mallctl")) {
            self.jemalloc_version = read_only_data(sections).find_map(jemalloc_version);
            self.jemalloc_variable = read_only_data(sections).find_map(jemalloc_variable);
        }
        if self.defines.contains("tc_version") {
            self.gperftools_version = read_only_data(sections).find_map(gperftools_version);
        }
        if self.defines.contains("napi_create_function") {
            self.v8_version = read_only_data(sections).find_map(v8_version);
        }
        if self
            .defines
            .iter()
            .any(|symbol| ["mallctl", "tc_malloc", "mi_malloc"].iter().any(|end| symbol.ends_with(end)))
        {
            let known = read_only_data(sections).flat_map(texts).filter(|text| SETTINGS.contains(text));
            self.settings = known.map(str::to_owned).collect();
        }
        if self.interpreter.is_none() && self.needed.is_empty() && !self.is_go {
            self.glibc_minor = read_only_data(sections).find_map(banner_minor);
        }
    }

    fn take_symbols(
        &mut self,
        symbols: &[elf::Sym64<Endianness>],
        names: &[u8],
        endian: Endianness,
        is_dynamic: bool,
        budget: &mut Budget,
    ) {
        for symbol in symbols {
            let Some(name) = text_at(names, symbol.st_name.get(endian)) else { continue };
            let Ok(name) = std::str::from_utf8(name) else { continue };
            let is_defined = symbol.st_shndx.get(endian) != elf::SHN_UNDEF;
            let Some(name) = telling(name.split('@').next().unwrap_or(name), is_defined) else { continue };
            if !budget.spend(name.len() as u64) {
                continue;
            }
            if !is_defined {
                self.imports.insert(name.to_owned());
                continue;
            }
            if is_dynamic && symbol.st_bind() != elf::STB_LOCAL {
                self.exports.insert(name.to_owned());
            }
            self.defines.insert(name.to_owned());
        }
    }
}

/// The name under which a symbol is kept; `None` where it tells nothing.
fn telling(bare: &str, is_defined: bool) -> Option<&str> {
    let begins = |names: &[&str]| names.iter().any(|name| bare.starts_with(name));
    if begins(&NEW) || !is_defined && begins(&DELETE) {
        return Some(OPERATOR_NEW);
    }
    let ends = TELLING.iter().any(|name| bare.ends_with(name));
    let is_meant = || TELLING.contains(&bare) || bare.ends_with("mallctl") || bare.ends_with("tc_malloc");
    (ends && is_meant()).then_some(bare)
}

/// The text up to the first NUL; `None` where nothing is left of the budget.
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

/// What the sections named `.rodata` and the like hold.
fn read_only_data<'a>(sections: &Sections<'a, impl ReadRef<'a>>) -> impl Iterator<Item = &'a [u8]> {
    let is_read_only = |name: Option<&[u8]>| name.is_some_and(|name| name.starts_with(b".rodata"));
    sections
        .all()
        .filter(move |section| is_read_only(sections.name(section)))
        .filter_map(|section| sections.bytes(section))
}

/// Texts that end with NUL, or where the data ends.
fn texts(data: &[u8]) -> impl Iterator<Item = &str> {
    data.split(|&byte| byte == 0).filter_map(|text| std::str::from_utf8(text).ok())
}

/// What jemalloc calls itself that was built from sources without its file VERSION, as in the crate jemalloc-sys.
const UNKNOWN_JEMALLOC: &str = "0.0.0";

/// jemalloc's own version text, `5.3.0-0-g54eaed1d8b56…`; without the commit, `5.3.0`.
fn jemalloc_version(data: &[u8]) -> Option<String> {
    texts(data).find_map(|text| {
        let (version, rest) = text.split_once('-')?;
        let (number, commit) = rest.split_once("-g")?;
        let numbers: Vec<&str> = version.split('.').collect();
        let all_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let is_version = numbers.len() == 3 && numbers.iter().all(|part| all_digits(part)) && all_digits(number);
        let is_known = version != UNKNOWN_JEMALLOC;
        (is_version && is_known && commit.bytes().all(|byte| byte.is_ascii_hexdigit())).then(|| version.to_owned())
    })
}

/// Go's version in `.go.buildinfo`: a magic text, flags of which the second says that texts stand behind these 32 bytes, then
/// the version with its length before it (Go, debug/buildinfo/buildinfo.go).
fn go_version(data: &[u8]) -> Option<String> {
    const TEXTS_FOLLOW: u8 = 2;
    let (head, texts) = data.split_at_checked(32)?;
    if !head.starts_with(b"\xff Go buildinf:") || head[15] & TEXTS_FOLLOW == 0 {
        return None;
    }
    let (&length, rest) = texts.split_first()?;
    // A varint; versions are shorter than what its first byte can say.
    let version = std::str::from_utf8(rest.get(..usize::from(length & 0x7f))?).ok()?;
    (length < 0x80 && version.starts_with("go") && version.bytes().all(|byte| byte.is_ascii_graphic()))
        .then(|| version.to_owned())
}

/// HotSpot's version in what it writes into its logs (hotspot/share/runtime/abstract_vm_version.cpp).
fn jvm_version(data: &[u8]) -> Option<String> {
    texts(data).find_map(|text| {
        let version = text.split_once(" JRE (")?.1.split_once("), built on")?.0;
        (!version.is_empty() && version.bytes().all(|byte| byte.is_ascii_graphic())).then(|| version.to_owned())
    })
}

/// What `tc_version` answers.
fn gperftools_version(data: &[u8]) -> Option<String> {
    let is_version = |text: &&str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let version = texts(data).filter_map(|text| text.strip_prefix("gperftools ")).find(is_version)?;
    (!version.is_empty()).then(|| version.to_owned())
}

/// V8's version as node has it: four numbers and its own patches (v8, src/utils/version.cc; node, deps/v8).
fn v8_version(data: &[u8]) -> Option<String> {
    texts(data).find_map(|text| {
        let (version, patches) = text.split_once("-node.")?;
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let is_version = version.split('.').count() == 4 && version.split('.').all(is_number) && is_number(patches);
        is_version.then(|| text.to_owned())
    })
}

fn jemalloc_variable(data: &[u8]) -> Option<String> {
    let is_name = |text: &&str| {
        text.ends_with("MALLOC_CONF") && text.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')
    };
    texts(data).find(is_name).map(str::to_owned)
}

/// The minor version in the banner of a static GNU C library.
fn banner_minor(data: &[u8]) -> Option<u32> {
    texts(data).find_map(|text| {
        let rest = text.split_once("GNU C Library ")?.1.split_once("version 2.")?.1;
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gperftools_and_v8_tell_their_versions() {
        let data = b"tc_version\0gperftools %d\0gperftools 2.10\x0011.3-node.1\x0011.3.244.8-node.38\0";
        assert_eq!(gperftools_version(data).as_deref(), Some("2.10"));
        assert_eq!(v8_version(data).as_deref(), Some("11.3.244.8-node.38"));
        assert_eq!((gperftools_version(b"gperftools \0"), v8_version(b"1.2.3.x-node.1\0")), (None, None));
    }

    #[test]
    fn jemalloc_tells_its_version_and_its_variable() {
        let data = b"x\x005.3.0-0-g54eaed1d8b56b1\x00_RJEM_MALLOC_CONF\x00config.malloc_conf\x00";
        assert_eq!(jemalloc_version(data).as_deref(), Some("5.3.0"));
        assert_eq!(jemalloc_variable(data).as_deref(), Some("_RJEM_MALLOC_CONF"));
        assert_eq!(jemalloc_version(b"1.2.3\x002022-01-01-gzz\x00"), None);
        assert_eq!(jemalloc_version(b"0.0.0-0-g0000000000000000000000000000000000000000\x00"), None);
    }

    #[test]
    fn go_tells_its_version() {
        let build = |flags: u8, texts: &[u8]| {
            let mut data = b"\xff Go buildinf:\x08".to_vec();
            data.push(flags);
            data.resize(32, 0);
            [data, texts.to_vec()].concat()
        };
        assert_eq!(go_version(&build(2, b"\x08go1.26.8\xc0\x06rest")).as_deref(), Some("go1.26.8"));
        assert_eq!(go_version(&build(0, b"\x08go1.17.8")), None, "pointers stand there");
        assert_eq!(go_version(&build(2, b"\x20go1.26.8")), None, "it is cut off");
        assert_eq!(go_version(b"\xff Go buildinf:"), None);
    }

    #[test]
    fn a_java_virtual_machine_tells_its_version() {
        let data = b"x\x00OpenJDK 64-Bit Server VM (21+35) for linux-amd64 JRE (21.0.1+12-LTS), built on 2023\x00";
        assert_eq!(jvm_version(data).as_deref(), Some("21.0.1+12-LTS"));
        assert_eq!(jvm_version(b"a JRE (of somebody) that was, built on\x00"), None);
    }

    #[test]
    fn a_static_library_tells_its_version_in_its_banner() {
        let text = b"GNU C Library (Debian GLIBC 2.36-9+deb12u14) stable release version 2.36.\nCopyright";
        assert_eq!(banner_minor(text), Some(36));
        assert_eq!(banner_minor(b"no library"), None);
    }

    #[test]
    fn this_test_is_a_dynamic_program() {
        let facts = ElfFacts::read(&std::env::current_exe().unwrap()).unwrap().unwrap();
        assert!(facts.is_dynamic && facts.interpreter.is_some(), "{facts:?}");
        assert!(facts.needed.iter().any(|name| name.starts_with("libc.so")), "{facts:?}");
        assert!(facts.imports.contains("malloc") && !facts.is_go, "{facts:?}");
        assert!(!facts.exports("malloc"), "{facts:?}");
    }

    #[test]
    fn operators_of_cpp_have_one_name() {
        for name in ["_Znwm", "_Znam", "_ZnwmSt11align_val_t", "_ZnamRKSt9nothrow_t"] {
            assert_eq!([true, false].map(|is_defined| telling(name, is_defined)), [Some(OPERATOR_NEW); 2], "{name}");
        }
        // Whoever calls delete has memory of new; defining delete alone gives none.
        assert_eq!([true, false].map(|is_defined| telling("_ZdaPvm", is_defined)), [None, Some(OPERATOR_NEW)]);
        assert_eq!(
            ["malloc", "my_malloc", "je_mallctl"].map(|name| telling(name, true)),
            [Some("malloc"), None, Some("je_mallctl")]
        );
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
        ElfFacts::read(file.path()).unwrap().unwrap()
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
        std::thread::spawn(move || sender.send(ElfFacts::read(&pipe).unwrap().is_none()).ok());
        assert_eq!(receiver.recv_timeout(std::time::Duration::from_secs(20)), Ok(true));
    }

    #[test]
    fn what_is_no_elf_file_is_none() {
        assert_eq!(ElfFacts::read(Path::new("/etc/passwd")).unwrap(), None);
    }
}
