//! The base of a program that has just been mapped: chosen and moved at the exec stop.

use crate::{Base, SessionError, images};
use address_space::{Address, AddressSpace, ElfImage, ElfKind, LoadedObject, ObjectRole, PageSize, format_bytes};
use lift_plan::{BaseChoice, Coverable, Pages, Policy, cached_coverable, choose_base, choose_cached_base, coverable};
use machine_facts::base_page;
use process_view::{ObjectReader, ProcessFiles, open_executed};
use ptrace::{ExecStop, move_image};
use std::fs::File;
use std::ops::Range;

/// Lowest base that is chosen, well above the kernel's default `vm.mmap_min_addr`.
const LOWEST_BASE: Address = Address(1 << 20);

/// A program as found at its exec stop.
pub struct Started {
    /// The executable and, if it has one, its dynamic linker.
    pub objects: Vec<LoadedObject>,
    /// The mappings.
    pub space: AddressSpace,
}

impl Started {
    /// Reads a program that has just been mapped.
    pub fn look(pid: i32, reader: &mut ObjectReader) -> Result<Self, SessionError> {
        let space = ProcessFiles::of(pid).maps()?;
        let loaded = reader.load(pid, &space)?;
        if let Some(bad) = loaded.not_understood.iter().find(|file| file.executable) {
            return Err(SessionError::NotUnderstood { path: bad.path.clone(), reason: bad.reason.to_string() });
        }
        Ok(Self { objects: loaded.objects, space })
    }
}

/// A base for a program, and its additional coverage over the kernel's choice.
pub struct Better {
    size: PageSize,
    offset: u64,
    before: Coverable,
    after: Coverable,
    /// It is the base at which the program's file agrees with its addresses.
    congruent: bool,
    /// Why it is not, if it could be.
    why: Option<String>,
}

/// The facts about a program before it is placed.
pub struct Placing<'a> {
    pub image: &'a ElfImage,
    pub bias: u64,
    /// The parts of its file in huge folios of the page cache.
    pub huge: &'a [Range<u64>],
    /// The process that executes it.
    pub pid: i32,
}

/// Returns the base that covers more of a program than its present one, or as much if an image is possible there;
/// otherwise the reason why there is none. `usual` is the machine's default huge page size.
pub fn better_base(placing: &Placing<'_>, policy: &Policy, usual: Option<PageSize>) -> Result<Better, Base> {
    let Placing { image, bias, huge, pid } = *placing;
    let kept = |why: &str| Err(Base::Kept { why: why.to_owned() });
    if image.kind == ElfKind::FixedAddress {
        return kept("the program is linked to a fixed address");
    }
    // Only these facts are read here; the rest is gathered while the program runs to its entry.
    let (Some(size), base_page) = (policy.page_size.or(usual), base_page()) else {
        return kept("no huge pages on this kernel");
    };
    let best = choose_base(image, size, base_page, policy.kinds, policy.edges);
    let by_node = policy.pages == Pages::Auto && !huge.is_empty() && images::has_copies_by_node(pid, image);
    let has_image = |size| images::may_be_had(executed(pid).as_ref(), image, size, policy.pages);
    let for_file = match by_node {
        true => Err(Some("the store has a copy for each node".to_owned())),
        false => base_for_file(image, huge, policy, size, &best, &has_image),
    };
    let why = match for_file {
        Ok(cached) => {
            let before = cached_coverable(image, huge, bias, size, base_page, policy.kinds);
            if cached.covered <= before {
                return kept("its addresses agree with its file already");
            }
            let (offset, after) = (cached.offset, cached.covered);
            return Ok(Better { size, offset, before, after, congruent: true, why: None });
        }
        Err(why) => why,
    };
    let before = coverable(image, bias, size, base_page, policy.kinds, policy.edges);
    // Copies cover as much at several bases, an image is of one.
    let elsewhere = bias % size.bytes() != best.offset && best.covered.read_only > 0;
    let for_image = elsewhere && policy.pages.takes_images() && best.covered == before && has_image(size);
    if best.covered <= before && !for_image {
        return kept(&format!("no base covers more{}", why.map(|why| format!(" ({why})")).unwrap_or_default()));
    }
    Ok(Better { size, offset: best.offset, before, after: best.covered, congruent: false, why })
}

/// Returns the base at which addresses agree with the file, if that is better than `best`, the base for copies and
/// images; otherwise the reason, if huge folios could show any part. `has_image` returns whether an image of the file
/// made of pages of a size is possible.
pub fn base_for_file(
    image: &ElfImage,
    huge: &[Range<u64>],
    policy: &Policy,
    size: PageSize,
    best: &BaseChoice,
    has_image: &dyn Fn(PageSize) -> bool,
) -> Result<BaseChoice, Option<String>> {
    if huge.is_empty() || !policy.may_use_files() {
        return Err(None);
    }
    let cached = choose_cached_base(image, huge, size, base_page(), policy.kinds);
    if cached.covered.read_only == 0 {
        return Err(None);
    }
    let others = match policy.pages {
        Pages::File | Pages::FileThenImage => return Ok(cached),
        _ if covers_more(best, &cached) && has_image(size) => "an image",
        _ if !is_worth_it(&cached, best) => "copies",
        _ => return Ok(cached),
    };
    let of = |covered: &Coverable| {
        format!("{} of code, {} in all", format_bytes(covered.text), format_bytes(covered.read_only))
    };
    Err(Some(format!("{others} can show {}; huge folios of the file {}", of(&best.covered), of(&cached.covered))))
}

/// True if huge folios of the file show at least half of the code, and half of the memory that is never written, that
/// copies could cover at their best base: a base for the file costs the part that copies could cover at the edges.
fn is_worth_it(cached: &BaseChoice, best: &BaseChoice) -> bool {
    2 * cached.covered.text >= best.covered.text && 2 * cached.covered.read_only >= best.covered.read_only
}

/// True if an image at its best base covers more code, or as much code and more other memory that is never written,
/// than huge folios of the file do.
fn covers_more(image: &BaseChoice, cached: &BaseChoice) -> bool {
    let of = |choice: &BaseChoice| (choice.covered.text, choice.covered.read_only);
    of(image) > of(cached)
}

/// Moves the executable to the base that covers most, if it covers more than the base that the kernel chose. If the
/// process is released next (`is_last`), its page of the injected code is dropped too.
///
/// Returns the outcome and the bias afterwards.
pub fn choose_and_move(
    stop: &ExecStop,
    started: &Started,
    executable: &LoadedObject,
    huge: &[Range<u64>],
    policy: &Policy,
    usual: Option<PageSize>,
    is_last: bool,
) -> (Base, u64) {
    let placing = Placing { image: &executable.image, bias: executable.bias, huge, pid: stop.pid() };
    let better = match better_base(&placing, policy, usual) {
        Ok(better) => better,
        Err(kept) => return (kept, executable.bias),
    };
    match place_and_move(stop, started, executable, &better, is_last) {
        Ok(bias) => {
            let Better { before, after, congruent, why, .. } = better;
            (Base::Moved { before, after, congruent, why }, bias)
        }
        Err(error) => (Base::Kept { why: error.in_full() }, executable.bias),
    }
}

fn place_and_move(
    stop: &ExecStop,
    started: &Started,
    executable: &LoadedObject,
    better: &Better,
    is_last: bool,
) -> Result<u64, SessionError> {
    let (space, bias, size) = (&started.space, executable.bias, better.size);
    let extent = executable.extent().widened(base_page());
    // The offset is the bias's; the image's first page is at a fixed distance from it.
    let first = extent.start() - Address(bias);
    let start_offset = better.offset.wrapping_add(first) % size.bytes();
    let place = space
        .free_place_below(extent.start(), extent.len(), size, start_offset, size.bytes(), LOWEST_BASE)
        .ok_or_else(|| SessionError::Refused("no free place for the program at a better base".to_owned()))?;
    let displacement = place - extent.start();
    let mut injector = stop.injector(space)?;
    let moved = move_image(&mut injector, space, extent, displacement, base_page());
    let linker = started.objects.iter().find(|object| object.role == ObjectRole::DynamicLinker);
    match linker.filter(|_| is_last) {
        Some(linker) => injector.finish_before_linker(space, executable, linker, base_page())?,
        None => injector.finish()?,
    }
    moved.map_err(|error| SessionError::Refused(error.to_string()))?;
    Ok(bias.wrapping_add(displacement))
}
fn executed(pid: i32) -> Option<File> {
    open_executed(&ProcessFiles::of(pid)).ok().flatten().map(|(file, _)| file)
}
