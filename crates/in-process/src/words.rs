//! The words of the environment variable `PAGELIFT`, the same as the command line's options.

use address_space::parse_bytes;
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use heap_contract::{HeapWords, WORDS, Wish};
use lift_plan::{Edges, Kind, Kinds, Pages, Policy, WritablePages};

/// What `PAGELIFT` asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// What to lift and from where.
    pub policy: Policy,
    /// The programs to act in, by name or path; `*` and `?` as in a shell.
    pub only: Vec<String>,
    /// The process to act in, by number, whatever its program is called.
    pub pid: Option<u64>,
    /// End the program where anything planned could not be lifted.
    pub require: bool,
    /// The heap is to be on huge pages, which is the part of `libpagelift_heap.so`.
    pub heap: bool,
    /// Say nothing.
    pub quiet: bool,
    /// Say what became of each range.
    pub verbose: bool,
}

/// Reads the words, which blanks separate. Dashes before a word are allowed, as on a command line.
///
/// # Errors
/// The word that is not understood, and what is.
pub fn parse(text: &str) -> Result<Wishes, String> {
    let mut wishes = Wishes::default();
    for word in text.split_whitespace() {
        let word = word.trim_start_matches('-');
        let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        take(&mut wishes, name, value).map_err(|why| format!("PAGELIFT: `{word}`: {why}"))?;
    }
    // Its values are read as that library reads them, so that both take the same for wrong.
    wishes.heap = HeapWords::parse(text).map_err(|why| why.to_string())?.wish != Wish::Off;
    Ok(wishes)
}

fn take(wishes: &mut Wishes, name: &str, value: Option<&str>) -> Result<(), String> {
    let policy = &mut wishes.policy;
    match (name, value) {
        ("require", None) => wishes.require = true,
        ("quiet" | "q", None) => wishes.quiet = true,
        ("verbose" | "v", None) => wishes.verbose = true,
        ("require" | "quiet" | "q" | "verbose" | "v", Some(_)) => return Err("it takes no value".to_owned()),
        ("pages", Some(value)) => {
            policy.pages = one_of(value, [("auto", Pages::Auto), ("hugetlb", Pages::Hugetlb), ("thp", Pages::Thp)])?;
        }
        ("writable-pages", Some(value)) => {
            let known = [("thp", WritablePages::Thp), ("hugetlb", WritablePages::Hugetlb)];
            policy.writable_pages = one_of(value, known)?;
        }
        ("edges", Some(value)) => {
            policy.edges = one_of(value, [("exact", Edges::Exact), ("merge-read-only", Edges::MergeReadOnly)])?;
        }
        ("page-size", Some(value)) => policy.page_size = Some(value.parse().map_err(|e| format!("{e}"))?),
        ("max-memory", Some(value)) => policy.max_memory = Some(parse_bytes(value).map_err(|e| e.to_string())?),
        ("lift", Some(value)) => policy.kinds = kinds(value)?,
        ("objects", Some(value)) => policy.objects = value.parse()?,
        ("heap" | "heap-reserve", Some(_)) => {}
        ("only", Some(value)) => wishes.only.extend(value.split(',').filter(|n| !n.is_empty()).map(ToOwned::to_owned)),
        ("pid", Some(value)) => wishes.pid = Some(value.parse().map_err(|_| "needed a number".to_owned())?),
        (known, None) if WORDS.split(", ").any(|word| word == known) => return Err(format!("write {known}=VALUE")),
        _ => return Err(format!("not known; the words are {WORDS}")),
    }
    Ok(())
}

/// Reads the kinds of memory to lift, separated by commas.
///
/// # Errors
/// The name that is none, and those that are.
pub fn kinds(value: &str) -> Result<Kinds, String> {
    let known = [
        ("text", Kind::Text),
        ("rodata", Kind::Rodata),
        ("data", Kind::Data),
        ("bss", Kind::Bss),
        ("heap", Kind::Heap),
    ];
    let kinds = value.split(',').map(|name| one_of(name, known)).collect::<Result<Vec<_>, _>>()?;
    Ok(Kinds::of(&kinds))
}

fn one_of<T: Copy, const N: usize>(value: &str, known: [(&str, T); N]) -> Result<T, String> {
    let found = known.iter().find(|(name, _)| *name == value).map(|(_, value)| *value);
    found.ok_or_else(|| {
        let names: Vec<_> = known.iter().map(|(name, _)| *name).collect();
        format!("found `{value}`, needed {}", names.join(" or "))
    })
}

/// True where a program with these names, or this number, is one to act in.
pub fn names_this(wishes: &Wishes, names: &[String], pid: u64) -> bool {
    let pattern = |only: &String| names.iter().any(|name| lift_plan::matches(only, name));
    wishes.pid == Some(pid) || wishes.only.iter().any(pattern)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lift_plan::ObjectChoice;

    #[test]
    fn every_word_is_understood() {
        let text = "pages=hugetlb --page-size=2M lift=text,data objects=exe writable-pages=hugetlb \
                    edges=merge-read-only max-memory=1G only=mariadbd,post* pid=12 require quiet verbose";
        let wishes = parse(text).unwrap();
        assert_eq!(wishes.policy.pages, Pages::Hugetlb);
        assert_eq!(wishes.policy.page_size.unwrap().to_string(), "2 MiB");
        assert_eq!(wishes.policy.kinds, Kinds::of(&[Kind::Text, Kind::Data]));
        assert_eq!(wishes.policy.objects, ObjectChoice::Executable);
        assert_eq!(wishes.policy.writable_pages, WritablePages::Hugetlb);
        assert_eq!(wishes.policy.edges, Edges::MergeReadOnly);
        assert_eq!(wishes.policy.max_memory, Some(1 << 30));
        assert_eq!(wishes.only, ["mariadbd", "post*"]);
        assert_eq!((wishes.pid, wishes.require, wishes.quiet, wishes.verbose), (Some(12), true, true, true));
        assert!(!wishes.heap && parse("heap=2M heap-reserve=64M only=a").unwrap().heap);
        assert!(!parse("heap=off").unwrap().heap);
        assert_eq!(parse("  ").unwrap(), Wishes::default());
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (text, expected) in [
            ("pages=huge", "PAGELIFT: `pages=huge`: found `huge`, needed auto or hugetlb or thp"),
            ("pages", "PAGELIFT: `pages`: write pages=VALUE"),
            ("quiet=yes", "PAGELIFT: `quiet=yes`: it takes no value"),
            (
                "lift=text,code",
                "PAGELIFT: `lift=text,code`: found `code`, needed text or rodata or data or bss or heap",
            ),
            ("heap=3M", "PAGELIFT: `heap=3M`: needed auto, thp, off, or a size of pool pages, 2M or 1G for example"),
            ("heap", "PAGELIFT: `heap`: write heap=VALUE"),
            ("pid=x", "PAGELIFT: `pid=x`: needed a number"),
        ] {
            assert_eq!(parse(text).unwrap_err(), expected);
        }
        assert!(parse("page=thp").unwrap_err().starts_with("PAGELIFT: `page=thp`: not known; the words are pages, "));
    }

    #[test]
    fn only_named_programs_are_acted_in() {
        let names = ["python3.11".to_owned(), "/usr/bin/python3.11".to_owned(), "python3".to_owned()];
        let acts = |text: &str| names_this(&parse(text).unwrap(), &names, 7);
        assert!(acts("only=python3") && acts("only=perl,python*") && acts("only=/usr/bin/python3.11") && acts("pid=7"));
        assert!(!acts("") && !acts("only=perl") && !acts("only=python") && !acts("pid=8"));
    }
}
