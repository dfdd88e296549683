//! The state of a file in the page cache, and the huge pages of its users.

use crate::blocks::{offsets_of, whole_blocks};
use crate::{Error, FileUsers, MOST_LOOKED_AT, MappedFiles, MappedPart, loaded_offsets, look};
use address_space::PageSize;
use linux::file_cache::cached_pages;
use linux::pagemap::Pagemap;
use linux::pages::base_page;
use process_view::{ProcessFiles, each_of};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

/// The state of one file in the page cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileStatus {
    /// Length in bytes.
    pub length: u64,
    /// Bytes that can be in huge folios: whole blocks, for an ELF file those among its segments.
    pub of: u64,
    /// Bytes that are.
    pub huge: u64,
    /// Bytes that are cached at all; `None` if the kernel does not report them to this user.
    pub cached: Option<u64>,
    /// Bytes that were not checked, since there are more than [`MOST_LOOKED_AT`].
    #[serde(skip_serializing_if = "is_zero")]
    pub not_looked_at: u64,
    /// The processes that map it.
    pub users: Vec<UserStatus>,
}

fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

/// One process's use of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UserStatus {
    /// The process.
    pub pid: i32,
    /// The name the kernel knows it by.
    pub name: String,
    /// Bytes that it maps and cannot write to.
    pub mapped: u64,
    /// The part of `mapped` that huge pages map now; `None` if this user cannot see that, or the process does not answer.
    pub huge: Option<u64>,
    /// Bytes more that huge pages would map at another base, at which addresses agree with offsets.
    pub gain: u64,
}

/// Looks at a file and its users.
///
/// # Errors
/// [`Error`], as for [`look`].
pub fn status_of(file: &File, mapped: &MappedFiles, huge: PageSize) -> Result<FileStatus, Error> {
    let offsets = loaded_offsets(file).unwrap_or(0..u64::MAX);
    let found = look(file, offsets.clone(), huge)?;
    let blocks = whole_blocks(&offsets, found.file_length, huge);
    let cached = (!blocks.is_empty())
        .then(|| cached_pages(file, offsets_of(&blocks, huge)).ok().map(|pages| pages.cached * base_page().bytes()));
    let users = mapped.users_of(file, huge)?;
    let now = huge_now(&users);
    let status = |(pid, parts): (i32, Vec<&MappedPart>)| user(pid, &parts, &found.huge, huge, now.get(&pid).copied());
    Ok(FileStatus {
        length: found.file_length,
        of: (blocks.end - blocks.start) * huge.bytes(),
        huge: found.bytes(),
        cached: cached.unwrap_or(Some(0)),
        not_looked_at: ((blocks.end - blocks.start) * huge.bytes()).saturating_sub(MOST_LOOKED_AT),
        users: users.by_process().into_iter().map(status).collect(),
    })
}

/// The bytes of the file that huge pages map now, for each process that answers. Each is asked once for all its parts.
fn huge_now(users: &FileUsers) -> BTreeMap<i32, u64> {
    let ranges = |parts: Vec<&MappedPart>| read_only(&parts).map(|part| part.mapping.range).collect::<Vec<_>>();
    let ranges: BTreeMap<i32, Vec<_>> =
        users.by_process().into_iter().map(|(pid, parts)| (pid, ranges(parts))).collect();
    let (pids, ranges) = (ranges.keys().copied().collect::<Vec<_>>(), Arc::new(ranges));
    let look = move |process: &ProcessFiles| {
        let pagemap = Pagemap::open(process.pid(), base_page()).ok()?;
        ranges.get(&process.pid())?.iter().map(|range| Some(pagemap.huge(*range).ok()?.bytes())).sum::<Option<u64>>()
    };
    let mut found = BTreeMap::new();
    each_of(pids, look, |pid, huge| found.extend(huge.ok().flatten().map(|huge| (pid, huge))));
    found
}

fn read_only<'a>(parts: &'a [&MappedPart]) -> impl Iterator<Item = &'a MappedPart> {
    parts.iter().copied().filter(|part| !part.mapping.protection.write)
}

fn user(pid: i32, parts: &[&MappedPart], extents: &[Range<u64>], page: PageSize, huge: Option<u64>) -> UserStatus {
    let readable = read_only(parts).filter(|part| part.mapping.protection.read);
    let steps = readable.map(|part| (part.out_of_step(page), whole_bytes_in(&part.offsets(), extents, page)));
    UserStatus {
        pid,
        name: ProcessFiles::of(pid).name().unwrap_or_else(|_| "?".to_owned()),
        mapped: read_only(parts).map(|part| part.mapping.range.len()).sum(),
        huge,
        gain: gain_by_other_base(steps),
    }
}

/// Returns the additional bytes that agree with their offsets at the best base, compared with the present one. The
/// input is, for each part, the difference between its addresses and its offsets, and its bytes in huge folios. A base
/// moves all parts alike: linkers place the code of some programs one page further than the read-only data, and no base
/// suits both.
fn gain_by_other_base(parts: impl Iterator<Item = (u64, u64)>) -> u64 {
    let mut by_step: BTreeMap<u64, u64> = BTreeMap::new();
    for (ahead, bytes) in parts {
        *by_step.entry(ahead).or_default() += bytes;
    }
    let now = by_step.get(&0).copied().unwrap_or(0);
    by_step.into_values().max().unwrap_or(0) - now
}

/// Bytes of the blocks in `extents` that are completely within `offsets`.
fn whole_bytes_in(offsets: &Range<u64>, extents: &[Range<u64>], huge: PageSize) -> u64 {
    let whole = |extent: &Range<u64>| {
        let blocks = whole_blocks(&(offsets.start.max(extent.start)..offsets.end), extent.end, huge);
        (blocks.end - blocks.start) * huge.bytes()
    };
    extents.iter().map(whole).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_moves_all_parts_alike() {
        let gain = |parts: &[(u64, u64)]| gain_by_other_base(parts.iter().copied());
        assert_eq!([gain(&[]), gain(&[(0, 9)]), gain(&[(4, 9)])], [0, 0, 9]);
        // Data and code that no base serves both: of nothing, of the data, of the code.
        assert_eq!([gain(&[(1, 3), (2, 9)]), gain(&[(0, 3), (1, 9)]), gain(&[(0, 9), (1, 3)])], [9, 6, 0]);
        assert_eq!(gain(&[(1, 3), (2, 9), (1, 7)]), 10);
    }

    #[test]
    fn only_whole_blocks_of_both_count() {
        let huge = PageSize::new(16).unwrap();
        let extents = [0..32, 64..96];
        let bytes = |offsets: Range<u64>| whole_bytes_in(&offsets, &extents, huge);
        assert_eq!([bytes(0..96), bytes(1..96), bytes(16..79), bytes(17..80), bytes(32..64)], [64, 48, 16, 16, 0]);
    }
}
