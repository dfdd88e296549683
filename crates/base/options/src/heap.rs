//! The heap: the pages that it is put on, and the words of `PAGELIFT` that concern it. Nothing here allocates.

use crate::Numa;
use crate::names::is_named;
use crate::words::{WORDS, is_word, words};
use address_space::{PageSize, size_count};
use core::fmt;
use core::str::FromStr;

/// How a heap gets huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeapPages {
    /// The program keeps its own heap, as it is.
    #[default]
    Off,
    /// The best choice for the program's allocator. A heap that is preloaded already uses transparent huge pages.
    Auto,
    /// Transparent huge pages.
    Thp,
    /// Pages of this size from the hugetlb pool.
    Pool(PageSize),
}

impl HeapPages {
    /// The words that [`HeapPages::parse`] accepts, for messages.
    pub const NEEDED: &str = "needed auto, off, thp, or a size of pool pages, 2M or 1G for example";

    /// Reads `auto`, `off`, `thp` or a size.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "off" => Some(Self::Off),
            "auto" => Some(Self::Auto),
            "thp" => Some(Self::Thp),
            size => PageSize::named(size).map(Self::Pool),
        }
    }
}

impl FromStr for HeapPages {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text).ok_or(Self::NEEDED)
    }
}

/// The heap's part of the variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapWords {
    /// `heap=`; off if it is not given.
    pub pages: HeapPages,
    /// `heap-reserve=`: bytes to take from the pool.
    pub reserve: Option<u64>,
    /// `numa=`: the nodes of the pool's pages.
    pub numa: Numa,
    /// `quiet`.
    pub quiet: bool,
}

/// The word that is not understood, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotUnderstood<'a> {
    word: &'a str,
    why: &'static str,
}

impl fmt::Display for NotUnderstood<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PAGELIFT: `{}`: {}", self.word, self.why)?;
        if self.why == NOT_KNOWN { write!(f, "{WORDS}") } else { Ok(()) }
    }
}

const NOT_KNOWN: &str = "not known; the words are ";

impl HeapWords {
    /// Reads what concerns the heap and passes over what does not.
    ///
    /// # Errors
    /// The first word that is not understood.
    pub fn parse(text: &str) -> Result<Self, NotUnderstood<'_>> {
        let mut found = Self { pages: HeapPages::Off, reserve: None, numa: Numa::Own, quiet: false };
        for (word, name, value) in words(text) {
            let not_understood = |why| NotUnderstood { word, why };
            match (name, value) {
                ("heap", Some(value)) => {
                    found.pages = HeapPages::parse(value).ok_or(not_understood(HeapPages::NEEDED))?
                }
                ("heap-reserve", Some(value)) => {
                    let bytes = size_count(value).ok_or(not_understood("needed a size, 64M or 2G for example"))?;
                    found.reserve = Some(bytes);
                }
                ("numa", Some(value)) => found.numa = Numa::parse(value).ok_or(not_understood(Numa::NEEDED))?,
                ("heap", None) => return Err(not_understood("write heap=VALUE")),
                ("heap-reserve", None) => return Err(not_understood("write heap-reserve=SIZE")),
                ("quiet" | "q", None) => found.quiet = true,
                (name, _) if is_word(name) => {}
                _ => return Err(not_understood(NOT_KNOWN)),
            }
        }
        Ok(found)
    }

    /// True if the variable has any word about the heap, valid or not.
    pub fn are_in(text: &str) -> bool {
        words(text).any(|(_, name, _)| name == "heap" || name == "heap-reserve")
    }

    /// True if the variable names programs, which may be descendants.
    pub fn name_programs(text: &str) -> bool {
        only(text).next().is_some()
    }

    /// True if the variable names a program or a process to act in at all.
    pub fn name_any(text: &str) -> bool {
        Self::name_programs(text) || words(text).any(|(_, name, value)| name == "pid" && value.is_some())
    }

    /// True if the variable names the program with these names, or the process with this number.
    pub fn name_this(text: &str, names: &[&str], pid: u64) -> bool {
        let is_pid = |value: Option<&str>| value.and_then(|value| value.parse().ok()) == Some(pid);
        is_named(only(text), names) || words(text).any(|(_, name, value)| name == "pid" && is_pid(value))
    }
}

/// The programs that `only=` names.
fn only(text: &str) -> impl Iterator<Item = &str> {
    let values = words(text).filter(|(_, name, _)| *name == "only").filter_map(|(_, _, value)| value);
    values.flat_map(|value| value.split(',')).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program_names;

    #[test]
    fn heap_pages_are_words_and_sizes() {
        assert_eq!("auto".parse(), Ok(HeapPages::Auto));
        assert_eq!("1G".parse(), Ok(pool(1 << 30)));
        assert!(["3M", "", "2", "2048"].iter().all(|text| text.parse::<HeapPages>().is_err()));
    }

    fn pool(bytes: u64) -> HeapPages {
        HeapPages::Pool(PageSize::new(bytes).unwrap())
    }

    #[test]
    fn words_of_the_heap_are_read_among_others() {
        let words = HeapWords::parse(
            "heap=2M lift=text,data --heap-reserve=1.5G only=redis-server quiet pages=hugetlb numa=node=1",
        );
        let expected = HeapWords { pages: pool(2 << 20), reserve: Some(3 << 29), numa: Numa::Node(1), quiet: true };
        assert_eq!(words, Ok(expected));
        assert_eq!(HeapWords::parse("heap=1GiB v q").unwrap().pages, pool(1 << 30));
        assert_eq!(HeapWords::parse("heap=thp").unwrap().pages, HeapPages::Thp);
        assert_eq!(HeapWords::parse("heap=auto").unwrap().pages, HeapPages::Auto);
        assert_eq!(HeapWords::parse("heap=thp heap=off").unwrap().pages, HeapPages::Off);
        assert_eq!(
            HeapWords::parse(" pages=auto\n").unwrap(),
            HeapWords { pages: HeapPages::Off, reserve: None, numa: Numa::Own, quiet: false }
        );
        assert!(HeapWords::are_in("a heap-reserve=x") && !HeapWords::are_in("lift=heap heaps=2M"));
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (text, expected) in [
            ("heap=3M", "PAGELIFT: `heap=3M`: needed auto, off, thp, or a size of pool pages, 2M or 1G for example"),
            (
                "lift=text heap=all",
                "PAGELIFT: `heap=all`: needed auto, off, thp, or a size of pool pages, 2M or 1G for example",
            ),
            ("heap", "PAGELIFT: `heap`: write heap=VALUE"),
            ("heap=2M numa=1", "PAGELIFT: `numa=1`: needed local or interleave or node=NUMBER"),
            ("heap-reserve", "PAGELIFT: `heap-reserve`: write heap-reserve=SIZE"),
            ("heap=thp heap-reserve=all", "PAGELIFT: `heap-reserve=all`: needed a size, 64M or 2G for example"),
        ] {
            assert_eq!(HeapWords::parse(text).unwrap_err().to_string(), expected);
        }
        let unknown = HeapWords::parse("haep=2M").unwrap_err().to_string();
        assert!(unknown.starts_with("PAGELIFT: `haep=2M`: not known; the words are pages, "), "{unknown}");
    }

    #[test]
    fn only_named_programs_are_meant() {
        let names = program_names("/usr/bin/python3.11 (deleted)", "python3", None);
        let acts = |text: &str| HeapWords::name_this(text, &names, 7);
        assert!(acts("only=python3") && acts("only=perl,python*") && acts("only=/usr/bin/python3.11") && acts("pid=7"));
        assert!(acts("only=perl only=python3.1?"));
        assert!(!acts("") && !acts("heap=2M") && !acts("only=perl") && !acts("only=python") && !acts("pid=8"));
        assert!(
            HeapWords::name_any("pid=x") && HeapWords::name_any("only=a") && !HeapWords::name_any("only=, heap=thp")
        );
        assert!(HeapWords::name_programs("only=a") && !HeapWords::name_programs("pid=3"));
    }
}
