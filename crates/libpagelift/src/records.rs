//! Records of lifted ranges, and their restore.

use crate::executor::OwnProcess;
use crate::files::{self, File};
use address_space::{Address, AddressRange, AddressSpace, Mapping, MappingName, PageSize, Protection, RangeSet};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use lift_execution::{CallError, Executor, FileMapping, RestoredPart, RestoredRange};
use lift_plan::Source;

/// Bytes that are compared at a time.
const COMPARED: u64 = 64 << 10;

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
        let parts: Vec<RestoredPart<'_>> = self.originals.iter().map(Original::as_part).collect();
        let is_pool = self.source == Source::Hugetlb;
        let at_once = u64::MAX;
        let lifted = RestoredRange { range: self.range, protection: self.protection, is_pool, at_once, parts: &parts };
        lift_execution::restore(executor, &lifted, |executor, part, copy| changes_in(executor, part, copy, base_page))
    }
}

impl Original {
    /// What is to be there again: the file, if it is still the one that was mapped.
    fn as_part(&self) -> RestoredPart<'_> {
        let path = self.mapping.path().filter(|path| {
            let file = files::c_path(path).and_then(|path| File::open(&path).ok());
            self.file.is_some() && file.and_then(|file| FileIdentity::of(&file)) == self.file
        });
        let (offset, protection) = (self.mapping.offset, Protection::READ_WRITE);
        let file = path.map(|path| FileMapping { path, offset, protection });
        RestoredPart { range: self.mapping.range, protection: self.mapping.protection, file }
    }
}

/// The identity of a mapping's file; `None` if the file at its path is another one.
fn identity_of(mapping: &Mapping) -> Option<FileIdentity> {
    let MappingName::File { path, deleted: false } = &mapping.name else { return None };
    let identity = FileIdentity::of(&File::open(&files::c_path(path)?).ok()?)?;
    // Devices differ between maps and stat on some file systems; a restore compares contents anyway.
    (identity.inode == mapping.inode).then_some(identity)
}

/// Returns the pages of a part that differ from its file, which is mapped at `copy`, or where there is none from zeros.
fn changes_in(
    executor: &mut OwnProcess,
    part: &RestoredPart<'_>,
    copy: AddressRange,
    base_page: PageSize,
) -> Result<RangeSet, CallError> {
    let mut changes = RangeSet::new();
    let mut expected = vec![0; part.range.len().min(COMPARED) as usize];
    for chunk in part.range.pages(PageSize::new(COMPARED).unwrap_or(base_page)) {
        if part.file.is_some() {
            // By a system call, which returns an error if the file has just been truncated instead of raising a signal.
            let shown = AddressRange::sized(copy.start() + (chunk.start() - part.range.start()), chunk.len());
            executor.copy(shown, Address(expected.as_mut_ptr() as u64))?;
        }
        for page in chunk.pages(base_page) {
            let at = (page.start() - chunk.start()) as usize;
            // SAFETY:
            // - the page is one of the range that this restores (`Record::restore`).
            if !same(unsafe { memory_of(page) }, &expected[at..at + page.len() as usize]) {
                changes.insert(page);
            }
        }
    }
    Ok(changes)
}

/// Compares by words: the compiler's comparison of slices would call this library's `memcmp`, which goes byte by byte.
fn same(one: &[u8], other: &[u8]) -> bool {
    words(one).eq(words(other))
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
