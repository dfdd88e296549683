//! Reads the usual forms of `pagelift run` without making the definitions of all its options, which takes 7 to 9 % of a start of
//! `/bin/true`.
//!
//! Other forms, and mistakes, are left to the definition ([`crate::definition::RunCli`]), which also has the messages.
//! A test compares the two for all short command lines.

use crate::arguments::cost::CostArgs;
use crate::arguments::heap::HeapArgs;
use crate::arguments::policy::PolicyArgs;
use crate::arguments::size::size;
use crate::definition::{OutcomeArgs, RunArgs};
use options::{Choice, CostShare, Edges, HeapPages, Kind, Kinds, Pages, Prepare, WritablePages};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// Returns the arguments of the words after `run`, if these are options that [`set`] knows, each at most once, and a
/// command.
pub fn read(words: &[OsString]) -> Option<RunArgs> {
    let mut args = without_options();
    let mut given: Vec<&str> = Vec::new();
    let mut words = words.iter();
    args.command = loop {
        let word = words.next()?;
        let (name, value) = parts(word)?;
        match name {
            "--" if value.is_none() => break words.cloned().collect(),
            _ if !name.starts_with('-') => break std::iter::once(word).chain(words).cloned().collect(),
            _ if given.contains(&name) => return None,
            _ => set(&mut args, name, value, || next(&mut words))?,
        }
        given.push(name);
    };
    // The definition decides whether a later `--` belongs to the command.
    let contradicts = args.outcome.quiet && args.outcome.verbose;
    let is_usual = !contradicts && !args.command.is_empty() && args.command.iter().all(|word| word != "--");
    is_usual.then_some(args)
}

/// Sets one option to the value after its `=` or, without that, to the next word.
fn set<'a>(
    args: &mut RunArgs,
    name: &str,
    value: Option<&'a str>,
    next: impl FnOnce() -> Option<&'a str>,
) -> Option<()> {
    let is_set = match name {
        "-q" | "--quiet" => Some(&mut args.outcome.quiet),
        "-v" | "--verbose" => Some(&mut args.outcome.verbose),
        "--require" => Some(&mut args.require),
        _ => None,
    };
    if let Some(is_set) = is_set {
        return (value.is_none() && !std::mem::replace(is_set, true)).then_some(());
    }
    let value = || value.or_else(next).filter(|value| !value.is_empty());
    match name {
        "--pages" => args.policy.pages = Pages::from_word(value()?).ok()?,
        "--page-size" => args.policy.page_size = Some(value()?.parse().ok()?),
        "--lift" => {
            let kinds = value()?.split(',').map(|word| Kind::usual_from_word(word).map(Kinds::from));
            args.policy.lift = kinds.collect::<Result<_, _>>().ok()?;
        }
        "--objects" => args.policy.objects = Some(value()?.parse().ok()?),
        "--writable-pages" => args.policy.writable_pages = WritablePages::from_word(value()?).ok()?,
        "--edges" => args.policy.edges = Edges::from_word(value()?).ok()?,
        "--start-cost" => args.cost.start_cost = Some(value()?.parse().ok()?),
        "--cost" => args.cost.cost = value()?.parse().ok()?,
        "--prepare" => args.prepare = Prepare::from_word(value()?).ok()?,
        "--heap" => args.heap.heap = value()?.parse().ok()?,
        "--heap-reserve" => args.heap.heap_reserve = Some(size(value()?).ok()?),
        "--report" => args.outcome.report = Some(PathBuf::from(value()?)),
        _ => return None,
    }
    Some(())
}

/// An option and the value after its `=`, or another word. `None` if it is not UTF-8.
fn parts(word: &OsStr) -> Option<(&str, Option<&str>)> {
    let word = word.to_str()?;
    let option = word.split_once('=').filter(|_| word.starts_with("--"));
    Some(option.map_or((word, None), |(name, value)| (name, Some(value))))
}

/// The next word as an option's value, which does not begin like an option.
fn next<'a>(words: &mut std::slice::Iter<'a, OsString>) -> Option<&'a str> {
    words.next()?.to_str().filter(|word| !word.starts_with('-'))
}

fn without_options() -> RunArgs {
    RunArgs {
        policy: PolicyArgs {
            pages: Pages::default(),
            page_size: None,
            lift: Kind::ALL.iter().map(|kind| kind.value).filter(|kind| kind.is_usual()).map(Kinds::from).collect(),
            objects: None,
            writable_pages: WritablePages::default(),
            edges: Edges::default(),
            max_memory: None,
            numa: None,
            seal: false,
        },
        prepare: Prepare::default(),
        cost: CostArgs { start_cost: None, cost: CostShare::default() },
        heap: HeapArgs { heap: HeapPages::default(), heap_reserve: None, heap_allocator: None },
        calm: false,
        fill: false,
        via: None,
        only: Vec::new(),
        each: false,
        follow_lifted: false,
        require: false,
        dry_run: false,
        suppose_pool: false,
        report_if_possible: false,
        argv0: None,
        outcome: OutcomeArgs { report: None, perf_map: false, quiet: false, verbose: false },
        command: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::{Cli, Command, RunCli};
    use clap::Parser;
    use std::os::unix::ffi::OsStringExt;

    const WORDS: &[&str] =
        &["-q", "--verbose", "--", "-", "true", "--=x", "--pages", "--pages=thp", "--heap=2M", "thp", "", "--quiet=1"];
    /// Each option that takes a value, and words that are good values, bad ones, and none.
    const OPTIONS: &[&str] = &[
        "--pages",
        "--page-size",
        "--lift",
        "--objects",
        "--writable-pages",
        "--edges",
        "--prepare",
        "--start-cost",
        "--cost",
        "--heap",
        "--heap-reserve",
        "--report",
    ];
    const VALUES: &[&str] = &[
        "-x",
        "thp",
        "hugetlb",
        "2M",
        "2MiB",
        "3M",
        "0",
        "1.5G",
        "5ms",
        "0.5%",
        "any",
        "text",
        "text,rodata",
        "text,",
        ",",
        "exe",
        "exe,libc*",
        "a=b",
        "=",
        "never",
        "exact",
        "merge-read-only",
        "off",
        "auto",
        "-",
        "-1",
        "--",
        "--quiet",
        "",
        " ",
        "/tmp/a b",
        "THP",
    ];

    fn by_definition(words: &[OsString]) -> Option<RunArgs> {
        let name = OsString::from("run");
        match RunCli::try_parse_from(std::iter::once(&name).chain(words)).map(Cli::from) {
            Ok(Cli { command: Command::Run(args) }) => Some(args),
            _ => None,
        }
    }

    /// The result equals the definition's.
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
    fn options_with_values_are_read_as_by_the_definition() {
        let mut read: Vec<&str> = Vec::new();
        for option in OPTIONS {
            for value in VALUES {
                let behind = format!("{option}={value}");
                let lines: [&[&str]; 5] = [
                    &[option, value, "true"],
                    &[&behind, "true"],
                    &[&behind, "--require", "--", "true"],
                    &["--require", option, value, "-q", "--", "true", value],
                    &[&behind, option, value, "true"],
                ];
                for line in lines {
                    if compare(&line.iter().map(OsString::from).collect::<Vec<_>>()) {
                        read.push(option);
                    }
                }
            }
        }
        assert!(OPTIONS.iter().all(|option| read.contains(option)), "{read:?}");
    }

    #[test]
    fn the_usual_forms_need_no_definition() {
        for line in [
            "true",
            "-q -- git --version",
            "--pages file ls -l --color=auto",
            "--heap=thp --pages=auto -v -- redis-server",
            "-q --pages file --prepare never --lift text,rodata -- git --version",
            "-q --report lift.json --lift text,rodata,data --objects exe --pages hugetlb --writable-pages hugetlb true",
            "--heap=1G --heap-reserve 3G --require -- redis-server",
        ] {
            assert!(compare(&line.split(' ').map(OsString::from).collect::<Vec<_>>()), "{line}");
        }
        let other = OsString::from_vec(vec![b'a', 0xff]);
        assert!(compare(&["--".into(), other.clone()]) && !compare(&[other]));
    }
}
