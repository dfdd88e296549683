//! The name of the program that a process executes.
//!
//! A file can have several names: on Debian, redis-server is a link to redis-check-rdb. The link is in memory that the process
//! can change, so it is believed only if it leads to the executed file.

use crate::{ProcessFiles, ProcessMemoryFile, executed_metadata, metadata_in_root, target_in_root};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Returns the executed path if it leads to the program's file; a script's path does not. After an upgrade has replaced the
/// file, the path leads to the new file at the same place.
pub fn executed_link(process: &ProcessFiles) -> Option<String> {
    let address = process.auxiliary().ok()?.executed_path()?;
    let path = ProcessMemoryFile::of(process).ok()?.text(address)?;
    let is_own = match process.executed_path()?.to_string_lossy().strip_suffix(DELETED) {
        Some(replaced) => target_in_root(process, Path::new(&path)).ok()? == Path::new(replaced),
        None => {
            let (found, own) = (metadata_in_root(process, Path::new(&path)).ok()?, executed_metadata(process)?);
            (found.dev(), found.ino()) == (own.dev(), own.ino())
        }
    };
    is_own.then_some(path)
}

/// The mark in `/proc/PID/exe` if the file has been removed or replaced.
const DELETED: &str = " (deleted)";

/// Returns the name of the link by which the program was executed, or of its file, which names a version (`python3.11`). If the
/// file is hidden, returns the short name in `comm`. `None` if the process has ended. Waits for a process that holds the lock of
/// its memory.
pub fn program_name(process: &ProcessFiles) -> Option<String> {
    match file_name(process) {
        Some(file) => Some(link_name(process, &file).unwrap_or(file)),
        None => process.name().ok(),
    }
}

/// Returns the name of the executed file. An upgrade replaces the file, and the process keeps the name.
pub fn file_name(process: &ProcessFiles) -> Option<String> {
    let name = process.executed_path()?.file_name()?.to_string_lossy().into_owned();
    Some(without_mark(&name).to_owned())
}

/// Returns a path of `/proc/PID/exe` without the mark of a file that was removed or replaced.
pub fn without_mark(path: &str) -> &str {
    path.strip_suffix(DELETED).unwrap_or(path)
}

/// Returns the name of the link by which the program was executed, unless the file's name says the same and more.
pub fn link_name(process: &ProcessFiles, file: &str) -> Option<String> {
    let link = executed_link(process)?;
    let name = link.rsplit('/').next().filter(|name| !name.is_empty())?;
    (!file.starts_with(name)).then(|| name.to_owned())
}
