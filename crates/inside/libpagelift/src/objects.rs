//! The ELF objects of this process, read from its own memory. They are not read from files, so a file that has been replaced
//! or deleted does not matter.

use crate::auxiliary::Auxiliary;
use crate::files;
use address_space::{
    AddressRange, AddressSpace, AuxiliaryVector, ElfImage, FileKey, LoadedObject, ObjectRole, PageSize, assign_roles,
    bias_of, drop_images, file_groups,
};
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;
use object::ReadRef;

/// The objects in an address space: the executable first, then by address.
pub fn objects_of(space: &AddressSpace, auxiliary: &Auxiliary) -> Vec<LoadedObject> {
    let mut objects = Vec::new();
    for (key, mappings) in file_groups(space) {
        objects.extend(objects_in(space, &key, &mappings, auxiliary.base_page));
    }
    let executed = auxiliary.vector.program_headers().or(auxiliary.vector.entry());
    let executed = objects.iter().position(|object| executed.is_some_and(|at| object.extent().contains(at)));
    assign_roles(&mut objects, executed, &auxiliary.vector, auxiliary.base_page);
    drop_images(&mut objects, space, auxiliary.base_page);
    objects.sort_by_key(|o| (o.role != ObjectRole::Executable, o.extent().start()));
    if let Some(executable) = objects.first_mut().filter(|object| object.role == ObjectRole::Executable) {
        executable.link = link_name(&auxiliary.vector, executable.file_name());
    }
    objects
}

fn objects_in(space: &AddressSpace, key: &FileKey, mappings: &[usize], base_page: PageSize) -> Vec<LoadedObject> {
    let pieces = mappings.iter().map(|&index| &space.mappings()[index]);
    let pieces: Vec<_> = pieces.filter(|m| m.protection.read).map(|m| (m.offset, m.range)).collect();
    let memory = FileInMemory { pieces: &pieces, read: RefCell::new(Vec::new()) };
    let Ok(image) = ElfImage::parse(&memory) else { return Vec::new() };
    let object = |bias| LoadedObject {
        path: key.path.clone(),
        link: None,
        role: ObjectRole::SharedObject,
        bias,
        image: image.clone(),
    };
    let biases = bias_of(&image, space, mappings, base_page).into_iter();
    biases.map(object).filter(|object| object.is_whole(space)).collect()
}

#[cfg(feature = "preload")]
/// This program's names: its file's name and path, and the name it was called by if that is the beginning of the
/// file's.
pub fn program_names() -> Vec<String> {
    let Some(path) = files::program::path() else { return Vec::new() };
    let arguments = files::program::command_line().unwrap_or_default();
    let first = arguments.split(|byte| *byte == 0).next().and_then(|first| core::str::from_utf8(first).ok());
    let started = Auxiliary::read().and_then(|auxiliary| started_by(&auxiliary.vector));
    let names = options::program_names(&path, first.unwrap_or_default(), started.as_deref());
    names.iter().filter(|name| !name.is_empty()).map(ToString::to_string).collect()
}

/// The name of this program for messages: of the link by which it was started, or of its file.
pub fn program_name() -> Option<String> {
    let path = files::program::path()?;
    let file = path.strip_suffix(" (deleted)").unwrap_or(&path).rsplit('/').next().filter(|name| !name.is_empty())?;
    let link = Auxiliary::read().and_then(|auxiliary| link_name(&auxiliary.vector, file));
    Some(link.unwrap_or_else(|| file.to_string()))
}

/// Returns the name of the link by which this program was started, unless the file's name says the same and more.
fn link_name(auxiliary: &AuxiliaryVector, file: &str) -> Option<String> {
    let path = started_by(auxiliary)?;
    let name = path.rsplit('/').next().filter(|name| !name.is_empty())?;
    (!file.starts_with(name)).then(|| name.to_string())
}

/// The path that was executed, if it leads to this program's file; a script's path does not.
fn started_by(auxiliary: &AuxiliaryVector) -> Option<String> {
    let address = auxiliary.executed_path()?;
    // SAFETY:
    // - the kernel has put a string that ends with NUL there, beside the stack, where it stays.
    let path = unsafe { core::ffi::CStr::from_ptr(address.0 as *const core::ffi::c_char) };
    let found = files::File::open(path).ok()?.identity()?;
    let is_own = files::program::open().ok()?.0.identity() == Some(found);
    path.to_str().ok().filter(|_| is_own).map(String::from)
}

/// The mapped parts of a file, read as if they were the file. Each part that is read is copied once by the kernel, which
/// returns an error for a page that does not exist instead of raising a signal.
struct FileInMemory<'a> {
    pieces: &'a [(u64, AddressRange)],
    /// Boxes, as pointers: a box that is moved into a list says that nobody has a reference into it.
    read: RefCell<Vec<*mut [u8]>>,
}

impl Drop for FileInMemory<'_> {
    fn drop(&mut self) {
        for copy in self.read.get_mut().drain(..) {
            // SAFETY:
            // - it came from `Box::into_raw`, is in the list once, and has no references any more: references to its
            //   bytes live no longer than those to `self`.
            drop(unsafe { Box::from_raw(copy) });
        }
    }
}

impl FileInMemory<'_> {
    fn fetch(&self, offset: u64, size: usize) -> Option<&[u8]> {
        let end = offset.checked_add(size as u64)?;
        let (first, range) =
            self.pieces.iter().find(|(first, range)| *first <= offset && end <= first + range.len())?;
        let from = AddressRange::sized(range.start() + (offset - first), size as u64);
        let mut copy = vec![0u8; size].into_boxed_slice();
        // SAFETY:
        // - the box has room for `size` bytes and is ours alone.
        let copied = unsafe { linux_raw::process_vm_readv(from, copy.as_mut_ptr() as usize) };
        if copied != Ok(size) && !read_by_file(from, &mut copy) {
            return None;
        }
        let copy = Box::into_raw(copy);
        self.read.borrow_mut().push(copy);
        // SAFETY:
        // - what the pointer points to is neither written to nor freed before `self` is dropped, which outlives the
        //   reference to it.
        Some(unsafe { &*copy })
    }
}

/// For processes that may not call `process_vm_readv`.
fn read_by_file(from: AddressRange, to: &mut [u8]) -> bool {
    let Ok(memory) = files::File::open(c"/proc/thread-self/mem") else { return false };
    linux_raw::read_at(memory.descriptor(), to, from.start().0) == Ok(to.len())
}

impl<'a> ReadRef<'a> for &'a FileInMemory<'_> {
    fn len(self) -> Result<u64, ()> {
        self.pieces.iter().map(|(first, range)| first + range.len()).max().ok_or(())
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        self.fetch(offset, usize::try_from(size).map_err(drop)?).ok_or(())
    }

    fn read_bytes_at_until(self, range: core::ops::Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        let bytes = self.read_bytes_at(range.start, range.end.checked_sub(range.start).ok_or(())?)?;
        let end = bytes.iter().position(|byte| *byte == delimiter).ok_or(())?;
        Ok(&bytes[..end])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::own_space;
    use address_space::{Mapping, MappingName};

    /// As a lift leaves it that is killed, or a program that maps its own file; an image is such a copy, too.
    #[test]
    fn a_copy_of_a_file_without_its_data_is_no_object() {
        /// From this program to free addresses.
        const DISTANCE: u64 = 0x1000_0000_0000;
        let (auxiliary, space) = (Auxiliary::read().unwrap(), own_space().unwrap());
        let objects = objects_of(&space, &auxiliary);
        let program = objects.iter().find(|object| object.role == ObjectRole::Executable).unwrap();
        let pages = |memory: AddressRange| memory.widened(auxiliary.base_page).shifted(program.bias);
        let data: Vec<_> =
            program.image.segments.iter().filter(|s| s.protection.write).map(|s| pages(s.memory)).collect();
        let copied = |mapping: &Mapping| {
            let name = match data.iter().any(|data| data.overlaps(mapping.range)) {
                true => MappingName::Anonymous,
                false => mapping.name.clone(),
            };
            Mapping { range: mapping.range.shifted(DISTANCE), name, ..mapping.clone() }
        };
        let of_program = space.overlapping(pages(program.image.extent())).iter().map(copied);
        let mut mappings: Vec<Mapping> = space.mappings().iter().cloned().chain(of_program).collect();
        mappings.sort_by_key(|mapping| mapping.range.start());
        assert_eq!(objects_of(&AddressSpace::from_mappings(mappings), &auxiliary), objects);
    }
}
