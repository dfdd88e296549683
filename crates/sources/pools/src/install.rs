//! Writes boot files below a root folder, and takes exactly those back.

use crate::earlier::{Earlier, earlier, places};
use crate::root::Root;
use crate::{BootFile, BootKind, BootMachine, PoolRequest};
use address_space::PageSize;
use foreign_text::{quoted, quoted_path};
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const MARK: &str = "# Written by `pagelift pool plan --install`; `pagelift pool plan --uninstall` removes it.";

/// Errors for a path without a setting: no file, or no regular file.
const IGNORED: [io::ErrorKind; 3] =
    [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory, io::ErrorKind::InvalidInput];

/// Why a file is not written or removed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The kernel's error, at this path.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// Pagelift has written such a file before.
    #[error("{} exists already; fix: `{}` first, or another --name", path.display(), uninstall_command(name, root))]
    Exists {
        /// The file.
        path: PathBuf,
        /// The name of the reservation.
        name: String,
        /// The root folder.
        root: PathBuf,
    },
    /// Something else has the name of the file.
    #[error("{} was not written by Pagelift; fix: `rm {}` first, or another --name", .0.display(), quoted_path(.0))]
    Foreign(PathBuf),
    /// The administrator has masked the unit.
    #[error("found {} masked, needed no link to /dev/null; fix: `systemctl unmask {}` first, or another --name", .0.display(),
        quoted(.0.file_name().unwrap_or_default()))]
    Masked(PathBuf),
    /// Another file sets the same number of pages.
    #[error("found `{setting}` in {} already, and {why}; fix: {}", path.display(), earlier_fix(path, root))]
    Earlier {
        /// The other file.
        path: PathBuf,
        /// Its setting.
        setting: String,
        /// The reason why one is ignored.
        why: &'static str,
        /// The root folder.
        root: PathBuf,
    },
    /// Somebody has changed the file since it was written.
    #[error("{} was changed since Pagelift wrote it, and is not removed; fix: `rm {}`", .0.display(), quoted_path(.0))]
    Changed(PathBuf),
    /// The name could lead out of its folder.
    #[error("`{0}` is no name for a reservation; needed: letters, digits, - and _")]
    Name(String),
}

/// The fix for a number of pages that another file sets.
fn earlier_fix(path: &Path, root: &Path) -> String {
    let file = path.file_stem().map(|file| file.to_string_lossy()).unwrap_or_default();
    let first = match file.strip_prefix("60-pagelift-pool-") {
        Some(name) => format!("`{}`", uninstall_command(name, root)),
        None if path.starts_with(root.join("etc")) => format!("take it out of {}", path.display()),
        // A file of the same name in /etc replaces it, also after an update of its package.
        None => format!("copy {} to {} without it", path.display(), root.join("etc/sysctl.d").display()),
    };
    format!("{first}, then one plan with the sum of both; or --install systemd, whose pages add up")
}

/// The command that removes the files of a name below a root folder.
fn uninstall_command(name: &str, root: &Path) -> String {
    let command = format!("pagelift pool plan --uninstall --name {}", quoted(name));
    if root == Path::new("/") { command } else { format!("{command} --root {}", quoted_path(root)) }
}

/// The boot files of one name below a root folder.
#[derive(Clone, Debug)]
pub struct Installation {
    root: PathBuf,
    name: String,
}

impl Installation {
    /// The files of `name` below `root`, `/` for this machine.
    ///
    /// # Errors
    /// [`InstallError::Name`].
    pub fn new(root: &Path, name: &str) -> Result<Self, InstallError> {
        check_name(name)?;
        Ok(Self { root: root.to_owned(), name: name.to_owned() })
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The paths of this name's files that Pagelift has written, also if they were changed since.
    pub fn found(&self) -> Vec<PathBuf> {
        let Ok(root) = Root::open(&self.root) else { return Vec::new() };
        let paths = BootKind::ALL.map(|kind| PathBuf::from(BootFile::paths(kind, &self.name).0));
        let is_found = |path: &PathBuf| root.text(path).is_ok_and(|text| text.starts_with(MARK));
        paths.into_iter().filter(is_found).map(|path| self.root.join(path)).collect()
    }

    /// Searches for a file with another name that sets the same number of pages, so that one of both would be ignored.
    ///
    /// # Errors
    /// [`InstallError::Earlier`]; the kernel's if a file or folder cannot be read.
    pub fn check_others(
        &self,
        kind: BootKind,
        requests: &[PoolRequest],
        machine: &BootMachine,
        is_gigantic: impl Fn(PageSize) -> bool,
    ) -> Result<(), InstallError> {
        let Some(places) = places(kind) else { return Ok(()) };
        let sizes: Vec<_> = requests.iter().map(|request| request.size).collect();
        let Ok(root) = Root::open(&self.root) else { return Ok(()) };
        let own = PathBuf::from(BootFile::paths(kind, &self.name).0);
        let mut unread = None;
        let names_in = |folder: &Path| {
            root.names_in(folder).unwrap_or_else(|error| {
                unread.get_or_insert((folder.to_owned(), error));
                Vec::new()
            })
        };
        let others = places.others(&own, names_in);
        if let Some((folder, error)) = unread {
            return Err(self.refused(&folder, error));
        }
        for path in others {
            let text = match root.text(&path) {
                Ok(text) => text,
                Err(error) if IGNORED.contains(&error.kind()) => continue,
                Err(error) => return Err(self.refused(&path, error)),
            };
            let found = earlier(kind, &text, &sizes, machine, &is_gigantic);
            if let Some(Earlier { setting, why }) = found {
                let path = self.root.join(path);
                return Err(InstallError::Earlier { path, setting, why, root: self.root.clone() });
            }
        }
        Ok(())
    }

    /// Writes a file and its link, or neither if one exists. Returns the written paths.
    ///
    /// # Errors
    /// [`InstallError`]; nothing stays behind.
    pub fn install(&self, file: &BootFile) -> Result<Vec<PathBuf>, InstallError> {
        fs::create_dir_all(&self.root).map_err(|error| self.refused(Path::new(""), error))?;
        let root = self.open()?;
        let path = Path::new(&file.path);
        if let Some((link, _)) = file.link.as_ref().filter(|(link, _)| is_left_link(&root, path, link)) {
            root.remove(Path::new(link)).map_err(|error| self.refused(Path::new(link), error))?;
        }
        let text = with_mark(&file.text);
        let written = root.create(path, |file| file.write_all(text.as_bytes()));
        written.map_err(|error| self.unwritten(&root, path, error))?;
        let mut written = vec![self.root.join(path)];
        if let Some((link, target)) = &file.link {
            let link = Path::new(link);
            if let Err(error) = root.link(link, target) {
                let _ = root.remove(path);
                return Err(self.unwritten(&root, link, error));
            }
            written.push(self.root.join(link));
        }
        Ok(written)
    }

    fn open(&self) -> Result<Root, InstallError> {
        Root::open(&self.root).map_err(|error| self.refused(Path::new(""), error))
    }

    fn refused(&self, path: &Path, error: io::Error) -> InstallError {
        InstallError::Io { path: self.root.join(path), error }
    }

    fn unwritten(&self, root: &Root, path: &Path, error: io::Error) -> InstallError {
        if error.kind() != io::ErrorKind::AlreadyExists {
            return self.refused(path, error);
        }
        let shown = self.root.join(path);
        match present(root, path) {
            Ok(Present::Masked) => InstallError::Masked(shown),
            Ok(Present::Own) => InstallError::Exists { path: shown, name: self.name.clone(), root: self.root.clone() },
            _ => InstallError::Foreign(shown),
        }
    }

    /// Removes the files of this name that Pagelift has written, with their links, and a link without its file. Folders and
    /// files of others stay.
    ///
    /// # Errors
    /// [`InstallError::Changed`] for a file that was changed, before anything is removed; the kernel's.
    pub fn uninstall(&self) -> Result<Uninstalled, InstallError> {
        let root = self.open()?;
        let (mut ours, mut kept) = (Vec::new(), Vec::new());
        for (path, link) in BootKind::ALL.map(|kind| BootFile::paths(kind, &self.name)) {
            let (path, shown) = (PathBuf::from(&path), self.root.join(&path));
            let link = link.filter(|link| root.target_of(Path::new(link)).is_ok());
            match present(&root, &path).map_err(|error| self.refused(&path, error))? {
                Present::Own => {
                    ours.extend(link.map(PathBuf::from));
                    ours.push(path);
                }
                Present::Nothing => {
                    ours.extend(link.filter(|link| is_left_link(&root, &path, link)).map(PathBuf::from));
                }
                Present::Changed => return Err(InstallError::Changed(shown)),
                Present::Masked => kept.push(KeptFile::Masked(shown)),
                Present::Foreign => kept.push(KeptFile::Foreign(shown)),
            }
        }
        for path in &ours {
            root.remove(path).map_err(|error| self.refused(path, error))?;
        }
        Ok(Uninstalled { removed: ours.into_iter().map(|path| self.root.join(path)).collect(), kept })
    }
}

/// The outcome of a removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uninstalled {
    /// The paths of removed files and links.
    pub removed: Vec<PathBuf>,
    /// Files of others with the same names.
    pub kept: Vec<KeptFile>,
}

/// A file that Pagelift has not written, with the name of one of its boot files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeptFile {
    /// A link to /dev/null, by which the administrator has masked the unit.
    Masked(PathBuf),
    /// Any other file or link.
    Foreign(PathBuf),
}

impl fmt::Display for KeptFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Masked(path) => write!(f, "{} masks the unit, and is not removed", path.display()),
            Self::Foreign(path) => write!(f, "{} was not written by Pagelift, and is not removed", path.display()),
        }
    }
}

/// The file at the path of a boot file.
enum Present {
    Nothing,
    /// As Pagelift wrote it.
    Own,
    /// Written by Pagelift, and changed since.
    Changed,
    /// A link to /dev/null.
    Masked,
    Foreign,
}

fn present(root: &Root, path: &Path) -> io::Result<Present> {
    if let Ok(target) = root.target_of(path) {
        return Ok(if target == Path::new("/dev/null") { Present::Masked } else { Present::Foreign });
    }
    match root.text(path) {
        Ok(text) if is_own(&text) => Ok(Present::Own),
        Ok(text) if text.starts_with(MARK) => Ok(Present::Changed),
        Ok(_) => Ok(Present::Foreign),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound => Ok(Present::Nothing),
            io::ErrorKind::InvalidInput => Ok(Present::Foreign),
            _ => Err(error),
        },
    }
}

/// True for a link that enables the unit at `path`, if that unit is missing.
fn is_left_link(root: &Root, path: &Path, link: &str) -> bool {
    let (Ok(target), Some(name)) = (root.target_of(Path::new(link)), path.file_name()) else { return false };
    // As this installation writes it, and as systemctl does.
    let own = [Path::new("..").join(name), Path::new("/etc/systemd/system").join(name)];
    root.is_missing(path) && own.contains(&target)
}

/// Checks that a name of a reservation stays in its folder.
pub(crate) fn check_name(name: &str) -> Result<(), InstallError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let is_name = !name.is_empty() && name.chars().all(is_plain);
    if is_name { Ok(()) } else { Err(InstallError::Name(name.to_owned())) }
}

fn with_mark(text: &str) -> String {
    format!("{MARK}\n# Checksum of the rest: {:016x}\n{text}", checksum(text))
}

/// True for a file that is as Pagelift wrote it.
fn is_own(text: &str) -> bool {
    let rest = text.strip_prefix(MARK).and_then(|rest| rest.strip_prefix('\n'));
    rest.and_then(|rest| Some(rest.split_once('\n')?.1)).is_some_and(|body| with_mark(body) == text)
}

/// FNV-1a of 64 bits (RFC 9923), which detects a changed text; it is no protection against an attacker.
fn checksum(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BootMachine, PoolRequest};
    use std::collections::BTreeSet;
    use std::os::unix::fs::symlink;

    fn make_parent(path: &Path) -> io::Result<()> {
        path.parent().map_or(Ok(()), fs::create_dir_all)
    }

    fn file(kind: BootKind) -> BootFile {
        let request: PoolRequest = "2M:64".parse().unwrap();
        let machine = BootMachine { default: Some(request.size), ..BootMachine::default() };
        BootFile::new(kind, "db", &[request], "/usr/bin/pagelift", &machine).unwrap()
    }

    /// All files below a folder.
    fn files(folder: &Path) -> BTreeSet<PathBuf> {
        let mut found = BTreeSet::new();
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() && !path.is_symlink() { found.extend(files(&path)) } else { found.extend([path]) }
        }
        found
    }

    #[test]
    fn what_was_installed_is_taken_back_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let other = root.path().join("etc/systemd/system/pagelift-pool-other.service");
        make_parent(&other).unwrap();
        fs::write(&other, "someone else's").unwrap();
        let before = files(root.path());
        let installation = Installation::new(root.path(), "db").unwrap();
        for kind in BootKind::ALL {
            installation.install(&file(kind)).unwrap();
        }
        assert_eq!((files(root.path()).len(), installation.found().len()), (before.len() + 4, 3));
        let unit = fs::read_to_string(root.path().join(file(BootKind::Systemd).path)).unwrap();
        assert!(unit.starts_with(MARK) && unit.contains("\n[Unit]\n"));
        let again = installation.install(&file(BootKind::Systemd)).unwrap_err();
        assert!(matches!(again, InstallError::Exists { .. }), "{again}");
        let root_option = format!("`pagelift pool plan --uninstall --name db --root {}`", root.path().display());
        assert!(again.to_string().contains(&root_option), "{again}");
        assert_eq!(installation.uninstall().unwrap().removed.len(), 4);
        assert_eq!(files(root.path()), before);
        assert!(installation.uninstall().unwrap().removed.is_empty());
    }

    #[test]
    fn a_file_that_was_changed_stays_and_so_do_the_others() {
        let root = tempfile::tempdir().unwrap();
        let installation = Installation::new(root.path(), "db").unwrap();
        for kind in BootKind::ALL {
            installation.install(&file(kind)).unwrap();
        }
        let sysctl = root.path().join(file(BootKind::Sysctl).path);
        let changed = fs::read_to_string(&sysctl).unwrap().replace("64", "65");
        fs::write(&sysctl, changed).unwrap();
        let before = files(root.path());
        let error = installation.uninstall().unwrap_err();
        assert!(matches!(&error, InstallError::Changed(path) if *path == sysctl), "{error}");
        assert_eq!(files(root.path()), before);
    }

    #[test]
    fn a_link_that_is_in_the_way_is_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let (victim, path) = (root.path().join("victim"), root.path().join(file(BootKind::Sysctl).path));
        make_parent(&path).unwrap();
        symlink(&victim, &path).unwrap();
        let installation = Installation::new(root.path(), "db").unwrap();
        assert!(matches!(installation.install(&file(BootKind::Sysctl)), Err(InstallError::Foreign(_))));
        assert!(!victim.exists());
    }

    #[test]
    fn no_link_of_an_image_leads_out_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let (image, host) = (folder.path().join("image"), folder.path().join("host"));
        fs::create_dir_all(&image).unwrap();
        let outside = Installation::new(&host, "db").unwrap();
        symlink(host.join("etc"), image.join("etc")).unwrap();
        let installation = Installation::new(&image, "db").unwrap();
        let request: PoolRequest = "2M:64".parse().unwrap();
        for kind in BootKind::ALL {
            outside.install(&file(kind)).unwrap();
            assert!(installation.uninstall().map_or(true, |outcome| outcome.removed.is_empty()));
            assert!(installation.found().is_empty());
            outside.uninstall().unwrap();
            let error = installation.install(&file(kind)).unwrap_err().to_string();
            assert!(error.contains("found etc as a link to no folder below the root folder"), "{error}");
            let others = installation.check_others(kind, &[request], &BootMachine::default(), |_| false);
            assert!(others.is_ok(), "{others:?}");
        }
        assert_eq!(files(&host), BTreeSet::new());
    }

    #[test]
    fn a_link_without_its_unit_is_in_nobodys_way() {
        let root = tempfile::tempdir().unwrap();
        let installation = Installation::new(root.path(), "db").unwrap();
        let unit = file(BootKind::Systemd);
        let [path, link] = [&unit.path, &unit.link.as_ref().unwrap().0].map(|path| root.path().join(path));
        make_parent(&link).unwrap();
        for target in ["../pagelift-pool-db.service", "/etc/systemd/system/pagelift-pool-db.service"] {
            symlink(target, &link).unwrap();
            assert_eq!(installation.uninstall().unwrap().removed, [link.as_path()]);
            assert!(files(root.path()).is_empty());

            symlink(target, &link).unwrap();
            assert_eq!(installation.install(&unit).unwrap(), [path.as_path(), link.as_path()]);
            assert_eq!(installation.uninstall().unwrap().removed, [link.as_path(), path.as_path()]);
        }
        symlink("/etc/systemd/system/other.service", &link).unwrap();
        let error = installation.install(&unit).unwrap_err();
        assert!(matches!(&error, InstallError::Foreign(path) if *path == link), "{error}");
        assert!(installation.uninstall().unwrap().removed.is_empty());
        assert_eq!(files(root.path()), BTreeSet::from([link]));
    }

    #[test]
    fn a_masked_unit_stays_masked() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(file(BootKind::Systemd).path);
        make_parent(&path).unwrap();
        symlink("/dev/null", &path).unwrap();
        let error = Installation::new(root.path(), "db").unwrap().install(&file(BootKind::Systemd)).unwrap_err();
        assert!(error.to_string().contains("`systemctl unmask pagelift-pool-db.service`"), "{error}");
        assert_eq!(files(root.path()), BTreeSet::from([path]));
    }

    #[test]
    fn a_number_in_any_folder_of_sysctl_is_found() {
        let root = tempfile::tempdir().unwrap();
        let installation = Installation::new(root.path(), "db").unwrap();
        let check = || installation.check_others(BootKind::Sysctl, &[], &BootMachine::default(), |_| false);
        let place = |path: &str| {
            let path = root.path().join(path);
            make_parent(&path).unwrap();
            fs::write(&path, "vm.nr_hugepages = 3\n").unwrap();
            path
        };
        for folder in ["run", "usr/local/lib", "usr/lib", "lib"] {
            assert!(check().is_ok());
            let path = place(&format!("{folder}/sysctl.d/90-vendor.conf"));
            let error = check().unwrap_err().to_string();
            let fix = format!("fix: copy {} to {}/etc/sysctl.d without it", path.display(), root.path().display());
            assert!(error.contains(&fix), "{error}");
            // A link to /dev/null masks files of its name.
            let mask = root.path().join("etc/sysctl.d/90-vendor.conf");
            make_parent(&mask).unwrap();
            symlink("/dev/null", &mask).unwrap();
            assert!(check().is_ok());
            [path, mask].iter().for_each(|path| fs::remove_file(path).unwrap());
        }
        place("etc/sysctl.d/10-own.conf");
        assert!(check().unwrap_err().to_string().contains("fix: take it out of "));
    }

    #[test]
    fn files_of_others_keep_no_own_file_in_place() {
        let root = tempfile::tempdir().unwrap();
        let [unit, sysctl, grub] = BootKind::ALL.map(|kind| root.path().join(file(kind).path));
        let installation = Installation::new(root.path(), "db").unwrap();
        let [written] = installation.install(&file(BootKind::Grub)).unwrap().try_into().unwrap();
        [&unit, &sysctl].into_iter().for_each(|path| make_parent(path).unwrap());
        symlink("/dev/null", &unit).unwrap();
        for foreign in ["vm.nr_hugepages = 3\n", ""] {
            fs::write(&sysctl, foreign).unwrap();
            let outcome = installation.uninstall().unwrap();
            assert_eq!(outcome.kept, [KeptFile::Masked(unit.clone()), KeptFile::Foreign(sysctl.clone())]);
            assert_eq!(outcome.removed, [written.as_path()]);
            assert_eq!(files(root.path()), BTreeSet::from([unit.clone(), sysctl.clone()]));
            installation.install(&file(BootKind::Grub)).unwrap();
        }
        assert!(grub.exists());
    }

    #[test]
    fn names_stay_in_their_folders() {
        assert!(["", "../x", "a b", "a/b", "%i"].iter().all(|name| Installation::new(Path::new("/"), name).is_err()));
        assert!(Installation::new(Path::new("/"), "maria-db_2").is_ok());
    }
}
