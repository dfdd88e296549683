//! `pagelift cache`: files in huge folios of the page cache.

mod chosen;
mod dropping;
mod keep;
mod prepare;
mod running;
mod status;

use address_space::PageSize;
use anyhow::Context;
use clap::{Args, Subcommand};
use linux::pages::transparent_huge_page;

/// `pagelift cache`.
#[derive(Args, Clone)]
pub struct CacheArgs {
    /// The action.
    #[command(subcommand)]
    command: CacheCommand,
}

#[derive(Subcommand, Clone)]
enum CacheCommand {
    /// Bring files into huge folios.
    Prepare(prepare::PrepareArgs),
    /// Prepare listed files, and again after a file was replaced or memory was short.
    Keep(keep::KeepArgs),
    /// Drop files from the page cache, so that they are cached again as they are read.
    Drop(dropping::DropArgs),
    /// Show files in the page cache, the processes that map them, and the gain from another base.
    Status(status::StatusArgs),
}

/// Runs one of the commands.
pub fn run(args: &CacheArgs) -> anyhow::Result<()> {
    match &args.command {
        CacheCommand::Prepare(args) => prepare::run(args),
        CacheCommand::Keep(args) => keep::run(args),
        CacheCommand::Drop(args) => dropping::run(args),
        CacheCommand::Status(args) => status::run(args),
    }
}

/// The size of a huge folio.
fn huge_page() -> anyhow::Result<PageSize> {
    transparent_huge_page().context("found a kernel without transparent huge pages, needed CONFIG_TRANSPARENT_HUGEPAGE")
}
