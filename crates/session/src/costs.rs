//! The costs of a lift's operations on this machine, kept from the last `pagelift probe` until the next boot.
//!
//! Root keeps them in `/run/pagelift`, another user in `pagelift` below `$XDG_RUNTIME_DIR`. A user's processes use the user's own
//! costs, then root's. A file that cannot be read or understood is ignored.

use lift_plan::Costs;
use linux::owner::is_trusted;
use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::geteuid;
use serde::Serialize;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Root's folder.
const OF_ROOT: &str = "/run/pagelift";
/// Name of the file.
const FILE: &str = "lift-costs";
/// The first word of the file, with the version of the format.
const FORMAT: &str = "lift-costs-1";
/// Maximum length of the file in bytes.
const MOST_BYTES: u64 = 256;
/// Maximum of one cost in nanoseconds.
const MOST: u64 = 1_000_000_000;

/// The costs that are used for prices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KnownCosts {
    /// The costs.
    #[serde(flatten)]
    pub costs: Costs,
    /// True if they were measured on this machine.
    pub measured: bool,
}

/// Returns the measured costs of this machine, or the usual ones.
pub fn known() -> KnownCosts {
    let folders = [own_folder(), Some(PathBuf::from(OF_ROOT))];
    let measured = folders.into_iter().flatten().find_map(|folder| read(&folder));
    KnownCosts { costs: measured.unwrap_or(Costs::USUAL), measured: measured.is_some() }
}

/// Keeps measured costs.
///
/// # Errors
/// This user has no folder, or the kernel's.
pub fn keep(costs: &Costs) -> io::Result<()> {
    let folder = own_folder().ok_or_else(|| io::Error::other("found no $XDG_RUNTIME_DIR"))?;
    write(&folder, costs)
}

fn own_folder() -> Option<PathBuf> {
    if geteuid().is_root() {
        return Some(PathBuf::from(OF_ROOT));
    }
    let start = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute())?;
    Some(start.join("pagelift"))
}

fn write(folder: &Path, costs: &Costs) -> io::Result<()> {
    let _ = mkdirat(AT_FDCWD, folder, Mode::from_bits_truncate(0o755));
    let is_own = |found: std::fs::Metadata| found.uid() == geteuid().as_raw() && found.mode() & 0o022 == 0;
    if !folder.symlink_metadata().is_ok_and(|found| found.is_dir() && is_own(found)) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let new = folder.join(format!("{FILE}.{}", std::process::id()));
    let mut options = std::fs::OpenOptions::new();
    let mut file =
        options.write(true).create(true).truncate(true).mode(0o644).custom_flags(libc::O_NOFOLLOW).open(&new)?;
    let Costs { fill, copy, call, pause } = costs;
    let written = writeln!(file, "{FORMAT} {fill} {copy} {call} {pause}");
    let written = written.and_then(|()| std::fs::rename(&new, folder.join(FILE)));
    if written.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    written
}

fn read(folder: &Path) -> Option<Costs> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let file = File::from(openat(AT_FDCWD, &folder.join(FILE), flags, Mode::empty()).ok()?);
    let found = file.metadata().ok()?;
    if !found.is_file() || !is_trusted(found.uid()) || found.mode() & 0o022 != 0 || found.len() > MOST_BYTES {
        return None;
    }
    let mut text = String::new();
    file.take(MOST_BYTES).read_to_string(&mut text).ok()?;
    parse(&text)
}

fn parse(text: &str) -> Option<Costs> {
    let mut words = text.split_whitespace();
    let is_known = words.next() == Some(FORMAT);
    let mut cost = || words.next()?.parse::<u64>().ok().filter(|cost| (1..=MOST).contains(cost));
    let costs = Costs { fill: cost()?, copy: cost()?, call: cost()?, pause: cost()? };
    (is_known && words.next().is_none()).then_some(costs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    const COSTS: Costs = Costs { fill: 100_000, copy: 50_000, call: 4_000, pause: 20_000 };

    #[test]
    fn costs_are_read_as_they_were_written() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("pagelift");
        assert_eq!(read(&folder), None);
        for costs in [COSTS, Costs { fill: 1, ..COSTS }] {
            write(&folder, &costs).unwrap();
            assert_eq!(read(&folder), Some(costs));
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    }

    #[test]
    fn what_others_may_have_written_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("pagelift");
        write(&folder, &COSTS).unwrap();
        let file = folder.join(FILE);
        fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
        assert_eq!(read(&folder), None);
        fs::rename(&file, folder.join("other")).unwrap();
        fs::set_permissions(folder.join("other"), Permissions::from_mode(0o644)).unwrap();
        std::os::unix::fs::symlink("other", &file).unwrap();
        assert_eq!(read(&folder), None);
        fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
        assert!(write(&folder, &COSTS).is_err());
    }

    #[test]
    fn only_sound_costs_count() {
        let text = format!("{FORMAT} 100000 50000 4000 20000\n");
        assert_eq!(parse(&text), Some(COSTS));
        for bad in ["", FORMAT, "lift-costs-0 1 2 3 4", "1 2 3 4"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        for bad in ["1 2 3", "1 2 3 4 5", "0 2 3 4", "1 2 3 1000000001", "1 2 3 -4", "1 2 3 x"] {
            assert_eq!(parse(&format!("{FORMAT} {bad}")), None, "{bad}");
        }
    }
}
