//! Joins pieces that may share huge pages into groups, and cuts groups into runs of whole huge pages.

use crate::{Edges, Kind, Piece};
use address_space::{Address, AddressRange, PageSize, Protection};
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
        kinds_of(self.overlapping(range).iter())
    }

    /// The pieces that `range` overlaps. Pieces of a group are sorted and touch each other.
    fn overlapping(&self, range: AddressRange) -> &[Piece] {
        let first = self.pieces.partition_point(|piece| piece.range.end() <= range.start());
        let behind = self.pieces.partition_point(|piece| piece.range.start() < range.end());
        &self.pieces[first.min(behind)..behind]
    }

    /// The whole huge pages of the group, as runs of one protection.
    pub fn runs(&self, size: PageSize) -> Vec<Run> {
        let mut runs: Vec<(AddressRange, Protection)> = Vec::new();
        let whole = self.range().whole_pages(size);
        let mut start = whole.start();
        while start < whole.end() {
            let pages = self.pages_alike(start, size).intersect(whole);
            let protection = self.protection_of(pages);
            match runs.last_mut() {
                Some((range, same)) if *same == protection => *range = AddressRange::new(range.start(), pages.end()),
                _ => runs.push((pages, protection)),
            }
            start = pages.end();
        }
        let run = |(range, protection)| Run { range, protection, pieces: pieces_in(&self.pieces, range) };
        runs.into_iter().map(run).collect()
    }

    /// The huge pages from `start` on that are in the same piece, or the one page there that several pieces share.
    /// Steps by pieces, because a hostile file can have segments of 2^43 huge pages.
    fn pages_alike(&self, start: Address, size: PageSize) -> AddressRange {
        let page = AddressRange::sized(start, size.bytes());
        let end = self.overlapping(page).first().map_or(start, |piece| piece.range.end());
        let in_first = AddressRange::new(start, end).whole_pages(size);
        if in_first.is_empty() { page } else { in_first }
    }

    /// Returns the protection of a huge page that contains `page`: its pieces' protection, or their union if they
    /// differ.
    fn protection_of(&self, page: AddressRange) -> Protection {
        self.overlapping(page).iter().fold(Protection::NONE, |all, piece| Protection {
            read: all.read || piece.protection.read,
            write: all.write || piece.protection.write,
            execute: all.execute || piece.protection.execute,
        })
    }
}

impl Run {
    /// The part of the run within `range`.
    pub fn cut_to(&self, range: AddressRange) -> Self {
        Self { range, protection: self.protection, pieces: pieces_in(&self.pieces, range) }
    }
}

/// The pieces within `range`, cut to it.
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

/// Joins sorted pieces into groups. Only adjacent pieces are joined, never across a gap, and only with equal
/// protections, except that `MergeReadOnly` joins read-only data with code. `relro_apart` separates memory whose
/// protection is still to change.
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: u64 = 1 << 21;

    fn group_of(lengths: &[(u64, bool)], start: u64) -> Group {
        let mut free = Address(start);
        let piece = |&(length, code): &(u64, bool)| {
            let range = AddressRange::sized(free, length);
            free = range.end();
            let (kind, protection) =
                if code { (Kind::Text, Protection::READ_EXECUTE) } else { (Kind::Rodata, Protection::READ) };
            Piece { kind, range, protection, anonymous: false, relro_pending: false, refused: None }
        };
        Group { pieces: lengths.iter().map(piece).collect() }
    }

    #[test]
    fn a_segment_of_trillions_of_huge_pages_is_one_run() {
        // Page by page this takes days.
        let group = group_of(&[(1 << 62, false), (SIZE + 4096, true), (1 << 62, false)], 4096);
        let runs = group.runs(PageSize::new(SIZE).unwrap());
        let found: Vec<_> = runs.iter().map(|run| (run.range.len() / SIZE, run.protection.execute)).collect();
        assert_eq!(found, [((1 << 41) - 1, false), (2, true), ((1 << 41) - 1, false)]);
    }

    proptest! {
        #[test]
        fn runs_are_those_that_a_walk_over_all_pages_finds(
            lengths in prop::collection::vec((1..1500u64, any::<bool>()), 1..12),
            start in 0..512u64,
        ) {
            let size = PageSize::new(SIZE).unwrap();
            let lengths: Vec<_> = lengths.into_iter().map(|(pages, code)| (pages * 4096, code)).collect();
            let group = group_of(&lengths, start * 4096);
            let mut expected: Vec<(AddressRange, Protection)> = Vec::new();
            for page in group.range().whole_pages(size).pages(size) {
                let inside = group.pieces.iter().filter(|piece| piece.range.overlaps(page));
                let execute = inside.fold(false, |any, piece| any | piece.protection.execute);
                match expected.last_mut() {
                    Some((range, same)) if same.execute == execute => {
                        *range = AddressRange::new(range.start(), page.end());
                    }
                    _ => expected.push((page, Protection { execute, ..Protection::READ })),
                }
            }
            let runs = group.runs(size);
            let found: Vec<_> = runs.iter().map(|run| (run.range, run.protection)).collect();
            prop_assert_eq!(found, expected);
            for run in &runs {
                prop_assert_eq!(run.pieces.iter().map(|piece| piece.range.len()).sum::<u64>(), run.range.len());
            }
        }
    }
}
