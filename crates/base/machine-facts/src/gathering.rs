//! Gathers the facts about a process by the same rules for another process and for the own one.

use crate::facts::MachineFacts;
use crate::process::{CacheShortfall, CachedFile, ProcessFacts};
use address_space::{AddressRange, AddressSpace, LoadedObject, Mapping, PageSize, RangeSet};
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;
use options::Policy;

/// Returns the touched pages of the anonymous memory of objects and of the heap. `touched` reads the touched pages of a
/// range.
///
/// # Errors
/// The first error of `touched`.
pub fn touched_memory<E>(
    space: &AddressSpace,
    objects: &[LoadedObject],
    base_page: PageSize,
    touched: impl Fn(AddressRange) -> Result<RangeSet, E>,
) -> Result<RangeSet, E> {
    let extents: Vec<AddressRange> = objects.iter().map(|object| object.extent().widened(base_page)).collect();
    let heap = space.heap();
    let mut found = RangeSet::new();
    for mapping in space.mappings().iter().filter(|mapping| mapping.inode == 0 && mapping.protection.write) {
        let of_object = extents.iter().any(|extent| extent.overlaps(mapping.range));
        if of_object || heap.is_some_and(|heap| heap.overlaps(mapping.range)) {
            touched(mapping.range)?.iter().for_each(|range| found.insert(range));
        }
    }
    Ok(found)
}

impl MachineFacts {
    /// Returns the facts without the memory of the program's objects that it may write and has yet to touch: a lift must
    /// leave it available.
    pub fn with_room_for(&self, process: &ProcessFacts) -> Self {
        let writable = process.space.mappings().iter().filter(|mapping| mapping.protection.write && !mapping.shared);
        let of_objects = writable.filter(|m| process.objects.iter().any(|o| o.extent().overlaps(m.range)));
        let untouched: u64 = of_objects.map(|m| m.range.len() - process.touched.bytes_in(m.range)).sum();
        Self { memory_available: self.memory_available.saturating_sub(untouched), ..self.clone() }
    }
}

/// The state of the parts of a file that a process maps.
#[derive(Clone, Debug, Default)]
pub struct FileState {
    /// The parts in huge folios, as offsets in bytes, in their order.
    pub huge: Vec<Range<u64>>,
    /// The reason for which other parts are not in huge folios, if it is known.
    pub shortfall: Option<CacheShortfall>,
    /// Path by which the process itself opens the file, if there is one.
    pub own_path: Option<String>,
}

/// Reads the state of a process's files in the page cache.
pub trait FileReader {
    /// Returns the state of an object's file, of which the process shows parts by `mappings`. `None` if the file cannot
    /// be read.
    fn state(&mut self, object: &LoadedObject, mappings: &[&Mapping], size: PageSize) -> Option<FileState>;

    /// Returns the reason for which an object's file is small, if no address agrees with its offset.
    fn shortfall(&mut self, _object: &LoadedObject) -> Option<CacheShortfall> {
        None
    }

    /// Returns the pages of a private mapping of a file that the process has written; `None` if they are unknown.
    fn changed(&mut self, range: AddressRange) -> Option<RangeSet>;
}

/// The files of a process that its huge pages may show.
#[derive(Clone, Debug, Default)]
pub struct CachedFiles {
    /// The files.
    pub files: Vec<CachedFile>,
    /// Pages of their mappings that the process has written.
    pub changed: RangeSet,
}

/// Returns the state of the chosen objects' files in the page cache. Files whose addresses do not agree with their
/// offsets show no huge page.
pub fn cached_files(
    process: &ProcessFacts,
    machine: &MachineFacts,
    policy: &Policy,
    reader: &mut impl FileReader,
) -> CachedFiles {
    let mut found = CachedFiles::default();
    let size = machine.thp.map(|thp| thp.size).filter(|size| policy.page_size.is_none_or(|wanted| wanted == *size));
    let Some(size) = size.filter(|_| policy.may_use_files()) else { return found };
    for object in process.objects.iter().filter(|object| policy.objects.chooses(object)) {
        let mappings = mappings_of(object, &process.space, size);
        let Some(first) = mappings.first() else { continue };
        let (path, numbers) = (object.path.clone(), first.file_numbers());
        let congruent: Vec<_> = mappings.into_iter().filter(|mapping| is_congruent(mapping, size)).collect();
        let state = match congruent.is_empty() {
            true => Some(FileState { shortfall: reader.shortfall(object), ..FileState::default() }),
            false => reader.state(object, &congruent, size),
        };
        // The planner has no facts about a file that cannot be read.
        let Some(FileState { huge, shortfall, own_path }) = state else { continue };
        for mapping in congruent.iter().filter(|_| !huge.is_empty()) {
            // If the kernel does not report it, every page may have been written.
            let changed = reader.changed(mapping.range).unwrap_or_else(|| RangeSet::from_iter([mapping.range]));
            changed.iter().for_each(|range| found.changed.insert(range));
        }
        found.files.push(CachedFile { path, numbers, huge, own_path, shortfall });
    }
    found
}

/// The private mappings of an object's file that are never written and can contain a huge page. If several files had
/// the path one after the other, only mappings of the first mapping's file.
fn mappings_of<'a>(object: &LoadedObject, space: &'a AddressSpace, size: PageSize) -> Vec<&'a Mapping> {
    let of_path = |m: &&Mapping| !m.shared && m.path() == Some(object.path.as_str());
    let Some(first) = space.mappings().iter().find(of_path) else { return Vec::new() };
    let same = |m: &&Mapping| m.file_numbers() == first.file_numbers() && !m.protection.write;
    let fits = |m: &&Mapping| !m.range.whole_pages(size).is_empty();
    space.mappings().iter().filter(of_path).filter(same).filter(fits).collect()
}

fn is_congruent(mapping: &Mapping, size: PageSize) -> bool {
    mapping.range.start().0 % size.bytes() == mapping.offset % size.bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tests::WrittenFiles;
    use crate::machine::{Kernel, Looks, facts_of};
    use address_space::{Address, ElfImage, LoadSegment, ObjectRole};

    /// A congruent mapping of one huge page, one of another file at the same path, and one that is not congruent.
    const MAPS: &str = "\
200000-400000 r-xp 00200000 fe:00 7 /bin/exe
400000-401000 rw-p 00400000 fe:00 7 /bin/exe
401000-421000 rw-p 00000000 00:00 0
600000-800000 r-xp 00200000 fe:00 8 /bin/exe
a01000-e01000 r--p 00000000 fe:00 9 /lib/other
1000000-1002000 rw-p 00000000 00:00 0 [heap]
2000000-2002000 rw-p 00000000 00:00 0
";

    fn process() -> ProcessFacts {
        let own = ElfImage::parse(&*std::fs::read(std::env::current_exe().unwrap()).unwrap()).unwrap();
        let segment =
            |start, end| LoadSegment { memory: AddressRange::new(Address(start), Address(end)), ..own.segments[0] };
        let object = |path: &str, start, end| LoadedObject {
            path: path.into(),
            link: None,
            role: ObjectRole::SharedObject,
            bias: 0,
            image: ElfImage { segments: vec![segment(start, end)], ..own.clone() },
        };
        let objects = vec![object("/bin/exe", 0x20_0000, 0x42_1000), object("/lib/other", 0xa0_1000, 0xe0_1000)];
        ProcessFacts { space: AddressSpace::parse(MAPS).unwrap(), objects, ..ProcessFacts::default() }
    }

    fn machine() -> MachineFacts {
        let [base_page, huge] = [4096, 2 << 20].map(|bytes| PageSize::new(bytes).unwrap());
        let kernel = Kernel { base_page, release: (6, 18), thp_size: Some(huge) };
        let nothing = Looks { at_pools: false, at_memory: false };
        let facts = facts_of(&WrittenFiles::default(), &kernel, "/proc/7", nothing);
        MachineFacts { memory_available: 1 << 30, ..facts }
    }

    fn range(start: u64, end: u64) -> AddressRange {
        AddressRange::new(Address(start), Address(end))
    }

    /// Reports every file as huge, and no page as changed.
    #[derive(Default)]
    struct Reader {
        asked: Vec<(String, usize)>,
        is_unreadable: bool,
        changed: Option<RangeSet>,
    }

    impl FileReader for Reader {
        fn state(&mut self, object: &LoadedObject, mappings: &[&Mapping], size: PageSize) -> Option<FileState> {
            self.asked.push((object.path.clone(), mappings.len()));
            let part = mappings[0].offset..mappings[0].offset + size.bytes();
            (!self.is_unreadable).then(|| FileState { huge: std::iter::once(part).collect(), ..FileState::default() })
        }

        fn changed(&mut self, _range: AddressRange) -> Option<RangeSet> {
            self.changed.clone()
        }
    }

    #[test]
    fn files_are_read_where_addresses_agree_with_offsets() {
        let mut reader = Reader::default();
        let found = cached_files(&process(), &machine(), &Policy::default(), &mut reader);
        assert_eq!(reader.asked, [("/bin/exe".to_owned(), 1)]);
        let files: Vec<_> = found.files.iter().map(|file| (file.numbers.inode, file.huge.len())).collect();
        assert_eq!(files, [(7, 1), (9, 0)]);
        // Every page may have been written if the kernel does not report it.
        assert_eq!(found.changed, RangeSet::from_iter([range(0x20_0000, 0x40_0000)]));
        let mut unchanged = Reader { changed: Some(RangeSet::new()), ..Reader::default() };
        assert!(cached_files(&process(), &machine(), &Policy::default(), &mut unchanged).changed.is_empty());
    }

    #[test]
    fn a_file_that_cannot_be_read_is_left_out() {
        let mut reader = Reader { is_unreadable: true, ..Reader::default() };
        let found = cached_files(&process(), &machine(), &Policy::default(), &mut reader);
        assert_eq!(found.files.iter().map(|file| file.numbers.inode).collect::<Vec<_>>(), [9]);
        let other_size = Policy { page_size: PageSize::new(1 << 30).ok(), ..Policy::default() };
        assert!(cached_files(&process(), &machine(), &other_size, &mut reader).files.is_empty());
    }

    #[test]
    fn memory_of_objects_and_of_the_heap_is_asked_for_touched_pages() {
        let (process, page) = (process(), PageSize::new(4096).unwrap());
        let all = |range: AddressRange| Ok::<_, ()>(RangeSet::from_iter([range]));
        let found = touched_memory(&process.space, &process.objects, page, all).unwrap();
        assert_eq!(found, RangeSet::from_iter([range(0x40_1000, 0x42_1000), range(0x100_0000, 0x100_2000)]));
        assert_eq!(touched_memory(&process.space, &process.objects, page, |_| Err(5)), Err(5));
    }

    #[test]
    fn memory_that_the_program_has_yet_to_touch_is_left_available() {
        let mut process = process();
        assert_eq!(machine().with_room_for(&process).memory_available, (1 << 30) - 0x2_1000);
        process.touched.insert(range(0x40_0000, 0x41_1000));
        assert_eq!(machine().with_room_for(&process).memory_available, (1 << 30) - 0x1_0000);
    }
}
