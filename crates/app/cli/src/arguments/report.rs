//! `pagelift report`: records to read and the page to write.

use clap::Args;
use std::path::PathBuf;

/// `pagelift report`.
#[derive(Args, Clone)]
pub struct ReportArgs {
    /// Write the page to this file; - is standard output [default: pagelift-report.html; with --markdown, standard
    /// output].
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Replace an existing file that is no page of `pagelift report`, too.
    #[arg(long)]
    pub overwrite: bool,
    /// Write Markdown for a pull request instead.
    #[arg(long)]
    pub markdown: bool,
    /// Files that `pagelift bench -o` has written; each becomes a section.
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
}
