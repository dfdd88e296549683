//! The path of a source, and its present state.

use crate::SourceKey;
use crate::medium::Medium;
use linux::watch::watched;
use process_view::{FileIdentity, FoundFile};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Maximum length of a name in the store, in bytes.
const LONGEST_LABEL: usize = 64;

/// The path of an open file and the label derived from it.
#[derive(Debug)]
pub(crate) struct Origin {
    /// The kernel's path of the file; empty if there is none.
    pub path: PathBuf,
    /// The last part of the path, reduced to safe characters: the image's own name, for maps and profilers.
    pub label: String,
}

/// The origin of an open file.
pub(crate) fn of(file: &File) -> Origin {
    let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap_or_default();
    let path = without_mark(path);
    let label = label_of(path.file_name().unwrap_or_default());
    Origin { path, label }
}

/// The kernel marks the path of a removed file.
fn without_mark(path: PathBuf) -> PathBuf {
    let bytes = path.into_os_string().into_vec();
    let bytes = bytes.strip_suffix(b" (deleted)").unwrap_or(&bytes);
    PathBuf::from(OsStr::from_bytes(bytes))
}

fn label_of(name: &OsStr) -> String {
    let harmless = |&byte: &u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' | b'+' => char::from(byte),
        _ => '_',
    };
    let label: String = name.as_bytes().iter().take(LONGEST_LABEL).map(harmless).collect();
    match label.trim_start_matches(['.', '-']) {
        "" => "image".to_owned(),
        label => label.to_owned(),
    }
}

/// The state of an image's source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SourceState {
    /// The file is still at its path, unchanged.
    Same,
    /// Another file is there, or it was changed.
    Changed,
    /// Nothing is there.
    Gone,
    /// The path cannot be read.
    Unknown,
}

/// Returns the state of the file at a source's path. A file system that a user's program serves is not asked: users can mount
/// one over a folder of theirs at any time.
pub(crate) fn state_of(path: &Path, key: &SourceKey) -> SourceState {
    match watched(|| format!("looking for {}", path.display()), || FoundFile::at(path)) {
        Ok(Some(found)) => state_of_found(found, key),
        Ok(None) => SourceState::Changed,
        Err(error) if [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory].contains(&error.kind()) => {
            SourceState::Gone
        }
        Err(_) => SourceState::Unknown,
    }
}

/// A file with the source's identity that cannot be opened is taken for the source.
fn state_of_found(found: FoundFile, key: &SourceKey) -> SourceState {
    match found.metadata() {
        Ok(metadata) if FileIdentity::of(&metadata) != key.file() => return SourceState::Changed,
        Ok(_) => {}
        Err(_) => return SourceState::Unknown,
    }
    let medium = found.open().ok().and_then(|file| Medium::of(&file, key.file().device).ok());
    if medium.is_some_and(|medium| medium != key.medium()) { SourceState::Changed } else { SourceState::Same }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_harmless() {
        for (name, label) in [
            ("mariadbd", "mariadbd"),
            ("libfoo-1.2+x.so.3", "libfoo-1.2+x.so.3"),
            ("..", "image"),
            (".hidden", "hidden"),
            ("a b\n/\x1b[31m", "a_b____31m"),
            ("", "image"),
        ] {
            assert_eq!(label_of(OsStr::new(name)), label, "{name:?}");
        }
        assert_eq!(label_of(OsStr::new(&"a".repeat(300))).len(), LONGEST_LABEL);
    }

    #[test]
    fn the_path_of_a_removed_file_is_told_without_the_kernels_mark() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap().join("file");
        fs::write(&path, "x").unwrap();
        let file = File::open(&path).unwrap();
        assert_eq!(of(&file).path, path);
        fs::remove_file(&path).unwrap();
        assert_eq!(of(&file).path, path);
    }
}
