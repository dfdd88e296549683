//! `pagelift align --relayout --root DIR`.

use super::relayout::{brings, replace_file};
use super::{AlignArgs, Asker, Target};
use crate::output::Output;
use address_space::PageSize;
use anyhow::{Context, bail, ensure};
use linux::bounded::ELF_HEADERS;
use linux::pages::base_page;
use object::ReadCache;
use page_cache::alignment::{Relayout, RelayoutError};
use page_cache::replacement::ReplaceError;
use process_view::{BoundedFile, FileIdentity, open_regular_file, printable};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// Result for one file.
enum Outcome {
    /// It has nothing to gain.
    Nothing,
    Changed(String),
    Kept(anyhow::Error),
}

/// Gives all files of a folder that gain by it another layout, in the order of their names.
pub fn run(args: &AlignArgs, root: &Path, huge: PageSize) -> anyhow::Result<()> {
    let (mut changed, mut kept, mut failed) = (0, 0, 0);
    let out = Output::Standard;
    let whole = fs::canonicalize(root).with_context(|| printable(&root.display().to_string()))?;
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let (files, inner) = match entries(&folder, huge) {
            Ok(found) => found,
            Err(error) => {
                failed += 1;
                writeln!(out, "{}: not listed: {error}", printable(&folder.display().to_string()))?;
                continue;
            }
        };
        folders.extend(inner.into_iter().rev());
        for path in files {
            let name = printable(&path.display().to_string());
            match one(args, &whole, &path, &name, huge) {
                Outcome::Nothing => {}
                Outcome::Changed(brings) => {
                    changed += 1;
                    writeln!(out, "{name}: {brings}")?;
                }
                Outcome::Kept(error) => {
                    kept += 1;
                    failed += usize::from(is_failure(&error));
                    writeln!(out, "{name}: kept: {error:#}")?;
                }
            }
        }
    }
    let did = if args.check { "would be laid out anew" } else { "laid out anew" };
    writeln!(out, "files {did}: {changed}; kept although they gain: {kept}")?;
    if failed > 0 {
        bail!(
            "found {failed} {} that could not be changed, needed none; fix: the reasons above, then run it again",
            if failed == 1 { "file or folder" } else { "files or folders" }
        )
    } else {
        Ok(())
    }
}

/// Large files and folders in a folder, both in the order of their names. Links are not followed.
fn entries(folder: &Path, huge: PageSize) -> io::Result<(Vec<PathBuf>, Vec<PathBuf>)> {
    let (mut files, mut folders) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(folder)? {
        let (path, found) = {
            let entry = entry?;
            (entry.path(), entry.metadata()?)
        };
        if found.is_dir() {
            folders.push(path);
        } else if found.is_file() && found.len() >= huge.bytes() {
            files.push(path);
        }
    }
    files.sort();
    folders.sort();
    Ok((files, folders))
}

fn one(args: &AlignArgs, root: &Path, path: &Path, name: &str, huge: PageSize) -> Outcome {
    match change(args, root, path, name, huge) {
        Ok(brings) => Outcome::Changed(brings),
        Err(error) => match error.downcast_ref() {
            Some(
                RelayoutError::NotElf(_) | RelayoutError::Kind(_) | RelayoutError::TooSmall(_) | RelayoutError::Done(_),
            ) => Outcome::Nothing,
            _ => Outcome::Kept(error),
        },
    }
}

fn change(args: &AlignArgs, root: &Path, path: &Path, name: &str, huge: PageSize) -> anyhow::Result<String> {
    let file = open_regular_file(path)?.context("found a non-regular file, needed a regular file")?;
    ensure!(
        is_below(&file, root)?,
        "found a link that leads out of the folder, needed a file inside; fix: run it again"
    );
    let identity = FileIdentity::of(&file.metadata()?);
    let data = ReadCache::new(BoundedFile::new(&file, identity.size, ELF_HEADERS.bytes()));
    let relayout = Relayout::plan(&data, huge, base_page(), args.force, args.edges)?;
    if !args.check {
        replace_file(&Target { args, asker: Asker::Command, path, name, file: &file, identity }, &relayout)?;
    }
    Ok(brings(&relayout, huge))
}

/// True if an open file is in a folder whose path has no links. The owner of an image may exchange a folder for a link to another
/// one while this program, as root, goes through the image.
fn is_below(file: &File, root: &Path) -> io::Result<bool> {
    Ok(fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?.starts_with(root))
}

/// True for errors of the machine, which are no property of the file.
fn is_failure(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(ReplaceError::Io { .. } | ReplaceError::NoRoom { .. } | ReplaceError::Differs(_) | ReplaceError::Changed)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_behind_a_link_is_not_in_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let outside = folder.path().canonicalize().unwrap();
        let root = outside.join("root");
        fs::create_dir_all(root.join("inner")).unwrap();
        fs::write(root.join("inner/file"), "x").unwrap();
        fs::write(outside.join("file"), "x").unwrap();
        std::os::unix::fs::symlink(&outside, root.join("link")).unwrap();
        let is_found = |path: &str| is_below(&File::open(root.join(path)).unwrap(), &root).unwrap();
        assert!(is_found("inner/file") && !is_found("link/file"));
    }
}
