//! The memory that may be lifted, computed page by page and independently of the planner.

use crate::support::{PAGE, Program, base_page};
use address_space::{Address, AddressRange, LoadedObject, Mapping, MappingName, PageSize, Protection};
use lift_plan::{CachedFile, Kind, ObjectChoice, Policy, Reason};
use std::collections::BTreeMap;

/// One base page that belongs to an object or the heap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    pub object: String,
    pub kind: Kind,
    pub protection: Protection,
    /// Private anonymous memory in which only touched pages hold anything.
    pub anonymous: bool,
    pub touched: bool,
    pub relro_pending: bool,
    /// Why nothing may replace it, if so.
    pub refused: Option<Reason>,
}

/// Pages by their addresses.
pub type Pages = BTreeMap<u64, Page>;

/// The pages with the chosen kinds of the chosen objects and, if it is chosen, of the heap.
pub fn chosen_pages(program: &Program, policy: &Policy) -> Pages {
    let mut pages = Pages::new();
    for object in program.facts.objects.iter().filter(|object| policy.objects.chooses(object)) {
        for segment in &object.image.segments {
            let whole = segment.memory.widened(base_page()).shifted(object.bias);
            for page in whole.pages(base_page()) {
                if let Some(found) = page_of(program, object, page) {
                    pages.insert(page.start().0, found);
                }
            }
        }
    }
    pages.retain(|_, page| policy.kinds.contains(page.kind));
    pages
}

fn page_of(program: &Program, object: &LoadedObject, page: AddressRange) -> Option<Page> {
    let facts = &program.facts;
    let mapping = facts.space.find(page.start())?;
    // If segments share a page, the later one is mapped over it.
    let holder = object.image.segments.iter().rfind(|s| shown(s.memory, object).overlaps(page))?;
    let from_file = mapping.path() == Some(&object.path);
    let plain = mapping.is_plain_anonymous() && mapping.name != MappingName::Heap;
    let ours = from_file || (plain && holder.protection.write);
    if mapping.shared || mapping.protection == Protection::NONE || !ours {
        return None;
    }
    let file_page = holder.file_size > 0 && shown(holder.file_memory(), object).overlaps(page);
    let p = mapping.protection;
    let kind = match p {
        p if p.execute => Kind::Text,
        p if !p.write => Kind::Rodata,
        _ if from_file || file_page => Kind::Data,
        _ => Kind::Bss,
    };
    let special = facts.special.iter().find(|special| special.range.overlaps(page));
    let rules = [
        (p.write && p.execute, Reason::WritableAndExecutable),
        (!p.read, Reason::NotReadable),
        (facts.running && p.write && !plain, Reason::RunningAndWritable),
        (facts.other_threads && p.write && !plain, Reason::OtherThreadsWrite),
        (facts.relocates_itself && object.image.text_relocations && !p.write, Reason::TextRelocationsPending),
    ];
    let broken = rules.into_iter().find(|(broken, _)| *broken).map(|(_, reason)| reason);
    let relro = object.relro(base_page()).is_some_and(|relro| relro.overlaps(page));
    Some(Page {
        object: object.name().to_owned(),
        kind,
        protection: p,
        anonymous: plain,
        touched: facts.touched.overlaps(page),
        relro_pending: facts.relocates_itself && relro,
        refused: broken.or_else(|| special.map(|special| Reason::Special(special.property.clone()))),
    })
}

fn shown(memory: AddressRange, object: &LoadedObject) -> AddressRange {
    memory.widened(base_page()).shifted(object.bias)
}

/// The pages of the heap that a plan considers, each with the reason why nothing may replace it, if there is one.
pub fn considered_heap(program: &Program, policy: &Policy) -> Pages {
    let mut pages = Pages::new();
    let chosen = matches!(policy.objects, ObjectChoice::All | ObjectChoice::WorthIt);
    if !chosen || !policy.kinds.contains(Kind::Heap) {
        return pages;
    }
    for (at, p) in heap_pages(program).into_iter().filter(|(_, protection)| *protection != Protection::NONE) {
        let special = program.facts.special.iter().find(|special| special.range.overlaps(page_at(at)));
        let refused = match (p.write && p.execute, p.read) {
            (true, _) => Some(Reason::WritableAndExecutable),
            (false, false) => Some(Reason::NotReadable),
            (false, true) => special.map(|special| Reason::Special(special.property.clone())),
        };
        let touched = program.facts.touched.overlaps(page_at(at));
        let (object, kind) = ("[heap]".to_owned(), Kind::Heap);
        let page = Page { object, kind, protection: p, anonymous: true, touched, relro_pending: false, refused };
        pages.insert(at, page);
    }
    pages
}

/// The pages of the heap, whatever their protection.
pub fn heap_pages(program: &Program) -> BTreeMap<u64, Protection> {
    let heap = |mapping: &&Mapping| mapping.name == MappingName::Heap;
    let mut pages = BTreeMap::new();
    for mapping in program.facts.space.mappings().iter().filter(heap) {
        mapping.range.pages(base_page()).for_each(|page| _ = pages.insert(page.start().0, mapping.protection));
    }
    pages
}

/// The file whose huge folios show a huge page, or why none does.
pub fn fault_of_cached(program: &Program, page: AddressRange) -> Result<&CachedFile, Reason> {
    let facts = &program.facts;
    let shown = facts.space.overlapping(page);
    let [mapping] = shown else { return Err(Reason::NoCachedFile) };
    let shows = |file: &&CachedFile| mapping.path() == Some(&file.path) && mapping.inode == file.numbers.inode;
    let file = facts.cached.iter().find(shows).ok_or(Reason::NoCachedFile)?;
    if mapping.shared || !mapping.range.covers(page) {
        return Err(Reason::NoCachedFile);
    }
    let offset_of = |at: u64| mapping.offset + (at - mapping.range.start().0);
    let bytes = page.start().0.wrapping_sub(offset_of(page.start().0)) % page.len();
    if bytes != 0 {
        return Err(Reason::NotCongruent { bytes, size: PageSize::new(page.len()).unwrap() });
    }
    let is_huge = |at: u64| file.huge.iter().any(|part| part.contains(&offset_of(at)));
    if !pages_in(page).all(is_huge) {
        return Err(Reason::SmallFolios(None));
    }
    match pages_in(page).any(|at| facts.changed.overlaps(page_at(at))) {
        true => Err(Reason::WrittenTo),
        false => Ok(file),
    }
}

/// The base pages of a range, by their addresses.
pub fn pages_in(range: AddressRange) -> impl Iterator<Item = u64> {
    (range.start().0..range.end().0).step_by(PAGE as usize)
}

/// The base page at an address.
pub fn page_at(address: u64) -> AddressRange {
    AddressRange::sized(Address(address), PAGE)
}
