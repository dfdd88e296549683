//! Reads the list of objects that the dynamic linker has loaded: its `r_debug` record and the chain of `link_map`s (the
//! C libraries' `<link.h>`; glibc and musl agree). Needed for objects whose every mapping has been lifted off the file.

use crate::bounded_file::BoundedFile;
use crate::mapped_file::Opener;
use crate::opening::MappedFile;
use crate::process_memory::ProcessMemoryFile;
use address_space::{Address, AddressRange, LoadedObject};
use linux::bounded::ELF_HEADERS;
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, ReadCache, elf};
use std::collections::BTreeSet;

/// Maximum length of the chain; a longer one counts as damaged.
const MOST_OBJECTS: usize = 1 << 14;
/// Maximum size of a dynamic table, in bytes; real ones have some thirty entries of 16 bytes.
const MOST_DYNAMIC_BYTES: u64 = 1 << 16;

/// An object as the dynamic linker names it.
#[derive(Debug)]
pub(crate) struct LinkedObject {
    pub bias: u64,
    pub path: String,
}

/// The chain of objects that belongs to `executable`; empty if there is none or it cannot be read.
pub(crate) fn linked_objects(
    opener: &Opener<'_>,
    memory: &ProcessMemoryFile,
    executable: &LoadedObject,
) -> Vec<LinkedObject> {
    let chain = || {
        let file = opener.open_executed().ok().flatten();
        // Started as `ld.so PROGRAM`, the executed file is the linker, and its table says nothing.
        let file =
            file.filter(|f| is_in_memory(f, executable, memory)).or_else(|| open_loaded(opener, executable, memory));
        let table = dynamic_table(&file?)?.shifted(executable.bias);
        Some(follow(memory, debug_record(memory, table)?))
    };
    chain().unwrap_or_default()
}

/// Opens the file by an object's path if the object's memory still begins as the file does.
pub(crate) fn open_loaded(
    opener: &Opener<'_>,
    object: &LoadedObject,
    memory: &ProcessMemoryFile,
) -> Option<MappedFile> {
    opener.open_path(&object.path).ok().flatten().filter(|file| is_in_memory(file, object, memory))
}

/// True if the first bytes of the object's memory equal the file's.
pub(crate) fn is_in_memory(file: &MappedFile, object: &LoadedObject, memory: &ProcessMemoryFile) -> bool {
    let Some(first) = object.image.segments.first() else { return false };
    memory.begins_as(&file.file, first.offset, first.file_memory().shifted(object.bias))
}

fn dynamic_table(file: &MappedFile) -> Option<AddressRange> {
    let bytes = ReadCache::new(BoundedFile::new(&file.file, file.metadata.len(), ELF_HEADERS.bytes()));
    let header = elf::FileHeader64::<Endianness>::parse(&bytes).ok()?;
    let endian = header.endian().ok()?;
    let headers = header.program_headers(endian, &bytes).ok()?;
    let dynamic = headers.iter().find(|h| h.p_type(endian) == elf::PT_DYNAMIC)?;
    Some(AddressRange::sized(Address(dynamic.p_vaddr(endian)), dynamic.p_memsz(endian)))
}

/// The address in `DT_DEBUG`, where the dynamic linker stores the position of its record.
fn debug_record(memory: &ProcessMemoryFile, table: AddressRange) -> Option<Address> {
    let bytes = memory.bytes(table.start(), table.len().min(MOST_DYNAMIC_BYTES))?;
    let debug = elf::DT_DEBUG.0 as u64;
    bytes.chunks_exact(16).find_map(|entry| {
        let tag = u64::from_ne_bytes(entry[..8].try_into().ok()?);
        let value = u64::from_ne_bytes(entry[8..].try_into().ok()?);
        (tag == debug && value != 0).then_some(Address(value))
    })
}

fn follow(memory: &ProcessMemoryFile, record: Address) -> Vec<LinkedObject> {
    let mut objects = Vec::new();
    let mut seen = BTreeSet::new();
    // struct r_debug { int r_version; struct link_map *r_map; ... }
    let mut next = memory.words::<1>(record + 8).map_or(0, |[map]| map);
    while next != 0 && seen.insert(next) && objects.len() < MOST_OBJECTS {
        // struct link_map { l_addr, l_name, l_ld, l_next, ... }
        let Some([bias, name, _, following]) = memory.words(Address(next)) else { break };
        objects.push(LinkedObject { bias, path: memory.text(Address(name)).unwrap_or_default() });
        next = following;
    }
    objects
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ProcessFiles, load_objects};
    use address_space::RangeSet;

    #[test]
    fn the_linker_names_the_objects_that_the_maps_show() {
        let process = ProcessFiles::of(std::process::id() as i32);
        let loaded = load_objects(process.pid(), &process.maps().unwrap()).unwrap();
        let (opener, memory) = (Opener::new(&process), ProcessMemoryFile::open(&process, RangeSet::new()).unwrap());
        let executable = loaded.executable().unwrap();
        assert!(is_in_memory(&open_loaded(&opener, executable, &memory).unwrap(), executable, &memory));
        let linked = linked_objects(&opener, &memory, executable);
        for object in &loaded.objects {
            assert!(linked.iter().any(|l| l.bias == object.bias), "{} is not in the chain", object.path);
        }
    }
}
