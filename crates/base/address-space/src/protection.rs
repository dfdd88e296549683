//! Page protections.

use core::fmt;
use serde::{Serialize, Serializer};

/// The accesses that a page permits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Protection {
    /// Loads are allowed.
    pub read: bool,
    /// Stores are allowed.
    pub write: bool,
    /// Instruction fetches are allowed.
    pub execute: bool,
}

impl Protection {
    /// `PROT_NONE`.
    pub const NONE: Self = Self { read: false, write: false, execute: false };
    /// Read only.
    pub const READ: Self = Self { read: true, write: false, execute: false };
    /// Read and write.
    pub const READ_WRITE: Self = Self { read: true, write: true, execute: false };
    /// Read and execute.
    pub const READ_EXECUTE: Self = Self { read: true, write: false, execute: true };

    /// The bits that `mmap` and `mprotect` take (PROT_READ 1, PROT_WRITE 2, PROT_EXEC 4 on every Linux architecture).
    pub const fn bits(self) -> i32 {
        self.read as i32 | (self.write as i32) << 1 | (self.execute as i32) << 2
    }

    /// True where every access permitted here is permitted by `other`.
    pub fn is_within(self, other: Self) -> bool {
        self.bits() & !other.bits() == 0
    }

    /// Reads the first three characters of a maps permission field, `r-x` for example.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let flag = |index: usize, letter: u8| match text.get(index) {
            Some(&c) if c == letter => Some(true),
            Some(b'-') => Some(false),
            _ => None,
        };
        Some(Self { read: flag(0, b'r')?, write: flag(1, b'w')?, execute: flag(2, b'x')? })
    }
}

impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = |allowed, letter| if allowed { letter } else { '-' };
        write!(f, "{}{}{}", letter(self.read, 'r'), letter(self.write, 'w'), letter(self.execute, 'x'))
    }
}

impl fmt::Debug for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Protection {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = Protection> {
        (0..8).map(|n| Protection { read: n & 1 != 0, write: n & 2 != 0, execute: n & 4 != 0 })
    }

    #[test]
    fn the_bits_are_those_of_mmap() {
        assert_eq!(all().map(Protection::bits).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
    }

    #[test]
    fn a_protection_lies_within_what_allows_at_least_as_much() {
        for (a, b) in all().flat_map(|a| all().map(move |b| (a, b))) {
            let allowed = (!a.read || b.read) && (!a.write || b.write) && (!a.execute || b.execute);
            assert_eq!(a.is_within(b), allowed, "{a} within {b}");
        }
    }

    #[test]
    fn a_protection_is_written_as_maps_writes_it() {
        let written: Vec<_> = all().map(|p| format!("{p}")).collect();
        assert_eq!(written, ["---", "r--", "-w-", "rw-", "--x", "r-x", "-wx", "rwx"]);
        assert!(
            all().all(|p| format!("{p:?}") == format!("{p}") && Protection::parse(p.to_string().as_bytes()) == Some(p))
        );
    }
}
