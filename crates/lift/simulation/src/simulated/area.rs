//! One mapping, with properties that maps does not show.

use address_space::{AddressRange, Mapping, MappingName, PageSize, Protection};

/// Device and inode number that maps shows for pool memory.
const POOL_DEVICE: (u32, u32) = (0, 0x0f);
const POOL_INODE: u64 = 4242;
/// Device and inode number that maps shows for images.
const IMAGE_DEVICE: (u32, u32) = (0, 0x2a);
const IMAGE_INODE: u64 = 9000;

/// One mapping of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Area {
    /// The mapping as in maps, except that the brk area has no name here.
    pub mapping: Mapping,
    /// `MADV_HUGEPAGE`.
    pub advised: bool,
    /// Page size of pool memory.
    pub pool: Option<PageSize>,
    /// Page size of the file system of a shared image.
    pub image: Option<PageSize>,
    /// `MADV_DONTDUMP`.
    pub not_dumped: bool,
    /// Confined to some NUMA nodes (`mbind`).
    pub bound: bool,
    /// `mseal`.
    pub sealed: bool,
    /// `PROT_BTI`.
    pub guards_branches: bool,
    /// Distance that anonymous memory has been moved since it was made. The kernel joins only memory with consecutive
    /// page offsets, and moved memory keeps its old ones.
    pub moved: u64,
}

impl Area {
    pub fn of(mapping: Mapping) -> Self {
        let name = if mapping.name == MappingName::Heap { MappingName::Anonymous } else { mapping.name.clone() };
        Self {
            mapping: Mapping { name, ..mapping },
            advised: false,
            pool: None,
            image: None,
            not_dumped: false,
            bound: false,
            sealed: false,
            guards_branches: false,
            moved: 0,
        }
    }

    /// New private anonymous memory.
    pub fn anonymous(range: AddressRange, pool: Option<PageSize>) -> Self {
        let protection = Protection::READ_WRITE;
        let (device, inode, name) = match pool {
            Some(_) => (POOL_DEVICE, POOL_INODE, MappingName::HugetlbAnonymous),
            None => ((0, 0), 0, MappingName::Anonymous),
        };
        let mapping = Mapping { range, protection, shared: false, offset: 0, device, inode, name };
        Self { pool, ..Self::of(mapping) }
    }

    /// Part of a shared image.
    pub fn image(range: AddressRange, path: &str, offset: u64, protection: Protection, size: PageSize) -> Self {
        let name = MappingName::File { path: path.to_owned(), deleted: false };
        let inode = IMAGE_INODE + path.len() as u64;
        let mapping = Mapping { range, protection, shared: false, offset, device: IMAGE_DEVICE, inode, name };
        Self { image: Some(size), ..Self::of(mapping) }
    }

    /// The whole huge pages of an image: they need address and offset to agree.
    pub fn huge_of_image(&self, size: PageSize) -> AddressRange {
        let agrees = self.mapping.offset % size.bytes() == self.range().start().0 % size.bytes();
        let whole = self.range().whole_pages(size);
        if agrees && self.image == Some(size) { whole } else { AddressRange::new(whole.end(), whole.end()) }
    }

    pub fn range(&self) -> AddressRange {
        self.mapping.range
    }

    /// Private memory without a file and not of the pool.
    pub fn is_plain(&self) -> bool {
        self.pool.is_none() && self.mapping.is_plain_anonymous()
    }

    /// A private mapping of a file of the process.
    pub fn shows_file(&self) -> bool {
        let file = self.mapping.path().is_some() && self.mapping.inode != 0;
        file && !self.mapping.shared && self.image.is_none() && self.pool.is_none()
    }

    /// The part of the area within `range`.
    pub fn cut(&self, range: AddressRange) -> Self {
        let range = self.range().intersect(range);
        let into = range.start() - self.range().start();
        let offset = if self.mapping.inode == 0 { self.mapping.offset } else { self.mapping.offset + into };
        Self { mapping: Mapping { range, offset, ..self.mapping.clone() }, ..self.clone() }
    }

    /// True if the kernel merges this area with the next. Pool memory and special areas stay separate.
    pub fn continues_in(&self, next: &Self) -> bool {
        let (a, b) = (&self.mapping, &next.mapping);
        let follows = a.inode == 0 || a.offset + a.range.len() == b.offset;
        let mergeable = self.pool.is_none() && !matches!(a.name, MappingName::Special(_) | MappingName::Stack);
        mergeable
            && a.range.end() == b.range.start()
            && (a.protection, a.shared, a.device, a.inode) == (b.protection, b.shared, b.device, b.inode)
            && a.name == b.name
            && (self.advised, self.pool, self.moved) == (next.advised, next.pool, next.moved)
            && (self.not_dumped, self.bound, self.sealed) == (next.not_dumped, next.bound, next.sealed)
            && self.guards_branches == next.guards_branches
            && follows
    }
}
