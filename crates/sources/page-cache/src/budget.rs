//! The steps that prepare a file, and the limit of their cost.

use std::time::Duration;

/// The effort to bring a file into huge folios.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effort {
    /// Only look.
    Look,
    /// As [`Effort::Once`], but nothing is changed: blocks that would become huge count as huge.
    Foresee,
    /// Like [`Effort::Once`], but blocks are only collapsed in place: no page is evicted.
    InPlace,
    /// Only if no earlier attempt at this boot failed for a reason that still holds. Does not write changed pages back.
    #[default]
    Once,
    /// In any case; changed pages are written to the disk first.
    Always,
}

/// The time for finding the processes that map a file, which takes some milliseconds on a machine with many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Users {
    /// Before anything is evicted, so that nobody loses a page in vain: for files that are likely to be in use.
    BeforeEviction,
    /// When pages of a block stay although it was evicted. The other pages of that block are read again.
    #[default]
    OncePagesStay,
}

/// Limits of one preparation.
#[derive(Clone, Copy)]
pub struct Budget<'a> {
    /// After this time no further block is begun. One block is a read of one huge page from the disk. It also limits
    /// the time to wait for another process that prepares the file, which is never more than 5 minutes.
    pub time: Duration,
    /// Returns the bytes that may be read again. Called only before a read: most files have huge folios already, or
    /// were tried before, and finding the amount of free memory takes longer than checking that.
    pub bytes: &'a dyn Fn() -> u64,
    /// The time for finding the processes that map the file.
    pub users: Users,
}

impl Budget<'static> {
    /// No limit.
    pub const UNLIMITED: Self = Self { time: Duration::MAX, bytes: &|| u64::MAX, users: Users::BeforeEviction };
}
