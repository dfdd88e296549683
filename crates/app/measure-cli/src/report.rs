//! `pagelift report`: pages for people from the records of `pagelift bench -o`.

use anyhow::{Context, bail, ensure};
use bench::record::read;
use bench_report::{MOST_RECORDS, Source, html, markdown};
use cli::arguments::report::ReportArgs;
use cli::commands::reading::confine_to;
use cli::output::Output;
use confinement::Reads;
use linux::written_file::{self, Target, target};
use process_view::open_regular_file;
use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The default path of the page.
const PAGE: &str = "pagelift-report.html";

/// Reads the records and writes the page.
pub fn run(args: &ReportArgs) -> anyhow::Result<()> {
    let count = args.files.len();
    ensure!(count <= MOST_RECORDS, "{count} files are too many for a page; fix: {MOST_RECORDS} at most");
    let open = |path: &PathBuf| anyhow::Ok((path.display().to_string(), open_record(path)?));
    let files = args.files.iter().map(open).collect::<anyhow::Result<Vec<_>>>()?;
    let is_markdown = args.markdown;
    // The thread that reads foreign records has no other rights; this one writes the page.
    let page = std::thread::spawn(move || page(files, is_markdown)).join();
    let page = page.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    let output = args.output.clone().or_else(|| (!is_markdown).then(|| PathBuf::from(PAGE)));
    match output.filter(|path| path != Path::new("-")) {
        Some(path) => write(&path, args.output.is_some(), &args.files, &page),
        None => Ok(Output::Standard.print_whole(&page)?),
    }
}

/// Opens a record, which is a regular file: for a pipe nobody may ever write to it is not waited.
pub fn open_record(path: &Path) -> anyhow::Result<File> {
    let found = open_regular_file(path).with_context(|| named(path))?;
    found.with_context(|| format!("{}: found a non-regular file, needed a file of `bench -o`", named(path)))
}

/// Writes a page to a path. A regular file is replaced by a new one. A link under the fixed name is replaced too, since any
/// user who can write to the folder may have put it there. A link at a path that the user has named is followed if root or
/// the user has made it. Another kind of file, such as a pipe, is written to if the user has named it and no stranger has made
/// it.
fn put(path: &Path, is_named: bool, page: &str) -> io::Result<()> {
    let path = &match if is_named { target(path)? } else { Target::Name(path.to_owned()) } {
        Target::Name(path) => path,
        Target::Descriptor(path) => return std::fs::write(path, page),
    };
    let found = path.symlink_metadata().map(|found| found.file_type());
    if found.is_ok_and(|found| !found.is_file() && !found.is_symlink()) {
        if !is_named {
            return Err(io::Error::other(
                "found a file of another kind, needed: a regular file, or none; fix: -o FILE",
            ));
        }
        return written_file::create(path)?.write_all(page.as_bytes());
    }
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mode = Permissions::from_mode(0o666);
    let mut file = tempfile::Builder::new().prefix(".pagelift-report-").permissions(mode).tempfile_in(folder)?;
    file.write_all(page.as_bytes())?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

fn named(path: &Path) -> String {
    process_view::printable(&path.display().to_string())
}

fn page(files: Vec<(String, File)>, is_markdown: bool) -> anyhow::Result<String> {
    confine_to(Reads::Own);
    let read = |(name, file): (String, File)| {
        let record = read(&file).with_context(|| process_view::printable(&name))?;
        anyhow::Ok(Source { name, record })
    };
    let sources = files.into_iter().map(read).collect::<anyhow::Result<Vec<_>>>()?;
    Ok(if is_markdown { markdown(&sources) } else { html(&sources) })
}

fn write(path: &Path, is_named: bool, records: &[PathBuf], page: &str) -> anyhow::Result<()> {
    let is =
        |other: &PathBuf| path.canonicalize().is_ok_and(|path| other.canonicalize().is_ok_and(|other| path == other));
    if records.iter().any(is) {
        bail!("{} is a record, which the page would replace; fix: another -o", named(path));
    }
    put(path, is_named, page).with_context(|| format!("writing {}", named(path)))?;
    Ok(writeln!(Output::Standard, "{}: {} KB", named(path), page.len().div_ceil(1000))?)
}
