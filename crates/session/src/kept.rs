//! Results of measurements of this machine, kept in small files until the next boot.
//!
//! Root keeps them in `/run/pagelift`, another user in `pagelift` below `$XDG_RUNTIME_DIR`. A user's processes use the user's own
//! files, then root's. A file that cannot be read or understood is ignored.

use linux::owner::is_trusted;
use linux::text::text_of;
use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::geteuid;
use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Root's folder.
const OF_ROOT: &str = "/run/pagelift";
/// Maximum length of a file in bytes.
const MOST_BYTES: u64 = 256;

/// Numbers that are kept in one file.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    /// Name of the file.
    pub name: &'static str,
    /// The first word of the file, with the version of the format.
    pub format: &'static str,
}

impl Kept {
    /// Returns the numbers of the first file that this function accepts.
    pub fn known<T>(&self, understood: impl Fn(&[u64]) -> Option<T>) -> Option<T> {
        let folders = [own_folder(), Some(PathBuf::from(OF_ROOT))];
        let boot = this_boot()?;
        folders.into_iter().flatten().find_map(|folder| {
            let numbers = self.read(&folder)?;
            let (first, numbers) = numbers.split_first()?;
            // The folder may last longer than a boot in a container.
            if *first == boot { understood(numbers) } else { None }
        })
    }

    /// Keeps numbers.
    ///
    /// # Errors
    /// This user has no folder, or the kernel's.
    pub fn keep(&self, numbers: &[u64]) -> io::Result<()> {
        let folder = own_folder().ok_or_else(|| io::Error::other("found no $XDG_RUNTIME_DIR"))?;
        let boot = this_boot().ok_or_else(|| io::Error::other("found no identity of this boot"))?;
        self.write(&folder, &[&[boot], numbers].concat())
    }

    fn write(&self, folder: &Path, numbers: &[u64]) -> io::Result<()> {
        if mkdirat(AT_FDCWD, folder, Mode::from_bits_truncate(0o755)).is_ok() {
            // Other users read there, whatever this process's umask is.
            std::fs::set_permissions(folder, Permissions::from_mode(0o755))?;
        }
        let is_own = |found: std::fs::Metadata| found.uid() == geteuid().as_raw() && found.mode() & 0o022 == 0;
        if !folder.symlink_metadata().is_ok_and(|found| found.is_dir() && is_own(found)) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let new = folder.join(format!("{}.{}", self.name, std::process::id()));
        let mut options = std::fs::OpenOptions::new();
        let mut file =
            options.write(true).create(true).truncate(true).mode(0o644).custom_flags(libc::O_NOFOLLOW).open(&new)?;
        let words: Vec<String> = numbers.iter().map(u64::to_string).collect();
        let written = writeln!(file, "{} {}", self.format, words.join(" "));
        let written = written.and_then(|()| std::fs::rename(&new, folder.join(self.name)));
        if written.is_err() {
            let _ = std::fs::remove_file(&new);
        }
        written
    }

    fn read(&self, folder: &Path) -> Option<Vec<u64>> {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let file = File::from(openat(AT_FDCWD, &folder.join(self.name), flags, Mode::empty()).ok()?);
        let found = file.metadata().ok()?;
        if !found.is_file() || !is_trusted(found.uid()) || found.mode() & 0o022 != 0 || found.len() > MOST_BYTES {
            return None;
        }
        let mut text = String::new();
        file.take(MOST_BYTES).read_to_string(&mut text).ok()?;
        self.parse(&text)
    }

    fn parse(&self, text: &str) -> Option<Vec<u64>> {
        let mut words = text.split_whitespace();
        let is_known = words.next() == Some(self.format);
        let numbers = words.map(|word| word.parse().ok()).collect::<Option<Vec<u64>>>()?;
        is_known.then_some(numbers)
    }
}

/// A number that differs between boots.
fn this_boot() -> Option<u64> {
    let text = text_of("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).ok()
}

fn own_folder() -> Option<PathBuf> {
    if geteuid().is_root() {
        return Some(PathBuf::from(OF_ROOT));
    }
    let start = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute())?;
    Some(start.join("pagelift"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const KEPT: Kept = Kept { name: "numbers", format: "numbers-1" };

    #[test]
    fn numbers_are_read_as_they_were_written() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("pagelift");
        assert_eq!(KEPT.read(&folder), None);
        for numbers in [&[100_000, 50_000][..], &[], &[u64::MAX, 0]] {
            KEPT.write(&folder, numbers).unwrap();
            assert_eq!(KEPT.read(&folder).unwrap(), numbers);
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    }

    #[test]
    fn what_others_may_have_written_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("pagelift");
        KEPT.write(&folder, &[1]).unwrap();
        let file = folder.join(KEPT.name);
        fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
        assert_eq!(KEPT.read(&folder), None);
        fs::rename(&file, folder.join("other")).unwrap();
        fs::set_permissions(folder.join("other"), Permissions::from_mode(0o644)).unwrap();
        std::os::unix::fs::symlink("other", &file).unwrap();
        assert_eq!(KEPT.read(&folder), None);
        fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
        assert!(KEPT.write(&folder, &[1]).is_err());
    }

    #[test]
    fn only_numbers_of_this_format_count() {
        assert_eq!(KEPT.parse("numbers-1 1 2\n").unwrap(), [1, 2]);
        for bad in ["", "1 2", "numbers-0 1 2", "numbers-1 1 -2", "numbers-1 x", "numbers-1 18446744073709551616"] {
            assert_eq!(KEPT.parse(bad), None, "{bad}");
        }
    }
}
