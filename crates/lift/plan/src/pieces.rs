//! Cuts objects into pieces: which part of a process's mappings belongs to which object, and of which kind it is.

use crate::{Kind, ProcessFacts, Reason};
use address_space::{Address, AddressRange, LoadSegment, LoadedObject, Mapping, MappingName, PageSize, Protection};
use alloc::vec;
use alloc::vec::Vec;

/// A mapping's part in one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The kind of memory.
    pub kind: Kind,
    /// Addresses.
    pub range: AddressRange,
    /// Protection now.
    pub protection: Protection,
    /// Private anonymous memory, which can be collapsed in place.
    pub anonymous: bool,
    /// The program will still make it read-only.
    pub relro_pending: bool,
    /// Why it cannot be lifted, if so.
    pub refused: Option<Reason>,
}

/// The pieces of one object, lowest first.
pub fn pieces_of(object: &LoadedObject, process: &ProcessFacts, base_page: PageSize) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for segment in &object.image.segments {
        let pages = segment.memory.widened(base_page).shifted(object.bias);
        let file_pages = file_pages_of(segment, base_page).shifted(object.bias);
        keep_below(&mut pieces, pages.start());
        for mapping in process.space.overlapping(pages) {
            let range = mapping.range.intersect(pages);
            let file_end = file_pages.end().clamp(range.start(), range.end());
            for part in [AddressRange::new(range.start(), file_end), AddressRange::new(file_end, range.end())] {
                pieces.extend(piece_of(object, mapping, part, segment.protection, file_pages));
            }
        }
    }
    let relro = object.relro(base_page).filter(|_| process.relocates_itself);
    let mut cut: Vec<Piece> = pieces.into_iter().flat_map(|piece| cut_at_relro(piece, relro)).collect();
    for piece in &mut cut {
        piece.refused = refusal_of(piece, object, process);
    }
    cut
}

/// The pages of a segment that come from its file; none for a segment of zeros alone.
pub(crate) fn file_pages_of(segment: &LoadSegment, base_page: PageSize) -> AddressRange {
    let pages = segment.memory.widened(base_page);
    match segment.file_size {
        0 => AddressRange::new(pages.start(), pages.start()),
        _ => segment.file_memory().widened(base_page),
    }
}

/// Cuts off the pieces at `limit` and above: a page that two segments share shows the later segment, which is mapped
/// over the earlier.
pub(crate) fn keep_below(pieces: &mut Vec<Piece>, limit: Address) {
    pieces
        .iter_mut()
        .for_each(|piece| piece.range = AddressRange::new(piece.range.start(), piece.range.end().min(limit)));
    pieces.retain(|piece| !piece.range.is_empty());
}

fn piece_of(
    object: &LoadedObject,
    mapping: &Mapping,
    range: AddressRange,
    asked: Protection,
    file_pages: AddressRange,
) -> Option<Piece> {
    if range.is_empty() || mapping.shared || mapping.protection == Protection::NONE {
        return None;
    }
    let anonymous = mapping.is_plain_anonymous() && mapping.name != MappingName::Heap;
    let from_file = mapping.path() == Some(object.path.as_str());
    let kind = match mapping.protection {
        p if p.execute => Kind::Text,
        p if !p.write => Kind::Rodata,
        // A page that holds the end of the file's data and the start of bss is a page of the file.
        _ if from_file || file_pages.contains(range.start()) => Kind::Data,
        _ => Kind::Bss,
    };
    // Foreign memory inside the object's extent, and memory that is on pool pages already, is not touched.
    let ours = from_file || (anonymous && asked.write);
    ours.then_some(Piece {
        kind,
        range,
        protection: mapping.protection,
        anonymous,
        relro_pending: false,
        refused: None,
    })
}

/// Marks the memory that the program will make read-only, including parts that already are: one call protects the whole
/// area.
fn cut_at_relro(piece: Piece, relro: Option<AddressRange>) -> Vec<Piece> {
    let Some(relro) = relro.filter(|relro| relro.overlaps(piece.range)) else {
        return vec![piece];
    };
    let inside = piece.range.intersect(relro);
    let [below, above] = piece.range.without(relro);
    [(below, false), (inside, true), (above, false)]
        .into_iter()
        .filter(|(range, _)| !range.is_empty())
        .map(|(range, relro_pending)| Piece { range, relro_pending, ..piece.clone() })
        .collect()
}

fn refusal_of(piece: &Piece, object: &LoadedObject, process: &ProcessFacts) -> Option<Reason> {
    let by_protection = refusal_by_protection(piece.protection);
    if by_protection.is_some() {
        return by_protection;
    }
    if process.running && piece.protection.write && !piece.anonymous {
        return Some(Reason::RunningAndWritable);
    }
    if process.other_threads && piece.protection.write && !piece.anonymous {
        return Some(Reason::OtherThreadsWrite);
    }
    if process.relocates_itself && object.image.text_relocations && !piece.protection.write {
        return Some(Reason::TextRelocationsPending);
    }
    special_in(process, piece.range)
}

/// Returns the reason why memory with this protection is never copied, if there is one.
pub(crate) fn refusal_by_protection(protection: Protection) -> Option<Reason> {
    match protection {
        p if p.write && p.execute => Some(Reason::WritableAndExecutable),
        p if !p.read => Some(Reason::NotReadable),
        _ => None,
    }
}

/// Returns the property of a mapping in `range` that a copy would lose.
pub(crate) fn special_in(process: &ProcessFacts, range: AddressRange) -> Option<Reason> {
    let special = process.special.iter().find(|special| special.range.overlaps(range))?;
    Some(Reason::Special(special.property.clone()))
}
