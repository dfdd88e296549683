//! Behaviour of each command with files and processes of other users. The table has every argument of the command
//! line's definition that takes a value: the run fails until a new argument is added here.

use clap::{ArgAction, CommandFactory};
use std::collections::BTreeSet;

/// Kind of thing that the value of an argument names.
#[derive(Clone, Copy, Debug)]
pub enum Value {
    /// The number of a process.
    Process,
    /// The name of a program that processes run.
    Name,
    /// A file that is read.
    File,
    /// A program that is read.
    Program,
    /// A program that is started.
    Started,
    /// A file that is written.
    Written,
    /// Nothing of other users.
    Own,
}

/// The run of a command with a value. `{}` is replaced by the value, `{pid}` by a process of another user, `{folder}`
/// by a folder of the test.
pub struct Use {
    pub command: &'static str,
    pub argument: &'static str,
    pub value: Value,
    pub words: &'static [&'static str],
}

const fn row(command: &'static str, argument: &'static str, value: Value, words: &'static [&'static str]) -> Use {
    Use { command, argument, value, words }
}

/// An argument whose value names no file or process of other users; `_why` is the reason, for readers of the table.
const fn own(command: &'static str, argument: &'static str, _why: &'static str) -> Use {
    row(command, argument, Value::Own, &[])
}

const WORDS: &str = "words that the caller has typed, which are compared and not opened";
const CALLERS: &str = "a command of the caller";
const ROOTS: &str = "a place of root's";

/// Every argument whose value could name a file or process of other users.
pub const USES: &[Use] = &[
    own("run", "only", WORDS),
    own("run", "argv0", WORDS),
    row("run", "report", Value::Written, &["--report", "{}", "--", "true"]),
    row("run", "command", Value::Started, &["--verbose", "--", "{}"]),
    row("attach", "pid", Value::Process, &["--verbose", "{}"]),
    row("attach", "pid", Value::Process, &["--dry-run", "{}"]),
    row("attach", "pid", Value::Process, &["--lift", "shared", "{}"]),
    row("attach", "pid", Value::Process, &["--lift", "anon,jit", "{}"]),
    row("attach", "all", Value::Name, &["--all", "{}"]),
    own("attach", "unit", "a unit that root has installed"),
    row("attach", "report", Value::Written, &["--report", "{}", "{pid}"]),
    row("detach", "pid", Value::Process, &["{}"]),
    row("detach", "all", Value::Name, &["--all", "{}"]),
    row("inspect", "target", Value::Process, &["{}"]),
    row("inspect", "target", Value::Process, &["--used", "{}"]),
    row("inspect", "target", Value::Process, &["--lift", "shared", "{}"]),
    row("inspect", "target", Value::Process, &["--lift", "anon,jit", "{}"]),
    row("inspect", "target", Value::File, &["{}"]),
    row("doctor", "pid", Value::Process, &["--all", "{}"]),
    row("doctor", "command", Value::Program, &["--", "{}"]),
    row("status", "pid", Value::Process, &["{}"]),
    row("perf-map", "pid", Value::Process, &["{}"]),
    own("image setup", "store", ROOTS),
    own("image setup", "unit_folder", ROOTS),
    own("image setup", "fstab", ROOTS),
    own("image add", "store", ROOTS),
    row("image add", "files", Value::File, &["{}"]),
    own("image list", "store", ROOTS),
    own("image remove", "store", ROOTS),
    row("image remove", "files", Value::File, &["{}"]),
    own("image gc", "store", ROOTS),
    own("bench", "only", WORDS),
    own("bench", "against", CALLERS),
    row("bench", "toggle", Value::Process, &["--for", "1s", "--toggle", "{}"]),
    own("bench", "server", CALLERS),
    own("bench", "load", CALLERS),
    own("bench", "prepare", CALLERS),
    own("bench", "ready", CALLERS),
    own("bench", "fill", CALLERS),
    row("bench", "output", Value::Written, &["--for", "1s", "--output", "{}", "--", "true"]),
    row("bench", "from", Value::File, &["--from", "{}"]),
    own("bench", "command", CALLERS),
    row("report", "output", Value::Written, &["--output", "{}", "{record}"]),
    row("report", "files", Value::File, &["--markdown", "{}"]),
    row("measure-lift", "pid", Value::Process, &["--for", "1s", "{}"]),
    row("stat", "pid", Value::Process, &["--for", "200ms", "--pid", "{}"]),
    row("stat", "output", Value::Written, &["--for", "200ms", "--pid", "{pid}", "--output", "{}"]),
    own("stat", "only", WORDS),
    own("stat", "command", CALLERS),
    row("shootdowns", "pid", Value::Process, &["--for", "1", "--pid", "{}"]),
    row("shootdowns", "process", Value::Name, &["--for", "1", "{}"]),
    row("estimate", "pid", Value::Process, &["--pid", "{}"]),
    own("estimate", "command", CALLERS),
    row("demo", "json", Value::Written, &["--for", "2s", "--json", "{}"]),
    own("cache prepare", "package", WORDS),
    row("cache prepare", "running", Value::Name, &["--running", "{}"]),
    row("cache prepare", "files", Value::File, &["{}"]),
    row("cache keep", "config", Value::File, &["--once", "--config", "{}"]),
    row("cache drop", "files", Value::File, &["{}"]),
    row("cache status", "files", Value::File, &["{}"]),
    row("align", "files", Value::File, &["--check", "{}"]),
    row("align", "files", Value::File, &["--relayout", "--check", "{}"]),
    own("align", "root", ROOTS),
    own("align", "output", "a name in a folder of the caller; a link there is replaced and not followed"),
    own("pool plan", "name", WORDS),
    own("pool plan", "root", ROOTS),
    row("pool plan", "target", Value::Process, &["{}"]),
    row("pool plan", "target", Value::File, &["{}"]),
    row("pool plan", "command", Value::Started, &["--", "{}"]),
    own("pool reserve", "record", WORDS),
    own("pool reserve", "name", WORDS),
    own("pool reserve", "command", CALLERS),
    own("pool release", "record", WORDS),
    own("enable", "only", WORDS),
    own("enable", "unit", "a unit that root has installed"),
    own("disable", "unit", "a unit that root has installed"),
    row("agent explain", "pid", Value::Process, &["{}"]),
    own("agent run", "config", ROOTS),
    own("agent run", "metrics", ROOTS),
    own("agent run", "textfile", ROOTS),
    own("agent run", "verdicts", ROOTS),
    own("agent run", "state", ROOTS),
    own("agent run", "switch", ROOTS),
    own("agent check", "config", ROOTS),
    own("agent check", "state", ROOTS),
    own("agent check", "switch", ROOTS),
    own("agent explain", "config", ROOTS),
    own("agent explain", "state", ROOTS),
    own("agent explain", "switch", ROOTS),
    own("agent explain", "verdicts", ROOTS),
    own("agent status", "config", ROOTS),
    own("agent status", "state", ROOTS),
    own("agent status", "switch", ROOTS),
    own("agent stop", "config", ROOTS),
    own("agent stop", "state", ROOTS),
    own("agent stop", "switch", ROOTS),
    row("agent verdicts import", "file", Value::File, &["--verdicts", "{folder}", "{}"]),
    row("agent verdicts measure", "pid", Value::Process, &["--verdicts", "{folder}", "--for", "1s", "{}"]),
    own("agent verdicts measure", "verdicts", ROOTS),
    own("agent verdicts measure", "config", ROOTS),
    own("agent verdicts measure", "state", ROOTS),
    own("agent verdicts measure", "switch", ROOTS),
    own("agent verdicts forget", "program", WORDS),
    own("agent verdicts export", "verdicts", ROOTS),
    own("agent verdicts export", "config", ROOTS),
    own("agent verdicts export", "state", ROOTS),
    own("agent verdicts export", "switch", ROOTS),
    own("agent verdicts import", "verdicts", ROOTS),
    own("agent verdicts import", "config", ROOTS),
    own("agent verdicts import", "state", ROOTS),
    own("agent verdicts import", "switch", ROOTS),
    own("agent verdicts forget", "verdicts", ROOTS),
    own("agent verdicts forget", "config", ROOTS),
    own("agent verdicts forget", "state", ROOTS),
    own("agent verdicts forget", "switch", ROOTS),
    own("agent worker", "config", ROOTS),
    own("agent worker", "state", ROOTS),
    own("agent worker", "switch", ROOTS),
    own("generate man", "directory", ROOTS),
    own("generate completions", "directory", ROOTS),
];

/// Behaviour of a command without arguments.
#[derive(Clone, Copy, Debug)]
pub enum Alone {
    /// It reads all processes or files if it has these words.
    LooksAround(&'static [&'static str]),
    /// It reads no file or process of other users.
    LooksAtNothing,
}

/// Every command that has no argument of [`USES`], or reads all processes or files without it.
pub const ALONE: &[(&str, Alone)] = &[
    ("status", Alone::LooksAround(&[])),
    ("doctor", Alone::LooksAround(&[])),
    ("image list", Alone::LooksAround(&[])),
    ("shootdowns", Alone::LooksAround(&["--for", "1"])),
    ("stat", Alone::LooksAround(&["--for", "200ms"])),
    ("cache status", Alone::LooksAround(&[])),
    ("pool show", Alone::LooksAround(&[])),
    ("enabled", Alone::LooksAround(&[])),
    ("probe", Alone::LooksAtNothing),
    ("pool demote", Alone::LooksAtNothing),
    ("pool overcommit", Alone::LooksAtNothing),
];

/// Names of values that name no file or process: numbers, sizes, words that are compared.
const PLAIN: &[&str] = &[
    "SIZE",
    "OBJECTS",
    "NODES",
    "NODE",
    "HOW",
    "SECONDS",
    "MS",
    "MILLISECONDS",
    "NUMBER",
    "DAYS",
    "COUNT",
    "PAGES",
    "TIME",
    "PERCENT",
    "REGEX",
    "N",
    "BYTES",
    "MODE",
    "WORK",
    "SIZE:COUNT[@NODE]",
    "SIZE:COUNT",
    "ON",
    "OFF",
];

/// A command of the command line's definition.
pub struct Leaf {
    /// Its words.
    pub name: String,
    /// Its arguments whose values could name files or processes of other users.
    pub arguments: Vec<String>,
    /// It has `--json`.
    pub has_json: bool,
}

/// The commands without subcommands.
pub fn leaves() -> Vec<Leaf> {
    let mut root = cli::definition::Cli::command();
    root.build();
    let mut found = Vec::new();
    collect(&root, "", &mut found);
    found
}

fn collect(command: &clap::Command, before: &str, found: &mut Vec<Leaf>) {
    let below: Vec<_> = command.get_subcommands().filter(|command| command.get_name() != "help").collect();
    for command in &below {
        let name = format!("{before} {}", command.get_name());
        collect(command, name.trim_start(), found);
    }
    if below.is_empty() {
        let leads = |argument: &&clap::Arg| {
            let names = argument.get_value_names().unwrap_or_default();
            let is_plain = names.iter().all(|name| PLAIN.contains(&name.as_str()));
            argument.get_action().takes_values() && argument.get_possible_values().is_empty() && !is_plain
        };
        let arguments = command.get_arguments().filter(leads).map(|argument| argument.get_id().to_string()).collect();
        let is_json =
            |argument: &clap::Arg| argument.get_id() == "json" && matches!(argument.get_action(), ArgAction::SetTrue);
        let has_json = command.get_arguments().any(is_json);
        found.push(Leaf { name: before.to_owned(), arguments, has_json });
    }
}

/// Arguments that are missing in the table, and arguments of the table that are no longer in the definition.
pub fn differences(leaves: &[Leaf]) -> Vec<String> {
    let defined: BTreeSet<(String, String)> =
        leaves.iter().flat_map(|leaf| leaf.arguments.iter().map(|name| (leaf.name.clone(), name.clone()))).collect();
    let listed: BTreeSet<(String, String)> =
        USES.iter().map(|entry| (entry.command.to_owned(), entry.argument.to_owned())).collect();
    let mut found: Vec<String> = defined
        .difference(&listed)
        .map(|(command, argument)| format!("`{command}` has the argument {argument}: say in USES what it leads to"))
        .collect();
    found.extend(
        listed
            .difference(&defined)
            .map(|(command, argument)| format!("USES has the argument {argument} of `{command}`, which is not there")),
    );
    for leaf in leaves.iter().filter(|leaf| leaf.arguments.is_empty()) {
        if !ALONE.iter().any(|(name, _)| *name == leaf.name) {
            found.push(format!("`{}`: say in ALONE whether it looks around", leaf.name));
        }
    }
    let gone = ALONE.iter().filter(|(name, _)| !leaves.iter().any(|leaf| leaf.name == *name));
    found.extend(gone.map(|(name, _)| format!("ALONE has `{name}`, which is not there")));
    found
}
