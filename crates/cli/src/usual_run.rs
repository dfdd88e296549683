//! Reads the usual forms of `pagelift run` without making the definitions of all its options, which takes 7 to 9 % of a start of
//! `/bin/true`.
//!
//! What is not one of these forms, or is a mistake, is left to the definition ([`crate::definition::RunCli`]), which also has
//! the messages. A test compares the two for all short command lines.

use crate::arguments::heap::HeapArgs;
use crate::arguments::policy::PolicyArgs;
use crate::definition::{OutcomeArgs, RunArgs};
use options::{Choice, Edges, HeapPages, Kind, Pages, Prepare, WritablePages};
use std::ffi::{OsStr, OsString};

/// Returns what the words behind `run` ask for, where they are `-q`, `-v`, `--pages` and `--heap`, each at most once, and a
/// command.
pub fn read(words: &[OsString]) -> Option<RunArgs> {
    let (mut pages, mut heap, mut quiet, mut verbose) = (None, None, false, false);
    let mut words = words.iter();
    let command: Vec<OsString> = loop {
        let word = words.next()?;
        let (name, value) = parts(word)?;
        match (name, value) {
            ("-q" | "--quiet", None) if !quiet => quiet = true,
            ("-v" | "--verbose", None) if !verbose => verbose = true,
            ("--pages", _) if pages.is_none() => {
                pages = Some(Pages::from_word(value.or_else(|| next(&mut words))?).ok()?)
            }
            ("--heap", _) if heap.is_none() => {
                heap = Some(value.or_else(|| next(&mut words))?.parse::<HeapPages>().ok()?)
            }
            ("--", None) => break words.cloned().collect(),
            _ if name.starts_with('-') => return None,
            _ => break std::iter::once(word).chain(words).cloned().collect(),
        }
    };
    // Whether a later `--` is one of the command's words is for the definition to say.
    let is_usual = !(quiet && verbose || command.is_empty() || command.iter().any(|word| word == "--"));
    is_usual.then(|| arguments(pages, heap, (quiet, verbose), command))
}

/// An option and the value that is written behind its `=`, or another word. `None` where it is not UTF-8.
fn parts(word: &OsStr) -> Option<(&str, Option<&str>)> {
    let word = word.to_str()?;
    let option = word.split_once('=').filter(|_| word.starts_with("--"));
    Some(option.map_or((word, None), |(name, value)| (name, Some(value))))
}

fn next<'a>(words: &mut std::slice::Iter<'a, OsString>) -> Option<&'a str> {
    words.next()?.to_str()
}

fn arguments(
    pages: Option<Pages>,
    heap: Option<HeapPages>,
    (quiet, verbose): (bool, bool),
    command: Vec<OsString>,
) -> RunArgs {
    RunArgs {
        policy: PolicyArgs {
            pages: pages.unwrap_or_default(),
            page_size: None,
            lift: Kind::ALL.iter().map(|kind| kind.value).collect(),
            objects: None,
            writable_pages: WritablePages::default(),
            edges: Edges::default(),
            max_memory: None,
            numa: None,
            seal: false,
        },
        prepare: Prepare::default(),
        heap: HeapArgs { heap: heap.unwrap_or_default(), heap_reserve: None, heap_allocator: None },
        calm: false,
        via: None,
        only: Vec::new(),
        follow_lifted: false,
        require: false,
        dry_run: false,
        suppose_pool: false,
        report_if_possible: false,
        argv0: None,
        outcome: OutcomeArgs { report: None, perf_map: false, quiet, verbose },
        command,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::{Cli, Command, RunCli};
    use clap::Parser;
    use std::os::unix::ffi::OsStringExt;

    const WORDS: &[&str] =
        &["-q", "--verbose", "--", "-", "true", "-x", "--pages", "--pages=thp", "--heap=2M", "thp", "", "--quiet=1"];

    fn by_definition(words: &[OsString]) -> Option<RunArgs> {
        let name = OsString::from("run");
        match RunCli::try_parse_from(std::iter::once(&name).chain(words)).map(Cli::from) {
            Ok(Cli { command: Command::Run(args) }) => Some(args),
            _ => None,
        }
    }

    /// What is read is what the definition reads.
    fn compare(words: &[OsString]) -> bool {
        let read = read(words);
        if let Some(args) = &read {
            assert_eq!(Some(args), by_definition(words).as_ref(), "{words:?}");
        }
        read.is_some()
    }

    #[test]
    fn all_short_command_lines_are_read_as_by_the_definition() {
        let mut read = 0;
        let mut lines: Vec<Vec<OsString>> = vec![Vec::new()];
        for _ in 0..4 {
            lines = lines
                .iter()
                .flat_map(|line| WORDS.iter().map(|word| [&line[..], &[(*word).into()]].concat()))
                .collect();
            read += lines.iter().filter(|line| compare(line)).count();
        }
        assert!(read > 1000, "{read} were read");
    }

    #[test]
    fn the_usual_forms_need_no_definition() {
        for line in [
            "true",
            "-q -- git --version",
            "--pages file ls -l --color=auto",
            "--heap=thp --pages=auto -v -- redis-server",
        ] {
            assert!(compare(&line.split(' ').map(OsString::from).collect::<Vec<_>>()), "{line}");
        }
        let other = OsString::from_vec(vec![b'a', 0xff]);
        assert!(compare(&["--".into(), other.clone()]) && !compare(&[other]));
    }
}
