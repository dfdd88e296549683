//! `pagelift generate`: man pages and shell completions, made from the command line's definition.

use anyhow::Context;
use clap::{Args, Command, Subcommand, ValueEnum};
use clap_complete::Shell;
use std::fs;
use std::path::PathBuf;

/// `pagelift generate`.
#[derive(Args, Clone)]
pub struct GenerateArgs {
    /// What to write.
    #[command(subcommand)]
    what: What,
}

/// What can be generated.
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
        What::Man { .. } => clap_mangen::generate_to(definition, directory)?,
        What::Completions { .. } => {
            for shell in Shell::value_variants() {
                clap_complete::generate_to(*shell, &mut definition, "pagelift", directory)?;
            }
        }
    }
    Ok(())
}
