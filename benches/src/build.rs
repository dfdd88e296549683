//! Builds the C programs of the benchmarks, in ways that matter to huge pages.

use crate::bench::Bench;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;
use test_support::default_huge_page;

/// How a program is linked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Linking {
    /// The compiler's default, as distributions ship it.
    Default,
    /// Every segment aligned to a huge page, in memory and in the file.
    HugeSegments,
    /// Like `HugeSegments`, with constants and headers in the code's segment, as linkers did before 2018: two segments.
    TwoHugeSegments,
    /// Like `TwoHugeSegments`, at a fixed address.
    TwoHugeSegmentsNoPie,
}

impl Bench {
    /// Builds `sources` (paths below the benches' `programs` folder, or absolute) into the temporary folder.
    pub(crate) fn build(&self, name: &str, sources: &[&str], linking: Linking, more: &[&str]) -> Result<PathBuf> {
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
        let output = self.folder.path().join(name);
        let linked = self.folder.path().join(format!("{name}.linked"));
        let mut command = Command::new(&compiler);
        command.args(["-O2", "-Wall", "-Wa,--noexecstack", "-o"]).arg(&linked).args(more);
        command.args(sources.iter().map(|source| folder.join(source)));
        if linking != Linking::Default {
            let size = default_huge_page()?.bytes();
            command.arg(format!("-Wl,-z,max-page-size={size},-z,common-page-size={size}"));
        }
        if matches!(linking, Linking::TwoHugeSegments | Linking::TwoHugeSegmentsNoPie) {
            command.arg("-Wl,-z,noseparate-code");
        }
        if linking == Linking::TwoHugeSegmentsNoPie {
            command.arg("-no-pie");
        }
        let result = command
            .output()
            .with_context(|| format!("no C compiler `{}`; install one, gcc for example", compiler.display()))?;
        if !result.status.success() {
            bail!("{name} could not be built: {}", String::from_utf8_lossy(&result.stderr).trim());
        }
        // A linker writes at scattered offsets, and so leaves the file in small pieces in the page cache, different
        // each time, which costs a plain program up to a third of its speed. A file written in one go is in pieces as
        // large as the file system makes them: the best case of a plain program, and the same in every run.
        std::fs::write(&output, std::fs::read(&linked)?)?;
        std::fs::set_permissions(&output, std::fs::metadata(&linked)?.permissions())?;
        std::fs::remove_file(&linked)?;
        Ok(output)
    }

    /// The scattered-code worker, linked in the given way.
    pub(crate) fn build_scattered(&self, name: &str, linking: Linking) -> Result<PathBuf> {
        let assembly = format!("../../crates/measure/demo-program/src/scattered-{}.s", std::env::consts::ARCH);
        self.build(name, &["scattered-worker.c", &assembly], linking, &[])
    }
}
