//! Opens the files that this process has mapped.

use crate::files::{File, c_path, program};
use address_space::{AddressSpace, LoadedObject, ObjectRole};
use alloc::borrow::ToOwned;
use alloc::string::String;
use linux_raw::FileIdentity;

/// The file that this process has mapped for an object.
pub struct MappedFile {
    /// The file, opened for reading.
    pub file: File,
    /// A path that leads to this file. Another file may have taken the place of a running program's.
    pub path: String,
    /// Its size in bytes.
    pub size: u64,
}

impl MappedFile {
    /// Opens an object's file. `None` if that fails, or if the path leads to another file.
    pub fn open(space: &AddressSpace, object: &LoadedObject) -> Option<Self> {
        let mut mappings = space.mappings().iter();
        let mapping = mappings.find(|m| !m.shared && m.path() == Some(object.path.as_str()))?;
        let (file, path) = match object.role {
            ObjectRole::Executable => program::open().ok()?,
            _ => (File::open(&c_path(&object.path)?).ok()?, object.path.as_str()),
        };
        let FileIdentity { inode, size, .. } = file.identity()?;
        // Devices differ between maps and stat on some file systems.
        (inode == mapping.inode).then(|| Self { file, path: path.to_owned(), size })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auxiliary::Auxiliary;
    use crate::executor::own_space;
    use crate::objects::objects_of;

    /// A path in the maps names whichever file is there now; a program that was replaced while it runs is at no path.
    #[test]
    fn the_path_of_the_executable_leads_to_the_executed_file() {
        let space = own_space().unwrap();
        let objects = objects_of(&space, &Auxiliary::read().unwrap());
        let program = objects.iter().find(|object| object.role == ObjectRole::Executable).unwrap();
        let opened = MappedFile::open(&space, program).unwrap();
        assert_eq!(opened.path, "/proc/self/exe");
        let linker = objects.iter().find(|object| object.role == ObjectRole::DynamicLinker).unwrap();
        assert_eq!(MappedFile::open(&space, linker).unwrap().path, linker.path);
    }
}
