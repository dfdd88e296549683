//! What is done to prepare a file, and what that may cost.

use std::time::Duration;

/// How much is done to get a file into huge folios that does not lie in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effort {
    /// Only look.
    Look,
    /// As [`Effort::Once`], but blocks are only collapsed where they lie: nothing is evicted.
    InPlace,
    /// Where no earlier attempt at this boot failed for a reason that still holds. Nothing is written back for it.
    #[default]
    Once,
    /// In any case; changed pages are written to the disk first.
    Always,
}

/// When the processes that map a file are looked for, which takes some milliseconds on a machine with many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Users {
    /// Before anything is evicted, so that nobody loses a page in vain: for files that are likely to be in use.
    BeforeEviction,
    /// Once pages of a block stay although it was evicted. The others of that block are read again.
    #[default]
    OncePagesStay,
}

/// How much one preparation may cost.
#[derive(Clone, Copy)]
pub struct Budget<'a> {
    /// After this time no further block is begun. One block is a read of one huge page from the disk. Another process that
    /// prepares the file is waited for no longer than that, and 5 minutes at the longest.
    pub time: Duration,
    /// Returns the bytes that may be read again. Called only before something is read again: most files lie as they
    /// should, or were tried before, and to find out how much memory is left takes longer than to see that.
    pub bytes: &'a dyn Fn() -> u64,
    /// When those who map the file are looked for.
    pub users: Users,
}

impl Budget<'static> {
    /// No limit.
    pub const UNLIMITED: Self = Self { time: Duration::MAX, bytes: &|| u64::MAX, users: Users::BeforeEviction };
}
