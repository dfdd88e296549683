//! `pagelift cache keep`.

use super::chosen::Chosen;
use super::huge_page;
use super::prepare::{describe, files_of_package, programs_of};
use super::running::executed_by;
use crate::arguments::size::size;
use crate::arguments::time::{LONGEST, SECOND, seconds};
use crate::commands::align::kept::{Layouts, is_read_only};
use crate::commands::reading::limit_reads;
use crate::output::Output;
use crate::say;
use crate::text::number::of_all;
use address_space::PageSize;
use anyhow::{Context, anyhow, bail};
use clap::Args;
use foreign_text::quoted_path;
use linux::bounded::KERNEL_TEXT;
use page_cache::{Keeper, KeeperReport, KeptFile, KeptPath, ListEntry, LockedFile, parse_list};
use process_view::{FileIdentity, Unanswered, open_regular_file, printable};
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// `pagelift cache keep`.
#[derive(Args, Clone)]
#[command(
    after_help = "The list has one entry a line: /PATH, `package NAME`, `running NAME`, or `relayout = [\"/PATH\", …]` \
for files whose layout is changed first (`pagelift align --relayout`), again after each upgrade; # begins a comment. A file of \
a package needs `relayout-packaged = […]`, or a diversion (dpkg-divert).\n\
`systemctl enable --now pagelift-cache.timer` runs it with --once, pagelift-cache-lock.service with --lock."
)]
pub struct KeepArgs {
    /// The list of files.
    #[arg(long, value_name = "FILE", default_value = "/etc/pagelift/cache.conf")]
    config: PathBuf,
    /// Lock the files in memory while this command runs, so that reclaim does not drop them.
    #[arg(long, requires = "budget", conflicts_with = "once")]
    lock: bool,
    /// Maximum memory that --lock may hold, 512M for example; the first entries have priority.
    #[arg(long, value_name = "SIZE", requires = "lock", value_parser = size)]
    budget: Option<u64>,
    /// Check once and exit, with an error if any listed file is not in huge folios at all.
    #[arg(long)]
    once: bool,
    /// Only change the layout of files in `relayout` entries, and exit. The packages of Pagelift run this after each
    /// upgrade.
    #[arg(long, conflicts_with_all = ["lock", "once"])]
    relayout: bool,
    /// Time between two checks.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = seconds(SECOND, LONGEST))]
    interval: Duration,
}

/// Keeps the listed files in huge folios.
pub fn run(args: &KeepArgs) -> anyhow::Result<()> {
    limit_reads();
    let huge = huge_page()?;
    let mut layouts = Layouts::new(huge);
    if args.relayout {
        return all_laid_out(lay_out(&mut layouts, &entries(args)?, false)?);
    }
    let mut keeper = Keeper::new(huge, args.budget.filter(|_| args.lock));
    let (mut said, mut running) = (Vec::new(), BTreeMap::new());
    loop {
        let entries = entries(args)?;
        let without_layout = lay_out(&mut layouts, &entries, true)?;
        let Listed { paths, mut failed, left_out } = listed(entries, huge, &mut running);
        let number = paths.len() + failed.len();
        let mut others = 0;
        for report in keeper.round(&paths) {
            others += usize::from(say(&report)?);
        }
        if args.once {
            failed.iter().chain(&left_out).for_each(|error| say!("pagelift: {error}"));
            return match failed.len() + others {
                0 => all_laid_out(without_layout),
                failed => Err(anyhow!("not in huge folios: {}", of_all(failed, number, "listed file"))),
            };
        }
        failed.extend(left_out);
        failed.sort();
        if failed != said {
            failed.iter().for_each(|error| say!("pagelift: {error}"));
        }
        said = failed;
        std::thread::sleep(args.interval);
    }
}

/// The present contents of the list.
struct Listed {
    /// The files, in the list's order, each once.
    paths: Vec<KeptPath>,
    /// Why entries name none.
    failed: Vec<String>,
    /// Processes that do not answer.
    left_out: Vec<String>,
}

/// Files by the name of the program whose processes executed them at the last look.
type Running = BTreeMap<String, Vec<KeptPath>>;

/// Reads the list.
fn entries(args: &KeepArgs) -> anyhow::Result<Vec<ListEntry>> {
    let name = args.config.display();
    let file = match open_regular_file(&args.config) {
        Err(error) if error.kind() == ErrorKind::NotFound => bail!("{}", no_list(&args.config)),
        opened => opened.with_context(|| format!("reading the list {name}"))?,
    };
    let Some(file) = file else { bail!("{name}: found a non-regular file, needed a list of files") };
    let text = KERNEL_TEXT.read_rest(&file).with_context(|| format!("reading the list {name}"))?;
    let text = String::from_utf8(text).with_context(|| format!("reading the list {name}"))?;
    let entries = parse_list(&text).map_err(|error| anyhow!("{name}, {error}"))?;
    if entries.is_empty() {
        bail!("{name}: found no entry, needed at least one, for example: {EXAMPLE}");
    }
    Ok(entries)
}

/// An entry of a list.
const EXAMPLE: &str = "/usr/sbin/mariadbd";

/// Says that there is no list, with commands that make one.
fn no_list(path: &Path) -> String {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.map_or_else(String::new, |folder| format!("mkdir -p {} && ", quoted_path(folder)));
    format!(
        "{}: found no such file, needed a list with one entry a line; fix, for example: {folder}echo {EXAMPLE} > {}",
        path.display(),
        quoted_path(path)
    )
}

/// Gives files the layout that the list requests. Returns the number of files without it. With `skip_read_only` files
/// that cannot be written here are left to others.
fn lay_out(layouts: &mut Layouts, entries: &[ListEntry], skip_read_only: bool) -> anyhow::Result<usize> {
    let mut failed = 0;
    for entry in entries {
        let ListEntry::Relayout { paths, packaged } = entry else { continue };
        for path in paths.iter().filter(|path| !(skip_read_only && is_read_only(path))) {
            let name = printable(&path.display().to_string());
            match layouts.keep(path, *packaged) {
                Ok(None) => {}
                Ok(Some(brings)) => writeln!(Output::Standard, "{name}: laid out anew: {brings}")?,
                Err(error) => {
                    failed += 1;
                    say!("pagelift: {name}: not laid out anew: {error:#}");
                }
            }
        }
    }
    Ok(failed)
}

fn all_laid_out(failed: usize) -> anyhow::Result<()> {
    match failed {
        0 => Ok(()),
        1 => Err(anyhow!("1 file did not get the layout that the list requests")),
        failed => Err(anyhow!("{failed} files did not get the layout that the list requests")),
    }
}

/// The files that entries name. If a process of a program does not answer, the files that the program executed at the last look
/// stay in the list.
fn listed(entries: Vec<ListEntry>, huge: PageSize, running: &mut Running) -> Listed {
    let (mut paths, mut failed, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
    for entry in entries {
        let found = match &entry {
            ListEntry::File(path) => Ok(vec![path.clone().into()]),
            ListEntry::Relayout { paths, .. } => Ok(paths.iter().cloned().map(KeptPath::from).collect()),
            ListEntry::Package(name) => files_of_package(name)
                .map(|files| programs_of(&files, huge).into_iter().map(|one| one.path.into()).collect()),
            // A program that does not run yet is no failure: the next round searches again.
            ListEntry::Running(name) => {
                let (chosen, silent) =
                    executed_by(name, huge).map(|executed| (executed.chosen, executed.unanswered)).unwrap_or_default();
                let here = chosen.into_iter().filter(|(one, _)| is_here(one));
                let mut found: Vec<_> = here.map(|(one, user)| KeptPath { path: one.path, user }).collect();
                if !silent.is_empty() {
                    let before = running.remove(name).unwrap_or_default();
                    found.extend(
                        before
                            .into_iter()
                            .filter(|kept| found.iter().all(|now| now.path != kept.path))
                            .collect::<Vec<_>>(),
                    );
                    left_out.extend(silent.iter().map(Unanswered::to_string));
                }
                running.insert(name.clone(), found.clone());
                Ok(found)
            }
        };
        match found {
            Ok(found) => paths.extend(found),
            Err(error) => failed.push(format!("{error:#}")),
        }
    }
    let mut seen = BTreeSet::new();
    paths.retain(|kept: &KeptPath| seen.insert(kept.path.clone()));
    Listed { paths, failed, left_out }
}

/// True if the path leads to the same file here: in a container it can lead to another file.
fn is_here(one: &Chosen) -> bool {
    let identity = |file: &std::fs::File| file.metadata().map(|found| FileIdentity::of(&found)).ok();
    let here = open_regular_file(&one.path).ok().flatten();
    here.is_some_and(|here| identity(&here) == identity(&one.file))
}

/// Reports changes. True if no part of the file is in huge folios.
fn say(report: &KeeperReport) -> anyhow::Result<bool> {
    let name = printable(&report.path.display().to_string());
    match &report.kept {
        KeptFile::Same => {}
        KeptFile::Prepared(prepared) => {
            writeln!(Output::Standard, "{name}: {}", describe(prepared))?;
            if let Some(rest) = &prepared.rest {
                say!("pagelift: {name}: the rest stays small: {rest}");
            }
        }
        KeptFile::Refused(refusal) => say!("pagelift: {name}: {refusal}"),
        KeptFile::Unreadable(error) => say!("pagelift: {name}: {error}"),
    }
    match &report.locked {
        Some(locked @ LockedFile::All(_)) => writeln!(Output::Standard, "{name}: {locked}")?,
        Some(locked) => say!("pagelift: {name}: {locked}"),
        None => {}
    }
    Ok(matches!(report.kept, KeptFile::Refused(_) | KeptFile::Unreadable(_)))
}
