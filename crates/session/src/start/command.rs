//! Finds the files that a command executes, and whether they may be traced.

use heap_choice::Environment;
use linux::attributes;
use linux::search_path::find_program;
use process_view::open_regular_file;
use std::ffi::{CString, OsStr};
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Maximum length of a chain of interpreters; the kernel allows four (execve(2)).
const MOST_INTERPRETERS: usize = 5;

/// The files that a command executes: the program, then the interpreter of a script, and so on.
#[derive(Default)]
pub struct CommandFiles(Vec<PathBuf>);

impl CommandFiles {
    /// Returns the files that the exec of a command will open; empty if the command is not found.
    pub fn of(command: &OsStr) -> Self {
        let mut files: Vec<_> = find_program(command).into_iter().collect();
        while files.len() <= MOST_INTERPRETERS
            && let Some(next) = files.last().and_then(|file| interpreter(file))
        {
            files.push(next);
        }
        Self(files)
    }

    /// Returns the files of the program whose heap counts: of the first name in `only` that is found, otherwise of the
    /// command.
    pub fn that_count(command: &OsStr, only: &[String]) -> Self {
        let found = |name: &String| Self::of(OsStr::new(name));
        only.iter().map(found).find(|files| !files.0.is_empty()).unwrap_or_else(|| Self::of(command))
    }

    /// The file that the command names.
    pub fn program(&self) -> Option<&Path> {
        self.0.first().map(PathBuf::as_path)
    }

    /// The file that the kernel executes: the program, or the interpreter of a script.
    pub fn executed(&self) -> Option<&Path> {
        self.0.last().map(PathBuf::as_path)
    }

    /// The libraries that the dynamic linker loads with the executed file, if they are found.
    pub fn libraries(&self) -> Vec<PathBuf> {
        let program = self.executed().map(|file| heap_choice::Program::read(file, &Environment::default()));
        let libraries = program.and_then(Result::ok).flatten().map(|program| program.libraries);
        libraries.unwrap_or_default().into_iter().map(|library| library.path).collect()
    }

    /// True if the program is a script.
    pub fn is_script(&self) -> bool {
        self.0.len() > 1
    }

    /// Why the command must not be traced, if so: a program that gains privileges by its exec would silently lack them.
    pub fn privileged(&self) -> Option<String> {
        for path in &self.0 {
            let metadata = fs::metadata(path).ok()?;
            let mode = metadata.mode();
            let gains_group = mode & libc::S_ISGID != 0 && mode & libc::S_IXGRP != 0;
            if mode & libc::S_ISUID != 0 || gains_group {
                return Some(format!("{} is a set-user-ID or set-group-ID program", path.display()));
            }
            if has_capabilities(path) {
                return Some(format!("{} has file capabilities", path.display()));
            }
            // The kernel hides the memory of a program that its user may execute but not read.
            if nix::unistd::access(path, nix::unistd::AccessFlags::R_OK).is_err() {
                return Some(format!("{} may be executed but not read, needed: permission to read it", path.display()));
            }
        }
        None
    }
}

fn has_capabilities(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    let mut value = [0u8; 64];
    attributes::get(&path, c"security.capability", &mut value).is_ok()
}

/// The interpreter that the first line of a script names.
fn interpreter(path: &Path) -> Option<PathBuf> {
    let mut start = [0; 256];
    let length = open_regular_file(path).ok()??.read(&mut start).ok()?;
    let line = start[..length].strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    let word = line.split(|byte| b" \t".contains(byte)).find(|word| !word.is_empty())?;
    Some(PathBuf::from(OsStr::from_bytes(word)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn script(folder: &Path, name: &str, text: &str) -> PathBuf {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn a_script_executes_its_interpreter() {
        let folder = tempfile::tempdir().unwrap();
        let inner = script(folder.path(), "inner", "#! /bin/sh -e\n");
        let outer = script(folder.path(), "outer", &format!("#!{}\n", inner.display()));
        let files = CommandFiles::of(outer.as_os_str());
        assert_eq!(files.program(), Some(outer.as_path()));
        assert_eq!(files.executed(), Some(Path::new("/bin/sh")));
        assert!(files.is_script() && files.privileged().is_none());
    }

    #[test]
    fn scripts_that_name_themselves_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("circle");
        script(folder.path(), "circle", &format!("#!{}\n", path.display()));
        assert_eq!(CommandFiles::of(path.as_os_str()).executed(), Some(path.as_path()));
    }

    #[test]
    fn the_program_that_is_named_counts() {
        let named = |only: &[&str]| {
            let only: Vec<_> = only.iter().map(|name| (*name).to_owned()).collect();
            CommandFiles::that_count(OsStr::new("/bin/cat"), &only).program().map(Path::to_path_buf)
        };
        assert_eq!(named(&["no-such-program", "/bin/sh"]), Some("/bin/sh".into()));
        assert_eq!(named(&["no-such-program"]), Some("/bin/cat".into()));
    }

    #[test]
    fn a_set_user_id_program_is_not_traced() {
        let folder = tempfile::tempdir().unwrap();
        let path = script(folder.path(), "su", "#!/bin/sh\n");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
        let why = CommandFiles::of(path.as_os_str()).privileged();
        assert!(why.is_some_and(|why| why.contains("set-user-ID")));
    }
}
