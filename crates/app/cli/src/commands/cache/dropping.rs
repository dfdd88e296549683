//! `pagelift cache drop`.

use super::huge_page;
use super::prepare::open_named;
use crate::commands::reading::limit_reads;
use crate::output::Output;
use crate::say;
use crate::text::number::{counted, of_all};
use address_space::{PageSize, format_bytes};
use anyhow::{Context, bail};
use clap::Args;
use linux::file_cache::cached_pages;
use linux::pages::base_page;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::statfs::{HUGETLBFS_MAGIC, TMPFS_MAGIC, fstatfs};
use page_cache::MappedFiles;
use process_view::printable;
use std::path::{Path, PathBuf};

/// Most processes that an error names.
const MOST_NAMED: usize = 5;

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
            Ok(None) => writeln!(out, "{name}: no longer in the page cache")?,
            Ok(Some(why)) => {
                writeln!(out, "{name}: the kernel was asked to drop it, and does not show whether it did: {why}")?
            }
            Err(error) => {
                say!("pagelift: {name}: {error:#}");
                failed += 1;
            }
        }
    }
    match failed {
        0 => Ok(()),
        failed => bail!("not dropped from the page cache: {}", of_all(failed, args.files.len(), "file")),
    }
}

/// Drops one file. Returns why the kernel does not show whether that was done.
fn drop_one(path: &Path, mapped: &MappedFiles, huge: PageSize) -> anyhow::Result<Option<String>> {
    let file = open_named(path)?;
    if [TMPFS_MAGIC, HUGETLBFS_MAGIC].contains(&fstatfs(&file)?.filesystem_type()) {
        bail!("found a file whose only copy is in memory, needed a file on a disk");
    }
    let users = mapped.users_of(&file, huge)?.processes();
    if !users.is_empty() {
        bail!("{}", in_use(&users));
    }
    // Changed pages are not dropped before they are written.
    file.sync_data().context("writing its changes")?;
    posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
    let length = file.metadata()?.len();
    match cached_pages(&file, 0..length).map(|pages| pages.cached * base_page().bytes()) {
        Ok(left) if left > 0 => {
            bail!("{} stay cached: in use, as by a process that cannot be read", format_bytes(left))
        }
        Ok(_) => Ok(None),
        // Before Linux 6.5, on overlayfs, and since 6.15 to a user who does not own the file.
        Err(error) => Ok(Some(error.to_string())),
    }
}

/// Says which processes map a file.
fn in_use(users: &[i32]) -> String {
    let numbers: Vec<String> = users.iter().take(MOST_NAMED).map(i32::to_string).collect();
    let mut text = format!("found mapped by {} ({}", counted(users.len() as u64, "process"), numbers.join(", "));
    let more = users.len().saturating_sub(MOST_NAMED);
    if more > 0 {
        text += &format!(" and {more} more");
    }
    text += "), needed by none; ";
    // Most of the system maps it.
    let stays = users.contains(&1) || more > 0;
    text + if stays { "it stays cached as long as they run" } else { "fix: end them" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_few_processes_are_to_be_ended() {
        assert_eq!(in_use(&[7]), "found mapped by 1 process (7), needed by none; fix: end them");
        assert!(in_use(&[1, 7]).ends_with("(1, 7), needed by none; it stays cached as long as they run"));
        let many: Vec<i32> = (100..400).collect();
        assert_eq!(
            in_use(&many),
            "found mapped by 300 processes (100, 101, 102, 103, 104 and 295 more), needed by none; it stays cached as long as \
             they run"
        );
    }
}
