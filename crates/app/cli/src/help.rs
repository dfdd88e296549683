//! Exit statuses and examples of each command, for its help and its man page.

use clap::{ArgMatches, Command, CommandFactory, FromArgMatches};
use std::ffi::OsString;

/// A section of a command's help: rows of a term and its meaning.
type Rows = &'static [(&'static str, &'static str)];

/// Exit statuses of a command whose work is all done or not.
const USUAL: Rows = &[("0", "success"), ("125", "failure; the reason is on standard error")];

/// Exit statuses of a command that reads the rules of the agent.
const OF_RULES: Rows = &[("0", "success"), ("1", "the rules have errors"), ("125", "Pagelift itself fails")];

/// The sections of one command.
struct Sections {
    /// The command's words after `pagelift`.
    command: &'static str,
    statuses: Rows,
    examples: Rows,
}

const fn usual(command: &'static str, examples: Rows) -> Sections {
    Sections { command, statuses: USUAL, examples }
}

const SECTIONS: &[Sections] = &[
    Sections {
        command: "run",
        statuses: &[
            ("125", "Pagelift itself fails"),
            ("126", "the program cannot be executed"),
            ("127", "the program is not found"),
            ("other", "exit status of the program"),
        ],
        examples: &[
            ("pagelift run -- redis-server /etc/redis/redis.conf", "Lift code and data"),
            ("pagelift run --heap=auto -- redis-server", "Put the heap on huge pages too"),
            ("pagelift run --only cc1plus,rustc -- make -j8", "Lift the compilers of a build"),
            ("pagelift run --dry-run -v -- node server.js", "Show the plan only"),
        ],
    },
    usual(
        "attach",
        &[
            ("pagelift attach redis-server", "Lift code and read-only data of a running program"),
            ("pagelift attach --lift shared --dry-run --all postgres", "Show the price of shared memory"),
            ("pagelift attach --unit mariadb.service --lift all", "Lift all memory of a service"),
        ],
    ),
    usual(
        "detach",
        &[
            ("pagelift detach redis-server", "Undo the lift of a process"),
            ("pagelift detach --all java", "Undo the lifts of all processes of a program"),
        ],
    ),
    usual(
        "inspect",
        &[
            ("pagelift inspect /usr/sbin/mariadbd", "Show the plan for a file"),
            ("pagelift inspect --used mariadbd", "Show whether the TLB holds the pages in use"),
        ],
    ),
    Sections {
        command: "doctor",
        statuses: &[
            ("0", "no finding, or notes only"),
            ("1", "advice"),
            ("2", "problems"),
            ("125", "Pagelift itself fails"),
        ],
        examples: &[
            ("pagelift doctor", "Check this machine"),
            ("pagelift doctor mariadbd", "Check a running program and its settings"),
            ("pagelift doctor -- node server.js", "Check a command before its start"),
        ],
    },
    usual(
        "status",
        &[
            ("pagelift status", "List all processes that have memory on huge pages"),
            ("pagelift status redis-server", "Show the parts of one process"),
        ],
    ),
    usual("perf-map", &[("pagelift perf-map redis-server", "Let perf find symbols of lifted code")]),
    usual(
        "image setup",
        &[
            ("pagelift image setup --size 2G --install systemd", "Mount a store now and at each boot"),
            ("pagelift image setup --automatic no", "Make images only by `pagelift image add`"),
            ("pagelift image setup --uninstall", "Remove the configuration of --install"),
        ],
    ),
    usual(
        "image add",
        &[("pagelift image add /usr/lib/llvm-19/bin/clang", "Make an image of a program, not of its wrapper")],
    ),
    usual("image list", &[("pagelift image list", "Show the size and the last use of each image")]),
    usual("image remove", &[("pagelift image remove /usr/bin/node", "Remove the images of a file")]),
    usual(
        "image gc",
        &[
            ("pagelift image gc --dry-run", "Show which images would be removed"),
            ("pagelift image gc --unused-for 7d", "Remove images that were not used for a week"),
            ("pagelift image gc --size 512M", "Keep at most 512 MiB of images"),
        ],
    ),
    usual(
        "bench",
        &[
            ("pagelift bench --toggle mariadbd --for 5m", "Switch a loaded server in place"),
            ("pagelift bench --only cc1plus -- g++ -c a.cc", "Run a command plain and lifted in turn"),
            ("pagelift bench --from record.jsonl", "Show the answer of a record again"),
        ],
    ),
    usual("report", &[("pagelift report record.jsonl", "Make a page from a record of `bench -o`")]),
    Sections {
        command: "stat",
        statuses: &[
            ("0", "success without CMD"),
            ("125", "Pagelift itself fails, or cannot lift the process"),
            ("126", "CMD cannot be executed"),
            ("127", "CMD is not found"),
            ("other", "exit status of CMD (with --lift, of its lifted run); 128 + a signal's number"),
        ],
        examples: &[
            ("pagelift stat --pid redis-server --for 10s", "Count page walks of a process"),
            ("pagelift stat --lift -- gzip -k file", "Measure a command plain and lifted"),
        ],
    },
    usual("probe", &[("pagelift probe", "Measure the cost of page walks on this machine")]),
    usual("shootdowns", &[("pagelift shootdowns --for 10s", "Show the senders and their cures")]),
    usual("estimate", &[("pagelift estimate -- gzip -k file", "Simulate the TLB misses of a command")]),
    usual("demo", &[("pagelift demo --for 10s", "See the effect of huge pages here")]),
    Sections {
        command: "cache prepare",
        statuses: &[("0", "all files are in huge folios"), ("125", "some files are not; the reasons are printed")],
        examples: &[
            ("pagelift cache prepare /usr/sbin/mariadbd", "Bring one file into huge folios"),
            ("pagelift cache prepare --package nodejs", "Prepare the files of a package"),
        ],
    },
    usual("cache keep", &[("pagelift cache keep --once", "Prepare the listed files")]),
    Sections {
        command: "cache drop",
        statuses: &[
            ("0", "no file is in the page cache any more, if the kernel shows that"),
            ("125", "some files stay there; the reasons are printed"),
        ],
        examples: &[("pagelift cache drop /usr/sbin/mariadbd", "End its huge folios, once no process maps it")],
    },
    usual("cache status", &[("pagelift cache status /usr/bin/node", "Show how a file is cached")]),
    usual(
        "align",
        &[
            ("pagelift align --check ./server", "Show the gain of an alignment"),
            ("pagelift align ./server", "Align a program"),
            ("pagelift align --undo ./server", "Restore it"),
        ],
    ),
    usual("pool show", &[("pagelift pool show --watch", "Watch the pools")]),
    usual(
        "pool plan",
        &[
            ("pagelift pool plan -- node server.js", "Count the pages that a command needs"),
            ("pagelift pool plan --install systemd 2M:512", "Reserve pages at each boot"),
        ],
    ),
    Sections {
        command: "pool reserve",
        statuses: &[
            ("0", "every request is met"),
            ("125", "a request is not met"),
            ("other", "with --for, exit status of the program"),
        ],
        examples: &[
            ("pagelift pool reserve 2M:512", "Make 512 pages available"),
            ("pagelift pool reserve --for -- node server.js", "Reserve while a program runs"),
        ],
    },
    usual("pool release", &[("pagelift pool release 2M:all", "Give all free pages back, except recorded ones")]),
    usual("pool demote", &[("pagelift pool demote 1G:1 --to 2M", "Split a page")]),
    usual("pool overcommit", &[("pagelift pool overcommit 2M:256", "Allow 256 surplus pages")]),
    usual(
        "enable",
        &[
            ("pagelift enable mariadb.service --dry-run", "Show the drop-in file"),
            ("pagelift enable mariadb.service --now", "Write it and restart the service"),
        ],
    ),
    usual("disable", &[("pagelift disable mariadb.service --now", "Start a service plain again")]),
    usual("enabled", &[("pagelift enabled", "List the services")]),
    Sections {
        command: "agent run",
        statuses: OF_RULES,
        examples: &[("pagelift agent run --metrics 127.0.0.1:9273", "Run with metrics")],
    },
    Sections {
        command: "agent check",
        statuses: OF_RULES,
        examples: &[("pagelift agent check --config ./agent.d", "Check rules before they are installed")],
    },
    Sections {
        command: "agent explain",
        statuses: OF_RULES,
        examples: &[("pagelift agent explain mariadbd", "Show why it is lifted or not")],
    },
    usual("agent status", &[("pagelift agent status --json", "Show the lifts to a script")]),
    Sections {
        command: "agent stop",
        statuses: &[("0", "success"), ("1", "a lift could not be undone"), ("125", "Pagelift itself fails")],
        examples: &[("pagelift agent stop --restore", "End the agent and undo its lifts")],
    },
    usual("agent verdicts measure", &[("pagelift agent verdicts measure mariadbd", "Measure a process now")]),
    usual("agent verdicts export", &[("pagelift agent verdicts export > verdicts.jsonl", "Save all verdicts")]),
    usual("agent verdicts import", &[("pagelift agent verdicts import verdicts.jsonl", "Add verdicts")]),
    usual("agent verdicts forget", &[("pagelift agent verdicts forget mariadbd", "Measure it anew")]),
];

/// Exit statuses and examples of commands with subcommands, and of `pagelift` itself. Without examples, the first example of
/// each subcommand is shown.
const GROUPS: &[Sections] = &[
    Sections {
        command: "",
        statuses: &[
            ("0", "success"),
            ("125", "Pagelift itself fails; the reason is on standard error"),
            ("other", "of a command that has others, or starts a program: see its page"),
        ],
        examples: &[
            ("pagelift doctor", "Check this machine"),
            ("pagelift run -- redis-server /etc/redis/redis.conf", "Start a program lifted"),
            ("pagelift attach redis-server", "Lift a running program"),
            ("pagelift status", "List all processes that have memory on huge pages"),
            ("pagelift bench --only cc1plus -- g++ -c a.cc", "Measure whether a lift pays"),
        ],
    },
    usual("image", &[]),
    usual("cache", &[]),
    Sections {
        command: "pool",
        statuses: &[
            ("0", "success"),
            ("125", "failure, or a request is not met; the reason is printed"),
            ("other", "with reserve --for, exit status of the program"),
        ],
        examples: &[],
    },
    Sections {
        command: "agent",
        statuses: &[
            ("0", "success"),
            ("1", "the rules have errors; of stop: a lift could not be undone"),
            ("125", "Pagelift itself fails"),
        ],
        examples: &[],
    },
    usual("agent verdicts", &[]),
];

/// The command line with these sections after the options of each command. A command with subcommands has the first
/// example of each.
fn with_sections(mut command: Command, path: &str) -> Command {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path} {name}") };
    command = command.mut_subcommands(|inner| {
        let path = below(inner.get_name());
        with_sections(inner, &path)
    });
    let Some(text) = sections(path) else { return command };
    let text = units(&command) + &text;
    let notes = command.get_after_help().map(|notes| format!("{notes}\n\n")).unwrap_or_default();
    command.after_help(notes + &text)
}

/// The section about the units of a command's times and sizes; empty if it takes none.
fn units(command: &Command) -> String {
    let takes = |name: &str| {
        let named = |arg: &clap::Arg| arg.get_value_names().is_some_and(|names| names.iter().any(|own| own == name));
        command.get_arguments().any(|arg| !arg.is_hide_set() && named(arg))
    };
    let lines = [
        ("TIME", "500ms, 90s, 5m, 2h or 7d; a number alone is in seconds, or refused"),
        ("SIZE", "64K, 2M or 1.5G (1K is 1024); a number alone: bytes, refused below 4096"),
    ];
    let shown: Vec<_> = lines.iter().filter(|(name, _)| takes(name)).collect();
    let lines: String = shown.iter().map(|(name, meaning)| format!("  {name:<5}  {meaning}\n")).collect();
    if lines.is_empty() { lines } else { format!("Units:\n{lines}\n") }
}

/// The sections of a command as text.
fn sections(path: &str) -> Option<String> {
    let found = SECTIONS.iter().chain(GROUPS).find(|sections| sections.command == path)?;
    let is_below = |sections: &&Sections| sections.command.strip_prefix(path).is_some_and(|rest| rest.starts_with(' '));
    let examples: Vec<_> = match found.examples {
        [] => SECTIONS.iter().filter(is_below).filter_map(|sections| sections.examples.first().copied()).collect(),
        examples => examples.to_vec(),
    };
    let mut text = "Exit status:\n".to_owned();
    found.statuses.iter().for_each(|(status, meaning)| text += &format!("  {status:<5}  {meaning}\n"));
    text += "\nExamples:\n";
    examples.iter().for_each(|(example, meaning)| text += &format!("  {example}\n      {meaning}\n"));
    Some(text.trim_end().to_owned())
}

/// The definition of a command line, with the sections.
pub fn definition<C: CommandFactory>() -> Command {
    let command = C::command();
    // The definition of `pagelift run` alone is a separate command.
    let path = if command.get_name() == "run" { "run" } else { "" };
    with_sections(command, path)
}

/// Parses a command line.
///
/// # Errors
/// The error, or the requested help.
pub fn parse<C: CommandFactory + FromArgMatches>(words: impl IntoIterator<Item = OsString>) -> Result<C, clap::Error> {
    let mut command = definition::<C>();
    let mut matches: ArgMatches = command.try_get_matches_from_mut(words)?;
    C::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
}

/// The text behind the options as headings with their lines; lines before the first heading are notes.
pub fn headed(text: &str) -> Vec<(String, Vec<&str>)> {
    let mut headed: Vec<(String, Vec<&str>)> = Vec::new();
    for line in text.lines() {
        match (line.strip_suffix(':').filter(|_| !line.starts_with(' ')), headed.last_mut()) {
            (Some(heading), _) => headed.push((heading.to_uppercase(), Vec::new())),
            (None, Some((_, lines))) => lines.push(line),
            (None, None) => headed.push(("NOTES".to_owned(), vec![line])),
        }
    }
    headed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::{Cli, RunCli};
    use clap::error::ErrorKind;

    /// The visible commands without subcommands, each with its path.
    fn leaves<'a>(command: &'a Command, path: &str) -> Vec<(String, &'a Command)> {
        let inner: Vec<_> = command.get_subcommands().filter(|inner| !inner.is_hide_set()).collect();
        if inner.is_empty() {
            return vec![(path.to_owned(), command)];
        }
        inner.into_iter().flat_map(|inner| leaves(inner, format!("{path} {}", inner.get_name()).trim_start())).collect()
    }

    #[test]
    fn each_command_has_examples_and_statuses() {
        let cli = Cli::command();
        let mut defined: Vec<_> = leaves(&cli, "").into_iter().map(|(path, _)| path).collect();
        let mut listed: Vec<_> = SECTIONS.iter().map(|sections| sections.command.to_owned()).collect();
        defined.sort();
        listed.sort();
        assert_eq!(listed, defined);
        let mut run = definition::<RunCli>();
        let help = run.render_help().to_string();
        assert!(help.contains("\nExit status:\n") && help.contains("\nExamples:\n  pagelift run -- "), "{help}");
    }

    #[test]
    fn each_example_is_a_command_line() {
        for sections in SECTIONS.iter().chain(GROUPS) {
            for (example, meaning) in sections.examples {
                assert!(example.starts_with(&format!("pagelift {}", sections.command)), "{example}");
                assert!(example.len() <= 78 && meaning.len() <= 74, "wider than a terminal: {example}: {meaning}");
                let words = example.split(' ').take_while(|word| *word != ">").map(OsString::from);
                match parse::<Cli>(words) {
                    Ok(_) => {}
                    // No process runs this program here, or several do.
                    Err(error)
                        if error.kind() == ErrorKind::ValueValidation
                            && ["no process runs", "processes run"]
                                .iter()
                                .any(|end| error.to_string().contains(end)) => {}
                    Err(error) => panic!("{example}: {error}"),
                }
            }
        }
    }

    #[test]
    fn commands_with_times_and_sizes_name_their_units() {
        let cli = definition::<Cli>();
        let help = |name: &str| cli.clone().find_subcommand_mut(name).unwrap().render_help().to_string();
        let (time, size) = ("\n  TIME   500ms, 90s", "\n  SIZE   64K, 2M");
        assert!(help("run").contains("\nUnits:\n  TIME") && help("run").contains(size));
        assert!(help("attach").contains("\nUnits:\n  SIZE") && !help("attach").contains(time));
        assert!(!help("detach").contains("Units:"));
    }

    #[test]
    fn sections_are_found_by_their_headings() {
        let found = headed("A note: it\nis long.\n\nExit status:\n  0  fine:\n\nExamples:\n  x");
        let headings: Vec<_> = found.iter().map(|(heading, _)| heading.as_str()).collect();
        assert_eq!(headings, ["NOTES", "EXIT STATUS", "EXAMPLES"]);
        assert_eq!(found[1].1, ["  0  fine:", ""]);
    }
}
