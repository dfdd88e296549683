//! The memory to lift, and its source: options that all planning commands share.

use super::heap::size_word;
use super::size::size;
use address_space::PageSize;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Arg, Args};
use options::{Choice, Edges, Kind, Kinds, Numa, ObjectChoice, Pages, Policy, WritablePages};

/// Reads one of the words of an option, all of which the help shows.
pub fn choice<T: Choice + Send + Sync>() -> impl TypedValueParser<Value = T> {
    let shown = T::ALL.iter().map(|named| PossibleValue::new(named.word).help(named.help.trim_end_matches('.')));
    PossibleValuesParser::new(shown).try_map(|word| T::from_word(&word))
}

/// The word of `--lift` for all kinds.
const ALL_KINDS: &str = "all";

/// Adds the kinds of memory that running processes have besides objects to the values of `--lift`.
pub fn with_running(lift: Arg) -> Arg {
    let all = PossibleValue::new(ALL_KINDS).help("All of these");
    lift.value_parser(kinds(shown_kinds(|_| true).chain([all])))
}

/// Reads one of the kinds that a program has at its start.
fn usual_kinds() -> impl TypedValueParser<Value = Kinds> {
    kinds(shown_kinds(Kind::is_usual))
}

fn shown_kinds(which: impl Fn(Kind) -> bool) -> impl Iterator<Item = PossibleValue> {
    let shown = Kind::ALL.iter().filter(move |named| which(named.value));
    shown.map(|named| PossibleValue::new(named.word).help(named.help.trim_end_matches('.')))
}

fn kinds(shown: impl Iterator<Item = PossibleValue>) -> impl TypedValueParser<Value = Kinds> {
    PossibleValuesParser::new(shown).try_map(|word| match word.as_str() {
        ALL_KINDS => Ok(Kinds::ALL),
        word => Kind::from_word(word).map(Kinds::from),
    })
}

/// What to lift and from where; common to all commands that plan.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct PolicyArgs {
    /// Source of huge pages.
    #[arg(long, value_parser = choice::<Pages>(), default_value = "auto")]
    pub pages: Pages,
    /// Size of huge pages, 2M or 1G for example [default: the machine's usual one].
    #[arg(long, value_name = "SIZE")]
    pub page_size: Option<PageSize>,
    /// Kinds of memory to lift.
    #[arg(long, value_parser = usual_kinds(), value_delimiter = ',', value_name = "KINDS", default_value = "text,rodata,data,bss,heap")]
    pub lift: Vec<Kinds>,
    /// Objects to lift: exe, all, or patterns for their names separated by commas [default: the executable and every
    /// object that holds at least one whole huge page].
    #[arg(long, value_name = "OBJECTS")]
    pub objects: Option<ObjectChoice>,
    /// Source of huge pages for writable memory.
    #[arg(long, value_parser = choice::<WritablePages>(), default_value = "thp")]
    pub writable_pages: WritablePages,
    /// Treatment of huge pages that contain both read-only data and code.
    #[arg(long, value_parser = choice::<Edges>(), default_value = "exact")]
    pub edges: Edges,
    /// Maximum memory that the lift may make resident.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max_memory: Option<u64>,
    /// NUMA nodes of the pages that the lift fills: `local` (the node of the CPU on which the program runs),
    /// `interleave` (all nodes of its cpuset in turn), or `node=NUMBER` [default: by the program's own memory policy
    /// and cpuset]
    #[arg(long, value_name = "NODES")]
    pub numa: Option<Numa>,
    /// Seal copies of code and read-only data, so that nothing discards, unmaps or protects them any more (Linux 6.10).
    /// Sealed memory cannot be detached.
    #[arg(long)]
    pub seal: bool,
}

impl PolicyArgs {
    /// The policy of the arguments.
    pub fn policy(&self) -> Policy {
        Policy {
            pages: self.pages,
            page_size: self.page_size,
            kinds: self.lift.iter().fold(Kinds::of(&[]), |all, kinds| all.and(*kinds)),
            objects: self.objects.clone().unwrap_or_default(),
            writable_pages: self.writable_pages,
            edges: self.edges,
            max_memory: self.max_memory,
            numa: self.numa.unwrap_or_default(),
            seal: self.seal,
        }
    }
}

/// The words by which `pagelift run` and `pagelift attach` read this policy.
pub fn words(policy: &Policy) -> Vec<String> {
    let kinds = Kind::ALL.iter().filter(|kind| policy.kinds.contains(kind.value)).map(|kind| kind.word);
    let mut words = Vec::from([
        format!("--pages={}", policy.pages.word()),
        format!("--lift={}", kinds.collect::<Vec<_>>().join(",")),
        format!("--writable-pages={}", policy.writable_pages.word()),
        format!("--edges={}", policy.edges.word()),
    ]);
    words.extend(policy.page_size.map(|size| format!("--page-size={}", size.word())));
    words.extend(policy.max_memory.map(|bytes| format!("--max-memory={}", size_word(bytes))));
    let numa = policy.numa.to_string();
    words.extend((!numa.is_empty()).then(|| format!("--numa={numa}")));
    let objects = policy.objects.to_string();
    words.extend((!objects.is_empty()).then(|| format!("--objects={objects}")));
    words.extend(policy.seal.then(|| "--seal".to_owned()));
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        policy: PolicyArgs,
    }

    fn parse(words: &[String]) -> Policy {
        Only::try_parse_from([&["pagelift".to_owned()], words].concat()).unwrap().policy.policy()
    }

    #[test]
    fn words_say_the_policy_again() {
        let texts = [
            "",
            "--pages thp --lift text,data --seal",
            "--pages image --page-size 1G --max-memory 300M --edges merge-read-only",
            "--pages hugetlb --writable-pages hugetlb --objects exe,libc*",
            "--pages hugetlb --numa node=1",
            "--numa local",
        ];
        for text in texts {
            let policy = parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
            assert_eq!(parse(&words(&policy)), policy, "{text}");
        }
    }
}
