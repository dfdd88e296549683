//! ELF objects in a process.

use crate::{Address, AddressRange, AddressSpace, ElfImage, MappingName, PageSize};
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use serde::Serialize;

/// The identity of a file in one process's maps.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct FileKey {
    /// Major and minor device number as maps shows them.
    pub device: (u32, u32),
    /// Inode number.
    pub inode: u64,
    /// Path as maps shows it.
    pub path: String,
}

/// The role of an object in its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ObjectRole {
    /// The program that was executed.
    Executable,
    /// A shared object, of the start or of a later `dlopen`.
    SharedObject,
    /// The dynamic linker.
    DynamicLinker,
}

/// One ELF image in a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LoadedObject {
    /// Path as maps shows it.
    pub path: String,
    /// Name of the link by which the executable was started, if that is another name than the file's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// Role in the process.
    pub role: ObjectRole,
    /// The bias: what is added to the file's addresses (wrapping).
    pub bias: u64,
    /// The file's shape.
    pub image: ElfImage,
}

impl LoadedObject {
    /// The name in messages: of the link by which the executable was started, or of the file.
    pub fn name(&self) -> &str {
        self.link.as_deref().unwrap_or_else(|| self.file_name())
    }

    /// The last part of the path.
    pub fn file_name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// The image's whole extent in the process, to the byte.
    pub fn extent(&self) -> AddressRange {
        self.image.extent().shifted(self.bias)
    }

    /// The whole huge pages in the object's extent: no other memory of an object can be lifted.
    pub fn may_be_huge(&self, size: PageSize, base_page: PageSize) -> AddressRange {
        self.extent().widened(base_page).whole_pages(size)
    }

    /// RELRO in the process, cut to whole base pages as the dynamic linker protects them.
    pub fn relro(&self, base_page: PageSize) -> Option<AddressRange> {
        let relro = self.image.relro?.shifted(self.bias);
        let range = AddressRange::new(relro.start().align_down(base_page), relro.end().align_down(base_page));
        (!range.is_empty()).then_some(range)
    }

    /// True if something is mapped at the start of each segment. An ELF file that is mapped as plain data, by a debugger
    /// for example, is not a loaded object.
    pub fn is_whole(&self, space: &AddressSpace) -> bool {
        let segments = self.image.segments.iter().filter(|segment| !segment.memory.is_empty());
        segments.into_iter().all(|segment| space.find(segment.memory.shifted(self.bias).start()).is_some())
    }

    /// Where the process enters the image.
    pub fn entry(&self) -> Address {
        self.image.entry + self.bias
    }
}

/// The private file mappings of a space, by file. Shared mappings are the program's own business.
pub fn file_groups(space: &AddressSpace) -> BTreeMap<FileKey, Vec<usize>> {
    let mut groups: BTreeMap<FileKey, Vec<usize>> = BTreeMap::new();
    for (index, mapping) in space.mappings().iter().enumerate() {
        if let (MappingName::File { path, .. }, false) = (&mapping.name, mapping.shared) {
            let key = FileKey { device: mapping.device, inode: mapping.inode, path: path.clone() };
            groups.entry(key).or_default().push(index);
        }
    }
    groups
}

/// Maximum number of biases of one file; glibc loads an object 16 times at most (`dlmopen`). A hostile program can map
/// a file 65,000 times, each at a different bias, and the work grows with the biases times the mappings.
const MOST_BIASES: usize = 64;

/// The biases at which the mappings of one file show the image, lowest first. A file mapped as plain data has none.
///
/// A mapping votes for a bias if its offset and length fit a segment's pages. More than one bias means that the object
/// has been loaded more than once (`dlmopen`), which is valid and rare.
pub fn bias_of(image: &ElfImage, space: &AddressSpace, mappings: &[usize], base_page: PageSize) -> Vec<u64> {
    let mut biases = votes(image, space, mappings, base_page);
    let score = |bias: u64| fitting_bytes(image, space, mappings, base_page, bias);
    biases.retain(|&bias| score(bias) > 0);
    biases.sort_by_key(|&bias| core::cmp::Reverse(score(bias)));
    drop_overlapping(image, biases)
}

/// The biases that the mappings vote for, as far as [`MOST_BIASES`] goes: those with the most mapped bytes.
fn votes(image: &ElfImage, space: &AddressSpace, mappings: &[usize], base_page: PageSize) -> Vec<u64> {
    let mut votes: BTreeMap<u64, u64> = BTreeMap::new();
    for mapping in mappings.iter().map(|&index| &space.mappings()[index]) {
        for segment in &image.segments {
            let pages = segment.file_memory().widened(base_page);
            let first_offset = segment.offset & !(base_page.bytes() - 1);
            let Some(into) = mapping.offset.checked_sub(first_offset) else { continue };
            // RELRO and lifted parts split a segment; each piece must be inside the segment, with no wider protection.
            if pages.len().checked_sub(into).is_none_or(|rest| mapping.range.len() > rest) {
                continue;
            }
            let (expected, found) = (segment.protection, mapping.protection);
            if !found.is_within(expected) || found.execute != expected.execute {
                continue;
            }
            let bias = mapping.range.start() - (pages.start() + into);
            *votes.entry(bias).or_default() += mapping.range.len();
        }
    }
    let mut biases: Vec<(u64, u64)> = votes.into_iter().collect();
    biases.sort_by_key(|&(bias, bytes)| (core::cmp::Reverse(bytes), bias));
    biases.into_iter().take(MOST_BIASES).map(|(bias, _)| bias).collect()
}

/// Bytes of the image's file-backed segments that the file's mappings show at exactly this bias. `mappings` are sorted.
fn fitting_bytes(image: &ElfImage, space: &AddressSpace, mappings: &[usize], base_page: PageSize, bias: u64) -> u64 {
    let mut bytes = 0;
    for segment in &image.segments {
        let pages = segment.file_memory().widened(base_page).shifted(bias);
        let first = mappings.partition_point(|&index| space.mappings()[index].range.end() <= pages.start());
        let here = mappings[first..].iter().map(|&index| &space.mappings()[index]);
        for mapping in here.take_while(|mapping| mapping.range.start() < pages.end()) {
            let shared = pages.intersect(mapping.range);
            let offset_here = mapping.offset.wrapping_add(shared.start() - mapping.range.start());
            let offset_wanted =
                (segment.offset & !(base_page.bytes() - 1)).wrapping_add(shared.start() - pages.start());
            if offset_here == offset_wanted {
                bytes += shared.len();
            }
        }
    }
    bytes
}

fn drop_overlapping(image: &ElfImage, best_first: Vec<u64>) -> Vec<u64> {
    let mut kept: Vec<u64> = Vec::new();
    for bias in best_first {
        let extent = image.extent().shifted(bias);
        if kept.iter().all(|&other| !image.extent().shifted(other).overlaps(extent)) {
            kept.push(bias);
        }
    }
    kept.sort_unstable();
    kept
}
