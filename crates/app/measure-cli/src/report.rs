//! `pagelift report`: pages for people from the records of `pagelift bench -o`.

use anyhow::{Context, bail, ensure};
use bench::record::read;
use bench_report::{MOST_RECORDS, Source, html, is_page, markdown};
use cli::arguments::report::ReportArgs;
use cli::commands::reading::confine_to;
use cli::output::Output;
use confinement::Reads;
use linux::written_file::{self, Target, target};
use process_view::open_regular_file;
use std::fs::{File, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The default path of the page.
const PAGE: &str = "pagelift-report.html";

/// Bytes at the end of a page that contain its footer.
const PAGE_END: u64 = 16 << 10;

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
        Some(path) => write(&path, args, &page),
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
/// it. A file that is no page is replaced only with `overwrite`.
fn put(path: &Path, is_named: bool, overwrite: bool, page: &str) -> io::Result<()> {
    let path = &match if is_named { target(path)? } else { Target::Name(path.to_owned()) } {
        Target::Name(path) => path,
        Target::Descriptor(path) => return std::fs::write(path, page),
    };
    let found = path.symlink_metadata().map(|found| found.file_type());
    if !overwrite && found.as_ref().is_ok_and(|found| found.is_file()) && !is_replaceable(path)? {
        return Err(io::Error::other(
            "found a file that is no page of `pagelift report`, needed such a page, or no file; fix: -o with another file, or \
             --overwrite",
        ));
    }
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

/// True for a page, and for an empty file.
fn is_replaceable(path: &Path) -> io::Result<bool> {
    let Some(mut file) = open_regular_file(path)? else { return Ok(false) };
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(PAGE_END)))?;
    let mut end = Vec::new();
    file.take(PAGE_END).read_to_end(&mut end)?;
    Ok(length == 0 || is_page(&String::from_utf8_lossy(&end)))
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

fn write(path: &Path, args: &ReportArgs, page: &str) -> anyhow::Result<()> {
    let is =
        |other: &PathBuf| path.canonicalize().is_ok_and(|path| other.canonicalize().is_ok_and(|other| path == other));
    if args.files.iter().any(is) {
        bail!("{} is a record, which the page would replace; fix: another -o", named(path));
    }
    put(path, args.output.is_some(), args.overwrite, page).with_context(|| format!("writing {}", named(path)))?;
    Ok(writeln!(Output::Standard, "{}: {} KB", named(path), page.len().div_ceil(1000))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use measure::record::{Design, Header, Record};
    use measure::toggle::Per;

    #[test]
    fn only_a_former_page_or_an_empty_file_is_replaced_unless_asked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        let header =
            Header::new(Design::Runs, "x".to_owned(), vec!["thp".to_owned()], "runs".to_owned(), Per::Second, 1);
        let record = Record { header, events: Vec::new() };
        let sources = [Source { name: "a".to_owned(), record }];
        let content = || std::fs::read_to_string(&path).unwrap();
        for page in [html(&sources), markdown(&sources)] {
            for former in ["", &html(&sources), &markdown(&sources)] {
                std::fs::write(&path, former).unwrap();
                put(&path, true, false, &page).unwrap();
                assert_eq!(content(), page);
            }
            let foreign = "my notes\n";
            std::fs::write(&path, foreign).unwrap();
            for is_named in [true, false] {
                let error = put(&path, is_named, false, &page).unwrap_err().to_string();
                assert!(error.contains("found a file that is no page") && error.contains("--overwrite"), "{error}");
                assert_eq!(content(), foreign);
            }
            put(&path, true, true, &page).unwrap();
            assert_eq!(content(), page);
            std::fs::remove_file(&path).unwrap();
            put(&path, true, false, &page).unwrap();
        }
    }
}
