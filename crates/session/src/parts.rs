//! Where the files of Pagelift lie: beside each other in a build or after `cargo install`, in `bin` and `libexec/pagelift`
//! once installed.

use crate::SessionError;
use std::path::{Path, PathBuf};

/// The program of the commands that users type.
const PROGRAM: &str = "pagelift";
/// The program of the commands that measure, such as `pagelift bench`.
pub const MEASURE: &str = "pagelift-measure";
/// From `bin`, where everything lies that users do not call by name.
const INNER_FOLDER: &str = "../libexec/pagelift";
/// From there, where `pagelift` lies.
const PROGRAM_FOLDER: &str = "../../bin";

/// Returns a file of Pagelift that lies beside this program or in its `libexec` folder.
///
/// # Errors
/// In which folders there is none; /proc cannot be read.
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
            "no {name}: it is neither in {} nor in {} of it; fix: `make install`, or in a source tree `cargo build --release`",
            beside.display(),
            folders[folders.len() - 1]
        ))
    })
}
