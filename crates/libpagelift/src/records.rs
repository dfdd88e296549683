//! Records of lifted ranges, and their restore.

use crate::executor::OwnProcess;
use crate::files::{self, File};
use address_space::{AddressRange, AddressSpace, Mapping, MappingName, PageSize, Protection, RangeSet};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use lift_execution::{Backing, CallError, Executor};
use lift_plan::Source;
use linux_raw::kernel::errno::EIO;
use linux_raw::kernel::general::{MAP_FIXED, MAP_PRIVATE};

/// Bytes that are compared at a time.
const COMPARED: usize = 64 << 10;

/// Identity of the file that a mapping showed when it was lifted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    device: (u32, u32),
    inode: u64,
    size: u64,
    modified: (i64, u32),
    changed: (i64, u32),
}

impl FileIdentity {
    fn of(file: &File) -> Option<Self> {
        let status = linux_raw::status_of(file.descriptor()).ok()?;
        Some(Self {
            device: (status.stx_dev_major, status.stx_dev_minor),
            inode: status.stx_ino,
            size: status.stx_size,
            modified: (status.stx_mtime.tv_sec, status.stx_mtime.tv_nsec),
            changed: (status.stx_ctime.tv_sec, status.stx_ctime.tv_nsec),
        })
    }
}

/// A part of a lifted range as it was before the lift.
#[derive(Clone, Debug)]
pub struct Original {
    /// The mapping, cut to the range.
    pub mapping: Mapping,
    /// Its file, if that could be opened and is the one that was mapped.
    pub file: Option<FileIdentity>,
}

/// A lifted range.
#[derive(Clone, Debug)]
pub struct Record {
    /// Name of the object.
    pub object: String,
    /// Addresses: whole huge pages.
    pub range: AddressRange,
    /// Protection now.
    pub protection: Protection,
    /// Source of the pages.
    pub source: Source,
    /// Their size.
    pub page_size: PageSize,
    /// The mappings that it replaced.
    pub originals: Vec<Original>,
}

impl Record {
    /// The record of a range that has been swapped.
    pub fn new(
        object: String,
        range: AddressRange,
        protection: Protection,
        source: Source,
        page_size: PageSize,
        before: &AddressSpace,
    ) -> Self {
        let originals = before.overlapping(range).iter().map(|mapping| {
            let cut = mapping.range.intersect(range);
            let offset = mapping.offset + (cut.start() - mapping.range.start());
            let mapping = Mapping { range: cut, offset, ..mapping.clone() };
            Original { file: identity_of(&mapping), mapping }
        });
        Self { object, range, protection, source, page_size, originals: originals.collect() }
    }

    /// True if the range is still as the lift has left it; it is not if its object was unloaded.
    pub fn stands(&self, space: &AddressSpace) -> bool {
        let ours = |mapping: &Mapping| match self.source {
            Source::Hugetlb => mapping.name == MappingName::HugetlbAnonymous && !mapping.shared,
            Source::Image | Source::File => mapping.path().is_some(),
            Source::Thp => mapping.is_plain_anonymous() && mapping.name != MappingName::Heap,
        };
        let same = |mapping: &Mapping| ours(mapping) && mapping.protection == self.protection;
        space.is_fully_mapped(self.range) && space.overlapping(self.range).iter().all(same)
    }

    /// True for memory that the program may write to.
    pub fn is_writable(&self) -> bool {
        self.protection.write
    }

    /// Moves the range back to ordinary pages. If its file is still the same, the file is mapped again, with private pages
    /// only where memory differs from it; the rest becomes anonymous memory.
    ///
    /// # Errors
    /// The kernel's. Contents and protections are still right then, and at least a part of the range is still lifted.
    pub fn restore(&self, executor: &mut OwnProcess, base_page: PageSize) -> Result<(), CallError> {
        let mut staged = Staged::new(executor, self.range)?;
        let mut result = self.originals.iter().try_for_each(|original| staged.prepare(original, base_page));
        if result.is_ok() && self.originals.len() > 1 && self.source == Source::Hugetlb {
            result = self.swap_to_ordinary(executor);
        }
        if result.is_ok() {
            result = self.originals.iter().try_for_each(|original| staged.put(original.mapping.range));
        }
        staged.drop_rest();
        result
    }

    /// Replaces the range by one mapping of ordinary pages: pool pages can only be unmapped whole, so this precedes the
    /// restore of a range that was several mappings.
    fn swap_to_ordinary(&self, executor: &mut OwnProcess) -> Result<(), CallError> {
        let at = executor.map(self.range.len(), Backing::Ordinary)?;
        let copy = AddressRange::sized(at, self.range.len());
        let done = executor
            .copy(self.range, at)
            .and_then(|()| executor.protect(copy, self.protection))
            .and_then(|()| executor.move_to(copy, self.range.start()));
        if done.is_err() {
            let _ = executor.unmap(copy);
        }
        done
    }
}

/// The identity of a mapping's file; `None` if the file at its path is another one.
fn identity_of(mapping: &Mapping) -> Option<FileIdentity> {
    let MappingName::File { path, deleted: false } = &mapping.name else { return None };
    let identity = FileIdentity::of(&File::open(&files::c_path(path)?).ok()?)?;
    // Devices differ between maps and stat on some file systems; a restore compares contents anyway.
    (identity.inode == mapping.inode).then_some(identity)
}

/// A copy of a range as it is to be restored, at another address.
struct Staged {
    range: AddressRange,
    copy: AddressRange,
    left: RangeSet,
}

impl Staged {
    fn new(executor: &mut OwnProcess, range: AddressRange) -> Result<Self, CallError> {
        let at = executor.map(range.len(), Backing::Ordinary)?;
        let copy = AddressRange::sized(at, range.len());
        Ok(Self { range, copy, left: RangeSet::from_iter([copy]) })
    }

    fn of(&self, range: AddressRange) -> AddressRange {
        AddressRange::sized(self.copy.start() + (range.start() - self.range.start()), range.len())
    }

    fn prepare(&self, original: &Original, base_page: PageSize) -> Result<(), CallError> {
        let file = original.file.as_ref().and_then(|identity| self.map_file(original, identity));
        for chunk in original.mapping.range.pages(PageSize::new(COMPARED as u64).unwrap_or(base_page)) {
            match &file {
                Some(file) => self.take_differences(original, file, chunk, base_page)?,
                None => self.take_what_is_not_zero(chunk, base_page)?,
            }
        }
        // SAFETY:
        // - the copy is ours alone until it is moved.
        let sealed =
            unsafe { linux_raw::mprotect(self.of(original.mapping.range), original.mapping.protection.bits()) };
        sealed.map_err(|errno| CallError { call: "mprotect", errno })
    }

    /// Maps the file again, if it is still the one that was mapped.
    fn map_file(&self, original: &Original, identity: &FileIdentity) -> Option<File> {
        let path = files::c_path(original.mapping.path()?)?;
        let file = File::open(&path).ok().filter(|file| FileIdentity::of(file).as_ref() == Some(identity))?;
        let place = self.of(original.mapping.range);
        let bits = Protection::READ_WRITE.bits();
        let (at, length) = (place.start().0 as usize, place.len() as usize);
        // SAFETY:
        // - the place lies in the copy, which is ours alone.
        unsafe {
            linux_raw::mmap(at, length, bits, MAP_PRIVATE | MAP_FIXED, file.descriptor(), original.mapping.offset)
        }
        .ok()?;
        Some(file)
    }

    fn take_differences(
        &self,
        original: &Original,
        file: &File,
        chunk: AddressRange,
        base_page: PageSize,
    ) -> Result<(), CallError> {
        let mut in_file = vec![0; chunk.len() as usize];
        let offset = original.mapping.offset + (chunk.start() - original.mapping.range.start());
        let read = linux_raw::read_at(file.descriptor(), &mut in_file, offset);
        let read = read.map_err(|errno| CallError { call: "reading a mapped file", errno })?;
        for page in chunk.pages(base_page) {
            let at = (page.start() - chunk.start()) as usize;
            let expected = &in_file[at..at + page.len() as usize];
            // After the file's end the kernel shows zeros up to the end of the page, as the buffer does.
            // SAFETY:
            // - the page is one of the original, in the range that this restores (`Record::restore`).
            if at >= read || !same(unsafe { memory_of(page) }, expected) {
                self.take(page)?;
            }
        }
        Ok(())
    }

    fn take_what_is_not_zero(&self, chunk: AddressRange, base_page: PageSize) -> Result<(), CallError> {
        for page in chunk.pages(base_page) {
            // SAFETY:
            // - as in `take_differences`.
            if !is_zero(unsafe { memory_of(page) }) {
                self.take(page)?;
            }
        }
        Ok(())
    }

    /// Copies a page by a system call, which returns an error if the file has just been truncated instead of raising a
    /// signal.
    fn take(&self, page: AddressRange) -> Result<(), CallError> {
        let to = self.of(page).start().0 as usize;
        // SAFETY:
        // - the destination lies in the copy, which is ours alone.
        match unsafe { linux_raw::process_vm_readv(page, to) } {
            Ok(copied) if copied as u64 == page.len() => return Ok(()),
            Ok(_) => return Err(CallError { call: "process_vm_readv", errno: EIO as i32 }),
            Err(_) => {}
        }
        let failed = |errno| CallError { call: "reading /proc/thread-self/mem", errno };
        let memory = File::open(c"/proc/thread-self/mem").map_err(failed)?;
        // SAFETY:
        // - as above.
        unsafe { linux_raw::read_to(memory.descriptor(), to, page.len() as usize, page.start().0) }.map_err(failed)?;
        Ok(())
    }

    /// Moves a part into place.
    fn put(&mut self, part: AddressRange) -> Result<(), CallError> {
        let from = self.of(part);
        // SAFETY:
        // - what lies at the destination is replaced by an equal copy; writable memory is nobody's to write to now
        //   (`LiveRestrictions::why_not_writable`).
        let moved = unsafe { linux_raw::mremap_to(from, part.start().0 as usize) };
        moved.map_err(|errno| CallError { call: "mremap", errno })?;
        // Another thread may map memory in the gap at any moment.
        self.left.remove(from);
        Ok(())
    }

    /// Unmaps what has not been moved into place.
    fn drop_rest(self) {
        for range in self.left.iter() {
            // SAFETY:
            // - the copy is ours alone.
            let _ = unsafe { linux_raw::munmap(range) };
        }
    }
}

/// Compares by words: the compiler's comparison of slices would call this library's `memcmp`, which goes byte by byte.
fn same(one: &[u8], other: &[u8]) -> bool {
    words(one).eq(words(other))
}

fn is_zero(bytes: &[u8]) -> bool {
    words(bytes).all(|word| word == 0)
}

/// Pages as words.
fn words(page: &[u8]) -> impl Iterator<Item = u64> + '_ {
    page.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()))
}

/// The bytes of a lifted range.
///
/// # Safety
/// All of the range is mapped and readable, and is neither unmapped nor written to as long as the reference is used: it
/// is lifted, the library is held, and no other thread could write to it (`LiveRestrictions::why_not_writable`).
unsafe fn memory_of<'a>(range: AddressRange) -> &'a [u8] {
    // SAFETY:
    // - the caller's promise.
    unsafe { core::slice::from_raw_parts(range.start().0 as *const u8, range.len() as usize) }
}
