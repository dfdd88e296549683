//! Names code addresses of a running process, wherever the code is now: an object whose pages were lifted to anonymous
//! or hugetlb memory is found in its link map, and its addresses give offsets in its file.

use crate::bounded_file::BoundedFile;
use crate::loading::open_object;
use crate::opening::MappedFile;
use crate::perf_map::named_ranges;
use crate::symbols::{Sections, SymbolFiles, read_symbols};
use crate::{ObservationError, ProcessFiles, load_objects};
use address_space::{Address, AddressRange, AddressSpace, LoadedObject, RangeSet};
use linux::bounded::{Budget, MemoryBound, SYMBOL_TABLES, SYMBOLS};
use object::ReadCache;
use std::fs::File;

/// The objects of one process at one moment, and the names of their code as far as they have been asked for.
#[derive(Debug)]
pub struct ProcessCode {
    process: ProcessFiles,
    space: AddressSpace,
    objects: Vec<LoadedObject>,
    names: Vec<Option<Vec<(AddressRange, String)>>>,
    budget: Budget,
}

/// The object and function of an address of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodePlace<'a> {
    /// The object's name, the last part of its path.
    pub object: &'a str,
    /// The object's number, see [`ProcessCode::objects`].
    pub index: usize,
    /// The function; `None` if no symbol covers it.
    pub function: Option<&'a str>,
    /// The address as in the object's file.
    pub in_file: u64,
}

/// The sections of one object for unwinding stacks, as in its file; absent ones are empty.
#[derive(Clone, Debug, Default)]
pub struct UnwindSections {
    /// `.eh_frame`: its addresses as in the file, and its bytes.
    pub frames: Option<(AddressRange, Vec<u8>)>,
    /// `.eh_frame_hdr`, its index.
    pub index: Option<(AddressRange, Vec<u8>)>,
    /// `.got`.
    pub offsets: Option<AddressRange>,
}

impl ProcessCode {
    /// Looks at process `pid`.
    ///
    /// # Errors
    /// [`ObservationError`] if the process cannot be read.
    pub fn of(pid: i32) -> Result<Self, ObservationError> {
        let process = ProcessFiles::of(pid);
        let space = process.maps()?;
        let objects = load_objects(pid, &space)?.objects;
        let names = objects.iter().map(|_| None).collect();
        Ok(Self { process, space, objects, names, budget: SYMBOLS.budget() })
    }

    /// Bytes of the names that were read.
    pub fn memory(&self) -> u64 {
        SYMBOLS.bytes() - self.budget.left()
    }

    /// Its objects, the executable first.
    pub fn objects(&self) -> &[LoadedObject] {
        &self.objects
    }

    /// The number of the object that contains an address.
    pub fn object_at(&self, address: u64) -> Option<usize> {
        self.objects.iter().position(|object| object.extent().contains(Address(address)))
    }

    /// The name that maps shows for memory that belongs to no object: `[vdso]`, a JIT's memory.
    pub fn mapping_at(&self, address: u64) -> Option<String> {
        self.space.find(Address(address)).map(|mapping| crate::printable(mapping.path().unwrap_or("generated code")))
    }

    /// The file of an object, as far as it can still be opened.
    pub fn file_of(&self, index: usize) -> Option<File> {
        self.open(index).map(|file| file.file)
    }

    fn open(&self, index: usize) -> Option<MappedFile> {
        open_object(&self.process, &self.space, self.objects.get(index)?)
    }

    /// Names an address; `None` if it is in no object.
    pub fn place(&mut self, address: u64) -> Option<CodePlace<'_>> {
        let index = self.object_at(address)?;
        if self.names[index].is_none() {
            let names = self.names_of(index);
            self.names[index] = Some(names);
        }
        let object = &self.objects[index];
        let names = self.names[index].as_deref().unwrap_or_default();
        let at = names.partition_point(|(range, _)| range.end().0 <= address);
        let function =
            names.get(at).filter(|(range, _)| range.contains(Address(address))).map(|(_, name)| name.as_str());
        Some(CodePlace { object: object.name(), index, function, in_file: address.wrapping_sub(object.bias) })
    }

    /// All names of an object's code, lowest address first.
    fn names_of(&mut self, index: usize) -> Vec<(AddressRange, String)> {
        let Some(file) = self.open(index) else { return Vec::new() };
        let object = &self.objects[index];
        let code: RangeSet =
            object.image.segments.iter().filter(|segment| segment.protection.execute).map(|s| s.memory).collect();
        let (_, symbols) =
            read_symbols(&SymbolFiles::for_caller(&self.process), object, &file, &code, &mut self.budget);
        named_ranges(&symbols, object.bias)
    }

    /// The sections for unwinding an object's stack frames. At most `bound` bytes of each section are read.
    pub fn unwind_sections(&self, index: usize, bound: MemoryBound) -> UnwindSections {
        let read = || {
            let file = self.open(index)?;
            let bytes = ReadCache::new(BoundedFile::new(&file.file, file.metadata.len(), SYMBOL_TABLES.bytes()));
            let sections = Sections::parse(&bytes, bound)?;
            let range = |name: &str| {
                let section = sections.named(name)?;
                Some(AddressRange::sized(
                    Address(section.sh_addr.get(sections.endian)),
                    section.sh_size.get(sections.endian),
                ))
            };
            let whole = |name: &str| Some((range(name)?, sections.bytes(sections.named(name)?)?.to_vec()));
            Some(UnwindSections { frames: whole(".eh_frame"), index: whole(".eh_frame_hdr"), offsets: range(".got") })
        };
        read().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_of_this_test_is_named() {
        let address = a_function_of_this_test_is_named as fn() as usize as u64;
        let mut code = ProcessCode::of(std::process::id() as i32).unwrap();
        let place = code.place(address).expect("this program is an object");
        assert_eq!(place.index, 0);
        assert!(place.function.is_some_and(|name| name.contains("a_function_of_this_test_is_named")), "{place:?}");
        assert_eq!(code.place(0), None);
        let sections = code.unwind_sections(0, SYMBOL_TABLES);
        assert!(sections.frames.is_some() && sections.index.is_some());
    }
}
