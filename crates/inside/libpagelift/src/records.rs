//! Records of lifted ranges, and their restore.
//!
//! An unloaded object takes its range with it, and the program may map its own memory there. A record ends then: the
//! dynamic linker no longer lists the object, and the memory does not have the name that the lift gave it.

use crate::copies::same;
use crate::executor::OwnProcess;
use crate::files::{self, File};
use address_space::{Address, AddressRange, AddressSpace, Mapping, MappingName, PageSize, Protection, RangeSet};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use lift_execution::{CallError, Executor, FileMapping, RestoredPart, RestoredRange};
use lift_plan::{Attempt, RangeLift, Source};
use linux_raw::FileIdentity;

/// Bytes that are compared at a time.
const COMPARED: u64 = 64 << 10;

/// Beginning of the names that the engine gives to copies on transparent huge pages.
const NAME: &str = "pagelift ";

/// True for memory that a lift has named. Kernels before 5.17 have no names for anonymous memory.
pub fn is_named(mapping: &Mapping) -> bool {
    matches!(&mapping.name, MappingName::Named(name) if name.starts_with(NAME))
}

/// The marks of lifted memory. Memory that the program maps at these addresses later does not have them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// All of the memory has the name of a lift.
    pub is_named: bool,
    /// The extent of its object in the dynamic linker's list; `None` if the object was not listed.
    pub extent: Option<AddressRange>,
}

impl Marks {
    /// The marks of a range that has just been lifted. `listed` is as in [`LiftRecord::left_in`].
    pub fn of(range: AddressRange, after: &AddressSpace, listed: Option<&[AddressRange]>) -> Self {
        let extent = listed.and_then(|listed| listed.iter().find(|extent| extent.overlaps(range)).copied());
        Self { is_named: after.overlapping(range).iter().all(is_named), extent }
    }
}

/// A part of a lifted range as it was before the lift.
#[derive(Clone, Debug)]
pub struct Original {
    /// The mapping, cut to the range.
    pub mapping: Mapping,
    /// Its file when it was lifted, if that could be opened and is the one that was mapped.
    pub file: Option<FileIdentity>,
}

/// A lifted range.
#[derive(Clone, Debug)]
pub struct LiftRecord {
    /// Name of the object.
    pub object: String,
    /// Addresses: whole huge pages, or the part that the program has left.
    pub range: AddressRange,
    /// The range of the plan that contains it; the rest was collapsed in place, or is unchanged.
    pub planned: AddressRange,
    /// Protection that the lift has given it. The program may have changed it since, see [`LiftRecord::parts`].
    pub protection: Protection,
    /// Source of the pages.
    pub source: Source,
    /// Their size.
    pub page_size: PageSize,
    /// The mappings that it replaced.
    pub originals: Vec<Original>,
    /// How the range is recognised later.
    pub marks: Marks,
}

impl LiftRecord {
    /// The record of the part of a planned range that an attempt has swapped.
    pub fn new(lift: &RangeLift, attempt: &Attempt, range: AddressRange, before: &AddressSpace, marks: Marks) -> Self {
        let originals = before.overlapping(range).iter().map(|mapping| {
            let cut = mapping.range.intersect(range);
            let offset = mapping.offset + (cut.start() - mapping.range.start());
            let mapping = Mapping { range: cut, offset, ..mapping.clone() };
            Original { file: identity_of(&mapping), mapping }
        });
        Self {
            object: lift.object.clone(),
            range,
            planned: lift.range,
            protection: lift.protection,
            source: attempt.source,
            page_size: attempt.page_size,
            originals: originals.collect(),
            marks,
        }
    }

    /// The part of the range that still belongs to the lift, with any protection: the program may have unmapped or
    /// replaced parts, and an unloaded object has removed the whole range. `listed` is the extents of the listed objects;
    /// `None` where nothing is unloaded.
    pub fn left_in(&self, space: &AddressSpace, listed: Option<&[AddressRange]>) -> RangeSet {
        let is_listed = self.marks.extent.map(|extent| listed.is_none_or(|listed| listed.contains(&extent)));
        if is_listed == Some(false) {
            return RangeSet::new();
        }
        let is_loaded = is_listed.unwrap_or(listed.is_none());
        self.of_its_kind_in(space, |mapping| is_loaded && mapping.name == MappingName::Anonymous)
    }

    /// The part of the range that is memory as the lift has left it. On transparent huge pages without a name, `is_unnamed`
    /// decides.
    pub fn of_its_kind_in(&self, space: &AddressSpace, is_unnamed: impl Fn(&Mapping) -> bool) -> RangeSet {
        let ours = |mapping: &&Mapping| match self.source {
            Source::Hugetlb => mapping.name == MappingName::HugetlbAnonymous && !mapping.shared,
            Source::Image | Source::File => mapping.path().is_some(),
            Source::Thp if self.marks.is_named => is_named(mapping) && mapping.is_plain_anonymous(),
            Source::Thp => mapping.is_plain_anonymous() && is_unnamed(mapping),
        };
        space.overlapping(self.range).iter().filter(ours).map(|mapping| mapping.range.intersect(self.range)).collect()
    }

    /// The parts of the range that have one protection each, with that protection; the whole range, as it was lifted,
    /// if the mappings are unknown.
    pub fn parts(&self, space: Option<&AddressSpace>) -> Vec<(AddressRange, Protection)> {
        let Some(space) = space else { return vec![(self.range, self.protection)] };
        let mut parts: Vec<(AddressRange, Protection)> = Vec::new();
        for mapping in space.overlapping(self.range) {
            let range = mapping.range.intersect(self.range);
            match parts.last_mut() {
                Some((last, protection)) if last.end() == range.start() && *protection == mapping.protection => {
                    *last = AddressRange::new(last.start(), range.end());
                }
                _ => parts.push((range, mapping.protection)),
            }
        }
        parts
    }

    /// The record of a part of the range.
    pub fn part(&self, range: AddressRange) -> Self {
        let originals = self.originals.iter().filter_map(|original| original.part(range)).collect();
        Self { range, originals, object: self.object.clone(), ..*self }
    }

    /// True for memory that the program could write to when it was lifted.
    pub fn is_writable(&self) -> bool {
        self.protection.write
    }

    /// True for pages of the hugetlb pool.
    pub fn is_of_pool(&self) -> bool {
        self.source == Source::Hugetlb
    }

    /// Moves the range, all of which has the protection `now`, back to ordinary pages. If its file is still the same, the
    /// file is mapped again, with private pages only where memory differs from it; the rest becomes anonymous memory. A
    /// protection that the program has changed stays as it is.
    ///
    /// # Errors
    /// The kernel's. Contents and protections are still right then, and at least a part of the range is still lifted.
    pub fn restore(&self, now: Protection, executor: &mut OwnProcess, base_page: PageSize) -> Result<(), CallError> {
        let changed = (now != self.protection).then_some(now);
        let parts: Vec<RestoredPart<'_>> = self.originals.iter().map(|original| original.as_part(changed)).collect();
        let (is_pool, at_once) = (self.is_of_pool(), u64::MAX);
        let lifted = RestoredRange { range: self.range, protection: now, is_pool, at_once, parts: &parts };
        lift_execution::restore(executor, &lifted, |executor, part, copy| changes_in(executor, part, copy, base_page))
    }
}

/// Cuts each record to the part that `left` returns.
pub fn cut(records: &mut Vec<LiftRecord>, left: impl Fn(&LiftRecord) -> RangeSet) {
    for record in core::mem::take(records) {
        let left = left(&record);
        if left.covers(record.range) {
            records.push(record);
        } else {
            records.extend(left.within(record.range).map(|range| record.part(range)));
        }
    }
}

impl Original {
    /// The part within `range`.
    fn part(&self, range: AddressRange) -> Option<Self> {
        let cut = self.mapping.range.intersect(range);
        let offset = self.mapping.offset + (cut.start() - self.mapping.range.start());
        let mapping = || Mapping { range: cut, offset, ..self.mapping.clone() };
        (!cut.is_empty()).then(|| Self { mapping: mapping(), file: self.file })
    }

    /// The part to restore: the file, if it is still the mapped one. `changed` is the protection that the program has
    /// set since.
    fn as_part(&self, changed: Option<Protection>) -> RestoredPart<'_> {
        let path = self.mapping.path().filter(|path| {
            let file = files::c_path(path).and_then(|path| File::open(&path).ok());
            self.file.is_some() && file.and_then(|file| file.identity()) == self.file
        });
        let (offset, protection) = (self.mapping.offset, Protection::READ_WRITE);
        let file = path.map(|path| FileMapping { path, offset, protection });
        RestoredPart { range: self.mapping.range, protection: changed.unwrap_or(self.mapping.protection), file }
    }
}

/// The identity of a mapping's file; `None` if the file at its path is another one.
fn identity_of(mapping: &Mapping) -> Option<FileIdentity> {
    let MappingName::File { path, deleted: false } = &mapping.name else { return None };
    let identity = File::open(&files::c_path(path)?).ok()?.identity()?;
    // Devices differ between maps and stat on some file systems; a restore compares contents anyway.
    (identity.inode == mapping.inode).then_some(identity)
}

/// Returns the pages of a part that differ from its file, which is mapped at `copy`, or from zeros if there is none.
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
            // - the page is one of the range that this restores (`LiftRecord::restore`).
            if !same(unsafe { memory_of(page) }, &expected[at..at + page.len() as usize]) {
                changes.insert(page);
            }
        }
    }
    Ok(changes)
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

#[cfg(test)]
mod tests {
    use super::*;
    use lift_plan::Kind;

    const BEFORE: &str = "1000-5000 r--p 00001000 00:00 0\n5000-9000 rw-p 00000000 00:00 0\n";

    fn record(source: Source) -> LiftRecord {
        marked(source, Marks::default())
    }

    fn marked(source: Source, marks: Marks) -> LiftRecord {
        let (range, page_size) = (AddressRange::new(Address(0x1000), Address(0x9000)), PageSize::new(0x1000).unwrap());
        let (object, protection, kinds) = ("x".into(), Protection::READ_WRITE, vec![Kind::Data]);
        let lift = RangeLift { object, kinds, range, protection, attempts: vec![] };
        let attempt = Attempt { source, page_size, parts: vec![], memory: 0, placement: None };
        LiftRecord::new(&lift, &attempt, range, &AddressSpace::parse(BEFORE).unwrap(), marks)
    }

    /// The rest of a record, with the originals of each part: start, length and offset.
    fn left(source: Source, maps: &str) -> Vec<(AddressRange, Vec<[u64; 3]>)> {
        let (mut records, space) = (vec![record(source)], AddressSpace::parse(maps).unwrap());
        cut(&mut records, |record| record.left_in(&space, None));
        let place = |o: &Original| [o.mapping.range.start().0, o.mapping.range.len(), o.mapping.offset];
        records.iter().map(|record| (record.range, record.originals.iter().map(place).collect())).collect()
    }

    #[test]
    fn a_record_keeps_what_is_of_its_kind_whatever_its_protection() {
        let range = |start, end| AddressRange::new(Address(start), Address(end));
        let pool =
            |at: &str, protection: &str| format!("{at} {protection}p 00000000 00:0f 9 /anon_hugepage (deleted)\n");
        let whole = vec![(range(0x1000, 0x9000), vec![[0x1000, 0x4000, 0x1000], [0x5000, 0x4000, 0]])];
        let protected = pool("1000-3000", "rw-") + &pool("3000-4000", "---") + &pool("4000-a000", "rw-");
        assert_eq!(left(Source::Hugetlb, &protected), whole);
        let other = pool("1000-3000", "rw-") + "3000-6000 rw-p 00000000 00:00 0\n" + &pool("6000-8000", "r--");
        let parts = vec![
            (range(0x1000, 0x3000), vec![[0x1000, 0x2000, 0x1000]]),
            (range(0x6000, 0x8000), vec![[0x6000, 0x2000, 0x1000]]),
        ];
        assert_eq!(left(Source::Hugetlb, &other), parts);
        assert_eq!(
            left(Source::Thp, &other),
            [(range(0x3000, 0x6000), vec![[0x3000, 0x2000, 0x3000], [0x5000, 0x1000, 0]])]
        );
        assert!(left(Source::Thp, "").is_empty());
    }

    /// After its object was unloaded, the program may map its own memory there.
    #[test]
    fn a_record_ends_with_its_object() {
        let range = AddressRange::new(Address(0x1000), Address(0x9000));
        let extent = AddressRange::new(Address(0), Address(0xb000));
        let bytes = |source, marks, name: &str, listed: Option<&[AddressRange]>| {
            let space = AddressSpace::parse(&format!("1000-9000 rw-p 00000000 00:00 0 {name}\n")).unwrap();
            marked(source, marks).left_in(&space, listed).bytes()
        };
        let space = AddressSpace::parse("1000-9000 rw-p 00000000 00:00 0 [anon:pagelift text x]\n").unwrap();
        let named = Marks::of(range, &space, Some(&[range, extent]));
        assert_eq!(named, Marks { is_named: true, extent: Some(range) });
        let unlisted = Marks { extent: None, ..named };
        assert_eq!(unlisted, Marks::of(range, &space, Some(&[])));
        let listed = Marks { is_named: false, extent: Some(extent) };
        let (thp, whole) = (Source::Thp, range.len());
        assert_eq!(bytes(thp, unlisted, "[anon:pagelift text x]", Some(&[])), whole);
        assert_eq!(bytes(thp, unlisted, "", Some(&[])), 0, "the program's own");
        assert_eq!(bytes(thp, unlisted, "[anon:own]", None), 0, "the program's own");
        assert_eq!(bytes(thp, listed, "", Some(&[extent])), whole);
        assert_eq!(bytes(thp, listed, "", Some(&[range])), 0, "another object, or none");
        assert_eq!(bytes(thp, Marks::default(), "", Some(&[extent])), 0, "an object that was never listed");
        assert_eq!(bytes(thp, Marks::default(), "", None), whole, "a static program unloads nothing");
        let (pool, name) = (Source::Hugetlb, "/anon_hugepage (deleted)");
        assert_eq!(bytes(pool, listed, name, Some(&[extent])), whole);
        assert_eq!(bytes(pool, listed, name, Some(&[])), 0, "unloaded");
        assert_eq!(bytes(pool, unlisted, name, Some(&[])), whole);
    }

    #[test]
    fn parts_have_one_protection_each() {
        let maps = "1000-3000 rw-p 0 00:00 0\n3000-4000 rw-p 0 00:00 0 [anon:x]\n4000-5000 r--p 0 00:00 0\n";
        let space = AddressSpace::parse(maps).unwrap();
        let part = |start, end, protection| (AddressRange::new(Address(start), Address(end)), protection);
        let parts = record(Source::Thp).parts(Some(&space));
        assert_eq!(parts, [part(0x1000, 0x4000, Protection::READ_WRITE), part(0x4000, 0x5000, Protection::READ)]);
        assert_eq!(record(Source::Thp).parts(None), [part(0x1000, 0x9000, Protection::READ_WRITE)]);
    }
}
