//! Programs that trace processes themselves.
//!
//! A process has one tracer at most: the helper must not trace a process that a descendant wants to trace. Nothing
//! reports a call of ptrace(2) before it fails, so such programs are recognised when they are executed, by their
//! imports and by their names. They are left alone with all their descendants.

use linux::bounded::SYMBOL_TABLES;
use linux::capabilities::{self, CapabilitySet};
use object::elf::{self, FileHeader64};
use object::read::elf::{Dyn, FileHeader, GnuHashTable, ProgramHeader, SectionTable, Sym, SymbolTable, VersionTable};
use object::{Endianness, ReadCache, ReadRef};
use process_view::{BoundedFile, FileIdentity, ProcessFiles, executed_metadata, open_executed};
use std::collections::HashMap;
use std::fs::File;
use std::io;

/// Tracers that are linked statically, or do not call ptrace by its name.
const NAMES: [&str; 10] =
    ["dlv", "gdb", "gdbserver", "lldb", "lldb-server", "ltrace", "proot", "rr", "strace", "wineserver"];

/// The function by which a program traces.
const FUNCTION: &str = "ptrace";

/// Functions of LeakSanitizer, which other sanitizers include. It traces the threads of its own process at the end.
const SANITIZERS: [&str; 3] = ["__lsan_do_leak_check", "__asan_init", "__hwasan_init"];

/// Beginnings of the names of libraries that contain it.
const SANITIZER_LIBRARIES: [&str; 6] =
    ["liblsan.", "libasan.", "libhwasan.", "libclang_rt.lsan", "libclang_rt.asan", "libclang_rt.hwasan"];

/// Number of files that are remembered.
const MOST_FILES: usize = 4096;

/// Files of programs, and why they are left alone.
#[derive(Default)]
pub struct Tracers {
    known: HashMap<FileIdentity, Option<&'static str>>,
}

impl Tracers {
    /// Returns why the program that a process executes is left alone, if it is.
    pub fn why(&mut self, pid: i32) -> Option<&'static str> {
        let process = ProcessFiles::of(pid);
        let identity = FileIdentity::of(&executed_metadata(&process)?);
        if let Some(known) = self.known.get(&identity) {
            return *known;
        }
        let name = std::fs::read_link(process.path("exe")).ok();
        let name = name.as_ref().and_then(|path| path.file_name()?.to_str()).unwrap_or_default();
        let why = match NAMES.contains(&name) {
            true => Some("it has the name of a tracer"),
            // A file that cannot be read as ELF is no reason.
            false => open_executed(&process).ok().flatten().and_then(|(file, _)| of_file(&file).ok().flatten()),
        };
        if self.known.len() >= MOST_FILES {
            self.known.clear();
        }
        self.known.insert(identity, why);
        why
    }
}

type Header = FileHeader64<Endianness>;

/// Returns the evidence in an ELF file that it traces.
fn of_file(file: &File) -> io::Result<Option<&'static str>> {
    let length = file.metadata()?.len();
    let cache = ReadCache::new(BoundedFile::new(file, length, SYMBOL_TABLES.bytes()));
    of_program(&cache).map_err(io::Error::other)
}

fn of_program<'data, R: ReadRef<'data>>(data: R) -> object::Result<Option<&'static str>> {
    let header = Header::parse(data)?;
    let endian = header.endian()?;
    let sanitizer = Some("it has LeakSanitizer, which traces its process");
    // A program may need a library by its path.
    let file = |name: &str| name.rsplit('/').next().unwrap_or_default().to_owned();
    let of_sanitizer = |name: &String| SANITIZER_LIBRARIES.iter().any(|known| file(name).starts_with(known));
    if libraries(header, endian, data).unwrap_or_default().iter().any(of_sanitizer) {
        return Ok(sanitizer);
    }
    let sections = header.sections(endian, data)?;
    let symbols = DynamicSymbols::of(&sections, endian, data)?;
    if SANITIZERS.iter().any(|name| symbols.find(name).is_some()) {
        return Ok(sanitizer);
    }
    let calls = symbols.find(FUNCTION).is_some_and(|symbol| symbol.is_undefined(endian));
    Ok(calls.then_some("it calls ptrace itself"))
}

/// The dynamic symbols of a file. Programs with plugins export a hundred thousand, so names are looked up in the hash table.
/// Imports come first, and are not in it unless their address is taken.
struct DynamicSymbols<'data, R: ReadRef<'data>> {
    endian: Endianness,
    symbols: SymbolTable<'data, Header, R>,
    hash: Option<GnuHashTable<'data, Header>>,
}

impl<'data, R: ReadRef<'data>> DynamicSymbols<'data, R> {
    fn of(sections: &SectionTable<'data, Header, R>, endian: Endianness, data: R) -> object::Result<Self> {
        // The table's reader shifts by this number.
        let is_sound = sections.gnu_hash_header(endian, data)?.is_some_and(|found| found.bloom_shift.get(endian) < 32);
        let hash = if is_sound { sections.gnu_hash(endian, data)?.map(|(table, _)| table) } else { None };
        Ok(Self { endian, symbols: sections.symbols(endian, data, elf::SHT_DYNSYM)?, hash })
    }

    fn find(&self, name: &str) -> Option<&'data elf::Sym64<Endianness>> {
        let name = name.as_bytes();
        let unhashed = self.hash.as_ref().map_or(usize::MAX, |hash| hash.symbol_base() as usize);
        let named = |symbol: &&elf::Sym64<Endianness>| self.symbols.symbol_name(self.endian, symbol) == Ok(name);
        let hashed = |hash: &GnuHashTable<'data, Header>| {
            let found =
                hash.find(self.endian, name, elf::gnu_hash(name), None, &self.symbols, &VersionTable::default());
            Some(found?.1)
        };
        let imported = self.symbols.symbols().iter().take(unhashed).find(named);
        imported.or_else(|| self.hash.as_ref().and_then(hashed))
    }
}

/// Returns the names of the libraries that an ELF file needs.
fn libraries<'data, R: ReadRef<'data>>(header: &Header, endian: Endianness, data: R) -> Option<Vec<String>> {
    let segments = header.program_headers(endian, data).ok()?;
    let dynamic = segments.iter().find_map(|segment| segment.dynamic(endian, data).ok().flatten())?;
    let entries = |tag: elf::DynamicTag| dynamic.iter().filter(move |entry| entry.tag(endian) == tag);
    let value = |tag: elf::DynamicTag| entries(tag).next().map(|entry| entry.val(endian));
    let (at, size) = (value(elf::DT_STRTAB)?, value(elf::DT_STRSZ)?);
    let offset = segments.iter().filter(|segment| segment.p_type(endian) == elf::PT_LOAD).find_map(|segment| {
        let into = at.checked_sub(segment.p_vaddr(endian))?;
        (into < segment.p_filesz(endian)).then(|| segment.p_offset(endian).checked_add(into))?
    })?;
    let strings = object::StringTable::new(data, offset, offset.checked_add(size)?);
    let name = |offset: u64| strings.get(u32::try_from(offset).ok()?).ok();
    let names = entries(elf::DT_NEEDED).filter_map(|entry| name(entry.val(endian)));
    Some(names.map(|name| String::from_utf8_lossy(name).into_owned()).collect())
}

/// True if this process may trace its own descendants only (Yama, `kernel.yama.ptrace_scope`).
pub(super) fn may_trace_descendants_only() -> bool {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    !matches!(scope.trim(), "" | "0")
        && !capabilities::of_this_thread().is_ok_and(|own| own.effective.contains(CapabilitySet::SYS_PTRACE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_program_is_no_tracer() {
        let file = tempfile::tempfile().unwrap();
        assert!(of_file(&file).is_err());
    }

    /// Rust's linker makes a GNU hash table, in which the C library's functions are not.
    #[test]
    fn a_program_that_imports_the_function_is_a_tracer() {
        assert!(nix::sys::ptrace::detach(nix::unistd::Pid::from_raw(0), None).is_err());
        assert_eq!(of_file(&File::open("/proc/self/exe").unwrap()).unwrap(), Some("it calls ptrace itself"));
    }

    #[test]
    fn exports_are_found_by_the_hash_table() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let path = maps.lines().find_map(|line| line.split(' ').next_back().filter(|path| path.contains("/libc.")));
        let Some(bytes) = path.and_then(|path| std::fs::read(path).ok()) else { return };
        let (data, header) = (&*bytes, Header::parse(&*bytes).unwrap());
        let endian = header.endian().unwrap();
        let symbols = DynamicSymbols::of(&header.sections(endian, data).unwrap(), endian, data).unwrap();
        let found = |name: &str| symbols.find(name).map(|symbol| symbol.is_undefined(endian));
        assert!(symbols.hash.is_some());
        assert_eq!(
            [found("ptrace"), found("__tls_get_addr"), found("no_such_function")],
            [Some(false), Some(true), None]
        );
    }

    #[test]
    fn the_c_library_defines_the_function_and_does_not_call_it() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let Some(path) =
            maps.lines().find_map(|line| line.split(' ').next_back().filter(|path| path.contains("/libc.")))
        else {
            return;
        };
        assert_eq!(of_file(&File::open(path).unwrap()).unwrap(), None);
    }
}
