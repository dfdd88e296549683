//! The folders of Pagelift's files: next to each other in a build or after `cargo install`, in `bin` and
//! `libexec/pagelift` once installed.

use crate::SessionError;
use std::path::{Path, PathBuf};

/// The program of the commands that users type.
const PROGRAM: &str = "pagelift";
/// The program of the commands that measure, such as `pagelift bench`.
pub const MEASURE: &str = "pagelift-measure";
/// Relative to `bin`: the folder of all files that users do not call by name.
const INNER_FOLDER: &str = "../libexec/pagelift";
/// Relative to that folder: the folder of `pagelift`.
const PROGRAM_FOLDER: &str = "../../bin";

/// Returns a file of Pagelift that is next to this program or in its `libexec` folder.
///
/// # Errors
/// The folders in which there is none; /proc cannot be read.
pub fn find(name: &str) -> Result<PathBuf, SessionError> {
    in_folders(name, &[".", INNER_FOLDER])
}

/// Returns the file of `pagelift`, which is this program or one that has executed it.
///
/// # Errors
/// As [`find`].
pub fn program() -> Result<PathBuf, SessionError> {
    in_folders(PROGRAM, &[".", PROGRAM_FOLDER])
}

fn in_folders(name: &str, folders: &[&str]) -> Result<PathBuf, SessionError> {
    let own = std::env::current_exe();
    let own = own.map_err(|error| SessionError::io("reading /proc/self/exe (is /proc mounted?)", error))?;
    let beside = own.parent().unwrap_or(Path::new("/"));
    let places = folders.iter().map(|folder| beside.join(folder).join(name));
    let found = places.filter(|place| place.is_file()).find_map(|place| place.canonicalize().ok());
    found.ok_or_else(|| {
        SessionError::Refused(format!(
            "found no {name} in {} or its {}; fix: `make install`, or in a source tree `cargo build --release`",
            beside.display(),
            folders[folders.len() - 1]
        ))
    })
}
