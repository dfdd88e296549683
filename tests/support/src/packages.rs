//! The packages of `make deb` and `make rpm`, of what was built for the tests.

use crate::context::Context;
use crate::need::Need;
use crate::{pagelift_binary, scratch_folder, target_folder, workspace};
use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// A format of packages.
#[derive(Clone, Copy)]
pub enum PackageKind {
    /// Debian's.
    Deb,
    /// Fedora's and others'.
    Rpm,
}

impl PackageKind {
    fn name(self) -> &'static str {
        match self {
            Self::Deb => "deb",
            Self::Rpm => "rpm",
        }
    }
}

/// What `make` has built beside the program, and without which nothing is packed.
pub fn packed_needs() -> [Need; 3] {
    let beside = |name| pagelift_binary().unwrap_or_default().with_file_name(name);
    let files =
        [beside("pagelift.spdx.json"), beside("third-party.txt"), target_folder().join("library/libpagelift.so")];
    files.map(|file| Need::File(file.to_string_lossy().into_owned()))
}

/// How much a package is compressed, as `packaging/common` has it: little, and at all, as the linters want it.
const LITTLE: &str = "1";
/// For an emulated CPU, which takes ten times as long to unpack it.
const UNCOMPRESSED: &str = "none";

/// Returns the folder of the packages of what was built, little compressed: made once for all tests of a binary, which calls
/// [`remove_packages`] at its end.
///
/// # Errors
/// They cannot be made.
pub fn pack(t: &Context, kind: PackageKind, revision: &str) -> Result<PathBuf> {
    static MAKING: Mutex<()> = Mutex::new(());
    let _making = MAKING.lock().map_err(|_| anyhow::anyhow!("another test has failed to make packages"))?;
    let output = folder().join(format!("{}-{revision}", kind.name()));
    if !output.exists() {
        let part = output.with_extension("part");
        t.run(packer(&workspace(), kind, revision, &part)?)?.success()?;
        ensure!(files_of(&part)?.len() == 3, "{:?}", files_of(&part)?);
        fs::rename(&part, &output)?;
    }
    Ok(output)
}

/// Puts Debian packages of what was built into `output`, for an emulated machine: without compression.
///
/// # Errors
/// They cannot be made.
pub fn pack_for_emulation(t: &Context, revision: &str, output: &Path) -> Result<()> {
    let mut make = packer(&workspace(), PackageKind::Deb, revision, output)?;
    make.env("COMPRESSION", UNCOMPRESSED);
    t.run(make)?.success()?;
    ensure!(files_of(output)?.len() == 3, "{:?}", files_of(output)?);
    Ok(())
}

/// The command that packs what was built by the scripts of a source tree.
///
/// # Errors
/// Nothing was built.
pub fn packer(sources: &Path, kind: PackageKind, revision: &str, output: &Path) -> Result<Command> {
    let programs = pagelift_binary()?.canonicalize()?.parent().context("a folder")?.to_owned();
    let mut make = Command::new(sources.join(format!("packaging/make-{}", kind.name())));
    make.arg(output).env("RELEASE", programs).env("REVISION", revision).env("COMPRESSION", LITTLE);
    make.env("CARGO_TARGET_DIR", target_folder()).env("SOURCE_DATE_EPOCH", "1700000000");
    Ok(make)
}

/// Removes the packages that this process has made.
pub fn remove_packages() {
    let _ = fs::remove_dir_all(folder());
}

/// The files of a folder, in order.
///
/// # Errors
/// It cannot be read.
pub fn files_of(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)?.flatten().map(|entry| entry.path()).collect();
    files.sort();
    Ok(files)
}

fn folder() -> PathBuf {
    scratch_folder().join(format!("packages.{}", std::process::id()))
}
