//! `pagelift generate`: man pages and shell completions, made from the command line's definition.

use crate::help::headed;
use anyhow::Context;
use clap::{Arg, Args, Command, Subcommand, ValueEnum};
use clap_complete::Shell;
use clap_mangen::Man;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// `pagelift generate`.
#[derive(Args, Clone)]
pub struct GenerateArgs {
    /// The action.
    #[command(subcommand)]
    what: What,
}

/// The generated files.
#[derive(Subcommand, Clone)]
enum What {
    /// One man page for the program and one for each command.
    Man {
        /// Where to.
        directory: PathBuf,
    },
    /// Completions for every shell that is supported.
    Completions {
        /// Where to.
        directory: PathBuf,
    },
}

/// Writes them for the command line that `definition` is.
pub fn run(args: &GenerateArgs, mut definition: Command) -> anyhow::Result<()> {
    let (What::Man { directory } | What::Completions { directory }) = &args.what;
    fs::create_dir_all(directory).with_context(|| format!("creating {}", directory.display()))?;
    match args.what {
        What::Man { .. } => {
            definition = definition.disable_help_subcommand(true);
            definition.build();
            pages(&definition, directory)?;
        }
        What::Completions { .. } => {
            let mut shown = visible(&definition).propagate_version(true).version(env!("CARGO_PKG_VERSION"));
            for shell in Shell::value_variants() {
                clap_complete::generate_to(*shell, &mut shown, "pagelift", directory)?;
            }
        }
    }
    Ok(())
}

/// The command line without hidden commands, for completions.
fn visible(command: &Command) -> Command {
    // Names of commands have to live as long as the program, which ends now.
    let mut shown = Command::new(&*command.get_name().to_owned().leak());
    shown = match command.get_about() {
        Some(about) => shown.about(about.clone()),
        None => shown,
    };
    let arguments = command.get_arguments().filter(|argument| !is_of_clap(argument));
    let commands = command.get_subcommands().filter(|command| !command.is_hide_set());
    shown.args(arguments.cloned()).groups(command.get_groups().cloned()).subcommands(commands.map(visible))
}

/// True for arguments that clap adds to each command.
fn is_of_clap(argument: &Arg) -> bool {
    ["help", "version"].contains(&argument.get_id().as_str())
}

/// Writes a page for a command and for each subcommand.
fn pages(command: &Command, directory: &Path) -> io::Result<()> {
    command.get_subcommands().filter(|inner| !inner.is_hide_set()).try_for_each(|inner| pages(inner, directory))?;
    let man = Man::new(command.clone());
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(text) = command.get_after_help() {
        page.extend(roff(&text.to_string()).bytes());
    }
    if command.get_version().is_some() {
        man.render_version_section(&mut page)?;
    }
    fs::write(directory.join(man.get_filename()), page)
}

/// The sections behind the options, in the language of man(7).
fn roff(text: &str) -> String {
    let mut page = String::new();
    for (heading, lines) in headed(text) {
        page += &format!(".SH \"{heading}\"\n");
        let is_prose = heading == "NOTES";
        if !is_prose {
            page += ".nf\n";
        }
        for line in lines.iter().filter(|line| !line.is_empty()) {
            let line = line.replace('\\', "\\e").replace('-', "\\-");
            // A line that begins with such a sign is a request.
            let guard = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
            page += &format!("{guard}{line}\n");
        }
        if !is_prose {
            page += ".fi\n";
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::Cli;
    use crate::help::definition;

    #[test]
    fn each_visible_command_has_a_page_with_examples() {
        let folder = tempfile::tempdir().unwrap();
        let what = What::Man { directory: folder.path().to_owned() };
        run(&GenerateArgs { what }, definition::<Cli>()).unwrap();
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        let page = read("pagelift-pool-reserve.1");
        for part in
            [".SH \"EXIT STATUS\"\n.nf\n  0 ", ".SH \"EXAMPLES\"\n", "  pagelift pool reserve 2M:512\n", ".SH OPTIONS"]
        {
            assert!(page.contains(part), "{part} in {page}");
        }
        assert!(read("pagelift-image.1").contains("pagelift image gc \\-\\-dry\\-run"));
        assert!(read("pagelift.1").contains(".SH SUBCOMMANDS"));
        for file in fs::read_dir(folder.path()).unwrap() {
            let file = file.unwrap().path();
            let page = fs::read_to_string(&file).unwrap();
            let has = |heading: &str| page.contains(&format!(".SH \"{heading}\"\n"));
            assert!(has("EXIT STATUS") && has("EXAMPLES"), "{}", file.display());
        }
        assert!(!folder.path().join("pagelift-generate.1").exists());
    }

    #[test]
    fn completions_offer_what_is_visible() {
        let folder = tempfile::tempdir().unwrap();
        let what = What::Completions { directory: folder.path().to_owned() };
        run(&GenerateArgs { what }, definition::<Cli>()).unwrap();
        let files: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path()).collect();
        assert!(files.len() >= 3, "{files:?}");
        for file in files {
            let text = fs::read_to_string(&file).unwrap();
            assert!(text.contains("shootdowns") && !text.contains("measure-lift"), "{}", file.display());
        }
    }

    #[test]
    fn hidden_commands_are_not_visible() {
        let shown = visible(&definition::<Cli>());
        let has = |name: &str| shown.find_subcommand(name).is_some();
        assert!(has("run") && has("bench") && !has("generate") && !has("measure-lift"));
    }
}
