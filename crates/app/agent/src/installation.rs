//! Marks of the installations of Pagelift that have written to a folder of state.
//!
//! Installations can share such folders: the agent of a pod uses `/run/pagelift` and `/var/lib/pagelift` of its node. A purge of
//! the Debian package (`packaging/debian/pagelift.postrm`) removes a folder only if the package's mark is the only one there.

use linux::written_file;
use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Name of the file with one mark a line.
const FILE: &str = "installations";
/// The program of the Debian package.
const PACKAGED: &str = "/usr/bin/pagelift";
/// A random number of the package's installation on this root, which its `postinst` writes.
const NUMBER: &str = "/var/lib/misc/pagelift-installation";
/// Longest number in bytes.
const LONGEST_NUMBER: usize = 64;
/// The mark for state from before the first mark.
const UNKNOWN: &str = "unknown";

/// Marks a folder of state before anything else is written to it. `data` are names of files that an installation without marks may
/// have left. The caller holds the lock of the folder.
///
/// # Errors
/// The kernel's.
pub fn mark(folder: &Path, data: &[&str]) -> io::Result<()> {
    let program = std::env::current_exe()?;
    mark_by(folder, data, &own_mark(&program, fs::read_to_string(NUMBER).ok().as_deref()))
}

/// The mark of the installation with this program: the number of the package, or the path of another program. A container has
/// another number, or none.
fn own_mark(program: &Path, number: Option<&str>) -> String {
    // An upgrade removes the file of a running program.
    let name = program.as_os_str().as_bytes();
    let name = name.strip_suffix(b" (deleted)").unwrap_or(name);
    let number = number.map(str::trim).filter(|_| name == PACKAGED.as_bytes());
    let is_number = |text: &&str| {
        (1..=LONGEST_NUMBER).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    match number.filter(is_number) {
        Some(number) => format!("package {number}"),
        None => format!("program {}", String::from_utf8_lossy(name).escape_debug()),
    }
}

fn mark_by(folder: &Path, data: &[&str], own: &str) -> io::Result<()> {
    let path = folder.join(FILE);
    let before = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        Err(_) if data.iter().any(|name| folder.join(name).symlink_metadata().is_ok()) => format!("{UNKNOWN}\n"),
        Err(_) => String::new(),
    };
    if before.lines().any(|line| line == own) {
        return Ok(());
    }
    let new = PathBuf::from(format!("{}.new", path.display()));
    let mut file = written_file::create_anew(&new)?;
    file.write_all(format!("{before}{own}\n").as_bytes())?;
    file.sync_all()?;
    fs::rename(new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks(folder: &Path) -> String {
        fs::read_to_string(folder.join(FILE)).unwrap()
    }

    #[test]
    fn each_installation_marks_a_folder_once() {
        let folder = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            mark_by(folder.path(), &["data"], "package 7f").unwrap();
            assert_eq!(marks(folder.path()), "package 7f\n");
            // Data after the first mark have an owner.
            fs::write(folder.path().join("data"), "").unwrap();
        }
        mark_by(folder.path(), &["data"], "program /opt/pagelift").unwrap();
        mark_by(folder.path(), &["data"], "package 7f").unwrap();
        assert_eq!(marks(folder.path()), "package 7f\nprogram /opt/pagelift\n");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn data_without_a_mark_are_of_an_unknown_installation() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("lifts.json"), "").unwrap();
        mark_by(folder.path(), &["status.json", "lifts.json"], "package 7f").unwrap();
        assert_eq!(marks(folder.path()), "unknown\npackage 7f\n");
    }

    #[test]
    fn only_the_program_of_the_package_has_its_number() {
        let mark = |program: &str, number| own_mark(Path::new(program), number);
        assert_eq!(mark("/usr/bin/pagelift", Some("0f\n")), "package 0f");
        assert_eq!(mark("/usr/bin/pagelift (deleted)", Some("0f")), "package 0f");
        assert_eq!(mark("/opt/pagelift", Some("0f")), "program /opt/pagelift");
        for number in [None, Some(""), Some("0f\n1e"), Some("../0f")] {
            assert_eq!(mark("/usr/bin/pagelift", number), "program /usr/bin/pagelift");
        }
        assert_eq!(mark("/opt/a\nb", None), "program /opt/a\\nb");
    }
}
