//! Finds the ranges of a process that shared images can serve.

use crate::nodes::{self, Home};
use address_space::{AddressRange, AddressSpace, ElfImage, LoadedObject, PageSize, RangeSet};
use foreign_text::quoted_path;
use image_store::{
    FileSystem, Form, Image, ImageSegment, Layout, Request, SourceKey, Store, StoreError, default_directory,
    is_made_unasked,
};
use lift_plan::{
    CachedFile, ImageSpan, MachineFacts, Policy, ProcessFacts, Reason, ThpMode, cached_coverable, coverable,
};
use linux::nodes::has_several_nodes;
use linux::pagemap::Pagemap;
use machine_facts::{base_page, machine_facts};
use nix::unistd::geteuid;
use options::Pages;
use process_view::{FileIdentity, ProcessFiles, open_executed, open_mapped};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

/// Divisor of the available memory; an automatic image takes no more than the quotient.
const SHARE_OF_MEMORY: u64 = 4;

/// The treatment of objects without an image in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingImages {
    /// Make it, as root.
    Make,
    /// Report it as missing.
    Leave,
}

/// The store, if it is open already. To be used at once, since stores change.
#[derive(Default)]
pub struct OpenedStore {
    store: Option<Result<Store, StoreError>>,
}

impl OpenedStore {
    /// Opens the store if the policy requests images.
    pub fn of_policy(policy: &Policy) -> Self {
        Self { store: policy.may_use_images().then(open_store) }
    }
}

fn open_store() -> Result<Store, StoreError> {
    Store::open_to_map(&default_directory())
}

/// The parts of a process that images can show.
#[derive(Default)]
pub struct Images {
    /// The ranges that images can serve.
    pub spans: Vec<ImageSpan>,
    /// Objects that have no image, each with the reason.
    pub missing: Vec<String>,
    /// Objects of which the store has copies by node, but none for the node of the process, each with the reason.
    pub not_on_node: Vec<String>,
}

/// True if an image of the wanted huge pages may show some of the chosen objects.
pub fn may_show(process: &ProcessFacts, machine: &MachineFacts, policy: &Policy) -> bool {
    let size = policy.page_size.or_else(|| machine.usual_huge_page()).filter(|_| policy.may_use_images());
    let mut chosen = process.objects.iter().filter(|object| policy.objects.chooses(object));
    size.is_some_and(|size| chosen.any(|object| is_worth_it(object, size)))
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
    opened: OpenedStore,
) -> Images {
    let mut images = Images::default();
    if !policy.may_use_images() {
        return images;
    }
    let store = match opened.store.unwrap_or_else(open_store) {
        Ok(store) => store,
        // A user without a store expects no images.
        Err(StoreError::NoStore(_)) => return images,
        Err(error) => {
            images.missing.push(error.to_string());
            return images;
        }
    };
    // If a process has disabled THP, ordinary pages map a tmpfs file, too.
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
    let home = nodes::home_of(pid, machine, policy.numa);
    let shown = |object: &LoadedObject| is_shown_by_its_file(object, &process.cached, policy, store.page_size());
    let chosen = process.objects.iter().filter(|o| policy.objects.chooses(o) && is_worth_it(o, store.page_size()));
    // An image is made rarely, so its cost does not matter here.
    let request = || {
        let available = machine.memory_available.min(machine_facts(pid).memory_available);
        let request = Request::Automatic { most_bytes: available / SHARE_OF_MEMORY, named: names_images(policy.pages) };
        (missing == MissingImages::Make).then_some(request)
    };
    for object in chosen {
        let wanted = match (shown(object), home) {
            (true, Home::OneNode) => continue,
            (true, _) => Wanted::CopyForTheNode,
            (false, _) => Wanted::Any,
        };
        let looked = look_at(pid, &process.space, object, &store).and_then(|source| {
            let (image, why) = source.image(&store, wanted, home, request)?;
            images.not_on_node.extend(why.map(|why| format!("{}: {why}", object.name())));
            image.map_or(Ok(Vec::new()), |image| spans(pid, &process.space, object, &image, pagemap.as_ref()))
        });
        match looked {
            Ok(spans) => images.spans.extend(spans),
            Err(why) if wanted == Wanted::Any => images.missing.push(format!("{}: {why}", object.name())),
            Err(_) => {}
        }
    }
    images
}

/// True if the store has copies by node of the file that a process executes, whose headers are `image`.
pub fn has_copies_by_node(pid: i32, image: &ElfImage) -> bool {
    let key = || {
        let (file, identity) = open_executed(&ProcessFiles::of(pid)).ok()??;
        SourceKey::new(&file, identity, image).ok()
    };
    let forms = |store: &Store| store.forms(&key()?).ok();
    has_several_nodes()
        && open_store().ok().as_ref().and_then(forms).is_some_and(|forms| forms.iter().any(|form| form.node.is_some()))
}

/// True if the user has named images as the source.
fn names_images(pages: Pages) -> bool {
    pages != Pages::Auto
}

/// True if an image of a file with these headers, made of pages of this size, is possible: the store has one of any
/// form, or root may make it.
pub fn may_be_had(file: Option<&File>, image: &ElfImage, size: PageSize, pages: Pages) -> bool {
    let Some(store) = open_store().ok().filter(|store| store.page_size() == size) else { return false };
    let has_one = |file: &File| {
        let identity = FileIdentity::of(&file.metadata().ok()?);
        let key = SourceKey::new(file, identity, image).ok()?;
        Some(!store.forms(&key).ok()?.is_empty())
    };
    let is_left_out = |file: &File| !names_images(pages) && !is_made_unasked(file);
    let may_be_made = geteuid().is_root() && store.makes_automatic_images() && !file.is_some_and(is_left_out);
    may_be_made || file.and_then(has_one).unwrap_or(false)
}

/// True if a segment that is never written is as large as a huge page, so that it can contain one.
fn is_worth_it(object: &LoadedObject, size: PageSize) -> bool {
    let read_only = object.image.segments.iter().filter(|segment| !segment.protection.write);
    !object.image.text_relocations && read_only.map(|s| s.memory.len()).any(|bytes| bytes >= size.bytes())
}

/// True if huge folios of its file show as much of an object as an image could: an image would only take memory.
fn is_shown_by_its_file(object: &LoadedObject, cached: &[CachedFile], policy: &Policy, size: PageSize) -> bool {
    let Some(file) = cached.iter().find(|file| file.path == object.path && !file.huge.is_empty()) else { return false };
    let (image, bias) = (&object.image, object.bias);
    let by_file = cached_coverable(image, &file.huge, bias, size, base_page(), policy.kinds);
    let by_image = coverable(image, bias, size, base_page(), policy.kinds, policy.edges);
    by_file.text >= by_image.text && by_file.read_only >= by_image.read_only
}

/// The wanted image of an object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// Any, the nearest first.
    Any,
    /// Only a copy for the process's own node: huge folios of the file show as much as an image that all nodes share.
    CopyForTheNode,
}

/// The file of an object, and the requirements on its image.
struct Source<'a> {
    path: &'a str,
    file: File,
    key: SourceKey,
    layout: Layout,
    /// The layout of `pagelift image add` without options.
    likely: Layout,
}

fn look_at<'a>(pid: i32, space: &AddressSpace, object: &'a LoadedObject, store: &Store) -> Result<Source<'a>, String> {
    let (file, identity) = open(pid, space, object).ok_or("its file cannot be opened, or has been replaced")?;
    let key = SourceKey::new(&file, identity, &object.image).map_err(|error| error.to_string())?;
    let (layout, likely) = (
        Layout::at(store.page_size(), object.bias),
        Layout::most_likely(&object.image, store.page_size(), base_page()),
    );
    Ok(Source { path: &object.path, file, key, layout, likely })
}

impl Source<'_> {
    /// Returns the image to map, if there is one or root may make it, and the reason why it is not a copy for the
    /// process's node if there are such copies.
    fn image(
        &self,
        store: &Store,
        wanted: Wanted,
        home: Home,
        request: impl Fn() -> Option<Request>,
    ) -> Result<(Option<Image>, Option<String>), String> {
        let forms = if home == Home::OneNode { Vec::new() } else { store.forms(&self.key).unwrap_or_default() };
        let (node, why) = choose_node(&forms, self.layout, home);
        let by_node = node.map(|node| self.found_or_made(store, Form::on(self.layout, node), &request));
        let why = match (by_node, node) {
            (Some(Ok(Some(image))), _) => return Ok((Some(image), None)),
            (Some(Err(error)), _) => Some(error.to_string()),
            (Some(Ok(None)), Some(node)) => Some(format!(
                "the store has no copy for node {node} at this base; fix, as root: pagelift image add --per-node {}",
                quoted_path(self.path)
            )),
            _ => why,
        };
        if wanted == Wanted::CopyForTheNode {
            return Ok((None, why));
        }
        let none = || {
            let base = match self.layout == self.likely {
                true => String::new(),
                false => format!("--base-offset {:#x} ", self.layout.base_offset()),
            };
            let path = quoted_path(self.path);
            format!("the store has none for this base; fix, as root: pagelift image add {base}{path}")
        };
        let shared = self.found_or_made(store, self.layout.into(), &request).map_err(|error| error.to_string())?;
        Ok((Some(shared.ok_or_else(none)?), why))
    }

    fn found_or_made(
        &self,
        store: &Store,
        form: Form,
        request: &impl Fn() -> Option<Request>,
    ) -> Result<Option<Image>, StoreError> {
        let made_now =
            |request| Store::open(store.path()).and_then(|store| store.make(&self.file, form, request)).map(Some);
        match store.find(&self.key, form) {
            Ok(None) if geteuid().is_root() => request().map_or(Ok(None), made_now),
            found => found,
        }
    }
}

/// Returns the node whose copy is to be mapped, or why none is although there are copies by node. A file of which the store
/// has a copy for any node is to have one for each.
fn choose_node(forms: &[Form], layout: Layout, home: Home) -> (Option<u32>, Option<String>) {
    let by_node = || forms.iter().filter(|form| form.node.is_some());
    match home {
        _ if by_node().next().is_none() => (None, None),
        Home::OneNode => (None, None),
        Home::Node(node) => (Some(node), None),
        Home::Unknown => {
            let fits = by_node().filter(|form| form.layout == layout).count();
            let copies = match fits {
                1 => "the copy for a single node is not used".to_owned(),
                fits => format!("none of {fits} copies for single nodes is used"),
            };
            let why = format!("{copies}: the process belongs to no single node; fix: --numa node=NUMBER");
            (None, Some(why))
        }
    }
}

fn spans(
    pid: i32,
    space: &AddressSpace,
    object: &LoadedObject,
    image: &Image,
    pagemap: Option<&Pagemap>,
) -> Result<Vec<ImageSpan>, String> {
    if !image.for_everybody() && !may_read_all(pid) {
        return Err(StoreError::NotForEverybody(image.source().to_owned()).to_string());
    }
    let path = image.path().to_str().ok_or("the store's path is no UTF-8")?;
    let mut spans = Vec::new();
    for range in joined(image) {
        let range = range.shifted(object.bias);
        for unchanged in unchanged_parts(range, space, object, pagemap) {
            let Some(offset) = image.offset_of(unchanged, object.bias) else { continue };
            let (path, page_size) = (path.to_owned(), image.layout().page_size());
            spans.push(ImageSpan { range: unchanged, path, offset, page_size, node: image.node() });
        }
    }
    Ok(spans)
}

/// The segments of an image before the bias. Those that are adjacent in memory and in the image are joined, since a huge page
/// may contain code and read-only data.
fn joined(image: &Image) -> Vec<AddressRange> {
    let mut joined: Vec<(AddressRange, u64)> = Vec::new();
    for ImageSegment { memory, offset, .. } in image.segments() {
        let distance = offset.wrapping_sub(memory.start().0);
        match joined.last_mut() {
            Some((before, of)) if before.end() == memory.start() && *of == distance => {
                *before = AddressRange::new(before.start(), memory.end());
            }
            _ => joined.push((*memory, distance)),
        }
    }
    joined.into_iter().map(|(range, _)| range).collect()
}

/// True if a process runs as root, which could open an image that is for root only. The kernel shows a process that
/// keeps its memory private as root's (proc(5)); it gets an error then, and the next source.
fn may_read_all(pid: i32) -> bool {
    fs::metadata(format!("/proc/{pid}")).is_ok_and(|process| process.uid() == 0)
}

/// Opens the file that the process has mapped; `None` if it cannot be opened or has been replaced.
pub fn open(pid: i32, space: &AddressSpace, object: &LoadedObject) -> Option<(File, FileIdentity)> {
    let mapping = space.mappings().iter().find(|m| !m.shared && m.path() == Some(object.path.as_str()))?;
    open_mapped(&ProcessFiles::of(pid), mapping).ok()?
}

/// Returns the parts of a range that are still the file's own pages; empty if the kernel does not report them.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_gets_the_copy_of_its_node_where_a_file_has_copies_by_node() {
        let layout = |bias| Layout::at(PageSize::new(2 << 20).unwrap(), bias);
        let (shared, on_0, elsewhere) = (layout(0).into(), Form::on(layout(0), 0), Form::on(layout(4096), 1));
        let node = |forms: &[Form], home| choose_node(forms, layout(0), home).0;
        assert_eq!(node(&[shared, on_0], Home::Node(0)), Some(0));
        assert_eq!(node(&[on_0, elsewhere], Home::Node(1)), Some(1));
        assert_eq!(node(&[on_0], Home::OneNode), None);
        assert_eq!(choose_node(&[shared], layout(0), Home::Node(1)), (None, None));
        assert_eq!(choose_node(&[shared], layout(0), Home::Unknown), (None, None));
        let (none, why) = choose_node(&[shared, on_0, elsewhere], layout(0), Home::Unknown);
        let expected =
            "the copy for a single node is not used: the process belongs to no single node; fix: --numa node=NUMBER";
        assert_eq!((none, why.as_deref()), (None, Some(expected)));
    }
}
