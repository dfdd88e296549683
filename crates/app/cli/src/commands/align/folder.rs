//! `pagelift align --relayout --root DIR`.

use super::relayout::{brings, replace_file};
use super::{AlignArgs, Asker, Target};
use crate::output::Output;
use address_space::PageSize;
use anyhow::{Context, bail};
use linux::bounded::ELF_HEADERS;
use linux::pages::base_page;
use object::ReadCache;
use page_cache::alignment::{Relayout, RelayoutError};
use page_cache::replacement::ReplaceError;
use process_view::{BoundedFile, FileIdentity, open_regular_file, printable};
use std::fs;
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
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let (files, inner) = entries(&folder, huge).with_context(|| printable(&folder.display().to_string()))?;
        folders.extend(inner.into_iter().rev());
        for path in files {
            let name = printable(&path.display().to_string());
            match one(args, &path, &name, huge) {
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
        bail!("found {failed} files that could not be written, needed none; fix: the reasons above, then run it again")
    } else {
        Ok(())
    }
}

/// Large files and folders in a folder, both in the order of their names. Links are not followed.
fn entries(folder: &Path, huge: PageSize) -> std::io::Result<(Vec<PathBuf>, Vec<PathBuf>)> {
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

fn one(args: &AlignArgs, path: &Path, name: &str, huge: PageSize) -> Outcome {
    match change(args, path, name, huge) {
        Ok(brings) => Outcome::Changed(brings),
        Err(error) => match error.downcast_ref() {
            Some(
                RelayoutError::NotElf(_) | RelayoutError::Kind(_) | RelayoutError::TooSmall(_) | RelayoutError::Done(_),
            ) => Outcome::Nothing,
            _ => Outcome::Kept(error),
        },
    }
}

fn change(args: &AlignArgs, path: &Path, name: &str, huge: PageSize) -> anyhow::Result<String> {
    let file = open_regular_file(path)?.context("found something else than a regular file, needed a file")?;
    let identity = FileIdentity::of(&file.metadata()?);
    let data = ReadCache::new(BoundedFile::new(&file, identity.size, ELF_HEADERS.bytes()));
    let relayout = Relayout::plan(&data, huge, base_page(), args.force, args.edges)?;
    if !args.check {
        replace_file(&Target { args, asker: Asker::Command, path, name, file: &file, identity }, &relayout)?;
    }
    Ok(brings(&relayout, huge))
}

/// True for errors of the machine, which are no property of the file.
fn is_failure(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(ReplaceError::Io { .. } | ReplaceError::NoRoom { .. } | ReplaceError::Differs(_) | ReplaceError::Changed)
    )
}
