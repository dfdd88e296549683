//! Source trees that are built by many short compiler processes, so that builds can be compared byte for byte.

use anyhow::{Context as _, Result, bail, ensure};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where Debian's package of the C++ tree puts it.
pub const GOOGLETEST: &str = "/usr/src/googletest";

/// A source tree and its build folder, which is always the same: compilers write its name into their output.
#[derive(Clone, Debug)]
pub struct SourceTree {
    kind: Kind,
    folder: PathBuf,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Cargo,
    Make,
}

impl SourceTree {
    /// A crate of this workspace with its dependencies, built by cargo without the network; all sources are already
    /// present.
    pub fn of_rust(folder: &Path) -> Self {
        Self { kind: Kind::Cargo, folder: folder.join("cargo-build") }
    }

    /// GoogleTest and its samples, built by make.
    pub fn of_cpp(folder: &Path) -> Self {
        Self { kind: Kind::Make, folder: folder.join("make-build") }
    }

    /// The compiler that does the work, as `--only` names it.
    pub fn compiler(&self) -> &'static str {
        match self.kind {
            Kind::Cargo => "rustc",
            Kind::Make => "cc1plus",
        }
    }

    /// Removes the outputs and prepares the folder for a new build.
    ///
    /// # Errors
    /// cmake refuses the tree, or the folder cannot be changed.
    pub fn clear(&self) -> Result<()> {
        if self.folder.exists() {
            fs::remove_dir_all(&self.folder)?;
        }
        fs::create_dir_all(&self.folder)?;
        if matches!(self.kind, Kind::Make) {
            let mut cmake = Command::new("cmake");
            cmake.args(["-DCMAKE_BUILD_TYPE=Release", "-DBUILD_GMOCK=OFF", "-Dgtest_build_samples=ON"]);
            let output = cmake.args(["-S", GOOGLETEST, "-B"]).arg(&self.folder).output().context("cannot run cmake")?;
            ensure!(output.status.success(), "cmake: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }

    /// The command that builds it.
    pub fn command(&self) -> Command {
        match self.kind {
            Kind::Cargo => {
                let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
                cargo.args(["build", "--offline", "--quiet", "-j2", "-p", "address-space", "--manifest-path"]);
                cargo.arg(crate::workspace().join("Cargo.toml")).arg("--target-dir").arg(&self.folder);
                // Files kept for the next build are not compared.
                cargo.env("CARGO_INCREMENTAL", "0");
                cargo
            }
            Kind::Make => {
                let mut make = Command::new("make");
                make.args(["--silent", "-j2", "-C"]).arg(&self.folder);
                make
            }
        }
    }

    /// The outputs of the compilers and linkers, by names below the folder.
    ///
    /// # Errors
    /// There are none, or one cannot be read.
    pub fn outputs(&self) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
        let mut outputs = BTreeMap::new();
        collect(&self.folder, &self.folder, &mut outputs)?;
        ensure!(!outputs.is_empty(), "nothing was built in {}", self.folder.display());
        Ok(outputs)
    }
}

fn collect(folder: &Path, root: &Path, outputs: &mut BTreeMap<PathBuf, Vec<u8>>) -> Result<()> {
    const MADE: [&str; 5] = ["o", "a", "rlib", "rmeta", "so"];
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, root, outputs)?;
        } else if path.extension().is_some_and(|e| MADE.iter().any(|made| e == *made)) {
            outputs.insert(path.strip_prefix(root)?.to_owned(), fs::read(&path)?);
        }
    }
    Ok(())
}

/// Compares the outputs of two builds.
///
/// # Errors
/// A file differs or is missing: the first one.
pub fn same_outputs(one: &BTreeMap<PathBuf, Vec<u8>>, other: &BTreeMap<PathBuf, Vec<u8>>) -> Result<()> {
    let names = |outputs: &BTreeMap<PathBuf, Vec<u8>>| outputs.keys().cloned().collect::<Vec<_>>();
    ensure!(names(one) == names(other), "other files: {:?} and {:?}", names(one), names(other));
    for (name, bytes) in one {
        if other[name] != *bytes {
            bail!("{} differs: {} and {} bytes", name.display(), bytes.len(), other[name].len());
        }
    }
    Ok(())
}

/// Number of programs of this name in a report of `run --only NAME --report`; all of them must be on huge pages.
///
/// # Errors
/// A program was not lifted, or the report has none.
pub fn lifted_programs(report: &Path, name: &str) -> Result<usize> {
    let text = fs::read_to_string(report).with_context(|| format!("no report {}", report.display()))?;
    for line in text.lines() {
        let one: serde_json::Value = serde_json::from_str(line)?;
        ensure!(one["program"] == name, "another program was lifted: {}", one["program"]);
        ensure!(one["covered_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "not lifted: {line}");
    }
    ensure!(!text.is_empty(), "no {name} was lifted");
    Ok(text.lines().count())
}
