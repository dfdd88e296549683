//! The bytes of a copy.

use crate::error::ReplaceError;
use std::fs::File;
use std::io::{self, Error, ErrorKind};
use std::os::unix::fs::FileExt;

/// Length of one write in bytes. Of writes of 2 MiB and more all pages lie in folios of 2 MiB afterwards (ext4, Linux 6.18),
/// of writes of 1 MiB and less none.
const PIECE: usize = 8 << 20;

/// Some bytes that the copy has in the place of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch {
    /// Offset in the file.
    pub at: u64,
    /// The bytes; they end within the file.
    pub bytes: Vec<u8>,
}

/// Writes `source` with its patches to `target`, an empty file.
pub(crate) fn fill(source: &File, length: u64, patches: &[Patch], target: &File) -> Result<(), ReplaceError> {
    let mut piece = vec![0; PIECE.min(length as usize)];
    each_piece(length, |at, size| {
        read_patched(source, at, &mut piece[..size], patches)?;
        target.write_all_at(&piece[..size], at)
    })
    .map_err(ReplaceError::io("copying the file"))
}

/// Reads both and compares each byte.
pub(crate) fn check(source: &File, length: u64, patches: &[Patch], target: &File) -> Result<(), ReplaceError> {
    let (mut wanted, mut found) = (vec![0; PIECE.min(length as usize)], vec![0; PIECE.min(length as usize)]);
    each_piece(length, |at, size| {
        read_patched(source, at, &mut wanted[..size], patches)?;
        target.read_exact_at(&mut found[..size], at)?;
        if wanted[..size] == found[..size] { Ok(()) } else { Err(Error::from(ErrorKind::InvalidData)) }
    })
    .map_err(|error| match error.kind() {
        ErrorKind::InvalidData => ReplaceError::Differs("contents".to_owned()),
        _ => ReplaceError::Io { what: "comparing the copy", source: error },
    })
}

fn each_piece(length: u64, mut act: impl FnMut(u64, usize) -> io::Result<()>) -> io::Result<()> {
    (0..length).step_by(PIECE).try_for_each(|at| act(at, PIECE.min((length - at) as usize)))
}

fn read_patched(source: &File, at: u64, into: &mut [u8], patches: &[Patch]) -> io::Result<()> {
    source.read_exact_at(into, at)?;
    for patch in patches {
        apply(patch, at, into);
    }
    Ok(())
}

/// Writes that part of a patch that lies in `bytes`, which begin at `at` in the file.
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
