//! `pagelift cache drop`.

use super::huge_page;
use super::prepare::open_named;
use crate::commands::reading::limit_reads;
use crate::output::Output;
use crate::say;
use crate::text::number::counted;
use address_space::{PageSize, format_bytes};
use anyhow::{Context, bail};
use clap::Args;
use linux::file_cache::cached_pages;
use linux::pages::base_page;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use page_cache::MappedFiles;
use process_view::printable;
use std::path::{Path, PathBuf};

/// `pagelift cache drop`.
#[derive(Args, Clone)]
pub struct DropArgs {
    /// Files: programs, libraries, or any data.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

/// Drops files from the page cache.
pub fn run(args: &DropArgs) -> anyhow::Result<()> {
    limit_reads();
    let (huge, mapped) = (huge_page()?, MappedFiles::read()?);
    let (out, mut failed) = (Output::Standard, 0);
    for path in &args.files {
        let name = printable(&path.display().to_string());
        match drop_one(path, &mapped, huge) {
            Ok(()) => writeln!(out, "{name}: no longer in the page cache")?,
            Err(error) => {
                say!("pagelift: {name}: {error:#}");
                failed += 1;
            }
        }
    }
    match failed {
        0 => Ok(()),
        failed => bail!("{failed} of {} stay in the page cache", counted(args.files.len() as u64, "file")),
    }
}

fn drop_one(path: &Path, mapped: &MappedFiles, huge: PageSize) -> anyhow::Result<()> {
    let file = open_named(path)?;
    let users = mapped.users_of(&file, huge)?.processes();
    if !users.is_empty() {
        let numbers: Vec<String> = users.iter().map(i32::to_string).collect();
        let (count, numbers) = (counted(users.len() as u64, "process"), numbers.join(", "));
        bail!("found mapped by {count}, needed by none; fix: end {numbers}");
    }
    // Changed pages are not dropped before they are written.
    file.sync_data().context("writing its changes")?;
    posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
    let length = file.metadata()?.len();
    match cached_pages(&file, 0..length).map(|pages| pages.cached * base_page().bytes()) {
        Ok(left) if left > 0 => {
            bail!("{} stay cached: in use, as by a process that cannot be read", format_bytes(left))
        }
        // Some kernels do not report it to this user.
        _ => Ok(()),
    }
}
