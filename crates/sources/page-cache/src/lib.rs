//! The state of a file in the page cache, and the ways to bring it into huge folios.
//!
//! If a file system keeps files in large folios (ext4 since Linux 6.16, xfs since 5.18, erofs since 6.2), a program's
//! own file can be in folios of the size of a huge page. Every process that maps the file so that addresses agree with
//! offsets modulo that size then gets entries for huge pages, without any help from Pagelift. Folios become that large
//! in one of three ways:
//!
//! - `MADV_COLLAPSE` in place: on tmpfs since 6.1, on disk file systems since 7.2 or if the kernel has
//!   `READ_ONLY_THP_FOR_FS`.
//! - Eviction, and reading again through a mapping with `MADV_HUGEPAGE`: `do_sync_mmap_readahead` in `mm/filemap.c` then
//!   reads whole huge pages. Pages that any process maps cannot be evicted.
//! - Writes of several MiB, which only a copy of the file can get.
//!
//! [`alignment`] changes a file so that the kernel maps it that way, and [`replacement`] puts the changed copy in its place.
//!
//! The unit is the *block*: the bytes of one huge page, at an offset that is a multiple of its size. The last, partial
//! block of a file never becomes huge, since the kernel reads no bytes beyond the end.
#![forbid(unsafe_code)]

pub mod alignment;
mod attempts;
mod blocks;
mod budget;
mod cache;
mod elf;
mod file_system;
mod keeper;
mod look;
mod making;
mod mappers;
mod prepare;
mod refusal;
pub mod replacement;
mod status;

pub use budget::{Budget, Effort, Users};
pub use elf::loaded_offsets;
pub use file_system::{may_collapse_in_place, unfit};
pub use keeper::{Keeper, KeeperReport, KeptFile, KeptPath, ListEntry, LockedFile, parse_list};
pub use look::{Error, Hold, HugeExtents, MOST_LOOKED_AT, look, look_and_hold};
pub use mappers::{FileUsers, MappedFiles, MappedPart};
pub use prepare::{Prepared, prepare};
pub use refusal::{Limit, Refusal};
pub use status::{FileStatus, UserStatus, status_of};
