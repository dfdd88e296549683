//! The search for programs in PATH.

use nix::unistd::{AccessFlags, eaccess};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Where execvp(3) searches if PATH is not set.
const USUAL: &str = "/bin:/usr/bin";

/// Returns the file that execvp(3) executes: `name` itself if it has a slash, or else the first regular file of this name in PATH
/// that this process may execute. No file is opened.
pub fn find_program(name: &OsStr) -> Option<PathBuf> {
    find_in(name, &std::env::var_os("PATH").unwrap_or_else(|| USUAL.into()))
}

fn find_in(name: &OsStr, folders: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name));
    }
    let files = std::env::split_paths(folders).map(|folder| folder.join(name));
    let mut executable = files.filter(|file| file.is_file() && eaccess(file, AccessFlags::X_OK).is_ok());
    executable.next().filter(|_| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_a_regular_file_that_may_be_executed_is_found() {
        let root = tempfile::tempdir().unwrap();
        let folders = ["pipe", "folder", "data", "program", "later"].map(|name| root.path().join(name));
        folders.iter().for_each(|folder| fs::create_dir(folder).unwrap());
        let [pipe, folder, data, program, later] = folders.each_ref().map(|folder| folder.join("tool"));
        mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        fs::create_dir(folder).unwrap();
        for (file, mode) in [(&data, 0o644), (&program, 0o755), (&later, 0o755)] {
            fs::write(file, "").unwrap();
            fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
        }
        let path = std::env::join_paths(&folders).unwrap();
        assert_eq!(find_in("tool".as_ref(), &path), Some(program));
        assert_eq!(find_in("other".as_ref(), &path), None);
        assert_eq!(find_in("".as_ref(), &path), None);
        assert_eq!(find_in("./tool".as_ref(), &path), Some("./tool".into()));
    }
}
