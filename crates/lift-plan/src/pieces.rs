//! Cuts objects into pieces: what of a process's mappings belongs to which object, and as what.

use crate::{Kind, ProcessFacts, Reason};
use address_space::{AddressRange, LoadedObject, Mapping, MappingName, PageSize, Protection};

/// A mapping's part in one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// What it is.
    pub kind: Kind,
    /// Addresses.
    pub range: AddressRange,
    /// Protection now.
    pub protection: Protection,
    /// Private anonymous memory, which can be collapsed where it lies.
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
        let file_pages = segment.file_memory().widened(base_page).shifted(object.bias);
        for mapping in process.space.overlapping(pages) {
            let range = mapping.range.intersect(pages);
            if let Some(piece) = piece_of(object, mapping, range, segment.protection, file_pages) {
                pieces.push(piece);
            }
        }
    }
    pieces.sort_by_key(|piece| piece.range.start());
    pieces.dedup_by(|later, earlier| later.range.start() < earlier.range.end());
    let relro = object.relro(base_page).filter(|_| process.relocates_itself);
    let mut cut: Vec<Piece> = pieces.into_iter().flat_map(|piece| cut_at_relro(piece, relro)).collect();
    for piece in &mut cut {
        piece.refused = refusal_of(piece, object, process);
    }
    cut
}

fn piece_of(
    object: &LoadedObject,
    mapping: &Mapping,
    range: AddressRange,
    asked: Protection,
    file_pages: AddressRange,
) -> Option<Piece> {
    if mapping.shared || mapping.protection == Protection::NONE {
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
    // Memory of others inside of the object's extent, and memory that is on pool pages already, is left alone.
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

fn cut_at_relro(piece: Piece, relro: Option<AddressRange>) -> Vec<Piece> {
    let Some(relro) = relro.filter(|relro| piece.protection.write && relro.overlaps(piece.range)) else {
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
    if piece.protection.write && piece.protection.execute {
        return Some(Reason::WritableAndExecutable);
    }
    if !piece.protection.read {
        return Some(Reason::NotReadable);
    }
    if process.relocates_itself && object.image.text_relocations && !piece.protection.write {
        return Some(Reason::TextRelocationsPending);
    }
    let special = process.special.iter().find(|special| special.range.overlaps(piece.range))?;
    Some(Reason::Special(special.property.clone()))
}
