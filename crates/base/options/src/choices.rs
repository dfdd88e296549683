//! Options whose values are words.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// One value of an option.
pub struct Named<T: 'static> {
    /// The word for this value.
    pub word: &'static str,
    /// The value.
    pub value: T,
    /// Its meaning, as one sentence for a user.
    pub help: &'static str,
}

/// An option whose value is one of a few words.
pub trait Choice: Copy + PartialEq + 'static {
    /// All its values, in the order in which a user should see them.
    const ALL: &'static [Named<Self>];

    /// The value of a word.
    ///
    /// # Errors
    /// The word that was found, and those that are needed.
    fn from_word(word: &str) -> Result<Self, String> {
        Self::ALL.iter().find(|named| named.word == word).map(|named| named.value).ok_or_else(|| {
            let words: Vec<_> = Self::ALL.iter().map(|named| named.word).collect();
            format!("found `{word}`, needed {}", words.join(" or "))
        })
    }

    /// The word for the value.
    fn word(self) -> &'static str {
        Self::ALL.iter().find(|named| named.value == self).map_or("", |named| named.word)
    }
}

/// Writes the table of an option's values.
macro_rules! choice {
    ($type:ty { $($word:literal => $value:ident: $help:literal,)* }) => {
        impl $crate::Choice for $type {
            const ALL: &'static [$crate::Named<Self>] =
                &[$($crate::Named { word: $word, value: Self::$value, help: $help },)*];
        }
    };
}

pub(crate) use choice;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Edges, Kind, Pages, Prepare, WritablePages};
    use std::fmt::Debug;

    fn check<T: Choice + Debug>(count: usize) {
        assert_eq!(T::ALL.len(), count);
        for named in T::ALL {
            assert_eq!(T::from_word(named.word), Ok(named.value));
            assert_eq!(named.value.word(), named.word);
            assert!(named.help.ends_with('.'), "{}", named.help);
        }
    }

    #[test]
    fn every_value_has_a_word_of_its_own() {
        check::<Pages>(6);
        check::<Prepare>(3);
        check::<WritablePages>(2);
        check::<Edges>(2);
        check::<Kind>(9);
        assert_eq!(Edges::from_word("all").unwrap_err(), "found `all`, needed exact or merge-read-only");
    }
}
