//! Packages from `make deb` and `make rpm`, made from the build that is under test.

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
    /// Debian's format.
    Deb,
    /// The format of Fedora and others.
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

/// The files beside the program that `make` must have built before packing.
pub fn packed_needs() -> [Need; 3] {
    let beside = |name| pagelift_binary().unwrap_or_default().with_file_name(name);
    let files =
        [beside("pagelift.spdx.json"), beside("third-party.txt"), target_folder().join("library/libpagelift.so")];
    files.map(|file| Need::File(file.to_string_lossy().into_owned()))
}

/// Compression of a package, in the words of `packaging/common`: low, because the linters require some.
const LITTLE: &str = "1";
const UNCOMPRESSED: &str = "none";

/// Returns the folder of the packages, with low compression. They are made once for all tests of a binary, which calls
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

/// Makes Debian packages without compression in `output`: an emulated CPU takes ten times as long to unpack others.
///
/// # Errors
/// They cannot be made.
pub fn pack_uncompressed(t: &Context, revision: &str, output: &Path) -> Result<()> {
    let mut make = packer(&workspace(), PackageKind::Deb, revision, output)?;
    make.env("COMPRESSION", UNCOMPRESSED);
    t.run(make)?.success()?;
    ensure!(files_of(output)?.len() == 3, "{:?}", files_of(output)?);
    Ok(())
}

/// Returns the command that packs the build with the scripts of a source tree.
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
