//! Reads the configuration's folder.

use super::configuration::{ConfigFile, Configuration};
use super::error::ConfigError;
use linux::FileIdentity;
use linux::owner::is_of_trusted_user;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Largest size of a file in bytes.
const LARGEST: u64 = 1 << 20;
/// Most files.
const MOST_FILES: usize = 256;
/// Mode bits that permit others to write.
const OTHERS_WRITE: u32 = 0o022;

/// Reads all files `*.toml` of a folder, in the order of their names. A missing folder has no rules.
///
/// # Errors
/// All errors that were found.
pub fn read_folder(folder: &Path) -> Result<Configuration, Vec<ConfigError>> {
    let names = names_in(folder).map_err(|error| vec![error])?;
    let (files, errors): (Vec<_>, Vec<_>) = names.iter().map(|path| read_file(path)).partition(Result::is_ok);
    let errors: Vec<ConfigError> = errors.into_iter().filter_map(Result::err).collect();
    if !errors.is_empty() {
        return Err(errors);
    }
    Configuration::read(&files.into_iter().flatten().collect::<Vec<_>>())
}

/// Names, files and times of a folder's rules: they differ if the rules have changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stamp(Vec<(PathBuf, FileIdentity)>);

impl Stamp {
    /// Looks at the files of a folder. Links are followed: a ConfigMap is a folder of links.
    pub fn of(folder: &Path) -> Self {
        let of_file = |path: PathBuf| {
            let identity = FileIdentity::of(&fs::metadata(&path).ok()?);
            Some((path, identity))
        };
        Self(names_in(folder).unwrap_or_default().into_iter().filter_map(of_file).collect())
    }
}

fn whole(path: &Path, message: impl Into<String>) -> ConfigError {
    ConfigError { file: path.display().to_string(), place: None, message: message.into() }
}

fn names_in(folder: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(whole(folder, format!("cannot be read: {error}"))),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| whole(folder, format!("cannot be read: {error}")))?.path();
        let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if path.extension().is_some_and(|extension| extension == "toml") && !is_hidden {
            paths.push(path);
        }
        if paths.len() > MOST_FILES {
            return Err(whole(folder, format!("more than {MOST_FILES} files; needed: fewer")));
        }
    }
    paths.sort();
    Ok(paths)
}

fn read_file(path: &Path) -> Result<ConfigFile, ConfigError> {
    let failed = |error: std::io::Error| whole(path, format!("cannot be read: {error}"));
    // A pipe is not waited for.
    let file = File::options()
        .read(true)
        .custom_flags(nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY)
        .open(path)
        .map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(whole(path, "not a regular file; needed: one"));
    }
    if !is_of_trusted_user(&metadata) || metadata.mode() & OTHERS_WRITE != 0 {
        let found = format!("found user {} and mode {:o}", metadata.uid(), metadata.mode() & 0o7777);
        let needed =
            "needed: a file of root or of this user that no other user may write; fix: chown root and chmod 644";
        return Err(whole(path, format!("others could change the rules: {found}, {needed}")));
    }
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > LARGEST {
        return Err(whole(path, format!("more than {} KiB; needed: less", LARGEST >> 10)));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        whole(path, format!("not UTF-8 after byte {}; needed: a text", error.utf8_error().valid_up_to()))
    })?;
    Ok(ConfigFile { name: path.display().to_string(), text })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_stamp_differs_if_a_file_does() {
        let folder = tempfile::tempdir().unwrap();
        let stamp = || Stamp::of(folder.path());
        let (file, other) = (folder.path().join("50.toml"), folder.path().join("60.toml"));
        assert_eq!((stamp(), Stamp::of(Path::new("/nowhere"))), (Stamp::default(), Stamp::default()));
        fs::write(&file, "a").unwrap();
        let first = stamp();
        assert_eq!(stamp(), first);
        fs::write(folder.path().join("README"), "a").unwrap();
        assert_eq!(stamp(), first, "another file");
        fs::rename(&file, &other).unwrap();
        assert_ne!(stamp(), first, "another name");
        let renamed = stamp();
        fs::write(folder.path().join("new"), "b").unwrap();
        fs::rename(folder.path().join("new"), &other).unwrap();
        assert_ne!(stamp(), renamed, "a replaced file");
    }

    #[test]
    fn a_stamp_follows_the_links_of_a_config_map() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for version in ["1", "2"] {
            fs::create_dir(path(version)).unwrap();
            fs::write(path(version).join("50.toml"), "a").unwrap();
        }
        symlink("1", path("..data")).unwrap();
        symlink("..data/50.toml", path("50.toml")).unwrap();
        let first = Stamp::of(folder.path());
        symlink("2", path("..data_tmp")).unwrap();
        fs::rename(path("..data_tmp"), path("..data")).unwrap();
        assert_ne!(Stamp::of(folder.path()), first);
    }
}
