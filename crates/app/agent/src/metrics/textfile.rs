//! The file that node_exporter's textfile collector reads.

use super::snapshot::Snapshot;
use super::text::classic;
use linux::written_file;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Writes a snapshot, and replaces the file at `path` by rename: a reader never sees a partial file. The name of the new file does
/// not end with `.prom`, so that node_exporter never reads it.
///
/// # Errors
/// Those of writing; a path without a file name is `InvalidInput`.
pub fn write(path: &Path, snapshot: &Snapshot) -> io::Result<()> {
    let Some(name) = path.file_name() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "needed: a path with a file name"));
    };
    let mut new_name = name.to_owned();
    new_name.push(".new");
    let new = path.with_file_name(new_name);
    let mut file = written_file::create_anew(&new)?;
    file.set_permissions(fs::Permissions::from_mode(0o644))?;
    file.write_all(classic(snapshot).as_bytes())?;
    fs::rename(&new, path)
}
