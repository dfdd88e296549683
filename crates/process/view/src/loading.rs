//! Finds the ELF objects that a process has loaded.

use crate::bounded_file::BoundedFile;
use crate::link_map::{self, LinkedObject};
use crate::mapped_file::{Opener, Unreadable};
use crate::opening::{MappedFile, open_regular};
use crate::process_memory::ProcessMemoryFile;
use crate::program_name::{file_name, link_name, without_mark};
use crate::{AuxiliaryVector, FileIdentity, ObservationError, ProcessFiles};
use address_space::{
    AddressSpace, ElfError, ElfImage, FileKey, LoadSegment, LoadedObject, Mapping, MappingName, ObjectRole, PageSize,
    assign_roles, bias_of, drop_images, file_groups,
};
use linux::bounded::{Budget, ELF_HEADERS, ELF_IMAGES};
use object::ReadCache;
use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// The objects of a process, and the mapped files that could not be parsed.
#[derive(Clone, Debug, Default)]
pub struct LoadedObjects {
    /// The executable first, then by address.
    pub objects: Vec<LoadedObject>,
    /// Files that are, or may be, ELF objects, but could not be read.
    pub not_understood: Vec<NotUnderstood>,
}

impl LoadedObjects {
    /// The program that was executed.
    pub fn executable(&self) -> Option<&LoadedObject> {
        self.objects.iter().find(|o| o.role == ObjectRole::Executable)
    }
}

/// A mapped file that could not be read as an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotUnderstood {
    /// Path as maps shows it.
    pub path: String,
    /// Has an executable mapping: it is code, not some data file.
    pub executable: bool,
    /// Why.
    pub reason: NotUnderstoodReason,
}

/// Why a mapped file could not be read as an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotUnderstoodReason {
    /// It cannot be read.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// The file can be read, but is not a sound ELF file.
    #[error(transparent)]
    Elf(#[from] ElfError),
    /// A sound ELF file with executable mappings that do not fit its segments.
    #[error("its mappings do not match its segments")]
    DoesNotFit,
    /// The process has so many objects, or such large ones, that no more are read.
    #[error("the process's objects together have more than {} MiB of headers", ELF_IMAGES.bytes() >> 20)]
    TooMany,
}

/// Reads the objects of processes and remembers each file's image as long as the file does not change.
#[derive(Debug)]
pub struct ObjectReader {
    images: HashMap<FileIdentity, Result<ElfImage, ElfError>>,
    /// Bytes that the images may still occupy; beyond that the reader starts anew, so that it cannot grow without
    /// bound.
    budget: Budget,
}

impl Default for ObjectReader {
    fn default() -> Self {
        Self { images: HashMap::new(), budget: ELF_IMAGES.budget() }
    }
}

/// The objects of process `pid` whose mappings are `space`.
///
/// Each object has its role; a file mapped as plain data is not in the list. To read many processes use one
/// [`ObjectReader`], which reads each file once.
///
/// # Errors
/// [`ObservationError`] if the process cannot be read. A single file that cannot be read is no error, see
/// [`LoadedObjects::not_understood`].
pub fn load_objects(pid: i32, space: &AddressSpace) -> Result<LoadedObjects, ObservationError> {
    ObjectReader::default().load(pid, space)
}

impl ObjectReader {
    /// Returns a reader without remembered images.
    pub fn new() -> Self {
        Self::default()
    }

    /// See [`load_objects`].
    ///
    /// # Errors
    /// [`ObservationError`] if the process cannot be read.
    pub fn load(&mut self, pid: i32, space: &AddressSpace) -> Result<LoadedObjects, ObservationError> {
        if space.mappings().is_empty() {
            return Ok(LoadedObjects::default());
        }
        let process = ProcessFiles::of(pid);
        let auxiliary = process.auxiliary()?;
        let base_page = auxiliary.page_size().map_or_else(|| process.page_size(), Ok)?;
        let mut found = LoadedObjects::default();
        let mut opener = Opener::new(&process);
        let executed = ExecutedFile::of(&process, &opener);
        let mut executable = None;
        let mut budget = ELF_IMAGES.budget();
        for (key, mappings) in file_groups(space) {
            let is_executed = executed.as_ref().is_some_and(|file| file.is(&key));
            let known = executed.as_ref().filter(|_| is_executed).and_then(|file| self.images.get(&file.identity));
            let image = match (known, is_executed) {
                (Some(known), _) => Ok(Some(known.clone())),
                (None, true) => self.executed_image(&opener),
                (None, false) => self.image(&mut opener, space, &mappings),
            };
            let first = found.objects.len();
            self.take(&mut found, &key, image, Group { space, mappings: &mappings, base_page }, &mut budget);
            if is_executed && found.objects.len() > first {
                executable = Some(first);
            }
        }
        // If the file system shows another inode in maps, the entry that the kernel jumped to identifies it.
        let by_entry = |o: &LoadedObject| Some(o.entry()) == auxiliary.entry();
        let executable = executable
            .or_else(|| found.objects.iter().position(by_entry))
            .or_else(|| self.executed_without_mappings(&opener, &auxiliary, space, &mut found));
        assign_roles(&mut found.objects, executable, &auxiliary, base_page);
        drop_images(&mut found.objects, space, base_page);
        self.take_linked(&opener, space, &mut found);
        name_executable(&process, &mut found);
        found.objects.sort_by_key(|o| (o.role != ObjectRole::Executable, o.extent().start()));
        Ok(found)
    }

    /// Reads the image of a file that is about to be mapped, so that [`ObjectReader::load`] need not; `None` where it
    /// is not a sound object.
    pub fn read_ahead(&mut self, path: &Path) -> Option<&ElfImage> {
        let file = open_regular(path).ok()??;
        self.parse(&file).ok()?;
        self.known(&FileIdentity::of(&file.metadata))
    }

    /// The image of a file that has been read before and has not changed since.
    pub fn known(&self, file: &FileIdentity) -> Option<&ElfImage> {
        self.images.get(file)?.as_ref().ok()
    }

    fn take(&self, found: &mut LoadedObjects, key: &FileKey, image: ReadImage, group: Group<'_>, budget: &mut Budget) {
        let executable = group.mappings.iter().any(|&i| group.space.mappings()[i].protection.execute);
        let mut refuse = |reason| {
            found.not_understood.push(NotUnderstood { path: key.path.clone(), executable, reason });
        };
        let image = match image {
            Ok(Some(Ok(image))) => image,
            Ok(None) => return,
            // Most mapped files that are not ELF files are data.
            Ok(Some(Err(ElfError::NotElf))) if !executable => return,
            Ok(Some(Err(error))) => return refuse(error.into()),
            Err(error) => return refuse(error.into()),
        };
        let loaded: Vec<_> = bias_of(&image, group.space, group.mappings, group.base_page)
            .into_iter()
            .map(|bias| LoadedObject {
                path: key.path.clone(),
                link: None,
                role: ObjectRole::SharedObject,
                bias,
                image: image.clone(),
            })
            .filter(|object| object.is_whole(group.space))
            .collect();
        if loaded.is_empty() && executable {
            refuse(NotUnderstoodReason::DoesNotFit);
        }
        if !budget.spend(loaded.len() as u64 * memory_of(Some(&image))) {
            return refuse(NotUnderstoodReason::TooMany);
        }
        found.objects.extend(loaded);
    }

    fn image(&mut self, opener: &mut Opener<'_>, space: &AddressSpace, mappings: &[usize]) -> ReadImage {
        let Some(&first) = mappings.first() else { return Ok(None) };
        if let Some(known) = opener.identity(&space.mappings()[first]).and_then(|file| self.images.get(&file)) {
            return Ok(Some(known.clone()));
        }
        let file = opener.open(&space.mappings()[first])?;
        Ok(file.map(|file| self.parse(&file)))
    }

    fn executed_image(&mut self, opener: &Opener<'_>) -> ReadImage {
        let file = opener.open_executed()?;
        Ok(file.map(|file| self.parse(&file)))
    }

    fn parse(&mut self, file: &MappedFile) -> Result<ElfImage, ElfError> {
        let identity = FileIdentity::of(&file.metadata);
        if let Some(known) = self.images.get(&identity) {
            return known.clone();
        }
        let bytes = ReadCache::new(BoundedFile::new(&file.file, identity.size, ELF_HEADERS.bytes()));
        let image = ElfImage::parse(&bytes);
        if !self.budget.spend(memory_of(image.as_ref().ok())) {
            *self = Self::default();
        }
        self.images.insert(identity, image.clone());
        image
    }

    /// Objects that have no mapping of their file any more, as the dynamic linker names them. Searched for only where
    /// memory without a file might belong to one.
    fn take_linked(&mut self, opener: &Opener<'_>, space: &AddressSpace, found: &mut LoadedObjects) {
        if !has_unexplained_memory(space, &found.objects) {
            return;
        }
        let Some(executable) = found.executable() else { return };
        let refused = opener.refused_ranges(space);
        let Some(memory) = ProcessMemoryFile::open(opener.process(), refused) else { return };
        for LinkedObject { bias, path } in link_map::linked_objects(opener, &memory, executable) {
            if !path.starts_with('/') || found.objects.iter().any(|o| o.bias == bias) {
                continue;
            }
            let Ok(Some(file)) = opener.open_path(&path) else { continue };
            let Ok(image) = self.parse(&file) else { continue };
            let object = LoadedObject { path, link: None, role: ObjectRole::SharedObject, bias, image };
            let taken = found.objects.iter().any(|other| other.extent().overlaps(object.extent()));
            if !taken && object.is_whole(space) && link_map::is_in_memory(&file, &object, &memory) {
                found.objects.push(object);
            }
        }
    }

    /// The executable after all mappings of its file have been replaced by a lift. The auxiliary vector still has the
    /// addresses of its headers and its entry.
    fn executed_without_mappings(
        &mut self,
        opener: &Opener<'_>,
        auxiliary: &AuxiliaryVector,
        space: &AddressSpace,
        found: &mut LoadedObjects,
    ) -> Option<usize> {
        let path = fs::read_link(opener.process().path("exe")).ok()?.to_string_lossy().into_owned();
        let image = self.executed_image(opener).ok()??.ok()?;
        let by_headers = auxiliary.program_headers().zip(image.headers).map(|(now, file)| now - file);
        let by_entry = auxiliary.entry().map(|now| now - image.entry);
        let path = path.strip_suffix(" (deleted)").unwrap_or(&path).to_owned();
        let bias = by_headers.or(by_entry)?;
        let object = LoadedObject { path, link: None, role: ObjectRole::Executable, bias, image };
        let taken = found.objects.iter().any(|other| other.extent().overlaps(object.extent()));
        (!taken && object.is_whole(space)).then(|| {
            found.objects.push(object);
            found.objects.len() - 1
        })
    }
}

/// Gives the executable the name of the link by which it was started. The dynamic linker, started as a program, has no such link
/// to the executable.
fn name_executable(process: &ProcessFiles, found: &mut LoadedObjects) {
    let Some(executable) = found.objects.iter_mut().find(|o| o.role == ObjectRole::Executable) else { return };
    if file_name(process).is_some_and(|executed| executed == without_mark(executable.file_name())) {
        executable.link = link_name(process, executable.file_name());
    }
}

/// True if memory without a file is outside of all objects and looks like a lifted part: on pages of the pool,
/// executable, or read-only.
fn has_unexplained_memory(space: &AddressSpace, objects: &[LoadedObject]) -> bool {
    space.mappings().iter().any(|m| {
        let no_file = m.is_plain_anonymous() && m.protection.read && (m.protection.execute || !m.protection.write);
        (no_file || (m.name == MappingName::HugetlbAnonymous && !m.shared))
            && !objects.iter().any(|object| object.extent().overlaps(m.range))
    })
}

/// Opens the file of a loaded object: the executed file, the file behind one of the object's mappings, or, where
/// everything has been lifted, the one at its path. The file must have the object's exact shape.
pub(crate) fn open_object(process: &ProcessFiles, space: &AddressSpace, object: &LoadedObject) -> Option<MappedFile> {
    let mut opener = Opener::new(process);
    let extent = object.extent();
    let own_mapping = |m: &&Mapping| m.path() == Some(object.path.as_str()) && !m.shared && m.range.overlaps(extent);
    let by_mapping = space.mappings().iter().find(own_mapping).and_then(|m| opener.open(m).ok()?);
    let found = |file: std::io::Result<Option<MappedFile>>| file.ok().flatten();
    let candidates = [by_mapping, found(opener.open_executed()), found(opener.open_path(&object.path))];
    candidates
        .into_iter()
        .flatten()
        .find(|file| ObjectReader::new().parse(file).is_ok_and(|image| image == object.image))
}

/// Returns the approximate bytes of memory that an image occupies, or the record that there is none.
fn memory_of(image: Option<&ElfImage>) -> u64 {
    let segments = image.map_or(0, |image| image.segments.len());
    let texts =
        image.map_or([None; 3], |image| [&image.build_id, &image.soname, &image.interpreter].map(Option::as_ref));
    let text_bytes: usize = texts.into_iter().flatten().map(String::len).sum();
    (size_of::<LoadedObject>() + size_of::<FileIdentity>() + segments * size_of::<LoadSegment>() + text_bytes) as u64
}

type ReadImage = Result<Option<Result<ElfImage, ElfError>>, Unreadable>;

/// The mappings of one file.
#[derive(Clone, Copy)]
struct Group<'a> {
    space: &'a AddressSpace,
    mappings: &'a [usize],
    base_page: PageSize,
}

/// The file that was executed, to be recognised among the mapped ones.
struct ExecutedFile {
    identity: FileIdentity,
    path: String,
}

impl ExecutedFile {
    fn of(process: &ProcessFiles, opener: &Opener<'_>) -> Option<Self> {
        let path = fs::read_link(process.path("exe")).ok()?.to_string_lossy().into_owned();
        let path = path.strip_suffix(" (deleted)").unwrap_or(&path).to_owned();
        Some(Self { identity: opener.executed_identity()?, path })
    }

    fn is(&self, key: &FileKey) -> bool {
        self.identity.inode == key.inode && self.path == key.path
    }
}
