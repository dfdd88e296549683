//! Where a source lies: for people, and to tell who may read it.

use observation::FileIdentity;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A name in the store is no longer than this.
const LONGEST_LABEL: usize = 64;

/// What the path of an open file tells.
#[derive(Debug)]
pub(crate) struct Origin {
    /// The path by which the kernel knows the file; empty where it tells none.
    pub path: PathBuf,
    /// The last part of it, of harmless characters alone: the image's own name, for maps and profilers.
    pub label: String,
    /// Every user can read the file: its mode and those of all folders on the way allow it.
    pub readable_by_everybody: bool,
}

/// The origin of an open file whose identity is known.
pub(crate) fn of(file: &File, identity: &FileIdentity) -> Origin {
    let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap_or_default();
    let path = without_mark(path);
    let label = label_of(path.file_name().unwrap_or_default());
    let readable_by_everybody = is_readable_by_everybody(&path, identity);
    Origin { path, label, readable_by_everybody }
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

/// A file that nobody finds at its path, as one that was removed or lies in a container, counts as not readable.
fn is_readable_by_everybody(path: &Path, identity: &FileIdentity) -> bool {
    let readable =
        fs::metadata(path).is_ok_and(|found| FileIdentity::of(&found) == *identity && found.mode() & 0o004 != 0);
    let reachable = |folder: &Path| fs::metadata(folder).is_ok_and(|found| found.mode() & 0o001 != 0);
    path.is_absolute() && readable && path.ancestors().skip(1).all(reachable)
}

/// What has become of an image's source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SourceState {
    /// The very file is still at its path, unchanged.
    Same,
    /// Another file is there, or it was changed.
    Changed,
    /// Nothing is there.
    Gone,
    /// The path cannot be looked at.
    Unknown,
}

/// What is now at the path of a source.
pub(crate) fn state_of(path: &Path, identity: &FileIdentity) -> SourceState {
    match fs::metadata(path) {
        Ok(found) if FileIdentity::of(&found) == *identity => SourceState::Same,
        Ok(_) => SourceState::Changed,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => SourceState::Gone,
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => SourceState::Gone,
        Err(_) => SourceState::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

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
    fn a_file_below_a_private_folder_is_not_for_everybody() {
        let folder = tempfile::tempdir().unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        set(folder.path(), 0o755);
        let path = folder.path().canonicalize().unwrap().join("file");
        fs::write(&path, "x").unwrap();
        let readable = || {
            let file = File::open(&path).unwrap();
            of(&file, &FileIdentity::of(&file.metadata().unwrap())).readable_by_everybody
        };
        set(&path, 0o644);
        // As far as the temporary folder itself can be reached.
        let reachable = folder.path().ancestors().skip(1).all(|p| p.metadata().unwrap().mode() & 1 != 0);
        assert_eq!(readable(), reachable);
        set(&path, 0o640);
        assert!(!readable());
        set(&path, 0o644);
        set(folder.path(), 0o700);
        assert!(!readable());
        let file = File::open(&path).unwrap();
        let identity = FileIdentity::of(&file.metadata().unwrap());
        assert_eq!(state_of(&path, &identity), SourceState::Same);
        fs::remove_file(&path).unwrap();
        assert_eq!(of(&file, &identity).path, path);
        assert_eq!(state_of(&path, &identity), SourceState::Gone);
    }
}
