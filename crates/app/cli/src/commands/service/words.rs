//! The options of `run` and `attach` that `enable` takes, as words again.

use super::lift_args::LiftArgs;
use crate::arguments::policy::words as policy_words;
use crate::arguments::via::ViaArg;
use options::{Choice as _, HeapPages, Numa, Policy, Prepare};
use service_units::{Program, Wanted, Way};

/// The words that differ from the defaults, except `--via`.
pub fn words(args: &LiftArgs, way: Way) -> Vec<String> {
    let usual = policy_words(&Policy::default());
    let mut words: Vec<String> =
        policy_words(&args.policy.policy()).into_iter().filter(|word| !usual.contains(word)).collect();
    if args.prepare != Prepare::default() {
        words.push(format!("--prepare={}", args.prepare.word()));
    }
    words.extend(args.heap.words());
    let flags = [
        (args.calm, "--calm"),
        (args.follow_lifted, "--follow-lifted"),
        (args.require, "--require"),
        (args.quiet, "--quiet"),
        (args.verbose, "--verbose"),
    ];
    words.extend(flags.into_iter().filter(|(given, _)| *given).map(|(_, word)| word.to_owned()));
    if !args.only.is_empty() {
        words.push(format!("--only={}", args.only.join(",")));
    }
    if args.via == Some(ViaArg::Ptrace) && way == Way::Ptrace {
        words.push("--via=ptrace".to_owned());
    }
    words
}

/// The words by which [`LiftArgs`] are read again.
pub fn asked(args: &LiftArgs) -> Vec<String> {
    let mut words = words(args, Way::Ptrace);
    words.extend((args.via == Some(ViaArg::Preload)).then(|| "--via=preload".to_owned()));
    words
}

/// Reads the words of [`asked`].
pub fn parse(asked: &[String]) -> Option<LiftArgs> {
    #[derive(clap::Parser)]
    struct Asked {
        #[command(flatten)]
        lift: LiftArgs,
    }
    let words = std::iter::once("enable").chain(asked.iter().map(String::as_str));
    <Asked as clap::Parser>::try_parse_from(words).ok().map(|asked| asked.lift)
}

/// The requests in the options on which the way depends, with the programs that `--only` names, and the names without a
/// file.
pub fn wanted(args: &LiftArgs, (found, missing): (Vec<Program>, Vec<String>)) -> Wanted {
    let heap = args.heap.heap;
    let for_run = [
        (args.calm, "--calm"),
        (!args.only.is_empty(), "--only"),
        (!matches!(heap, HeapPages::Off | HeapPages::Thp), "--heap but for thp"),
        (args.heap.heap_allocator.is_some(), "--heap-allocator"),
        (args.heap.heap_reserve.is_some(), "--heap-reserve"),
    ];
    let not_silent = [(args.require, "--require"), (args.verbose, "--verbose")];
    let for_ptrace = [(args.follow_lifted, "--follow-lifted"), (args.policy.seal, "--seal")];
    let given = |options: &[(bool, &str)]| -> Vec<String> {
        options.iter().filter(|(given, _)| *given).map(|(_, name)| (*name).to_owned()).collect()
    };
    Wanted {
        via: args.via.map(|via| match via {
            ViaArg::Ptrace => Way::Ptrace,
            ViaArg::Preload => Way::Preload,
        }),
        pages: args.policy.pages,
        only: !args.only.is_empty(),
        found,
        missing,
        heap,
        numa: args.policy.numa.is_some_and(|numa| numa != Numa::Own),
        only_by_ptrace: given(&for_ptrace),
        only_by_run: given(&for_run),
        not_silent: given(&not_silent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_is_read_again() {
        for text in [
            "",
            "--via=preload --pages file+image --lift text",
            "--via=ptrace --heap=2M --heap-reserve 64M --heap-allocator mimalloc --calm --require -v",
            "--only a,b --follow-lifted --prepare never --quiet --numa local --objects exe,lib*",
        ] {
            let given: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
            let args = parse(&given).expect(text);
            let words = asked(&args);
            assert_eq!(asked(&parse(&words).unwrap()), words, "{text}");
            assert_eq!(words.is_empty(), text.is_empty(), "{words:?}");
            assert!(parse(&words).unwrap().via == args.via, "{text}");
        }
    }
}
