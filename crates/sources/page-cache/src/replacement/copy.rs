//! The bytes of a copy.

use crate::replacement::error::ReplaceError;
use linux::file_holes::{next_data, next_hole};
use std::fs::File;
use std::io::{self, Error, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Most bytes of one write; a write ends at a multiple. After writes of 2 MiB and more all pages are in folios of 2 MiB (ext4,
/// Linux 6.18), after writes of 1 MiB and less none.
const PIECE: usize = 8 << 20;

/// Most parts of a file with holes.
const MOST_PARTS: usize = 4096;

/// Some bytes that the copy has in the place of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch {
    /// Offset in the copy.
    pub at: u64,
    /// The bytes; they end within the file, and not in a hole.
    pub bytes: Vec<u8>,
}

/// Bytes of the file that are moved in the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Offset in the file.
    pub from: u64,
    /// Offset in the copy.
    pub to: u64,
    /// Length in bytes.
    pub length: u64,
}

/// Another order of a file's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Length of the copy, in bytes.
    pub length: u64,
    /// The parts of the copy; a later one replaces bytes of an earlier one. Bytes that no part covers are holes in the copy.
    pub parts: Vec<Moved>,
}

impl Order {
    /// The order of a file of this length, as it is.
    pub(crate) fn same(length: u64) -> Self {
        Self { length, parts: vec![Moved { from: 0, to: 0, length }] }
    }

    /// The order of a file of this length, as it is, with its holes. Those after [`MOST_PARTS`] parts are filled.
    pub(crate) fn with_holes(file: &File, length: u64) -> io::Result<Self> {
        let (mut parts, mut at) = (Vec::new(), 0);
        while let Some(from) = next_data(file, at)?.filter(|from| *from < length) {
            let end = match parts.len() {
                MOST_PARTS.. => length,
                _ => next_hole(file, from)?.unwrap_or(length).min(length),
            };
            parts.push(Moved { from, to: from, length: end - from });
            at = end;
        }
        Ok(Self { length, parts })
    }

    /// Bytes of the copy that are written.
    pub(crate) fn written(&self) -> u64 {
        self.parts.iter().map(|part| part.length).fold(0, u64::saturating_add)
    }

    /// The covered ranges of the copy. Adjacent ones are joined, and all are cut at multiples of [`PIECE`].
    fn ranges(&self) -> Vec<Range<u64>> {
        let mut parts: Vec<Range<u64>> =
            self.parts.iter().filter(|part| part.length > 0).map(|part| part.to..part.to + part.length).collect();
        parts.sort_unstable_by_key(|part| part.start);
        let mut joined: Vec<Range<u64>> = Vec::new();
        for part in parts {
            match joined.last_mut() {
                Some(last) if part.start <= last.end => last.end = last.end.max(part.end),
                _ => joined.push(part),
            }
        }
        joined.into_iter().flat_map(cut).collect()
    }
}

/// Cuts a range at multiples of [`PIECE`].
fn cut(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = range.end;
    let next = move |at: u64| (at + 1).next_multiple_of(PIECE as u64).min(end);
    std::iter::successors(Some(range.start), move |at| Some(next(*at)).filter(|next| *next < end))
        .map(move |at| at..next(at))
}

/// The contents of a copy: bytes of a file in an order, and patches.
pub(crate) struct Contents<'a> {
    pub source: &'a File,
    pub order: &'a Order,
    pub patches: &'a [Patch],
}

impl Contents<'_> {
    /// Writes them to an empty file.
    pub fn fill(&self, target: &File, goes_on: &dyn Fn() -> Result<(), ReplaceError>) -> Result<(), ReplaceError> {
        let failed = || ReplaceError::io("copying the file");
        let mut piece = Vec::new();
        for range in self.order.ranges() {
            goes_on()?;
            self.read(range.clone(), &mut piece).map_err(failed())?;
            target.write_all_at(&piece, range.start).map_err(failed())?;
        }
        target.set_len(self.order.length).map_err(failed())
    }

    /// Compares each byte with the file's. Bytes in holes are not read.
    pub fn check(&self, target: &File) -> Result<(), ReplaceError> {
        let (mut wanted, mut found) = (Vec::new(), Vec::new());
        let differs = || Err(Error::from(ErrorKind::InvalidData));
        self.each(|range| {
            self.read(range.clone(), &mut wanted)?;
            found.resize(wanted.len(), 0);
            target.read_exact_at(&mut found, range.start)?;
            if wanted == found { Ok(()) } else { differs() }
        })
        .and_then(|()| if target.metadata()?.len() == self.order.length { Ok(()) } else { differs() })
        .map_err(|error| match error.kind() {
            ErrorKind::InvalidData => ReplaceError::Differs("contents".to_owned()),
            _ => ReplaceError::Io { what: "comparing the copy", source: error },
        })
    }

    fn each(&self, act: impl FnMut(Range<u64>) -> io::Result<()>) -> io::Result<()> {
        self.order.ranges().into_iter().try_for_each(act)
    }

    fn read(&self, range: Range<u64>, into: &mut Vec<u8>) -> io::Result<()> {
        into.clear();
        into.resize((range.end - range.start) as usize, 0);
        for part in &self.order.parts {
            let (start, end) = (part.to.max(range.start), (part.to + part.length).min(range.end));
            if start < end {
                let bytes = &mut into[(start - range.start) as usize..(end - range.start) as usize];
                self.source.read_exact_at(bytes, part.from + (start - part.to))?;
            }
        }
        for patch in self.patches {
            apply(patch, range.start, into);
        }
        Ok(())
    }
}

/// Writes the part of a patch within `bytes`, which begin at `at` in the file.
fn apply(patch: &Patch, at: u64, bytes: &mut [u8]) {
    let (start, end) = (patch.at.max(at), (patch.at + patch.bytes.len() as u64).min(at + bytes.len() as u64));
    if start < end {
        let from = &patch.bytes[(start - patch.at) as usize..(end - patch.at) as usize];
        bytes[(start - at) as usize..(end - at) as usize].copy_from_slice(from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_written_in_large_pieces_that_end_at_their_multiples() {
        const MIB: u64 = 1 << 20;
        let part = |to: u64, length: u64| Moved { from: 0, to, length };
        let order =
            Order { length: 40 * MIB, parts: vec![part(20 * MIB, 3), part(MIB, 8 * MIB), part(9 * MIB, 8 * MIB)] };
        let expected = [MIB..8 * MIB, 8 * MIB..16 * MIB, 16 * MIB..17 * MIB, 20 * MIB..20 * MIB + 3];
        assert_eq!(order.ranges(), expected);
        assert_eq!(Order::same(0).ranges(), []);
        assert_eq!(Order::same(8 * MIB).ranges().len(), 1);
    }

    #[test]
    fn a_patch_is_applied_where_it_meets_the_piece() {
        for (at, expected) in [(0, *b"aaaaaaaa"), (6, *b"aaaaxyza"), (11, *b"yzaaaaaa"), (13, *b"aaaaaaaa")] {
            let mut bytes = *b"aaaaaaaa";
            apply(&Patch { at: 10, bytes: b"xyz".to_vec() }, at, &mut bytes);
            assert_eq!(bytes, expected, "{at}");
        }
        let mut bytes = *b"aa";
        apply(&Patch { at: 3, bytes: b"wxyz".to_vec() }, 4, &mut bytes);
        assert_eq!(&bytes, b"xy");
    }
}
