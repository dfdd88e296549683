//! Programs in memory, for tests: ELF shapes are placed as the kernel and a dynamic linker place them.
#![allow(dead_code)]

pub mod programs;
pub mod random;

use address_space::{
    Address, AddressRange, AddressSpace, ElfImage, ElfKind, LoadSegment, LoadedObject, Mapping, MappingName,
    ObjectRole, PageSize, Protection, RangeSet,
};
use lift_plan::{CachedFile, HugePool, ImageSpan, MachineFacts, ProcessFacts, SpecialMapping, ThpFacts, ThpMode};
use std::ops::Range;

/// The base page of every program here; bytes.
pub const PAGE: u64 = 4096;
/// The machine of every program here, `EM_X86_64`.
pub const MACHINE: u16 = 62;

pub const RWX: Protection = Protection { read: true, write: true, execute: true };

pub fn base_page() -> PageSize {
    PageSize::new(PAGE).unwrap()
}

pub fn page_size(bytes: u64) -> PageSize {
    PageSize::new(bytes).unwrap()
}

/// A machine with this number of free pool pages of one size, transparent huge pages of the same size, and enough of
/// all else.
pub fn machine_with(huge: u64, pool_pages: u64) -> MachineFacts {
    let size = page_size(huge);
    MachineFacts {
        elf_machine: MACHINE,
        base_page: base_page(),
        pools: vec![HugePool { size, total: pool_pages, available: pool_pages }],
        default_hugetlb: Some(size),
        thp: Some(ThpFacts { size, mode: ThpMode::Madvise }),
        movable_hugetlb: true,
        collapse: true,
        refaults_huge: true,
        memory_available: 1 << 40,
        memory_bound: "the machine".to_owned(),
        max_mappings: 65_530,
        numa: None,
        pool_limits: Vec::new(),
    }
}

pub fn range(start: u64, end: u64) -> AddressRange {
    AddressRange::new(Address(start), Address(end))
}

/// One `PT_LOAD`, relative to the end of the one before.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub protection: Protection,
    /// Bytes from the file.
    pub file: u64,
    /// Zero bytes behind them.
    pub zeros: u64,
    /// Offset of its beginning in its first page, in bytes.
    pub skew: u64,
    /// Whole pages left free before it.
    pub gap: u64,
    /// Begins in the page in which the one before ends, as a linker script without page alignment has it.
    pub shares_page: bool,
}

impl Segment {
    pub fn new(protection: Protection, file: u64) -> Self {
        Self { protection, file, zeros: 0, skew: 0, gap: 0, shares_page: false }
    }

    pub fn zeros(self, zeros: u64) -> Self {
        Self { zeros, ..self }
    }

    pub fn skew(self, skew: u64) -> Self {
        Self { skew, ..self }
    }

    pub fn gap(self, gap: u64) -> Self {
        Self { gap, ..self }
    }
}

/// An ELF file and its address.
#[derive(Clone, Debug)]
pub struct Shape {
    pub path: &'static str,
    pub role: ObjectRole,
    /// The address of its first page.
    pub at: u64,
    pub kind: ElfKind,
    pub segments: Vec<Segment>,
    /// Bytes of RELRO from the start of the first writable segment.
    pub relro: u64,
    /// `p_align`; bytes.
    pub align: u64,
    pub interpreter: bool,
    /// Relocations change read-only segments (`DT_TEXTREL`).
    pub text_relocations: bool,
}

impl Shape {
    pub fn new(path: &'static str, role: ObjectRole, at: u64, segments: Vec<Segment>) -> Self {
        let kind = ElfKind::PositionIndependent;
        Self { path, role, at, kind, segments, relro: 0, align: PAGE, interpreter: true, text_relocations: false }
    }

    pub fn relro(self, relro: u64) -> Self {
        Self { relro, ..self }
    }

    pub fn fixed(self) -> Self {
        Self { kind: ElfKind::FixedAddress, ..self }
    }

    pub fn without_interpreter(self) -> Self {
        Self { interpreter: false, ..self }
    }

    pub fn aligned(self, align: u64) -> Self {
        Self { align, ..self }
    }

    pub fn object(&self) -> LoadedObject {
        let bias = if self.kind == ElfKind::FixedAddress { 0 } else { self.at };
        LoadedObject {
            path: self.path.to_owned(),
            link: None,
            role: self.role,
            bias,
            image: self.image(self.at - bias),
        }
    }

    fn image(&self, first: u64) -> ElfImage {
        let mut segments: Vec<LoadSegment> = Vec::new();
        let mut end = first;
        for segment in &self.segments {
            let page = end.next_multiple_of(self.align) + segment.gap * self.align.max(PAGE);
            let start = if segment.shares_page { end } else { page + segment.skew % PAGE };
            let memory = AddressRange::sized(Address(start), segment.file + segment.zeros);
            let (file_size, protection, align) = (segment.file, segment.protection, self.align);
            segments.push(LoadSegment { memory, file_size, offset: start - first, protection, align });
            end = memory.end().0;
        }
        let writable = segments.iter().find(|segment| segment.protection.write);
        let relro = writable.filter(|_| self.relro > 0).map(|s| AddressRange::sized(s.memory.start(), self.relro));
        ElfImage {
            machine: MACHINE,
            kind: self.kind,
            entry: Address(first + 64),
            headers: None,
            segments,
            relro,
            interpreter: self.interpreter.then(|| "/lib64/ld-linux-x86-64.so.2".to_owned()),
            dynamic: true,
            text_relocations: self.text_relocations,
            soname: None,
            build_id: None,
        }
    }
}

/// A program in memory, under construction.
#[derive(Clone, Debug, Default)]
pub struct Program {
    pub name: &'static str,
    pub mappings: Vec<Mapping>,
    pub facts: ProcessFacts,
    inodes: u64,
}

impl Program {
    pub fn new(name: &'static str) -> Self {
        Self { name, ..Self::default() }
    }

    /// Maps over whatever is there, as `MAP_FIXED` does.
    pub fn map(&mut self, mapping: Mapping) {
        self.unmap(mapping.range);
        self.mappings.push(mapping);
    }

    pub fn unmap(&mut self, range: AddressRange) {
        let cut = |mapping: &Mapping, part: AddressRange| {
            let into = if mapping.inode == 0 { 0 } else { part.start() - mapping.range.start() };
            Mapping { range: part, offset: mapping.offset + into, ..mapping.clone() }
        };
        let parts = |m: Mapping| m.range.without(range).into_iter().filter(|p| !p.is_empty()).map(move |p| cut(&m, p));
        self.mappings = std::mem::take(&mut self.mappings).into_iter().flat_map(parts).collect();
    }

    pub fn protect(&mut self, range: AddressRange, protection: Protection) {
        let inside: Vec<_> = self.mappings.iter().filter(|m| m.range.overlaps(range)).cloned().collect();
        for mapping in inside {
            let part = mapping.range.intersect(range);
            let into = if mapping.inode == 0 { 0 } else { part.start() - mapping.range.start() };
            self.map(Mapping { range: part, protection, offset: mapping.offset + into, ..mapping });
        }
    }

    pub fn anonymous(&mut self, range: AddressRange, protection: Protection, name: MappingName) {
        self.map(Mapping { range, protection, shared: false, offset: 0, device: (0, 0), inode: 0, name });
    }

    pub fn file(&mut self, range: AddressRange, protection: Protection, path: &str, offset: u64, inode: u64) {
        let name = MappingName::File { path: path.to_owned(), deleted: false };
        self.map(Mapping { range, protection, shared: false, offset, device: (0xfe, 0), inode, name });
    }

    /// Loads an object; `sealed`: the dynamic linker has made its RELRO read-only.
    pub fn load(&mut self, shape: &Shape, sealed: bool) -> LoadedObject {
        self.inodes += 1;
        let (object, inode) = (shape.object(), self.inodes + 100);
        for segment in &object.image.segments {
            let all = segment.memory.widened(base_page()).shifted(object.bias);
            let file = match segment.file_size {
                0 => AddressRange::new(all.start(), all.start()),
                _ => segment.file_memory().widened(base_page()).shifted(object.bias),
            };
            let zeros = AddressRange::new(file.end(), all.end());
            if !file.is_empty() {
                self.file(file, segment.protection, shape.path, segment.offset & !(PAGE - 1), inode);
            }
            if !zeros.is_empty() {
                self.anonymous(zeros, segment.protection, MappingName::Anonymous);
            }
        }
        if let Some(relro) = object.relro(base_page()).filter(|_| sealed) {
            self.protect(relro, Protection::READ);
        }
        self.facts.objects.push(object.clone());
        object
    }

    /// Maps the brk area, of which all has been touched.
    pub fn heap(&mut self, range: AddressRange) {
        self.anonymous(range, Protection::READ_WRITE, MappingName::Heap);
        self.touch(range);
    }

    pub fn touch(&mut self, range: AddressRange) {
        self.facts.touched.insert(range);
    }

    /// A separate image shows `range`; `step`: its misalignment to the huge pages, in bytes.
    pub fn image(&mut self, range: AddressRange, huge: u64, step: u64) {
        let path = format!("/run/images/{}", self.facts.images.len());
        let offset = range.start().0 % huge + 3 * huge + step;
        self.facts.images.push(ImageSpan { range, path, offset, page_size: page_size(huge), node: None });
    }

    /// Images show all the read-only file mappings of the objects that no relocation changes.
    pub fn imaged(mut self, huge: u64) -> Self {
        let unchanged = |object: &LoadedObject, mapping: &&Mapping| {
            let segment = object
                .image
                .segments
                .iter()
                .find(|s| s.memory.widened(base_page()).shifted(object.bias).covers(mapping.range));
            mapping.path() == Some(&object.path) && segment.is_some_and(|segment| !segment.protection.write)
        };
        let objects = self.facts.objects.clone();
        let shown = |mapping: &&Mapping| objects.iter().any(|object| unchanged(object, mapping));
        let shown: Vec<_> = self.mappings.iter().filter(shown).map(|mapping| mapping.range).collect();
        shown.into_iter().for_each(|range| self.image(range, huge, 0));
        self
    }

    /// The file of an object is in huge folios at the offsets in `huge`.
    pub fn cached(&mut self, path: &str, huge: Vec<Range<u64>>, own_path: bool) {
        let own_path = own_path.then(|| format!("/root{path}"));
        let shows = |mapping: &&Mapping| mapping.path() == Some(path) && !mapping.shared;
        let Some(mapping) = self.mappings.iter().find(shows) else { return };
        let (path, numbers) = (path.to_owned(), mapping.file_numbers());
        self.facts.cached.push(CachedFile { path, numbers, huge, own_path, shortfall: None });
    }

    /// Every second block of all files of objects is in a huge folio.
    pub fn all_partly_cached(mut self, huge: u64) -> Self {
        let paths: Vec<_> = self.facts.objects.iter().map(|object| object.path.clone()).collect();
        let blocks: Vec<_> = (0..64).map(|number| 2 * number * huge..(2 * number + 1) * huge).collect();
        paths.iter().for_each(|path| self.cached(path, blocks.clone(), true));
        self
    }

    /// All files of objects are in huge folios.
    pub fn all_cached(mut self) -> Self {
        let paths: Vec<_> = self.facts.objects.iter().map(|object| object.path.clone()).collect();
        paths.iter().for_each(|path| self.cached(path, std::iter::once(0..1 << 40).collect(), true));
        self
    }

    /// Gives a range a property, which splits the mappings at its borders, as the kernel does.
    pub fn special(&mut self, range: AddressRange, property: &str) {
        let inside: Vec<_> = self.mappings.iter().filter(|m| m.range.overlaps(range)).cloned().collect();
        inside.iter().for_each(|mapping| self.protect(mapping.range.intersect(range), mapping.protection));
        self.facts.special.push(SpecialMapping { range, property: property.to_owned() });
    }

    /// The facts, with the mappings as they are now.
    pub fn finish(mut self) -> Self {
        self.mappings.sort_by_key(|mapping| mapping.range.start());
        self.facts.space = AddressSpace::from_mappings(self.mappings.clone());
        let plain: RangeSet = self.mappings.iter().filter(|m| m.is_plain_anonymous()).map(|m| m.range).collect();
        let touched: Vec<_> = self.facts.touched.iter().collect();
        self.facts.touched = touched.into_iter().flat_map(|range| plain.within(range).collect::<Vec<_>>()).collect();
        self
    }
}
