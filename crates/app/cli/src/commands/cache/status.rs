//! `pagelift cache status`.

use super::huge_page;
use crate::commands::reading::confine_to;
use crate::output::Output;
use crate::text::number::counted;
use crate::text::table::{align_right, table, trimmed};
use crate::text::unanswered;
use address_space::{PageSize, format_bytes};
use anyhow::{Context, bail};
use clap::Args;
use confinement::Reads;
use page_cache::{FileStatus, MOST_LOOKED_AT, MappedFiles, MappedPart, UserStatus, status_of};
use process_view::{Unanswered, open_regular_file, printable};
use serde::Serialize;
use std::fs::File;
use std::path::PathBuf;

/// Maximum number of bytes of all files that are checked, holes included.
const MOST_LOOKED_AT_IN_ALL: u64 = 16 * MOST_LOOKED_AT;
/// Number of processes that are named for one file.
const MOST_NAMED: usize = 5;

/// `pagelift cache status`.
#[derive(Args, Clone)]
pub struct StatusArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Files [default: all programs and libraries that run and have at least one huge page].
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
}

#[derive(Serialize)]
struct Listing {
    format: &'static str,
    version: u32,
    page_size: PageSize,
    files: Vec<Row>,
    /// Mapped files that cannot be read.
    not_readable: u64,
    /// Number of mapped files that were not checked, since all together are too large.
    not_looked_at: u64,
    /// Processes that are not among the users: this user may not read them, or `too_many` counts them.
    processes_not_permitted: u64,
    /// Processes that are not among the users because all together map too many files.
    #[serde(skip)]
    too_many: u64,
    /// Processes that do not answer, so that they are not among the users.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unanswered: Vec<Unanswered>,
}

#[derive(Serialize)]
struct Row {
    path: String,
    #[serde(flatten)]
    status: FileStatus,
}

/// Prints the state of files in the page cache.
pub fn run(args: &StatusArgs) -> anyhow::Result<()> {
    confine_to(Reads::Processes);
    let listing = read(args)?;
    let out = Output::Standard;
    if args.json {
        out.print_json(&listing)?;
    } else {
        out.print(&text(&listing, args.files.is_empty()))?;
    }
    Ok(())
}

fn read(args: &StatusArgs) -> anyhow::Result<Listing> {
    let (page_size, mapped) = (huge_page()?, MappedFiles::read()?);
    let processes_not_permitted = mapped.not_permitted + mapped.too_many;
    let mut listing = Listing {
        format: "pagelift-cache-status",
        version: 1,
        page_size,
        files: Vec::new(),
        not_readable: 0,
        not_looked_at: 0,
        processes_not_permitted,
        too_many: mapped.too_many,
        unanswered: mapped.unanswered.clone(),
    };
    for path in &args.files {
        let explain = || format!("{}", path.display());
        let Some(file) = open_regular_file(path).with_context(explain)? else {
            bail!("{}: found a non-regular file, needed a regular file", path.display());
        };
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.clone()).display().to_string();
        let status = status_of(&file, &mapped, page_size).with_context(explain)?;
        listing.files.push(Row { path, status });
    }
    if args.files.is_empty() {
        listing.read_running(&mapped);
    }
    Ok(listing)
}

impl Listing {
    fn read_running(&mut self, mapped: &MappedFiles) {
        let mut large = Vec::new();
        for part in mapped.executed() {
            match part.open() {
                Ok(Some((_, identity))) if identity.size >= self.page_size.bytes() => large.push((identity.size, part)),
                Ok(_) => {}
                Err(_) => self.not_readable += 1,
            }
        }
        // Users choose the sizes: who has a file of a petabyte does not keep root from the others.
        large.sort_by_key(|(size, _)| *size);
        let mut left = MOST_LOOKED_AT_IN_ALL;
        for (size, part) in large {
            match left.checked_sub(size.min(MOST_LOOKED_AT)) {
                Some(rest) => left = rest,
                None => {
                    self.not_looked_at += 1;
                    continue;
                }
            }
            match part.open() {
                Ok(Some((file, _))) => self.read_mapped(&file, part, mapped),
                Ok(None) => {}
                Err(_) => self.not_readable += 1,
            }
        }
        self.files.sort_by(|a, b| (b.status.of, &a.path).cmp(&(a.status.of, &b.path)));
    }

    fn read_mapped(&mut self, file: &File, part: &MappedPart, mapped: &MappedFiles) {
        match status_of(file, mapped, self.page_size) {
            Ok(status) if status.of > 0 => {
                self.files.push(Row { path: part.mapping.path().unwrap_or_default().to_owned(), status });
            }
            Ok(_) => {}
            Err(_) => self.not_readable += 1,
        }
    }
}

fn text(listing: &Listing, running: bool) -> String {
    let mut text = match (listing.files.is_empty(), running) {
        (true, _) => format!("no program or library that runs has {} or more\n", listing.page_size),
        (false, _) => format!("{}\n", rows(&listing.files)),
    };
    let gaining: Vec<String> = listing.files.iter().filter_map(gains).collect();
    if !gaining.is_empty() {
        text += &format!("\nWould gain by a base that agrees with the file's offsets modulo {}\n", listing.page_size);
        text += &gaining.concat();
        text += "A start by `pagelift run` is placed so; of a program of your own, `pagelift align FILE` has each start \
                 placed so.\n";
    }
    if listing.not_readable > 0 {
        text += &format!("note: {} cannot be read\n", counted(listing.not_readable, "mapped file"));
    }
    if listing.not_looked_at > 0 {
        let bound = format_bytes(MOST_LOOKED_AT_IN_ALL);
        text += &format!(
            "note: {} not checked: all together have more than {bound}\n",
            counted(listing.not_looked_at, "mapped file")
        );
    }
    for Row { path, status } in listing.files.iter().filter(|row| row.status.not_looked_at > 0) {
        let rest = format_bytes(status.not_looked_at);
        text += &format!("note: {}: its last {rest} were not checked\n", printable(path));
    }
    text += &unanswered::not_permitted(listing.processes_not_permitted - listing.too_many, "cache status");
    if listing.too_many > 0 {
        text += &format!(
            "note: {} not counted: all processes together map too many files\n",
            counted(listing.too_many, "process")
        );
    }
    text + &unanswered::notes(&listing.unanswered)
}

fn rows(files: &[Row]) -> String {
    let mut rows = table(&["huge", "cached", "of", "users", "file"]);
    for Row { path, status } in files {
        rows.add_row([
            format_bytes(status.huge),
            status.cached.map_or_else(|| "unknown".to_owned(), format_bytes),
            format_bytes(status.of),
            status.users.len().to_string(),
            printable(path),
        ]);
    }
    (0..=3).for_each(|column| align_right(&mut rows, column));
    trimmed(&rows)
}

fn gains(row: &Row) -> Option<String> {
    let mut users: Vec<&UserStatus> = row.status.users.iter().filter(|user| user.gain > 0).collect();
    users.sort_by_key(|user| (std::cmp::Reverse(user.gain), user.pid));
    let most = users.first()?.gain;
    let named: Vec<String> = users.iter().take(MOST_NAMED).map(|user| format!("{}[{}]", user.name, user.pid)).collect();
    let more = if users.len() > MOST_NAMED { format!(" and {} more", users.len() - MOST_NAMED) } else { String::new() };
    Some(format!("  {}: {}{more}, up to {}\n", printable(&row.path), named.join(", "), format_bytes(most)))
}
