//! `pagelift cache prepare`.

use super::chosen::{Chosen, is_large_program};
use super::huge_page;
use super::running::{Executed, executed_by};
use crate::commands::reading::limit_reads;
use crate::output::Output;
use crate::say;
use crate::text::number::of_all;
use address_space::{PageSize, counted, format_bytes};
use anyhow::{Context, bail};
use clap::Args;
use page_cache::replacement::{Change, replace};
use page_cache::{Budget, Effort, MappedFiles, Prepared, Refusal, loaded_offsets, prepare};
use process_view::{FileIdentity, open_regular_file, printable};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// `pagelift cache prepare`.
#[derive(Args, Clone)]
#[command(
    after_help = "The effect is not permanent: after a boot, a package upgrade or a shortage of memory, files are cached as they are read. \
`pagelift cache keep` prepares them again."
)]
pub struct PrepareArgs {
    /// Programs and libraries of an installed package (dpkg or rpm).
    #[arg(long, value_name = "NAME")]
    package: Vec<String>,
    /// Files that the processes of a program with this name execute.
    #[arg(long, value_name = "NAME")]
    running: Vec<String>,
    /// Replace files that other processes map, and that therefore cannot be evicted, by a copy with all metadata,
    /// compared byte by byte, in one rename. Processes keep the old file until they end. Needs root, or the file's
    /// owner.
    #[arg(long)]
    replace: bool,
    /// Files: programs, libraries, or any data.
    #[arg(value_name = "FILE", required_unless_present_any = ["package", "running"])]
    files: Vec<PathBuf>,
}

/// Prepares files.
pub fn run(args: &PrepareArgs) -> anyhow::Result<()> {
    limit_reads();
    let huge = huge_page()?;
    let mut failed = 0;
    let chosen = choose(args, huge, &mut failed)?;
    let (out, number) = (Output::Standard, chosen.len() + failed);
    for one in chosen {
        let name = printable(&one.path.display().to_string());
        match prepare_one(&one, huge, args.replace) {
            Ok(Outcome { prepared, keepers }) => {
                writeln!(out, "{name}: {}{}", describe(&prepared), after_replacement(keepers.as_ref()))?;
                if let Some(rest) = &prepared.rest {
                    say!("pagelift: {name}: the rest stays small: {rest}");
                }
            }
            Err(error) => {
                say!("pagelift: {name}: {error:#}");
                failed += 1;
            }
        }
    }
    match failed {
        0 => Ok(()),
        failed => bail!("not in huge folios: {}", of_all(failed, number, "file")),
    }
}

/// The outcome for a file.
struct Outcome {
    prepared: Prepared,
    /// If it was replaced, the processes that have the old file.
    keepers: Option<Keepers>,
}

fn prepare_one(one: &Chosen, huge: PageSize, may_replace: bool) -> anyhow::Result<Outcome> {
    let prepared = prepare_file(&one.file, &one.path, huge);
    let is_mapped = match &prepared {
        Ok(prepared) => matches!(prepared.rest, Some(Refusal::Mapped { .. })),
        Err(refusal) => matches!(refusal, Refusal::Mapped { .. }),
    };
    if !may_replace || !is_mapped {
        return Ok(Outcome { prepared: prepared?, keepers: None });
    }
    let change = Change { only_if: Some(FileIdentity::of(&one.file.metadata()?)), ..Change::default() };
    let replaced = replace(&one.path, &change).context("not replaced")?;
    let prepared =
        prepare_file(&replaced.file, &replaced.path, huge).context("replaced, and the new file stays small")?;
    let mapped = MappedFiles::read()?;
    let keepers = Keepers { seen: mapped.users_of(&replaced.old, huge)?.processes(), unseen: mapped.unseen() };
    Ok(Outcome { prepared, keepers: Some(keepers) })
}

fn prepare_file(file: &File, path: &Path, huge: PageSize) -> Result<Prepared, Refusal> {
    let offsets = loaded_offsets(file).unwrap_or(0..u64::MAX);
    prepare(file, path, offsets, huge, Effort::Always, Budget::UNLIMITED)
}

/// Processes that use the old file.
struct Keepers {
    /// Their numbers.
    seen: Vec<i32>,
    /// Number of processes that may use it, too: they cannot be inspected.
    unseen: u64,
}

fn after_replacement(keepers: Option<&Keepers>) -> String {
    let Some(Keepers { seen, unseen }) = keepers else { return String::new() };
    let mut text = "; replaced".to_owned();
    if !seen.is_empty() {
        let numbers: Vec<String> = seen.iter().map(i32::to_string).collect();
        text += &format!("; restart these processes, which use the old file: {}", numbers.join(", "));
    }
    if *unseen > 0 {
        let others = counted(*unseen, "process");
        text += &format!("; {others} could not be inspected, and may use the old file, too");
    }
    text
}

pub fn describe(prepared: &Prepared) -> String {
    let Prepared { extents, of, found, collapsed, created, time, .. } = prepared;
    let parts = [(*found, "found so"), (*collapsed, "collapsed"), (*created, "read again")];
    let parts: Vec<String> = parts
        .iter()
        .filter(|(bytes, _)| *bytes > 0)
        .map(|(bytes, how)| format!("{} {how}", format_bytes(*bytes)))
        .collect();
    let (huge, of) = (format_bytes(extents.bytes()), format_bytes(*of));
    format!("{huge} of {of} in huge folios ({}), {} ms", parts.join(", "), time.as_millis())
}

/// Opens the chosen files. Named files that cannot be opened are counted in `failed`; files of packages and processes
/// that have no whole huge page are left out.
fn choose(args: &PrepareArgs, huge: PageSize, failed: &mut usize) -> anyhow::Result<Vec<Chosen>> {
    let mut chosen = Vec::new();
    for path in &args.files {
        match open_named(path) {
            Ok(file) => chosen.push(Chosen { path: path.clone(), file }),
            Err(error) => {
                say!("pagelift: {}: {error:#}", path.display());
                *failed += 1;
            }
        }
    }
    for name in &args.package {
        let found = programs_of(&files_of_package(name)?, huge);
        if found.is_empty() {
            bail!("found no program or library of {huge} or more in the package {name}, needed at least one");
        }
        chosen.extend(found);
    }
    for name in &args.running {
        let Executed { chosen: found, left_out, .. } = executed_by(name, huge)?;
        left_out.iter().for_each(|why| say!("pagelift: note: {why}"));
        if found.is_empty() {
            bail!("found no program or library of {huge} or more that {name} executes, needed at least one");
        }
        chosen.extend(found.into_iter().map(|(one, _)| one));
    }
    Ok(chosen)
}

pub fn open_named(path: &Path) -> anyhow::Result<File> {
    match open_regular_file(path)? {
        Some(file) => Ok(file),
        None => bail!("found a non-regular file, needed a regular file"),
    }
}

/// The ELF files with a whole huge page of loaded contents. Links lead to a file that is listed itself, or belongs to
/// another package.
pub fn programs_of(paths: &[PathBuf], huge: PageSize) -> Vec<Chosen> {
    let is_link = |path: &Path| path.symlink_metadata().map_or(true, |found| !found.is_file());
    let open = |path: &PathBuf| Some(Chosen { path: path.clone(), file: open_regular_file(path).ok()?? });
    paths
        .iter()
        .filter(|path| !is_link(path))
        .filter_map(open)
        .filter(|one| is_large_program(&one.file, huge))
        .collect()
}

/// The files of an installed package, as the package manager lists them.
pub fn files_of_package(name: &str) -> anyhow::Result<Vec<PathBuf>> {
    if name.starts_with('-') {
        bail!("`{name}` is no name of a package");
    }
    let mut asked = Vec::new();
    for (program, option) in [("dpkg-query", "-L"), ("rpm", "-ql")] {
        match Command::new(program).args([option, "--", name]).output() {
            Ok(output) if output.status.success() => {
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                return Ok(text.lines().filter(|line| line.starts_with('/')).map(PathBuf::from).collect());
            }
            Ok(output) => asked.push(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(_) => {}
        }
    }
    match asked.is_empty() {
        true => bail!("found neither dpkg-query nor rpm, needed one; fix: give the paths of the files"),
        false => bail!("found no installed package {name}: {}", printable(&asked.join("; "))),
    }
}
