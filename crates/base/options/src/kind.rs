//! Kinds of memory.

use crate::choices::{Choice, choice};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use serde::Serialize;

/// The role of a piece of memory in its program.
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
    /// Memory that processes share: shared anonymous memory, memfd, files of tmpfs, System V segments. No plan of a program has
    /// it; it is lifted in place, from outside, while its processes run.
    Shared,
    /// Mapped files that belong to no object: data files, mapped by huge pages of the page cache, from outside, while the process
    /// runs.
    Files,
    /// Private anonymous memory besides the brk area: buffer pools, heaps of runtimes, large blocks of an allocator. Lifted as
    /// [`Kind::Shared`].
    Anon,
    /// Code that the program has generated: executable anonymous memory. Lifted as [`Kind::Shared`].
    Jit,
}

choice!(Kind {
    "text" => Text: "Executable code.",
    "rodata" => Rodata: "Read-only data.",
    "data" => Data: "Initialised writable data.",
    "bss" => Bss: "Zero-initialised writable data.",
    "heap" => Heap: "The brk area.",
    "shared" => Shared: "Shared memory, in place, for all processes that share it.",
    "files" => Files: "Mapped data files, from huge folios of the page cache.",
    "anon" => Anon: "Anonymous memory besides the brk area, in place: buffer pools, heaps of runtimes.",
    "jit" => Jit: "Code that the program has generated, in place.",
});

impl Kind {
    /// True for what a program has at its start, and what is lifted unless other kinds are named.
    pub fn is_usual(self) -> bool {
        Kinds::USUAL.contains(self)
    }

    /// Reads the word of a usual kind.
    ///
    /// # Errors
    /// The word that was found, and those that are needed.
    pub fn usual_from_word(word: &str) -> Result<Self, String> {
        match Self::from_word(word) {
            Ok(kind) if kind.is_usual() => Ok(kind),
            _ => {
                let usual = Self::ALL.iter().filter(|named| named.value.is_usual()).map(|named| named.word);
                Err(format!("found `{word}`, needed {}", usual.collect::<Vec<_>>().join(" or ")))
            }
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// A set of [`Kind`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds(u16);

impl Kinds {
    /// The kinds that a program has at its start, and that are lifted unless others are named.
    pub const USUAL: Self = Self(0b1_1111);

    /// All kinds.
    pub const ALL: Self = Self(0b1_1111_1111);

    /// The set with these kinds.
    pub fn of(kinds: &[Kind]) -> Self {
        Self(kinds.iter().fold(0, |set, &kind| set | 1 << kind as u8))
    }

    /// Reads usual kinds, separated by commas.
    ///
    /// # Errors
    /// The name that was found, and the usual names.
    pub fn parse_usual(text: &str) -> Result<Self, String> {
        let kinds = text.split(',').map(Kind::usual_from_word).collect::<Result<Vec<_>, _>>()?;
        Ok(Self::of(&kinds))
    }

    /// The kinds of the set that a program has at its start.
    pub fn usual(self) -> Self {
        Self(self.0 & Self::USUAL.0)
    }

    /// The kinds of the set that the plan of a running process can have. Others are lifted in place, block by block.
    pub fn planned(self) -> Self {
        Self(self.0 & (Self::USUAL.0 | 1 << Kind::Files as u16))
    }

    /// The kinds of both sets.
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// True for the empty set.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// True where `kind` is in the set.
    pub fn contains(self, kind: Kind) -> bool {
        self.0 & 1 << kind as u8 != 0
    }
}

impl From<Kind> for Kinds {
    fn from(kind: Kind) -> Self {
        Self::of(&[kind])
    }
}

impl Default for Kinds {
    fn default() -> Self {
        Self::USUAL
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
        assert!(Kinds::USUAL.contains(Kind::Heap) && !Kinds::USUAL.contains(Kind::Shared));
        assert_eq!(Kinds::of(&[Kind::Text, Kind::Bss, Kind::Text]), set, "a kind that is named twice is in the set");
        let usual: Vec<Kind> = Kind::ALL.iter().map(|named| named.value).filter(|kind| kind.is_usual()).collect();
        assert_eq!(Kinds::of(&usual), Kinds::USUAL);
        assert!(Kind::usual_from_word("shared").is_err_and(|why| why.ends_with("bss or heap")));
        assert_eq!(Kinds::of(&[Kind::Jit, Kind::Bss]).usual(), Kinds::of(&[Kind::Bss]));
        let other = Kinds::of(&[Kind::Shared, Kind::Files, Kind::Anon, Kind::Jit]);
        assert_eq!((other.planned(), set.planned()), (Kinds::of(&[Kind::Files]), set));
        assert!(other.usual().is_empty() && !set.is_empty());
        assert_eq!(set.and(Kinds::of(&[Kind::Data])), Kinds::of(&[Kind::Text, Kind::Data, Kind::Bss]));
        let all: Vec<Kind> = Kind::ALL.iter().map(|named| named.value).collect();
        assert_eq!(Kinds::of(&all), Kinds::ALL);
    }
}
