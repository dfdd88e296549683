//! Joins pieces that may share huge pages into groups, and cuts groups into runs of whole huge pages.

use crate::{Edges, Kind, Piece};
use address_space::{AddressRange, PageSize, Protection};
use alloc::vec;
use alloc::vec::Vec;

/// Pieces of one object that touch each other and may share huge pages.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub pieces: Vec<Piece>,
}

/// A run of whole huge pages of one group, with one protection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub range: AddressRange,
    pub protection: Protection,
    pub pieces: Vec<Piece>,
}

impl Group {
    pub fn range(&self) -> AddressRange {
        AddressRange::new(self.pieces[0].range.start(), self.pieces[self.pieces.len() - 1].range.end())
    }

    /// The kinds in `range`, in the order of addresses.
    pub fn kinds_in(&self, range: AddressRange) -> Vec<Kind> {
        kinds_of(self.pieces.iter().filter(|piece| piece.range.overlaps(range)))
    }

    /// The whole huge pages of the group, as runs of one protection.
    pub fn runs(&self, size: PageSize) -> Vec<Run> {
        let mut runs: Vec<(AddressRange, Protection)> = Vec::new();
        for page in self.range().whole_pages(size).pages(size) {
            let protection = self.protection_of(page);
            match runs.last_mut() {
                Some((range, same)) if *same == protection => *range = AddressRange::new(range.start(), page.end()),
                _ => runs.push((page, protection)),
            }
        }
        let run = |(range, protection)| Run { range, protection, pieces: pieces_in(&self.pieces, range) };
        runs.into_iter().map(run).collect()
    }

    /// The protection of a huge page that holds all of `page`: that of its pieces, or theirs together where they differ.
    fn protection_of(&self, page: AddressRange) -> Protection {
        self.pieces.iter().filter(|piece| piece.range.overlaps(page)).fold(Protection::NONE, |all, piece| Protection {
            read: all.read || piece.protection.read,
            write: all.write || piece.protection.write,
            execute: all.execute || piece.protection.execute,
        })
    }
}

impl Run {
    /// The part of the run that lies in `range`.
    pub fn cut_to(&self, range: AddressRange) -> Self {
        Self { range, protection: self.protection, pieces: pieces_in(&self.pieces, range) }
    }
}

/// The pieces that lie in `range`, cut to it.
fn pieces_in(pieces: &[Piece], range: AddressRange) -> Vec<Piece> {
    let inside = pieces.iter().filter(|piece| piece.range.overlaps(range));
    inside.map(|piece| Piece { range: piece.range.intersect(range), ..piece.clone() }).collect()
}

/// The kinds of pieces, each once, in their order.
pub(crate) fn kinds_of<'a>(pieces: impl Iterator<Item = &'a Piece>) -> Vec<Kind> {
    let mut kinds = Vec::new();
    for piece in pieces {
        if !kinds.contains(&piece.kind) {
            kinds.push(piece.kind);
        }
    }
    kinds
}

/// Joins sorted pieces. Only what touches is joined, so that a gap or a neighbour is never swallowed; only equal
/// protections, except that `MergeReadOnly` joins read-only data with code. `relro_apart` keeps memory whose
/// protection is still to change from the rest.
pub(crate) fn group(pieces: Vec<Piece>, edges: Edges, relro_apart: bool) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for piece in pieces {
        let joins = groups.last().and_then(|group| group.pieces.last()).is_some_and(|last| {
            last.range.end() == piece.range.start()
                && !(relro_apart && last.relro_pending != piece.relro_pending)
                && (last.protection == piece.protection
                    || (edges == Edges::MergeReadOnly && is_read_only(last) && is_read_only(&piece)))
        });
        match groups.last_mut() {
            Some(group) if joins => group.pieces.push(piece),
            _ => groups.push(Group { pieces: vec![piece] }),
        }
    }
    groups
}

fn is_read_only(piece: &Piece) -> bool {
    piece.protection.read && !piece.protection.write
}
