//! `pagelift report`: pages for people of what `pagelift bench -o` has recorded.

use anyhow::{Context, bail, ensure};
use bench_report::{MOST_RECORDS, Source, html, markdown};
use cli::arguments::report::ReportArgs;
use cli::commands::reading::confine_to;
use cli::output::Output;
use confinement::Reads;
use experiment::record::read;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Where the page goes if nothing is said.
const PAGE: &str = "pagelift-report.html";

/// Reads the records and writes the page.
pub fn run(args: &ReportArgs) -> anyhow::Result<()> {
    let count = args.files.len();
    ensure!(count <= MOST_RECORDS, "{count} files are too many for a page; fix: {MOST_RECORDS} at most");
    let open = |path: &PathBuf| Ok((path.display().to_string(), File::open(path).with_context(|| named(path))?));
    let files = args.files.iter().map(open).collect::<anyhow::Result<Vec<_>>>()?;
    let is_markdown = args.markdown;
    // The thread that reads what others wrote has no other rights; this one writes the page.
    let page = std::thread::spawn(move || page(files, is_markdown)).join();
    let page = page.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    let output = args.output.clone().or_else(|| (!is_markdown).then(|| PathBuf::from(PAGE)));
    match output.filter(|path| path != Path::new("-")) {
        Some(path) => write(&path, &args.files, &page),
        None => Ok(Output::Standard.print(&page)?),
    }
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

fn write(path: &Path, records: &[PathBuf], page: &str) -> anyhow::Result<()> {
    let is =
        |other: &PathBuf| path.canonicalize().is_ok_and(|path| other.canonicalize().is_ok_and(|other| path == other));
    if records.iter().any(is) {
        bail!("{} is a record, which the page would replace; fix: another -o", named(path));
    }
    std::fs::write(path, page).with_context(|| format!("writing {}", named(path)))?;
    Ok(writeln!(Output::Standard, "{}: {} KB", named(path), page.len().div_ceil(1000))?)
}
