//! The environment variable `PAGELIFT`: the same words as the command line's options.

use crate::choices::Choice;
use crate::heap::{HeapPages, HeapWords};
use crate::names::matches;
use crate::words::{WORDS, is_word, words};
use crate::{Edges, Kind, Kinds, Pages, Policy, WritablePages};
use address_space::parse_size;
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// The variable's name.
pub const VARIABLE: &str = "PAGELIFT";

/// The requests in the variable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Variable {
    /// The memory to lift, and the source of its pages.
    pub policy: Policy,
    /// The programs to act in, by name or path; `*` and `?` as in a shell.
    pub only: Vec<String>,
    /// The process to act in, by number, whatever its program is called.
    pub pid: Option<u64>,
    /// End the program where anything planned could not be lifted.
    pub require: bool,
    /// The pages of the heap, which are the part of `libpagelift_heap.so`.
    pub heap: HeapPages,
    /// Say nothing.
    pub quiet: bool,
    /// Say what became of each range.
    pub verbose: bool,
}

impl Variable {
    /// Reads the words, which blanks separate.
    ///
    /// # Errors
    /// The word that is not understood, and what is.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut variable = Self::default();
        for (word, name, value) in words(text) {
            variable.take(name, value).map_err(|why| format!("{VARIABLE}: `{word}`: {why}"))?;
        }
        // Its values are read as the heap's library reads them, so that both take the same for wrong.
        variable.heap = HeapWords::parse(text).map_err(|why| why.to_string())?.pages;
        Ok(variable)
    }

    fn take(&mut self, name: &str, value: Option<&str>) -> Result<(), String> {
        let policy = &mut self.policy;
        match (name, value) {
            ("require", None) => self.require = true,
            ("quiet" | "q", None) => self.quiet = true,
            ("verbose" | "v", None) => self.verbose = true,
            ("require" | "quiet" | "q" | "verbose" | "v", Some(_)) => return Err("it takes no value".to_owned()),
            // Shared images cannot be mapped from inside.
            ("pages", Some(value)) => match Pages::from_word(value) {
                Ok(pages) if !needs_a_helper(pages) => policy.pages = pages,
                _ => return Err(format!("found `{value}`, needed auto or file or hugetlb or thp")),
            },
            ("writable-pages", Some(value)) => policy.writable_pages = WritablePages::from_word(value)?,
            ("edges", Some(value)) => policy.edges = Edges::from_word(value)?,
            ("page-size", Some(value)) => policy.page_size = Some(value.parse().map_err(|e| format!("{e}"))?),
            ("max-memory", Some(value)) => policy.max_memory = Some(parse_size(value).map_err(|e| e.to_string())?),
            ("numa", Some(value)) => policy.numa = value.parse()?,
            ("lift", Some(value)) => policy.kinds = Kinds::parse_usual(value)?,
            ("objects", Some(value)) => policy.objects = value.parse()?,
            ("heap" | "heap-reserve", Some(_)) => {}
            ("only", Some(value)) => {
                self.only.extend(value.split(',').filter(|n| !n.is_empty()).map(ToOwned::to_owned));
            }
            ("pid", Some(value)) => self.pid = Some(value.parse().map_err(|_| "needed a number".to_owned())?),
            (known, None) if is_word(known) => return Err(format!("write {known}=VALUE")),
            _ => return Err(format!("not known; the words are {WORDS}")),
        }
        Ok(())
    }

    /// True if a program with these names, or this number, is to be lifted.
    pub fn names(&self, names: &[String], pid: u64) -> bool {
        let pattern = |only: &String| names.iter().any(|name| matches(only, name));
        self.pid == Some(pid) || self.only.iter().any(pattern)
    }

    /// The words that [`Variable::parse`] reads as this value, except those for the heap.
    ///
    /// # Errors
    /// Why it has none: what only `pagelift` itself can do, or a name with blanks in it.
    pub fn to_words(&self) -> Result<String, String> {
        let mut words = policy_words(&self.policy)?;
        words.extend(self.pid.map(|pid| format!("pid={pid}")));
        if !self.only.is_empty() {
            words.push(format!("only={}", self.only.join(",")));
        }
        let flags = [(self.require, "require"), (self.quiet, "quiet"), (self.verbose, "verbose")];
        words.extend(flags.into_iter().filter(|(given, _)| *given).map(|(_, word)| word.to_owned()));
        if words.iter().any(|word| word.contains(char::is_whitespace)) {
            return Err("names with blanks in them need --via ptrace".to_owned());
        }
        Ok(words.join(" "))
    }
}

/// True for sources that are not mapped from inside: images.
fn needs_a_helper(pages: Pages) -> bool {
    matches!(pages, Pages::Image | Pages::FileThenImage)
}

fn policy_words(policy: &Policy) -> Result<Vec<String>, String> {
    if needs_a_helper(policy.pages) {
        return Err(format!("--pages {} needs --via ptrace", policy.pages.word()));
    }
    if policy.seal {
        return Err("--seal needs --via ptrace".to_owned());
    }
    let kinds = Kind::ALL.iter().filter(|kind| policy.kinds.contains(kind.value)).map(|kind| kind.word);
    let mut words = Vec::from([
        format!("lift={}", kinds.collect::<Vec<_>>().join(",")),
        format!("pages={}", policy.pages.word()),
        format!("writable-pages={}", policy.writable_pages.word()),
        format!("edges={}", policy.edges.word()),
    ]);
    words.extend(policy.page_size.map(|size| format!("page-size={}", size.bytes())));
    words.extend(policy.max_memory.map(|bytes| format!("max-memory={bytes}b")));
    let numa = policy.numa.to_string();
    words.extend((!numa.is_empty()).then(|| format!("numa={numa}")));
    let objects = policy.objects.to_string();
    words.extend((!objects.is_empty()).then(|| format!("objects={objects}")));
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Numa, ObjectChoice};
    use proptest::prelude::*;

    #[test]
    fn every_word_is_understood() {
        let text = "pages=hugetlb --page-size=2M lift=text,data objects=exe writable-pages=hugetlb \
                    edges=merge-read-only max-memory=1G numa=node=3 only=mariadbd,post* pid=12 require quiet verbose";
        let variable = Variable::parse(text).unwrap();
        assert_eq!(variable.policy.pages, Pages::Hugetlb);
        assert_eq!(variable.policy.page_size.unwrap().to_string(), "2 MiB");
        assert_eq!(variable.policy.kinds, Kinds::of(&[Kind::Text, Kind::Data]));
        assert_eq!(variable.policy.objects, ObjectChoice::Executable);
        assert_eq!(variable.policy.writable_pages, WritablePages::Hugetlb);
        assert_eq!(variable.policy.edges, Edges::MergeReadOnly);
        assert_eq!(variable.policy.max_memory, Some(1 << 30));
        assert_eq!(variable.policy.numa, Numa::Node(3));
        assert_eq!(variable.only, ["mariadbd", "post*"]);
        assert_eq!((variable.pid, variable.require, variable.quiet, variable.verbose), (Some(12), true, true, true));
        assert_eq!(variable.heap, HeapPages::Off);
        assert_eq!(Variable::parse("heap=auto heap-reserve=64M only=a").unwrap().heap, HeapPages::Auto);
        assert_eq!(Variable::parse("  ").unwrap(), Variable::default());
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (text, expected) in [
            ("pages=huge", "PAGELIFT: `pages=huge`: found `huge`, needed auto or file or hugetlb or thp"),
            ("pages=image", "PAGELIFT: `pages=image`: found `image`, needed auto or file or hugetlb or thp"),
            (
                "pages=file+image",
                "PAGELIFT: `pages=file+image`: found `file+image`, needed auto or file or hugetlb or thp",
            ),
            ("pages", "PAGELIFT: `pages`: write pages=VALUE"),
            ("quiet=yes", "PAGELIFT: `quiet=yes`: it takes no value"),
            (
                "lift=text,code",
                "PAGELIFT: `lift=text,code`: found `code`, needed text or rodata or data or bss or heap",
            ),
            ("heap=3M", "PAGELIFT: `heap=3M`: needed auto, off, thp, or a size of pool pages, 2M or 1G for example"),
            ("heap", "PAGELIFT: `heap`: write heap=VALUE"),
            ("heap=2M heap-reserve=64", "PAGELIFT: `heap-reserve=64`: needed a size, 64M or 2G for example"),
            (
                "max-memory=64",
                "PAGELIFT: `max-memory=64`: found `64`, which is in bytes without a unit, needed a size such as 64M or 64G",
            ),
            (
                "page-size=2",
                "PAGELIFT: `page-size=2`: found `2`, less than any page (4096 bytes), needed a page size such as 2M or 1G",
            ),
            ("numa=1", "PAGELIFT: `numa=1`: found `1`, needed local or interleave or node=NUMBER"),
            ("pid=x", "PAGELIFT: `pid=x`: needed a number"),
        ] {
            assert_eq!(Variable::parse(text).unwrap_err(), expected);
        }
        // Without a value, too: `write page=VALUE` would lead to the next error.
        for word in ["page=thp", "page"] {
            let says = Variable::parse(word).unwrap_err();
            assert!(says.starts_with(&format!("PAGELIFT: `{word}`: not known; the words are pages, ")), "{says}");
        }
    }

    #[test]
    fn only_named_programs_are_acted_in() {
        let names = ["python3.11".to_owned(), "/usr/bin/python3.11".to_owned(), "python3".to_owned()];
        let acts = |text: &str| Variable::parse(text).unwrap().names(&names, 7);
        assert!(acts("only=python3") && acts("only=perl,python*") && acts("only=/usr/bin/python3.11") && acts("pid=7"));
        assert!(!acts("") && !acts("only=perl") && !acts("only=python") && !acts("pid=8"));
    }

    #[test]
    fn what_only_a_helper_can_do_has_no_words() {
        let refused = |policy: Policy| Variable { policy, ..Variable::default() }.to_words().unwrap_err();
        assert_eq!(refused(Policy { pages: Pages::Image, ..Policy::default() }), "--pages image needs --via ptrace");
        let both = Policy { pages: Pages::FileThenImage, ..Policy::default() };
        assert_eq!(refused(both), "--pages file+image needs --via ptrace");
        assert_eq!(refused(Policy { seal: true, ..Policy::default() }), "--seal needs --via ptrace");
        let only = Vec::from(["a program".to_owned()]);
        let with_blank = Variable { only, ..Variable::default() };
        assert_eq!(with_blank.to_words().unwrap_err(), "names with blanks in them need --via ptrace");
    }

    fn choice<T: Choice + std::fmt::Debug>() -> impl Strategy<Value = T> {
        (0..T::ALL.len()).prop_map(|index| T::ALL[index].value)
    }

    fn objects() -> impl Strategy<Value = ObjectChoice> {
        let patterns = proptest::collection::vec("[a-z*?./-]{1,8}", 1..4)
            .prop_filter("words of their own", |names| !["exe", "all"].contains(&names.join(",").as_str()));
        prop_oneof![
            Just(ObjectChoice::WorthIt),
            Just(ObjectChoice::Executable),
            Just(ObjectChoice::All),
            patterns.prop_map(ObjectChoice::Matching),
        ]
    }

    fn policy() -> impl Strategy<Value = Policy> {
        let pages = choice::<Pages>().prop_filter("not from inside", |pages| !needs_a_helper(*pages));
        let usual = choice::<Kind>().prop_filter("only from outside", |kind| kind.is_usual());
        let kinds = proptest::collection::vec(usual, 1..6).prop_map(|kinds| Kinds::of(&kinds));
        let size = proptest::option::of((12u32..31).prop_map(|log2| address_space::PageSize::new(1 << log2).unwrap()));
        let memory = proptest::option::of(any::<u64>());
        let numa =
            prop_oneof![Just(Numa::Own), Just(Numa::Local), Just(Numa::Interleave), any::<u32>().prop_map(Numa::Node)];
        (pages, size, kinds, objects(), choice(), choice(), memory, numa).prop_map(
            |(pages, page_size, kinds, objects, writable_pages, edges, max_memory, numa)| Policy {
                pages,
                page_size,
                kinds,
                objects,
                writable_pages,
                edges,
                max_memory,
                numa,
                seal: false,
            },
        )
    }

    proptest! {
        #[test]
        fn words_say_what_was_meant(
            policy in policy(),
            only in proptest::collection::vec("[a-z*/.]{1,8}", 0..3),
            pid in proptest::option::of(any::<u64>()),
            (require, quiet, verbose) in any::<(bool, bool, bool)>(),
        ) {
            let variable = Variable { policy, only, pid, require, heap: HeapPages::Off, quiet, verbose };
            prop_assert_eq!(Variable::parse(&variable.to_words().unwrap()), Ok(variable));
        }
    }
}
