//! Finds the ranges of a process that shared images can serve.

use address_space::{AddressRange, AddressSpace, LoadedObject, PageSize, RangeSet};
use image_store::{FileSystem, Layout, Request, SourceKey, Store, StoreError, default_directory};
use lift_plan::{
    CachedFile, ImageSpan, MachineFacts, Policy, ProcessFacts, Reason, ThpMode, cached_coverable, coverable,
};
use linux::pagemap::Pagemap;
use machine_facts::{base_page, machine_facts};
use nix::unistd::geteuid;
use process_view::{FileIdentity, ProcessFiles, open_mapped};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

/// Divisor of the available memory; an automatic image takes no more than the quotient.
const SHARE_OF_MEMORY: u64 = 4;

/// What to do where the store has no image of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingImages {
    /// Make it, as root.
    Make,
    /// Report it as missing.
    Leave,
}

/// The store, if it is open already. To be used at once, since stores change.
#[derive(Default)]
pub struct Known {
    store: Option<Result<Store, StoreError>>,
}

impl Known {
    /// Opens the store where the policy asks for images.
    pub fn of_store(policy: &Policy) -> Self {
        Self { store: policy.pages.takes_images().then(open_store) }
    }
}

fn open_store() -> Result<Store, StoreError> {
    Store::open_to_map(&default_directory())
}

/// What images can show of a process.
#[derive(Default)]
pub struct Images {
    /// The ranges that images can serve.
    pub spans: Vec<ImageSpan>,
    /// Objects that have no image, each with the reason.
    pub missing: Vec<String>,
}

/// The spans that images in the default store can show of the chosen objects. Root makes the images that are missing.
///
/// A fault in the store or in one file means only that there is no span; the next source serves.
pub fn look(
    pid: i32,
    process: &ProcessFacts,
    machine: &MachineFacts,
    policy: &Policy,
    missing: MissingImages,
    known: Known,
) -> Images {
    let mut images = Images::default();
    if !policy.pages.takes_images() {
        return images;
    }
    let store = match known.store.unwrap_or_else(open_store) {
        Ok(store) => store,
        // A user without a store expects no images.
        Err(StoreError::NoStore(_)) => return images,
        Err(error) => {
            images.missing.push(error.to_string());
            return images;
        }
    };
    // In a process that has disabled THP, a tmpfs file is mapped by ordinary pages too.
    let off = machine.thp.is_some_and(|thp| thp.mode == ThpMode::OffInProcess);
    if off && store.file_system() == FileSystem::Tmpfs {
        images.missing.push(Reason::ThpOffInProcess.to_string());
        return images;
    }
    let size = policy.page_size.or_else(|| machine.usual_huge_page());
    if size != Some(store.page_size()) {
        images.missing.push(format!("the store is made of {} pages", store.page_size()));
        return images;
    }
    let pagemap = Pagemap::open(pid, machine.base_page).ok();
    let shown = |object: &LoadedObject| is_shown_by_its_file(object, &process.cached, policy, store.page_size());
    let chosen = process.objects.iter().filter(|o| policy.objects.chooses(o) && is_worth_it(o, &store) && !shown(o));
    // An image is made rarely, so its cost does not matter here.
    let most_bytes = || {
        let available = machine.memory_available.min(machine_facts(pid).memory_available);
        (missing == MissingImages::Make).then_some(available / SHARE_OF_MEMORY)
    };
    for object in chosen {
        match of_object(pid, &process.space, object, &store, pagemap.as_ref(), most_bytes) {
            Ok(spans) => images.spans.extend(spans),
            Err(why) => images.missing.push(format!("{}: {why}", object.name())),
        }
    }
    images
}

/// True where a segment that is never written is as large as a huge page, so that it can hold one.
fn is_worth_it(object: &LoadedObject, store: &Store) -> bool {
    let read_only = object.image.segments.iter().filter(|segment| !segment.protection.write);
    !object.image.text_relocations && read_only.map(|s| s.memory.len()).any(|bytes| bytes >= store.page_size().bytes())
}

/// True where huge folios of its file show as much of an object as an image could: an image would only take memory.
fn is_shown_by_its_file(object: &LoadedObject, cached: &[CachedFile], policy: &Policy, size: PageSize) -> bool {
    let Some(file) = cached.iter().find(|file| file.path == object.path && !file.huge.is_empty()) else { return false };
    let (image, bias) = (&object.image, object.bias);
    let by_file = cached_coverable(image, &file.huge, bias, size, base_page(), policy.kinds);
    let by_image = coverable(image, bias, size, base_page(), policy.kinds, policy.edges);
    by_file.text >= by_image.text && by_file.read_only >= by_image.read_only
}

fn of_object(
    pid: i32,
    space: &AddressSpace,
    object: &LoadedObject,
    store: &Store,
    pagemap: Option<&Pagemap>,
    most_bytes: impl Fn() -> Option<u64>,
) -> Result<Vec<ImageSpan>, String> {
    let (file, identity) = open(pid, space, object).ok_or("its file cannot be opened, or has been replaced")?;
    let key = SourceKey::new(&file, identity, &object.image).map_err(|error| error.to_string())?;
    let layout = Layout::at(store.page_size(), object.bias);
    let made_now = |most_bytes| {
        let request = Request::Automatic { most_bytes };
        Store::open(store.path()).and_then(|store| store.make(&file, layout, request)).map(Some)
    };
    let found = match store.find(&key, layout) {
        Ok(None) if geteuid().is_root() => most_bytes().map_or(Ok(None), made_now),
        found => found,
    };
    let none = || format!("the store has none for this base; fix, as root: pagelift image add '{}'", object.path);
    let image = found.map_err(|error| error.to_string())?.ok_or_else(none)?;
    if !image.for_everybody() && !may_read_all(pid) {
        return Err(StoreError::NotForEverybody(image.source().to_owned()).to_string());
    }
    let path = image.path().to_str().ok_or("the store's path is no UTF-8")?;
    let mut spans = Vec::new();
    for segment in image.segments() {
        let range = segment.memory.shifted(object.bias);
        for unchanged in unchanged_parts(range, space, object, pagemap) {
            let Some(offset) = image.offset_of(unchanged, object.bias) else { continue };
            let (path, page_size) = (path.to_owned(), store.page_size());
            spans.push(ImageSpan { range: unchanged, path, offset, page_size });
        }
    }
    Ok(spans)
}

/// True where a process runs as root, which could open an image that is for root only. The kernel shows a process that
/// keeps its memory to itself as root's (proc(5)); it gets an error then, and the next source.
fn may_read_all(pid: i32) -> bool {
    fs::metadata(format!("/proc/{pid}")).is_ok_and(|process| process.uid() == 0)
}

/// Opens the file that the process has mapped; `None` where it cannot be opened or has been replaced.
pub fn open(pid: i32, space: &AddressSpace, object: &LoadedObject) -> Option<(File, FileIdentity)> {
    let mapping = space.mappings().iter().find(|m| !m.shared && m.path() == Some(object.path.as_str()))?;
    open_mapped(&ProcessFiles::of(pid), mapping).ok()?
}

/// Returns the parts of a range that are still the file's own pages; empty where the kernel does not tell.
fn unchanged_parts(
    range: AddressRange,
    space: &AddressSpace,
    object: &LoadedObject,
    pagemap: Option<&Pagemap>,
) -> Vec<AddressRange> {
    let Some(pagemap) = pagemap else { return Vec::new() };
    let mut parts = RangeSet::new();
    let of_file = space.overlapping(range).iter().filter(|m| m.path() == Some(object.path.as_str()));
    of_file.for_each(|mapping| parts.insert(mapping.range.intersect(range)));
    let Ok(changed) = pagemap.changed(range) else { return Vec::new() };
    changed.iter().for_each(|changed| parts.remove(changed));
    parts.iter().map(|part| part.whole_pages(base_page())).filter(|part| !part.is_empty()).collect()
}
