//! The statistics that the preloaded heap keeps in its own memory, for `pagelift status`.

use crate::VERSION;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Marks an account ("PLHEAPAC").
const MAGIC: u64 = u64::from_le_bytes(*b"PLHEAPAC");
const FIELDS: usize = 13;

/// The reason why memory is not on the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u64)]
pub enum Shortage {
    /// Nothing is short.
    #[default]
    None = 0,
    /// At the start the pool had fewer free pages than requested.
    PoolTooSmall = 1,
    /// A limit (cgroup, cpuset) or the memory policy refused pages that the pool had.
    PopulationRefused = 2,
    /// The pages taken at the start are used up.
    UsedUp = 3,
    /// The process forked; its heap went over to transparent huge pages, which need no free pages for that.
    Forked = 4,
    /// The process forked while the kernel may have been writing to the heap; unused pages went back to the pool, for
    /// the copies of both processes.
    SpentOnFork = 5,
}

impl Shortage {
    fn from_number(number: u64) -> Self {
        match number {
            1 => Self::PoolTooSmall,
            2 => Self::PopulationRefused,
            3 => Self::UsedUp,
            4 => Self::Forked,
            5 => Self::SpentOnFork,
            _ => Self::None,
        }
    }
}

/// The statistics in the process's memory. All numbers are bytes. Each number is correct, but they are not read at the
/// same instant.
#[derive(Debug)]
#[repr(C)]
pub struct Account {
    magic: AtomicU64,
    version: AtomicU64,
    /// Size of a pool page.
    pub pool_page: AtomicU64,
    /// Bytes of the pool that the order requested.
    pub pool_asked: AtomicU64,
    /// Bytes that were taken from the pool and populated.
    pub pool_taken: AtomicU64,
    /// Pool bytes that are handed out, to arenas or as large blocks.
    pub pool_used: AtomicU64,
    /// Bytes of address space handed out beside the pool.
    pub mapped_used: AtomicU64,
    /// Bytes of arenas, which hold the small blocks.
    pub arenas: AtomicU64,
    /// Bytes that the program requested in the large blocks it now holds.
    pub large_asked: AtomicU64,
    /// Bytes that these blocks take.
    pub large_held: AtomicU64,
    /// Bytes of freed large blocks that are kept with their memory, for the next one.
    pub large_kept: AtomicU64,
    /// A [`Shortage`].
    pub shortage: AtomicU64,
    /// Address of the [`SmallRecords`](crate::SmallRecords).
    pub small_records: AtomicU64,
}

/// The statistics as read at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of `Account`")]
pub struct AccountCopy {
    pub pool_page: u64,
    pub pool_asked: u64,
    pub pool_taken: u64,
    pub pool_used: u64,
    pub mapped_used: u64,
    pub arenas: u64,
    pub large_asked: u64,
    pub large_held: u64,
    pub large_kept: u64,
    pub shortage: Shortage,
    pub small_records: u64,
}

/// Result of looking for an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// None: the heap does not act there, or has not begun.
    Nothing,
    /// An account of this version.
    Account,
    /// One of another version, which this program cannot read.
    OtherVersion(u64),
}

impl Account {
    /// Bytes of an account in memory.
    pub const BYTES: usize = FIELDS * 8;
    /// Bytes of its beginning, which is the same in every version.
    pub const HEAD: usize = 2 * 8;

    /// An account that is not yet valid: readers ignore it before [`Account::open`].
    pub const fn new() -> Self {
        Self {
            magic: AtomicU64::new(0),
            version: AtomicU64::new(0),
            pool_page: AtomicU64::new(0),
            pool_asked: AtomicU64::new(0),
            pool_taken: AtomicU64::new(0),
            pool_used: AtomicU64::new(0),
            mapped_used: AtomicU64::new(0),
            arenas: AtomicU64::new(0),
            large_asked: AtomicU64::new(0),
            large_held: AtomicU64::new(0),
            large_kept: AtomicU64::new(0),
            shortage: AtomicU64::new(0),
            small_records: AtomicU64::new(0),
        }
    }

    /// Marks the account as valid from now on.
    pub fn open(&self) {
        self.version.store(VERSION, Relaxed);
        self.magic.store(MAGIC, Relaxed);
    }

    /// Records why memory is not on the pool. The latest reason wins, but `UsedUp` replaces no other reason.
    pub fn note(&self, shortage: Shortage) {
        if shortage == Shortage::UsedUp {
            self.shortage.compare_exchange(Shortage::None as u64, shortage as u64, Relaxed, Relaxed).ok();
        } else {
            self.shortage.store(shortage as u64, Relaxed);
        }
    }
}

impl Default for Account {
    fn default() -> Self {
        Self::new()
    }
}

impl Found {
    /// Examines bytes that may be the beginning of an account in another process of the same machine.
    pub fn at(head: &[u8; Account::HEAD]) -> Self {
        match (word(head, 0), word(head, 1)) {
            (MAGIC, VERSION) => Self::Account,
            (MAGIC, version) => Self::OtherVersion(version),
            _ => Self::Nothing,
        }
    }
}

impl AccountCopy {
    /// Reads an account from the bytes of another process of the same machine; `None` if they are not an account.
    pub fn from_bytes(bytes: &[u8; Account::BYTES]) -> Option<Self> {
        let field = |index| word(bytes, index);
        (field(0) == MAGIC && field(1) == VERSION).then(|| Self {
            pool_page: field(2),
            pool_asked: field(3),
            pool_taken: field(4),
            pool_used: field(5),
            mapped_used: field(6),
            arenas: field(7),
            large_asked: field(8),
            large_held: field(9),
            large_kept: field(10),
            shortage: Shortage::from_number(field(11)),
            small_records: field(12),
        })
    }
}

/// The word of this index, which there must be.
fn word(bytes: &[u8], index: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[index * 8..index * 8 + 8]);
    u64::from_ne_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_account_is_as_large_as_it_says() {
        assert_eq!(size_of::<Account>(), Account::BYTES);
    }

    #[test]
    fn a_shortage_at_the_start_stays_the_reason() {
        let account = Account::new();
        let noted = |shortage: Shortage| {
            account.note(shortage);
            Shortage::from_number(account.shortage.load(Relaxed))
        };
        assert_eq!(noted(Shortage::UsedUp), Shortage::UsedUp);
        assert_eq!(noted(Shortage::PopulationRefused), Shortage::PopulationRefused);
        assert_eq!(noted(Shortage::UsedUp), Shortage::PopulationRefused);
        assert_eq!(noted(Shortage::Forked), Shortage::Forked);
    }

    #[test]
    fn an_account_holds_once_it_is_open() {
        let account = Account::new();
        let head = || [&account.magic, &account.version].map(|word| word.load(Relaxed));
        assert_eq!(head(), [0, 0]);
        account.open();
        assert_eq!(head(), [MAGIC, VERSION]);
    }

    #[test]
    fn every_shortage_is_read_as_it_was_noted() {
        use Shortage::*;
        for shortage in [None, PoolTooSmall, PopulationRefused, UsedUp, Forked, SpentOnFork] {
            assert_eq!(Shortage::from_number(shortage as u64), shortage);
        }
        assert_eq!(Shortage::from_number(6), None);
    }

    #[test]
    fn only_an_open_account_of_this_version_is_read() {
        let mut bytes = [0; Account::BYTES];
        let found = |bytes: &[u8; Account::BYTES]| Found::at(bytes[..Account::HEAD].try_into().unwrap());
        assert_eq!((AccountCopy::from_bytes(&bytes), found(&bytes)), (None, Found::Nothing));
        bytes[..8].copy_from_slice(&MAGIC.to_ne_bytes());
        bytes[8..16].copy_from_slice(&VERSION.to_ne_bytes());
        bytes[11 * 8] = 4;
        bytes[5 * 8] = 9;
        let copy = AccountCopy::from_bytes(&bytes).unwrap();
        assert_eq!((copy.shortage, copy.pool_used), (Shortage::Forked, 9));
        assert_eq!(found(&bytes), Found::Account);
        bytes[8] = 77;
        assert_eq!(AccountCopy::from_bytes(&bytes), None);
        assert_eq!(found(&bytes), Found::OtherVersion(77));
    }
}
