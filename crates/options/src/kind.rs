//! Kinds of memory.

use crate::choices::{Choice, choice};
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use serde::Serialize;

/// What a piece of memory is to its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Executable code.
    Text,
    /// Read-only data, sealed RELRO included.
    Rodata,
    /// Initialised writable data.
    Data,
    /// Zero-initialised writable data.
    Bss,
    /// The brk area.
    Heap,
}

choice!(Kind {
    "text" => Text: "Executable code.",
    "rodata" => Rodata: "Read-only data.",
    "data" => Data: "Initialised writable data.",
    "bss" => Bss: "Zero-initialised writable data.",
    "heap" => Heap: "The brk area.",
});

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// A set of [`Kind`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds(u8);

impl Kinds {
    /// Every kind.
    pub const ALL: Self = Self(0b1_1111);

    /// The set of these kinds.
    pub fn of(kinds: &[Kind]) -> Self {
        Self(kinds.iter().fold(0, |set, &kind| set | 1 << kind as u8))
    }

    /// Reads kinds, separated by commas.
    ///
    /// # Errors
    /// The name that is none, and those that are.
    pub fn parse(text: &str) -> Result<Self, String> {
        let kinds = text.split(',').map(Kind::from_word).collect::<Result<Vec<_>, _>>()?;
        Ok(Self::of(&kinds))
    }

    /// True where `kind` is in the set.
    pub fn contains(self, kind: Kind) -> bool {
        self.0 & 1 << kind as u8 != 0
    }
}

impl Default for Kinds {
    fn default() -> Self {
        Self::ALL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_shown_by_the_word_that_asks_for_it() {
        assert_eq!(format!("--lift={}", Kind::Rodata), "--lift=rodata");
    }

    #[test]
    fn kinds_are_a_set() {
        let set = Kinds::of(&[Kind::Text, Kind::Bss]);
        assert!(set.contains(Kind::Text) && set.contains(Kind::Bss) && !set.contains(Kind::Data));
        assert!(Kinds::ALL.contains(Kind::Heap));
        assert_eq!(Kinds::of(&[Kind::Text, Kind::Bss, Kind::Text]), set, "a kind that is named twice is in the set");
        assert!(Kind::ALL.iter().all(|named| Kinds::ALL.contains(named.value)));
    }
}
