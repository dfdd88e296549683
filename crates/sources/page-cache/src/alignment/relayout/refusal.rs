//! Reasons for which a file keeps its layout.

use crate::alignment::NotElf;
use address_space::{PageSize, format_bytes};

/// Why segments do not get new offsets.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RelayoutError {
    /// Not a program or shared object.
    #[error(transparent)]
    NotElf(#[from] NotElf),
    /// Another kind of ELF file, by its name.
    #[error("found {0}, needed a program or shared object")]
    Kind(&'static str),
    /// A program that finds its own contents by offsets in the file, by the name of the format.
    #[error("found {0}, which reads its own file at fixed offsets; needed a program that does not; fix: none")]
    ReadsItself(&'static str),
    /// The file has no section headers, as after a packer or `sstrip`.
    #[error("found no section headers, needed to know the file's other contents; fix: link it without a packer")]
    NoSections,
    /// Data that no header describes, at the end of the file.
    #[error(
        "found {} after the last section, needed none: the program may search its own file at fixed offsets; fix: --force, if it \
         counts from the end of the file", format_bytes(*.0)
    )]
    Trailing(u64),
    /// Headers that contradict each other.
    #[error("found {0}, needed sound headers; fix: link the file again")]
    Unsound(&'static str),
    /// A section that would not be in one piece.
    #[error("found that section {0} belongs to no single part of the file, needed it in one; fix: link the file again")]
    Section(usize),
    /// A program header that would point nowhere.
    #[error(
        "found that program header {0} belongs to no single part of the file, needed it in one; fix: link the file again"
    )]
    Program(usize),
    /// A base at a multiple of a huge page cannot make addresses agree with offsets.
    #[error("found {address:#x} as the lowest address, needed a multiple of {huge}; fix: link it with that address")]
    LowestAddress {
        /// The lowest address of a position-independent file.
        address: u64,
        /// The size of a huge page.
        huge: PageSize,
    },
    /// No segment holds a huge page.
    #[error("found no read-only segment that holds a whole huge page of {0}, needed one")]
    TooSmall(PageSize),
    /// Each start is placed well already.
    #[error("its segments agree with huge pages of {0} already")]
    Done(PageSize),
    /// The record does not belong to this file.
    #[error("found no sound record of the former layout, needed the one that `pagelift align --relayout` wrote")]
    NoRecord,
}
