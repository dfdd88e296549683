//! Chooses the base of a position-independent image at which huge pages cover the largest part.

use crate::groups::group;
use crate::pieces::{file_pages_of, keep_below};
use crate::{Edges, Kind, Kinds, Piece};
use address_space::{AddressRange, ElfImage, LoadSegment, PageSize, Protection};
use alloc::vec;
use alloc::vec::Vec;
use serde::Serialize;

/// Bytes of an image that huge pages can cover at one base.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Coverable {
    /// Executable bytes.
    pub text: u64,
    /// Bytes that are never written: code, read-only data and sealed RELRO.
    pub read_only: u64,
    /// All bytes of the chosen kinds.
    pub total: u64,
}

/// The best base for an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BaseChoice {
    /// The wanted base modulo the huge page size, in bytes.
    pub offset: u64,
    /// The coverage at that base.
    pub covered: Coverable,
    /// All bytes of the chosen kinds, covered or not.
    pub all: Coverable,
}

/// Bytes that huge pages of `size` can cover in the image if its base is `bias`.
pub fn coverable(
    image: &ElfImage,
    bias: u64,
    size: PageSize,
    base_page: PageSize,
    kinds: Kinds,
    edges: Edges,
) -> Coverable {
    let mut covered = Coverable::default();
    for group in group(pieces_at(image, bias, base_page, kinds), edges, false) {
        for run in group.runs(size) {
            run.pieces.iter().for_each(|piece| covered.add(piece));
        }
    }
    covered
}

/// The base offset that covers most: executable bytes first, then read-only bytes, then all; the smallest of equally
/// good offsets. Only offsets that keep every segment's own alignment are possible.
pub fn choose_base(image: &ElfImage, size: PageSize, base_page: PageSize, kinds: Kinds, edges: Edges) -> BaseChoice {
    let step = image.largest_alignment(base_page);
    let mut all = Coverable::default();
    let mut candidates = vec![0];
    let mut longest = 0;
    for group in group(pieces_at(image, 0, base_page, kinds), edges, false) {
        group.pieces.iter().for_each(|piece| all.add(piece));
        longest = longest.max(group.pieces.iter().map(|piece| piece.range.len()).sum());
        for piece in &group.pieces {
            for boundary in [piece.range.start(), piece.range.end()] {
                // The offset that puts this boundary on a huge page's, and the nearest ones that alignment allows.
                let exact = (size.bytes() - boundary.0 % size.bytes()) % size.bytes();
                let below = exact - exact % step.bytes();
                candidates.extend([below, (below + step.bytes()) % size.bytes().max(step.bytes())]);
            }
        }
    }
    let mut best = BaseChoice { offset: 0, covered: Coverable::default(), all };
    if longest < size.bytes() {
        return best;
    }
    candidates.sort_unstable();
    candidates.dedup();
    for offset in candidates {
        let covered = coverable(image, offset, size, base_page, kinds, edges);
        if covered > best.covered {
            best = BaseChoice { offset, covered, all };
        }
    }
    best
}

impl Coverable {
    /// Adds the bytes of a piece.
    pub(crate) fn add(&mut self, piece: &Piece) {
        self.total += piece.range.len();
        self.read_only += if piece.protection.write { 0 } else { piece.range.len() };
        self.text += if piece.kind == Kind::Text { piece.range.len() } else { 0 };
    }
}

/// The pieces that the image will have once it is loaded and relocated at `bias`.
pub(crate) fn pieces_at(image: &ElfImage, bias: u64, base_page: PageSize, kinds: Kinds) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    for segment in &image.segments {
        let pages = segment.memory.widened(base_page);
        let file = file_pages_of(segment, base_page);
        keep_below(&mut pieces, pages.start());
        for (range, kind) in [(file, Kind::Data), (AddressRange::new(file.end(), pages.end()), Kind::Bss)] {
            let sealed = relro_in(image, segment, range, base_page);
            let [below, above] = range.without(sealed);
            let protection = segment.protection;
            let parts = [(below, protection), (sealed, Protection::READ), (above, protection)];
            pieces.extend(parts.into_iter().filter_map(|(range, protection)| piece(range, protection, kind)));
        }
    }
    pieces.retain(|piece| kinds.contains(piece.kind));
    pieces.iter_mut().for_each(|piece| piece.range = piece.range.shifted(bias));
    pieces
}

/// Returns the part of `range` that the dynamic linker makes read-only.
fn relro_in(image: &ElfImage, segment: &LoadSegment, range: AddressRange, base_page: PageSize) -> AddressRange {
    let nothing = AddressRange::new(range.end(), range.end());
    image.relro.filter(|_| segment.protection.write).map_or(nothing, |relro| {
        AddressRange::new(relro.start().align_down(base_page), relro.end().align_down(base_page)).intersect(range)
    })
}

/// A piece if it can be lifted; otherwise none.
fn piece(range: AddressRange, protection: Protection, writable: Kind) -> Option<Piece> {
    let kind = match protection {
        p if p.execute => Kind::Text,
        p if !p.write => Kind::Rodata,
        _ => writable,
    };
    let liftable = protection.read && !(protection.write && protection.execute) && !range.is_empty();
    // An anonymous piece is lifted in another way, but huge pages cover as many bytes.
    liftable.then_some(Piece { kind, range, protection, anonymous: false, relro_pending: false, refused: None })
}
