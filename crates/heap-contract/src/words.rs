//! The words of the environment variable `PAGELIFT` that concern the heap. The others belong to `libpagelift.so`, and are
//! known here only so that a slip of the pen is not taken for one of them.

use address_space::{PageSize, byte_count};
use core::fmt;

/// All words of the variable.
pub const WORDS: &str = "pages, page-size, lift, objects, writable-pages, edges, max-memory, heap, heap-reserve, only, \
                         pid, require, quiet, verbose";

/// Short forms of words.
const SHORT: [&str; 2] = ["q", "v"];

/// `heap=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// The program keeps its own heap.
    Off,
    /// Transparent huge pages.
    Thp,
    /// Pages of this size from the pool.
    Pool(PageSize),
}

impl Wish {
    /// What [`Wish::parse`] understands, for whoever wrote something else.
    pub const NEEDED: &str = "needed auto, thp, off, or a size of pool pages, 2M or 1G for example";

    /// Reads the value of `heap=`.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "off" => Some(Self::Off),
            // Whoever preloads an allocator has chosen it: what `pagelift run --heap=auto` finds out is settled then, and
            // transparent huge pages are what it gives a preloaded one.
            "auto" | "thp" => Some(Self::Thp),
            size => PageSize::new(byte_count(size)?).ok().map(Self::Pool),
        }
    }
}

/// The heap's part of the variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapWords {
    /// `heap=`; off where it is not given.
    pub wish: Wish,
    /// `heap-reserve=`: bytes to take from the pool.
    pub reserve: Option<u64>,
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

/// The words with their values. Dashes before a word are allowed, as on a command line.
fn words(text: &str) -> impl Iterator<Item = (&str, &str, Option<&str>)> {
    text.split_whitespace().map(|word| {
        let word = word.trim_start_matches('-');
        let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        (word, name, value)
    })
}

impl HeapWords {
    /// Reads what concerns the heap and passes over what does not.
    ///
    /// # Errors
    /// The first word that is not understood.
    pub fn parse(text: &str) -> Result<Self, NotUnderstood<'_>> {
        let mut found = Self { wish: Wish::Off, reserve: None, quiet: false };
        for (word, name, value) in words(text) {
            let not_understood = |why| NotUnderstood { word, why };
            match (name, value) {
                ("heap", Some(value)) => found.wish = Wish::parse(value).ok_or(not_understood(Wish::NEEDED))?,
                ("heap-reserve", Some(value)) => {
                    let bytes = byte_count(value).ok_or(not_understood("needed a size, 64M or 2G for example"))?;
                    found.reserve = Some(bytes);
                }
                ("heap", None) => return Err(not_understood("write heap=VALUE")),
                ("heap-reserve", None) => return Err(not_understood("write heap-reserve=SIZE")),
                ("quiet" | "q", None) => found.quiet = true,
                (name, _) if SHORT.contains(&name) || WORDS.split(", ").any(|known| known == name) => {}
                _ => return Err(not_understood(NOT_KNOWN)),
            }
        }
        Ok(found)
    }

    /// True where the variable says anything of the heap, understood or not.
    pub fn are_in(text: &str) -> bool {
        words(text).any(|(_, name, _)| name == "heap" || name == "heap-reserve")
    }

    /// True where the variable names programs, which may be descendants.
    pub fn name_programs(text: &str) -> bool {
        only(text).next().is_some()
    }

    /// True where the variable names a program or a process to act in at all.
    pub fn name_any(text: &str) -> bool {
        Self::name_programs(text) || words(text).any(|(_, name, value)| name == "pid" && value.is_some())
    }

    /// True where the variable names the program with these names, or the process with this number.
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

/// True where one of the patterns means one of a program's names; `*` and `?` are as in a shell.
pub fn is_named<'a>(only: impl IntoIterator<Item = &'a str>, names: &[&str]) -> bool {
    only.into_iter().any(|pattern| names.iter().any(|name| lift_plan::matches(pattern, name)))
}

/// A program's names: its file's name and path, the name it was called by where that is the start of the file's
/// (`python3` of `python3.11`), and the name and path it was started by where that leads to the same file, which only the
/// caller can tell (`redis-server`, a link to `redis-check-rdb`). Empty ones are none.
pub fn program_names<'a>(path: &'a str, called: &'a str, started: Option<&'a str>) -> [&'a str; 5] {
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    let short = |path: &'a str| path.rsplit('/').next().unwrap_or(path);
    let file = short(path);
    let called = Some(short(called)).filter(|name| file.starts_with(name)).unwrap_or_default();
    let started = started.unwrap_or_default();
    [file, path, called, short(started), started]
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    fn pool(bytes: u64) -> Wish {
        Wish::Pool(PageSize::new(bytes).unwrap())
    }

    #[test]
    fn words_of_the_heap_are_read_among_others() {
        let words =
            HeapWords::parse("heap=2M lift=text,data --heap-reserve=1.5G only=redis-server quiet pages=hugetlb");
        assert_eq!(words, Ok(HeapWords { wish: pool(2 << 20), reserve: Some(3 << 29), quiet: true }));
        assert_eq!(HeapWords::parse("heap=1GiB v q").unwrap().wish, pool(1 << 30));
        assert_eq!(HeapWords::parse("heap=thp").unwrap().wish, Wish::Thp);
        assert_eq!(HeapWords::parse("heap=auto").unwrap().wish, Wish::Thp);
        assert_eq!(HeapWords::parse("heap=thp heap=off").unwrap().wish, Wish::Off);
        assert_eq!(
            HeapWords::parse(" pages=auto\n").unwrap(),
            HeapWords { wish: Wish::Off, reserve: None, quiet: false }
        );
        assert!(HeapWords::are_in("a heap-reserve=x") && !HeapWords::are_in("lift=heap heaps=2M"));
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (text, expected) in [
            ("heap=3M", "PAGELIFT: `heap=3M`: needed auto, thp, off, or a size of pool pages, 2M or 1G for example"),
            (
                "lift=text heap=all",
                "PAGELIFT: `heap=all`: needed auto, thp, off, or a size of pool pages, 2M or 1G for example",
            ),
            ("heap", "PAGELIFT: `heap`: write heap=VALUE"),
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
        assert_eq!(names, ["python3.11", "/usr/bin/python3.11", "python3", "", ""]);
        let names_of_link = program_names("/bin/redis-check-rdb", "-sh", Some("/bin/redis-server"));
        assert_eq!(names_of_link, ["redis-check-rdb", "/bin/redis-check-rdb", "", "redis-server", "/bin/redis-server"]);
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
